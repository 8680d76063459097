"""The grid's runs as jobs and strategies, what was measured of them, and what the planner says."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import yaml

from costmodel import GIB_BYTES
from costmodel.errors import SpecError
from costmodel.facts.model import Mlp
from costmodel.memory import seen_bytes
from costmodel.step.estimate import Estimate, estimate
from planner.jobs.problem import Problem, load
from planner.jobs.strategy_file import complete_strategy, read_given
from planner.uncertainty.peaks import RUNS_FAST, STARTS, chance_fast, chance_to_fit

HERE = Path(__file__).parent

RUNS, STACK = HERE / "runs.csv", HERE / "nanotron.yaml"

"""What nanotron calls GB (helpers.py:429: bytes / 1024**3)."""

DEVICES_PER_NODE = 8

WHOLE, MEASURED = ("nodes", "dp", "tp", "pp", "mbs", "zero"), ("tokens_per_s_per_gpu", "gpu_memory_gb")

COLUMNS = ("model", *WHOLE, *MEASURED)

NUMBER = re.compile(r"\d+(\.\d+)?")


@dataclass(frozen=True)
class GridRun:
    """
    One layout of the grid.

    Parameters
    ----------
    row
        Its cells by column.
    problem
        Its job.
    """

    row: Mapping[str, str]
    problem: Problem

    @property
    def cell(self) -> tuple[str, int]:
        """The model and the number of nodes, among whose layouts a planner chooses."""
        return self.row["model"], int(self.row["nodes"])

    @property
    def tokens_per_second(self) -> float | None:
        """Measured, per device; None: it crashed or ran out of memory."""
        text = self.row["tokens_per_s_per_gpu"]
        return float(text) if text else None

    @property
    def reserved_gib(self) -> float:
        """Measured peak of what PyTorch's allocator reserved; 0 where it did not run."""
        return float(self.row["gpu_memory_gb"] or 0)

    @cached_property
    def predicted(self) -> Estimate:
        """The planner's estimate of its step and memory."""
        return estimate(self.problem.facts, complete_strategy(self.problem.facts, read_given(self._strategy())))

    @property
    def can_be_costed(self) -> bool:
        """Whether the planner has an estimate of it."""
        try:
            return self.predicted is not None
        except SpecError:
            return False

    @property
    def tensor_gib(self) -> float:
        """Predicted peak of tensors on its fullest rank."""
        return seen_bytes(self.problem.facts.cluster.device, self.predicted.device_bytes, "allocated") / GIB_BYTES

    @cached_property
    def fits(self) -> float:
        """The chance that it fits."""
        return chance_to_fit(self.problem.facts.cluster, device_bytes=self.predicted.device_bytes).share

    @cached_property
    def is_fast(self) -> float:
        """The chance that the allocator does not retry."""
        cluster, one = self.problem.facts.cluster, self.predicted
        return chance_fast(cluster, one.strategy, device_bytes=one.device_bytes).share

    @property
    def is_planned(self) -> bool:
        """Whether the default headroom of a search leaves it in."""
        return self.fits >= STARTS and self.is_fast >= RUNS_FAST

    def _strategy(self) -> dict[str, Any]:
        row, pp = self.row, int(self.row["pp"])
        sharding = "optimizer" if row["zero"] == "1" and int(row["dp"]) > 1 else "none"
        own = {name: int(row[name]) for name in ("tp", "pp", "mbs")}
        layout = {"layout": "+".join(map(str, stages(self.problem, pp)))} if pp > 1 else {}
        return {**known_stack()["strategy"], **own, "sharding": sharding, **layout}


def known_stack() -> dict[str, Any]:
    """How the grid's software is costed."""
    made: dict[str, Any] = yaml.safe_load(STACK.read_text(encoding="utf-8"))
    return made


def read_runs(path: Path = RUNS) -> Iterator[GridRun]:
    """
    Read the runs of a table.

    Raises
    ------
    SpecError
        If a cell is missing or wrong, or if a model is not known.
    """
    stack = known_stack()
    problems: dict[tuple[str, int], Problem] = {}
    with path.open(encoding="utf-8", newline="") as stream:
        for line, row in enumerate(csv.DictReader(stream), start=2):
            _require(row, f"{path.name}:{line}")
            cell = row["model"], int(row["nodes"])
            if cell not in problems:
                problems[cell] = _problem(stack, *cell, place=f"{path.name}:{line}.model")
            yield GridRun(row=row, problem=problems[cell])


def _require(row: Mapping[str, str | None], place: str) -> None:
    """Refuse a row with a missing or a wrong cell."""
    for name in COLUMNS:
        cell = row.get(name)
        if cell is None:
            raise SpecError(f"{place}.{name}", "is required but missing.")
        if name in WHOLE and not cell.isdecimal():
            raise SpecError(f"{place}.{name}", f"must be a whole number, got {cell!r}.")
        if name in MEASURED and cell and not NUMBER.fullmatch(cell):
            raise SpecError(f"{place}.{name}", f"must be a number, got {cell!r}.")


def _problem(stack: Mapping[str, Any], model: str, nodes: int, *, place: str) -> Problem:
    if model not in stack["models"]:
        raise SpecError(place, f"must be one of {', '.join(stack['models'])}, got {model!r}.")
    cluster = {**stack["cluster"], "num_devices": nodes * DEVICES_PER_NODE, "devices_per_node": DEVICES_PER_NODE}
    return load(
        {"training": stack["training"], "model": {"name": model, **stack["models"][model]}, "cluster": cluster},
        name=model,
    )


def stages(problem: Problem, pp: int) -> list[int]:
    """
    Layers of each pipeline rank as nanotron deals them: a rank is full once its cost exceeds its share.

    >>> [stages(next(read_runs()).problem, pp) for pp in (2, 4)]
    [[11, 5], [6, 5, 5, 0]]

    References
    ----------
    nanotron 0.4, ``models/base.py:181-197`` and ``models/llama.py:775-787``: a layer costs 4 h h + 3 f h, the head
    V h, embedding and final norm nothing.
    """
    model = problem.facts.model
    hidden, layers = model.hidden_size, model.num_layers
    mlp = model.layers[0].feed_forward
    assert isinstance(mlp, Mlp), "the grid's models are dense"
    costs = [0, *[4 * hidden**2 + 3 * mlp.ffn_hidden_size * hidden] * layers, 0, model.vocab_size * hidden]
    total, dealt, rank = sum(costs), [0] * pp, 0
    for block, cost in enumerate(accumulate(costs)):
        dealt[rank] += 1 <= block <= layers
        rank += cost * pp > total * (rank + 1)
    return dealt
