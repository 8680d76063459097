"""Where the iterations of a trace begin and end."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from costmodel.errors import SpecError
from costmodel.traces.events import UNKNOWN, Category, Integers, Trace

Found: TypeAlias = Literal["steps", "optimizer", "repetition", "whole"]
"""
How iterations were found.

``steps``: the profiler's schedule marked them; ``optimizer``: each ends with an update of the parameters;
``repetition``: the whole trace repeats itself; ``whole``: by nothing of these, the trace is taken as one.
"""

STEP = re.compile(r"ProfilerStep#?\s*\d+")
"""What PyTorch's profiler names a step of its schedule."""

UPDATE = re.compile(r"Optimizer\.step#")
"""What PyTorch's optimizers name their update."""

UPDATE_OPERATOR = re.compile(r"aten::(_fused_(adam|sgd|adagrad)|_foreach_(add|addcdiv|addcmul|lerp|sqrt)_?$|addcdiv_$)")
"""Operators that PyTorch's optimizers run and nothing else in a step does."""

UPDATE_KERNEL = re.compile(r"(?i)multi_tensor_apply_kernel.*(adam|sgd|lamb)|FusedAdam|fused_adam|FusedOptimizer")
"""Kernels that update parameters, of PyTorch, Apex and Transformer Engine."""

BACKWARD = "autograd::engine::evaluate_function"
"""How the names of autograd's nodes begin."""

LEAST_SAME = 0.95
"""Share of a sequence that must be the same one period later, for it to repeat itself."""


LEAST_PERIOD = 16
"""Operators or kernels of an iteration that is found by repetition: less is no pass through a model."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Iteration:
    """
    One training step of a rank, as it was recorded.

    Parameters
    ----------
    name
        The profiler's name for it, or ``iteration 0``.
    begin, end
        Nanoseconds since the trace began. What the device does for it may end later.
    thread
        The thread that runs it, a place in ``Trace.tracks``; ``UNKNOWN`` where only streams were recorded.
    followed
        Whether the trace goes on with the next iteration, so that ``end`` is where that one begins.
    found
        How it was found.
    """

    name: str
    begin: int
    end: int
    thread: int
    followed: bool
    found: Found

    @property
    def duration(self) -> int:
        """Nanoseconds from its begin to its end."""
        return self.end - self.begin

    def rows(self, trace: Trace) -> NDArray[np.intp]:
        """Rows of the events that start in it, on any track."""
        first, behind = np.searchsorted(trace.events.start, [self.begin, self.end])
        return np.arange(first, behind)


def iterations(trace: Trace) -> tuple[Iteration, ...]:
    """
    Find the iterations of a trace, in the order in which they ran; () for a trace without events.

    Parameters
    ----------
    trace
        What the profiler recorded.

    Returns
    -------
    tuple of Iteration
        By the profiler's own steps (``ProfilerStep#3``); without them, from one update of the parameters to the
        next; without these, where everything repeats itself; else one, the whole trace.
    """
    if len(trace.events) == 0:
        return ()
    return _by_steps(trace) or _by_updates(trace) or _by_repetition(trace) or (_whole(trace),)


def chosen_iteration(trace: Trace, number: int | None = None) -> Iteration:
    """
    An iteration of a trace.

    Parameters
    ----------
    trace
        What the profiler recorded.
    number
        Which, from 0; by default the last one that another follows, else the last.

    Raises
    ------
    SpecError
        If there is no such iteration.
    """
    found = iterations(trace)
    if number is None:
        followed = [one for one in found if one.followed]
        return followed[-1] if followed else found[-1]
    if not 0 <= number < len(found):
        raise SpecError("iteration", f"is {number}, but {trace.source} has {len(found)}: 0 to {len(found) - 1}.")
    return found[number]


def is_whole(trace: Trace, iteration: Iteration) -> bool:
    """Whether the file of a trace does not end inside of one of its iterations, as a broken one may."""
    return trace.whole_until is None or iteration.end <= trace.whole_until


def main_thread(trace: Trace) -> int:
    """The thread with the most operators that are not autograd's, as a place in ``Trace.tracks``; else ``UNKNOWN``."""
    events = trace.events
    threads = np.array([track.kind == "thread" for track in trace.tracks], dtype=bool)
    mine = threads[events.track]
    backward = named(trace, re.compile(re.escape(BACKWARD)))
    for rows in (
        mine & (events.category == Category.OPERATOR) & ~_on(events.track, backward, threads),
        mine & (events.category == Category.OPERATOR),
        mine,
    ):
        if rows.any():
            return int(np.bincount(events.track[rows]).argmax())
    return UNKNOWN


def named(trace: Trace, pattern: re.Pattern[str]) -> NDArray[np.bool_]:
    """Which events have a name in which a pattern is found."""
    names = np.array([pattern.search(name) is not None for name in trace.names], dtype=bool)
    return names[trace.events.name] if len(names) else np.zeros(len(trace.events), dtype=bool)


def _on(track: NDArray[np.int32], backward: NDArray[np.bool_], threads: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Events on threads that run autograd, unless all threads that run anything do: then it has no own ones."""
    runs = np.bincount(track[backward], minlength=len(threads)) > 0
    return runs[track] if (~runs & threads)[track].any() else np.zeros(len(track), dtype=bool)


def _by_steps(trace: Trace) -> tuple[Iteration, ...]:
    """Iterations that the profiler's schedule marked: from one mark to the next, the last to the end of its own."""
    events = trace.events
    rows = np.flatnonzero(named(trace, STEP) & (events.category == Category.ANNOTATION))
    if len(rows) == 0:
        return ()
    thread = int(np.bincount(events.track[rows]).argmax())
    rows = rows[events.track[rows] == thread]
    begins = events.start[rows]
    ends = np.append(begins[1:], events.end[rows[-1]])
    names = [trace.name_of(row) for row in rows]
    return _made(names, begins, ends, thread, "steps")


def _by_updates(trace: Trace) -> tuple[Iteration, ...]:
    """Iterations that end with an update of the parameters: the first one begins with the trace."""
    events = trace.events
    update = named(trace, UPDATE) & (events.category == Category.ANNOTATION)
    if not update.any():
        update = named(trace, UPDATE_OPERATOR) & (events.category == Category.OPERATOR)
    if not update.any():
        update = named(trace, UPDATE_KERNEL) & (events.category == Category.KERNEL)
    if not update.any():
        return ()
    track = int(np.bincount(events.track[update]).argmax())
    updates = np.flatnonzero(update & (events.track == track))
    last = _last_of_each_run(trace, updates)
    ends: Integers = np.maximum.accumulate(events.end[updates])[last]
    on_thread = trace.tracks[track].kind == "thread"
    begins = np.append(events.start[events.track == track].min(), ends[:-1])
    if not on_thread:
        kernels = trace.of(Category.KERNEL)
        firsts = np.append(0, np.searchsorted(kernels, updates[last[:-1]], side="right"))
        begins = _when_launched(trace, kernels, firsts, begins)
        ends = np.append(begins[1:], ends[-1])
    names = [f"iteration {number}" for number in range(len(ends))]
    return _made(names, begins, ends, track if on_thread else main_thread(trace), "optimizer")


def _last_of_each_run(trace: Trace, updates: NDArray[np.intp]) -> NDArray[np.intp]:
    """The updates behind which a pass through the model follows, and the last: an optimizer may have several parts."""
    events = trace.events
    ends: Integers = np.maximum.accumulate(events.end[updates])
    if len(updates) == 1:
        return np.zeros(1, dtype=np.intp)
    works = np.isin(events.category, (Category.OPERATOR, Category.KERNEL)) & ~named(trace, UPDATE_OPERATOR)
    works &= ~named(trace, UPDATE_KERNEL)
    passes = named(trace, re.compile(re.escape(BACKWARD)))
    starts = np.sort(events.start[passes if passes.any() else works])
    between = np.searchsorted(starts, events.start[updates[1:]]) - np.searchsorted(starts, ends[:-1])
    least = 0 if passes.any() else max(between.max(), len(starts) / len(updates)) / 2
    return np.flatnonzero(np.append(between > least, True))


def _by_repetition(trace: Trace) -> tuple[Iteration, ...]:
    """Iterations of a trace that does the same again and again, from its first event to its last."""
    events = trace.events
    thread = main_thread(trace)
    operators = (events.category == Category.OPERATOR) & (events.track == thread)
    kernels = events.category == Category.KERNEL
    rows = np.flatnonzero(operators if operators.any() else kernels)
    period = whole_period(events.name[rows])
    if period < LEAST_PERIOD or named(trace, re.compile(re.escape(BACKWARD))).any():
        return ()
    begins = events.start[rows[::period]]
    if not operators.any():
        begins = _when_launched(trace, rows, np.arange(0, len(rows), period), begins)
    ends = np.append(begins[1:], events.end[rows].max())
    return _made([f"iteration {number}" for number in range(len(begins))], begins, ends, thread, "repetition")


def _when_launched(trace: Trace, kernels: NDArray[np.intp], firsts: NDArray[np.intp], begins: Integers) -> Integers:
    """
    When a thread launches the first kernel of each iteration: kernels begin later, inside calls that wait for them.

    Parameters
    ----------
    trace, kernels
        A trace, and its kernels in the order of their start.
    firsts
        Places of the first kernel of each iteration among them.
    begins
        When these begin on their streams; it stays where not all launches were recorded, or one has several iterations.
    """
    calls = trace.calls_of(kernels)
    if (calls == UNKNOWN).any():
        return begins
    launched: Integers = np.minimum.reduceat(trace.events.start[calls], firsts)
    return launched if (np.diff(launched) > 0).all() else begins


def whole_period(sequence: NDArray[np.int32]) -> int:
    """
    Length of the shortest part whose repetition is a whole sequence, but for one in twenty of its entries; 0: none.

    >>> whole_period(np.array([3, 1, 4, 3, 1, 4, 3, 1, 4], dtype=np.int32))
    3
    >>> whole_period(np.array([3, 1, 4, 1, 5], dtype=np.int32))
    0
    """
    count = len(sequence)
    again = np.flatnonzero(sequence[1 : count // 2 + 1] == sequence[0]) + 1
    for period in again:
        if count % period == 0 and np.mean(sequence[period:] == sequence[:-period]) >= LEAST_SAME:
            return int(period)
    return 0


def _whole(trace: Trace) -> Iteration:
    """The whole trace as one iteration."""
    end = int(trace.events.end.max())
    return Iteration(
        name="iteration 0",
        begin=int(trace.events.start.min()),
        end=end,
        thread=main_thread(trace),
        followed=False,
        found="whole",
    )


def _made(names: list[str], begins: Integers, ends: Integers, thread: int, found: Found) -> tuple[Iteration, ...]:
    """The records of iterations of which each is followed by the next."""
    return tuple(
        Iteration(
            name=name,
            begin=int(begin),
            end=int(end),
            thread=thread,
            followed=number < len(names) - 1,
            found=found,
        )
        for number, (name, begin, end) in enumerate(zip(names, begins, ends, strict=True))
    )
