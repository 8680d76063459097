"""The planner's step of a job, compared with the traced one part by part, on the pipeline ranks of the traces."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from costmodel import catalog
from costmodel.errors import SpecError
from costmodel.facts.device import Device
from costmodel.facts.model import Model
from costmodel.lowering import embedding_operators, head_operators, layer_operators
from costmodel.lowering.layer import mtp_projection_operators
from costmodel.record import record
from costmodel.step.estimate import Part, rank_breakdowns, stages_of
from costmodel.strategy import Strategy
from costmodel.tables import Facts
from costmodel.timing.sampled_source import size_of_operator
from costmodel.timing.source import operator_times
from costmodel.timing.work import Operator
from planner.jobs.problem import Problem
from planner.measure.traces.events import UNKNOWN, Category, Message, Trace
from planner.measure.traces.iterations import Iteration, is_whole, iterations
from planner.measure.traces.operators import Shares, TracedPass, find_operators, shares
from planner.measure.traces.report.extraction import NANOSECONDS, drop_routed_sizes
from planner.measure.traces.report.replay import printable
from planner.measure.traces.structure import Parts, Phase, parts
from planner.measure.traces.structure.records import find_launchers, find_parents, inherit_values
from planner.report.console import sections_text
from planner.report.records import finite
from planner.report.section import NOTHING, Screen, Section, number_rows
from planner.results import Plan
from planner.uncertainty.intervals import strategy_operators, strategy_shape
from planner.verbs.plan import estimate, require_strategy

EXPERTS = "experts"

KINDS: Mapping[str, str] = {
    "embedding": r"embedding",
    "head and loss": r"head|loss|mtp_projection",
    "norms and residuals": r".*norms?|residuals",
    EXPERTS: r"expert_.*|shared_.*|router|top_k|sort|dispatch|combine|latent_(up|down)",
    "queries, keys, values": r"qkv|(q|k|v|kv|query|key|value).*|in_projection",
    "attention": r"core_attention|softmax|rotary|convolution|decay|scan|.*scores",
    "attention's output": r"output_projection|output_gate|context_output",
    "feed-forward": r"(up|down|gate|activation).*",
}

"""Parts of a step, and the cost model's operators in each; the first match counts."""

MODEL_PARTS: Mapping[str, str] = {
    "recompute": "recompute",
    "tp": "tp communication",
    "cp": "cp communication",
    "ep": "ep communication",
    "dp": "dp communication",
    "pp": "pp communication and bubble",
    "bubble": "pp communication and bubble",
    "offload": "copies to and from the host",
    "host": "host and idle",
    "optimizer": "gradient sums and optimizer",
}

"""Lines of the planner's breakdown, computation aside, by the parts that a trace can distinguish."""

RECOMPUTE, OPTIMIZER, COPIES, IDLE, OTHER = (
    "recompute",
    "gradient sums and optimizer",
    "copies to and from the host",
    "host and idle",
    "other",
)

GROUPS: Mapping[str, str] = {
    "tp": r"(?i)(^|[^a-z])tp([^a-z]|$)|tensor",
    "pp": r"(?i)(^|[^a-z])pp([^a-z]|$)|pipeline",
    "cp": r"(?i)(^|[^a-z])cp([^a-z]|$)|context",
    "ep": r"(?i)(^|[^a-z])ep([^a-z]|$)|expert",
    "dp": r"(?i)(^|[^a-z])dp([^a-z]|$)|data_parallel|ddp|fsdp|shard|replicate",
}

"""Patterns in the descriptions of process groups of Megatron-LM, torchtitan and DeepSpeed."""

KIND_OF_GROUP: Mapping[str, str] = {
    "send": "pp",
    "recv": "pp",
    "dispatch": "ep",
    "combine": "ep",
    "notify": "ep",
    "all_to_all": "ep",
}

"""Groups by operation, where no description names them."""


OF_IMAGES = re.compile(
    r"(?i)conv(?:olution)?_?2d|resnet|max_?pool(?:ing)?_?2d|batch_?norm|(?:cudnn|miopen)_convolution"
)
"""Names of operators and kernels of image models; language models have convolutions in one dimension alone."""

LEAST_EXPLAINED = 0.05
"""Least share of a trace's computation with sizes of the job; another strategy of the same job still has some."""


def kind_of(name: str) -> str:
    """
    Return the part of a step to which an operator of the cost model belongs.

    >>> kind_of("core_attention"), kind_of("down"), kind_of("mtp_norms")
    ('attention', 'feed-forward', 'norms and residuals')
    """
    return next((kind for kind, pattern in KINDS.items() if re.fullmatch(pattern, name)), OTHER)


def group_of(message: Message, strategy: Strategy) -> str:
    """
    Return the parallel group of a message; "" where it is unknown.

    It follows from the message's description, from its operation, or from the only degree of the strategy with its
    number of ranks.
    """
    for group, pattern in GROUPS.items():
        if re.search(pattern, message.description):
            return group
    if message.operation in KIND_OF_GROUP:
        return KIND_OF_GROUP[message.operation]
    degrees = {"tp": strategy.tp, "cp": strategy.cp, "ep": strategy.ep, "dp": strategy.dp, "pp": strategy.pp}
    fitting = [group for group, ranks in degrees.items() if ranks == message.num_ranks]
    several = [group for group, ranks in degrees.items() if ranks > 1]
    candidates = fitting if len(fitting) == 1 else several
    return candidates[0] if len(candidates) == 1 else ""


Size = tuple[str, tuple[tuple[str, int], ...]]

"""A sampled operator and its sizes."""

ADDS_GRADIENTS = "AccumulateGrad"

"""Part of the name of autograd's node that accumulates gradients of micro-batches."""

COLLECTIVES = "c10d::"

"""Prefix of operators that communicate."""

OPERATIONS: Mapping[str, str] = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "send": "send",
    "recv": "recv",
}

"""Operations by the rest of such names."""


def names_by_size(operators: Iterable[tuple[Operator, float]]) -> dict[Size, list[str]]:
    """List the parts of a step by the sizes of their operators, as often as a rank's layers have them."""
    found: dict[Size, list[str]] = defaultdict(list)
    for operator, count in operators:
        size = size_of_operator(operator)
        if size is not None and all(value is not None for value in size.sizes.values()):
            whole = {name: round(float(value)) for name, value in size.sizes.items()}
            found[_size(size.kernel, whole)] += [kind_of(operator.name)] * max(1, round(count))
    return found


def _size(kernel: str, sizes: Mapping[str, int]) -> Size:
    return kernel, tuple(sorted(sizes.items()))


class TracedParts:
    """
    Time of one rank's iteration by part, in nanoseconds.

    Attributes
    ----------
    exposed, hidden
        Time that each part adds to the step, and time of each part that is overlapped with computation.
    parts
        Parts of the trace, and how they were found.

    Parameters
    ----------
    trace, iteration
        A trace, and an iteration of it.
    names
        Parts of the step by the sizes of operators, those of its own pipeline stage first.
    strategy
        Strategy of the job.
    """

    def __init__(
        self, trace: Trace, iteration: Iteration, names: Sequence[Mapping[Size, list[str]]], strategy: Strategy
    ) -> None:
        self.exposed: dict[str, float] = defaultdict(float)
        self.hidden: dict[str, float] = defaultdict(float)
        self._trace, self._names, self._strategy = trace, names, strategy
        self._operators, structure = find_operators(trace), parts(trace)
        self.parts, self._phase = structure, structure.phase
        self._experts = {
            drop_routed_sizes(kernel, dict(sizes))
            for one in names
            for (kernel, sizes), of in one.items()
            if EXPERTS in of
        }
        self._kinds = self._kind_of_operators()
        self._adds = self._adds_gradients()
        self._add(shares(trace, iteration))

    @property
    def is_of_another_job(self) -> bool:
        """True where next to none of the computation has sizes of the job; without sizes, for an image model."""
        if not self._operators.operators:
            return bool(self._trace.match_name(OF_IMAGES).any())
        explained = sum(self.exposed.get(part, 0.0) for part in KINDS)
        return explained < LEAST_EXPLAINED * (explained + self.exposed.get(OTHER, 0.0))

    def doubts(self) -> Iterator[str]:
        """Yield sentences on assumptions, and on operators that the job's sizes do not explain."""
        yield from (*self.parts.doubts, *self._operators.doubts)
        operators = self._operators.operators
        if not operators:
            yield "Operators have no sizes, so all computation is in 'other': record with record_shapes=True."
            return
        routed = sum(self._exact(one) is None and self._is_routed(one) for one in operators)
        if routed:
            yield (
                f"{routed} of {len(operators)} traced operators are assigned to MoE by all of their sizes but the "
                "rows: the router changes these in each step, while the planner distributes tokens evenly."
            )
        if unknown := self._kinds.count(OTHER):
            yield (
                f"{unknown} of {len(operators)} traced operators have sizes that the job does not have: they are "
                "in 'other'. Is it the same job and strategy?"
            )

    def _kind_of_operators(self) -> list[str]:
        """Return the part of each traced operator; operators of equal size are assigned in turn."""
        turn: dict[tuple[Size, str], int] = defaultdict(int)
        return [self._kind(one, turn) for one in self._operators.operators]

    def _kind(self, one: TracedPass, turn: dict[tuple[Size, str], int]) -> str:
        if one.operator == "adam":
            return OPTIMIZER
        kinds = self._exact(one)
        if not kinds:
            return EXPERTS if self._is_routed(one) else OTHER
        size = _size(one.operator, one.sizes)
        place = turn[size, one.of_pass]
        turn[size, one.of_pass] += 1
        return kinds[place % len(kinds)]

    def _exact(self, one: TracedPass) -> list[str] | None:
        size = _size(one.operator, one.sizes)
        return next((names[size] for names in self._names if size in names), None)

    def _is_routed(self, one: TracedPass) -> bool:
        return drop_routed_sizes(one.operator, one.sizes) in self._experts

    def _add(self, found: Shares) -> None:
        *columns, idle = found
        for row, exposed, hidden in zip(*(column.tolist() for column in columns), strict=True):
            if exposed or hidden:
                part = self._part_of(row)
                self.exposed[part] += exposed
                if self._trace.events.message[row] != UNKNOWN:
                    self.hidden[part] += hidden
        self.exposed[IDLE] += idle

    def _part_of(self, row: int) -> str:
        events, owner = self._trace.events, int(self._operators.owner[row])
        message = self._message(row)
        if message is not None:
            group = group_of(message, self._strategy)
            return MODEL_PARTS[group] if group else OTHER
        if events.category[row] == Category.COPY and "DtoD" not in self._trace.name_of(row):
            return COPIES
        if self._phase[row] == Phase.RECOMPUTE:
            return RECOMPUTE
        if self._phase[row] == Phase.OPTIMIZER or self._adds[row]:
            return OPTIMIZER
        return self._kinds[owner] if owner != UNKNOWN else OTHER

    def _message(self, row: int) -> Message | None:
        """Return the message of an event; an operator that calls a library has only its operation."""
        place = int(self._trace.events.message[row])
        if place != UNKNOWN:
            return self._trace.messages[place]
        name = self._trace.name_of(row)
        if not name.startswith(COLLECTIVES):
            return None
        called = name.removeprefix(COLLECTIVES)
        return next((Message(operation=one) for said, one in OPERATIONS.items() if called.startswith(said)), None)

    def _adds_gradients(self) -> NDArray[np.bool_]:
        """Return a mask of events that accumulate gradients: autograd's nodes for that, and the events in them."""
        own = np.where(self._trace.match_name(ADDS_GRADIENTS), 1, UNKNOWN)
        adds = inherit_values(find_parents(self._trace), own, unknown=UNKNOWN) != UNKNOWN
        launched = find_launchers(self._trace)
        return np.asarray(adds | ((launched != UNKNOWN) & adds[launched]))


PlannedParts: TypeAlias = tuple[dict[str, float], dict[str, float]]

"""Seconds that each part adds to a rank's step, and seconds of each part that are overlapped with computation."""


def split_planned_step(facts: Facts, strategy: Strategy, breakdown: Sequence[Part], stage: int) -> PlannedParts:
    """
    Split the breakdown of a pipeline rank; its computation is divided among its operators by their own times.

    Parameters
    ----------
    facts, strategy
        The job.
    breakdown
        Breakdown of the step on that rank: :func:`costmodel.step.estimate.rank_breakdowns`.
    stage
        Number of the pipeline rank.
    """
    times = operator_times(
        facts.cluster.device,
        facts.workload.precision.compute,
        num_devices=strategy.tp * strategy.cp * strategy.dp,
        cuda_graphs=strategy.cuda_graphs,
    )
    alone: dict[str, float] = defaultdict(float)
    for operator, count in stage_operators(facts, strategy, stage):
        seconds = float(times.forward_seconds(operator)) + float(times.backward_seconds(operator))
        alone[kind_of(operator.name)] += count * seconds
    total = sum(alone.values())
    exposed: dict[str, float] = defaultdict(float)
    hidden: dict[str, float] = defaultdict(float)
    for part in breakdown:
        if part.name == "compute":
            for kind, seconds in alone.items():
                exposed[kind] += part.exposed_seconds * seconds / total
        else:
            exposed[MODEL_PARTS[part.name]] += part.exposed_seconds
            hidden[MODEL_PARTS[part.name]] += part.hidden_seconds
    return dict(exposed), dict(hidden)


def stage_operators(facts: Facts, strategy: Strategy, stage: int) -> Iterator[tuple[Operator, float]]:
    """
    Yield the operators of a pipeline rank's micro-batch: of its layers, and of the embedding and head it has.

    Yields
    ------
    operator, count
        Layers of the rank with this operator; for embedding and head the share that the rank has.
    """
    ranks, shape = stages_of(facts, strategy), strategy_shape(facts, strategy)
    layers = ranks.layers.reshape(strategy.pp, -1)[stage].tolist()
    for layer, count in zip(facts.model.kinds, layers, strict=True):
        if count:
            yield from ((operator, count) for operator in layer_operators(layer, shape))
    first, last = float(ranks.first.ravel()[stage]), float(ranks.last.ravel()[stage])
    if first:
        yield from ((operator, first) for operator in embedding_operators(facts.model, shape))
    if last:
        ends = (*head_operators(facts.model, shape), *mtp_projection_operators(facts.model, shape))
        yield from ((operator, last) for operator in ends)


HOST = "host processors"

"""Name of a machine without a device, as in the table of samples."""

MODEL = re.compile(r"\b[a-z]{1,3}\d{2,4}[a-z]{0,2}\b")

"""Model number in the name of a device: ``h100`` of both ``NVIDIA H100 80GB HBM3`` and ``h100-80gb-sxm``."""

MOST_MEMORY = 1.2

"""Largest ratio between a device's memory in its driver's report and in a job."""


def name_device(traces: Sequence[Trace]) -> str:
    """Return the name of the traces' device."""
    first = traces[0]
    if not first.has_device:
        return HOST
    return first.devices[0].name or "a device without a name" if first.devices else "a device without a name"


def device_doubt(traces: Sequence[Trace], device: Device) -> str:
    """Return a sentence if the traces' device differs from the job's; "" where nothing shows it."""
    name, samples = name_device(traces), device.calibration.samples
    machine = samples.machine.partition(",")[0] if samples else ""
    job = f"{device.name} {machine}".lower()
    if name == HOST:
        differs = HOST not in job and (device.architecture is not None or bool(MODEL.findall(job)))
    else:
        differs = HOST in job or _is_another(traces[0], job, device)
    if not differs:
        return ""
    return f"The device differs: the traces are of {name}, the job is of {device.name}."


def _is_another(trace: Trace, job: str, device: Device) -> bool:
    """Compare the model numbers in both names, the processors and the memory; unknown values are ignored."""
    if not trace.devices:
        return False
    one = trace.devices[0]
    traced, known = MODEL.findall(one.name.lower()), MODEL.findall(job)
    if traced and known and not any(a in b or b in a for a in traced for b in known):
        return True
    if one.num_processors and device.num_processors and one.num_processors != device.num_processors:
        return True
    ratio = one.memory_bytes / device.memory_bytes
    return bool(one.memory_bytes) and not 1 / MOST_MEMORY < ratio < MOST_MEMORY


def has_other_layers(found: Parts, layers: Iterable[int], num_microbatches: int, model: Model) -> bool:
    """
    Return True if no pipeline rank of a job has as many passes through layers as a trace, chunks taken together.

    Parameters
    ----------
    found
        Parts of the trace; one without layers never differs.
    layers
        Layers of each rank that the trace may belong to.
    num_microbatches
        Micro-batches of the job.
    model
        Model of the job: layers of multi-token prediction may differ from all others.
    """
    shown, mtp = found.num_layers * found.num_microbatches, len(model.mtp_layers)
    return bool(shown) and all(shown not in (one * num_microbatches, (one - mtp) * num_microbatches) for one in layers)


# --- both steps ----------------------------------------------------------------------------------------------
@record(frozen=True, slots=True)
class ComparedPart:
    """
    One part of both steps.

    Parameters
    ----------
    name
        Name of the part.
    predicted_seconds, traced_seconds
        Seconds that it adds to each step; all parts sum to the step.
    predicted_hidden_seconds, traced_hidden_seconds
        Seconds of communication overlapped with computation.
    difference_seconds
        Seconds by which the prediction is longer.
    """

    name: str
    predicted_seconds: float
    traced_seconds: float
    predicted_hidden_seconds: float
    traced_hidden_seconds: float
    difference_seconds: float


@record(frozen=True, kw_only=True, slots=True)
class ComparedRank:
    """
    A traced rank.

    Parameters
    ----------
    rank
        Its number; None where its trace does not record it.
    stage
        Its pipeline rank in the job, from 0.
    iteration, num_iterations
        Name of the compared iteration, and number of iterations in the trace.
    traced_seconds
        Seconds of that iteration.
    """

    rank: int | None
    stage: int
    iteration: str
    num_iterations: int
    traced_seconds: float


@record(frozen=True, kw_only=True, slots=True)
class ComparedStep:
    """
    A job's step as planned and as traced.

    Parameters
    ----------
    job
        Name of the job.
    predicted_seconds, traced_seconds
        The planner's step, and the traced one.
    error
        Predicted over traced, less 1.
    num_ranks, ranks
        Number of traced ranks; each of them, with its iteration.
    num_stages
        Pipeline ranks of the job.
    device, traced_device
        Device of the job, and device of the traces.
    operator_times
        Sources of the planner's operator times.
    parts
        In the order of a step; each side is the mean over the traced ranks.
    doubts
        Sentences on missing information in the traces, and on parts that could not be compared.
    is_other_job
        True if next to nothing of the traced computation can belong to the job: the difference says nothing.
    """

    job: str
    predicted_seconds: float
    traced_seconds: float
    error: float
    num_ranks: int
    ranks: tuple[ComparedRank, ...]
    num_stages: int
    device: str
    traced_device: str
    operator_times: tuple[str, ...]
    parts: tuple[ComparedPart, ...]
    doubts: tuple[str, ...]
    is_other_job: bool = False


OTHER_JOB = (
    "The trace is of another job: next to none of its computation has sizes of this one, or it is that of an image "
    "model. The difference of the steps says nothing. Pass the job that was recorded."
)
"""The sentence on a trace that the job cannot explain."""

TOO_SHORT = (
    "The trace is of another job, or of a part of a step: {device} at its peak takes {least:,.3g} s for the FLOPs of "
    "this job's step, the trace {traced:,.3g} s. The difference says nothing. Pass the job that was recorded."
)
"""The sentence on a trace that is shorter than any step of the job, whether it has sizes or none."""


def compare_with_traces(problem: Problem, traces: Sequence[Trace]) -> ComparedStep:
    """
    Compare the planner's step of a job with the traced one.

    Both are of the same ranks: the planner's parts are those of the traced pipeline ranks. All ranks take the same
    step, but a rank without the head, or with fewer layers, computes less of it and waits longer. Traced operators are
    identified by their sizes: those of the job's operators under its strategy. Several operators of equal size share a
    traced time, in proportion to their number.

    Parameters
    ----------
    problem
        A job with its strategy.
    traces
        Traces of ranks that ran it.

    Raises
    ------
    SpecError
        If the job has no strategy, or a trace has no whole iteration or no rank.
    """
    require_strategy(problem)
    report = estimate(problem, {}, searched=False)
    facts, strategy = report.plan.facts, report.plan.strategy
    stages = [_stage(trace, strategy) for trace in traces]
    breakdowns = rank_breakdowns(facts, strategy)
    planned = {stage: split_planned_step(facts, strategy, breakdowns[stage], stage) for stage in dict.fromkeys(stages)}
    own = {stage: names_by_size(stage_operators(facts, strategy, stage)) for stage in planned}
    whole_model = names_by_size(strategy_operators(facts, strategy))
    chosen = _choose_iterations([_whole_iterations(trace) for trace in traces])
    traced = [
        TracedParts(trace, iteration, (own[stage], whole_model), strategy)
        for trace, iteration, stage in zip(traces, chosen, stages, strict=True)
    ]
    layers, m = [rank.num_layers for rank in report.plan.estimate.ranks], report.plan.estimate.num_microbatches
    said = [
        (
            *trace.doubts,
            *_doubts(trace, strategy),
            *_doubt_layers(of_rank, layers[stage], m, facts.model),
            *of_rank.doubts(),
        )
        for trace, of_rank, stage in zip(traces, traced, stages, strict=True)
    ]
    other = OTHER_JOB if any(one.is_of_another_job for one in traced) else ""
    other = other or _find_short(report.plan, traces, chosen)
    differs = device_doubt(traces, facts.cluster.device)
    if differs and not other:
        differs = f"{differs} Most of the difference comes from that."
    parts = _parts([planned[stage] for stage in stages], traced)
    predicted, measured = sum(one.predicted_seconds for one in parts), sum(one.traced_seconds for one in parts)
    return ComparedStep(
        job=problem.name,
        predicted_seconds=predicted,
        traced_seconds=measured,
        error=predicted / measured - 1,
        num_ranks=len(traces),
        ranks=tuple(map(_rank, traces, stages, chosen)),
        num_stages=strategy.pp,
        device=facts.cluster.device.name,
        traced_device=name_device(traces),
        operator_times=tuple(dict.fromkeys(report.conventions.operator_times.values())),
        parts=parts,
        doubts=(
            *((other,) if other else ()),
            *((differs,) if differs else ()),
            *_merge_doubts(traces, said),
        ),
        is_other_job=bool(other),
    )


def _find_short(plan: Plan, traces: Sequence[Trace], chosen: Sequence[Iteration]) -> str:
    """Return a sentence if a device that was traced cannot compute the job's step in the traced time; else ""."""
    named = catalog.find_unique_device(name_device(traces))
    devices = [named.device] if named else [name for name in catalog.devices() if catalog.device(name).architecture]
    fastest = max((catalog.device(name) for name in devices), key=lambda device: max(device.peak_flops.values()))
    least = plan.model_flops_per_second_per_device * plan.step_seconds / max(fastest.peak_flops.values())
    traced = float(np.mean([one.duration for one in chosen])) / NANOSECONDS
    return TOO_SHORT.format(device=fastest.name, least=least, traced=traced) if traced < least else ""


def _parts(planned: Sequence[PlannedParts], traced: Sequence[TracedParts]) -> tuple[ComparedPart, ...]:
    """Average both sides over the ranks, for all parts that either has."""
    predicted, hidden = _mean(exposed for exposed, _ in planned), _mean(hidden for _, hidden in planned)
    spent, traced_hidden = _mean(one.exposed for one in traced), _mean(one.hidden for one in traced)
    found = []
    for name in (*KINDS, *dict.fromkeys(MODEL_PARTS.values()), OTHER):
        seconds = predicted.get(name, 0.0), spent.get(name, 0.0) / NANOSECONDS
        overlapped = hidden.get(name, 0.0), traced_hidden.get(name, 0.0) / NANOSECONDS
        if any((*seconds, *overlapped)):
            found.append(ComparedPart(name, *seconds, *overlapped, seconds[0] - seconds[1]))
    return tuple(found)


def _mean(ranks: Iterable[Mapping[str, float]]) -> dict[str, float]:
    several = list(ranks)
    names = dict.fromkeys(name for one in several for name in one)
    return {name: float(np.mean([one.get(name, 0.0) for one in several])) for name in names}


# --- which rank, which iteration ---------------------------------------------------------------------------
def _stage(trace: Trace, strategy: Strategy) -> int:
    """Return the pipeline rank of a trace: stages are the outermost groups of ranks, as frameworks number them."""
    if strategy.pp == 1:
        return 0
    if trace.rank is None:
        raise SpecError(
            trace.source,
            f"does not record its rank, and the job has {strategy.pp} pipeline stages.",
            "PyTorch writes it where torch.distributed is initialised. With several files put it into their names: "
            "'rank3.json.gz'.",
        )
    num_ranks = trace.world_size or _num_ranks(strategy)
    if num_ranks % strategy.pp or trace.rank >= num_ranks:
        raise SpecError(
            trace.source,
            f"is of rank {trace.rank} of {num_ranks}, which does not fit the job's {strategy.pp} pipeline stages.",
            "Give the job with the strategy that was traced.",
        )
    return trace.rank // (num_ranks // strategy.pp)


def _num_ranks(strategy: Strategy) -> int:
    return strategy.tp * strategy.cp * strategy.dp * strategy.pp


def _rank(trace: Trace, stage: int, iteration: Iteration) -> ComparedRank:
    return ComparedRank(
        rank=trace.rank,
        stage=stage,
        iteration=iteration.name,
        num_iterations=len(iterations(trace)),
        traced_seconds=iteration.duration / NANOSECONDS,
    )


def _whole_iterations(trace: Trace) -> tuple[Iteration, ...]:
    every = iterations(trace)
    whole = tuple(one for one in every if is_whole(trace, one))
    if not any(one.duration for one in every):
        raise SpecError(trace.source, "has no iteration that takes any time.")
    if not whole:
        raise SpecError(
            trace.source,
            f"ends inside of {every[0].name}, and has no other iteration: its file is broken.",
            "Copy it again, or record again and wait until the profiler has written it.",
        )
    return tuple(one for one in whole if one.duration)


def _choose_iterations(several: Sequence[tuple[Iteration, ...]]) -> list[Iteration]:
    """Choose one iteration for all ranks: the one of median mean length, the shorter one of two."""
    by_name = [{one.name: one for one in own} for own in several]
    common = [name for name in by_name[0] if all(name in own for own in by_name)]
    if not common:
        return [median_iteration(own) for own in several]
    means = {name: np.mean([own[name].duration for own in by_name]) for name in common}
    name = sorted(common, key=lambda one: means[one])[(len(common) - 1) // 2]
    return [own[name] for own in by_name]


def median_iteration(steps: Sequence[Iteration]) -> Iteration:
    """Return the iteration of median length, the shorter one of two."""
    return sorted(steps, key=lambda one: one.duration)[(len(steps) - 1) // 2]


# --- doubts ------------------------------------------------------------------------------------------------
def _doubts(trace: Trace, strategy: Strategy) -> Iterator[str]:
    """Yield conflicts of a rank's trace with the job, and omitted iterations."""
    if trace.world_size not in (None, _num_ranks(strategy)):
        yield f"The trace's job has {trace.world_size} ranks, the strategy {_num_ranks(strategy)}."
    cut = [one.name for one in iterations(trace) if not is_whole(trace, one)]
    if cut:
        yield f"The file ends inside of {', '.join(cut)}, which is left out."


def _doubt_layers(traced: TracedParts, num_layers: int, num_microbatches: int, model: Model) -> Iterator[str]:
    found = traced.parts
    if has_other_layers(found, [num_layers], num_microbatches, model):
        yield (
            f"The trace shows {found.num_layers} x {found.num_microbatches} layers x micro-batches in an iteration (by "
            f"{found.layers_from}), the job has {num_layers} x {num_microbatches} on that rank. If it is another job, "
            "most differences come from that."
        )


def _merge_doubts(traces: Sequence[Trace], said: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield each sentence once, with its ranks where it does not apply to all."""
    for sentence in dict.fromkeys(one for own in said for one in own):
        ranks = [trace.rank for trace, own in zip(traces, said, strict=True) if sentence in own]
        if len(ranks) == len(traces) or None in ranks:
            yield sentence
        else:
            yield f"Rank {', '.join(map(str, ranks))}: {sentence}"


HEADER = ("part", "planner", "trace", "difference", "of the step", "hidden: planner", "hidden: trace")


def write_comparison_text(found: ComparedStep, screen: Screen) -> str:
    """Write the comparison as text: its ranks and devices, a table, the largest difference, and doubts."""
    return sections_text(_sections(found), screen)


def _sections(found: ComparedStep) -> Iterator[Section]:
    planned, traced = (f"{1e3 * one:,.2f} ms" for one in (found.predicted_seconds, found.traced_seconds))
    verdict = "not comparable, the trace is of another job" if found.is_other_job else f"{found.error:+.1%}"
    yield Section(
        title=f"{printable(found.job)}: the planner's step and the traced one",
        rows=(
            ("answer", f"{planned} planned, {traced} traced: {verdict}"),
            ("ranks", _ranks(found)),
            ("iteration", _iterations(found.ranks)),
            ("device", f"{found.device} in the job, {printable(found.traced_device)} in the trace"),
            *((("operator times", ", ".join(found.operator_times)),) if found.operator_times else ()),
        ),
    )
    yield _table(found)
    if found.doubts:
        yield Section(title="Missing, inferred or not comparable", rows=number_rows(map(printable, found.doubts)))


def _ranks(found: ComparedStep) -> str:
    """Describe the ranks, their stages, and the averaging of the columns."""
    if found.ranks[0].rank is None:
        return "one, whose number was not recorded; both columns are of it"
    several, stages = len(found.ranks) > 1, sorted({one.stage for one in found.ranks})
    text = ", ".join(str(one.rank) for one in found.ranks)
    if found.num_stages > 1:
        text += (
            f", on pipeline stage{'s' * (len(stages) > 1)} {', '.join(map(str, stages))} of 0 to {found.num_stages - 1}"
        )
    return f"{text}; both columns are {'means over them' if several else 'of it'}"


def _iterations(ranks: Sequence[ComparedRank]) -> str:
    """Describe the iteration of each rank."""
    names = list(dict.fromkeys(one.iteration for one in ranks))
    number = max(one.num_iterations for one in ranks)
    which = f"{', '.join(map(printable, names))}, of median length of {number}" if number > 1 else printable(names[0])
    return which + ("" if len(ranks) == 1 or len(names) > 1 else ", the same on all ranks")


def _table(found: ComparedStep) -> Section:
    seconds = found.predicted_seconds, found.traced_seconds
    whole = ComparedPart("step", *seconds, 0.0, 0.0, seconds[0] - seconds[1])
    rows = [_row(one, found.traced_seconds) for one in (*found.parts, whole)]
    is_hidden = any(one.predicted_hidden_seconds or one.traced_hidden_seconds for one in found.parts)
    columns = len(HEADER) if is_hidden else len(HEADER) - 2
    worst = max(found.parts, key=lambda one: abs(one.difference_seconds))
    notes = [
        f"They differ most in {worst.name}: {worst.difference_seconds / found.traced_seconds:+.1%} of the traced step."
    ]
    if is_hidden:
        notes.append("Hidden: communication overlapped with computation, which adds nothing to the step.")
    if any(one.name == OTHER and one.traced_seconds for one in found.parts):
        notes.append("Other: traced computation outside of the job's operators with sizes.")
    return Section(
        title="Breakdown of the step, ms",
        header=HEADER[:columns],
        rows=tuple(row[:columns] for row in rows),
        notes=tuple(notes),
    )


def _row(one: ComparedPart, step: float) -> tuple[str, ...]:
    hidden = (one.predicted_hidden_seconds, one.traced_hidden_seconds)
    return (
        one.name,
        _milliseconds(one.predicted_seconds),
        _milliseconds(one.traced_seconds),
        f"{1e3 * one.difference_seconds:+,.2f}",
        f"{one.difference_seconds / step:+.1%}",
        *(_milliseconds(value) if any(hidden) else "" for value in hidden),
    )


def _milliseconds(value: float) -> str:
    return f"{1e3 * value:,.2f}" if value else NOTHING


def write_comparison_json(found: ComparedStep) -> str:
    """Write the comparison as JSON, in seconds."""
    return json.dumps(finite(asdict(found)), indent=2)
