"""Measured steps of planned runs: from their logs into the table that ``planner calibrate`` takes."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from costmodel import GIB_BYTES
from costmodel.errors import SpecError
from planner.jobs.run_jobs import PLANNED, References, RejectedRow, Run, read
from planner.measure.plans.logs import Logged, read_logs
from planner.measure.runs.predictions import Prediction, predictions
from planner.report.records import csv_table

MEASURED = ("step_seconds", "peak_memory_gib", "memory_kind")


def collect(runs: Path, logs: Path) -> tuple[str, list[str], list[str]]:
    """
    Fill the planned rows of a table with the steps of their logs.

    Return the table as CSV; a sentence on each row that stays as it is, and on each doubtful measurement; and the ids
    of the rows that were measured now.

    The logs of a row are files of a folder that begin with its id, such as ``plan-1.log`` or ``plan-1.rank0.out.gz``,
    or those in a folder with that name.

    Raises
    ------
    SpecError
        If there is no table or folder, no log of any planned row, or a log of another job or framework.
    """
    if not logs.is_dir():
        raise SpecError("--logs", f"there is no folder '{logs}'.")
    for _ in read(runs):  # which says what is wrong with a table
        pass
    with runs.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file)
        rows, columns = list(reader), list(reader.fieldnames or ())
    columns += [name for name in (*MEASURED, "kind") if name not in columns]
    notes, ids = list[str](), list[str]()
    for row in (row for row in rows if (row.get("kind") or "").strip() == PLANNED):
        paths = sorted(_logs_of(row["id"].strip(), logs))
        if not paths:
            notes.append(f"{row['id']}: no log begins with its id.")
            continue
        notes += _fill(row, read_logs(paths))
        ids.append(row["id"].strip())
    if not ids:
        problem = f"no file in '{logs}' begins with the id of a planned run."
        raise SpecError(
            "--logs",
            problem,
            f"Begin each log's name with an id of {runs}: {', '.join(row['id'] for row in rows)[:200]}.",
        )
    return csv_table(columns, rows), notes, ids


def _logs_of(name: str, folder: Path) -> Iterator[Path]:
    """Yield the logs of a run: its id, then an ending that is no letter or digit."""
    begin = re.compile(rf"{re.escape(name)}(?![A-Za-z0-9]).*\.(?:log|out|txt)(?:\.gz)?$")
    for path in folder.iterdir():
        if path.is_file() and begin.match(path.name):
            yield path
        elif path.is_dir() and path.name == name:
            yield from (one for one in path.iterdir() if re.search(r"\.(?:log|out)(?:\.gz)?$", one.name))


def _fill(row: dict[str, str], found: Logged) -> Iterator[str]:
    """Write the measurements of a run into its row."""
    batch = int(float(row["training.global_batch_size"]))
    if found.global_batch_size not in (None, batch):
        problem = f"its log has steps of {found.global_batch_size} sequences, its row of {batch}."
        raise SpecError(row["id"], problem, "Is it the log of another run?")
    if found.is_out_of_memory:
        row.update(kind="oom")
        yield f"{row['id']}: ran out of memory before its first step."
        return
    seconds = found.step_seconds
    if seconds is None and found.tokens_per_second_per_device:
        tokens = batch * float(row["training.sequence_length"])
        seconds = tokens / found.tokens_per_second_per_device / float(row["cluster.num_devices"])
    row.update(kind="", step_seconds=f"{seconds:.6g}")
    for kind, nbytes in (("reserved", found.reserved_bytes), ("allocated", found.allocated_bytes)):
        if nbytes:
            row.update(peak_memory_gib=f"{nbytes / GIB_BYTES:.6g}", memory_kind=kind)
    yield from (f"{row['id']}: {doubt}." for doubt in found.doubts)


# --- the plan that won -------------------------------------------------------------------------------------


def ranking_text(runs: Path, known: References, ids: Sequence[str]) -> str:
    """Return the measured plans, the fastest first, compared with their predictions."""
    rows = [row for row in read(runs) if row.id in ids]
    measured = {row.id: row for row in rows if isinstance(row, Run) and row.step_seconds}
    predicted = {one.run.id: one for one in predictions([*measured.values()], known) if isinstance(one, Prediction)}
    return "\n".join(_ranking(measured, predicted, [row.id for row in rows if isinstance(row, Run | RejectedRow)]))


def _ranking(measured: Mapping[str, Run], predicted: Mapping[str, Prediction], ids: Sequence[str]) -> Iterator[str]:
    """Write a line for each run; runs with different batches are ordered by seconds per sequence."""
    order = sorted(measured.values(), key=lambda run: (run.step_seconds or 0.0) / _batch(run))
    yield f"{'measured':<20} {'step, s':>10} {'predicted':>10} {'off':>7} {'peak, GiB':>10} {'predicted':>10}"
    for run in order:
        one, seconds = predicted.get(run.id), run.step_seconds or 0.0
        costed = f"{one.step_seconds:>10.3f} {one.step_seconds / seconds - 1:>+7.1%}" if one else f"{'-':>10} {'-':>7}"
        peak = f"{run.peak_memory_gib:>10.1f}" if run.peak_memory_gib else f"{'-':>10}"
        peak += f" {one.peak_memory_gib:>10.1f}" if one and run.peak_memory_gib else f" {'-':>10}"
        yield f"{run.id:<20} {seconds:>10.3f} {costed} {peak}"
    for name in ids:
        if name not in measured:
            yield f"{name:<20} {'-':>10}  not measured, or out of memory"
    if len(order) > 1:
        best, second = order[:2]
        lead = (second.step_seconds or 0.0) / _batch(second) * _batch(best) / (best.step_seconds or 1.0) - 1
        yield f"{best.id} won: {second.id}, the next one, takes {lead:.1%} longer per sequence."


def _batch(run: Run) -> float:
    return float(run.get("training.global_batch_size"))
