"""The planner's step of a job beside the recorded one, part by part."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from costmodel.errors import SpecError
from costmodel.operators.sampled_source import sampled_size
from costmodel.operators.source import operator_times
from costmodel.step.estimate import Estimate
from costmodel.strategy import Strategy
from costmodel.tables import Facts
from costmodel.traces.events import UNKNOWN, Category, Message, Trace
from costmodel.traces.iterations import Iteration
from costmodel.traces.operators import TracedOperators, TracedPass, traced_operators
from costmodel.traces.operators.shares import Shares, shares
from costmodel.traces.structure import Phase, parts
from planner.jobs.problem import Problem
from planner.plan import estimate
from planner.traces.extraction import NANOSECONDS
from planner.uncertainty.operators import strategy_operators

KINDS: Mapping[str, str] = {
    "embedding": r"embedding",
    "head and loss": r"head|loss|mtp_projection",
    "norms and residuals": r".*norm|norms|residuals",
    "experts": r"expert_.*|shared_.*|router|top_k|sort|dispatch|combine|latent_(up|down)",
    "queries, keys, values": r"qkv|(q|k|v|kv|query|key|value).*|in_projection",
    "attention": r"core_attention|softmax|rotary|convolution|decay|scan|.*scores",
    "attention's output": r"output_projection|output_gate|context_output",
    "feed-forward": r"(up|down|gate|activation).*",
}
"""What parts of a step are called, and the cost model's operators that belong to them; the first that fits."""

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
    "optimizer": "optimizer",
}
"""Lines of the planner's breakdown, computation aside, by the parts that a trace can tell apart."""

RECOMPUTE, OPTIMIZER, COPIES, IDLE, OTHER = (
    "recompute",
    "optimizer",
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
"""What the descriptions of process groups contain, as Megatron-LM, torchtitan and DeepSpeed have them."""

KIND_OF_GROUP: Mapping[str, str] = {
    "send": "pp",
    "recv": "pp",
    "dispatch": "ep",
    "combine": "ep",
    "notify": "ep",
    "all_to_all": "ep",
}
"""Groups by what is sent, where no description says them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedPart:
    """
    One part of both steps.

    Parameters
    ----------
    name
        What it is.
    predicted_seconds, traced_seconds
        Seconds that it adds to either step; those of all parts sum to it.
    predicted_hidden_seconds, traced_hidden_seconds
        Seconds of communication behind computation.
    """

    name: str
    predicted_seconds: float
    traced_seconds: float
    predicted_hidden_seconds: float = 0.0
    traced_hidden_seconds: float = 0.0

    @property
    def difference_seconds(self) -> float:
        """By how much the planner predicts more."""
        return self.predicted_seconds - self.traced_seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedStep:
    """
    A job's step as the planner has it beside the recorded one.

    Parameters
    ----------
    job
        Its name.
    parts
        In the order of a step.
    num_ranks
        Ranks that were recorded: traced seconds are the mean over them, of each its iteration of median length.
    operator_times
        Who timed the planner's operators.
    doubts
        Sentences on what could not be laid side by side.
    """

    job: str
    parts: tuple[ComparedPart, ...]
    num_ranks: int
    operator_times: tuple[str, ...]
    doubts: tuple[str, ...] = ()

    @property
    def predicted_seconds(self) -> float:
        """The planner's step."""
        return sum(one.predicted_seconds for one in self.parts)

    @property
    def traced_seconds(self) -> float:
        """The recorded step."""
        return sum(one.traced_seconds for one in self.parts)

    @property
    def error(self) -> float:
        """Predicted over traced, less 1."""
        return self.predicted_seconds / self.traced_seconds - 1


def compare_with_traces(problem: Problem, traces: Sequence[Trace]) -> ComparedStep:
    """
    Lay the planner's step of a job beside the recorded one.

    Recorded operators are known by their sizes: those that an operator of the job has under its strategy. Several of
    the same size share them, as often as each occurs.

    Parameters
    ----------
    problem
        A job with its strategy.
    traces
        Of ranks that ran it.

    Raises
    ------
    SpecError
        If the job has no strategy, or no trace has an iteration.
    """
    report = estimate(problem, {})
    plan, origins = report.plan, report.conventions.operator_times
    facts, strategy = plan.facts, plan.strategy
    names = _names_by_size(facts, strategy)
    predicted, hidden = _predicted(facts, strategy, plan.estimate)
    ranks = [_Rank(trace, names, strategy) for trace in traces]
    traced, traced_hidden = _mean(one.exposed for one in ranks), _mean(one.hidden for one in ranks)
    ordered = [*KINDS, *dict.fromkeys(MODEL_PARTS.values()), OTHER]
    known = set(predicted) | set(traced) | set(hidden) | set(traced_hidden)
    rows = tuple(
        ComparedPart(
            name=name,
            predicted_seconds=predicted.get(name, 0.0),
            traced_seconds=traced.get(name, 0.0) / NANOSECONDS,
            predicted_hidden_seconds=hidden.get(name, 0.0),
            traced_hidden_seconds=traced_hidden.get(name, 0.0) / NANOSECONDS,
        )
        for name in ordered
        if name in known
    )
    return ComparedStep(
        job=problem.name,
        parts=rows,
        num_ranks=len(traces),
        operator_times=tuple(dict.fromkeys(origins.values())),
        doubts=tuple(dict.fromkeys(sentence for one in ranks for sentence in one.doubts)),
    )


# --- the planner's step --------------------------------------------------------------------------------------


def kind_of(name: str) -> str:
    """
    The part of a step that an operator of the cost model belongs to.

    >>> kind_of("core_attention"), kind_of("down"), kind_of("final_norm")
    ('attention', 'feed-forward', 'norms and residuals')
    """
    return next((kind for kind, pattern in KINDS.items() if re.fullmatch(pattern, name)), OTHER)


def _predicted(facts: Facts, strategy: Strategy, found: Estimate) -> tuple[dict[str, float], dict[str, float]]:
    """Exposed and hidden seconds by part: the line of computation is dealt to its operators by their times alone."""
    times = operator_times(
        facts.cluster.device,
        facts.workload.precision.compute,
        num_devices=strategy.tp * strategy.cp * strategy.dp,
        cuda_graphs=strategy.cuda_graphs,
    )
    alone: dict[str, float] = defaultdict(float)
    for operator, count in strategy_operators(facts, strategy):
        seconds = float(times.forward_seconds(operator)) + float(times.backward_seconds(operator))
        alone[kind_of(operator.name)] += count * seconds
    total = sum(alone.values())
    exposed: dict[str, float] = defaultdict(float)
    hidden: dict[str, float] = defaultdict(float)
    for part in found.breakdown:
        if part.name == "compute":
            for kind, seconds in alone.items():
                exposed[kind] += part.exposed_seconds * seconds / total
        else:
            exposed[MODEL_PARTS[part.name]] += part.exposed_seconds
            hidden[MODEL_PARTS[part.name]] += part.hidden_seconds
    return _present(exposed), _present(hidden)


def _present(seconds: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in seconds.items() if value}


Size = tuple[str, tuple[tuple[str, int], ...]]


def _names_by_size(facts: Facts, strategy: Strategy) -> dict[Size, list[str]]:
    """Parts of a step by the sizes of their operators, as often as layers have them."""
    found: dict[Size, list[str]] = defaultdict(list)
    for operator, count in strategy_operators(facts, strategy):
        size = sampled_size(operator)
        if size is not None and all(value is not None for value in size.sizes.values()):
            whole = {name: round(float(value)) for name, value in size.sizes.items()}
            found[_size(size.kernel, whole)] += [kind_of(operator.name)] * count
    return found


def _size(kernel: str, sizes: Mapping[str, int]) -> Size:
    return kernel, tuple(sorted(sizes.items()))


# --- the recorded step ---------------------------------------------------------------------------------------


class _Rank:
    """What one rank spent its iteration of median length on, in nanoseconds."""

    def __init__(self, trace: Trace, names: Mapping[Size, list[str]], strategy: Strategy) -> None:
        self.exposed: dict[str, float] = defaultdict(float)
        self.hidden: dict[str, float] = defaultdict(float)
        self._trace, self._names, self._strategy = trace, names, strategy
        self._operators, of = traced_operators(trace), parts(trace)
        self._phase = of.phase
        steps = of.summary.iterations
        if not steps:
            raise SpecError(trace.source, "has no iteration to compare.")
        number = median_iteration(steps)
        self._kinds = self._kind_of_operators()
        self._add(shares(trace, steps[number]))
        unknown = sum(1 for kind in self._kinds if kind == OTHER)
        self.doubts = tuple(self._doubts(self._operators, unknown))

    def _doubts(self, operators: TracedOperators, unknown: int) -> Iterator[str]:
        if unknown:
            yield (
                f"{unknown} of {len(operators.operators)} recorded operators have sizes that no operator of the job "
                "has: they are in 'other'. Is it the same job and strategy?"
            )
        if not operators.operators:
            yield "Operators have no sizes, so all computation is in 'other': record with record_shapes=True."

    def _kind_of_operators(self) -> list[str]:
        """The part that each recorded operator belongs to; several of the same size take turns."""
        turn: dict[tuple[Size, str], int] = defaultdict(int)
        return [self._kind(one, turn) for one in self._operators.operators]

    def _kind(self, one: TracedPass, turn: dict[tuple[Size, str], int]) -> str:
        if one.operator == "adam":
            return OPTIMIZER
        size = _size(one.operator, one.sizes)
        names = self._names.get(size)
        if not names:
            return OTHER
        place = turn[size, one.of_pass]
        turn[size, one.of_pass] += 1
        return names[place % len(names)]

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
        place = int(events.message[row])
        if place != UNKNOWN:
            group = group_of(self._trace.messages[place], self._strategy)
            return MODEL_PARTS[group] if group else OTHER
        if events.category[row] == Category.COPY and "DtoD" not in self._trace.name_of(row):
            return COPIES
        if self._phase[row] == Phase.RECOMPUTE:
            return RECOMPUTE
        if self._phase[row] == Phase.OPTIMIZER:
            return OPTIMIZER
        return self._kinds[owner] if owner != UNKNOWN else OTHER


def group_of(message: Message, strategy: Strategy) -> str:
    """
    The group of ranks that a message stays in; "" where nothing says it.

    By its description, by what is sent, or as the only degree of the strategy that has so many ranks.
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


def _mean(ranks: Iterable[Mapping[str, float]]) -> dict[str, float]:
    several = list(ranks)
    names = dict.fromkeys(name for one in several for name in one)
    return {name: float(np.mean([one.get(name, 0.0) for one in several])) for name in names}


def median_iteration(steps: Sequence[Iteration]) -> int:
    """Place of the iteration of median length, the shorter one of two."""
    return sorted(range(len(steps)), key=lambda one: steps[one].duration)[(len(steps) - 1) // 2]
