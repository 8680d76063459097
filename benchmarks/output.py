"""Output of benchmarks: tables as CSV, generated files of the planner, verdicts and exit codes."""

from __future__ import annotations

import csv
import functools
import io
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ParamSpec

from costmodel.errors import PlanningError

Given = ParamSpec("Given")

CHECKS_FAILED = 1
NOTHING_TO_READ = 2


def refuse_wrong_input(main: Callable[Given, int]) -> Callable[Given, int]:
    """Let a command report input that it cannot read, and return 2 instead of a traceback."""

    @functools.wraps(main)
    def run(*args: Given.args, **kwargs: Given.kwargs) -> int:
        try:
            return main(*args, **kwargs)
        except (PlanningError, OSError) as error:
            print(error, file=sys.stderr)
            return NOTHING_TO_READ

    return run


def conclude(failures: Iterable[str]) -> int:
    """Print the checks that failed; return the exit code, 1 if there are any."""
    found = list(failures)
    for failure in found:
        print(f"FAILED: {failure}")
    print("All checks hold." if not found else f"{len(found)} checks failed.")
    return CHECKS_FAILED if found else 0


def print_lines(lines: Iterable[str]) -> None:
    """Print lines as they are made."""
    for line in lines:
        print(line, flush=True)


def format_csv(columns: Sequence[str], rows: Iterable[Mapping[str, Any] | Sequence[Any]]) -> str:
    """Write a table of rows, cells by column or in the order of the columns."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([row.get(name) for name in columns] if isinstance(row, Mapping) else row for row in rows)
    return text.getvalue()


def format_generated(entries: Mapping[str, Any]) -> str:
    """Write a JSON file of the planner that a benchmark generates."""
    return f"{json.dumps(dict(entries), indent=2)}\n"
