"""Layers of stages that are too short to repeat: all stages have the layers of the inner ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from planner.measure.traces.change.layout import Direction, Layout, Pass
from planner.measure.traces.change.template import RankTemplate, Segment, Tasks
from planner.measure.traces.events import UNKNOWN
from planner.measure.traces.structure import Role

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
    found: list[tuple[RankTemplate, Pass, tuple[Segment, ...]]] = []
    for template in templates:
        for one, segments in template.passes.items():
            cut = _cut(tasks, _flat(segments), one, layout, kinds)
            if cut is None:
                return False
            found.append((template, one, cut))
    for template, one, cut in found:
        template.passes[one] = cut
    return True


def _flat(segments: Sequence[Segment]) -> list[int]:
    return [task for segment in segments for task in segment.tasks]


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
) -> tuple[Segment, ...] | None:
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
    segments, place = [], 0
    for role, layer, length in ordered:
        start, left = place, length
        while place < len(hosts) and (left > 0 or not _signature(tasks, hosts[place : place + 1])):
            left -= len(_signature(tasks, hosts[place : place + 1]))
            place += 1
        segments.append(Segment(role, layer, tuple(hosts[start:place])))
    return tuple(segments)
