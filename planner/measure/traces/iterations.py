"""Begins and ends of the iterations of a trace."""

from __future__ import annotations

import re
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from costmodel.errors import SpecError
from costmodel.record import record
from planner.measure.traces.events import UNKNOWN, Category, Integers, Trace

Found: TypeAlias = Literal["steps", "optimizer", "repetition", "whole"]
"""
Source of the iterations.

``steps``: the profiler's schedule marked them; ``optimizer``: each ends with an update of the parameters;
``repetition``: the whole trace repeats; ``whole``: none of these, the trace is taken as one.
"""

STEP = re.compile(r"ProfilerStep#?\s*\d+")
"""Name that PyTorch's profiler gives a step of its schedule."""

UPDATE = re.compile(r"Optimizer\.step#")
"""Name that PyTorch's optimizers give their update."""

UPDATE_OPERATOR = re.compile(r"aten::(_fused_(adam|sgd|adagrad)|_foreach_(add|addcdiv|addcmul|lerp|sqrt)_?$|addcdiv_$)")
"""Operators that run only in PyTorch's optimizers."""

UPDATE_KERNEL = re.compile(r"(?i)multi_tensor_apply_kernel.*(adam|sgd|lamb)|FusedAdam|fused_adam|FusedOptimizer")
"""Kernels that update parameters, of PyTorch, Apex and Transformer Engine."""

BACKWARD = "autograd::engine::evaluate_function"
"""Beginning of the names of autograd's nodes."""

LEAST_SAME = 0.95
"""Share of a sequence that must be equal one period later for it to repeat."""


LEAST_PERIOD = 16
"""Fewest operators or kernels of an iteration found by repetition: a pass through a model has more."""


@record(frozen=True, slots=True)
class Iteration:
    """
    One recorded training step of a rank.

    Parameters
    ----------
    name
        The profiler's name of the step, or ``iteration 0``.
    begin, end
        Nanoseconds since the trace began. Its work on the device may end later.
    thread
        Thread that runs it, a place in ``Trace.tracks``; ``UNKNOWN`` where only streams were recorded.
    followed
        True where the trace continues with the next iteration, which begins at ``end``.
    found
        Source of its begin and end.
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
        """Return the rows of the events that start in it, on any track."""
        first, behind = np.searchsorted(trace.events.start, [self.begin, self.end])
        return np.arange(first, behind)


def iterations(trace: Trace) -> tuple[Iteration, ...]:
    """
    Find the iterations of a trace, in the order in which they ran; () for a trace without events.

    Parameters
    ----------
    trace
        Trace of one rank.

    Returns
    -------
    tuple of Iteration
        By the profiler's own steps (``ProfilerStep#3``); without them, from one update of the parameters to the next;
        without these, by repetition; else one, the whole trace.
    """
    if len(trace.events) == 0:
        return ()
    events = trace.events
    whole = np.array([events.start.min()]), np.array([events.end.max()])
    return (
        _find_by_steps(trace)
        or _find_by_updates(trace)
        or _find_by_repetition(trace)
        or _build_iterations(["iteration 0"], *whole, main_thread(trace), "whole")
    )


def choose_iteration(trace: Trace, number: int | None) -> Iteration:
    """
    Return an iteration of a trace.

    Parameters
    ----------
    trace
        Trace of one rank.
    number
        Number of the iteration, from 0; by default the last one that is followed by another, else the last.

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
        raise SpecError("--iteration", f"is {number}, but {trace.source} has {len(found)}: 0 to {len(found) - 1}.")
    return found[number]


def is_whole(trace: Trace, iteration: Iteration) -> bool:
    """Return True if the trace's file does not end within the iteration, as a broken file may."""
    return trace.whole_until is None or iteration.end <= trace.whole_until


def main_thread(trace: Trace) -> int:
    """Return the thread with the most operators outside of autograd, a place in ``Trace.tracks``; else ``UNKNOWN``."""
    events = trace.events
    threads = np.array([track.kind == "thread" for track in trace.tracks], dtype=bool)
    mine = threads[events.track]
    backward = trace.match_name(BACKWARD)
    for rows in (
        mine & (events.category == Category.OPERATOR) & ~_find_autograd_events(events.track, backward, threads),
        mine & (events.category == Category.OPERATOR),
        mine,
    ):
        if rows.any():
            return int(np.bincount(events.track[rows]).argmax())
    return UNKNOWN


def iteration_numbers(trace: Trace) -> Integers:
    """Return the number of the iteration in which each event begins; ``UNKNOWN`` outside of iterations."""
    found, start = iterations(trace), trace.events.start
    if not found:
        return np.full(len(start), UNKNOWN)
    place = np.searchsorted([one.begin for one in found], start, side="right") - 1
    ends = np.array([one.end for one in found], dtype=np.int64)
    return np.where((place >= 0) & (start < ends[np.maximum(place, 0)]), place, UNKNOWN)


def _find_autograd_events(
    track: NDArray[np.int32], backward: NDArray[np.bool_], threads: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Return a mask of events on autograd's threads; none if all threads run autograd, which then has no own thread."""
    runs = np.bincount(track[backward], minlength=len(threads)) > 0
    return runs[track] if (~runs & threads)[track].any() else np.zeros(len(track), dtype=bool)


def _find_by_steps(trace: Trace) -> tuple[Iteration, ...]:
    """Find iterations by the profiler's marks: from one mark to the next, the last to the end of its own."""
    events = trace.events
    rows = np.flatnonzero(trace.match_name(STEP) & (events.category == Category.ANNOTATION))
    if len(rows) == 0:
        return ()
    thread = int(np.bincount(events.track[rows]).argmax())
    rows = rows[events.track[rows] == thread]
    begins = events.start[rows]
    ends = np.append(begins[1:], events.end[rows[-1]])
    names = [trace.name_of(row) for row in rows]
    return _build_iterations(names, begins, ends, thread, "steps")


def _find_by_updates(trace: Trace) -> tuple[Iteration, ...]:
    """Find iterations that end with an update of the parameters; the first begins with the trace."""
    events = trace.events
    update = trace.match_name(UPDATE) & (events.category == Category.ANNOTATION)
    if not update.any():
        update = trace.match_name(UPDATE_OPERATOR) & (events.category == Category.OPERATOR)
    if not update.any():
        update = trace.match_name(UPDATE_KERNEL) & (events.category == Category.KERNEL)
    if not update.any():
        return ()
    track = int(np.bincount(events.track[update]).argmax())
    updates = np.flatnonzero(update & (events.track == track))
    last = _last_of_each_run(trace, updates)
    ends: Integers = np.maximum.accumulate(events.end[updates])[last]
    on_thread = trace.tracks[track].kind == "thread"
    begins = np.append(events.start[events.track == track].min(), ends[:-1])
    if not on_thread:
        kernels = trace.find_rows(Category.KERNEL)
        firsts = np.append(0, np.searchsorted(kernels, updates[last[:-1]], side="right"))
        begins = _launch_times(trace, kernels, firsts, begins)
        ends = np.append(begins[1:], ends[-1])
    names = [f"iteration {number}" for number in range(len(ends))]
    return _build_iterations(names, begins, ends, track if on_thread else main_thread(trace), "optimizer")


def _last_of_each_run(trace: Trace, updates: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return the updates that are followed by a pass through the model, and the last: an optimizer may run several."""
    events = trace.events
    ends: Integers = np.maximum.accumulate(events.end[updates])
    if len(updates) == 1:
        return np.zeros(1, dtype=np.intp)
    works = np.isin(events.category, (Category.OPERATOR, Category.KERNEL)) & ~trace.match_name(UPDATE_OPERATOR)
    works &= ~trace.match_name(UPDATE_KERNEL)
    passes = trace.match_name(BACKWARD)
    starts = np.sort(events.start[passes if passes.any() else works])
    between = np.searchsorted(starts, events.start[updates[1:]]) - np.searchsorted(starts, ends[:-1])
    least = 0 if passes.any() else max(between.max(), len(starts) / len(updates)) / 2
    return np.flatnonzero(np.append(between > least, True))


def _find_by_repetition(trace: Trace) -> tuple[Iteration, ...]:
    """Find the iterations of a trace that repeats from its first event to its last."""
    events = trace.events
    thread = main_thread(trace)
    operators = (events.category == Category.OPERATOR) & (events.track == thread)
    kernels = events.category == Category.KERNEL
    rows = np.flatnonzero(operators if operators.any() else kernels)
    period = whole_period(events.name[rows])
    if period < LEAST_PERIOD or trace.match_name(BACKWARD).any():
        return ()
    begins = events.start[rows[::period]]
    if not operators.any():
        begins = _launch_times(trace, rows, np.arange(0, len(rows), period), begins)
    ends = np.append(begins[1:], events.end[rows].max())
    return _build_iterations(
        [f"iteration {number}" for number in range(len(begins))], begins, ends, thread, "repetition"
    )


def _launch_times(trace: Trace, kernels: NDArray[np.intp], firsts: NDArray[np.intp], begins: Integers) -> Integers:
    """
    Return the launch of the first kernel of each iteration: kernels begin later, within calls that wait for them.

    Parameters
    ----------
    trace, kernels
        A trace, and its kernels in the order of their start.
    firsts
        Places of the first kernel of each iteration among them.
    begins
        Begins of these kernels on their streams; returned unchanged where launches are missing, or one launch covers
        several iterations.
    """
    calls = trace.calls_of(kernels)
    if (calls == UNKNOWN).any():
        return begins
    launched: Integers = np.minimum.reduceat(trace.events.start[calls], firsts)
    return launched if (np.diff(launched) > 0).all() else begins


def whole_period(sequence: NDArray[np.int32]) -> int:
    """
    Return the length of the shortest part that repeats over the whole sequence, up to 5 % of its entries; 0 if none.

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


def _build_iterations(
    names: list[str], begins: Integers, ends: Integers, thread: int, found: Found
) -> tuple[Iteration, ...]:
    """Build the records of consecutive iterations."""
    return tuple(
        Iteration(name, int(begin), int(end), thread, followed=number < len(names) - 1, found=found)
        for number, (name, begin, end) in enumerate(zip(names, begins, ends, strict=True))
    )
