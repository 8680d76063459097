"""Calls of the runtime, and what they put on streams, written into the programs of a rank's threads."""

from __future__ import annotations

from collections import Counter

from benchmarks.traces.synthetic.machine import Event, Instruction, Lane, Machine
from benchmarks.traces.synthetic.recipe import Recipe, Work
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
        Of which job, and whose.
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
        kernel = Event(
            lane=Lane(self.rank, COMPUTE),
            category=category,
            name=name,
            duration=self.recipe.duration(Work(name, self.rank, layer, event.correlation, shards=shards)),
            step=self.step,
            correlation=event.correlation,
            external=event.external,
            nbytes=nbytes,
        )
        self.do((Machine.launch, event, kernel))

    def communicate(self, message: Message, *, channel: str, layer: int = -1) -> int:
        """
        Put a communication on the stream of its channel, behind what is on the compute stream by now.

        Parameters
        ----------
        message
            What it sends.
        channel
            All ranks of a communication name it alike; its stream is no other channel's.
        layer
            Of the model.

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
        call = self._call("cudaLaunchKernelExC")
        kernel = Event(
            lane=Lane(self.rank, stream),
            category=Category.KERNEL,
            name=name,
            duration=self.recipe.duration(Work(name, ranks[0], layer, number, channel, ranks, elements)),
            step=self.step,
            correlation=call.correlation,
            external=call.external,
            message=message,
            collective=(channel, number),
            members=len(ranks),
        )
        self.do((Machine.launch, call, kernel))
        return self._record(stream)

    def wait(self, stream: str, record: int) -> None:
        """What comes next on a stream waits for an event."""
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
        return Event(
            lane=Lane(self.rank, self.thread),
            category=Category.CALL,
            name=name,
            duration=self.recipe.duration(Work(name, self.rank, -1, self.num_calls)),
            step=self.step,
            correlation=self.num_calls,
            external=self.operators[-1] if self.operators else UNKNOWN,
        )

    def _shown(self, call: Event, name: str, stream: str, wait: Wait) -> Event:
        """The profiler's event of a call that waits."""
        return Event(
            lane=Lane(self.rank, stream),
            category=Category.SYNCHRONIZATION,
            name=name,
            duration=0,
            step=self.step,
            correlation=call.correlation,
            wait=wait,
        )

    # --- threads and their stretches

    def hand_over(self, thread: str) -> None:
        """Another thread goes on; this one does nothing until it gets the hand back."""
        self.num_signals += 1
        self.do((Machine.signal, self.num_signals))
        self.thread = thread
        self.do((Machine.await_signal, self.num_signals))

    def annotate(self, name: str) -> None:
        """Begin a stretch with a name."""
        lane = Lane(self.rank, self.thread)
        self.do((Machine.begin, Event(lane=lane, category=Category.ANNOTATION, name=name, duration=0, step=self.step)))

    def operator(
        self, name: str, operands: Operands | None = None, *, sequence: int = UNKNOWN, forward_thread: int = UNKNOWN
    ) -> None:
        """Begin an operator; nothing where none are recorded."""
        self.num_operators += 1
        if not self.recipe.operators:
            return
        event = Event(
            lane=Lane(self.rank, self.thread),
            category=Category.OPERATOR,
            name=name,
            duration=0,
            step=self.step,
            external=self.num_operators,
            sequence=sequence,
            forward_thread=forward_thread,
            operands=operands,
        )
        self.operators.append(self.num_operators)
        self.do((Machine.begin, event))

    def end_operator(self) -> None:
        """End the innermost operator."""
        if self.recipe.operators:
            self.operators.pop()
            self.do((Machine.end,))
