"""Waits of threads for each other: the backward pass for the forward pass, and the reverse."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from planner.measure.traces.events import Integers

BLOCKED_FRACTION = 0.5
"""Part of a thread's pause that another thread must fill for the pause to be a wait for it."""


def thread_edges(
    track: NDArray[np.int32], start: Integers, end: Integers, main: int
) -> tuple[list[tuple[int, int, int]], list[int]]:
    """
    Find waits between threads: where the main thread pauses while another one works, each waits for the other.

    PyTorch runs the backward pass on autograd's threads while the thread that called ``backward`` is blocked. No event
    records this; the pause shows it.

    Parameters
    ----------
    track, start, end
        Track and times of the threads' tasks, thread by thread in the order of their start; shape (tasks,).
    main
        Track of the main thread.

    Returns
    -------
    edges, explained
        Task before, task after and nanoseconds between them; tasks whose pause before them is a wait, not work of their
        own thread.
    """
    of_main = np.flatnonzero(track == main)
    edges: list[tuple[int, int, int]] = []
    explained: list[int] = []
    for other in np.unique(track[track != main]).tolist():
        tasks = np.flatnonzero(track == other)
        pause = np.searchsorted(start[of_main], start[tasks], side="right") - 1
        for number in np.unique(pause).tolist():
            burst = tasks[pause == number]
            if number < 0 or number + 1 >= len(of_main):
                continue
            left, right = int(of_main[number]), int(of_main[number + 1])
            first, last = int(burst[0]), int(burst[-1])
            if end[last] > start[right] or start[first] < end[left]:
                continue
            if end[last] - start[first] < BLOCKED_FRACTION * (start[right] - end[left]):
                continue
            edges += [(left, first, int(start[first] - end[left])), (last, right, int(start[right] - end[last]))]
            explained += [first, right]
    return edges, explained


def pauses(track: NDArray[np.int32], start: Integers, end: Integers, begin: int) -> Integers:
    """Return nanoseconds between each task and the one before on its thread, or the begin of the iteration."""
    first = np.r_[True, track[1:] != track[:-1]] if len(track) else np.zeros(0, dtype=bool)
    before = np.where(first, begin, np.r_[begin, end[:-1]][: len(track)])
    return np.maximum(start - before, 0)
