"""Layout of a job, as far as it determines the order of its passes and its messages."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from costmodel.errors import SpecError
from costmodel.pipelines.orders import BACKWARD, FORWARD, NONE, has_order, order, stages_of_rank
from costmodel.record import record
from costmodel.strategy import Schedule
from planner.measure.traces.events import UNKNOWN, Message
from planner.measure.traces.graph import ExecutionGraph, Kind
from planner.measure.traces.replay import steady
from planner.measure.traces.structure import Parts, Phase

Direction: TypeAlias = Literal["forward", "backward"]


class Pass(NamedTuple):
    """A pass of a virtual stage for one micro-batch."""

    direction: Direction
    stage: int
    microbatch: int


@record(frozen=True, kw_only=True, slots=True)
class Layout:
    """
    Pipeline and data parallelism of a job.

    Parameters
    ----------
    num_layers, num_microbatches
        Layers of the model, and micro-batches of a step on one rank.
    pp, vpp, schedule
        Pipeline parallelism; zero-bubble schedules, whose backward pass has two halves, are not supported.
    dp
        Data-parallel size: replicas that reduce their gradients.
    """

    num_layers: int
    num_microbatches: int
    pp: int = 1
    vpp: int = 1
    schedule: Schedule = Schedule.ONE_F_ONE_B
    dp: int = 1

    def __post_init__(self) -> None:
        """
        Refuse impossible layouts.

        Raises
        ------
        SpecError
            If the schedule has no such order, or a stage has no layers.
        """
        if self.schedule not in (Schedule.ONE_F_ONE_B, Schedule.GPIPE):
            raise SpecError("schedule", f"is {self.schedule.text}; traces are changed to 1F1B and GPipe alone.")
        if not has_order(self.schedule, pp=self.pp, vpp=self.vpp, num_microbatches=self.num_microbatches):
            raise SpecError(
                "microbatches",
                f"{self.schedule.text} has no order of {self.num_microbatches} micro-batches on pp = {self.pp} with "
                f"vpp = {self.vpp}.",
                "GPipe takes vpp = 1, 1F1B with a larger vpp micro-batches in groups of at least pp.",
            )
        if self.num_layers < self.pp * self.vpp:
            raise SpecError("layers", f"is {self.num_layers}, fewer than pp * vpp = {self.pp * self.vpp} stages.")

    @property
    def num_stages(self) -> int:
        """Number of virtual stages."""
        return self.pp * self.vpp

    def passes(self, rank: int) -> tuple[Pass, ...]:
        """Return the passes of a pipeline rank, in order."""
        blocks = order(self.schedule, rank, pp=self.pp, vpp=self.vpp, num_microbatches=self.num_microbatches).tolist()
        found: list[Pass] = []
        for block in blocks:
            for direction, one in (("forward", block[FORWARD]), ("backward", block[BACKWARD])):
                if one != NONE:
                    found.append(Pass(direction, *divmod(one, self.num_microbatches)))  # type: ignore[arg-type]
        return tuple(found)

    def stages(self, rank: int) -> tuple[int, ...]:
        """Return the virtual stages of a pipeline rank."""
        return stages_of_rank(self.schedule, rank, pp=self.pp, vpp=self.vpp)

    def layers(self) -> tuple[range, ...]:
        """Return the layers of each virtual stage; the first stages have one more where the layers do not divide."""
        each, more = divmod(self.num_layers, self.num_stages)
        firsts = [stage * each + min(stage, more) for stage in range(self.num_stages)]
        return tuple(range(first, first + each + (stage < more)) for stage, first in enumerate(firsts))

    def receives(self, one: Pass) -> bool:
        """Return True if a pass needs a message from another rank."""
        last = self.num_stages - 1
        return self.pp > 1 and one.stage != (0 if one.direction == "forward" else last)

    def sends(self, one: Pass) -> bool:
        """Return True if another rank needs the result of a pass."""
        last = self.num_stages - 1
        return self.pp > 1 and one.stage != (last if one.direction == "forward" else 0)


Network: TypeAlias = Callable[[Message, Literal["pp", "dp"], int], int]

"""
Nanoseconds of a message from the moment when all of its ranks have arrived.

By the message, its purpose (between pipeline stages, or gradients of replicas), and the number of ranks that take part.
"""


OF_REPLICAS = re.compile(r"(?i)data_?parallel|fsdp|replicate|(?<![a-z])dp(?![a-z])")

"""Names of data-parallel groups in Megatron-LM and PyTorch's device meshes."""

OF_OTHERS = re.compile(r"(?i)model_?parallel|tensor|context|pipeline|embedding|(?<![a-z])(tp|cp|pp|ep|world)(?![a-z])")

"""Names of other groups there."""

REDUCTIONS = ("all_reduce", "reduce_scatter")

"""Operations that sum gradients over replicas."""


@dataclass(slots=True)
class _Group:
    """Operations of a group of ranks in forward passes, and elsewhere."""

    size: int = 0
    description: str = ""
    forward: set[str] = field(default_factory=set)
    elsewhere: set[str] = field(default_factory=set)

    @property
    def gathers_parameters(self) -> bool:
        """True where parameters are gathered for forward passes, and gradients reduced afterwards: FSDP, ZeRO-3."""
        return self.forward == {"all_gather"} and "reduce_scatter" in self.elsewhere

    def is_of_replicas(self, dp: int | None) -> bool:
        """Return True if its ranks are replicas, by the group's name, else by its operations."""
        named = bool(OF_REPLICAS.search(self.description)), bool(OF_OTHERS.search(self.description))
        if named[0] != named[1]:
            return named[0]
        if self.gathers_parameters:
            return dp is None or (dp > 1 and self.size in (0, dp))
        return not self.forward and any(one in self.elsewhere for one in REDUCTIONS)


class Replicas:
    """
    Groups of ranks that are replicas of each other.

    They are identified by the names that frameworks give them. Without a name, a group that only reduces, and never in
    a forward pass, counts as one. So does a group that gathers in forward passes and reduce-scatters afterwards, unless
    its size differs from that of the job.

    Parameters
    ----------
    graph, parts
        The recorded iteration, and the parts of its traces' events.
    dp
        Replicas of the recorded job; None where they are unknown.
    """

    def __init__(self, graph: ExecutionGraph, parts: Sequence[Parts], dp: int | None) -> None:
        groups: dict[object, _Group] = defaultdict(_Group)
        tasks = graph.tasks
        rows = (tasks.message != UNKNOWN) & (tasks.kind == Kind.COMMUNICATION)
        for task in rows.nonzero()[0].tolist():
            message = graph.messages[int(tasks.message[task])]
            event = int(tasks.event[task])
            if message.operation in ("send", "recv"):
                continue
            one = groups[group_of(message)]
            one.size = max(one.size, message.num_ranks, len(message.ranks))
            one.description = one.description or message.description
            phase = parts[int(tasks.trace[task])].phase[event] if event != UNKNOWN else Phase.NONE
            if message.operation != "broadcast":  # of buffers, which replicas and others do in forward passes alike
                (one.forward if phase == Phase.FORWARD else one.elsewhere).add(message.operation)
        self.groups = {key for key, one in groups.items() if one.is_of_replicas(dp)}
        self.size = max((groups[key].size for key in self.groups), default=0) or self._world(graph, len(groups))
        """Ranks of the largest of these groups; 0 where the number is unknown."""
        self.are_sharded = any(groups[key].gathers_parameters for key in self.groups)
        """
        True where each rank holds only a shard of the parameters, so that every backward pass reduces its gradients.
        """
        self.gather = any("all_gather" in groups[key].forward | groups[key].elsewhere for key in self.groups)
        """True where they gather parameters, of which each rank updates only a part."""
        self.unclear = {
            one.size for key, one in groups.items() if key not in self.groups and one.gathers_parameters and one.size
        }
        """Sizes of groups that gather in forward passes but differ in size from the job's."""

    def _world(self, graph: ExecutionGraph, number: int) -> int:
        """Return the number of all ranks, where only replicas communicate; else 0."""
        pipeline = any(message.operation in ("send", "recv") for message in graph.messages)
        alone = self.groups and len(self.groups) == number and not pipeline
        return max((trace.world_size or 0 for trace in graph.traces), default=0) if alone else 0

    def have(self, message: Message | None) -> bool:
        """Return True if a message is between replicas."""
        return message is not None and message.operation not in ("send", "recv") and group_of(message) in self.groups


def group_of(message: Message) -> object:
    """Return the key that identifies a group of ranks."""
    return message.ranks or message.group or message.description


UNLIKE = 0.05

"""Share of a step above which waits for other replicas are reported."""

Ranks: TypeAlias = tuple[int, ...]


def find_slowest_replica(graph: ExecutionGraph, layout: Layout) -> tuple[Ranks, list[str]]:
    """
    Return the recorded ranks of one replica's stages, from the first one, and doubts on the waits that they omit.

    The chosen replica waits least for others: the others wait for it, so that its step is the step of all.

    Parameters
    ----------
    graph, layout
        The recorded iteration, and its layout.

    Raises
    ------
    SpecError
        If no replica was recorded with all of its stages.
    """
    replicas = _replicas(graph, layout)
    if len(replicas) == 1:
        return replicas[0], []
    step, waits = _waits(graph)
    slowest = min(replicas, key=lambda ranks: sum(waits[rank] for rank in ranks))
    longest = max(waits, key=waits.__getitem__)
    if waits[longest] <= UNLIKE * step:
        return slowest, []
    return slowest, [
        f"Ranks are not alike: in a step rank {longest} waits {waits[longest] / 1e6:,.3f} ms for others in "
        f"collectives. The changed step is that of rank {', '.join(map(str, slowest))}, which waits least; its waits, "
        f"{max(waits[rank] for rank in slowest) / 1e6:,.3f} ms, are left out."
    ]


def _waits(graph: ExecutionGraph) -> tuple[int, Mapping[int, int]]:
    """Return the time of a steady step, and each rank's wait for others in it, without sends and receives."""
    _, times = steady(graph)
    tasks = graph.tasks
    transfers = np.array([*(message.operation in ("send", "recv") for message in graph.messages), False])
    rows = np.flatnonzero((tasks.collective != UNKNOWN) & (times.held_by != UNKNOWN) & ~transfers[tasks.message])
    waits = np.maximum(times.start[times.held_by[rows]] - times.start[rows], 0)
    rank = graph.task_ranks[rows]
    return times.iteration, {one: int(waits[rank == one].sum()) for one in graph.ranks}


def _replicas(graph: ExecutionGraph, layout: Layout) -> list[Ranks]:
    """Return the ranks of each replica that was recorded with all of its stages: those that send to each other."""
    ranks = graph.ranks
    if layout.pp == 1:
        return [(rank,) for rank in ranks]
    peers = _peers(graph)
    silent = any(message.operation in ("send", "recv", "") for message in graph.messages)
    if silent and not peers:
        raise SpecError(
            "traces",
            f"do not name the other rank of sends and receives: the stages of a pipeline of {layout.pp} cannot "
            "be identified.",
            "Profilers record it for single sends and receives, not for batches: send and receive one by one.",
        )
    found: list[list[int]] = []
    for rank in ranks:
        if not any(rank in one for one in found):
            found.append(_connected_ranks(rank, peers))
    whole = [tuple(sorted(one)) for one in found if len(one) == layout.pp and set(one) <= set(ranks)]
    if whole:
        return whole
    missing = [rank for rank in found[0] if rank not in ranks]
    raise SpecError(
        "traces",
        f"have {len(found[0]) - len(missing)} stages of a pipeline of {layout.pp}: one rank of each stage is needed.",
        f"ranks without a trace: {missing}" if missing else "",
    )


def _peers(graph: ExecutionGraph) -> Mapping[int, set[int]]:
    """Return the ranks to which each rank sends, or from which it receives."""
    peers: dict[int, set[int]] = defaultdict(set)
    for task in np.flatnonzero(graph.tasks.message != UNKNOWN).tolist():
        message = graph.messages[int(graph.tasks.message[task])]
        if message.operation in ("send", "recv") and message.peer != UNKNOWN:
            peers[graph.tracks[int(graph.tasks.track[task])].rank].add(message.peer)
    return peers


def _connected_ranks(rank: int, peers: Mapping[int, set[int]]) -> list[int]:
    """Return a rank and all ranks that are connected to it."""
    found = [rank]
    for one in found:
        found += sorted(other for other in peers.get(one, ()) if other not in found)
    return found
