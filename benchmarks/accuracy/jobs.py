"""Measured runs as job files: what ``planner estimate`` reads, with the strategy that ran."""

from __future__ import annotations

import json
import multiprocessing
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import numpy as np
import yaml

from costmodel import GIB_BYTES
from costmodel.errors import PlanningError, SpecError
from planner.jobs.problem import load
from planner.jobs.run_jobs import RejectedRow
from planner.jobs.strategy_file import strategy_entries
from planner.measure.calibrate.cases import Array
from planner.measure.runs.predictions import Case, Prediction
from planner.report import render
from planner.verbs.plan import estimate


def write_jobs(folder: Path, results: Iterable[Prediction | RejectedRow]) -> int:
    """
    Write every predicted row as ``<id>.yaml``; returns how many.

    Raises
    ------
    SpecError
        If two ids are the same name of a file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    ids: dict[str, str] = {}
    for one in results:
        if isinstance(one, Prediction):
            name = file_name(one.run.id)
            if name in ids:
                raise SpecError("id", f"'{ids[name]}' and '{one.run.id}' would both be written to {name}.yaml.")
            ids[name] = one.run.id
            (folder / f"{name}.yaml").write_text(job_text(one), encoding="utf-8")
    return len(ids)


def file_name(row_id: str) -> str:
    """
    A row's id as the name of a file: what no file name may hold becomes an underscore.

    >>> file_name("zb-6.2b/1f1b mb=1")
    'zb-6.2b_1f1b_mb=1'
    """
    return re.sub(r"[^\w.,=+@-]", "_", row_id)


def job_text(case: Case) -> str:
    """A row as a job file that needs no other file, its strategy among it."""
    return str(yaml.safe_dump(job_entries(case), sort_keys=False, width=116, allow_unicode=True))


def job_entries(case: Case) -> dict[str, Any]:
    """Return the entries of a row's job as plain data."""
    document = {name: entry for name, entry in case.problem.document.items() if name != "search"}
    return {**document, "strategy": strategy_entries(case.facts, case.strategy)}


# --- whether the files say what was predicted ----------------------------------------------------------------


def differences(results: Iterable[Prediction | RejectedRow], folder: Path | None = None) -> Iterator[tuple[str, str]]:
    """
    Ids of rows whose job files ``planner estimate`` costs otherwise than the benchmark the rows, and how.

    Parameters
    ----------
    results
        Every row.
    folder
        Folder that :func:`write_jobs` wrote; None: they are written now, and deleted afterwards.
    """
    predicted = [one for one in results if isinstance(one, Prediction)]
    if folder is not None:
        for one in predicted:
            yield from _differences(one, folder / f"{file_name(one.run.id)}.yaml")
        return
    with TemporaryDirectory() as temporary:
        write_jobs(Path(temporary), predicted)
        yield from differences(predicted, Path(temporary))


def _differences(one: Prediction, path: Path) -> Iterator[tuple[str, str]]:
    """Figure by figure, to the last digit."""
    try:
        said = json.loads(render(estimate(load(path), {}), "json"))
    except PlanningError as error:
        yield one.run.id, str(error)
        return
    for name, figure in figures(one).items():
        if said[name] != figure:
            yield one.run.id, f"{name} is {said[name]!r} instead of {figure!r}"


def figures(one: Prediction) -> dict[str, float]:
    """Return the benchmark's figures of a row, by the names of ``planner estimate --format json``."""
    seen = {SEEN[one.run.memory_kind]: one.peak_memory_gib * GIB_BYTES} if one.run.memory_kind in SEEN else {}
    return {"step_time_seconds": one.step_seconds, "peak_memory_bytes": one.device_bytes, **seen}


SEEN = {"allocated": "allocated_bytes", "unspecified": "allocated_bytes", "reserved": "reserved_bytes"}
"""Kinds of measured memory that are less than the whole peak, and what the command calls them."""


def check_lines(results: Iterable[Prediction | RejectedRow], differing: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Count the job files that agree, and list the differences of the others, as text."""
    count = sum(isinstance(one, Prediction) for one in results)
    agreeing = count - len({row for row, _ in differing})
    yield f"\nJob files that 'planner estimate' costs as their rows, to the last digit: {agreeing} of {count}"
    yield from (f"  {row}: {how}" for row, how in differing)


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
    fork = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(num_processes, mp_context=fork, initializer=_SHARED.append, initargs=(work,)) as pool:
        return list(pool.map(_do, range(count)))


_SHARED: list[Callable[[int], Any]] = []
"""Tasks of the processes of :func:`share_work`; theirs is the last, as a process may share work out itself."""


def _do(index: int) -> Any:
    return _SHARED[-1](index)


UNEXPLAINED = 2.0
"""
Error that formulas leave of a published step, over :data:`planner.measure.calibrate.fit.NOISE`: 4 %.

After a fit the median row is 3 % off, as with a normal error of 5 %. Tried were 2, 3, 4 and 5 %: 4 % predicts left-out
groups best.
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
