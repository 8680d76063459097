"""``python -m benchmarks.measured_runs``: makes the explicit table and models of those as collected."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from shutil import copytree

import yaml

from benchmarks.measured_runs.columns import models_file, read, table
from benchmarks.measured_runs.conversion import Converted, convert
from benchmarks.output import refuse_wrong_input
from costmodel.errors import SpecError

FOLDER = Path(__file__).parent
RUNS = FOLDER / "collected" / "runs.csv"
NEWER = RUNS.with_name("newer.csv")
"""Runs that were collected when constants, intervals and what releases have shown were fitted and counted already."""

ROWS_REFUSED = 1


@refuse_wrong_input
def main(arguments: Sequence[str] | None = None) -> int:
    """Write both files; 0 if every row was in order, 1 if some were refused, 2 if there is nothing to read."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.measured_runs", description=__doc__)
    parser.add_argument("--runs", type=Path, default=RUNS, help="collected table (default: ours)")
    parser.add_argument(
        "--models", type=Path, default=RUNS.with_name("models.yaml"), help="architectures, as collected"
    )
    parser.add_argument("-o", "--output", type=Path, default=FOLDER, help="folder to write runs.csv and models.yaml to")
    options = parser.parse_args(arguments)
    converted = convert_files(options.runs, options.models)
    write(converted, options.output)
    if options.runs == RUNS and options.output == FOLDER:
        newer = convert_files(NEWER, options.models)
        (FOLDER / NEWER.name).write_text(table(newer.rows), encoding="utf-8")
        converted = replace(converted, rows=[*converted.rows, *newer.rows])
    refused = [row for row in converted.rows if row["refused"]]
    print(f"{len(converted.rows)} rows, {len(converted.models)} models; {len(refused)} rows refused")
    for row in refused:
        print(f"  {row['id']}: {row['refused']}")
    return ROWS_REFUSED if refused else 0


def convert_files(runs: Path, models: Path) -> Converted:
    """
    Convert a collected table with its models.

    Raises
    ------
    SpecError
        If a file cannot be read.
    """
    try:
        entries = yaml.safe_load(models.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SpecError(str(models), f"cannot be read as YAML: {getattr(error, 'strerror', None) or error}.") from None
    if not isinstance(entries, dict) or not all(isinstance(entry, dict) for entry in entries.values()):
        raise SpecError(str(models), "must be a mapping of names to mappings.")
    return convert(read(runs), {str(key): entry for key, entry in entries.items()})


def write(converted: Converted, folder: Path) -> None:
    """Write the explicit form, with the devices of sites that its rows name by path."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "runs.csv").write_text(table(converted.rows), encoding="utf-8")
    (folder / "models.yaml").write_text(models_file(converted.models, converted.comments), encoding="utf-8")
    if folder.resolve() != FOLDER.resolve():
        copytree(FOLDER / "devices", folder / "devices", dirs_exist_ok=True)


if __name__ == "__main__":
    sys.exit(main())
