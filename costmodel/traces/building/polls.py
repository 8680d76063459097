"""Threads that wait for a kernel without a call: they read memory again and again until it writes there."""

from __future__ import annotations

from collections.abc import Iterable

POLLS = frozenset({"notify"})
"""
Operations that a thread waits for in this way: how many tokens arrive is told to the host before they are sent.

DeepEP, ``csrc/deep_ep.cpp``: ``internode_dispatch`` and ``intranode_dispatch`` loop until the counter in mapped memory
is set; so do libraries that were made of it.
"""

SOON = 100_000
"""Nanoseconds after the kernel's end within which the thread goes on."""

LONG = 100_000
"""Nanoseconds of a pause below which it does not matter."""


def polled(
    launches: Iterable[tuple[int, int]], following: dict[int, int], start: dict[int, int], end: dict[int, int]
) -> list[tuple[int, int, int]]:
    """
    Kernels for which the thread that launched them waited.

    Parameters
    ----------
    launches
        Pairs of a task of a thread and the kernel of such an operation that it launched.
    following
        The next task of each thread's task.
    start, end
        Nanoseconds of all tasks.

    Returns
    -------
    list
        Kernel, the task that waited for it, and how long after its end that began.
    """
    found = []
    for task, kernel in launches:
        waiting = following.get(task)
        if waiting is None:
            continue
        since = start[waiting] - end[kernel]
        if 0 <= since <= SOON and start[waiting] - end[task] >= LONG:
            found.append((kernel, waiting, since))
    return found
