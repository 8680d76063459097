"""
What today's frameworks refuse although the hardware could do it.

Lines of ``megatron/core`` are those of the wheel megatron-core 0.16.1; what ``validate_args`` refuses was seen by
running the real parser of Megatron-LM main d98e8a64 (2026-08-22, MCore 0.20.0).
"""

from __future__ import annotations

import numpy as np

from constraints.rule import Flags, Holds, Ints, implies
from costmodel.spec import Experts, LinearAttention, Model
from costmodel.strategy import Recompute, Schedule, Sharding, Vocabulary


def megatron_pipelines_run_1f1b(*, schedule: Ints) -> Holds:
    """
    Pipelines run 1F1B, plain or interleaved.

    References
    ----------
    Megatron-LM, megatron/core/pipeline_parallel/schedules.py, get_forward_backward_func: no other one. PyTorch 2.13
    (torchtitan) has GPipe, ZB-V and DualPipeV too; ZB-H1, ZB-H2, ZB-2p and V-Half are in the authors' fork of
    Megatron-LM only, DualPipe in DeepSeek's own code.
    """
    return np.equal(schedule, Schedule.ONE_F_ONE_B)


def megatron_keeps_the_vocabulary_whole(*, vocabulary: Ints) -> Holds:
    """
    Embedding and head are on the first and the last pipeline rank, not in slices on all of them.

    References
    ----------
    Megatron-LM, megatron/core/models/gpt/gpt_model.py, pre_process and post_process; its
    ``--decoder-last-pipeline-num-layers`` redistributes layers. Slices are in the fork of arXiv 2411.05288 only.
    """
    return np.less_equal(vocabulary, Vocabulary.REDISTRIBUTED)


def interleaved_groups_fit_the_step(*, num_microbatches: Ints, vpp: Ints, group: Ints) -> Holds:
    """
    With virtual stages (vpp above 1), a group holds at most all micro-batches.

    References
    ----------
    Megatron-LM, megatron/core/pipeline_parallel/schedules.py:981 (of megatron-core 0.14.0).
    """
    return implies(vpp > 1, group <= num_microbatches)


def interleaving_needs_whole_groups_of_microbatches(
    *, num_microbatches: Ints, pp: Ints, vpp: Ints, group: Ints
) -> Holds:
    """
    With virtual stages (vpp above 1), the micro-batches are whole groups (of pp), or a rest of at least pp is left.

    References
    ----------
    Megatron-LM, megatron/core/pipeline_parallel/schedules.py:1007; megatron/core/model_parallel_config.py:448 sets
    groups to pp.
    """
    rest = num_microbatches % group
    return implies(vpp > 1, (rest == 0) | (rest >= pp))


def two_rank_interleaving_needs_pp_overlap(*, pp: Ints, vpp: Ints, pp_overlap: Flags) -> Holds:
    """
    With virtual stages (vpp above 1) on only two pipeline ranks, pipeline communication is overlapped.

    References
    ----------
    Megatron-LM, megatron/training/arguments.py, validate_args.
    """
    return implies((vpp > 1) & (pp == 2), pp_overlap)


def pp_overlap_needs_interleaving(*, vpp: Ints, pp_overlap: Flags) -> Holds:
    """
    Only the interleaved schedule (vpp above 1) overlaps pipeline communication.

    References
    ----------
    Megatron-LM, megatron/training/arguments.py, validate_args: switches overlap_p2p_comm off without virtual stages.
    """
    return implies(pp_overlap, vpp > 1)


def tp_overlap_needs_sequence_parallelism(*, sequence_parallel: Flags, tp_overlap: Flags) -> Holds:
    """
    Tensor-parallel communication is overlapped only together with sequence parallelism.

    References
    ----------
    Megatron-LM, megatron/training/arguments.py, validate_args.
    """
    return implies(tp_overlap, sequence_parallel)


def experts_need_sequence_parallelism(model: Model, *, tp: Ints, sequence_parallel: Flags) -> Holds:
    """
    A model with experts on tensor-parallel ranks (tp above 1) uses sequence parallelism.

    References
    ----------
    Megatron-LM, megatron/core/transformer/moe/moe_layer.py:379.
    """
    has_experts = any(isinstance(kind.feed_forward, Experts) for kind in model.kinds)
    return implies(has_experts & (tp > 1), sequence_parallel)


def gated_delta_layers_exclude_cp(model: Model, *, cp: Ints) -> Holds:
    """
    A model with gated delta layers has no context parallelism (cp is 1).

    References
    ----------
    Megatron-LM, megatron/core/transformer/transformer_config.py:983.
    """
    attentions = [kind.attention for kind in model.kinds]
    return implies(any(isinstance(a, LinearAttention) and a.variant == "gated_delta" for a in attentions), cp == 1)


def ep_overlap_excludes_full_recompute(*, recompute: Ints, ep_overlap: Flags) -> Holds:
    """
    Expert-parallel communication is not overlapped while layers are recomputed in full.

    References
    ----------
    Megatron-LM, megatron/core/transformer/transformer_config.py:1871.
    """
    return implies(ep_overlap, recompute != Recompute.FULL)


def ep_overlap_in_a_pipeline_needs_interleaving(*, pp: Ints, vpp: Ints, ep_overlap: Flags) -> Holds:
    """
    In a pipeline (pp above 1), expert-parallel communication is overlapped only with virtual stages (vpp above 1).

    References
    ----------
    Megatron-LM, megatron/core/transformer/transformer_config.py:1857.
    """
    return implies((pp > 1) & ep_overlap, vpp > 1)


def ep_overlap_allows_one_mtp_layer(model: Model, *, ep_overlap: Flags) -> Holds:
    """
    Expert-parallel communication is overlapped in models with at most one multi-token-prediction layer.

    References
    ----------
    Megatron-LM, megatron/core/transformer/transformer_config.py:1889.
    """
    return implies(ep_overlap, len(model.mtp_layers) <= 1)


def ep_overlap_with_mtp_needs_a_pipeline(model: Model, *, pp: Ints, ep_overlap: Flags) -> Holds:
    """
    With multi-token prediction, expert-parallel communication is overlapped only in a pipeline (pp above 1).

    References
    ----------
    Megatron-LM, megatron/core/transformer/transformer_config.py:1892 (of megatron-core 0.16.1).
    """
    return implies(ep_overlap, (not model.mtp_layers) | (pp > 1))


def dp_overlap_needs_a_sharded_optimizer(*, sharding: Ints, dp_overlap: Flags) -> Holds:
    """
    Data-parallel communication is overlapped only with sharded optimizer states.

    References
    ----------
    Megatron-LM, megatron/training/arguments.py, validate_args: --overlap-param-gather needs the distributed optimizer.
    """
    return implies(dp_overlap, sharding >= Sharding.OPTIMIZER)


def optimizer_offload_needs_a_sharded_optimizer(
    *, cp: Ints, dp: Ints, sharding: Ints, optimizer_offload: Flags
) -> Holds:
    """
    Where weights have replicas (dp times cp above 1), the optimizer is offloaded only with sharded optimizer states.

    References
    ----------
    Megatron-LM, megatron/training/arguments.py: --optimizer-cpu-offload needs --use-precision-aware-optimizer, which
    needs the distributed optimizer (megatron/core/optimizer/optimizer_config.py:379).
    """
    return implies(optimizer_offload & (dp * cp > 1), sharding >= Sharding.OPTIMIZER)
