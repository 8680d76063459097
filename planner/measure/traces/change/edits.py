"""Changes of a graph that keep its layout: faster kernels, launches removed, overlap removed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from costmodel.errors import SpecError
from planner.measure.traces.building.streams import RECORDS, STREAM_WAITS
from planner.measure.traces.events import UNKNOWN, Integers, Message
from planner.measure.traces.graph import Dependency, Edges, ExecutionGraph, Kind, Tasks, Waiting
from planner.measure.traces.replay import break_circles
from planner.measure.traces.structure import Parts, Phase, Role
from planner.measure.traces.structure.records import ON_THREADS

MOST_NAMES, LONGEST_NAME = 3, 60

"""Tasks that a message lists, and characters of each name: templates have thousands."""


def faster(graph: ExecutionGraph, pattern: str, factor: float) -> ExecutionGraph:
    """
    Speed up some tasks by a factor.

    Parameters
    ----------
    graph
        Any graph.
    pattern
        Regular expression that finds their names; case is ignored.
    factor
        Speed-up; below 1 slows them down.

    Raises
    ------
    SpecError
        If it is not a regular expression, or no task has such a name.
    """
    try:
        found = re.compile(pattern, re.IGNORECASE)
    except re.error as error:
        raise SpecError("faster", f"{pattern!r} is not a regular expression: {error}.") from None
    chosen = graph.match_name(found)
    if not chosen.any():
        raise SpecError("faster", f"no task has {pattern!r} in its name.", _suggest_names(graph, found))
    shorter = np.rint(graph.tasks.duration / factor).astype(np.int64)
    return replace(graph, tasks=replace(graph.tasks, duration=np.where(chosen, shorter, graph.tasks.duration)))


def _suggest_names(graph: ExecutionGraph, pattern: re.Pattern[str]) -> str:
    """Suggest tasks that contain operators with such names, or that these launch; else the command that lists names."""
    names: Counter[str] = Counter()
    for number, trace in enumerate(graph.traces):
        events = trace.events
        inner = np.flatnonzero(trace.match_name(pattern) & np.isin(events.category, ON_THREADS))
        own = (graph.tasks.trace == number) & (graph.tasks.event != UNKNOWN)
        tasks = graph.tasks.event[own]
        calls = trace.calls_of(tasks)
        launched = (calls != UNKNOWN) & ~np.isin(events.category[tasks], ON_THREADS)
        found = [
            events.find_enclosing(inner, tasks),
            tasks[launched][events.find_enclosing(calls[launched], inner) != UNKNOWN],
        ]
        names.update(trace.name_of(row) for rows in found for row in rows.tolist() if row != UNKNOWN)
    if not names:
        return "'planner trace read' lists the longest."
    listed = ", ".join(f"{name.removeprefix('void ')[:LONGEST_NAME]!r}" for name, _ in names.most_common(MOST_NAMES))
    return f"Operators with such names are part of these tasks, or launch them: {listed}."


def remove_launches(graph: ExecutionGraph) -> ExecutionGraph:
    """
    Remove CPU launch overhead, as if CUDA graphs launched all work between two waits of a thread at once.

    The first launch of each stretch is kept and starts all others: the thread spends no time on them, nor between them.
    Calls that wait, and the work before them, are kept.

    Parameters
    ----------
    graph
        Any graph with a device.
    """
    tasks, launches = graph.tasks, np.zeros(len(graph.tasks), dtype=bool)
    launches[graph.edges.before[graph.edges.dependency == Dependency.LAUNCH]] = True
    waits = tasks.waiting != Waiting.NOTHING
    previous = graph.previous()
    taken = launches & ~waits
    follows = np.zeros(len(tasks), dtype=bool)
    for task in np.flatnonzero(tasks.kind == Kind.HOST).tolist():
        before = int(previous[task])
        follows[task] = before != UNKNOWN and not waits[task] and (taken[before] or follows[before])
    out = follows & (tasks.kind == Kind.HOST)
    return replace(
        graph, tasks=replace(tasks, duration=np.where(out, 0, tasks.duration), gap=np.where(out, 0, tasks.gap))
    )


def remove_overlap(graph: ExecutionGraph) -> ExecutionGraph:
    """
    Serialise communication and computation: each waits for everything of the other kind launched before it.

    Parameters
    ----------
    graph
        Any graph with a device.
    """
    edges = graph.edges
    launched = edges.after[edges.dependency == Dependency.LAUNCH]
    caller = edges.before[edges.dependency == Dependency.LAUNCH]
    rank = graph.task_ranks
    when = graph.tasks.start[caller]
    added: list[tuple[int, int]] = []
    for one in graph.ranks:
        own = np.flatnonzero(rank[launched] == one)
        order = launched[own[np.lexsort((launched[own], when[own]))]].tolist()
        last: dict[bool, int] = {}
        for task in order:
            communicates = graph.tasks.kind[task] == Kind.COMMUNICATION
            if (other := last.get(not communicates)) is not None:
                added.append((other, task))
            last[bool(communicates)] = task
    more = Edges.build_from_rows([(before, after, 0, Dependency.ADDED) for before, after in added])
    return break_circles(replace(graph, edges=Edges.join([edges, more])))


OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter")

"""Collectives of tensor-parallel ranks."""

NAMED = re.compile(r"(?i)tensor|(?<![a-z])tp(?![a-z])")

"""Descriptions of their groups: Megatron-LM's ``TENSOR_MODEL_PARALLEL_GROUP``, torchtitan's ``mesh_tp``."""

OTHERS = re.compile(r"(?i)data|pipeline|context|expert|embedding|default|(?<![a-z])(dp|fsdp|ddp|pp|cp|ep)(?![a-z])")

"""Descriptions of other groups."""

IN_PASSES = (Phase.FORWARD, Phase.BACKWARD, Phase.RECOMPUTE)

Wanted: TypeAlias = Mapping[tuple[Phase, Role], Sequence[Message]]

"""Collectives of each layer, of the embedding and of the head in each pass."""


def tensor_parallel_tasks(
    graph: ExecutionGraph, parts: Sequence[Parts], *, tp: int, elements: float
) -> NDArray[np.bool_]:
    """
    Return a mask of tasks that are tensor-parallel collectives; shape (tasks,).

    Groups are identified by their description; else by their ranks, which are consecutive; else by their size and by
    elements that are whole micro-batches.

    Parameters
    ----------
    graph, parts
        The recorded iteration, and the parts of its traces' events.
    tp
        Tensor-parallel size.
    elements
        Elements of the hidden states of a micro-batch.

    Raises
    ------
    SpecError
        If collectives in passes do not name their group, or none belongs to these ranks.
    """
    tasks = graph.tasks
    talks = (tasks.kind == Kind.COMMUNICATION) & (tasks.message != UNKNOWN)
    said = [_is_tensor_parallel(message, tp, elements) for message in graph.messages]
    found: NDArray[np.bool_] = talks & np.array([*(one is True for one in said), False])[tasks.message]
    silent = talks & np.array([*(one is None for one in said), False])[tasks.message]
    in_pass = np.isin(graph.take_event_column([one.phase for one in parts]), IN_PASSES)
    if (silent & in_pass).any():
        raise SpecError(
            "tp",
            f"cannot be changed: {int((silent & in_pass).sum()):,} communications in passes do not name the "
            "ranks of their group, so that tensor-parallel ones cannot be identified.",
            "PyTorch 2.4 and later record it.",
        )
    if not found.any():
        problem = f"is {tp} in the recorded job, but the traces show no collectives of such a group."
        raise SpecError("tp", problem, "Pass with --job the job that was recorded.")
    return found


def _is_tensor_parallel(message: Message, tp: int, elements: float) -> bool | None:
    """Return True if a message is tensor-parallel, None if that is unknown."""
    if message.operation in ("send", "recv", "barrier", "broadcast"):
        return False
    if message.num_ranks not in (0, tp):
        return False
    name = message.description or message.group
    if NAMED.search(name):
        return message.operation in OPERATIONS
    if OTHERS.search(name) or message.operation not in (*OPERATIONS, ""):
        return False
    if message.ranks:
        return message.ranks == tuple(range(message.ranks[0], message.ranks[0] + tp))
    largest = max(message.elements_in, message.elements_out)
    if message.num_ranks and largest:
        return largest % elements == 0
    return None


def remove_tasks(graph: ExecutionGraph, dropped: NDArray[np.bool_]) -> ExecutionGraph:
    """
    Remove some communications from a graph, and the calls that exist only for them.

    These calls are the launch, the event that it waits for, and the event after it. A task that waited for a
    communication waits for the tasks that it waited for, except those on its own track.

    Parameters
    ----------
    graph
        Any graph.
    dropped
        Mask of tasks to remove; shape (tasks,).
    """
    edges = graph.edges
    bridges = _bridges(graph, dropped)
    gone = dropped | _find_calls(graph, dropped)
    gone[[task for task in graph.last.values() if task != UNKNOWN]] = False
    kept = ~(gone[edges.before] | gone[edges.after])
    place = np.cumsum(~gone) - 1
    tasks = graph.tasks[~gone]
    is_task = tasks.waiting == Waiting.TASK
    lost = is_task & gone[np.where(is_task, tasks.waits_for, 0)]
    waits_for = np.where(is_task, place[np.where(is_task, tasks.waits_for, 0)], tasks.waits_for)
    joined = Edges.join([edges[kept], bridges[~(gone[bridges.before] | gone[bridges.after])]])
    return replace(
        graph,
        tasks=replace(
            tasks,
            waiting=np.where(lost, Waiting.NOTHING, tasks.waiting).astype(np.int8),
            waits_for=np.where(lost, UNKNOWN, waits_for),
        ),
        edges=replace(joined, before=place[joined.before], after=place[joined.after]),
        last={rank: int(place[task]) if task != UNKNOWN else task for rank, task in graph.last.items()},
    )


def _bridges(graph: ExecutionGraph, dropped: NDArray[np.bool_]) -> Edges:
    """Connect tasks before dropped ones with tasks after them, where these are on different tracks."""
    edges, track = graph.edges, graph.tasks.track
    is_wait = edges.dependency != Dependency.LAUNCH
    into: dict[int, list[tuple[int, int]]] = {}
    for number in np.flatnonzero(is_wait & dropped[edges.after]).tolist():
        into.setdefault(int(edges.after[number]), []).append((int(edges.before[number]), int(edges.lag[number])))
    rows = [
        (before, int(edges.after[number]), max(lag, int(edges.lag[number])), int(edges.dependency[number]))
        for number in np.flatnonzero(is_wait & dropped[edges.before]).tolist()
        for before, lag in into.get(int(edges.before[number]), ())
        if track[before] != track[edges.after[number]]
    ]
    return Edges.build_from_rows(rows)


def _find_calls(graph: ExecutionGraph, dropped: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return a mask of calls that launch only dropped tasks, and of events recorded and awaited right around them."""
    tasks, edges = graph.tasks, graph.edges
    launches = edges.dependency == Dependency.LAUNCH
    found = np.zeros(len(tasks), dtype=bool)
    found[edges.before[launches & dropped[edges.after]]] = True
    found[edges.before[launches & ~dropped[edges.after]]] = False
    records, waits = graph.match_name(RECORDS), graph.match_name(STREAM_WAITS)
    steps = (graph.previous(), (waits, records)), (graph.following(), (records, waits))
    for launch in np.flatnonzero(found).tolist():
        for step, order in steps:
            one = launch
            for wanted in order:
                one = int(step[one])
                if one == UNKNOWN or not wanted[one]:
                    break
                found[one] = True
    return found


def add_tensor_parallel(
    graph: ExecutionGraph, parts: Sequence[Parts], wanted: Wanted, nanoseconds: Callable[[Message], int]
) -> ExecutionGraph:
    """
    Add collectives to each layer of each pass, for which computation waits.

    They run on the computing stream, in front of the last kernel of their part. Their place within the part does not
    matter, since everything after waits for all of them.

    Parameters
    ----------
    graph, parts
        The recorded iteration, and the parts of its traces' events.
    wanted
        Collectives to add.
    nanoseconds
        Time of each.

    Raises
    ------
    SpecError
        If the traces have no device, or show no layers.
    """
    if any(not trace.has_device for trace in graph.traces):
        raise SpecError("tp", "cannot grow from 1: the traces have no device, and collectives are put on streams.")
    if any(not one.num_layers for one in parts):
        raise SpecError("tp", "cannot grow from 1: layers were not found in the traces, and each has collectives.")
    messages = tuple(dict.fromkeys(one for several in wanted.values() for one in several))
    rows = [
        (place, len(graph.messages) + messages.index(one), nanoseconds(one))
        for place, phase, role in _last_of_parts(graph, parts)
        for one in wanted.get((phase, role), ())
    ]
    places, numbers, durations = np.array(sorted(rows), dtype=np.int64).reshape(-1, 3).T
    return _insert_messages(replace(graph, messages=(*graph.messages, *messages)), places, numbers, durations)


def _last_of_parts(graph: ExecutionGraph, parts: Sequence[Parts]) -> list[tuple[int, Phase, Role]]:
    """Return the last computing kernel of each layer, embedding and head of each pass, with its phase and role."""
    tasks = graph.tasks
    phase, microbatch, layer, role = (
        graph.take_event_column([getattr(one, name) for one in parts])
        for name in ("phase", "microbatch", "layer", "role")
    )
    computes = (tasks.kind == Kind.COMPUTE) & graph.is_on_stream & np.isin(phase, IN_PASSES)
    computes &= np.isin(role, (Role.LAYER, Role.EMBEDDING, Role.HEAD)) & (microbatch != UNKNOWN)
    rows = np.flatnonzero(computes)
    rows = rows[np.argsort(tasks.start[rows], kind="stable")]
    rank = graph.task_ranks
    keys = zip(*(column[rows].tolist() for column in (rank, phase, microbatch, role, layer)), strict=True)
    last = dict(zip(keys, rows.tolist(), strict=True))
    return [(place, Phase(key[1]), Role(key[3])) for key, place in last.items()]


def _insert_messages(
    graph: ExecutionGraph, places: Integers, messages: Integers, durations: Integers
) -> ExecutionGraph:
    """Insert communications in front of some tasks, on their tracks; several in front of one task follow each other."""
    tasks, edges = graph.tasks, graph.edges
    given: dict[str, Any] = {
        "kind": Kind.COMMUNICATION,
        "duration": durations,
        "gap": 0,
        "event": UNKNOWN,
        "trace": UNKNOWN,
        "name": len(graph.names),
        "waiting": Waiting.NOTHING,
        "waits_for": UNKNOWN,
        "collective": UNKNOWN,
        "message": messages,
    }
    columns = {}
    for one in fields(Tasks):
        column = getattr(tasks, one.name)
        columns[one.name] = np.insert(column, places, given.get(one.name, column[places]))
    moved = np.arange(len(tasks)) + np.searchsorted(places, np.arange(len(tasks)), side="right")
    is_task = columns["waiting"] == Waiting.TASK
    columns["waits_for"] = np.where(is_task, moved[np.where(is_task, columns["waits_for"], 0)], columns["waits_for"])
    return replace(
        graph,
        tasks=Tasks(**columns),
        edges=replace(edges, before=moved[edges.before], after=moved[edges.after]),
        names=(*graph.names, "collective of tensor-parallel ranks"),
        last={rank: int(moved[task]) if task != UNKNOWN else task for rank, task in graph.last.items()},
    )
