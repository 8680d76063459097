"""``python -m benchmarks.records``: says whether the planner's records follow from the measured runs; ``--write``."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.accuracy.metrics import NEWER, RUNS, grouped, read_table
from benchmarks.inputs import read_rows
from benchmarks.output import format_csv
from costmodel.models.flops import model_flops_per_token
from costmodel.models.patterns import COLUMNS as SHAPE
from costmodel.models.patterns import shape_of
from planner.jobs.run_jobs import RejectedRow, Run
from planner.measure.runs.predictions import Case, cases
from planner.uncertainty.counts import architecture_of
from planner.uncertainty.features import num_bits
from planner.uncertainty.records import record_month

COLLECTED = RUNS.parent / "collected"
TABLE = Path(__file__).parents[2] / "planner" / "uncertainty" / "records.csv"

OUT_OF_STEP = 1

PARTS = "parts"
"""The setting ``composition`` of runs whose step is a sum of layers that were timed alone."""

TAGGED = re.compile(r"^(dgxc|mb)-(\d\d\.\d\d(?:\.\d\d?)?)-")
"""Ids that name the project and its tag or container."""
PROJECTS = {"dgxc": "dgxc", "mb": "Megatron-Bridge"}

BALANCED = "force-balanced"
"""Notes of a router that was forced to balance, which no column says."""

ROUNDED = "QUANTISED"
"""Notes of a source that prints whole samples per second."""

COLUMNS = (
    *("id", "label", "source", "framework", "date", "model", *SHAPE, "device", "precision", "sequence_length"),
    *("num_devices", "tokens_per_second_per_device", "architecture", "flops_per_token", "notes"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare or write; 1 if the table is not what the measured runs say."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.records", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the planner's table")
    options = parser.parse_args(arguments)
    rows = record_rows()
    text = format_csv(COLUMNS, rows)
    if options.write:
        TABLE.write_text(text, encoding="utf-8")
    is_current = TABLE.is_file() and TABLE.read_text(encoding="utf-8") == text
    kinds = {(row["model"], row["device"], row["precision"]) for row in rows}
    print(f"{len(rows)} records of {len(kinds)} models, devices and precisions; the table is current: {is_current}")
    return 0 if is_current else OUT_OF_STEP


def record_rows() -> list[dict[str, str]]:
    """Return the records of all measured runs, those that no fit has seen included."""
    notes = collected_notes()
    found: list[dict[str, str]] = []
    for path in (RUNS, NEWER):
        runs, known = read_table(path, RUNS.with_name("models.yaml"))
        measured = [one for one in runs if isinstance(one, Run) and is_pretraining(one)]
        found += [_row(one, notes) for one in cases(measured, known) if not isinstance(one, RejectedRow)]
    return sorted(best_rows(found), key=lambda row: (_kind(row), row["date"], row["id"]))


def is_pretraining(run: Run) -> bool:
    """True for a step of the whole model that somebody measured; doubtful rows are none."""
    is_whole = run.kind == "pretrain" and run.get("settings.composition") != PARTS
    return is_whole and run.step_seconds is not None and bool(run.date) and run.get("model.num_layers") is None


def best_rows(rows: Iterable[Mapping[str, str]]) -> Iterator[dict[str, str]]:
    """Each row that no other one of its kind, as late or later, is as fast as."""
    for same in grouped(rows, _kind).values():
        fastest = 0.0
        for row in sorted(same, key=lambda one: (-_month(one), -_rate(one), one["id"])):
            if _rate(row) > fastest:
                yield dict(row)
                fastest = _rate(row)


def _kind(row: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(row[name] for name in ("model", "device", "bits", "sequence_length"))


def _month(row: Mapping[str, str]) -> float:
    return record_month(row["framework"], row["date"])


def _rate(row: Mapping[str, str]) -> float:
    return float(row["tokens_per_second_per_device"])


def _row(case: Case, notes: Mapping[str, str]) -> dict[str, str]:
    run, facts = case.run, case.facts
    shape, work, devices = shape_of(facts.model), facts.workload, facts.cluster.num_devices
    assert run.step_seconds is not None, "a run without a time is no record"
    rate = run.tokens_per_second or work.global_batch_size * work.sequence_length / devices / run.step_seconds
    return {
        "id": run.id,
        "label": _label(run),
        "source": run.source,
        "framework": str(run.get("cluster.framework") or ""),
        "date": run.date,
        "model": run.model,
        **{name: str(getattr(shape, name)) for name in SHAPE},
        "device": facts.cluster.device.name,
        "precision": work.precision.name,
        "bits": str(num_bits(work.precision)),
        "sequence_length": str(work.sequence_length),
        "num_devices": str(devices),
        "tokens_per_second_per_device": f"{rate:.6g}",
        "architecture": architecture_of(facts.model),
        "flops_per_token": f"{model_flops_per_token(facts.model, work.sequence_length, 'causal'):.6g}",
        "notes": "; ".join(_remarks(run, notes[run.id])),
    }


def _label(run: Run) -> str:
    """
    The project and its release as reports name them.

    The id says both where a project publishes many tables; elsewhere the source and the date.
    """
    if tagged := TAGGED.match(run.id):
        return f"{PROJECTS[tagged.group(1)]} {tagged.group(2)}"
    source = run.source.partition(" (")[0].removesuffix(" result logs")
    return source if any(letter.isdigit() for letter in source) else f"{source}, {run.date}"


def _remarks(run: Run, notes: str) -> Iterator[str]:
    """List the facts that make a rate better than it would be elsewhere, or less exact."""
    words, _, forced = notes.rpartition("\n")
    if forced in ("1", "True", "true") or (not forced and BALANCED in words):
        yield "routing is balanced by force"
    if ROUNDED in words:
        yield "rounded to whole samples per second"
    yield from (one for one in run.not_modelled if "token drop" in one)


def collected_notes() -> dict[str, str]:
    """Return notes and, in a line of its own, the column ``force_balance`` of collected rows, by id."""
    rows = [row for name in ("runs.csv", "newer.csv") for row in read_rows(COLLECTED / name)]
    return {row["id"]: f"{row['notes']}\n{row.get('force_balance') or ''}" for row in rows}


if __name__ == "__main__":
    sys.exit(main())
