"""What a recorded rank does, taken apart: passes layer by layer, transfers between stages, what is before and behind."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from costmodel.errors import SpecError
from costmodel.traces.building.calls import RECORDS, STREAM_WAITS
from costmodel.traces.change.layout import Direction, Layout, Pass
from costmodel.traces.events import UNKNOWN, Integers, Message, Track
from costmodel.traces.graph import Dependency, ExecutionGraph, Kind
from costmodel.traces.structure import Parts, Phase, Role

PHASES: Mapping[int, Direction] = {
    Phase.FORWARD: "forward",
    Phase.BACKWARD: "backward",
    Phase.RECOMPUTE: "backward",
}


@dataclass(frozen=True, slots=True)
class Segment:
    """
    A run of a thread's tasks in a pass that belong to one part of the model.

    Parameters
    ----------
    role, layer
        Which part; the layer counts from the first of the rank's pass, ``UNKNOWN`` where it is none.
    tasks
        Tasks of threads in order.
    """

    role: Role
    layer: int
    tasks: tuple[int, ...]


@dataclass(slots=True)
class RankTemplate:
    """
    What one recorded rank does.

    Parameters
    ----------
    rank, stage
        The rank, and its place in the pipeline.
    begin, end
        Tasks of threads before the first pass and behind the last one, without transfers.
    passes
        Segments of each pass in order.
    transfers
        For each kind of transfer (operation, direction) the tasks of threads of each.
    needs
        Calls by which a stream waits for what was received, by direction.
    posted_early
        Passes between that before which a receive is posted and the one that needs it.
    """

    rank: int
    stage: int
    begin: tuple[int, ...] = ()
    end: tuple[int, ...] = ()
    passes: dict[Pass, tuple[Segment, ...]] = field(default_factory=dict)
    transfers: dict[tuple[str, Direction], list[tuple[int, ...]]] = field(default_factory=lambda: defaultdict(list))
    needs: dict[Direction, list[int]] = field(default_factory=lambda: defaultdict(list))
    posted_early: list[int] = field(default_factory=list)


class Tasks:
    """A graph's tasks with what they launch, by whom they were launched, and what else they wait for."""

    def __init__(self, graph: ExecutionGraph, parts: Sequence[Parts]) -> None:
        self.graph, self.parts = graph, parts
        tasks, edges = graph.tasks, graph.edges
        self.launched: dict[int, list[int]] = defaultdict(list)
        self.lag: dict[int, int] = {}
        self.launcher: dict[int, int] = {}
        self.waits: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        rows = zip(
            edges.before.tolist(), edges.after.tolist(), edges.lag.tolist(), edges.dependency.tolist(), strict=True
        )
        for before, after, lag, dependency in rows:
            if dependency == Dependency.LAUNCH:
                self.launched[before].append(after)
                self.launcher[after], self.lag[after] = before, lag
            else:
                self.waits[after].append((before, lag, dependency))
        self.rank = np.array([one.rank for one in graph.tracks])[tasks.track]
        previous = graph.previous()
        self._give_launchers(previous)
        self.purpose_of: dict[int, str] = {}
        """Operation and direction of sends and receives, which ranks' templates find."""
        for those in self.launched.values():
            those.sort()
        records, waits = re.compile(RECORDS), re.compile(STREAM_WAITS)
        self.is_record = [records.fullmatch(graph.names[name]) is not None for name in tasks.name.tolist()]
        self.is_wait = [waits.fullmatch(graph.names[name]) is not None for name in tasks.name.tolist()]
        self.kind = tasks.kind.tolist()
        computing = np.isin(tasks.kind, (Kind.COMPUTE, Kind.COPY))
        self.has_streams = bool(computing.any())
        self.usual_gap = _median(tasks.gap[computing & (previous != UNKNOWN)])
        events = edges.lag[edges.dependency == Dependency.EVENT]
        self.usual_lag = _median(events)

    def _give_launchers(self, previous: Integers) -> None:
        """What has no recorded launch goes with what is before it on its stream."""
        for task in np.flatnonzero(self.graph.tasks.kind != Kind.HOST).tolist():
            if task not in self.launcher and previous[task] in self.launcher:
                self.launcher[task] = self.launcher[int(previous[task])]
                self.launched[self.launcher[task]].append(task)

    def message(self, task: int) -> Message | None:
        """What a task sends, if it communicates."""
        number = int(self.graph.tasks.message[task])
        return self.graph.messages[number] if number != UNKNOWN and self.kind[task] == Kind.COMMUNICATION else None

    def transfer(self, host: int) -> int | None:
        """The send or receive that a task of a thread starts."""
        for task in self.launched.get(host, ()):
            message = self.message(task)
            if message is not None and message.operation in ("send", "recv"):
                return task
        return None

    def part(self, task: int) -> tuple[Direction | None, int, Role, int]:
        """Direction, pass, role and layer of a task of a thread."""
        event = int(self.graph.tasks.event[task])
        if event == UNKNOWN:
            return None, UNKNOWN, Role.OTHER, UNKNOWN
        parts = self.parts[int(self.graph.tasks.trace[task])]
        direction = PHASES.get(int(parts.phase[event]))
        number = int(parts.microbatch[event])
        if number == UNKNOWN:
            direction = None
        return direction, number, Role(int(parts.role[event])), int(parts.layer[event])

    def is_update(self, task: int) -> bool:
        """Whether a task of a thread is part of the optimizer."""
        event = int(self.graph.tasks.event[task])
        return event != UNKNOWN and self.parts[int(self.graph.tasks.trace[task])].phase[event] == Phase.OPTIMIZER

    def named(self, track: int) -> Track:
        """A track by what it is for."""
        return self._tracks[track]

    @cached_property
    def _tracks(self) -> dict[int, Track]:
        return self._named_tracks()

    def track(self, task: int) -> Track:
        """
        A task's track by what it is for, so that those of different ranks are one.

        Threads are the main one and the others in the order in which they begin; streams that compute have their own
        number; those that only communicate are called after what they do.
        """
        return self._tracks[int(self.graph.tasks.track[task])]

    def _named_tracks(self) -> dict[int, Track]:
        tasks, found = self.graph.tasks, {}
        for rank in self.graph.ranks:
            own = [number for number, one in enumerate(self.graph.tracks) if one.rank == rank]
            last = self.graph.last.get(rank)
            main = int(tasks.track[last]) if last is not None else UNKNOWN
            threads = [number for number in own if self.graph.tracks[number].track.kind == "thread" and number != main]
            for place, number in enumerate([main, *threads]):
                found[number] = Track("thread", "", "main" if not place else str(place))
            names: set[str] = set()
            for number in own:
                if self.graph.tracks[number].track.kind == "thread":
                    continue
                rows = np.flatnonzero(tasks.track == number)
                name = self._purpose(rows.tolist()) or self.graph.tracks[number].track.number
                while name in names:
                    name += "+"
                names.add(name)
                found[number] = Track("stream", "", name)
        return found

    def _purpose(self, rows: Sequence[int]) -> str:
        """What a stream only communicates for; "" if it also computes."""
        purposes = []
        for task in rows:
            message = self.message(task)
            if message is None:
                return ""
            purposes.append(self.purpose_of.get(task) or message.description or message.group or message.operation)
        return " ".join(sorted(set(purposes)))

    def program(self, rank: int) -> list[int]:
        """Tasks of a rank's threads in the order in which they ran; the one that ends the iteration is the last."""
        rows = np.flatnonzero((self.rank == rank) & (self.graph.tasks.kind == Kind.HOST))
        last = self.graph.last.get(rank, UNKNOWN)
        rows = rows[rows != last]
        ordered = rows[np.lexsort((rows, self.graph.tasks.start[rows]))].tolist()
        return [*ordered, last] if last != UNKNOWN else ordered

    def unit(self, program: Sequence[int], place: int) -> range:
        """
        The calls around one that starts a communication: the event that it waits for in front, the one behind it.

        PyTorch's process groups record an event on the computing stream, let the stream of the communication wait for
        it, launch, and record an event behind it.
        """
        first = last = place
        if first and self.is_wait[program[first - 1]]:
            first -= 1
            if first and self.is_record[program[first - 1]]:
                first -= 1
        if last + 1 < len(program) and self.is_record[program[last + 1]]:
            last += 1
        return range(first, last + 1)


def rank_template(tasks: Tasks, rank: int, stage: int, layout: Layout) -> RankTemplate:
    """
    Take apart what a rank does.

    Raises
    ------
    SpecError
        If its passes are not those of the layout.
    """
    program = tasks.program(rank)
    found = RankTemplate(rank=rank, stage=stage)
    parts = [tasks.part(task) for task in program]
    taken = _transfers_and_needs(tasks, program, found, layout)
    passes = {
        direction: list(dict.fromkeys(number for way, number, *_ in parts if way == direction))
        for direction in ("forward", "backward")
    }
    ordered = layout.passes(stage)
    for direction, numbers in passes.items():
        wanted = [one for one in ordered if one.direction == direction]
        if len(numbers) != len(wanted):
            raise SpecError(
                "layout",
                f"rank {rank} has {len(numbers)} {direction} passes in its trace, but {len(wanted)} in a job with "
                f"{layout.num_microbatches} micro-batches, pp = {layout.pp} and vpp = {layout.vpp}.",
            )
        by_number = dict(zip(numbers, wanted, strict=True))
        for number, one in by_number.items():
            own = [
                (part[2], part[3], task)
                for place, (task, part) in enumerate(zip(program, parts, strict=True))
                if part[:2] == (direction, number) and place not in taken
            ]
            found.passes[one] = _segments(own)
    inside = [place for place, part in enumerate(parts) if part[0] is not None]
    first, last = (inside[0], inside[-1]) if inside else (len(program), -1)
    found.begin = tuple(program[place] for place in range(first) if place not in taken)
    found.end = tuple(program[place] for place in range(last + 1, len(program)) if place not in taken)
    _keep_between(tasks, program, parts, taken, found, range(first, last + 1), passes, ordered)
    return found


def _keep_between(
    tasks: Tasks,
    program: Sequence[int],
    parts: Sequence[tuple[Direction | None, int, Role, int]],
    taken: set[int],
    found: RankTemplate,
    places: range,
    passes: Mapping[str, Sequence[int]],
    ordered: Sequence[Pass],
) -> None:
    """What threads do between passes goes with the pass that follows."""
    waiting: list[int] = []
    for place in places:
        direction, number, _, _ = parts[place]
        if direction is None:
            if place not in taken:
                waiting.append(program[place])
        elif waiting:
            wanted = [one for one in ordered if one.direction == direction]
            one = wanted[list(passes[direction]).index(number)]
            found.passes[one] = (Segment(Role.OTHER, UNKNOWN, tuple(waiting)), *found.passes[one])
            waiting = []


def _segments(own: Sequence[tuple[Role, int, int]]) -> tuple[Segment, ...]:
    """Runs of tasks of one part; what belongs to no part goes with the part before it, if there is one."""
    runs: dict[tuple[Role, int], list[int]] = {}
    key: tuple[Role, int] = (Role.OTHER, UNKNOWN)
    for role, layer, task in own:
        if role != Role.OTHER or not runs:
            key = (role, layer)
        runs.setdefault(key, []).append(task)
    return tuple(Segment(role, layer, tuple(tasks)) for (role, layer), tasks in runs.items())


def _transfers_and_needs(tasks: Tasks, program: Sequence[int], found: RankTemplate, layout: Layout) -> set[int]:
    """Places of the program that transfers take; they are joined to passes by their order."""
    taken: set[int] = set()
    ordered = layout.passes(found.stage)
    sends = iter([one for one in ordered if layout.sends(one)])
    receives = iter([one for one in ordered if layout.receives(one)])
    received: set[int] = set()
    direction_of: dict[int, Direction] = {}
    done = 0
    seen: set[tuple[Direction, int]] = set()
    for place, task in enumerate(program):
        way, number, *_ = tasks.part(task)
        if way is not None and (way, number) not in seen:
            seen.add((way, number))
            done += 1
        transfer = tasks.transfer(task)
        if transfer is None:
            continue
        message = tasks.message(transfer)
        assert message is not None
        one = next(sends if message.operation == "send" else receives, None)
        if one is None:
            raise SpecError("layout", f"rank {found.rank} has more transfers than pp = {layout.pp} needs.")
        unit = tasks.unit(program, place)
        taken.update(unit)
        found.transfers[message.operation, one.direction].append(tuple(program[at] for at in unit))
        tasks.purpose_of[transfer] = f"{message.operation} {one.direction}"
        if message.operation == "recv":
            received.add(transfer)
            direction_of[transfer] = one.direction
            found.posted_early.append(max(0, ordered.index(one) - done))
    for place, task in enumerate(program):
        for launched in tasks.launched.get(task, ()):
            own = [before for before, *_ in tasks.waits[launched] if before in received]
            if own and place and tasks.is_wait[program[place - 1]] and place - 1 not in taken:
                taken.add(place - 1)
                found.needs[direction_of[own[0]]].append(program[place - 1])
    return taken


def _median(numbers: Integers) -> int:
    return int(np.median(numbers)) if len(numbers) else 0
