"""The graph of another layout: layers, micro-batches, stages and replicas dealt out anew."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from costmodel.errors import SpecError
from costmodel.traces.change.layout import Direction, Layout, Network, Pass
from costmodel.traces.change.likeness import with_layers
from costmodel.traces.change.template import RankTemplate, Segment, Tasks, rank_template
from costmodel.traces.change.writer import RankWriter, Written
from costmodel.traces.events import UNKNOWN, Message, Track
from costmodel.traces.graph import ExecutionGraph
from costmodel.traces.structure import Parts, Role

ENDS: Mapping[Direction, tuple[Role, Role]] = {
    "forward": (Role.EMBEDDING, Role.HEAD),
    "backward": (Role.HEAD, Role.EMBEDDING),
}
"""What comes before and behind the layers of a pass on the ranks that have it."""


def rebuilt(
    graph: ExecutionGraph,
    parts: Sequence[Parts],
    before: Layout,
    after: Layout,
    *,
    network: Network,
    parameters: float | None = None,
    layer_gradients: Message | None = None,
    activations: Message | None = None,
) -> ExecutionGraph:
    """
    The graph of one replica of another layout, made of the recorded one (Lumos, arXiv 2504.09307).

    Each pass of each stage is put together from recorded layers, in the order of the schedule; what a layer did with
    its micro-batch is copied with its launches and waits. Receives are posted as early as they were, sends follow their
    pass, the optimizer waits for sends and gradients.

    Parameters
    ----------
    graph, parts
        The recorded iteration, and what each event of its traces is part of.
    before, after
        Its layout and the wanted one.
    network
        What messages take.
    parameters
        Parameters of a rank over those before, by which an optimizer's time grows where it does not go layer by layer;
        None: as the number of its layers.
    layer_gradients
        What replicas reduce of a layer, where there were none in the recorded job.
    activations
        What a stage sends to the next one, where there was none in the recorded job.

    Raises
    ------
    SpecError
        If the traces do not fit the layout.
    """
    return _Rebuilding(graph, parts, before, after, network, parameters, layer_gradients, activations).graph()


class _Rebuilding:
    def __init__(
        self,
        graph: ExecutionGraph,
        parts: Sequence[Parts],
        before: Layout,
        after: Layout,
        network: Network,
        parameters: float | None,
        layer_gradients: Message | None,
        activations: Message | None,
    ) -> None:
        self.source, self.before, self.after, self.network = graph, before, after, network
        self.parameters, self.layer_gradients = parameters, layer_gradients
        self.activations = activations or Message(operation="send")
        self.tasks = Tasks(graph, parts)
        self.templates = [
            rank_template(self.tasks, rank, stage, before) for stage, rank in enumerate(pipeline_ranks(graph, before))
        ]
        self.layers, self.dealt = self._recorded_layers(), after.layers()
        self.inside = self._groups_of_forward_passes()
        self.gradient_starts = {
            host for host, launched in self.tasks.launched.items() if any(self.is_gradient(each) for each in launched)
        }
        self.written = Written()
        self.arrivals: dict[tuple[int, Pass], int] = {}
        self.collectives: dict[tuple[Direction, int, int], int] = {}
        self.doubts: list[str] = []

    def graph(self) -> ExecutionGraph:
        for rank in range(self.after.pp):
            self._rank(rank)
        return self.written.graph(self.source, self.doubts)

    # --- what was recorded -------------------------------------------------------------------------------------

    def _recorded_layers(self, *, may_guess: bool = True) -> Mapping[tuple[Direction, int], Mapping[int, Segment]]:
        """Segments of each layer of the model, by direction, and by micro-batch."""
        counts: dict[int, int] = {}
        for template in self.templates:
            for one, segments in template.passes.items():
                number = len({segment.layer for segment in segments if segment.role == Role.LAYER})
                counts[one.stage] = max(number, counts.get(one.stage, 0))
        total = sum(counts.values())
        if total != self.before.num_layers and may_guess and with_layers(self.tasks, self.templates, self.before):
            return self._recorded_layers(may_guess=False)
        if total != self.before.num_layers:
            raise SpecError("layers", f"is {self.before.num_layers}, but the traces show {total}.")
        first = {stage: sum(counts[other] for other in range(stage)) for stage in counts}
        found: dict[tuple[Direction, int], dict[int, Segment]] = defaultdict(dict)
        for template in self.templates:
            for one, segments in template.passes.items():
                own = sorted({segment.layer for segment in segments if segment.role == Role.LAYER})
                for segment in segments:
                    if segment.role == Role.LAYER:
                        layer = first[one.stage] + own.index(segment.layer)
                        found[one.direction, layer][one.microbatch] = segment
        return found

    def _groups_of_forward_passes(self) -> set[object]:
        """Groups that communicate in forward passes: they are no replicas'."""
        found: set[object] = set()
        for template in self.templates:
            for one, segments in template.passes.items():
                if one.direction == "forward":
                    hosts = (task for segment in segments for task in segment.tasks)
                    launched = (each for host in hosts for each in self.tasks.launched.get(host, ()))
                    found.update(_group(message) for each in launched if (message := self.tasks.message(each)))
        return found

    def is_gradient(self, task: int) -> bool:
        """Whether a recorded communication reduces gradients."""
        message = self.tasks.message(task)
        if message is None or message.operation in ("send", "recv"):
            return False
        return _group(message) not in self.inside and message.operation in ("all_reduce", "reduce_scatter")

    def retimed(self, task: int) -> int:
        """Nanoseconds of a copied communication: those of gradients by the number of replicas."""
        message, traced = self.tasks.message(task), int(self.source.tasks.duration[task])
        if message is None or not self.is_gradient(task) or self.before.dp == self.after.dp:
            return traced
        old, new = (
            self.network.nanoseconds(message, purpose="dp", ranks=each.dp) for each in (self.before, self.after)
        )
        return traced + new - old if old == traced else round(traced * new / max(1, old))

    # --- what is written ---------------------------------------------------------------------------------------

    def _rank(self, rank: int) -> None:
        template = self._like(rank)
        writer = RankWriter(self.written, self.tasks, rank, self.retimed, self.is_gradient)
        self.written.begins[rank] = 0
        self.written.device_free[rank] = 0
        passes = self.after.passes(rank)
        lookahead = max((early for one in self.templates for early in one.posted_early), default=0)
        writer.put(template.begin)
        posted = 0
        for number, one in enumerate(passes):
            while posted < min(len(passes), number + 1 + lookahead):
                self._receive(writer, passes[posted])
                posted += 1
            self._pass(writer, template, one, is_last=self._ends(passes, number))
            if self.after.sends(one):
                writer.open.append(self._transfer(writer, "send", one))
        self._end(writer, template, rank)

    def _ends(self, passes: Sequence[Pass], number: int) -> bool:
        """Whether a pass is the last backward pass of its stage."""
        one = passes[number]
        return one.direction == "backward" and all(
            (other.direction, other.stage) != (one.direction, one.stage) for other in passes[number + 1 :]
        )

    def _like(self, rank: int) -> RankTemplate:
        """The recorded rank whose place in the pipeline is most alike."""
        if rank == 0:
            return self.templates[0]
        if rank == self.after.pp - 1:
            return self.templates[-1]
        between = self.templates[1:-1] or self.templates
        return between[min(len(between) - 1, rank - 1)]

    def _receive(self, writer: RankWriter, one: Pass) -> None:
        if self.after.receives(one):
            self.arrivals[writer.rank, one] = self._transfer(writer, "recv", one)

    def _transfer(self, writer: RankWriter, operation: Literal["send", "recv"], one: Pass) -> int:
        """A send behind its pass, or a receive in front of it."""
        step = 1 if one.direction == "forward" else -1
        boundary = one.stage if operation == "send" else one.stage - step
        number = self.collectives.setdefault((one.direction, boundary, one.microbatch), len(self.collectives))
        units = [unit for each in self.templates for unit in each.transfers.get((operation, one.direction), ())]
        if units:
            return writer.put_transfer(units[min(one.microbatch, len(units) - 1)], number)
        message = replace(self.activations, operation=operation, description="pipeline", num_ranks=2)
        duration = self.network.nanoseconds(message, purpose="pp", ranks=2)
        return writer.put_message(
            message, Track("stream", "pipeline", f"{operation} {one.direction}"), duration, number
        )

    def _pass(self, writer: RankWriter, template: RankTemplate, one: Pass, *, is_last: bool) -> None:
        received = self.arrivals.pop((writer.rank, one), None)
        if received is not None:
            writer.put(self._need(template, one))
            writer.arrived.append(received)
        first, last = ENDS[one.direction]
        layers = self.dealt[one.stage]
        ordered = layers if one.direction == "forward" else reversed(layers)
        is_first_stage, is_last_stage = one.stage == 0, one.stage == self.after.num_stages - 1
        has_front, has_back = (is_first_stage, is_last_stage)[:: 1 if one.direction == "forward" else -1]
        self._put(writer, self._at_edge(template, one, Role.OTHER), one, is_last)
        if has_front:
            self._put(writer, self._at_edge(self._holder(first), one, first), one, is_last)
        for layer in ordered:
            found = self.layers[one.direction, self._recorded_layer(layer)]
            self._put(writer, found, one, is_last)
            if is_last and self.layer_gradients is not None and self.before.dp == 1 < self.after.dp:
                message = self.layer_gradients
                duration = self.network.nanoseconds(message, purpose="dp", ranks=self.after.dp)
                writer.pending.append(writer.put_message(message, Track("stream", "replicas", "gradients"), duration))
        if has_back:
            self._put(writer, self._at_edge(self._holder(last), one, last), one, is_last)

    def _need(self, template: RankTemplate, one: Pass) -> Sequence[int]:
        """The call by which a stream waits for what was received."""
        calls = [call for each in (template, *self.templates) for call in each.needs.get(one.direction, ())]
        return calls[:1]

    def _holder(self, role: Role) -> RankTemplate:
        return self.templates[0] if role == Role.EMBEDDING else self.templates[-1]

    def _at_edge(self, template: RankTemplate, one: Pass, role: Role) -> Mapping[int, Segment]:
        """Segments of a rank's passes in one direction that are of no layer, by micro-batch."""
        found = {}
        for other, segments in template.passes.items():
            own = [task for segment in segments if segment.role == role for task in segment.tasks]
            if other.direction == one.direction and own:
                found[other.microbatch] = Segment(role, UNKNOWN, tuple(own))
        return found

    def _recorded_layer(self, layer: int) -> int:
        """Which recorded layer stands for one: the first and the last for themselves, those between in turn."""
        old, new = self.before.num_layers, self.after.num_layers
        if old == new or layer == 0:
            return layer
        if layer == new - 1:
            return old - 1
        return 1 + (layer - 1) % (old - 2) if old > 2 else layer % old

    def _put(self, writer: RankWriter, found: Mapping[int, Segment], one: Pass, is_last: bool) -> None:
        """A segment of the micro-batch that is most alike: only the last backward pass reduces gradients."""
        if not found:
            return
        numbers = sorted(found)
        if is_last:
            number = numbers[-1]
        elif one.microbatch in found and (one.direction == "forward" or one.microbatch != numbers[-1]):
            number = one.microbatch
        else:
            number = (numbers[:-1] or numbers)[-1]
        tasks = list(found[number].tasks)
        if one.direction == "backward" and (not is_last or self.after.dp == 1):
            tasks = self._without_gradients(tasks)
        writer.put(tasks)

    def _without_gradients(self, tasks: list[int]) -> list[int]:
        dropped = {place for unit in self._gradient_units(tasks) for place in unit}
        return [task for place, task in enumerate(tasks) if place not in dropped]

    def _gradient_units(self, tasks: Sequence[int]) -> list[range]:
        """Places of the tasks that start reductions of gradients."""
        starts = [place for place, task in enumerate(tasks) if task in self.gradient_starts]
        return [self.tasks.unit(tasks, place) for place in starts]

    # --- behind the passes -------------------------------------------------------------------------------------

    def _end(self, writer: RankWriter, template: RankTemplate, rank: int) -> None:
        end = template.end
        units = self._gradient_units(end)
        in_unit = {place: number for number, unit in enumerate(units) for place in unit}
        waits = [place for place, task in enumerate(end) if self.tasks.is_wait[task] and place not in in_unit]
        updates = [place for place, task in enumerate(end) if self.tasks.is_update(task)]
        layers, traced = self._layers_of(self.after, rank), self._layers_of(self.before, template.stage)
        first_update = updates[0] if updates else 0
        waits_for_all = len(waits) == self._num_open(template, units)
        done: set[str] = set()
        for place, task in enumerate(end):
            if place in in_unit:
                if "gradients" not in done and self.after.dp > 1:
                    self._put_units(writer, end, units, len(layers) / len(traced))
                done.add("gradients")
            elif place in waits:
                number = len(writer.open) if waits_for_all else len(waits)
                if "waits" not in done:
                    writer.put(end[waits[min(one, len(waits) - 1)]] for one in range(number))
                done.add("waits")
            elif place in updates:
                if place == first_update:
                    writer.arrived += writer.pending
                    writer.pending = []
                    self._put_updates(writer, rank, template)
            else:
                writer.put([task])
        if writer.tasks.graph.last.get(template.rank) is not None:
            self.written.last[rank] = writer.last_host

    def _layers_of(self, layout: Layout, rank: int) -> list[int]:
        dealt = layout.layers()
        return [layer for stage in layout.stages(rank) for layer in dealt[stage]]

    def _num_open(self, template: RankTemplate, units: Sequence[range]) -> int:
        """Sends and reductions of gradients of a recorded rank."""
        sends = sum(len(those) for (operation, _), those in template.transfers.items() if operation == "send")
        hosts = [task for segments in template.passes.values() for each in segments for task in each.tasks]
        return sends + len(units) + len(self._gradient_units(hosts))

    def _put_units(self, writer: RankWriter, end: Sequence[int], units: Sequence[range], more: float) -> None:
        for number in range(round(len(units) * more)):
            unit = units[min(number, len(units) - 1)]
            writer.put(end[place] for place in unit)

    def _put_updates(self, writer: RankWriter, rank: int, template: RankTemplate) -> None:
        """The optimizer: layer by layer where it goes so, else as much longer as there are more parameters."""
        of_layer: dict[int, list[int]] = {}
        for each in self.templates:
            own = [task for task in each.end if self.tasks.is_update(task)]
            own_layers = self._layers_of(self.before, each.stage)
            launches = [task for task in own if self.tasks.launched.get(task)]
            if len(own) != len(launches) or not own or len(own) % len(own_layers):
                of_layer = {}
                break
            size = len(own) // len(own_layers)
            for number, layer in enumerate(own_layers):
                of_layer[layer] = own[number * size : (number + 1) * size]
        layers = self._layers_of(self.after, rank)
        if of_layer:
            for layer in layers:
                writer.put(of_layer[self._recorded_layer(layer)])
            return
        before = self._layers_of(self.before, template.stage)
        scale = self.parameters if self.parameters is not None else len(layers) / len(before)
        writer.put((task for task in template.end if self.tasks.is_update(task)), scale)


def _group(message: Message) -> object:
    """What tells one group of ranks from another."""
    return message.ranks or message.group or message.description


def pipeline_ranks(graph: ExecutionGraph, layout: Layout) -> tuple[int, ...]:
    """
    Recorded ranks of one replica's stages, from the first one.

    Raises
    ------
    SpecError
        If not all stages of a replica were recorded.
    """
    ranks = graph.ranks
    if layout.pp == 1:
        return ranks[:1]
    peers: dict[int, set[int]] = defaultdict(set)
    for number in range(len(graph.tasks)):
        place = int(graph.tasks.message[number])
        if place == UNKNOWN:
            continue
        message = graph.messages[place]
        if message.operation in ("send", "recv") and message.peer != UNKNOWN:
            peers[graph.tracks[int(graph.tasks.track[number])].rank].add(message.peer)
    found = [ranks[0]]
    for rank in found:
        found += sorted(other for other in peers.get(rank, ()) if other not in found)
    missing = [rank for rank in found if rank not in ranks]
    silent = sum(message.operation in ("send", "recv", "") for message in graph.messages)
    if silent and not peers:
        raise SpecError(
            "traces",
            f"do not say to whom they send and from whom they receive: the stages of a pipeline of {layout.pp} cannot "
            "be joined.",
            "Profilers say it of single sends and receives, not of batches of them: send and receive one by one.",
        )
    if len(found) != layout.pp or missing:
        raise SpecError(
            "traces",
            f"have {len(found) - len(missing)} stages of a pipeline of {layout.pp}: one rank of each stage is needed.",
            f"ranks without a trace: {missing}" if missing else "",
        )
    return tuple(sorted(found))
