"""
Refusals of export targets by the field of a plan that they are told of, and of models that Megatron-LM cannot describe.

A row is a rule, or the values that a target has; decisions have their own name, settings ``settings.NAME``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from constraints.rule import FieldValues, Rule
from constraints.rules import context, frameworks, physics, targets
from costmodel.errors import SpecError
from costmodel.facts.model import Attention, Experts, LatentAttention, Layer, Mamba, Mlp, Model
from costmodel.record import record
from costmodel.strategy import CudaGraphs, Recompute, Schedule, Sharding, TokenDispatcher, Vocabulary
from costmodel.tables import Facts

NORMS = {"rms": "RMSNorm", "layer": "LayerNorm"}
"""Values of ``--normalization``."""

LETTERS: dict[type, str] = {Mamba: "M", Attention: "*", Mlp: "-", Experts: "E"}
"""Letter of each block in the pattern of a hybrid (megatron/core/ssm/mamba_hybrid_layer_allocation.py)."""

PLAIN_MAMBA = Mamba(num_heads=1, head_dim=1, state_size=1, num_groups=1)
"""Convolution, chunks and biases of a Mamba block, which have no options (megatron/core/ssm/mamba_mixer.py:149)."""

WITHOUT_OPTIONS = {
    "activation_weights": "a non-linearity with weights of its own (xIELU)",
    "chunk": "attention inside chunks",
    "head_gate": "a gate per head after the attention",
    "indexer": "keys that an indexer chooses for each query (sparse attention)",
    "key_is_value": "values that are keys",
    "latent_norm": "a norm of the experts' latent",
    "router_scales": "a router that norms and scales its input",
}
"""Entries of blocks of which Megatron-LM's releases here know nothing, and their meaning."""


def require_options(model: Model, sequence_length: int) -> None:
    """
    Refuse a model that Megatron-LM has no options for.

    Raises
    ------
    SpecError
        With the entry of the model, its value, and the values that have options.
    """
    hybrid = model.has_single_blocks
    if hybrid and model.mtp_layers:
        raise SpecError(
            "model.mtp_layers",
            "hybrids have them in another pattern, which exports do not write.",
            "Plan with settings.mtp_layers=0.",
        )
    for layer in model.kinds:
        (_require_block if hybrid else _require_gpt)(layer)
    _require_alike(model)
    if not any(isinstance(layer.attention, Attention | LatentAttention) for layer in model.kinds):
        raise SpecError("model.layers", "have no attention, of which Megatron-LM must know the heads.")
    feed_forwards = [kind.feed_forward for kind in model.kinds if kind.feed_forward is not None]
    if len({(block.gated, block.squared_relu) for block in feed_forwards}) > 1:
        raise SpecError("model.gated", "feed-forwards differ in gate or non-linearity; one option says it for all.")
    spans = (layer.attention.window for layer in model.kinds if isinstance(layer.attention, Attention))
    windows = {window for window in spans if window is not None}
    if len(windows) > 1:
        raise SpecError("model.window", f"is {sorted(windows)} in different layers; one option says it for all.")
    if 0 < model.learned_positions < sequence_length:
        problem = f"is {model.learned_positions}, fewer than the {sequence_length} tokens of a sequence."
        raise SpecError("model.learned_positions", problem)
    _require_biases(model)
    if hybrid and not any(isinstance(layer.attention, Mamba) for layer in model.kinds):
        raise SpecError("model.layers", "are single blocks without Mamba, which Megatron-LM's hybrid model has.")


def _require_biases(model: Model) -> None:
    """Refuse biases of some linears only; one option gives them to all, another one to queries, keys and values."""
    has_bias, qkv = linears_have_bias(model), qkv_has_bias(model)
    has_attention = any(isinstance(kind.attention, Attention) for kind in model.kinds)
    if len(has_bias) > 1 or (True in has_bias and has_attention and not qkv):
        raise SpecError("model.bias", "some linears have a bias, others none; Megatron-LM gives it to all or none.")


def linears_have_bias(model: Model) -> set[bool]:
    """Return True or False or both, for the linears of all blocks but queries, keys and values."""
    blocks = [kind.feed_forward for kind in model.kinds if kind.feed_forward is not None]
    attentions = [kind.attention for kind in model.kinds if isinstance(kind.attention, Attention)]
    return {
        *(block.bias for block in blocks),
        *(block.router_bias for block in blocks if isinstance(block, Experts)),
        *(attention.output_bias for attention in attentions),
    }


def qkv_has_bias(model: Model) -> bool:
    """Return True where queries, keys and values of some layer have biases."""
    return any(isinstance(kind.attention, Attention) and kind.attention.qkv_bias for kind in model.kinds)


def _require_gpt(layer: Layer) -> None:
    attention = layer.attention
    if layer.streams > 1:
        raise SpecError("model.streams", f"is {layer.streams} (hyper-connections), for which exports write no options.")
    if layer.snapshots:
        raise SpecError("model.snapshots", "are attention residuals, for which exports write no options.")
    if not isinstance(attention, Attention | LatentAttention) or layer.feed_forward is None or layer.beside:
        blocks = " and ".join(type(block).__name__ for block in layer.blocks)
        raise SpecError(
            "model.layers",
            f"a layer is {blocks}; only GPT models are exported, whose layers are an attention and a feed-forward.",
        )
    if layer.parallel_blocks or layer.num_norms != 2:
        what = "blocks side by side" if layer.parallel_blocks else f"{layer.num_norms} norms"
        raise SpecError(
            "model.layers", f"a layer has {what}; Megatron-LM's GPT layer is two blocks, a norm before each."
        )
    if layer.norm not in NORMS:
        raise SpecError("model.norm", f"is {layer.norm}; Megatron-LM has {' and '.join(NORMS.values())}.")
    if isinstance(attention, Attention) and attention.qk_norm == "full":
        raise SpecError("model.qk_norm", "is over all heads; Megatron-LM's --qk-layernorm is per head.")
    for block in layer.blocks:
        for name, what in WITHOUT_OPTIONS.items():
            if getattr(block, name, None):
                raise SpecError(f"model.{name}", f"means {what}, for which exports write no options.")
    if isinstance(attention, Attention) and attention.v_head_dim is not None:
        raise SpecError(
            "model.v_head_dim", f"is {attention.v_head_dim}; Megatron-LM has it with latent attention alone."
        )
    if isinstance(attention, LatentAttention) and (attention.output_gate or not attention.rotary):
        what = "is gated" if attention.output_gate else "does not rotate"
        raise SpecError("model.layers", f"latent attention {what}, which Megatron-LM's options do not say.")
    if isinstance(attention, LatentAttention) and attention.bias:
        raise SpecError("model.bias", "latent attention has biases, which Megatron-LM's has not.")


def _require_block(layer: Layer) -> None:
    """Refuse a layer of a hybrid that is not one block with a letter and a norm before it."""
    (block, *more), kinds = layer.blocks, tuple(LETTERS)
    if more or not isinstance(block, kinds) or layer.num_norms != 1:
        blocks = " and ".join(type(one).__name__ for one in layer.blocks)
        problem = f"a layer is {blocks} with {layer.num_norms} norms; a hybrid's are one block and one norm each."
        raise SpecError("model.layers", problem)
    if layer.norm not in NORMS:
        raise SpecError("model.norm", f"is {layer.norm}; Megatron-LM has {' and '.join(NORMS.values())}.")
    if isinstance(block, Mamba) and replace(block, num_heads=1, head_dim=1, state_size=1, num_groups=1) != PLAIN_MAMBA:
        raise SpecError("model.layers", "convolution, chunks or biases of Mamba are others than Megatron-LM's.")
    if isinstance(block, Attention) and (block.rotary or block.qk_norm == "full"):
        raise SpecError("model.layers", "attention has rotary positions or norms over all heads, a hybrid's neither.")


def _require_alike(model: Model) -> None:
    """Refuse layers that differ in more than experts and window, or in hybrids in more than their block."""
    if model.extras or model.embedding_norm:
        what = model.extras or "a norm after the embedding"
        raise SpecError("model.extras", f"has {what}, which Megatron-LM's options do not say.")
    if model.head_bias:
        raise SpecError("model.head_bias", "is true; Megatron-LM's head has no bias.")
    mixers = [kind.attention for kind in model.kinds if kind.attention is not None]
    differing = {
        "attention": {_drop_window(one) for one in mixers if not isinstance(one, Mamba)},
        "mamba": {one for one in mixers if isinstance(one, Mamba)},
        "norm": {*(kind.norm for kind in model.kinds), model.final_norm},
        "ffn_hidden_size": {kind.feed_forward for kind in model.kinds if isinstance(kind.feed_forward, Mlp)},
        "expert_ffn_hidden_size": {kind.feed_forward for kind in model.kinds if isinstance(kind.feed_forward, Experts)},
    }
    for name, values in differing.items():
        if len(values) > 1:
            raise SpecError(f"model.{name}", f"{len(values)} kinds of layers differ in it; one option says it for all.")
    if any(layer != replace(model.layers[-1], is_wide=False) for layer in model.mtp_layers):
        raise SpecError("model.mtp_layers", "differ from the last layer, of which Megatron-LM makes them.")


def _drop_window(attention: Any) -> Any:
    return replace(attention, window=None) if isinstance(attention, Attention) else attention


Refusals: TypeAlias = Mapping[str, tuple[Rule | FieldValues, ...]]


@record(frozen=True, kw_only=True, slots=True)
class Target:
    """
    Target of ``planner export`` with its refusals.

    Parameters
    ----------
    name
        Its name as it is written.
    fields
        Refusals by field of a plan.
    precisions
        Precisions that it has, with the bytes that the catalog gives them.
    other_precision
        Message for any other one, with ``{name}``, and ``{own}`` where it differs from the catalog in its bytes.
    precision_hint
        Hint of that message, with the ``{known}`` ones.
    require_model
        Function that refuses models which the target has no options for.
    strategy_first
        True where reasons that are about the strategy come before those about the precision.
    """

    name: str
    fields: Refusals
    precisions: tuple[str, ...]
    other_precision: str
    precision_hint: str = "Plan with {known}."
    require_model: Callable[[Facts], None] = lambda facts: None
    strategy_first: bool = False


def _only(reason: str, *values: object) -> tuple[FieldValues]:
    """Return the row of a field that has these values alone."""
    return (FieldValues(values, reason),)


WHOLE_OFFLOAD = "Optimizer states alone do not leave the device."

STEPS = {"settings.composition": _only("A sum of layers profiled one by one is not a step that can be run.", "step")}


def _refuse_fp8(reason: str) -> Refusals:
    """Return the rows of a target without 8-bit recipes."""
    layers = ("settings.first_layers_bf16", "settings.last_layers_bf16")
    flags = ("settings.fp8_param_gather", "settings.fp8_attention")
    return {**dict.fromkeys(layers, _only(reason, 0)), **dict.fromkeys(flags, _only(reason, False))}


def _refuse_pipelines(reason: str) -> Refusals:
    """Return the rows of a target without pipelines."""
    return {
        **dict.fromkeys(("pp", "vpp", "group"), _only(reason, 1)),
        "schedule": _only(reason, Schedule.ONE_F_ONE_B),
        "vocabulary": _only(reason, Vocabulary.ENDS),
        "pp_overlap": _only(reason, False),
        "layout": _only(reason, None),
    }


def _refuse_offload(reason: str) -> Refusals:
    """Return the rows of a target whose optimizer states stay on the device."""
    return {
        "optimizer_offload": _only(reason, False),
        "settings.offloaded_states": _only(WHOLE_OFFLOAD, 1.0),
        "settings.offloaded_masters": _only(WHOLE_OFFLOAD, True),
        "settings.offload_overlap": _only(WHOLE_OFFLOAD, False),
        "settings.host_threads": _only(WHOLE_OFFLOAD, None),
    }


FSDP2: Refusals = {
    "settings.moments_dtype": _only(
        "Adam's moments are of the dtype of its weights, FP32 (torch/optim/adam.py).", "fp32"
    ),
    "settings.cp_a2a_ranks": _only("Context parallelism has no all-to-alls.", None),
    "settings.optimizer_group": (targets.fsdp_groups_are_replicas,),
}
"""Rows of targets whose replicas share states by FSDP2."""

WHOLE_BATCHES = (physics.global_batch_splits_over_ranks,)

# --- torchtitan ----------------------------------------------------------------------------------------------

TORCHTITAN: Refusals = {
    **STEPS,
    **FSDP2,
    **_refuse_fp8("FP8 is a converter of the model, not written here."),
    **_refuse_offload(
        "Its enable_cpu_offload moves weights and gradients to the host too (torchtitan/config/configs.py:61)."
    ),
    "tp": (targets.torchtitan_splits_whole_kv_heads,),
    "cp": (targets.torchtitan_trains_mtp_without_cp,),
    "pp": (targets.torchtitan_trains_mtp_without_pipelines, targets.torchtitan_ties_embeddings_on_one_stage),
    "ep": (targets.torchtitan_spreads_experts_over_shards,),
    "etp": (targets.torchtitan_spreads_experts_or_splits_them,),
    "vpp": (
        physics.v_shapes_have_two_chunks,
        physics.only_1f1b_interleaves,
        physics.interleaving_needs_a_pipeline,
        targets.torchtitan_keeps_few_chunks_gathered,
    ),
    "group": (targets.torchtitan_deals_microbatches_in_rounds,),
    "mbs": (*WHOLE_BATCHES, targets.torchtitan_fills_plain_pipelines),
    "schedule": _only(
        "PyTorch's pipelines are 1f1b, gpipe, zb_v and dualpipev "
        "(get_schedule_class, torch/distributed/pipelining/schedules.py).",
        *(Schedule.ONE_F_ONE_B, Schedule.GPIPE, Schedule.ZB_V, Schedule.DUALPIPEV),
    ),
    "vocabulary": _only(
        "Embedding and head are modules of one stage each (torchtitan/distributed/pipeline_parallel.py, "
        "_split_module).",
        *(Vocabulary.ENDS, Vocabulary.REDISTRIBUTED),
    ),
    "sharding": (
        targets.torchtitan_shards_over_context,
        targets.torchtitan_keeps_gradients_whole_in_pipelines,
        targets.torchtitan_shards_gradients_without_pipelines,
    ),
    "recompute": _only(
        "Layers are recomputed in full (full) or but for every other matmul (every_other_matmul) "
        "(torchtitan/distributed/activation_checkpoint.py:166,185).",
        *(Recompute.NONE, Recompute.FULL, Recompute.of("every_other_matmul")),
    ),
    "activation_offload": _only(
        "Activations stay in device memory (torchtitan/config/configs.py has no option).", False
    ),
    "token_dispatcher": _only(
        "The backend is an argument of the model's registry (moe_comm_backend, "
        "torchtitan/models/common/config_utils.py:388), whose buffers have sizes that the plan does not have.",
        TokenDispatcher.ALLTOALL,
    ),
    "cuda_graphs": (
        FieldValues(
            (CudaGraphs.NONE, CudaGraphs.FULL_ITERATION),
            "One graph holds forward and backward pass, or none (wrap_with_cuda_graph, torchtitan/trainer.py:614).",
        ),
        targets.torchtitan_captures_flat_steps,
    ),
    "tp_overlap": (frameworks.tp_overlap_needs_sequence_parallelism,),
    "cp_overlap": (targets.torchtitan_gathers_keys_first,),
    "ep_overlap": _only(
        "Tokens are sent and awaited (torchtitan/models/common/token_dispatcher.py has no other micro-batch to run).",
        False,
    ),
    "pp_overlap": (targets.torchtitan_sends_chunks_behind_computation,),
    "dp_overlap": (targets.torchtitan_reduces_gradients_behind_computation,),
    "layout": (targets.torchtitan_stages_recompute_alike,),
    "settings.gradient_dtype": _only(
        "FSDP2 reduces in FP32, always (mixed_precision_reduce, torchtitan/config/configs.py:93).", "fp32"
    ),
    "settings.weight_dtype": _only(
        "Ranks hold shards of FP32 weights, which are cast before they are gathered "
        "(mixed_precision_param, torchtitan/config/configs.py:85).",
        "fp32",
    ),
    "settings.shared_expert_overlap": _only(
        "Shared experts run after the routed ones (torchtitan/models/common/moe.py:455).", False
    ),
    "settings.delay_wgrad": _only("Weight gradients come with the backward pass, but in zero-bubble schedules.", False),
    "settings.communication_sms": _only("Tokens go by an all-to-all of NCCL.", None),
    "settings.cp_comm_type": _only(
        "Keys and values are gathered before attention (torchtitan/models/common/decoder_sharding.py:235).",
        *(None, "all_gather"),
    ),
    "settings.offloaded_layers": _only("Activations stay in device memory.", None),
    "settings.optimizer": _only(
        "DistMuon wants a layout for every parameter, which no option writes (distributed/flex_shard/dist_muon.py); "
        "Kimi's recipes have it.",
        "adam",
    ),
    "settings.kernels": _only("Layers are compiled (compile.enable), which fuses them.", "fused"),
    "settings.attention": _only(
        "Its backends are kernels that keep no scores (torchtitan/models/common/attention.py:109,243,385).", "flash"
    ),
    "settings.loss": _only(
        "The loss is PyTorch's cross-entropy on FP32 logits (torchtitan/components/loss.py).", "unfused"
    ),
    "settings.loss_chunks": (targets.torchtitan_splits_sequences_into_chunks,),
}

# --- DeepSpeed -----------------------------------------------------------------------------------------------

NO_CONTEXT = "There is no context parallelism in the JSON."

DEEPSPEED: Refusals = {
    **STEPS,
    **_refuse_fp8("There is no FP8 (runtime/precision_config.py)."),
    **_refuse_pipelines(
        "A pipeline is a PipelineModule of the training script, not a key of the JSON "
        "(deepspeed/runtime/pipe/module.py)."
    ),
    "cp": _only(
        "Context parallelism is set up by the training script (Ulysses, deepspeed/runtime/sequence_parallel), and is "
        "another one: it splits heads.",
        1,
    ),
    "etp": (targets.deepspeed_spreads_experts_or_splits_them,),
    "mbs": WHOLE_BATCHES,
    "sequence_parallel": (targets.norms_are_whole,),
    "sharding": (targets.deepspeed_shards_in_bf16,),
    "recompute": _only(
        "The JSON knows checkpoints of whole layers only (deepspeed/runtime/activation_checkpointing/config.py).",
        *(Recompute.NONE, Recompute.FULL),
    ),
    "activation_offload": (targets.inputs_of_recomputed_layers_are_offloaded,),
    "optimizer_offload": (
        targets.deepspeed_offloads_without_folded_experts,
        frameworks.optimizer_offload_needs_a_sharded_optimizer,
    ),
    "token_dispatcher": _only(
        "Tokens go by an all-to-all (deepspeed/module_inject/auto_ep_config.py has no key for another way).",
        TokenDispatcher.ALLTOALL,
    ),
    "cuda_graphs": _only(
        "Training has none (enable_cuda_graph is inference's, deepspeed/inference/config.py).", CudaGraphs.NONE
    ),
    "cp_overlap": _only(NO_CONTEXT, False),
    "ep_overlap": _only(
        "Tokens are sent and awaited (deepspeed/module_inject/auto_ep_config.py has no key for another order).", False
    ),
    "dp_overlap": (targets.deepspeed_overlaps_with_zero, targets.deepspeed_zero_1_in_fp32_waits),
    "settings.gradient_dtype": (
        targets.gradients_in_fp16_are_of_fp16_weights,
        targets.deepspeed_has_both_gradients_in_zero_1,
        targets.deepspeed_accumulates_in_16_bits_without_zero,
    ),
    "settings.weight_dtype": _only(
        "Ranks hold 16-bit weights in addition to the optimizer's FP32 ones (deepspeed/runtime/zero/stage_1_and_2.py).",
        "recipe",
    ),
    "settings.moments_dtype": _only(
        "bf16_optimizer_states needs master weights in 16 bits too (deepspeed/runtime/config.py:714).", "fp32"
    ),
    "settings.shared_expert_overlap": _only(
        "Shared experts run after the dispatch (deepspeed/module_inject/auto_ep_config.py has no key for it).", False
    ),
    "settings.delay_wgrad": _only("Weight gradients come with the backward pass, always.", False),
    "settings.communication_sms": _only("Tokens go by an all-to-all of NCCL.", None),
    **dict.fromkeys(("settings.cp_comm_type", "settings.cp_a2a_ranks"), _only(NO_CONTEXT, None)),
    "settings.offloaded_layers": _only("Activations stay in device memory.", None),
    "settings.offloaded_states": (targets.deepspeed_offloads_a_share_in_zero_3,),
    "settings.offloaded_masters": (targets.masters_are_offloaded_with_moments,),
    "settings.offload_overlap": (targets.deepspeed_offloads_and_waits,),
    "settings.optimizer_group": (targets.deepspeed_shares_among_all_replicas,),
    "settings.optimizer": _only(
        "Its Muon is another one, in the training script (deepspeed/runtime/zero/muon).", "adam"
    ),
}

# --- Accelerate ----------------------------------------------------------------------------------------------

NO_EXPERTS = "There is no expert parallelism (accelerate/parallelism_config.py has dp, tp, cp and sp)."

ACCELERATE: Refusals = {
    **STEPS,
    **FSDP2,
    **_refuse_fp8("FP8 is another library's, not written here."),
    **_refuse_pipelines("FSDP2 has no pipeline (accelerate/parallelism_config.py has dp, tp, cp and sp)."),
    **_refuse_offload("Its fsdp_offload_params moves weights and gradients to the host too."),
    "ep": _only(NO_EXPERTS, 1),
    "etp": (targets.accelerate_keeps_experts_whole,),
    "mbs": WHOLE_BATCHES,
    "sequence_parallel": (targets.norms_are_whole,),
    "sharding": _only(
        "FSDP2 shards gradients and optimizer states, with or without the weights, over two ranks at least "
        "(accelerate/parallelism_config.py:383).",
        *(Sharding.GRADIENTS, Sharding.WEIGHTS),
    ),
    "recompute": _only(
        "Whole layers are recomputed or none (accelerate/utils/fsdp_utils.py, fsdp2_apply_ac).",
        *(Recompute.NONE, Recompute.FULL),
    ),
    "activation_offload": (targets.inputs_of_recomputed_layers_are_offloaded,),
    "token_dispatcher": _only(NO_EXPERTS, TokenDispatcher.ALLTOALL),
    "cuda_graphs": _only(
        "The YAML has no key for them; those of torch.compile are the compiler's choice.", CudaGraphs.NONE
    ),
    "tp_overlap": _only("Asynchronous tensor parallelism is ignored (accelerate/utils/dataclasses.py:2331).", False),
    "ep_overlap": _only(NO_EXPERTS, False),
    "dp_overlap": _only(
        "FSDP2 always overlaps gathers and reductions with computation (torch/distributed/fsdp/_fully_shard).", True
    ),
    "settings.gradient_dtype": (
        *_only(
            "Gradients are reduced in the 16 bits that mixed_precision says; another dtype is an argument of the "
            "training script's plugin (set_mixed_precision, accelerate/utils/dataclasses.py:2137).",
            *("bf16", "fp16"),
        ),
        targets.gradients_in_fp16_are_of_fp16_weights,
    ),
    "settings.weight_dtype": _only(
        "Ranks hold shards of FP32 weights, which are cast before they are gathered "
        "(accelerate/utils/fsdp_utils.py:814).",
        "fp32",
    ),
    "settings.shared_expert_overlap": _only(NO_EXPERTS, False),
    "settings.delay_wgrad": _only("Weight gradients come with the backward pass, always.", False),
    "settings.communication_sms": _only(NO_EXPERTS, None),
    "settings.cp_comm_type": _only(
        "PyTorch's context parallelism rotates or gathers keys and values (accelerate/parallelism_config.py).",
        *(None, "p2p", "all_gather"),
    ),
    "settings.offloaded_layers": _only("Inputs of all recomputed layers go to the host, or of none.", None),
    "settings.optimizer": _only("The optimizer is the training script's; the plan counts another one.", "adam"),
}

# --- Megatron-LM and Megatron-Bridge -------------------------------------------------------------------------

MEGATRON: Refusals = {
    **STEPS,
    "cp": (targets.exchanged_heads_split_over_cp, context.all_to_alls_exchange_whole_heads),
    "vpp": (targets.hybrids_have_one_chunk_per_rank, targets.hybrids_have_layers_on_every_rank),
    "schedule": _only(
        "{value} is not in megatron/core/pipeline_parallel/schedules.py, which runs 1f1b.", Schedule.ONE_F_ONE_B
    ),
    "vocabulary": _only(
        "{value} has slices of the vocabulary on all ranks; embedding and head are on the first and the last one "
        "(megatron/core/models/gpt/gpt_model.py).",
        *(Vocabulary.ENDS, Vocabulary.REDISTRIBUTED),
    ),
    "sharding": (targets.megatron_shards_gradients_without_pipelines,),
    "recompute": (targets.megatron_recomputes_named_modules,),
    "cp_overlap": (frameworks.context_parallel_rings_overlap,),
    "pp_overlap": (frameworks.pp_overlap_needs_interleaving,),
    "dp_overlap": (targets.megatron_fsdp_overlaps,),
    "layout": (
        targets.hybrid_layouts_fill_every_rank,
        targets.megatron_ranks_recompute_alike,
        targets.megatron_stages_recompute_blocks,
        targets.megatron_blocks_exclude_other_features,
    ),
    "settings.gradient_dtype": (
        *_only(
            "Gradients have one buffer, of the weights' dtype or of FP32 (grad_reduce_in_fp32, "
            "megatron/core/distributed/distributed_data_parallel_config.py:11).",
            *("fp32", "bf16", "fp16"),
        ),
        targets.gradients_in_fp16_are_of_fp16_weights,
    ),
    "settings.weight_dtype": _only(
        "Ranks hold weights in the recipe's bits; those in FP32 are the optimizer's "
        "(megatron/core/optimizer/distrib_optimizer.py).",
        "recipe",
    ),
    "settings.moments_dtype": (
        frameworks.offloaded_moments_are_fp32,
        frameworks.narrow_moments_need_a_sharded_optimizer,
    ),
    "settings.fp8_param_gather": (frameworks.narrow_weights_need_a_sharded_optimizer,),
    "settings.first_layers_bf16": (targets.delayed_scaling_has_no_wide_layers,),
    "settings.fp8_attention": _only(
        "It has no option (fp8_dot_product_attention, megatron/core/transformer/transformer_config.py:477).", False
    ),
    "settings.mtp_layers": (targets.mtp_has_no_learned_positions,),
    "settings.shared_expert_overlap": (
        frameworks.overlapped_shared_experts_need_alltoall,
        frameworks.overlapped_shared_experts_exclude_ep_overlap,
        frameworks.overlapped_shared_experts_are_kept,
    ),
    "settings.delay_wgrad": (frameworks.delayed_weight_gradients_need_ep_overlap,),
    "settings.offloaded_layers": (frameworks.counted_layers_are_offloaded_whole,),
    "settings.offloaded_masters": (targets.masters_are_offloaded_with_moments,),
    "settings.optimizer_group": (
        frameworks.optimizer_groups_divide_the_replicas,
        frameworks.optimizer_groups_divide_the_experts,
    ),
    "settings.optimizer": (
        targets.megatron_muon_keeps_gradients_whole,
        frameworks.muon_shards_optimizer_states,
        targets.megatron_muon_overlaps_shared_states,
        targets.megatron_muon_excludes_the_distributed_optimizer,
    ),
    "settings.muon_tp_mode": _only(
        "--muon-tp-mode has blockwise, duplicated and distributed (megatron/training/arguments.py).",
        *(None, "blockwise", "duplicated", "distributed"),
    ),
    "settings.kernels": _only(
        "Norms, rotations and gated activations are fused kernels of Transformer Engine; each has a switch of its own.",
        "fused",
    ),
    "settings.loss": _only("There is no compiled loss (megatron/training/arguments.py).", "fused", "unfused"),
    "settings.loss_chunks": _only(
        "All logits of a micro-batch exist at once (megatron/core/models/gpt/gpt_model.py).", 1
    ),
}

BRIDGE: Refusals = {
    **MEGATRON,
    "vpp": (*MEGATRON["vpp"], targets.bridge_deals_hybrids_evenly),
    "vocabulary": (*MEGATRON["vocabulary"], targets.bridge_hybrids_have_whole_ends),
    "layout": (*MEGATRON["layout"], targets.bridge_hybrids_have_even_stages),
    "settings.fp8_attention": (targets.bridge_reads_fp8_attention_of_tensors,),
    "settings.attention": _only(
        "model.attention_backend is an object, which no override of a recipe makes "
        "(megatron/bridge/training/utils/omegaconf_utils.py, _apply_overrides).",
        "flash",
    ),
}

MEGATRON_PRECISIONS = ("bf16", "fp16", "fp8", "fp8_current", "fp8_blockwise", "mxfp8", "nvfp4")


def _megatron(name: str, fields: Refusals) -> Target:
    """Return one of the two targets that are Megatron Core."""
    return Target(
        name=name,
        fields=fields,
        precisions=MEGATRON_PRECISIONS,
        other_precision=f"{name} has no options for '{{name}}'{{own}}.",
        precision_hint=f"It has them for: {', '.join(MEGATRON_PRECISIONS)}.",
        require_model=lambda facts: require_options(facts.model, facts.workload.sequence_length),
    )


EXPORTS: Mapping[str, Target] = {
    "megatron-lm": _megatron("Megatron-LM", MEGATRON),
    "megatron-bridge": _megatron("Megatron-Bridge", BRIDGE),
    "torchtitan": Target(
        name="torchtitan",
        fields=TORCHTITAN,
        precisions=("bf16",),
        other_precision="torchtitan chooses {name}{own} by converters of the model, which this export does not write.",
        strategy_first=True,
    ),
    "deepspeed": Target(
        name="DeepSpeed",
        fields=DEEPSPEED,
        precisions=("bf16", "fp16"),
        other_precision="DeepSpeed has no key for {name}{own} (deepspeed/runtime/precision_config.py).",
    ),
    "accelerate": Target(
        name="Accelerate",
        fields=ACCELERATE,
        precisions=("bf16", "fp16"),
        other_precision=(
            "Accelerate needs a policy of the script or another library for {name}{own} (fp8_config), which this "
            "export does not write."
        ),
    ),
}
"""Targets of ``planner export``."""
