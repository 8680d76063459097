"""Which entry of the catalog of frameworks a row means, by name, date and notes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from benchmarks.measured_runs.cells import Row
from costmodel.catalog.releases import release_of as release_named

TABLE = Path(__file__).with_name("frameworks.yaml")

RELEASE = r"(\d\d\.\d\d(?:\.\d\d)?)"

RELEASES = (
    ("source_ref", re.compile(rf"\({RELEASE} NeMo Container")),
    ("source_ref", re.compile(rf"performance-summary \({RELEASE}, ")),
    ("id", re.compile(rf"^mb-{RELEASE}-")),
    ("framework", re.compile(rf"\b{RELEASE}\b")),
    ("notes", re.compile(rf"container NeMo {RELEASE}\b")),
    ("notes", re.compile(rf"^NeMo {RELEASE}")),
    ("source_ref", re.compile(rf"dgxc-benchmarking@.*\([^()]*? {RELEASE} (?:BF16|FP8)")),
    ("source_ref", re.compile(r"dgxc-benchmarking@v(\d\d\.\d\d)")),
)
"""
Where a row tells the release of its container, the surest first.

Titles of dgxc-benchmarking name the container where it is not that of their own month; further digits of its tags are
of the recipes, not of the container.
"""


BUILD = re.compile(r"\s*[@(+]")
"""What stands between a framework's name and what it was built of."""


def entry_of(row: Row) -> str:
    """The catalog's name of a row's framework; empty if it has none."""
    found = framework_of(row)
    if "release" not in found:
        entry = str(found.get("entry", ""))
        return _stated(row.text("framework"), entry) or entry
    return f"{found['entry']}-{release_of(row) or found['release']}"


def _stated(framework: str, entry: str) -> str:
    """
    The release that a row's name of its framework has itself, of the same stack and counted alike; else empty.

    >>> _stated("Megatron-LM 0.19 @0a1b2c", "megatron-lm-0.17"), _stated("Megatron-LM (Core)", "megatron-lm-0.17")
    ('megatron-lm-0.19', '')
    """
    own, known = release_named(BUILD.split(framework)[0]), release_named(entry)
    if own is None or known is None or (own.stack, own.scheme) != (known.stack, known.scheme):
        return ""
    return f"{own.stack}-{'.'.join(map(str, own.number))}"


def framework_of(row: Row) -> Mapping[str, Any]:
    """The entry of the table that fits a row; empty if none does."""
    return next((one for one in _table() if _fits(one, row)), {})


def release_of(row: Row) -> str:
    """The container's release, if the row tells it."""
    return next((release for column, pattern in RELEASES if (release := row.noted(pattern, column))), "")


def _fits(one: Mapping[str, Any], row: Row) -> bool:
    starts = tuple(start.lower() for start in one["starts"])
    is_in_time = "until" not in one or "" < row.text("date") < one["until"]
    return row.word("framework").startswith(starts) and is_in_time and one.get("noted", "") in row.text("notes")


@cache
def _table() -> tuple[Mapping[str, Any], ...]:
    return tuple(yaml.safe_load(TABLE.read_text(encoding="utf-8")))
