"""Circular waits of tasks: found, and broken where the recording shows that no task waited."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from heapq import heapify, heappop, heappush

import numpy as np
from numpy.typing import NDArray

from planner.measure.traces.events import UNKNOWN, Integers
from planner.measure.traces.graph import Dependency, Edges, ExecutionGraph, Waiting
from planner.measure.traces.replay import find_awaited, find_recorded_durations, take_recorded_times

WAITS: dict[int, str] = {
    Dependency.EVENT: "a stream for an event",
    Dependency.THREAD: "a thread for another task",
    Dependency.ADDED: "one task for another",
    Dependency.PROCESSORS: "a kernel for free processors",
}
"""
Dependencies that can be dropped, as they are called in messages. A launch is kept: nothing runs before its launch.
"""

LONGEST_NAME = 60
"""Characters of a name in a sentence."""


def break_circles(graph: ExecutionGraph) -> ExecutionGraph:
    """
    Break circular waits, with a doubt on the dropped waits.

    Traces have circular waits where their clocks disagree, numbers are used twice, or a wait was inferred from a
    coincidence. Tasks of one track never wait in a circle, nor do launches and the tasks that they launch: only waits
    between tracks close one. Where nothing can run any more, the task that ran first in the recording does not wait,
    since the task that it would wait for ran later. So each replay of the graph ends, whatever the durations of its
    tasks.

    Parameters
    ----------
    graph
        Any graph; every function that adds edges to one ends with this.
    """
    waits = _Waits(graph)
    dropped = waits.find_closing_links()
    return waits.without(dropped) if dropped.any() else graph


class _Waits:
    """
    All waits of a graph, as links between moments.

    A moment is the start of a task, the end of one that waits or joins a collective, or the begin of a collective.
    Other tasks need no moment for their end, since nothing happens between the two. ``soft`` links can be dropped.
    """

    def __init__(self, graph: ExecutionGraph) -> None:
        tasks, edges = graph.tasks, graph.edges
        number = len(tasks)
        self.graph = graph
        joins = tasks.collective != UNKNOWN
        waits = tasks.waiting != Waiting.NOTHING
        split = np.flatnonzero(joins | waits)
        self.end = np.arange(number)
        self.end[split] = number + np.arange(len(split))
        members = np.flatnonzero(joins)
        collectives, place = np.unique(tasks.collective[members], return_inverse=True)
        begin = number + len(split) + place
        self.number = number + len(split) + len(collectives)
        previous = graph.previous()
        follows = np.flatnonzero(previous != UNKNOWN)
        launch = edges.dependency == Dependency.LAUNCH
        hosts, awaiteds = self._host_waits()
        hard = [
            (self.end[previous[follows]], follows),
            (split, self.end[split]),
            (edges.before[launch], edges.after[launch]),
            (begin, self.end[members]),
        ]
        self.edge = np.flatnonzero(~launch)
        soft = [
            (self.end[edges.before[~launch]], edges.after[~launch]),
            (awaiteds, self.end[hosts]),
            (members, begin),
        ]
        self.num_hard = sum(len(before) for before, _ in hard)
        self.before = np.concatenate([before for before, _ in [*hard, *soft]]).astype(np.int64)
        self.after = np.concatenate([after for _, after in [*hard, *soft]]).astype(np.int64)
        """Links: hard ones, edges, waits of threads, and of collectives for their members."""
        self.hosts, self.members = hosts, members
        when = np.zeros(self.number, dtype=np.int64)
        when[self.end] = take_recorded_times(graph).end
        when[:number] = tasks.start
        np.maximum.at(when, begin, tasks.start[members])
        self.when = when.tolist()

    def _host_waits(self) -> tuple[Integers, Integers]:
        """Return calls that wait, and the moments at which the awaited tasks end."""
        tasks = self.graph.tasks
        pairs = [(task, place) for task, last in find_awaited(self.graph).items() for _, place in last]
        one = np.flatnonzero(tasks.waiting == Waiting.TASK)
        pairs += zip(one.tolist(), tasks.waits_for[one].tolist(), strict=True)
        host, place = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        return host, self.end[place]

    def find_closing_links(self) -> NDArray[np.bool_]:
        """
        Return a mask of the droppable links that close a circle.

        A moment is reached once all before it are (Kahn's algorithm). Where none can be reached, the earliest recorded
        moment that only droppable links hold back is reached without them.
        """
        place = np.array(self._order(), dtype=np.int64)
        closing: NDArray[np.bool_] = place[self.before] >= place[self.after]
        return closing[self.num_hard :]

    def _order(self) -> list[int]:
        """Return the place of each moment in an order that all links keep except those that close a circle."""
        by_before = np.argsort(self.before, kind="stable")
        first = np.searchsorted(self.before[by_before], np.arange(self.number + 1)).tolist()
        after, is_hard = self.after[by_before].tolist(), (by_before < self.num_hard).tolist()
        hard = np.bincount(self.after[: self.num_hard], minlength=self.number).tolist()
        soft = np.bincount(self.after[self.num_hard :], minlength=self.number).tolist()
        place, number = [UNKNOWN] * self.number, 0
        come = [moment for moment in range(self.number) if not hard[moment] and not soft[moment]]
        waiting: list[tuple[int, int]] | None = None
        while True:
            while come:
                moment = come.pop()
                place[moment] = number
                number += 1
                for link in range(first[moment], first[moment + 1]):
                    other = after[link]
                    if is_hard[link]:
                        hard[other] -= 1
                    else:
                        soft[other] -= 1
                    if hard[other] or place[other] != UNKNOWN:
                        continue
                    if not soft[other]:
                        come.append(other)
                    elif waiting is not None and is_hard[link]:
                        heappush(waiting, (self.when[other], other))
            if waiting is None:
                waiting = [
                    (self.when[one], one) for one in range(self.number) if place[one] == UNKNOWN and not hard[one]
                ]
                heapify(waiting)
            while waiting and place[waiting[0][1]] != UNKNOWN:
                heappop(waiting)
            if not waiting:
                return place
            come.append(heappop(waiting)[1])

    def without(self, dropped: NDArray[np.bool_]) -> ExecutionGraph:
        """Return the graph without some of the droppable links."""
        graph, tasks = self.graph, self.graph.tasks
        of_edges, of_hosts, of_members = np.split(dropped, np.cumsum([len(self.edge), len(self.hosts)]))
        kept = np.ones(len(graph.edges), dtype=bool)
        kept[self.edge[of_edges]] = False
        free = np.unique(self.hosts[of_hosts])
        alone = np.flatnonzero(np.isin(tasks.collective, np.unique(tasks.collective[self.members[of_members]])))
        alone = alone[tasks.collective[alone] != UNKNOWN]
        waiting, waits_for, collective = tasks.waiting.copy(), tasks.waits_for.copy(), tasks.collective.copy()
        duration = tasks.duration.copy()
        duration[alone] = find_recorded_durations(graph)[alone]  # they count from their own begin now, without a wait
        waiting[free], waits_for[free] = Waiting.NOTHING, UNKNOWN
        doubt = self._doubt(graph.edges[~kept], free, alone)
        collective[alone] = UNKNOWN
        changed = replace(tasks, waiting=waiting, waits_for=waits_for, collective=collective, duration=duration)
        return replace(graph, tasks=changed, edges=graph.edges[kept], doubts=(*graph.doubts, doubt))

    def _doubt(self, edges: Edges, hosts: Integers, members: Integers) -> str:
        """Describe the dropped waits in a sentence."""
        tasks, name = self.graph.tasks, self._name
        kinds = Counter(edges.dependency.tolist())
        found = [f"{kinds[kind]:,} of {what}" for kind, what in WAITS.items() if kinds[kind]]
        if len(hosts):
            found.append(f"{len(hosts):,} of a thread for a stream")
        if len(members):
            found.append(f"{len(np.unique(tasks.collective[members])):,} of a collective for its other ranks")
        examples = [
            f"'{name(after)}' for '{name(before)}'"
            for before, after in zip(edges.before[:1], edges.after[:1], strict=True)
        ]
        examples += [f"'{name(one)}' for a stream" for one in hosts[:1]]
        examples += [f"'{name(one)}' for its other ranks" for one in members[:1]]
        return (
            f"Tasks wait for each other in circles. The one that ran first when it was recorded is assumed not to have "
            f"waited, which drops waits: {', '.join(found)}; such as {examples[0]}."
        )

    def _name(self, task: int) -> str:
        return self.graph.names[int(self.graph.tasks.name[task])][:LONGEST_NAME]
