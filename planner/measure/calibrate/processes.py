"""Independent pieces of work shared by processes that inherit their input."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import TypeVar

Result = TypeVar("Result")


def share_work(work: Callable[[int], Result], count: int, num_processes: int) -> list[Result]:
    """
    Return the results of ``work(0)`` to ``work(count - 1)``, in order.

    Processes are forked, so that nothing is copied to them; where they cannot be forked, one process does all work.

    Parameters
    ----------
    work
        Free of side effects; its results can be pickled.
    count
        Number of pieces.
    num_processes
        Number of processes, which take the pieces in turns.
    """
    num_processes = min(num_processes, count)
    if num_processes <= 1 or "fork" not in multiprocessing.get_all_start_methods():
        return [work(index) for index in range(count)]
    context = multiprocessing.get_context("fork")
    parts: dict[int, Result] = {}
    channels = [context.Pipe(duplex=False) for _ in range(num_processes)]
    workers = [
        context.Process(target=_serve, args=(work, range(first, count, num_processes), sender))
        for first, (_, sender) in enumerate(channels)
    ]
    for worker in workers:
        worker.start()
    for first, (receiver, sender) in enumerate(channels):
        sender.close()
        done = receiver.recv()
        if isinstance(done, Exception):
            raise done
        parts.update(zip(range(first, count, num_processes), done, strict=True))
    for worker in workers:
        worker.join()
    return [parts[index] for index in range(count)]


def _serve(work: Callable[[int], Result], indices: range, sender: Connection) -> None:
    try:
        sender.send([work(index) for index in indices])
    except Exception as error:  # It is raised in the process that waits for the results.
        sender.send(error)
    sender.close()
