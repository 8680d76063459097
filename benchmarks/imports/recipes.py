"""
Launches of dgxc-benchmarking against the layouts that its scripts result in: rows of ``recipes/dgxc.csv``.

Each row says what a script hands to Megatron-Bridge's ``setup_experiment.py``, and the layout that comes of it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.inputs import read_rows
from costmodel.errors import SpecError
from planner import import_job
from planner.frameworks.imports.published import PRECISIONS

TABLE = Path("recipes/dgxc.csv")
LEAST_SHARE = 0.95

DEGREES = {"tp": "tp", "pp": "pp", "cp": "cp", "ep": "ep", "etp": "etp", "vpp": "vp", "mbs": "mbs"}
"""Decisions of a job by the table's columns; an empty cell is 1."""

NAME = re.compile(r"_pretrain_config|_gb?\d+|_[hb]\d00|:")
"""End of a model's name in that of a recipe."""


def report(folder: Path) -> int:
    """Print how many rows give their layout, and why others do not; 1 where there are too few."""
    rows = [row for row in read_rows(folder / TABLE) if row["framework"] == "megatron_bridge"]
    with TemporaryDirectory() as place:
        found = [next(_problems(row, Path(place) / "launch.sh"), "") for row in rows]
    right = found.count("")
    print(f"\nRows of {TABLE} of Megatron-Bridge that give their layout: {right} of {len(rows)}.")
    for text, number in Counter(filter(None, found)).most_common():
        print(f"{number:4} {text[:150]}")
    return int(right < LEAST_SHARE * len(rows))


def _problems(row: Mapping[str, str], path: Path) -> Iterator[str]:
    """Decisions that differ at one of the row's scales, or the refusal."""
    name = NAME.split(row["recipe_name"].lower())[0]
    dtype = next(dtype for dtype, precision in PRECISIONS.items() if precision == row["dtype"])
    more = re.sub(r"(^| )(-\w\w)=", r"\1\2 ", row["overrides"])
    variant = f"--config_variant {row['variant']}" if row["variant"] else ""
    for number in row["n_gpus"].split(";"):
        path.write_text(
            f"FW_VERSION={row['container']}\npython scripts/performance/setup_experiment.py --container_image "
            f"$LLMB_INSTALL/x.sqsh --gpu {row['device'].split('-')[0]} --num_gpus {number} --compute_dtype {dtype} "
            f"--model_recipe_name {name} {variant} {more}\n",
            encoding="utf-8",
        )
        try:
            job = import_job(path).document
        except SpecError as error:
            yield str(error)
            return
        given = {**job["strategy"], "etp": 1 if job["strategy"]["ep"] == 1 else job["strategy"]["etp"]}
        for decision, column in DEGREES.items():
            if str(given[decision]) != (row[column] or "1") and not (decision == "etp" and not row["etp"]):
                yield f"{row['recipe_name']} {row['container']}: {decision} {row[column]}, got {given[decision]}"
        if str(job["training"]["sequence_length"]) != row["seq_len"]:
            yield f"{row['recipe_name']}: sequence {row['seq_len']}"
