"""
``python -m benchmarks.grid``: chances to be fast and ranks of layouts beside a whole measured grid.

1B and 8B on 1 to 32 nodes of 8 H100 (:mod:`benchmarks.grid.runs`), which no constant and no law was fitted to. Exits
with 1 where a limit is missed.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks.accuracy.metrics import pairs_in_order
from benchmarks.grid.runs import RUNS, GridRun, read_runs
from costmodel.errors import SpecError

BANDS = {(70.0, np.inf): (0.8, 1.0), (66.0, 70.0): (0.0, 1.0), (60.0, 66.0): (0.0, 1.0), (0.0, 60.0): (0.0, 0.05)}
"""
GiB reserved, and how large the share of runs whose chance to be fast is below one half must be at least and at most.

Where doubling the micro-batch brought a run above 70 GiB, 8 of 8 fell below 0.7 of the speed; at 66 to 70 GiB 1 of 6,
at 60 to 66 GiB 3 of 25, below 37 of 448.
"""

MOST_NODES = 8
"""Cells of more nodes are stated, and not judged: their network is slower than any model of it."""

LEAST_SPEED = 0.7
"""Of the best measured speed, for the layout that is ranked first in a cell."""

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
    yield (
        (
            f"reserved over predicted tensors, {len(ratios)} runs above {LARGE:g} GiB: median {middle:.2f}, "
            f"80 % {low:.2f} to {high:.2f}"
        ),
        True,
    )
    lost = sum(run.fits < 0.5 for run in crashed)
    yield (
        f"crashed or out of memory, not told apart: {lost} of {len(crashed)} have a chance to fit below one half",
        True,
    )
    yield "", True
    for (floor, ceiling), (least, most) in BANDS.items():
        those = [run for run in ran if floor <= run.reserved_gib < ceiling]
        share = slow_share(those)
        slow, goal = round(share * len(those)), "; ".join((*_goal("at least", least, 0), *_goal("at most", most, 1)))
        text = f"{floor:g} GiB and above" if ceiling == np.inf else f"{floor:g} to {ceiling:g} GiB"
        yield (
            (
                f"{text:<17} {slow:>4} of {len(those):>4} get a chance to be fast below one half, {share:.0%} "
                f"{goal}".rstrip()
            ),
            not those or least <= share <= most,
        )
    yield "", True
    yield from _cells(ran)


def _goal(words: str, share: float, idle: float) -> tuple[str, ...]:
    """The words of a limit, unless it limits nothing."""
    return () if share == idle else (f"({words} {share:.0%})",)


def _cells(ran: Sequence[GridRun]) -> Iterator[tuple[str, bool]]:
    cells: dict[tuple[str, int], list[GridRun]] = defaultdict(list)
    for run in ran:
        cells[run.cell].append(run)
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
        yield (
            (
                f"{model:>3} on {nodes:>2} nodes: {layout:<40} {speed:.2f} of the best of {len(runs)}{goal}, "
                f"{planned} within the headroom"
            ),
            speed >= LEAST_SPEED or not judged,
        )
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
