"""Template of a recorded rank, layer by layer, and tasks of a changed one, copied from it with their launches."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np

from costmodel.errors import SpecError
from planner.measure.traces.building.streams import RECORDS, STREAM_WAITS
from planner.measure.traces.change.layout import Direction, Layout, Pass
from planner.measure.traces.events import UNKNOWN, Integers, Message, Track, build_table
from planner.measure.traces.graph import Dependency, Edges, ExecutionGraph, Kind, Waiting
from planner.measure.traces.graph import Tasks as Columns
from planner.measure.traces.iterations import UPDATE_KERNEL
from planner.measure.traces.structure import Parts, Phase, Role

PHASES: Mapping[int, Direction] = {
    Phase.FORWARD: "forward",
    Phase.BACKWARD: "backward",
    Phase.RECOMPUTE: "backward",
}

Part: TypeAlias = tuple[Direction | None, int, Role, int]

"""Direction, number of the pass, role and layer of a task; without a direction it is outside of passes."""

NO_PART: Part = (None, UNKNOWN, Role.OTHER, UNKNOWN)


Segments: TypeAlias = Mapping[tuple[Role, int], Sequence[int]]

"""
Consecutive tasks of a thread in a pass, by the part of the model that they belong to: role and layer.

Layers count from the first of the rank's pass; ``UNKNOWN`` where the part is none.
"""


@dataclass(slots=True)
class RankTemplate:
    """
    Tasks of one recorded rank, by their place in its iteration.

    Parameters
    ----------
    rank, stage
        The rank, and its place in the pipeline.
    begin, end
        Host tasks before the first pass and after the last one, without transfers.
    passes
        Segments of each pass, in order.
    transfers
        Host tasks of each transfer, by kind (operation, direction).
    needs
        Calls by which a stream waits for a received message, by direction.
    posted_early
        Number of passes between the one before which a receive is posted and the one that needs it.
    """

    rank: int
    stage: int
    begin: tuple[int, ...] = ()
    end: tuple[int, ...] = ()
    passes: dict[Pass, Segments] = field(default_factory=dict)
    transfers: dict[tuple[str, Direction], list[tuple[int, ...]]] = field(default_factory=lambda: defaultdict(list))
    needs: dict[Direction, list[int]] = field(default_factory=lambda: defaultdict(list))
    posted_early: list[int] = field(default_factory=list)


class Tasks:
    """Tasks of a graph with their launches, launchers and other waits."""

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
        self.rank = graph.task_ranks
        previous = graph.previous()
        self._give_launchers(previous)
        self.purpose_of: dict[int, str] = {}
        """Operation and direction of sends and receives, filled in by the templates of ranks."""
        for those in self.launched.values():
            those.sort()
        self.is_record, self.is_wait = graph.match_name(RECORDS).tolist(), graph.match_name(STREAM_WAITS).tolist()
        self.kind = tasks.kind.tolist()
        computing = np.isin(tasks.kind, (Kind.COMPUTE, Kind.COPY))
        self.has_streams = bool(computing.any())
        self.firsts = set(np.flatnonzero(previous == UNKNOWN).tolist())
        """The first task of each track."""
        self.usual_gap = _median(tasks.gap[computing & (previous != UNKNOWN)])
        events = edges.lag[edges.dependency == Dependency.EVENT]
        self.usual_lag = _median(events)
        self.usual_pause, self.hand_over = self._thread_lags()

    def _give_launchers(self, previous: Integers) -> None:
        """Give tasks without a recorded launch the launcher of the task before on their stream."""
        for task in np.flatnonzero(self.graph.tasks.kind != Kind.HOST).tolist():
            if task not in self.launcher and previous[task] in self.launcher:
                self.launcher[task] = self.launcher[int(previous[task])]
                self.launched[self.launcher[task]].append(task)

    def _thread_lags(self) -> tuple[dict[int, int], dict[int, int]]:
        """Return by track the usual gap between a thread's tasks, and the usual lag after another thread's task."""
        tasks, edges = self.graph.tasks, self.graph.edges
        host = tasks.kind == Kind.HOST
        between = (edges.dependency == Dependency.THREAD) & host[edges.before] & host[edges.after]
        self.handed_over = set(edges.after[between].tolist())
        alone = host.copy()
        alone[edges.after[between]] = False
        threads = np.unique(tasks.track[host]).tolist()
        pause = {one: _median(tasks.gap[alone & (tasks.track == one)]) for one in threads}
        lag = {one: _median(edges.lag[between & (tasks.track[edges.after] == one)]) for one in threads}
        return pause, lag

    def message(self, task: int) -> Message | None:
        """Return the message of a task that communicates, else None."""
        number = int(self.graph.tasks.message[task])
        return self.graph.messages[number] if number != UNKNOWN and self.kind[task] == Kind.COMMUNICATION else None

    def transfer(self, host: int) -> int | None:
        """Return the send or receive that a host task launches, else None."""
        for task in self.launched.get(host, ()):
            message = self.message(task)
            if message is not None and message.operation in ("send", "recv"):
                return task
        return None

    def part(self, task: int) -> Part:
        """Return the direction, pass, role and layer of a host task."""
        event = int(self.graph.tasks.event[task])
        if event == UNKNOWN:
            return NO_PART
        parts = self.parts[int(self.graph.tasks.trace[task])]
        direction = PHASES.get(int(parts.phase[event]))
        number = int(parts.microbatch[event])
        if number == UNKNOWN:
            direction = None
        return direction, number, Role(int(parts.role[event])), int(parts.layer[event])

    def is_update(self, task: int) -> bool:
        """Return True if a host task is part of the optimizer, or launches it."""
        tasks = self.graph.tasks
        for one in (task, *self.launched.get(task, ())):
            event = int(tasks.event[one])
            if event == UNKNOWN:
                continue
            if self.parts[int(tasks.trace[one])].phase[event] == Phase.OPTIMIZER:
                return True
            if UPDATE_KERNEL.search(self.graph.names[int(tasks.name[one])]):
                return True
        return False

    def put_between(self, before: int, task: int) -> int:
        """Count the tasks launched on the stream of one task after it, and before another task that waits for it."""
        launcher = self.launcher.get(task)
        if launcher is None or before not in self.launcher:
            return 0
        rows, launches = self._launches[int(self.graph.tasks.track[before])]
        behind = bisect_left(launches, int(self.graph.tasks.start[launcher]))
        return max(0, behind - 1 - bisect_left(rows, before))

    @cached_property
    def _launches(self) -> dict[int, tuple[list[int], list[int]]]:
        """For each stream, its tasks in order, and the times at which they were launched."""
        tasks, found = self.graph.tasks, {}
        for track in np.unique(tasks.track[tasks.kind != Kind.HOST]).tolist():
            rows = np.flatnonzero(tasks.track == track)
            launchers = [self.launcher.get(task) for task in rows.tolist()]
            times = [0 if one is None else int(tasks.start[one]) for one in launchers]
            found[track] = rows.tolist(), np.maximum.accumulate(times).tolist()
        return found

    def track(self, task: int) -> Track:
        """Return a task's track, named after its purpose."""
        return self.tracks[int(self.graph.tasks.track[task])]

    @cached_property
    def tracks(self) -> dict[int, Track]:
        """
        Tracks named after their purpose, so that tracks of different ranks coincide.

        Threads are the main one, then the others in the order in which they begin. Streams that compute have their own
        number; those that only communicate are named after their communication.
        """
        tasks, found = self.graph.tasks, {}
        for rank in self.graph.ranks:
            own = [number for number, one in enumerate(self.graph.tracks) if one.rank == rank]
            last = self.graph.last.get(rank)
            main = int(tasks.track[last]) if last is not None else UNKNOWN
            threads = [number for number in own if self.graph.tracks[number].kind == "thread" and number != main]
            for place, number in enumerate([main, *threads]):
                found[number] = Track("thread", "", "main" if not place else str(place))
            names: set[str] = set()
            for number in own:
                if self.graph.tracks[number].kind == "thread":
                    continue
                rows = np.flatnonzero(tasks.track == number)
                name = self._purpose(rows.tolist()) or self.graph.tracks[number].number
                while name in names:
                    name += "+"
                names.add(name)
                found[number] = Track("stream", "", name)
        return found

    def _purpose(self, rows: Sequence[int]) -> str:
        """Return the purpose of a stream that only communicates; "" if it also computes."""
        purposes = []
        for task in rows:
            message = self.message(task)
            if message is None:
                return ""
            purposes.append(self.purpose_of.get(task) or message.description or message.group or message.operation)
        return " ".join(sorted(set(purposes)))

    def program(self, rank: int) -> list[int]:
        """Return a rank's host tasks in the order in which they ran; the task that ends the iteration is the last."""
        rows = np.flatnonzero((self.rank == rank) & (self.graph.tasks.kind == Kind.HOST))
        last = self.graph.last.get(rank, UNKNOWN)
        rows = rows[rows != last]
        ordered = rows[np.lexsort((rows, self.graph.tasks.start[rows]))].tolist()
        return [*ordered, last] if last != UNKNOWN else ordered

    def unit(self, program: Sequence[int], place: int) -> range:
        """
        Return the calls around the launch of a communication: the event that it waits for, and the event after it.

        PyTorch's process groups record an event on the computing stream, make the stream of the communication wait for
        it, launch, and record an event after it.
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
    Build the template of a rank.

    Raises
    ------
    SpecError
        If its passes differ from those of the layout.
    """
    program = tasks.program(rank)
    found = RankTemplate(rank=rank, stage=stage)
    own_parts = [tasks.part(task) for task in program]
    parts = _fill_parts(own_parts, tasks.graph.tasks.track[program].tolist())
    taken = _find_transfers(tasks, program, own_parts, found, layout)
    ordered = layout.passes(stage)
    parts = _number_passes([NO_PART if place in taken else part for place, part in enumerate(parts)], ordered)
    of_pass: dict[tuple[object, int], list[tuple[Role, int, int]]] = defaultdict(list)
    for place, (task, (way, number, role, layer)) in enumerate(zip(program, parts, strict=True)):
        if place not in taken:
            of_pass[way, number].append((role, layer, task))
    passes = {
        direction: list(dict.fromkeys(number for way, number, *_ in parts if way == direction))
        for direction in ("forward", "backward")
    }
    for direction, numbers in passes.items():
        wanted = [one for one in ordered if one.direction == direction]
        if len(numbers) != len(wanted):
            raise SpecError(
                "layout",
                f"rank {rank} has {len(numbers)} {direction} passes in its trace; with {layout.num_microbatches} "
                f"micro-batches, pp = {layout.pp} and vpp = {layout.vpp} it has {len(wanted)}.",
            )
        for number, one in zip(numbers, wanted, strict=True):
            found.passes[one] = _segments(of_pass[direction, number])
    inside = [place for place, part in enumerate(parts) if part[0] is not None]
    first, last = (inside[0], inside[-1]) if inside else (len(program), -1)
    found.begin = tuple(program[place] for place in range(first) if place not in taken)
    found.end = tuple(program[place] for place in range(last + 1, len(program)) if place not in taken)
    _keep_between(program, parts, taken, found, range(first, last + 1), passes, ordered)
    return found


def _fill_parts(parts: list[Part], threads: Sequence[int]) -> list[Part]:
    """
    Assign tasks outside of the model's parts to the pass around them, or before them on its thread.

    After the last layer autograd's thread starts the last reduction of gradients, which no operator encloses.
    """
    filled = list(parts)
    coming: Part = NO_PART
    following = [NO_PART] * len(parts)
    for place in range(len(parts) - 1, -1, -1):
        following[place] = coming
        coming = parts[place] if parts[place][0] is not None else coming
    main = threads[-1] if threads else UNKNOWN
    for place in range(1, len(parts)):
        before = filled[place - 1]
        if filled[place][0] is not None or before[0] is None:
            continue
        same_thread = threads[place] == threads[place - 1] != main
        if before[:2] == following[place][:2] or same_thread:
            filled[place] = (*before[:2], Role.OTHER, UNKNOWN)
    return filled


def _number_passes(parts: list[Part], ordered: Sequence[Pass]) -> list[Part]:
    """
    Renumber passes where several chunks of a micro-batch share a number: each run of tasks is then a pass.

    Nothing changes where there are already as many numbers as passes.
    """
    changed = list(parts)
    for direction in ("forward", "backward"):
        wanted = sum(one.direction == direction for one in ordered)
        places = [place for place, part in enumerate(parts) if part[0] == direction]
        if len({parts[place][1] for place in places}) == wanted:
            continue
        run, before, runs = -1, None, []
        for place, part in enumerate(parts):
            if part[0] is None:
                continue
            run += part[:2] != before and part[0] == direction
            before = part[:2]
            runs.append((place, run))
        if run + 1 == wanted:
            for place, number in runs:
                if parts[place][0] == direction:
                    changed[place] = (parts[place][0], number, *parts[place][2:])
    return changed


def _keep_between(
    program: Sequence[int],
    parts: Sequence[Part],
    taken: set[int],
    found: RankTemplate,
    places: range,
    passes: Mapping[str, Sequence[int]],
    ordered: Sequence[Pass],
) -> None:
    """Put host tasks between passes into the pass that follows."""
    waiting: list[int] = []
    for place in places:
        direction, number, _, _ = parts[place]
        if direction is None:
            if place not in taken:
                waiting.append(program[place])
        elif waiting:
            wanted = [one for one in ordered if one.direction == direction]
            one = wanted[list(passes[direction]).index(number)]
            own: Segments = {NO_PART[2:]: (), **found.passes[one]}
            found.passes[one] = {**own, NO_PART[2:]: (*waiting, *own[NO_PART[2:]])}
            waiting = []


def _segments(own: Sequence[tuple[Role, int, int]]) -> Segments:
    """Group tasks into runs of one part; tasks outside of the model's parts join the part before them, if any."""
    runs: dict[tuple[Role, int], list[int]] = {}
    key: tuple[Role, int] = (Role.OTHER, UNKNOWN)
    for role, layer, task in own:
        if role != Role.OTHER or not runs:
            key = (role, layer)
        runs.setdefault(key, []).append(task)
    return runs


def _find_transfers(
    tasks: Tasks, program: Sequence[int], parts: Sequence[Part], found: RankTemplate, layout: Layout
) -> set[int]:
    """Find the places of transfers in the program, and join transfers to passes by their order."""
    taken: set[int] = set()
    ordered = layout.passes(found.stage)
    sends = iter([one for one in ordered if layout.sends(one)])
    receives = iter([one for one in ordered if layout.receives(one)])
    received: set[int] = set()
    direction_of: dict[int, Direction] = {}
    done = 0
    seen: set[tuple[Direction, int]] = set()
    for place, (task, (way, number, *_)) in enumerate(zip(program, parts, strict=True)):
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


Signature = tuple[object, ...]

"""Names of a layer's tasks, in order."""


def find_layers_by_inner_stages(tasks: Tasks, templates: Sequence[RankTemplate], layout: Layout) -> bool:
    """
    Find the layers of all stages from those of inner stages, which hold nothing else.

    An inner stage has as many layers as the layout says, all equal. The first stage ends with its layers and the last
    one begins with them; in backward passes it is the reverse. The rest is embedding and head.

    Returns
    -------
    bool
        True if the layers of all stages were found; else nothing is changed.
    """
    dealt = layout.layers()
    between = [
        (one, segments)
        for template in templates
        for one, segments in template.passes.items()
        if 0 < one.stage < layout.num_stages - 1
    ]
    kinds: dict[Direction, Signature] = {}
    for one, segments in between:
        own = _signature(tasks, _flat(segments))
        number = len(dealt[one.stage])
        size = len(own) // number
        if own != own[:size] * number:
            return False
        kinds.setdefault(one.direction, own[:size])
        if kinds[one.direction] != own[:size]:
            return False
    if len(kinds) < 2:
        return False
    found: list[tuple[RankTemplate, Pass, Segments]] = []
    for template in templates:
        for one, segments in template.passes.items():
            cut = _cut(tasks, _flat(segments), one, layout, kinds)
            if cut is None:
                return False
            found.append((template, one, cut))
    for template, one, cut in found:
        template.passes[one] = cut
    return True


def _flat(segments: Segments) -> list[int]:
    return [task for tasks in segments.values() for task in tasks]


def _signature(tasks: Tasks, hosts: Sequence[int]) -> Signature:
    """Return the names of launched tasks without communication, which only some passes have."""
    names, of = tasks.graph.names, tasks.graph.tasks.name
    return tuple(
        names[int(of[each])]
        for host in hosts
        for each in (tasks.launched.get(host, ()) if tasks.has_streams else (host,))
        if tasks.message(each) is None
    )


def _cut(
    tasks: Tasks, hosts: Sequence[int], one: Pass, layout: Layout, kinds: Mapping[Direction, Signature]
) -> Segments | None:
    """Divide a pass into embedding, layers and head."""
    kind, number = kinds[one.direction], len(layout.layers()[one.stage])
    size, whole = len(kind), _signature(tasks, hosts)
    rest = len(whole) - size * number
    behind = (one.stage == 0) == (one.direction == "backward")  # embedding behind the layers, or head
    first = 0 if behind else rest
    if rest < 0 or whole[first : first + size * number] != kind * number:
        return None
    end = Role.EMBEDDING if one.stage == 0 else Role.HEAD
    layers = range(number) if one.direction == "forward" else range(number - 1, -1, -1)
    pieces = [(Role.LAYER, layer, size) for layer in layers]
    edge = [(end, UNKNOWN, rest)] if rest else []
    ordered = [*pieces, *edge] if behind else [*edge, *pieces]
    segments: dict[tuple[Role, int], Sequence[int]] = {}
    place = 0
    for role, layer, length in ordered:
        start, left = place, length
        while place < len(hosts) and (left > 0 or not _signature(tasks, hosts[place : place + 1])):
            left -= len(_signature(tasks, hosts[place : place + 1]))
            place += 1
        segments[role, layer] = hosts[start:place]
    return segments


# --- copies --------------------------------------------------------------------------------------------------
@dataclass(slots=True)
class Written:
    """
    A graph under construction.

    Parameters
    ----------
    rows
        Columns of each task as in :class:`planner.measure.traces.graph.Tasks`, by name; ``source`` is the recorded task
        of which it is a copy, ``UNKNOWN`` for tasks that were not recorded.
    edges
        Before, after, lag, dependency.
    tracks, messages
        Numbers of each rank's tracks and of messages.
    last
        As in :class:`planner.measure.traces.graph.ExecutionGraph`.
    """

    rows: list[dict[str, int]] = field(default_factory=list)
    edges: list[tuple[int, int, int, int]] = field(default_factory=list)
    tracks: dict[tuple[int, Track], int] = field(default_factory=dict)
    messages: dict[Message, int] = field(default_factory=dict)
    last: dict[int, int] = field(default_factory=dict)

    def add(self, **columns: int) -> int:
        """Add a task that waits for nothing yet; return its number."""
        self.rows.append({"waiting": Waiting.NOTHING, **columns})
        return len(self.rows) - 1

    def number_of(self, message: Message) -> int:
        """Return the number of a message."""
        return self.messages.setdefault(message, len(self.messages))

    def graph(self, source: ExecutionGraph, doubts: Iterable[str]) -> ExecutionGraph:
        """Build the graph; its times are unknown until it is replayed, but its tasks are in order."""
        written = ("source", "track", "duration", "gap", "waiting", "waits_for", "collective", "message")
        columns = {name: np.array([row.get(name, UNKNOWN) for row in self.rows], dtype=np.int64) for name in written}
        rows, old = columns.pop("source"), source.tasks
        known = rows != UNKNOWN
        names = (*source.names, "message between stages or replicas")
        begins = dict.fromkeys((rank for rank, _ in self.tracks), 0)
        return ExecutionGraph(
            tasks=build_table(
                Columns,
                len(rows),
                kind=np.where(known, old.kind[rows], Kind.COMMUNICATION),
                start=np.arange(len(rows)),
                event=np.where(known, old.event[rows], UNKNOWN),
                trace=np.where(known, old.trace[rows], UNKNOWN),
                name=np.where(known, old.name[rows], len(names) - 1),
                **columns,
            ),
            edges=Edges.build_from_rows(self.edges),
            tracks=tuple(replace(track, rank=rank) for rank, track in self.tracks),
            names=names,
            messages=tuple(self.messages),
            begins=begins,
            device_free=begins,
            last=self.last,
            traces=source.traces,
            doubts=(*source.doubts, *doubts),
        )


class RankWriter:
    """
    Writer of one rank's tasks.

    Parameters
    ----------
    written, tasks, rank
        The graph under construction, the recorded tasks, and the rank's number.
    retimed
        Function that returns the nanoseconds of a copied communication, by its recorded task.
    is_gradient
        Function that returns True for a gradient reduction: the optimizer waits for all of these, and for sends.
    """

    def __init__(
        self,
        written: Written,
        tasks: Tasks,
        rank: int,
        retimed: Callable[[int], int],
        is_gradient: Callable[[int], bool],
    ) -> None:
        self.written, self.tasks, self.rank = written, tasks, rank
        self.nanoseconds_of_copy, self.is_gradient = retimed, is_gradient
        self.on_track: dict[int, list[int]] = defaultdict(list)
        """Tasks on each track, in their order."""
        self.open: list[int] = []
        """Sends and gradient reductions that nothing waits for yet."""
        self.arrived: list[int] = []
        """Receives that the next computing task waits for."""
        self.pending: list[int] = []
        """Messages without a recorded original, for which the optimizer waits."""
        self.copies: dict[int, int] = {}
        self.last_host = UNKNOWN

    def put(self, host: Iterable[int], scale: float = 1.0) -> None:
        """
        Copy host tasks, with everything that they launch.

        Parameters
        ----------
        host
            Recorded host tasks, in order.
        scale
            Factor of the durations of launched tasks, or of the host tasks themselves where they launch nothing, and of
            gaps.
        """
        self.copies = {}
        for task in host:
            self._copy(task, scale)
            for launched in self.tasks.launched.get(task, ()):
                self._copy(launched, scale)

    def put_transfer(self, unit: Iterable[int], collective: int) -> int:
        """Copy the tasks that start a send or a receive, which joins that of another rank."""
        hosts = list(unit)
        self.put(hosts)
        started = next(each for host in hosts for each in self.tasks.launched.get(host, ()) if self.tasks.message(each))
        self.written.rows[self.copies[started]]["collective"] = collective
        return self.copies[started]

    def put_message(self, message: Message, track: Track, duration: int, collective: int = UNKNOWN) -> int:
        """Add an unrecorded communication: it begins when the thread is here, after the computation before."""
        number = self.number_of(track)
        of_message = self.written.number_of(message)
        one = self.written.add(track=number, duration=duration, gap=0, message=of_message, collective=collective)
        kinds = [each.kind for _, each in self.written.tracks]
        for kind in ("thread", "stream"):
            before = [
                there[-1]
                for number, there in self.on_track.items()
                if there
                and kinds[number] == kind
                and (kind == "thread" or "message" not in self.written.rows[there[-1]])
            ]
            if before:
                self.written.edges.append((max(before), one, 0, Dependency.ADDED))
        self.on_track[number].append(one)
        return one

    def number_of(self, track: Track) -> int:
        """Return the number of a track of this rank."""
        return self.written.tracks.setdefault((self.rank, track), len(self.written.tracks))

    def _copy(self, task: int, scale: float) -> int:
        columns = self.tasks.graph.tasks
        number = self.number_of(self.tasks.track(task))
        kind = self.tasks.kind[task]
        duration = self.nanoseconds_of_copy(task) if kind == Kind.COMMUNICATION else int(columns.duration[task])
        one = self.written.add(
            source=task,
            track=number,
            duration=round(duration * scale) if scale != 1.0 else duration,
            gap=self._gap(task, number, scale),
        )
        row, self.copies[task] = self.written.rows[one], one
        self._connect(task, one)
        if kind == Kind.HOST:
            self.last_host = one
        message = self.tasks.message(task)
        if message is not None:
            row["message"] = self.written.number_of(message)
            if self.is_gradient(task):
                self.open.append(one)
        waiting = int(columns.waiting[task])
        if waiting == Waiting.STREAM:
            stream = self.tasks.tracks[int(columns.waits_for[task])]
            row |= {"waiting": waiting, "waits_for": self.number_of(stream)}
        elif waiting == Waiting.TASK and int(columns.waits_for[task]) in self.copies:
            row |= {"waiting": waiting, "waits_for": self.copies[int(columns.waits_for[task])]}
        elif waiting == Waiting.DEVICE:
            row["waiting"] = waiting
        self.on_track[number].append(one)
        return one

    def _is_handed_over(self, number: int) -> bool:
        """Return True if another thread worked last."""
        return self.last_host != UNKNOWN and self.written.rows[self.last_host]["track"] != number

    def _gap(self, task: int, number: int, scale: float) -> int:
        """Return the recorded gap; for the first task of a stream, which may now follow another, the usual gap."""
        gap = int(self.tasks.graph.tasks.gap[task])
        if self.tasks.kind[task] != Kind.HOST:
            gap = self.tasks.usual_gap if task in self.tasks.firsts else gap
            return gap if self.on_track[number] else 0
        if task in self.tasks.handed_over and not self._is_handed_over(number):
            gap = self.tasks.usual_pause[int(self.tasks.graph.tasks.track[task])]
        return round(gap * scale) if scale != 1.0 else gap

    def _connect(self, task: int, one: int) -> None:
        """Connect a copy to the copies of the tasks for which the recorded one waited, or to their replacements."""
        launcher = self.tasks.launcher.get(task)
        if launcher is not None and launcher in self.copies:
            lag = self.tasks.lag.get(task, 0)
            self.written.edges.append((self.copies[launcher], one, lag, Dependency.LAUNCH))
        if self._is_handed_over(self.written.rows[one]["track"]) and self.tasks.kind[task] == Kind.HOST:
            lag = self.tasks.hand_over[int(self.tasks.graph.tasks.track[task])]
            self.written.edges.append((self.last_host, one, lag, Dependency.THREAD))
        joined = False
        for before, lag, dependency in self.tasks.waits.get(task, ()):
            message = self.tasks.message(before)
            if self.tasks.kind[before] == Kind.HOST and dependency == Dependency.THREAD:
                continue  # threads now wait for each other at other places
            if message is not None and (self.is_gradient(before) or message.operation == "send"):
                if not joined:
                    self.written.edges += [(other, one, lag, dependency) for other in self.open]
                    self.open = []
                joined = True
            elif message is not None and message.operation == "recv":
                continue  # ``arrived`` holds the receives of the next pass
            elif dependency == Dependency.PROCESSORS and before not in self.copies:
                continue  # other kernels run beside it now
            elif before in self.copies:
                self.written.edges.append((self.copies[before], one, lag, dependency))
            else:
                number = self.number_of(self.tasks.track(before))
                there = self.on_track[number]
                place = len(there) - 1 - self.tasks.put_between(before, task)
                if place >= 0:
                    self.written.edges.append((there[place], one, lag, dependency))
        computes = self.tasks.kind[task] in (Kind.COMPUTE, Kind.COPY) or not self.tasks.has_streams
        if self.arrived and computes:
            self.written.edges += [(other, one, self.tasks.usual_lag, Dependency.EVENT) for other in self.arrived]
            self.arrived = []
