"""Threads that poll for a kernel without a call: they read memory until the kernel writes it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

POLLS = frozenset({"notify"})
"""
Operations for which a thread polls: the host learns how many tokens arrive before they are sent.

DeepEP, ``csrc/deep_ep.cpp``: ``internode_dispatch`` and ``intranode_dispatch`` loop until the counter in mapped memory
is set; libraries derived from it do the same.
"""

SOON = 100_000
"""Nanoseconds after the kernel's end within which the thread goes on."""

LONG = 100_000
"""Nanoseconds below which a pause is ignored."""


def find_polls(
    launches: Iterable[tuple[int, int]], following: Mapping[int, int], start: Sequence[int], end: Sequence[int]
) -> list[tuple[int, int, int]]:
    """
    Find kernels for which the thread that launched them waited.

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
        The kernel, the task that waited for it, and the nanoseconds between the kernel's end and the task's begin.
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
