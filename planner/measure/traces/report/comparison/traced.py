"""Traced step of one rank, by part."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from costmodel.facts.device import Device
from costmodel.facts.model import Model
from costmodel.lowering import embedding_operators, head_operators, layer_operators
from costmodel.lowering.layer import mtp_projection_operators
from costmodel.step.estimate import Part, stages_of
from costmodel.strategy import Strategy
from costmodel.tables import Facts
from costmodel.timing.sampled_source import size_of_operator
from costmodel.timing.source import operator_times
from costmodel.timing.work import Operator
from planner.measure.traces.events import UNKNOWN, Category, Message, Trace
from planner.measure.traces.iterations import Iteration
from planner.measure.traces.operators import TracedPass, find_operators
from planner.measure.traces.operators.timing import Shares, shares
from planner.measure.traces.report.extraction import drop_routed_sizes
from planner.measure.traces.structure import Phase, parts
from planner.measure.traces.structure.records import Summary, find_launchers, nesting
from planner.uncertainty.intervals import strategy_shape

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
    summary
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
        self.summary, self._phase = structure.summary, structure.phase
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
            return bool(self._trace.named(OF_IMAGES).any())
        explained = sum(self.exposed.get(part, 0.0) for part in KINDS)
        return explained < LEAST_EXPLAINED * (explained + self.exposed.get(OTHER, 0.0))

    def doubts(self) -> Iterator[str]:
        """Yield sentences on assumptions, and on operators that the job's sizes do not explain."""
        yield from (*self.summary.doubts, *self._operators.doubts)
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
        for row, exposed, hidden in zip(
            found.rows.tolist(), found.exposed.tolist(), found.hidden.tolist(), strict=True
        ):
            if exposed or hidden:
                part = self._part_of(row)
                self.exposed[part] += exposed
                if self._trace.events.message[row] != UNKNOWN:
                    self.hidden[part] += hidden
        self.exposed[IDLE] += found.idle

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
        own = np.where(self._trace.named(ADDS_GRADIENTS), 1, UNKNOWN)
        adds = nesting(self._trace).inherit_values(own, unknown=UNKNOWN) != UNKNOWN
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


def has_other_layers(found: Summary, layers: Iterable[int], num_microbatches: int, model: Model) -> bool:
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
