"""Profiler traces of a small run: its step time, and checks that they belong to the run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from costmodel import catalog
from costmodel.errors import SpecError
from costmodel.facts.device import Device
from costmodel.step.estimate import estimate
from costmodel.timing.sampled_shapes import MATMULS
from costmodel.timing.sampled_source import size_of_operator
from planner.measure.runs.predictions import Case
from planner.measure.traces.events import Trace
from planner.measure.traces.iterations import is_whole, iterations
from planner.measure.traces.operators import find_operators
from planner.measure.traces.report.layer_counts import has_other_layers
from planner.measure.traces.structure import parts
from planner.uncertainty.operators import strategy_operators

NAMED = ("annotations", "modules")
"""Sources of layers that are reliable, since they name each layer."""

MOST_NAMED = 3
"""Sizes that a sentence lists."""

AGAIN = "Record one more iteration, and wait until the profiler has written its file."


def traced_seconds(traces: Sequence[Trace]) -> float:
    """
    Return the median step time in seconds of the iterations in some traces of one run.

    An iteration in which its file is truncated does not count: its missing part is unknown.

    Raises
    ------
    SpecError
        If a trace holds no complete iteration.
    """
    lengths: list[int] = []
    for trace in traces:
        found = [one for one in iterations(trace) if one.found != "whole" and one.duration > 0]
        whole = [one for one in found if is_whole(trace, one)]
        if not whole and found:
            raise SpecError(trace.source, "is truncated inside of its only iteration.", AGAIN)
        if not whole:
            raise SpecError(trace.source, "holds no complete iteration.")
        lengths += [one.duration for one in whole]
    return median(lengths) / 1e9


def doubts_of(traces: Sequence[Trace], case: Case) -> tuple[str, ...]:
    """
    Return doubts about the traces of a small run; sentences for people.

    Parameters
    ----------
    traces
        Traces of its ranks.
    case
        The run's job and strategy.

    Raises
    ------
    SpecError
        If a trace has matmuls with sizes, but none of the run's, or names other layers.
    """
    found = (f"{Path(trace.source).name}: {doubt}" for trace in traces for doubt in _doubts(trace, case))
    return tuple(dict.fromkeys(found))


def _doubts(trace: Trace, case: Case) -> Iterator[str]:
    yield from trace.doubts
    if cut := [one.name for one in iterations(trace) if not is_whole(trace, one)]:
        yield f"{', '.join(cut)} left out: the file is truncated inside or before."
    if trace.world_size and trace.world_size != case.facts.cluster.num_devices:
        yield f"It is of a job of {trace.world_size} ranks, the run of {case.facts.cluster.num_devices}."
    yield from _missing_sizes(trace, case)
    yield from _other_layers(trace, case)


def require_device(trace: Trace, device: Device) -> None:
    """
    Refuse a trace of another device than the job's; devices outside of the catalog are not compared.

    Raises
    ------
    SpecError
        If nothing ran on a device, or another device of the catalog was recorded.
    """
    if device.architecture is None:
        return
    if not trace.has_device:
        problem = f"holds nothing that ran on a device, the job is for {device.name}."
        raise SpecError(trace.source, problem, "Record activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA].")
    says = trace.devices[0].name if trace.devices else ""
    known = {_brand(name) for name in catalog.devices()}
    said = {one for one in known if re.search(rf"(?<![a-z0-9]){one}(?![a-z0-9])", says.lower())}
    if said and _brand(device.name) in known and _brand(device.name) not in said:
        raise SpecError(trace.source, f"was recorded on {says}, the job is for {device.name}.", "Is it of that run?")


def _brand(name: str) -> str:
    """
    Return the model name of a device in the catalog, which the profiler's name contains.

    >>> _brand("h100-80gb-sxm"), _brand("h100-80gb-sxm, changed")
    ('h100', 'h100')
    """
    return re.split(r"[-, ]", name, maxsplit=1)[0]


def _other_layers(trace: Trace, case: Case) -> Iterator[str]:
    """Doubt a trace whose layers times micro-batches no rank of the run has; refuse it if names show the layers."""
    found, own = parts(trace).summary, estimate(case.facts, case.strategy)
    layers = [rank.num_layers for rank in own.ranks]
    if not has_other_layers(found, layers, own.num_microbatches, case.facts.model):
        return
    shown = f"shows {found.num_layers} x {found.num_microbatches} layers x micro-batches"
    wanted = f"the run has {' or '.join(map(str, dict.fromkeys(layers)))} x {own.num_microbatches} on a rank"
    if found.layers_from in NAMED:
        raise SpecError(trace.source, f"{shown} by its {found.layers_from}, {wanted}.", "Is it of this run?")
    yield f"It {shown}, {wanted}, by {found.layers_from}: is it of this run?"


def _missing_sizes(trace: Trace, case: Case) -> Iterator[str]:
    """Doubt a trace that lacks sizes of the run's matmuls; refuse it if it has none of them."""
    seen = {(one.operator, tuple(sorted(one.sizes.items()))) for one in find_operators(trace).operators}
    traced = {size for kernel, size in seen if kernel in MATMULS}
    if not traced:
        return
    wanted: dict[tuple[tuple[str, int], ...], str] = {}
    for operator, _ in strategy_operators(case.facts, case.strategy):
        size = size_of_operator(operator)
        if size is not None and size.kernel in MATMULS and None not in size.sizes.values():
            wanted[tuple(sorted((name, round(float(value))) for name, value in size.sizes.items()))] = operator.name
    missing = [f"{name} ({_size_text(size)})" for size, name in wanted.items() if size not in traced]
    if wanted and len(missing) == len(wanted):
        raise SpecError(
            trace.source,
            f"has no matmul of the run, such as {missing[0]}, but others, such as {_size_text(min(traced))}.",
            "Is it of the same widths, sequence length, micro-batch and degrees?",
        )
    if missing:
        yield f"It has no matmul of the size of {', '.join(missing[:MOST_NAMED])}: is it of this run?"


def _size_text(size: Sequence[tuple[str, int]]) -> str:
    return ", ".join(f"{name} {value}" for name, value in size)
