"""
``python -m benchmarks.grid``: chances to be fast and ranks of layouts beside a whole measured grid.

1B and 8B on 1 to 32 nodes of 8 H100 (``benchmarks/grid/runs.csv``), which no constant and no law was fitted to. Exits
with 1 where a limit is missed.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.accuracy.metrics import grouped, pairs_in_order
from benchmarks.inputs import read_rows, read_yaml
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

"""Bytes of a GB of nanotron (helpers.py:429: bytes / 1024**3)."""

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
        """True if the planner has an estimate of it."""
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
        """True if the default headroom of a search leaves it in."""
        return self.fits >= STARTS and self.is_fast >= RUNS_FAST

    def _strategy(self) -> dict[str, Any]:
        row, pp = self.row, int(self.row["pp"])
        sharding = "optimizer" if row["zero"] == "1" and int(row["dp"]) > 1 else "none"
        own = {name: int(row[name]) for name in ("tp", "pp", "mbs")}
        layout = {"layout": "+".join(map(str, stages(self.problem, pp)))} if pp > 1 else {}
        return {**read_yaml(STACK)["strategy"], **own, "sharding": sharding, **layout}


def read_runs(path: Path = RUNS) -> Iterator[GridRun]:
    """
    Read the runs of a table.

    Raises
    ------
    SpecError
        If a cell is missing or wrong, or if a model is not known.
    """
    stack = read_yaml(STACK)
    problems: dict[tuple[str, int], Problem] = {}
    for line, row in enumerate(read_rows(path), start=2):
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


BANDS = {(70.0, np.inf): (0.8, 1.0), (66.0, 70.0): (0.0, 1.0), (60.0, 66.0): (0.0, 1.0), (0.0, 60.0): (0.0, 0.05)}
"""
GiB reserved, and how large the share of runs whose chance to be fast is below one half must be at least and at most.

Eight runs that a doubled micro-batch brought above 70 GiB all fell below 0.7 of the speed; at 66 to 70 GiB 1 of 6,
at 60 to 66 GiB 3 of 25, below 37 of 448.
"""

MOST_NODES = 8
"""Cells of more nodes are stated, and not judged: their network is slower than any model of it."""

LEAST_SPEED = 0.7
"""Least speed of the layout that is ranked first in a cell, as a fraction of the best measured one."""

LARGE = 40.0
"""GiB reserved from which on peaks are compared."""


def slow_share(runs: Sequence[GridRun]) -> float:
    """Share of runs whose chance to be fast is below one half."""
    return sum(run.is_fast < 0.5 for run in runs) / max(len(runs), 1)


def ranked_first(runs: Sequence[GridRun]) -> GridRun:
    """The fastest by prediction among those that the default headroom leaves in, or of all where it leaves none."""
    return min([run for run in runs if run.is_planned] or runs, key=lambda run: run.predicted.step_seconds)


def costed(runs: Iterable[GridRun]) -> tuple[list[GridRun], list[GridRun]]:
    """Return the runs that can be costed, and the others: they have more stages than layers."""
    found: list[GridRun] = []
    others: list[GridRun] = []
    for run in runs:
        (found if run.can_be_costed else others).append(run)
    return found, others


def judge(runs: Sequence[GridRun]) -> Iterator[tuple[str, bool]]:
    """Lines of the report, each with whether it holds."""
    ran = [run for run in runs if run.tokens_per_second is not None]
    crashed = [run for run in runs if run.tokens_per_second is None]
    ratios = np.array([run.reserved_gib / run.tensor_gib for run in ran if run.reserved_gib > LARGE])
    low, middle, high = np.percentile(ratios, (10, 50, 90)) if len(ratios) else (np.nan,) * 3
    over = f"median {middle:.2f}, 80 % {low:.2f} to {high:.2f}"
    yield f"reserved over predicted tensors, {len(ratios)} runs above {LARGE:g} GiB: {over}", True
    lost = f"{sum(run.fits < 0.5 for run in crashed)} of {len(crashed)}"
    yield f"crashed or out of memory, not told apart: {lost} have a chance to fit below one half", True
    yield "", True
    for (floor, ceiling), (least, most) in BANDS.items():
        those = [run for run in ran if floor <= run.reserved_gib < ceiling]
        share = slow_share(those)
        slow, goal = round(share * len(those)), "; ".join((*_goal("at least", least, 0), *_goal("at most", most, 1)))
        text = f"{floor:g} GiB and above" if ceiling == np.inf else f"{floor:g} to {ceiling:g} GiB"
        line = f"{text:<17} {slow:>4} of {len(those):>4} get a chance to be fast below one half, {share:.0%} {goal}"
        yield line.rstrip(), not those or least <= share <= most
    yield "", True
    yield from _cells(ran)


def _goal(words: str, share: float, idle: float) -> tuple[str, ...]:
    """The words of a limit, unless it limits nothing."""
    return () if share == idle else (f"({words} {share:.0%})",)


def _cells(ran: Sequence[GridRun]) -> Iterator[tuple[str, bool]]:
    cells = grouped(ran, lambda run: run.cell)
    regrets: list[float] = []
    pairs = pairs_right = 0
    for (model, nodes), runs in sorted(cells.items()):
        best, first = max(run.tokens_per_second or 0 for run in runs), ranked_first(runs)
        speed = (first.tokens_per_second or 0) / best
        regrets.append(1 / speed - 1)
        times = [(1 / (run.tokens_per_second or 0.0), run.predicted.step_seconds) for run in runs]
        right, counted = pairs_in_order(times)
        pairs, pairs_right = pairs + counted, pairs_right + right
        row, planned = first.row, sum(run.is_planned for run in runs)
        layout = f"tp {row['tp']}, pp {row['pp']}, dp {row['dp']}, mbs {row['mbs']}, ZeRO {row['zero']}"
        judged = nodes <= MOST_NODES
        goal = f" (at least {LEAST_SPEED:g})" if judged else ""
        found = f"{speed:.2f} of the best of {len(runs)}{goal}, {planned} within the headroom"
        yield f"{model:>3} on {nodes:>2} nodes: {layout:<40} {found}", speed >= LEAST_SPEED or not judged
    middle, high = np.percentile(regrets, (50, 90)) if regrets else (np.nan, np.nan)
    order = pairs_right / pairs if pairs else np.nan
    yield f"regret over cells: median {middle:.1%}, 90 % at most {high:.1%}; {order:.1%} of pairs in order", True


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the figures; 0, 1 where a limit is missed, 2 where the table cannot be read."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.grid", description=__doc__.split("\n\n")[1])
    parser.add_argument("--runs", type=Path, default=RUNS, help="another table with the same columns")
    options = parser.parse_args(arguments)
    try:
        runs, others = costed(read_runs(options.runs))
    except (SpecError, OSError) as error:
        parser.error(str(error))
    ran = sum(run.tokens_per_second is not None for run in others)
    print(f"{len(runs):,} layouts; {len(others)} with more stages than layers are not costed, of which {ran} ran")
    all_hold = True
    for line, holds in judge(runs):
        print(line if holds else f"{line}   MISSED")
        all_hold &= holds
    return 0 if all_hold else 1


if __name__ == "__main__":
    sys.exit(main())
