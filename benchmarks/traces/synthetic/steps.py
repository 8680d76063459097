"""
Training steps as programs of threads: what each rank of a Megatron-like job calls, launches, sends and waits for.

The main thread runs forward passes, communication between stages, and the optimizer; autograd's thread runs backward
passes, for which the main thread waits. The order of the passes is that of :mod:`costmodel.pipelines.orders`. Each
communication runs on a stream of its own: that stream waits for an event of the compute stream, and what needs the
result waits for an event behind the communication, as PyTorch's process groups do it.
"""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from typing import Any, Literal

from benchmarks.traces.synthetic.machine import Event, Instruction, Lane, Machine
from benchmarks.traces.synthetic.recipe import (
    OPERATORS,
    OPTIMIZER,
    Part,
    Recipe,
    Work,
    holders,
    neighbours,
    parts_of,
    position,
    rank_at,
)
from costmodel.pipelines.orders import NONE, WEIGHT, order, stages_of_rank
from costmodel.strategy import BIDIRECTIONAL
from planner.measure.traces.events import UNKNOWN, Category, Message, Operands, Wait

COMPUTE = "7"

"""The stream that PyTorch computes on, by its number."""

FIRST_COMMUNICATION_STREAM = 20

"""Number of the first stream that communicates; each further one has a number larger by four."""

MAIN, AUTOGRAD = "main", "autograd"

NCCL_KERNELS = {
    "all_reduce": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "all_gather": "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "reduce_scatter": "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "send": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
    "recv": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
}


class Calls:
    """
    Programs of the threads of one rank, so far.

    Parameters
    ----------
    recipe, rank
        Job and rank of the programs.
    """

    def __init__(self, recipe: Recipe, rank: int) -> None:
        self.recipe, self.rank = recipe, rank
        self.threads: dict[str, list[Instruction]] = {MAIN: [], AUTOGRAD: []}
        self.thread = MAIN
        self.step = 0
        self.num_calls = self.num_operators = self.num_signals = 0
        self.operators: list[int] = []
        self.streams: dict[str, str] = {}
        self.recorded_on: dict[int, str] = {}
        self.sent: Counter[str] = Counter()

    def do(self, *instructions: Instruction) -> None:
        """The current thread's next instructions."""
        self.threads[self.thread].extend(instructions)

    def launch(
        self,
        name: str,
        call: str = "cudaLaunchKernel",
        category: Category = Category.KERNEL,
        *,
        layer: int = -1,
        nbytes: int = UNKNOWN,
        shards: int = 1,
    ) -> None:
        """Put a kernel, a copy or a fill on the compute stream."""
        event = self._call(call)
        duration = self.recipe.duration(Work(name, self.rank, layer, event.correlation, shards=shards))
        self.do((Machine.launch, event, self._launched(event, category, name, COMPUTE, duration, nbytes=nbytes)))

    def communicate(self, message: Message, *, channel: str, layer: int = -1) -> int:
        """
        Put a communication on the stream of its channel, behind what is on the compute stream by now.

        Parameters
        ----------
        message
            Message that it sends.
        channel
            All ranks of a communication name it alike; its stream is no other channel's.
        layer
            Layer of the model.

        Returns
        -------
        int
            Correlation of the event behind it, to wait for.
        """
        stream = self.streams.setdefault(channel, str(FIRST_COMMUNICATION_STREAM + 4 * len(self.streams)))
        self.wait(stream, self._record(COMPUTE))
        ranks = message.ranks if message.peer == UNKNOWN else tuple(sorted((self.rank, message.peer)))
        number = self.sent[channel]
        self.sent[channel] += 1
        name, elements = NCCL_KERNELS[message.operation], max(message.elements_in, message.elements_out)
        duration = self.recipe.duration(Work(name, ranks[0], layer, number, channel, ranks, elements))
        call, together = self._call("cudaLaunchKernelExC"), {"collective": (channel, number), "members": len(ranks)}
        kernel = self._launched(call, Category.KERNEL, name, stream, duration, message=message, **together)
        self.do((Machine.launch, call, kernel))
        return self._record(stream)

    def wait(self, stream: str, record: int) -> None:
        """Let later work of a stream wait for an event."""
        call = self._call("cudaStreamWaitEvent")
        wait = Wait("stream_event", self.recorded_on[record], record)
        self.do((Machine.wait_for, call, stream, record, self._shown(call, "Stream Wait Event", stream, wait)))

    def synchronize(self, stream: str | None = None) -> None:
        """The thread waits for a stream, or for the device."""
        call = self._call("cudaStreamSynchronize" if stream else "cudaDeviceSynchronize")
        name, wait = ("Stream Sync", Wait("stream", stream)) if stream else ("Context Sync", Wait("device"))
        self.do((Machine.synchronize, call, stream, self._shown(call, name, stream or "-1", wait)))

    def _record(self, stream: str) -> int:
        call = self._call("cudaEventRecord")
        self.recorded_on[call.correlation] = stream
        self.do((Machine.record, call, stream))
        return call.correlation

    def _call(self, name: str) -> Event:
        """A call of the runtime, after what the thread does before it."""
        self.num_calls += 1
        self.do((Machine.pause, self.recipe.pause))
        duration = self.recipe.duration(Work(name, self.rank, -1, self.num_calls))
        operator = self.operators[-1] if self.operators else UNKNOWN
        return self._event(Category.CALL, name, self.thread, duration, correlation=self.num_calls, external=operator)

    def _launched(self, call: Event, category: Category, name: str, on: str, duration: int, **more: Any) -> Event:
        """Add a call's kernels to a stream."""
        more |= {"correlation": call.correlation, "external": call.external}
        return self._event(category, name, on, duration, **more)

    def _shown(self, call: Event, name: str, stream: str, wait: Wait) -> Event:
        """The profiler's event of a call that waits."""
        return self._event(Category.SYNCHRONIZATION, name, stream, correlation=call.correlation, wait=wait)

    def _event(self, category: Category, name: str, on: str, duration: int = 0, **more: Any) -> Event:
        """An event of this step, on a thread or a stream of the rank."""
        lane = Lane(self.rank, on)
        return Event(lane=lane, category=category, name=name, duration=duration, step=self.step, **more)

    # --- threads and their stretches

    def hand_over(self, thread: str) -> None:
        """Another thread goes on; this one does nothing until it gets the hand back."""
        self.num_signals += 1
        self.do((Machine.signal, self.num_signals))
        self.thread = thread
        self.do((Machine.await_signal, self.num_signals))

    def annotate(self, name: str) -> None:
        """Begin a stretch with a name."""
        self.do((Machine.begin, self._event(Category.ANNOTATION, name, self.thread)))

    def operator(self, name: str, **more: Any) -> None:
        """Begin an operator with entries of its event; nothing where none are recorded."""
        self.num_operators += 1
        if not self.recipe.operators:
            return
        self.operators.append(self.num_operators)
        self.do((Machine.begin, self._event(Category.OPERATOR, name, self.thread, external=self.num_operators, **more)))

    def end_operator(self) -> None:
        """End the innermost operator."""
        if self.recipe.operators:
            self.operators.pop()
            self.do((Machine.end,))


Direction = Literal["forward", "backward"]

GRADIENT_HIDDEN_SIZES = 12

"""Weights of a layer in squares of the hidden size: 3 + 1 of attention, 4 + 4 of the MLP."""


def programs(recipe: Recipe) -> dict[Lane, list[Instruction]]:
    """Return the program of each thread of each rank."""
    return {lane: program for rank in range(recipe.world_size) for lane, program in _Rank(recipe, rank).run().items()}


def _message(
    operation: str,
    group: str,
    description: str,
    ranks: tuple[int, ...],
    elements: tuple[int, int],
    peer: int = UNKNOWN,
) -> Message:
    """Elements of bf16 that go into an NCCL call and come out."""
    return Message(
        operation=operation,
        group=group,
        description=description,
        ranks=ranks,
        num_ranks=len(ranks),
        elements_in=elements[0],
        elements_out=elements[1],
        dtype="BFloat16",
        peer=peer,
        library="nccl",
    )


class _Rank:
    """Steps of one rank."""

    def __init__(self, recipe: Recipe, rank: int) -> None:
        self.recipe, self.rank, self.at = recipe, rank, position(recipe, rank)
        self.calls = Calls(recipe, rank)
        self.stages = stages_of_rank(recipe.schedule, self.at.pipeline, pp=recipe.pp, vpp=recipe.vpp)
        self.blocks: list[tuple[int, int, int]] = order(
            recipe.schedule, self.at.pipeline, pp=recipe.pp, vpp=recipe.vpp, num_microbatches=recipe.num_microbatches
        ).tolist()
        self.sequences: dict[tuple[int, int, int, str], int] = {}
        self.received: dict[tuple[Direction, int], int | None] = {}
        """The event behind each receive that was posted in this step; None where the stage before is here, too."""
        self.unfinished: list[int] = []
        """Events behind the sends and the reductions of gradients of this step."""

    def run(self) -> dict[Lane, list[Instruction]]:
        for step in range(self.recipe.num_steps):
            self.calls.step = step
            self.calls.annotate(f"ProfilerStep#{step}")
            self._run_passes()
            self._end_step()
            self.calls.do((Machine.pause, self.recipe.pause), (Machine.end,))
        return {Lane(self.rank, thread): program for thread, program in self.calls.threads.items()}

    def _run_passes(self) -> None:
        """All passes of all micro-batches; what the gradients are added to is set to zero before."""
        weights = [block[WEIGHT] for block in self.blocks]
        self.received = {}
        self.calls.launch(
            "Memset (Device)", "cudaMemsetAsync", Category.FILL, nbytes=4 * self._gradients() * len(self.stages)
        )
        for number, (forward, backward, weight) in enumerate(self.blocks):
            for block in self.blocks[number : number + 1 + self.recipe.overlap_p2p]:
                self._receive("forward", block[0])
                self._receive("backward", block[1])
            if forward != NONE:
                self._run_forward(forward)
            stage = weight // self.recipe.num_microbatches
            is_last = all(one // self.recipe.num_microbatches != stage for one in weights[number + 1 :])
            if backward != NONE:
                self._run_backward(backward, whole=weight == backward, is_last=is_last)
            if weight not in (NONE, backward):
                self._weights(weight, is_last=is_last)

    def _end_step(self) -> None:
        """End the step behind the last pass: reduce remaining gradients, run the optimizer, wait as the recipe says."""
        recipe, calls = self.recipe, self.calls
        if recipe.copies_loss and recipe.num_stages - 1 in self.stages:
            calls.launch("Memcpy DtoH (Device -> Pageable)", "cudaMemcpyAsync", Category.COPY, nbytes=4)
            calls.synchronize(COMPUTE)
        if not self._reduces_early():
            for stage in sorted(self.stages):
                for layer in recipe.layers_of(stage)[::-1]:
                    self._reduce_gradients(stage, layer)
        for record in self.unfinished:
            calls.wait(COMPUTE, record)
        self.unfinished = []
        for stage in self.stages:
            for layer in recipe.layers_of(stage):
                calls.launch(OPTIMIZER, layer=layer, shards=1 if recipe.sharded == "nothing" else recipe.dp)
        if recipe.sharded == "optimizer":
            for stage in self.stages:
                for layer in recipe.layers_of(stage):
                    self._gather_weights(stage, layer)
        if recipe.ending == "barrier" and recipe.world_size > 1:
            self._all_reduce("world", tuple(range(recipe.world_size)), 1)
        if recipe.ending != "none":
            calls.synchronize(COMPUTE if recipe.ending == "stream" else None)

    # --- passes

    def _run_forward(self, one: int) -> None:
        stage, microbatch = divmod(one, self.recipe.num_microbatches)
        self._begin_pass(stage, "F", microbatch)
        self._need("forward", one)
        for layer, parts in groupby(parts_of(self.recipe, stage), lambda one: one[0]):
            if self.recipe.sharded == "all":
                self._gather_weights(stage, layer)
            for _, part in parts:
                self._run_part_forward(stage, microbatch, layer, part)
        self._end_pass()
        self._send("forward", one)

    def _run_part_forward(self, stage: int, microbatch: int, layer: int, part: Part) -> None:
        sequence = self.calls.num_operators
        self.sequences[stage, microbatch, layer, part.name] = sequence
        self.calls.operator(OPERATORS[part.kind][0], operands=self._operands(part), sequence=sequence)
        if part.kind == "all_reduce":
            self._tensor_all_reduce(layer)
        else:
            self.calls.launch(f"{part.kind}_{part.name}_forward", layer=layer)
        self.calls.end_operator()

    def _run_backward(self, one: int, *, whole: bool, is_last: bool) -> None:
        """The backward pass on autograd's thread, without or with the gradients of weights."""
        stage, microbatch = divmod(one, self.recipe.num_microbatches)
        self._begin_pass(stage, "B" if whole else "I", microbatch)
        self._need("backward", one)
        self.calls.hand_over(AUTOGRAD)
        for layer, parts in groupby(parts_of(self.recipe, stage)[::-1], lambda one: one[0]):
            if self.recipe.sharded == "all":
                self._gather_weights(stage, layer)
            for _, part in parts:
                self._run_part_backward(stage, microbatch, layer, part, whole=whole)
            if whole and (is_last or self.recipe.sharded == "all") and self._reduces_early():
                self._reduce_gradients(stage, layer)
        self.calls.hand_over(MAIN)
        self._end_pass()
        self._send("backward", one)

    def _run_part_backward(self, stage: int, microbatch: int, layer: int, part: Part, *, whole: bool) -> None:
        if part.kind == "all_reduce":
            return
        sequence = self.sequences[stage, microbatch, layer, part.name]
        function = f"autograd::engine::evaluate_function: {OPERATORS[part.kind][1]}"
        self.calls.operator(function, sequence=sequence, forward_thread=1)
        self._gradient(layer, part, "dgrad" if part.kind == "matmul" else "backward")
        if part.reduces_inputs and self.recipe.tp > 1:
            self._tensor_all_reduce(layer)
        if part.kind == "matmul" and whole:
            self._gradient(layer, part, "wgrad")
        self.calls.end_operator()

    def _weights(self, one: int, *, is_last: bool) -> None:
        """Gradients of weights alone, on the main thread."""
        stage, microbatch = divmod(one, self.recipe.num_microbatches)
        self._begin_pass(stage, "W", microbatch)
        for layer, parts in groupby(parts_of(self.recipe, stage)[::-1], lambda one: one[0]):
            for _, part in parts:
                if part.kind == "matmul":
                    self._gradient(layer, part, "wgrad")
            if is_last and self._reduces_early():
                self._reduce_gradients(stage, layer)
        self._end_pass()

    def _gradient(self, layer: int, part: Part, which: Literal["dgrad", "wgrad", "backward"]) -> None:
        name = OPERATORS[part.kind][0]
        self.calls.operator(name if part.kind == "matmul" else f"{name}_backward", operands=self._operands(part))
        self.calls.launch(f"{part.kind}_{part.name}_{which}", layer=layer)
        self.calls.end_operator()

    def _begin_pass(self, stage: int, kind: Literal["F", "B", "I", "W"], microbatch: int) -> None:
        """Annotated as PyTorch's schedules annotate them."""
        if self.recipe.annotations:
            self.calls.annotate(f"PP:{stage}{kind}{microbatch}")

    def _end_pass(self) -> None:
        if self.recipe.annotations:
            self.calls.do((Machine.end,))

    def _operands(self, part: Part) -> Operands:
        """Inputs of the operator of the forward pass."""
        tokens, hidden = self.recipe.sequence_length, self.recipe.hidden_size
        sizes: tuple[tuple[int, ...], ...] = ((tokens, hidden * part.inputs),)
        if part.kind == "matmul":
            sizes += ((hidden * part.inputs, hidden * part.outputs),)
        return Operands(sizes, ("c10::BFloat16",) * len(sizes))

    # --- communication

    def _receive(self, direction: Direction, one: int) -> None:
        """Post the receive of what a pass needs, unless it is posted."""
        if one == NONE or (direction, one) in self.received:
            return
        before, behind = neighbours(self.recipe, self.at, one // self.recipe.num_microbatches)
        peer = before if direction == "forward" else behind
        self.received[direction, one] = None if peer is None else self._transfer("recv", direction, peer)

    def _need(self, direction: Direction, one: int) -> None:
        """The compute stream waits for what was received."""
        if (record := self.received[direction, one]) is not None:
            self.calls.wait(COMPUTE, record)

    def _send(self, direction: Direction, one: int) -> None:
        before, behind = neighbours(self.recipe, self.at, one // self.recipe.num_microbatches)
        peer = behind if direction == "forward" else before
        if peer is not None:
            self.unfinished.append(self._transfer("send", direction, peer))

    def _transfer(self, operation: Literal["send", "recv"], direction: Direction, peer: int) -> int:
        elements = self.recipe.sequence_length * self.recipe.hidden_size
        pipeline = tuple(rank_at(self.recipe, self.at._replace(pipeline=one)) for one in range(self.recipe.pp))
        source, target = (self.rank, peer) if operation == "send" else (peer, self.rank)
        group, description = f"pp_{pipeline[0]}_{direction}", "PIPELINE_MODEL_PARALLEL_GROUP"
        message = _message(operation, group, description, pipeline, (elements, elements), peer)
        return self.calls.communicate(message, channel=f"{direction} {source} {target}")

    def _all_reduce(self, what: str, ranks: tuple[int, ...], elements: int, layer: int = -1) -> int:
        return self._collective("all_reduce", what, ranks, (elements, elements), layer)

    def _collective(
        self, operation: str, what: str, ranks: tuple[int, ...], elements: tuple[int, int], layer: int
    ) -> int:
        group = f"{what}_{ranks[0]}"
        message = _message(operation, group, f"{what.upper()}_PARALLEL_GROUP", ranks, elements)
        return self.calls.communicate(message, channel=group, layer=layer)

    def _tensor_all_reduce(self, layer: int) -> None:
        """The compute stream waits for it at once."""
        ranks = tuple(rank_at(self.recipe, self.at._replace(split=one)) for one in range(self.recipe.tp))
        elements = self.recipe.sequence_length * self.recipe.hidden_size
        self.calls.wait(COMPUTE, self._all_reduce("tp", ranks, elements, layer))

    def _reduce_gradients(self, stage: int, layer: int) -> None:
        """Add up the gradients of a layer over all ranks that hold it; those of no layer go with the optimizer."""
        ranks, whole = holders(self.recipe, self.at, stage), self._gradients()
        if layer < 0 or len(ranks) == 1:
            return
        if self.recipe.sharded == "nothing":
            self.unfinished.append(self._all_reduce("dp", ranks, whole, layer))
        else:
            part = whole // len(ranks)
            self.unfinished.append(self._collective("reduce_scatter", "dp", ranks, (whole, part), layer))

    def _gather_weights(self, stage: int, layer: int) -> None:
        """Gather the weights of a layer from all ranks that hold a part of it; the compute stream waits for it."""
        ranks, whole = holders(self.recipe, self.at, stage), self._gradients()
        if layer >= 0 and len(ranks) > 1:
            gathered = self._collective("all_gather", "dp", ranks, (whole // len(ranks), whole), layer)
            self.calls.wait(COMPUTE, gathered)

    def _reduces_early(self) -> bool:
        """Both holders of a stage in a pipeline of two directions end it at other times: all wait for all then."""
        return self.recipe.overlap_gradients and self.recipe.schedule not in BIDIRECTIONAL

    def _gradients(self) -> int:
        """Number of weights of a layer on this rank."""
        return GRADIENT_HIDDEN_SIZES * self.recipe.hidden_size**2 // self.recipe.tp
