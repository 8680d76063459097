"""The explicit form as files: a table, and the models as YAML with one comment for each that needs it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from benchmarks.measured_runs.columns import EXPLICIT, RARE
from benchmarks.output import format_csv

MODELS_HEAD = """\
# Made by `python -m benchmarks.measured_runs` of collected/models.yaml; change that one.
# By key, what a job file's `model` takes: a model of the catalog with what differs, or a description of its own.
# 'rotary: false' of a GPT: its positions are learned, as many as the row's 'model.learned_positions' says.
"""


def table(rows: Iterable[Mapping[str, str]]) -> str:
    """Rows as CSV."""
    rows = list(rows)
    columns = [name for name in EXPLICIT if name not in RARE or any(row[name] for row in rows)]
    return format_csv(columns, rows)


def models_file(models: Mapping[str, Mapping[str, Any]], comments: Mapping[str, str]) -> str:
    """Models as YAML."""
    return MODELS_HEAD + "".join(_entry(key, entry, comments.get(key, "")) for key, entry in models.items())


def _entry(key: str, entry: Mapping[str, Any], comment: str) -> str:
    text = yaml.safe_dump({key: dict(entry)}, sort_keys=False, allow_unicode=True, width=120)
    return f"# {comment}\n{text}" if comment else text
