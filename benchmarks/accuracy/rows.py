"""Rows of a fit: their weights, and work on them that processes share."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from multiprocessing.connection import Connection
from typing import TypeVar

import numpy as np

from planner.measure.calibrate.cases import Array
from planner.measure.runs.predictions import Case

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


UNEXPLAINED = 2.0
"""
Error that formulas leave of a published step, over :data:`planner.measure.calibrate.fit.NOISE`: 4 %.

After a fit the median row is 3 % off, as with a normal error of 5 %. Of 2, 3, 4 and 5 % in turn, 4 % predicts
left-out groups best.
"""


def source_weights(cases: Sequence[Case], *, without: Collection[str] = ()) -> Array:
    """
    Return square roots of the rows' weights: a source weighs as the square root of its rows.

    Rows of one source share its site, its software and its habits. So a hundred of them carry less information than a
    hundred from different sources, but more than three. The rows of one alone weigh as an error of ``UNEXPLAINED``.

    Parameters
    ----------
    cases
        The rows.
    without
        Ids of rows with weight 0.
    """
    rows = Counter(case.run.source for case in cases if case.run.id not in without)
    roots = [rows[case.run.source] ** -0.25 if case.run.id not in without else 0.0 for case in cases]
    return np.array(roots) / UNEXPLAINED
