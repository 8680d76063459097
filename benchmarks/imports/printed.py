"""Printed and saved configurations against the values in them: rows of ``printed/expected.csv``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.imports.expected import values_of
from benchmarks.inputs import read_rows
from costmodel.errors import SpecError
from planner import import_job

FOLDER = "printed"
GIVEN = ("cluster.device=h100-80gb-sxm", "cluster.num_devices=64")
"""Entries where nothing prints them; devices are the file's own where it does."""

OF_DEEPSPEED = ("model=llama3-8b", "training.sequence_length=1024")
"""Entries that DeepSpeed's configuration never has."""

PRECISIONS = {"bfloat16": "bf16"}
OPEN = ("", "-1")
"""Values that say nothing, or follow from the number of devices."""


def report(folder: Path) -> int:
    """Print how many files give their values, and what differs; 1 where one does."""
    rows = read_rows(folder / FOLDER / "expected.csv")
    found = {row["file"]: list(_problems(row, folder / FOLDER / row["file"])) for row in rows}
    print(
        f"\nPrinted and saved configurations that give their values: {list(found.values()).count([])} of {len(found)}."
    )
    for name, problems in found.items():
        for problem in problems:
            print(f"  {name}: {problem}")
    return int(any(found.values()))


def _problems(row: Mapping[str, str], path: Path) -> Iterator[str]:
    more = OF_DEEPSPEED if "DeepSpeed configuration" in row["what"] else ()
    count = row["n_gpus_or_note"].partition(" ")[0]
    devices = () if row["what"].startswith("printed arg") or more else GIVEN[1:]
    try:
        job = import_job(path, [*GIVEN[:1], *devices, *more]).document
    except SpecError as error:
        yield str(error)
        return
    is_counted = not devices and count.isdecimal()
    got = values_of(job) | {"n_gpus_or_note": str(job["cluster"]["num_devices"]) if is_counted else ""}
    for name, value in got.items():
        expected = PRECISIONS.get(
            row.get(name, ""), row.get(name, "") if name != "n_gpus_or_note" else count if value else ""
        )
        if expected not in (*OPEN, value):
            yield f"{name}: {expected}, got {value}"
