"""Graph of another layout: layers, micro-batches, stages and replicas distributed anew."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from costmodel.errors import SpecError
from planner.measure.traces.change.layout import (
    REDUCTIONS,
    Direction,
    Layout,
    Network,
    Pass,
    Replicas,
    find_slowest_replica,
)
from planner.measure.traces.change.template import (
    RankTemplate,
    RankWriter,
    Tasks,
    Written,
    find_layers_by_inner_stages,
    rank_template,
)
from planner.measure.traces.events import Message, Track
from planner.measure.traces.graph import ExecutionGraph
from planner.measure.traces.replay import align_begins, break_circles
from planner.measure.traces.structure import Parts, Role

ENDS: Mapping[Direction, tuple[Role, Role]] = {
    "forward": (Role.EMBEDDING, Role.HEAD),
    "backward": (Role.HEAD, Role.EMBEDDING),
}
"""Part of the model before and after the layers of a pass, on the ranks that have it."""

ByMicrobatch: TypeAlias = Mapping[int, Sequence[int]]
"""Tasks of one part of the model, by micro-batch."""


def rebuild_graph(
    graph: ExecutionGraph,
    parts: Sequence[Parts],
    before: Layout,
    after: Layout,
    *,
    network: Network | None = None,
    parameters: float | None = None,
    layer_gradients: Message | None = None,
    activations: Message | None = None,
) -> ExecutionGraph:
    """
    Build the graph of one replica of another layout from a recorded one (Lumos, arXiv 2504.09307).

    Each pass of each stage is assembled from recorded layers, in the order of the schedule. A layer's tasks for a
    micro-batch are copied with their launches and waits. Receives are posted as early as they were recorded, sends
    follow their pass, and the optimizer waits for sends and gradients. All ranks begin at once; see
    :func:`planner.measure.traces.replay` for their begins in a longer run.

    Parameters
    ----------
    graph, parts
        The recorded iteration, and the parts of its traces' events.
    before, after
        Recorded and wanted layout.
    network
        Times of messages; None where only layers and micro-batches change, which keep the recorded ones.
    parameters
        Parameters of a rank over those before, which scale the optimizer's time where it does not run layer by layer;
        None scales it with the number of layers.
    layer_gradients
        Reduction of a layer's gradients over replicas, where the recorded job has none.
    activations
        Message from one stage to the next, where the recorded job has none.

    Raises
    ------
    SpecError
        If the traces do not fit the layout.
    """
    own = align_begins(graph)
    return _Rebuilding(own, parts, before, after, network, parameters, layer_gradients, activations).graph()


@dataclass
class _Rebuilding:
    source: ExecutionGraph
    parts: Sequence[Parts]
    before: Layout
    after: Layout
    network: Network | None
    parameters: float | None
    layer_gradients: Message | None
    activations: Message | None

    def __post_init__(self) -> None:
        self.tasks = Tasks(self.source, self.parts)
        ranks, doubts = find_slowest_replica(self.source, self.before)
        self.templates = [rank_template(self.tasks, rank, stage, self.before) for stage, rank in enumerate(ranks)]
        self.layers, self.dealt = self._find_recorded_layers(), self.after.layers()
        self.replicas = Replicas(self.source, self.parts, self.before.dp)
        self.is_alone = self.before.dp > 1 == self.after.dp
        self.updated = self.before.dp / self.after.dp if self.replicas.gather else 1.0
        self.starts = self._starts(())
        self.reductions = self._starts(REDUCTIONS)
        self.written = Written()
        self.arrivals: dict[tuple[int, Pass], int] = {}
        self.collectives: dict[tuple[Direction, int, int], int] = {}
        self.doubts: dict[str, None] = dict.fromkeys((*doubts, *self._doubts()))

    def graph(self) -> ExecutionGraph:
        for rank in range(self.after.pp):
            self._rank(rank)
        return break_circles(self.written.graph(self.source, self.doubts))

    # --- what was recorded -------------------------------------------------------------------------------------

    def _find_recorded_layers(self, *, may_guess: bool = True) -> Mapping[tuple[Direction, int], ByMicrobatch]:
        """Return the tasks of each layer of the model, by direction and layer, and by micro-batch."""
        counts: dict[int, int] = {}
        for template in self.templates:
            for one, segments in template.passes.items():
                number = sum(role == Role.LAYER for role, _ in segments)
                counts[one.stage] = max(number, counts.get(one.stage, 0))
        total = sum(counts.values())
        if (
            total != self.before.num_layers
            and may_guess
            and find_layers_by_inner_stages(self.tasks, self.templates, self.before)
        ):
            return self._find_recorded_layers(may_guess=False)
        if total != self.before.num_layers:
            few = f"of which {total} have their own tasks: the others share theirs, as compiled layers do"
            problem = few if total < self.before.num_layers else f"but the traces have tasks of {total}"
            hint = "Record the run without compilation" if total < self.before.num_layers else f"Give layers={total}"
            raise SpecError("layers", f"is {self.before.num_layers}, {problem}.", f"{hint}, or change other settings.")
        first = {stage: sum(counts[other] for other in range(stage)) for stage in counts}
        found: dict[tuple[Direction, int], dict[int, Sequence[int]]] = defaultdict(dict)
        for template in self.templates:
            for one, segments in template.passes.items():
                own = sorted((layer, tasks) for (role, layer), tasks in segments.items() if role == Role.LAYER)
                for layer, (_, tasks) in enumerate(own, start=first[one.stage]):
                    found[one.direction, layer][one.microbatch] = tasks
        return found

    def _starts(self, operations: Sequence[str]) -> set[int]:
        """Return host tasks that launch data-parallel communication: of some operations, or of all if none is given."""
        found = set()
        for host, launched in self.tasks.launched.items():
            messages = [message for each in launched if (message := self.tasks.message(each))]
            if any(self.replicas.have(one) and one.operation in (operations or (one.operation,)) for one in messages):
                found.add(host)
        return found

    def _doubts(self) -> Iterator[str]:
        if self.before.dp != self.after.dp:
            if self.before.dp > 1 and not self.replicas.groups:
                yield f"The job has dp = {self.before.dp}, but no communication of replicas was found in the traces."
            for size in sorted(self.replicas.unclear):
                yield (
                    f"{size} ranks gather in forward passes and reduce after them, but the job has dp = "
                    f"{self.before.dp}: their times are kept."
                )
        if self.before.num_layers != self.after.num_layers and self._has_buckets():
            yield (
                "Gradients of several layers are reduced at once: the number of other layers' reductions follows from "
                "that of the layers from which they are copied."
            )
        if self.is_alone and self.replicas.are_sharded:
            yield "Data-parallel communication is removed; copies into and out of its buffers are kept."

    def _has_buckets(self) -> bool:
        """Return True if some layers start more reductions in the last backward pass than others."""
        last = [found[max(found)] for (direction, _), found in self.layers.items() if direction == "backward"]
        return len({sum(task in self.reductions for task in tasks) for tasks in last}) > 1

    def is_gradient(self, task: int) -> bool:
        """Return True if a recorded communication reduces gradients, for which the optimizer waits."""
        message = self.tasks.message(task)
        if message is None or not self.replicas.have(message) or self.replicas.are_sharded:
            return False
        return message.operation in REDUCTIONS

    def nanoseconds_of_copy(self, task: int) -> int:
        """Return the nanoseconds of a copied communication; those of replicas are scaled to their number."""
        message, traced = self.tasks.message(task), int(self.source.tasks.duration[task])
        if message is None or self.before.dp == self.after.dp or not self.replicas.have(message):
            return traced
        if not max(message.elements_in, message.elements_out):
            self.doubts["Sizes of data-parallel communication were not recorded: its times are kept."] = None
            return traced
        old, new = (self._message_nanoseconds(message, "dp", each.dp) for each in (self.before, self.after))
        return round(traced * new / old) if old > 0 else new

    def _message_nanoseconds(self, message: Message, purpose: Literal["pp", "dp"], ranks: int) -> int:
        assert self.network is not None, "without a network pp and dp stay"
        return self.network(message, purpose, ranks)

    # --- what is written ---------------------------------------------------------------------------------------

    def _rank(self, rank: int) -> None:
        template = self._find_similar_template(rank)
        writer = RankWriter(self.written, self.tasks, rank, self.nanoseconds_of_copy, self.is_gradient)
        passes = self.after.passes(rank)
        lookahead = max((early for one in self.templates for early in one.posted_early), default=0)
        writer.put(self._keep_tasks(template.begin))
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
        """Return True if a pass is the last backward pass of its stage."""
        one = passes[number]
        return one.direction == "backward" and all(
            (other.direction, other.stage) != (one.direction, one.stage) for other in passes[number + 1 :]
        )

    def _find_similar_template(self, rank: int) -> RankTemplate:
        """Return the recorded rank with the most similar place in the pipeline."""
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
        """Write a send after its pass, or a receive in front of it."""
        step = 1 if one.direction == "forward" else -1
        boundary = one.stage if operation == "send" else one.stage - step
        number = self.collectives.setdefault((one.direction, boundary, one.microbatch), len(self.collectives))
        units = [unit for each in self.templates for unit in each.transfers.get((operation, one.direction), ())]
        if units:
            return writer.put_transfer(units[min(one.microbatch, len(units) - 1)], number)
        activations = self.activations or Message(operation=operation)
        message = replace(activations, operation=operation, description="pipeline", num_ranks=2)
        duration = self._message_nanoseconds(message, "pp", 2)
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
        self._put_others(writer, template, one, is_last)
        if has_front:
            self._put(writer, self._tasks_of_role(self._holder(first), one, first), one, is_last)
        for layer in ordered:
            found = self.layers[one.direction, self._find_copied_layer(layer)]
            self._put(writer, found, one, is_last)
            if is_last and self.layer_gradients is not None and self.before.dp == 1 < self.after.dp:
                message = self.layer_gradients
                duration = self._message_nanoseconds(message, "dp", self.after.dp)
                writer.pending.append(writer.put_message(message, Track("stream", "replicas", "gradients"), duration))
        if has_back:
            self._put(writer, self._tasks_of_role(self._holder(last), one, last), one, is_last)

    def _need(self, template: RankTemplate, one: Pass) -> Sequence[int]:
        """Return the call by which a stream waits for a received message."""
        calls = [call for each in (template, *self.templates) for call in each.needs.get(one.direction, ())]
        return calls[:1]

    def _holder(self, role: Role) -> RankTemplate:
        return self.templates[0] if role == Role.EMBEDDING else self.templates[-1]

    def _tasks_of_role(self, template: RankTemplate, one: Pass, role: Role) -> ByMicrobatch:
        """Return the tasks of one role in a rank's passes of one direction, by micro-batch."""
        found = {}
        for other, segments in template.passes.items():
            own = [task for (of, _), tasks in segments.items() if of == role for task in tasks]
            if other.direction == one.direction and own:
                found[other.microbatch] = own
        return found

    def _find_copied_layer(self, layer: int) -> int:
        """Return the recorded layer to copy for a layer: first for first, last for last, inner ones in turn."""
        old, new = self.before.num_layers, self.after.num_layers
        if old == new or layer == 0:
            return layer
        if layer == new - 1:
            return old - 1
        return 1 + (layer - 1) % (old - 2) if old > 2 else layer % old

    def _put_others(self, writer: RankWriter, template: RankTemplate, one: Pass, is_last: bool) -> None:
        """Write the tasks of a pass outside of the model's parts, if a pass of this kind has them."""
        numbers = sorted({other.microbatch for other in template.passes if other.direction == one.direction})
        like = self._find_similar_microbatch(numbers, one, is_last)
        found = self._tasks_of_role(template, one, Role.OTHER)
        if like in found:
            self._put(writer, {like: found[like]}, one, is_last or like != numbers[-1])

    def _find_similar_microbatch(self, numbers: Sequence[int], one: Pass, is_last: bool) -> int:
        """Return the most similar recorded micro-batch: only the last backward pass reduces gradients."""
        if is_last:
            return numbers[-1]
        if one.direction == "forward":
            return one.microbatch if one.microbatch in numbers else numbers[-1]
        if one.microbatch in numbers[:-1]:
            return one.microbatch
        return (numbers[:-1] or numbers)[-1]

    def _put(self, writer: RankWriter, found: ByMicrobatch, one: Pass, is_last: bool) -> None:
        """Write the tasks of the most similar micro-batch."""
        if not found:
            return
        numbers = sorted(found)
        number = self._find_similar_microbatch(numbers, one, is_last)
        tasks = self._keep_tasks(found[number])
        if one.direction == "backward" and not is_last and number == numbers[-1] and not self.replicas.are_sharded:
            tasks = self._drop_units(tasks, self.reductions)
        writer.put(tasks)

    def _keep_tasks(self, tasks: Sequence[int]) -> list[int]:
        """Return tasks, without data-parallel communication where one replica is left."""
        return self._drop_units(tasks, self.starts) if self.is_alone else list(tasks)

    def _drop_units(self, tasks: Sequence[int], starts: set[int]) -> list[int]:
        dropped = {place for unit in self._units(tasks, starts) for place in unit}
        return [task for place, task in enumerate(tasks) if place not in dropped]

    def _units(self, tasks: Sequence[int], starts: set[int]) -> list[range]:
        """Return the places of the tasks that start communication, unit by unit."""
        return [self.tasks.unit(tasks, place) for place, task in enumerate(tasks) if task in starts]

    # --- behind the passes -------------------------------------------------------------------------------------

    def _end(self, writer: RankWriter, template: RankTemplate, rank: int) -> None:
        end = self._keep_tasks(template.end)
        units, waits, updates = self._ending(template)
        in_unit = {place for unit in units for place in unit}
        update = updates[0] if updates else len(end)
        done: set[object] = set()
        for place, task in enumerate(end):
            if place in in_unit:
                side = place > update
                if side not in done:
                    self._put_units(writer, template, [one for one in units if (one.start > update) == side], rank)
                done.add(side)
            elif place in waits:
                waits_for_all = len(waits) == self._num_open(template)
                number = len(writer.open) if waits_for_all else len(waits)
                if "waits" not in done:
                    writer.put(end[waits[min(one, len(waits) - 1)]] for one in range(number))
                done.add("waits")
            elif place in updates:
                if place == update:
                    writer.arrived += writer.pending
                    writer.pending = []
                    self._put_updates(writer, rank, template)
            else:
                writer.put([task])
        if writer.tasks.graph.last.get(template.rank) is not None:
            self.written.last[rank] = writer.last_host

    def _ending(self, template: RankTemplate) -> tuple[list[range], list[int], list[int]]:
        """
        Find places among the tasks after the passes of a recorded rank.

        They are the launches of each data-parallel communication that grows with the model, the calls that make streams
        wait before the update, and the tasks of the optimizer.
        """
        end = self._keep_tasks(template.end)
        units = self._units(end, self.starts)
        inside = {place for unit in units for place in unit}
        waits = [place for place, task in enumerate(end) if self.tasks.is_wait[task] and place not in inside]
        updates = [
            place
            for place, task in enumerate(end)
            if self.tasks.is_update(task) and place not in inside and place not in waits
        ]
        first = updates[0] if updates else len(end)
        growing = [unit for unit in units if self._grows([end[place] for place in unit])]
        return growing, [place for place in waits if place < first], updates

    def _grows(self, unit: Sequence[int]) -> bool:
        """Return True if a unit communicates more than one number, such as a norm or a loss."""
        launched = (each for host in unit for each in self.tasks.launched.get(host, ()))
        messages = [message for each in launched if (message := self.tasks.message(each))]
        return all(max(one.elements_in, one.elements_out) != 1 for one in messages)

    def _layers_of(self, layout: Layout, rank: int) -> list[int]:
        dealt = layout.layers()
        return [layer for stage in layout.stages(rank) for layer in dealt[stage]]

    def _num_open(self, template: RankTemplate) -> int:
        """Return the number of sends and gradient reductions of a recorded rank."""
        sends = sum(len(those) for (operation, _), those in template.transfers.items() if operation == "send")
        hosts = [task for segments in template.passes.values() for tasks in segments.values() for task in tasks]
        return sends + sum(
            task in self.reductions for task in (*self._keep_tasks(hosts), *self._keep_tasks(template.end))
        )

    def _put_units(self, writer: RankWriter, template: RankTemplate, units: Sequence[range], rank: int) -> None:
        """Write data-parallel communication of all layers: more units for more layers, else longer ones."""
        end, traced = self._keep_tasks(template.end), len(self._layers_of(self.before, template.stage))
        more = len(self._layers_of(self.after, rank)) / traced
        if len(units) % traced:
            more = self._more_parameters(more)
        number = max(1, round(len(units) * more))
        for one in range(number):
            unit = units[min(one, len(units) - 1)]
            writer.put((end[place] for place in unit), len(units) * more / number)

    def _more_parameters(self, layers: float) -> float:
        """Return the parameters of a rank over those before, given the ratio of its layers."""
        if self.parameters is None and self.before.num_layers != self.after.num_layers:
            self.doubts[
                "Without a job the times of the optimizer, and of gradients reduced all at once, scale with the number "
                "of layers, although embedding and head do not: pass --job with their sizes."
            ] = None
        return layers if self.parameters is None else self.parameters

    def _put_updates(self, writer: RankWriter, rank: int, template: RankTemplate) -> None:
        """Write the optimizer: layer by layer where it was recorded so, else scaled by the parameters."""
        of_layer: dict[int, list[int]] = {}
        for each in self.templates:
            own = self._updates(each)
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
                writer.put(of_layer[self._find_copied_layer(layer)], self.updated)
            return
        before = self._layers_of(self.before, template.stage)
        writer.put(self._updates(template), self._more_parameters(len(layers) / len(before)) * self.updated)

    def _updates(self, template: RankTemplate) -> list[int]:
        """Return the tasks of a recorded rank's optimizer."""
        end = self._keep_tasks(template.end)
        return [end[place] for place in self._ending(template)[2]]
