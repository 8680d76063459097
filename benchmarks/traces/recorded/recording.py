"""
Steps measured and recorded: rounds over all configurations, of each some steps without the profiler, then some with it.

Each round runs every configuration before the next one begins: what slows a shared machine for a while slows all of
them, and none in every round. Within a round, those are run that the machine has cores for.
"""

from __future__ import annotations

import ctypes
import gc
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple, TypeAlias

from benchmarks.small_transformers import transformer
from benchmarks.small_transformers.measure import rank_processes
from benchmarks.small_transformers.transformer import Tensor
from benchmarks.traces.recorded.configurations import BUCKET_MB, MOST_RANKS, TracedConfiguration
from benchmarks.traces.recorded.folder import (
    INDEX,
    Index,
    Recording,
    Stay,
    Steps,
    most_others,
    read_recorded,
    write_index,
)
from costmodel.errors import SpecError
from planner.measure.sample.samples import machine_of, require_torch
from planner.measure.traces.change import Layout

Mark: TypeAlias = Callable[[str], AbstractContextManager[Any]]
"""Annotation of a part of a step, by its name."""


def annotated(text: str) -> AbstractContextManager[Any]:
    """A stretch of the trace with a name."""
    import torch

    return torch.profiler.record_function(text)  # type: ignore[no-any-return]


class RankTraining:
    """
    Parts that a rank has of a model, its optimizer, and its part of one batch, which every step trains on.

    Parameters
    ----------
    one
        The configuration.
    rank
        Number of the process: a data-parallel rank or a stage of the pipeline.
    """

    def __init__(self, one: TracedConfiguration, rank: int) -> None:
        import torch

        self.one = one
        self.stage, replica = (rank, 0) if one.pp > 1 else (0, rank)
        self._mark: Mark = annotated if one.annotations == "all" else nullcontext
        self.module = stage_module(one, self.stage, self._mark)
        self._replicated = one.dp > 1
        if self._replicated:
            self.module = torch.nn.parallel.DistributedDataParallel(self.module, bucket_cap_mb=BUCKET_MB)
        chosen = {one.optimizer: True}
        self._optimizer = torch.optim.AdamW(self.module.parameters(), lr=transformer.LEARNING_RATE, **chosen)
        self.batch = transformer.random_batch(one)[replica * one.num_microbatches :][: one.num_microbatches]

    def step(self) -> None:
        """One step from old weights to new ones."""
        self.gradients()
        with self._mark("optimizer"):
            self._optimizer.step()
            self._optimizer.zero_grad(set_to_none=True)

    def gradients(self) -> None:
        """Gradients of all ranks' micro-batches, averaged."""
        if self.one.pp > 1:
            self._run_pipeline()
            return
        for number in range(self.one.num_microbatches):
            is_last = number == self.one.num_microbatches - 1
            with nullcontext() if is_last or not self._replicated else self.module.no_sync():
                self._run_backward(self._run_forward(self.batch[number][0], number))

    def _run_forward(self, x: Tensor, number: int) -> Tensor:
        """Loss of a micro-batch, as a part of the step's; of stages before the last, what goes to the next one."""
        from torch.nn import functional

        with self._mark("forward"):
            y = self.module(x)
            if self.stage < self.one.pp - 1:
                return y
            return functional.cross_entropy(y, self.batch[number][1]) / self.one.num_microbatches

    def _run_backward(self, y: Tensor, gradient: Tensor | None = None) -> None:
        with self._mark("backward"):
            y.backward(gradient)

    # --- a pipeline ----------------------------------------------------------------------------------------

    def _run_pipeline(self) -> None:
        """
        Tensors that a stage sends go out with the next receive, and are waited for.

        As Megatron-LM does without overlap (``send_forward_recv_backward`` and its siblings).
        """
        is_first, is_last = self.stage == 0, self.stage == self.one.pp - 1
        inputs: dict[int, Tensor] = {}
        outputs: dict[int, Tensor] = {}
        leaving: tuple[Tensor, int] | None = None
        layout = Layout(num_layers=self.one.num_layers, num_microbatches=self.one.num_microbatches, pp=self.one.pp)
        for direction, _, number in layout.passes(self.stage):
            if direction == "forward":
                received = self._exchanged(leaving, None if is_first else self.stage - 1)
                inputs[number] = self.batch[number][0] if is_first else received.requires_grad_()
                outputs[number] = self._run_forward(inputs[number], number)
                leaving = None if is_last else (outputs[number].detach(), self.stage + 1)
            else:
                gradient = self._exchanged(leaving, None if is_last else self.stage + 1)
                self._run_backward(outputs.pop(number), gradient)
                gradient_of_input = inputs.pop(number).grad
                leaving = None if is_first else (gradient_of_input, self.stage - 1)
        self._exchanged(leaving, None)

    def _exchanged(self, leaving: tuple[Tensor, int] | None, source: int | None) -> Tensor:
        """Receive from another stage while something leaves, and wait for both."""
        import torch
        from torch import distributed

        operations, arriving = [], None
        if leaving is not None:
            operations.append(distributed.P2POp(distributed.isend, *leaving))
        if source is not None:
            arriving = torch.empty(self.one.rows, self.one.hidden_size)
            operations.append(distributed.P2POp(distributed.irecv, arriving, source))
        if operations:
            for work in distributed.batch_isend_irecv(operations):
                work.wait()
        return arriving


def stage_module(one: TracedConfiguration, stage: int, mark: Mark) -> Any:
    """
    The part of a model that a stage has, as a module of torch.

    Parameters
    ----------
    one, stage
        The configuration, and which stage of its pipeline.
    mark
        Name under which each layer's forward pass runs, as ``layer 0``, ``layer 1``, ...
    """
    import torch

    is_first, is_last = stage == 0, stage == one.pp - 1
    layers = one.layers_of(stage)
    starts = tuple(f"layers.{index}." for index in layers)
    starts += ("embedding",) * is_first + ("final_norm", "head") * is_last
    drawn = transformer.random_weights(one)

    class Stage(torch.nn.Module):  # type: ignore[misc]
        """Embedding, layers and head, as far as the stage has them."""

        def __init__(self) -> None:
            super().__init__()
            self.weights = {
                name: torch.nn.Parameter(weight.detach()) for name, weight in drawn.items() if name.startswith(starts)
            }
            for name, weight in self.weights.items():
                self.register_parameter(name.replace(".", "_"), weight)
            self.turned = transformer.rotations(one, drawn["final_norm"])

        def forward(self, x: Tensor) -> Tensor:
            """Logits of tokens; between stages, what goes from one to the next."""
            if is_first:
                x = transformer.embedded(self.weights, x)
            for index in layers:
                with mark(f"layer {index}"):
                    x = transformer.layer_output(self.weights, one, index, x, self.turned)
            return transformer.head_logits(self.weights, x) if is_last else x

    return Stage()


WARM_UP, STEPS, PROFILED = 2, 3, 3
"""Steps of a round before those that count, those that are timed, and those that are recorded."""

REFERENCE = TracedConfiguration(
    name="reference",
    num_layers=1,
    hidden_size=256,
    num_heads=4,
    num_kv_heads=4,
    ffn_hidden_size=768,
    vocab_size=1024,
    sequence_length=256,
    mbs=1,
    annotations="none",
)
REFERENCE_STEPS = 3
"""Number of timed reference steps, small ones of the same operators (some 40 ms), which give the machine's pace."""

LOOK_SECONDS = 0.4
"""Seconds for which the load of other processes is observed."""

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
"""Linux's files with the memory of a process, and to reset its peak (man 5 proc)."""

PEAK = "5"

PROCESSORS = Path("/proc/stat")
"""Linux's file with the processors' times."""


def record(
    chosen: Sequence[TracedConfiguration],
    folder: str | os.PathLike[str],
    *,
    minutes: float,
    rounds: int = 5,
    notify: Callable[[str], None] = print,
) -> None:
    """
    Measure and record steps into a folder; rounds are added to those that it has.

    Parameters
    ----------
    chosen
        Configurations to run.
    folder
        Gets the index and the traces.
    minutes
        After which nothing new is begun.
    rounds
        Over all configurations, at most.
    notify
        Gets a line for each configuration of a round.

    Raises
    ------
    SpecError
        If torch is not installed, or the folder is of another machine.
    """
    torch, folder = require_torch(), Path(folder)
    until = time.monotonic() + 60 * minutes
    index = _begun(folder, torch)
    with ExitStack() as stack:
        # A rank alone is no part of a process group: its trace would say that another one is missing.
        numbers = sorted({one.num_ranks for one in chosen})
        processes = {number: stack.enter_context(rank_processes(number, recorded_steps)) for number in numbers}
        for number in range(1, rounds + 1):
            pending = list(chosen)
            while pending:
                one = _next(pending, index.num_cores, until)
                if one is None:
                    notify(f"{minutes:g} minutes are over in round {number} of {rounds}.")
                    return
                pending.remove(one)
                known = index.recordings.get(one.name, Recording(configuration=one, stays=()))
                if known.configuration != one:
                    raise SpecError(str(folder), f"has another {one.name}.", "Record into an empty folder.")
                stem = folder / one.name / f"round-{len(known.stays) + 1}"
                ranks = processes[one.num_ranks]
                stay = _stay(folder, ranks(one.name, (one, stem), one.num_ranks))
                done = replace(known, stays=(*known.stays, stay))
                index = replace(index, recordings={**index.recordings, one.name: done})
                write_index(folder, index)
                notify(f"round {number} of {rounds}: {one.name} {_figures(index, one.name)}")


def _begun(folder: Path, torch: Any) -> Index:
    """Read the folder's recordings of this machine; none if it is new."""
    here = Index(
        device=machine_of(torch, "cpu").device,
        software=f"torch {torch.__version__}, one thread per rank",
        num_cores=os.cpu_count() or MOST_RANKS,
        recordings={},
    )
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / INDEX).exists():
        return here
    index = read_recorded(folder)
    if replace(index, recordings={}) != here:
        found = f"is of {index.device}, {index.software}; this is {here.device}, {here.software}."
        raise SpecError(str(folder), found, "Record into an empty folder.")
    return index


def _figures(index: Index, name: str) -> str:
    plain, slower = index.plain(name), index.profiled(name).seconds / index.plain(name).seconds - 1
    return (
        f"{plain.seconds:.3f} s, spread {plain.spread:.1%}, others {plain.others:.0%} of a core, "
        f"with the profiler {slower:+.1%}"
    )


def _next(pending: Sequence[TracedConfiguration], num_cores: int, until: float) -> TracedConfiguration | None:
    """Wait for a configuration that other processes leave enough cores for, the most ranks first; None: time is up."""
    while time.monotonic() < until:
        before = _busy_seconds()
        time.sleep(LOOK_SECONDS)
        others = (_busy_seconds() - before) / LOOK_SECONDS
        possible = [one for one in pending if others <= most_others(one, num_cores)]
        if possible:
            return max(possible, key=lambda one: one.num_ranks)
    return None


# --- in the process of a rank ------------------------------------------------------------------------------


class Moment(NamedTuple):
    """Seconds on three clocks: of the wall, of this process on processors, of all processors together at work."""

    wall: float
    processor: float
    busy: float

    @classmethod
    def now(cls) -> Moment:
        """Read the clocks."""
        return cls(time.perf_counter(), time.process_time(), _busy_seconds())

    def since(self, other: Moment) -> Moment:
        """Return the time that has passed on each clock."""
        return Moment(*(own - its for own, its in zip(self, other, strict=True)))


class Answer(NamedTuple):
    """Answer of a rank about its stay; entries as those of :class:`Stay`."""

    began: float
    plain: list[Moment]
    profiled: list[Moment]
    pace: tuple[float, float, float]
    trace: Path
    peak_bytes: int
    idle_bytes: int


def _stay(folder: Path, answers: Sequence[Answer]) -> Stay:
    return Stay(
        began=answers[0].began,
        plain=_steps([one.plain for one in answers], [fmean(one.pace[:2]) for one in answers]),
        profiled=_steps([one.profiled for one in answers], [fmean(one.pace[1:]) for one in answers]),
        traces=tuple(one.trace.relative_to(folder).as_posix() for one in answers),
        peak_bytes=tuple(one.peak_bytes for one in answers),
        idle_bytes=tuple(one.idle_bytes for one in answers),
    )


def _steps(by_rank: Sequence[Sequence[Moment]], pace: Sequence[float]) -> Steps:
    """Steps of all ranks; what the machine was at beside them is what others did."""
    return Steps(
        seconds=tuple(tuple(step.wall for step in steps) for steps in by_rank),
        processor=tuple(tuple(step.processor for step in steps) for steps in by_rank),
        others=tuple(
            (steps[0].busy - sum(step.processor for step in steps)) / steps[0].wall
            for steps in zip(*by_rank, strict=True)
        ),
        pace=tuple(pace),
    )


def recorded_steps(order: tuple[TracedConfiguration, Path], rank: int) -> Answer:
    """Run steps of a configuration in this process, and write the trace of some of them."""
    one, stem = order
    path = stem.with_name(f"{stem.name}-rank-{rank}.json.gz")
    path.parent.mkdir(parents=True, exist_ok=True)
    idle_bytes = _fresh_memory()
    began = time.time()
    training, reference = RankTraining(one, rank), RankTraining(REFERENCE, 0)
    for _ in range(WARM_UP):
        training.step()
    pace = [_pace(reference, one, rank)]
    plain = [_timed(training.step) for _ in range(STEPS)]
    peak_bytes = _resident_bytes("VmHWM")
    pace.append(_pace(reference, one, rank))
    with _profiler(one, path) as next_step:
        profiled = [_timed(training.step, next_step) for _ in range(_warm_up(one) + PROFILED)]
    pace.append(_pace(reference, one, rank))
    return Answer(
        began=began,
        plain=plain,
        profiled=profiled[_warm_up(one) :],
        pace=(pace[0], pace[1], pace[2]),
        trace=path,
        peak_bytes=peak_bytes,
        idle_bytes=idle_bytes,
    )


def _pace(reference: RankTraining, one: TracedConfiguration, rank: int) -> float:
    """Processor seconds of the reference step, the median of some; one rank after the other, while the others wait."""
    from torch import distributed

    seconds = 0.0
    for turn in range(one.num_ranks):
        if one.num_ranks > 1:
            distributed.barrier()
        if turn == rank:
            reference.step()
            seconds = median(_timed(reference.step).processor for _ in range(REFERENCE_STEPS))
    if one.num_ranks > 1:
        distributed.barrier()
    return seconds


def _timed(step: Callable[[], None], behind: Callable[[], None] = lambda: None) -> Moment:
    """Time a step; anything behind it is not timed."""
    started = Moment.now()
    step()
    took = Moment.now().since(started)
    behind()
    return took


def _warm_up(one: TracedConfiguration) -> int:
    """Steps under the profiler that it leaves out; it needs its own steps for that."""
    return 0 if one.annotations == "none" else 1


@contextmanager
def _profiler(one: TracedConfiguration, path: Path) -> Iterator[Callable[[], None]]:
    """As a guide has it: shapes recorded, one step to warm up, steps announced; or, without annotations, none of it."""
    from torch import profiler

    settings: dict[str, Any] = {"activities": [profiler.ProfilerActivity.CPU], "record_shapes": True}
    if one.annotations == "none":
        with profiler.profile(**settings) as recorder:
            yield lambda: None
    else:
        schedule = profiler.schedule(wait=0, warmup=_warm_up(one), active=PROFILED, repeat=1)
        with profiler.profile(**settings, schedule=schedule) as recorder:
            yield recorder.step
    recorder.export_chrome_trace(str(path))


# --- memory, and processors ------------------------------------------------------------------------------------


def _fresh_memory() -> int:
    """Give freed memory back to the system, forget the peak, and say what is left; 0 where this is not Linux."""
    if not CLEAR.exists():
        return 0
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    CLEAR.write_text(PEAK, encoding="ascii")
    return _resident_bytes("VmRSS")


def _resident_bytes(entry: str) -> int:
    """``VmRSS``: what the process has in memory; ``VmHWM``: what it had at most. 0 where nobody says."""
    found = re.search(rf"^{entry}:\s+(\d+) kB", STATUS.read_text(encoding="ascii") if STATUS.exists() else "", re.M)
    return 1024 * int(found[1]) if found else 0


def _busy_seconds() -> float:
    """Seconds that all processors of the machine have been at work together; 0 where nobody says (man 5 proc)."""
    if not PROCESSORS.exists():
        return 0.0
    user, nice, system, _, _, *interrupts = PROCESSORS.read_text(encoding="ascii").split(maxsplit=9)[1:9]
    ticks = sum(int(each) for each in (user, nice, system, *interrupts))
    return ticks / os.sysconf("SC_CLK_TCK")
