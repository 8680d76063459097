"""Inputs of benchmarks: files of data, and documents of jobs."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from costmodel import catalog
from costmodel.errors import SpecError

TOKENS = 1e12
"""Tokens of a job's whole training; steps do not depend on them."""


def read_yaml(path: str | Path) -> Any:
    """Read the YAML file of this path, or the one that lies beside a module of this path."""
    return yaml.load(Path(path).with_suffix(".yaml").read_text(encoding="utf-8"), Loader=catalog.LOADER)


def read_rows(path: Path, needed: Sequence[str] = ()) -> list[dict[str, str]]:
    """
    Read the rows of a CSV file whose first line names its columns.

    Raises
    ------
    SpecError
        If the file cannot be read, or lacks a needed column.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            table = csv.DictReader(file)
            rows = list(table)
    except OSError as error:
        raise SpecError(str(path), f"cannot be read: {error.strerror}.") from None
    if missing := [name for name in needed if name not in (table.fieldnames or ())]:
        raise SpecError(str(path), f"lacks the columns {', '.join(missing)}.")
    return rows


def job_document(
    model: Any,
    device: str,
    num_devices: int,
    batch: int,
    length: int,
    *,
    framework: str | None = None,
    precision: str | None = None,
    **entries: Any,
) -> dict[str, Any]:
    """
    Return a job as its file says it, with further entries; in FP16 where its device has nothing else.

    Parameters
    ----------
    model, device, num_devices, framework
        Model and cluster.
    batch, length
        Global batch size, sequence length.
    precision
        Recipe; None: the planner's own choice.
    """
    if precision is None and "bf16" not in catalog.device(device).peak_flops:
        precision = "fp16"
    cluster = {"device": device, "num_devices": num_devices, **({"framework": framework} if framework else {})}
    training = {
        "global_batch_size": batch,
        "sequence_length": length,
        "tokens": TOKENS,
        **({"precision": precision} if precision else {}),
    }
    return {"model": model, "cluster": cluster, "training": training, **entries}
