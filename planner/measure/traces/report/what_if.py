"""Prediction of a recorded step after a change of the job: the graph is changed and replayed."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from costmodel.errors import SpecError, did_you_mean
from costmodel.facts.model import Model
from costmodel.lowering import embedding_communications, head_communications, layer_communications
from costmodel.models.flops import parameters
from costmodel.network.collectives import COLLECTIVES, collective_seconds, dense_data_group, layer_group
from costmodel.record import record
from costmodel.step.rank_time import p2p_seconds
from costmodel.strategy import DECISIONS, Recompute, Strategy, default_microbatch_group
from costmodel.tables import Facts
from costmodel.timing.sampled_source import UNKNOWN_PROCESSORS, LearnedTimes, load_learned_times
from costmodel.timing.work import Communication
from planner.jobs.entries import SECTIONS
from planner.jobs.line import read_decisions
from planner.jobs.problem import Problem, load, split_overrides
from planner.measure.traces.breakdown import (
    MOST_OFF,
    Breakdown,
    break_down,
    difference,
    is_usable,
    worst_rank,
    wrong_waits,
)
from planner.measure.traces.building import execution_graph
from planner.measure.traces.change import (
    Layout,
    Replicas,
    add_tensor_parallel,
    faster,
    rebuild_graph,
    remove_launches,
    remove_overlap,
    remove_tasks,
    steady,
    tensor_parallel_tasks,
)
from planner.measure.traces.events import UNKNOWN, Message, Trace
from planner.measure.traces.graph import Dependency, ExecutionGraph
from planner.measure.traces.reading.messages import element_bytes
from planner.measure.traces.replay import Replayed, replay, take_recorded_times
from planner.measure.traces.report.replay import PARTS, wrong_wait_text
from planner.measure.traces.retiming import HIDDEN, Sizes, message_factors, retime_tasks, sizes_of
from planner.measure.traces.structure import Parts, Phase, Role, parts
from planner.report.console import sections_text
from planner.report.records import finite
from planner.report.section import PLAIN, Screen, Section, number_rows
from planner.results import EstimateReport
from planner.uncertainty.intervals import strategy_shape
from planner.verbs.plan import estimate, require_strategy

USUAL_BYTES = 2

"""Bytes of an element of a message whose type was not recorded."""

NS = 1e-9


def message_nanoseconds(
    facts: Facts, strategy: Strategy, message: Message, purpose: Literal["pp", "dp"], ranks: int
) -> int:
    """Return the time of a job's message by the network model; see :class:`planner.measure.traces.change.Network`."""
    if purpose == "pp":
        hop = p2p_seconds(
            facts.model,
            facts.cluster,
            facts.workload,
            tp=strategy.tp,
            cp=strategy.cp,
            pp=max(2, strategy.pp),
            dp=strategy.dp,
            mbs=strategy.mbs,
            sequence_parallel=strategy.sequence_parallel,
        )
        return round(float(hop) / NS)
    group = dense_data_group(tp=strategy.tp, cp=strategy.cp, dp=ranks / strategy.cp)
    kind = message.operation or "all_reduce"
    seconds = collective_seconds(
        facts.cluster, "dp", kind, nbytes=message_bytes(message), ranks=ranks, stride=group.stride
    )
    return round(float(seconds) / NS)


def tensor_parallel_nanoseconds(facts: Facts, strategy: Strategy, message: Message, factor: float = 1.0) -> float:
    """
    Return the nanoseconds of a job's tensor-parallel collective by the network model.

    Parameters
    ----------
    facts, strategy
        The job.
    message
        Operation, elements and type; for experts with their own tensor parallelism also the number of ranks.
    factor
        Bytes over those of the message.
    """
    seconds = collective_seconds(
        facts.cluster,
        "tp",
        message.operation or "all_reduce",
        nbytes=message_bytes(message) * factor,
        ranks=message.num_ranks or strategy.tp,
        stride=1,
    )
    return float(seconds) / NS


def message_bytes(message: Message) -> int:
    """Bytes of the whole tensor."""
    return max(message.elements_in, message.elements_out) * (element_bytes(message.dtype) or USUAL_BYTES)


def tensor_parallel_messages(facts: Facts, strategy: Strategy) -> Mapping[tuple[Phase, Role], Sequence[Message]]:
    """
    Return the collectives of a job's tensor-parallel ranks in each layer, the embedding and the head, by pass.

    Layers of several kinds have those of the most common kind. Recomputation repeats the collectives of the forward
    pass.

    Parameters
    ----------
    facts, strategy
        The job.
    """
    shape = strategy_shape(facts, strategy)
    counts = facts.model.layer_counts
    of_role = {
        Role.LAYER: layer_communications(max(counts, key=lambda one: counts[one]), shape),
        Role.EMBEDDING: embedding_communications(shape),
        Role.HEAD: head_communications(shape),
    }
    found: dict[tuple[Phase, Role], list[Message]] = defaultdict(list)
    for role, several in of_role.items():
        found[Phase.FORWARD, role] = _messages(several, strategy, "forward")
        found[Phase.BACKWARD, role] = _messages(several, strategy, "backward")
        if strategy.recompute == Recompute.FULL:
            found[Phase.RECOMPUTE, role] = found[Phase.FORWARD, role]
    return found


def _messages(
    several: Iterable[Communication], strategy: Strategy, which: Literal["forward", "backward"]
) -> list[Message]:
    found = []
    for one in several:
        number = getattr(one, which)
        if one.group not in ("tp", "etp") or not number or not np.asarray(one.nbytes).max() > 0:
            continue
        group = layer_group(one.group, tp=strategy.tp, cp=strategy.cp, ep=strategy.ep, etp=strategy.etp)
        elements = round(float(np.asarray(one.nbytes).max()) / USUAL_BYTES)
        message = Message(
            operation=one.kind,
            description="tensor parallel",
            num_ranks=int(np.asarray(group.ranks).max()),
            elements_in=elements,
            elements_out=elements,
            dtype="BFloat16",
        )
        found += [message] * int(number)
    return [one for one in found if one.num_ranks > 1]


Jobs: TypeAlias = tuple[EstimateReport, EstimateReport]

"""The recorded job and the wanted one."""

OWN_CHANGES = ("layers", "microbatches")

"""Changes that need no job; all others are job settings."""

TRANSFERS = re.compile(r"(?i)send_?recv")

"""Names of NCCL's kernels that send and receive."""

FOUND = "Layers and micro-batches were found in the traces: pass --job with the recorded job if they are wrong."

"""Added to errors of a layout that was found without a job."""

REPLAY_ERROR = 0.01

"""Error of the unchanged step's replay above which it is reported."""


@record(frozen=True, kw_only=True, slots=True)
class ChangedStep:
    """
    Answer of ``planner trace what-if``.

    Parameters
    ----------
    seconds
        The changed step, in a longer run like the recorded one.
    traced_seconds
        The recorded step.
    replayed_seconds
        The replay of the recorded step.
    usable
        True if that replay is at most 5 % off; false only with --anyway.
    before
        Breakdown of the recorded step's replay in a longer run, in nanoseconds by rank.
    after
        Breakdown of the changed step's replay, by rank; by pipeline stage where the layout changes.
    doubts
        Missing information in the traces, error of the replay, and guesses.
    """

    seconds: float
    traced_seconds: float
    replayed_seconds: float
    usable: bool
    before: dict[int, Breakdown]
    after: dict[int, Breakdown]
    doubts: tuple[str, ...]


Layouts: TypeAlias = tuple[Layout, Layout] | None

"""Recorded and wanted layout; None where it does not change."""


def what_if(
    traces: Sequence[Trace],
    jobs: Jobs | None = None,
    *,
    layers: int | None = None,
    microbatches: int | None = None,
    speedups: Sequence[tuple[str, float]] = (),
    cuda_graphs: bool = False,
    overlap: bool = True,
    iteration: int | None = None,
    anyway: bool = False,
) -> tuple[ChangedStep, Layouts]:
    """
    Change a recorded step and replay it.

    Parameters
    ----------
    traces
        One of each recorded rank, at least one of each stage.
    jobs
        The recorded and the wanted job, each with its strategy; None allows only changes of layers and micro-batches,
        which the traces show.
    layers, microbatches
        Wanted numbers; None keeps those of the job, or the recorded ones.
    speedups
        Speed-ups of tasks, each by a pattern of their names.
    cuda_graphs
        True removes CPU launch overhead.
    overlap
        True keeps communication overlapped with computation; False serialises them.
    iteration
        Number of the iteration, as in :func:`planner.measure.traces.building.execution_graph`.
    anyway
        True continues with an unusable replay.

    Returns
    -------
    step, layouts
        The changed step, and its layouts.

    Raises
    ------
    SpecError
        If the traces lack information for the change, do not fit the job, or their replay is unusable.
    """
    graph = execution_graph(traces, iteration)
    traced_step, base = take_recorded_times(graph), replay(graph)
    if not anyway:
        _require_usable(graph, traced_step, base)
    settled_graph, settled = steady(graph)
    traced = traced_step.iteration
    if not traced or not settled.iteration:
        raise SpecError("--iteration", "takes no time: a change cannot be predicted.", "Take another --iteration.")
    found = [parts(trace) for trace in traces]
    layouts = _layouts(graph, found, jobs, layers, microbatches)
    changed = graph
    doubts: list[str] = [doubt for each in found for doubt in each.doubts]
    if jobs is not None:
        changed = _retime(changed, found, jobs, doubts)
    if layouts is not None and layouts[0] != layouts[1]:
        changed = _rebuild(changed, found, layouts, jobs)
    for pattern, factor in speedups:
        changed = faster(changed, pattern, factor)
    if cuda_graphs:
        if not (graph.edges.dependency == Dependency.LAUNCH).any():
            raise SpecError("--cuda-graphs", "the traces have no launched kernels, so that a graph holds none.")
        changed = remove_launches(changed)
    if not overlap:
        changed = remove_overlap(changed)
    changed, times = steady(changed)
    of_reading = (doubt for trace in traces for doubt in trace.doubts)
    step = ChangedStep(
        traced_seconds=traced * NS,
        replayed_seconds=base.iteration * NS,
        usable=is_usable(traced_step, base),
        seconds=times.iteration * NS * traced / settled.iteration,
        before=break_down(settled_graph, settled),
        after=break_down(changed, times),
        doubts=tuple(dict.fromkeys([*of_reading, *_doubt_replay(traced, base.iteration), *changed.doubts, *doubts])),
    )
    return step, layouts


def _require_usable(graph: ExecutionGraph, traced_step: Replayed, base: Replayed) -> None:
    if is_usable(traced_step, base):
        return
    rank = worst_rank(traced_step, base)
    off = difference(traced_step.iterations[rank], base.iterations[rank])
    waits = "; ".join(map(wrong_wait_text, wrong_waits(graph, traced_step, base)))
    raise SpecError(
        "traces",
        f"replay {off:+.1%} off the recording: more than {MOST_OFF:.0%} is not usable{waits and ': '}{waits}.",
        "Take another step with --iteration, or go on with --anyway.",
    )


def _doubt_replay(traced: int, replayed: int) -> list[str]:
    """Return the consequence of the unchanged step's replay error for the changed step."""
    error = replayed / traced - 1
    if abs(error) < REPLAY_ERROR:
        return []
    return [
        f"The replay of the unchanged step is {error:+.1%} off the recording: the graph lacks a dependency, or "
        "has a wrong one. The changed step is multiplied by recorded over replayed, and has at least "
        "this error."
    ]


# --- layouts -----------------------------------------------------------------------------------------------
def layout_of(facts: Facts, strategy: Strategy) -> Layout:
    """Return the layout of a job."""
    return Layout(
        num_layers=facts.model.num_layers,
        num_microbatches=facts.workload.global_batch_size // (strategy.dp * strategy.mbs),
        pp=strategy.pp,
        vpp=strategy.vpp,
        schedule=strategy.schedule,
        dp=strategy.dp,
    )


def _layouts(
    graph: ExecutionGraph, found: Sequence[Parts], jobs: Jobs | None, layers: int | None, microbatches: int | None
) -> Layouts:
    if jobs is not None:
        before, after = (layout_of(each.plan.facts, each.plan.strategy) for each in jobs)
    elif layers is None and microbatches is None:
        return None
    else:
        before = after = _find_recorded_layout(graph, found)
    after = replace(
        after,
        num_layers=layers or after.num_layers,
        num_microbatches=microbatches or after.num_microbatches,
    )
    return before, after


def _find_recorded_layout(graph: ExecutionGraph, found: Sequence[Parts]) -> Layout:
    """Return layers and micro-batches of the traces, for a job whose ranks have all layers."""
    summary = found[0]
    if any(message.operation in ("send", "recv") for message in graph.messages):
        raise SpecError("--job", "is needed: the traces are of a pipeline, and only its job has the stages.")
    if num_unknown := _num_unknown_transfers(graph):
        raise SpecError(
            "--job",
            f"is needed: {num_unknown:,} kernels send and receive without recorded arguments. They may be a "
            "pipeline's, and only its job has the stages.",
        )
    if not summary.num_layers:
        raise SpecError("layers", "were not found in the traces.", "; ".join(summary.doubts))
    return Layout(
        num_layers=summary.num_layers,
        num_microbatches=max(1, summary.num_microbatches),
        dp=max(1, Replicas(graph, found, None).size),
    )


def _num_unknown_transfers(graph: ExecutionGraph) -> int:
    """Return the number of send and receive kernels without arguments, as batches of transfers are."""
    silent = np.array([*(not message.operation for message in graph.messages), False])[graph.tasks.message]
    return int((silent & graph.match_name(TRANSFERS) & (graph.tasks.message != UNKNOWN)).sum())


def _rebuild(
    graph: ExecutionGraph,
    found: Sequence[Parts],
    layouts: tuple[Layout, Layout],
    jobs: Jobs | None,
) -> ExecutionGraph:
    before, after = layouts
    if jobs is None:
        try:
            return rebuild_graph(graph, found, before, after)
        except SpecError as error:
            raise SpecError(error.where, error.problem, " ".join(filter(None, (error.hint, FOUND)))) from None
    new = jobs[1].plan
    gradients = layer_parameters(new.facts.model) / new.strategy.tp * new.facts.workload.precision.gradient_bytes
    share = [_rank_parameters(new.facts.model, each) for each in layouts]  # other widths were retimed before
    elements = round(gradients / USUAL_BYTES)
    message = Message(operation="all_reduce", elements_in=elements, elements_out=elements)
    return rebuild_graph(
        graph,
        found,
        before,
        after,
        network=partial(message_nanoseconds, new.facts, new.strategy),
        parameters=share[1] / share[0],
        layer_gradients=message,
    )


def layer_parameters(model: Model) -> float:
    """Parameters of a layer: the mean of all layers."""
    ends = (2 - model.tied_embeddings) * model.vocab_size * model.hidden_size
    return max(0.0, parameters(model) - ends) / model.num_layers


def _rank_parameters(model: Model, layout: Layout) -> float:
    """Parameters of a pipeline rank of a layout: the mean of all ranks."""
    ends = (2 - model.tied_embeddings) * model.vocab_size * model.hidden_size
    return (ends + layer_parameters(model) * layout.num_layers) / layout.pp


MOST_UNSIZED = 0.5

"""Share of the time without sizes above which other sizes are refused: most of the time would not change."""


def _retime(graph: ExecutionGraph, found: Sequence[Parts], jobs: Jobs, doubts: list[str]) -> ExecutionGraph:
    """Return the graph with times of its operators and messages at the wanted sizes."""
    old, new = (each.plan for each in jobs)
    before, after = (sizes_of(each.facts.model, each.facts.workload, each.strategy) for each in (old, new))
    if same_shapes(before, after):
        return graph
    retimed, said, unsized_fraction = retime_tasks(graph, before, after, samples=_samples(new.facts))
    if unsized_fraction > MOST_UNSIZED:
        raise SpecError(
            "the sizes",
            f"change, but {unsized_fraction:.0%} of the time has no recorded sizes and would not change.",
            "Record with record_shapes=True.",
        )
    doubts.extend(said)
    weights = layer_parameters(new.facts.model) / layer_parameters(old.facts.model)
    weights *= old.strategy.tp / new.strategy.tp
    factors = message_factors(graph, before, after, weights=weights)
    split = np.zeros(len(graph.tasks), dtype=bool)
    if before.tp != after.tp and before.tp > 1:
        elements = before.tokens * before.widths[HIDDEN]
        split = tensor_parallel_tasks(graph, found, tp=before.tp, elements=elements)
        factors = np.where(split, _tensor_parallel_factors(graph, jobs, (before, after)), factors)
    duration = np.where(factors != 1, np.rint(retimed * factors), retimed).astype(np.int64)
    changed = replace(graph, tasks=replace(graph.tasks, duration=duration))
    if before.tp == after.tp:
        return changed
    if after.tp == 1:
        return remove_tasks(changed, split)
    doubts.append(
        f"Communication of {after.tp} tensor-parallel ranks is timed by the network model"
        + (", relative to its time of the recorded ranks." if before.tp > 1 else "; its launches take no time.")
    )
    if before.tp > 1:
        return changed
    nanoseconds = partial(tensor_parallel_nanoseconds, new.facts, new.strategy)
    wanted = tensor_parallel_messages(new.facts, new.strategy)
    return add_tensor_parallel(changed, found, wanted, lambda one: round(nanoseconds(one)))


def _tensor_parallel_factors(graph: ExecutionGraph, jobs: Jobs, sizes: tuple[Sizes, Sizes]) -> NDArray[np.float64]:
    """Return the time after over before of every task if it were a tensor-parallel collective."""
    old, new = (partial(tensor_parallel_nanoseconds, each.plan.facts, each.plan.strategy) for each in jobs)
    before, after = sizes
    tokens, widths = after.tokens / before.tokens, after.widths[HIDDEN] / before.widths[HIDDEN]

    def factor(message: Message) -> float:
        elements = max(message.elements_in, message.elements_out)
        if not elements:
            return 1.0
        is_wide = elements % (before.tokens * before.widths[HIDDEN]) == 0
        nbytes = tokens * widths if is_wide else tokens if elements % before.tokens == 0 else 1.0
        one = replace(message, num_ranks=0)
        return new(one, nbytes) / max(old(one), 1.0)

    known = graph.tasks.message != UNKNOWN
    by_message = np.array([*(factor(one) if one.operation in COLLECTIVES else 1.0 for one in graph.messages), 1.0])
    found: NDArray[np.float64] = np.where(known, by_message[graph.tasks.message], 1.0)
    return found


def _samples(facts: Facts) -> LearnedTimes | None:
    """Return sampled times of the job's device, if it has any."""
    device = facts.cluster.device
    samples = device.calibration.samples
    return None if samples is None else load_learned_times(samples, device.num_processors or UNKNOWN_PROCESSORS)


def same_shapes(before: Sizes, after: Sizes) -> bool:
    """Return True if every operator has equal sizes in two jobs."""
    return replace(before, num_parameters=after.num_parameters) == after


# --- words -------------------------------------------------------------------------------------------------
def read_changes(assignments: Sequence[str]) -> tuple[dict[str, int], list[str]]:
    """
    Split changes into those that need no job, and assignments that do.

    Raises
    ------
    SpecError
        If a number is not a number in the allowed range.

    Examples
    --------
    >>> read_changes(["layers=48", "pp=8"])
    ({'layers': 48}, ['pp=8'])
    """
    own, others = {}, []
    for assignment in assignments:
        name, _, value = assignment.partition("=")
        if name not in OWN_CHANGES:
            others.append(assignment)
        elif not value.isascii() or not value.isdigit() or not 0 < int(value) < 10**6:
            raise SpecError(name, f"is {value!r}, expected a whole number from 1 to 999,999.")
        else:
            own[name] = int(value)
    return own, others


def require_job(assignments: Sequence[str]) -> None:
    """
    Raise if there are changes that need a job.

    Raises
    ------
    SpecError
        With the changes that are possible without one.
    """
    if assignments:
        name = assignments[0].partition("=")[0]
        if name not in DECISIONS and name.partition(".")[0] not in SECTIONS:
            raise SpecError(name, "is no entry of a job.", did_you_mean(name, (*OWN_CHANGES, *DECISIONS)))
        raise SpecError(
            name,
            f"is a job setting: pass --job with the recorded job. Without --job only {OWN_CHANGES[0]} and "
            f"{OWN_CHANGES[1]} can change.",
            did_you_mean(name, OWN_CHANGES),
        )


# --- the wanted job ------------------------------------------------------------------------------------------
DEALT_OUT = ("tp", "pp", "dp", "vpp", "mbs", "schedule", "sequence_parallel")
"""Decisions that redistribute the recorded work, or change its sizes."""

SIZES = ("training.sequence_length", "training.global_batch_size", "cluster.num_devices")
"""Entries outside of the model that do so."""

NO_STEP = ("training.tokens", "reliability", "search", "objective", "top", "variants", "strategy", "model.name")
"""Entries on which a step does not depend; their effect on the strategy is compared as decisions."""

CHANGEABLE = (
    f"A trace can be changed in layers and microbatches, sizes of the model, {', '.join(SIZES)}, the decisions "
    f"{', '.join(DEALT_OUT)}; --faster, --cuda-graphs, --no-overlap."
)


def read_changed_jobs(path: Path, assignments: Sequence[str]) -> Jobs:
    """
    Read the recorded job, and the job with assignments.

    Parameters
    ----------
    path
        The job's file.
    assignments
        Entries and decisions, as ``key=value``.

    Raises
    ------
    SpecError
        If the job or an assignment is wrong, or an assignment cannot be predicted from a trace.
    """
    overrides, decisions = split_overrides(assignments)
    job = load(path)
    require_strategy(job)
    before = estimate(job, {}, searched=False)
    wanted, asked = load(path, overrides), read_decisions(decisions, overrides)
    replicas = {name: value for name, value in wanted.given.decisions.items() if name == "dp"}
    after = estimate(wanted, {**replicas, **asked}, searched=False)
    require_shown(before, after)
    for number, override in enumerate(overrides):
        if override.startswith("model."):
            _require_sizes(path, overrides, number, after)
    return before, after


def require_shown(before: EstimateReport, after: EstimateReport) -> None:
    """
    Raise if two jobs differ in an entry that cannot be predicted from a trace of the first.

    Decisions that were not given may differ: they follow from the given ones.

    Parameters
    ----------
    before, after
        The recorded job, and the wanted one.

    Raises
    ------
    SpecError
        With the changes that are possible.
    """
    for name, old, new in (*_decisions(before, after), *_entries(before.problem, after.problem)):
        raise SpecError(
            name,
            f"is {_text(new)}, but {_text(old)} in the recorded job, and its effect on the step is unknown.",
            CHANGEABLE,
        )


def _decisions(before: EstimateReport, after: EstimateReport) -> Iterator[tuple[str, object, object]]:
    """Yield given decisions that differ and cannot be predicted."""
    old, new = before.plan.strategy, after.plan.strategy
    for name, value in new.decisions().items():
        differs = value != getattr(old, name) and name not in after.assumed
        usual = name == "group" and value == int(default_microbatch_group(pp=new.pp, vpp=new.vpp))
        if differs and not usual and name not in DEALT_OUT:
            yield name, getattr(old, name), value
    if old.tp > 1 and new.tp > 1 and old.sequence_parallel != new.sequence_parallel:
        yield "sequence_parallel", old.sequence_parallel, new.sequence_parallel


def _entries(before: Problem, after: Problem) -> Iterator[tuple[str, object, object]]:
    """Yield entries that differ, without predictable ones and those of the model."""
    old, new = (dict(_leaves(one.document)) for one in (before, after))
    for name in sorted(old.keys() | new.keys()):
        shown = name in SIZES or any(name == one or name.startswith(f"{one}.") for one in NO_STEP)
        is_layout = name.startswith("strategy.layout")
        is_model = name.startswith("model")
        if old.get(name) != new.get(name) and (is_layout or not (shown or is_model)):
            yield name, old.get(name), new.get(name)


def _leaves(entries: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield the values of a document, with their dotted names."""
    for name, value in entries.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{name}.")
        elif value is not None:
            yield f"{prefix}{name}", value


def _require_sizes(path: Path, overrides: Sequence[str], number: int, after: EstimateReport) -> None:
    """Raise if an entry of the model changes neither sizes nor layers."""
    name, _, value = overrides[number].partition("=")
    try:
        other = load(path, [one for place, one in enumerate(overrides) if place != number]).facts
    except SpecError:
        return  # without it the others are not a valid model
    facts, strategy = after.plan.facts, after.plan.strategy
    sizes = [sizes_of(one.model, one.workload, strategy) for one in (other, facts)]
    unused = same_shapes(*sizes) and other.model.num_layers == facts.model.num_layers
    if unused and other.model != facts.model:
        raise SpecError(
            name.strip(), f"is {value.strip()}: it changes neither a size nor the number of layers.", CHANGEABLE
        )


def _text(value: object) -> str:
    """Format a value as in job files, shortened."""
    if value is None:
        return "not given"
    found = getattr(value, "text", None)
    return str(found if isinstance(found, str) else value).lower()[:60]


# --- text ----------------------------------------------------------------------------------------------------
RUN = "Both in a longer run, in which each rank begins a step at the end of the one before."

LEAST_FACTOR = 0.001
"""Difference of a factor from one above which it is reported."""


def what_if_json(found: ChangedStep) -> str:
    """Write a changed step as JSON."""
    return json.dumps(finite(found), indent=2, ensure_ascii=False)


def what_if_text(found: ChangedStep, layouts: Layouts, screen: Screen = PLAIN) -> str:
    """Write a changed step, with its layouts, as text."""
    return sections_text(_sections(found, layouts), screen)


def _sections(found: ChangedStep, layouts: Layouts) -> Iterator[Section]:
    error = _more(found.replayed_seconds, found.traced_seconds)
    verdict = "" if found.usable else ": not usable"
    rows = [
        ("recorded", f"{_ms(found.traced_seconds)} ms per step; its replay {error}{verdict}"),
        ("changed", f"{_ms(found.seconds)} ms per step, {_more(found.seconds, found.traced_seconds)}"),
    ]
    if layouts is not None:
        rows += [("layout", f"{_layout(layouts[0])}; changed: {_layout(layouts[1])}")]
    yield Section(title="Changed step", rows=tuple(rows))
    yield _table("Recorded step, replayed", "rank", found.before, RUN)
    yield _table("Changed step, replayed", "stage" if layouts else "rank", found.after, *_scale(found))
    if found.doubts:
        yield Section(title="Missing or guessed", rows=number_rows(found.doubts))


def _scale(found: ChangedStep) -> Iterator[str]:
    """Yield the factor from the longest replayed step to the answer, unless it is one."""
    factor = found.seconds / (max(one.total for one in found.after.values()) * 1e-9)
    if abs(factor - 1) >= LEAST_FACTOR:
        yield f"The answer is the longest times {factor:.3f}: recorded over replayed, of the unchanged step."


def _more(seconds: float, traced_seconds: float) -> str:
    """
    Format a difference from the recorded step.

    >>> _more(1.5, 1.0), _more(1 - 1e-9, 1.0)
    ('+50.0%', '+0.0%')
    """
    return f"{round(seconds / traced_seconds - 1, 3) + 0.0:+.1%}"


def _table(title: str, rank: str, parts: Mapping[int, Breakdown], *notes: str) -> Section:
    rows = tuple(
        (str(number), *(_ms(getattr(one, part) * 1e-9) for part in PARTS), _ms(one.total * 1e-9))
        for number, one in parts.items()
    )
    header = (rank, "computation alone, ms", "communication alone, ms", "overlapped, ms", "idle, ms", "step, ms")
    return Section(title=title, header=header, rows=rows, notes=notes)


def _layout(one: Layout) -> str:
    pipeline = f"pp {one.pp}" + (f", vpp {one.vpp}" if one.vpp > 1 else "")
    return f"{one.num_layers} layers, {pipeline}, dp {one.dp}, {one.num_microbatches} micro-batches"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.3f}"
