"""Plans as overrides of a Megatron-Bridge recipe: Megatron-LM's options by the names of its configuration."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from planner.frameworks.megatron.lm import environment, megatron_entries
from planner.frameworks.megatron.model import frequency_flags
from planner.frameworks.megatron.settings import SETTINGS as OF_MEGATRON
from planner.frameworks.target import Entries, Export, FieldOptions, Program, effective_settings, only
from planner.plan import Plan

TARGET = "Megatron-Bridge"
OVERRIDES_FILE = "bridge-overrides.txt"

KEYS: Mapping[str, tuple[str, ...]] = {
    "--accumulate-allreduce-grads-in-fp32": (),
    "--activation-func-clamp-value": ("model.activation_func_clamp_value",),
    "--add-qkv-bias": ("model.add_qkv_bias",),
    "--async-save": ("checkpoint.async_save",),
    "--attention-dropout": ("model.attention_dropout",),
    "--attention-output-gate": ("model.attention_output_gate",),
    "--bf16": (),
    "--ckpt-format": ("checkpoint.ckpt_format",),
    "--context-parallel-size": ("model.context_parallel_size",),
    "--cp-comm-type": ("model.cp_comm_type",),
    "--cpu-offloading-num-layers": ("model.cpu_offloading_num_layers",),
    "--cross-entropy-fusion-impl": ("model.cross_entropy_fusion_impl",),
    "--cross-entropy-loss-fusion": ("model.cross_entropy_loss_fusion",),
    "--cuda-graph-impl": ("model.cuda_graph_impl",),
    "--cuda-graph-scope": ("model.cuda_graph_scope",),
    "--data-parallel-sharding-strategy": ("ddp.data_parallel_sharding_strategy",),
    "--decoder-last-pipeline-num-layers": ("model.num_layers_in_last_pipeline_stage",),
    "--delay-wgrad-compute": ("comm_overlap.delay_wgrad_compute",),
    "--disable-bias-linear": ("model.add_bias_linear",),
    "--exp-avg-dtype": ("optimizer.exp_avg_dtype",),
    "--exp-avg-sq-dtype": ("optimizer.exp_avg_sq_dtype",),
    "--expert-model-parallel-size": ("model.expert_model_parallel_size",),
    "--expert-tensor-parallel-size": ("model.expert_tensor_parallel_size",),
    "--ffn-hidden-size": ("model.ffn_hidden_size",),
    "--fine-grained-activation-offloading": ("model.fine_grained_activation_offloading",),
    "--fp16": (),
    "--fp4-format": (),
    "--fp4-recipe": (),
    "--fp8-format": (),
    "--fp8-param-gather": (),
    "--fp8-recipe": (),
    "--global-batch-size": ("train.global_batch_size",),
    "--glu-linear-offset": ("model.glu_linear_offset",),
    "--grad-reduce-in-bf16": (),
    "--group-query-attention": (),
    "--hidden-dropout": ("model.hidden_dropout",),
    "--hidden-size": ("model.hidden_size",),
    "--init-model-with-meta-device": ("model.init_model_with_meta_device",),
    "--kv-channels": ("model.kv_channels",),
    "--kv-lora-rank": ("model.kv_lora_rank",),
    "--max-position-embeddings": (),
    "--micro-batch-size": ("train.micro_batch_size",),
    "--microbatch-group-size-per-virtual-pipeline-stage": ("model.microbatch_group_size_per_vp_stage",),
    "--moe-deepep-num-sms": ("model.moe_deepep_num_sms",),
    "--moe-ffn-hidden-size": ("model.moe_ffn_hidden_size",),
    "--moe-flex-dispatcher-backend": ("model.moe_flex_dispatcher_backend",),
    "--moe-grouped-gemm": ("model.moe_grouped_gemm",),
    "--moe-hybridep-num-sms": ("model.moe_hybridep_num_sms",),
    "--moe-latent-size": ("model.moe_latent_size",),
    "--moe-layer-freq": ("model.moe_layer_freq",),
    "--moe-router-topk": ("model.moe_router_topk",),
    "--moe-shared-expert-gate": ("model.moe_shared_expert_gate",),
    "--moe-shared-expert-intermediate-size": ("model.moe_shared_expert_intermediate_size",),
    "--moe-shared-expert-overlap": ("model.moe_shared_expert_overlap",),
    "--moe-token-dispatcher-type": ("model.moe_token_dispatcher_type",),
    "--mtp-num-layers": ("model.mtp_num_layers",),
    "--multi-latent-attention": ("model.multi_latent_attention",),
    "--no-gradient-accumulation-fusion": ("model.gradient_accumulation_fusion",),
    "--no-check-for-nan-in-loss-and-grad": ("rerun_state_machine.check_for_nan_in_loss", "ddp.check_for_nan_in_grad"),
    "--no-overlap-p2p-communication": ("comm_overlap.overlap_p2p_comm",),
    "--normalization": ("model.normalization",),
    "--num-attention-heads": ("model.num_attention_heads",),
    "--num-distributed-optimizer-instances": ("ddp.num_distributed_optimizer_instances",),
    "--num-experts": ("model.num_moe_experts",),
    "--num-layers": ("model.num_layers",),
    "--num-query-groups": ("model.num_query_groups",),
    "--num-virtual-stages-per-pipeline-rank": ("model.virtual_pipeline_model_parallel_size",),
    "--offload-modules": ("model.offload_modules",),
    "--optimizer": ("optimizer.optimizer",),
    "--optimizer-cpu-offload": ("optimizer.optimizer_cpu_offload",),
    "--overlap-grad-reduce": ("comm_overlap.overlap_grad_reduce",),
    "--overlap-moe-expert-parallel-comm": ("comm_overlap.overlap_moe_expert_parallel_comm",),
    "--overlap-param-gather": ("comm_overlap.overlap_param_gather",),
    "--pipeline-model-parallel-layout": ("model.pipeline_model_parallel_layout",),
    "--pipeline-model-parallel-size": ("model.pipeline_model_parallel_size",),
    "--position-embedding-type": ("model.position_embedding_type",),
    "--q-lora-rank": ("model.q_lora_rank",),
    "--qk-head-dim": ("model.qk_head_dim",),
    "--qk-layernorm": ("model.qk_layernorm",),
    "--qk-pos-emb-head-dim": ("model.qk_pos_emb_head_dim",),
    "--quick-geglu": ("model.gated_linear_unit",),  # which function is the recipe's
    "--recompute-granularity": ("model.recompute_granularity",),
    "--recompute-method": ("model.recompute_method",),
    "--recompute-modules": ("model.recompute_modules",),
    "--recompute-num-layers": ("model.recompute_num_layers",),
    "--reuse-grad-buf-for-mxfp8-param-ag": (),
    "--save-interval": ("checkpoint.save_interval",),
    "--seq-length": ("model.seq_length", "dataset.sequence_length"),
    "--sequence-parallel": ("model.sequence_parallel",),
    "--softmax-type": ("model.softmax_type",),
    "--squared-relu": (),  # a function, which the recipe of the model has
    "--swiglu": ("model.gated_linear_unit",),
    "--te-rng-tracker": ("rng.te_rng_tracker", "model.use_te_rng_tracker"),
    "--tensor-model-parallel-size": ("model.tensor_model_parallel_size",),
    "--tp-comm-overlap": ("comm_overlap.tp_comm_overlap",),
    "--train-iters": ("train.train_iters",),
    "--untie-embeddings-and-output-weights": ("model.share_embeddings_and_output_weights",),
    "--use-distributed-optimizer": ("ddp.use_distributed_optimizer", "optimizer.use_distributed_optimizer"),
    "--use-megatron-fsdp": ("dist.use_megatron_fsdp", "ddp.use_megatron_fsdp"),
    "--use-precision-aware-optimizer": ("optimizer.use_precision_aware_optimizer",),
    "--v-head-dim": ("model.v_head_dim",),
    "--vocab-size": ("model.vocab_size",),
    "--window-attn-skip-freq": ("model.window_attn_skip_freq",),
    "--window-size": ("model.window_size",),
}
"""
Fields of ``ConfigContainer`` (Megatron-Bridge 0.3.1, ``megatron/bridge/training/config.py``) by Megatron-LM's option.

None where it needs no option: query groups are a number, positions end with the sequence, precision is one object.
"""

NEGATED = (
    "--disable-bias-linear",
    "--no-check-for-nan-in-loss-and-grad",
    "--no-gradient-accumulation-fusion",
    "--no-overlap-p2p-communication",
    "--untie-embeddings-and-output-weights",
)
"""Switches whose field says the opposite."""

DEFAULTS: Entries = {
    "model.sequence_parallel": False,
    "model.virtual_pipeline_model_parallel_size": None,
    "model.pipeline_model_parallel_layout": None,
    "model.recompute_granularity": None,
    "model.recompute_method": None,
    "model.recompute_num_layers": None,
    "model.cpu_offloading": False,
    "model.fine_grained_activation_offloading": False,
    "model.cross_entropy_loss_fusion": False,
    "model.cuda_graph_impl": "none",
    "model.moe_shared_expert_overlap": False,
    "model.mtp_num_layers": None,
    "model.share_embeddings_and_output_weights": True,
    "ddp.use_distributed_optimizer": False,
    "optimizer.use_distributed_optimizer": False,
    "ddp.num_distributed_optimizer_instances": 1,
    "optimizer.use_precision_aware_optimizer": False,
    "optimizer.exp_avg_dtype": "torch.float32",
    "optimizer.exp_avg_sq_dtype": "torch.float32",
    "optimizer.optimizer_cpu_offload": False,
    "dist.use_megatron_fsdp": False,
    "ddp.use_megatron_fsdp": False,
    "comm_overlap.tp_comm_overlap": False,
    "comm_overlap.overlap_grad_reduce": False,
    "comm_overlap.overlap_param_gather": False,
    "comm_overlap.overlap_moe_expert_parallel_comm": False,
    "comm_overlap.delay_wgrad_compute": False,
}
"""What no option means in Megatron-LM but a recipe may have set: written out."""

PRECISION = "++mixed_precision"
"""Added or merged: a recipe has either the name of a precision, or the object itself."""

RECIPES = {"--fp8-recipe": "fp8_recipe", "--fp4-recipe": "fp4_recipe"}

DELAYED: Entries = {"fp8_amax_history_len": 1024, "fp8_amax_compute_algo": "max"}
"""
Beside delayed scaling, as ``megatron/bridge/training/mixed_precision.py`` has it; all layers are in 8 or 4 bits, as the
plan counts (that of current scaling leaves the first and the last one in BF16).
"""

DTYPES = {"bf16": "torch.bfloat16", "fp16": "torch.float16"}

SETTINGS: Mapping[str, FieldOptions] = {
    **OF_MEGATRON,
    "attention": only(
        "flash",
        "model.attention_backend is an object, which no override of a recipe makes "
        "(megatron/bridge/training/utils/omegaconf_utils.py, _apply_overrides).",
    ),
}
"""What each setting is: Megatron-LM's options, whose fields are :data:`KEYS` and those of :func:`precision_of`."""


PROGRAM = Program(
    words=("train.py",),
    has_options=True,
    todo="train.py is your own script, whose recipe of Megatron-Bridge takes overrides",
)
"""What every process runs."""


def to_megatron_bridge(plan: Plan) -> Export:
    """
    A plan as overrides of a recipe's configuration, a line each, quoted for a shell.

    Raises
    ------
    SpecError
        If Megatron Core cannot do it, with all reasons.
    """
    entries = bridge_entries(plan)
    lines = (shlex.quote(f"{key}={hydra_text(value)}") for key, value in entries.items())
    return Export(
        target=TARGET,
        files={OVERRIDES_FILE: "\n".join(lines) + "\n"},
        environment=environment(plan),
        notes=tuple(_notes(plan)),
    )


def bridge_entries(plan: Plan) -> Entries:
    """Values by field of the configuration."""
    options = megatron_entries(plan, TARGET, SETTINGS)
    known = {key: option_value(name, value) for name, value in options.items() for key in KEYS[name]}
    extra: Entries = {PRECISION: precision_of(plan, options)}
    if known.get("model.cpu_offloading_num_layers"):
        extra["model.cpu_offloading"] = True
    return {**DEFAULTS, **known, **extra}


def precision_of(plan: Plan, options: Mapping[str, Any]) -> Entries:
    """
    The object ``MixedPrecisionConfig``, which overwrites what the configuration says of precision elsewhere.

    References
    ----------
    Megatron-Bridge 0.3.1, training/mixed_precision.py:104, training/utils/omegaconf_utils.py:461.
    """
    half = "fp16" if plan.facts.workload.precision.name == "fp16" else "bf16"
    dtype = {"_target_": DTYPES[half], "_call_": False}
    return {
        "_target_": "megatron.bridge.training.mixed_precision.MixedPrecisionConfig",
        "bf16": half == "bf16",
        "fp16": half == "fp16",
        "params_dtype": dtype,
        "pipeline_dtype": dtype,
        "autocast_enabled": False,
        "grad_reduce_in_fp32": effective_settings(plan).gradient_dtype == "fp32",
        "fp8": options.get("--fp8-format"),
        "fp4": options.get("--fp4-format"),
        **{field: options[option] for option, field in RECIPES.items() if option in options},
        **(DELAYED if options.get("--fp8-recipe") == "delayed" else {}),
        "first_last_layers_bf16": False,
        "fp8_param": "--fp8-param-gather" in options,
        "fp8_param_gather": "--fp8-param-gather" in options,
        "reuse_grad_buf_for_mxfp8_param_ag": "--reuse-grad-buf-for-mxfp8-param-ag" in options,
    }


def option_value(name: str, value: Any) -> Any:
    """
    What an option's value is as a field.

    >>> option_value("--disable-bias-linear", True), option_value("--cp-comm-type", ["p2p"])
    (False, 'p2p')
    >>> option_value("--moe-layer-freq", "([0]*1+[1]*2)"), option_value("--window-size", "128,0")
    ([0, 1, 1], [128, 0])
    """
    if name in NEGATED:
        return not value
    if name == "--cp-comm-type":
        return value[0]
    if name in ("--exp-avg-dtype", "--exp-avg-sq-dtype"):
        return DTYPES[value]
    if name in ("--moe-layer-freq", "--window-attn-skip-freq"):
        return [int(flag) for flag in frequency_flags(value, name)]
    return [int(size) for size in value.split(",")] if name == "--window-size" else value


def hydra_text(value: Any) -> str:
    """
    A value in Hydra's grammar.

    >>> hydra_text(True), hydra_text(None), hydra_text(7.0), hydra_text(["mlp", "moe"]), hydra_text("Et*3|(t|)*2tL")
    ('true', 'null', '7.0', '[mlp,moe]', "'Et*3|(t|)*2tL'")
    >>> hydra_text({"fp8": "hybrid", "bf16": True})
    '{fp8:hybrid,bf16:true}'
    """
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(hydra_text, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{name}:{hydra_text(one)}' for name, one in value.items())}}}"
    text = str(value)
    return text if isinstance(value, float) or text.replace("_", "").replace("+", "").isalnum() else f"'{text}'"


def _notes(plan: Plan) -> Iterator[str]:
    yield (
        f"For {plan.cluster.num_devices} processes and a recipe of {plan.facts.model.name}: data, tokenizer, "
        "activation function, rotary base and optimizer are those of the recipe; it must have a comm_overlap."
    )
    if effective_settings(plan).optimizer != "adam":
        yield "Muon's own numbers are those of the recipe, which must be one with Muon."
