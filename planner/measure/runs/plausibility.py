"""Checks of rows against physics and their model: impossible values are refused with column and allowed range."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from inspect import signature
from typing import Any

from constraints.rules.physics import (
    expert_degrees_need_experts,
    expert_groups_tile_a_stage,
    experts_split_over_ep,
    global_batch_splits_over_ranks,
    graph_modules,
    heads_split_over_tp,
    sequence_splits_over_cp,
    virtual_stages_hold_something,
)
from costmodel import GIB_BYTES
from costmodel.errors import SpecError
from costmodel.facts.model import Experts
from costmodel.models.flops import model_flops_per_token, parameters
from costmodel.strategy import Strategy
from costmodel.tables import Facts, tabulate
from costmodel.validation import shown
from planner.jobs.run_jobs import Run

LOWEST_UTILIZATION = 0.001
"""Model FLOP/s over the peak below which a step time cannot be in seconds; the slowest valid rows reach 0.007."""

MEMORY_TOLERANCE = 1.02
"""A peak over the device's memory: nvidia-smi also counts memory of the driver (1.014 on V100, BigScience)."""

LOWEST_MEMORY_FRACTION = 1 / 500
"""Least share of the device's memory: a smaller peak is not in GiB."""

FLOPS_BELOW, FLOPS_ABOVE = 0.7, 1.5
"""
Range of a source's FLOPs over the model's: it may omit attention and head, or count masked scores. Full recomputation
adds a third.
"""

RULES: dict[Callable[..., Any], str] = {
    global_batch_splits_over_ranks: "strategy.mbs",
    heads_split_over_tp: "strategy.tp",
    sequence_splits_over_cp: "strategy.cp",
    expert_degrees_need_experts: "strategy.ep",
    experts_split_over_ep: "strategy.ep",
    expert_groups_tile_a_stage: "strategy.ep",
    virtual_stages_hold_something: "strategy.vpp",
}
"""Rules that a layout which ran cannot break, each with the column that is reported."""


def require_possible(facts: Facts, strategy: Strategy) -> None:
    """
    Refuse a layout that cannot have run.

    Raises
    ------
    SpecError
        With the decisions that exclude each other.
    """
    for rule, column in RULES.items():
        if not tabulate(rule, facts, strategy.decisions()):
            sentence = (rule.__doc__ or "").strip().splitlines()[0]
            raise SpecError(
                column, f"is impossible with {', '.join(_values_of_rule(rule, facts, strategy))}. {sentence}"
            )


def _values_of_rule(rule: Callable[..., Any], facts: Facts, strategy: Strategy) -> Iterator[str]:
    """Yield the values that a rule reads, column by column."""
    model, workload = facts.model, facts.workload
    known: dict[str, Any] = {**strategy.decisions(), "num_layers": model.num_layers}
    for name in signature(rule).parameters:
        if name == "workload" and rule is global_batch_splits_over_ranks:
            yield f"training.global_batch_size = {workload.global_batch_size:,}"
        elif name == "workload":
            yield f"training.sequence_length = {workload.sequence_length:,}"
        elif name == "model":
            yield f"model = {model.name}"
        elif name in known:
            yield f"{name} = {known[name]:,}"


def require_of_the_model(run: Run, facts: Facts) -> None:
    """
    Refuse facts of a row that its model cannot have.

    Raises
    ------
    SpecError
        With the column and the model.
    """
    model = facts.model
    for column, is_wrong, why in (
        ("strategy.token_dispatcher", not model.has_experts, "it has no experts"),
        ("strategy.ep_overlap", run.get("strategy.ep_overlap") == 1 and not model.has_experts, "it has no experts"),
        ("settings.shared_expert_overlap", _overlaps_none(run, facts), "it has no shared experts"),
    ):
        if is_wrong and run.get(column) is not None:
            raise SpecError(column, f"{shown(run.get(column))} contradicts model = {run.model}: {why}.")
    graphs = run.get("strategy.cuda_graphs")
    if isinstance(graphs, str) and graphs not in ("none", "full_iteration"):
        having = graph_modules(model)
        if missing := [name for name in graphs.split("+") if name not in having]:
            problem = f"{shown(graphs)} contradicts model = {run.model}: it has no {', '.join(missing)}."
            raise SpecError("strategy.cuda_graphs", problem, f"It has: {', '.join(having)}.")


def _overlaps_none(run: Run, facts: Facts) -> bool:
    """Return True if a row overlaps shared experts that its model does not have."""
    blocks = [block for kind in facts.model.kinds for block in kind.blocks if isinstance(block, Experts)]
    return run.get("settings.shared_expert_overlap") == 1 and not any(block.shared_ffn_hidden_size for block in blocks)


def require_plausible(run: Run, facts: Facts) -> None:
    """
    Refuse measurements that the devices cannot reach, or that contradict each other.

    Raises
    ------
    SpecError
        For a step faster than the matmul peak or far too slow, or for FLOP/s that contradict the step time. For a peak
        above the device's memory or below the bytes of the weights.
    """
    _require_step(run, facts)
    _require_peak(run, facts)


def _require_step(run: Run, facts: Facts) -> None:
    device, workload = facts.cluster.device, facts.workload
    dtype = workload.precision.compute
    tokens = workload.global_batch_size * workload.sequence_length
    tokens_per_device = tokens / facts.cluster.num_devices
    flops = tokens_per_device * model_flops_per_token(facts.model, workload.sequence_length, "causal")
    peak = device.peak_flops[dtype]
    stated = {"step_seconds": run.step_seconds}
    if run.tokens_per_second is not None:
        stated["tokens_per_second_per_device"] = tokens_per_device / run.tokens_per_second
    for column, taken in stated.items():
        if taken is not None and not LOWEST_UTILIZATION <= flops / taken / peak <= 1:
            what = f"{taken:g} s" if column == "step_seconds" else f"{run.tokens_per_second:g}"
            ask = " Is it in seconds?" if column == "step_seconds" else ""
            allowed = f"{flops / peak:.3g} to {flops / peak / LOWEST_UTILIZATION:.3g} s per step"
            problem = (
                f"{what} would use {flops / taken / peak:.3g} of the devices' peak in {dtype}; allowed: {allowed}."
            )
            raise SpecError(column, f"{problem}{ask}")
    if run.tflops is not None and run.step_seconds is not None:
        from_time = flops / run.step_seconds / 1e12
        low, high = FLOPS_BELOW * from_time, FLOPS_ABOVE * from_time * _full_attention_ratio(facts)
        if not low <= run.tflops <= high:
            problem = f"{run.tflops:g} does not agree with step_seconds: allowed: {low:.3g} to {high:.3g}."
            raise SpecError("tflops_per_device", problem)


def _full_attention_ratio(facts: Facts) -> float:
    """Return all attention FLOPs over those of the causal half, the other FLOPs included."""
    length = facts.workload.sequence_length
    whole, causal = (model_flops_per_token(facts.model, length, name) for name in ("full", "causal"))
    return float(whole / causal)


def _require_peak(run: Run, facts: Facts) -> None:
    if run.peak_memory_gib is None:
        return
    device, memory = facts.cluster.device, facts.cluster.device.memory_bytes
    used = run.peak_memory_gib * GIB_BYTES / memory
    if not LOWEST_MEMORY_FRACTION <= used <= MEMORY_TOLERANCE:
        allowed = f"allowed: up to {MEMORY_TOLERANCE * memory / GIB_BYTES:.1f} GiB"
        problem = f"{run.peak_memory_gib:g} would be {used:.3g} of the memory of {device.name}; {allowed}."
        raise SpecError("peak_memory_gib", f"{problem} Is it in GiB?")
    weights = parameters(facts.model) * facts.workload.precision.weight_bytes / facts.cluster.num_devices
    if run.kind != "oom" and run.peak_memory_gib * GIB_BYTES < weights:
        problem = (
            f"{run.peak_memory_gib:g} is less than the weights alone, shared by all devices: {weights / GIB_BYTES:.3g}."
        )
        raise SpecError("peak_memory_gib", problem)
