"""The columns of the explicit form: what a row says of itself, and keys of a job file."""

from __future__ import annotations

METADATA = (
    "id",
    "source",
    "source_ref",
    "date",
    "kind",
    "usable",
    "quality",
    "refused",
    "step_seconds",
    "tokens_per_second_per_device",
    "peak_memory_gib",
    "memory_kind",
    "predicted_by",
    "predicted_step_seconds",
    "predicted_peak_memory_gib",
)
"""In front: where a run comes from, whether it may be predicted, what was measured."""

JOB = (
    "model",
    "model.num_layers",
    "model.num_kv_heads",
    "model.tied_embeddings",
    "model.learned_positions",
    "cluster.device",
    "cluster.num_devices",
    "cluster.devices_per_node",
    "cluster.scale_up_size",
    "cluster.scale_up_bandwidth",
    "cluster.internode_bandwidth",
    "cluster.framework",
    "training.global_batch_size",
    "training.sequence_length",
    "training.precision",
    "settings.gradient_dtype",
    "settings.moments_dtype",
    "settings.fp8_param_gather",
    "settings.optimizer",
    "settings.optimizer_group",
    "settings.mtp_layers",
    "settings.shared_expert_overlap",
    "settings.delay_wgrad",
    "settings.communication_sms",
    "settings.offloaded_layers",
    "settings.offloaded_states",
    "settings.offloaded_masters",
    "settings.offload_overlap",
    "settings.kernels",
    "settings.attention",
    "settings.composition",
    "strategy.tp",
    "strategy.cp",
    "strategy.pp",
    "strategy.dp",
    "strategy.ep",
    "strategy.etp",
    "strategy.vpp",
    "strategy.mbs",
    "strategy.sequence_parallel",
    "strategy.schedule",
    "strategy.vocabulary",
    "strategy.sharding",
    "strategy.recompute",
    "strategy.activation_offload",
    "strategy.optimizer_offload",
    "strategy.tp_overlap",
    "strategy.cp_overlap",
    "strategy.ep_overlap",
    "strategy.pp_overlap",
    "strategy.dp_overlap",
    "strategy.token_dispatcher",
    "strategy.cuda_graphs",
    "strategy.layout",
)
"""Dotted keys of a job file; an empty cell is what the source does not say, the framework's default then."""

LAST = ("not_modelled", "recipe", "notes")
"""Behind: what there is no formula for, where cells come from, what is odd."""

EXPLICIT = (*METADATA, *JOB, *LAST)
"""All columns, in the order of the file."""

RARE = ("settings.offloaded_states", "settings.offloaded_masters", "settings.offload_overlap")
"""Columns that a file has only where one of its rows says something there."""

COLLECTED = (
    "id",
    "quality",
    "source",
    "date",
    "framework",
    "kind",
    "usable",
    "gpu",
    "n_gpus",
    "gpus_per_node",
    "nvlink_domain",
    "model",
    "seq_len",
    "gbs",
    "mbs",
    "tp",
    "cp",
    "ep",
    "etp",
    "pp",
    "vp",
    "dp",
    "sp",
    "dtype",
    "recompute",
    "optimizer",
    "offload",
    "overlaps",
    "cuda_graph",
    "step_time_s",
    "tokens_per_s_per_gpu",
    "peak_memory_gib",
    "memory_kind",
    "notes",
)
"""What a collected table must have; the others may be missing, as in tables before 2026-11-24."""

ESSENTIAL = ("n_gpus", "seq_len", "gbs", "mbs", "tp", "pp")
"""Without one of them there is no layout to predict, and nothing of a row is refused."""
