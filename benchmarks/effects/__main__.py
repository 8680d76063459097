"""
``python -m benchmarks.effects``: what a change does to a step, predicted beside measured.

Groups of runs that differ in one setting each, and pairs of published runs of one job that differ in few facts: the
predicted ratio of their steps beside the measured one.

Exit codes: 0 the goals hold with the shipped constants and with groups left out; 1 one does not; 2 there is nothing
to read.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from benchmarks.accuracy.left_out.folds import GROUP, HELD_OUT, as_held_out, read_held_out
from benchmarks.accuracy.metrics import RUNS, read_table
from benchmarks.effects.ratios import (
    DATA,
    GROUPS,
    PAIRS,
    Effect,
    Pair,
    counted,
    effects,
    figures,
    lines,
    read_groups,
    read_pairs,
    write_pairs,
)
from benchmarks.output import CHECKS_FAILED, print_lines, refuse_wrong_input
from planner.measure.runs.predictions import Prediction, predictions

OWN_RUNS = DATA / "runs.csv"
"""Runs of the groups that are no rows of the table of measured runs, in the collected form."""

SHIPPED, LEFT_OUT = "shipped constants", "groups left out"


def predicted_runs(names: Iterable[str], runs: Path = RUNS, models: Path | None = None) -> dict[str, Prediction]:
    """
    Predictions of the runs of some names, by name; those that cannot be predicted are left away.

    Parameters
    ----------
    names
        Ids of runs, of the table of measured runs or of the groups' own.
    runs, models
        The table, and the architectures behind its rows; None: the project's.
    """
    wanted = set(names)
    found: dict[str, Prediction] = {}
    for table, architectures in ((OWN_RUNS, None), (runs, models)):
        rows, known = read_table(table, architectures)
        some = predictions((row for row in rows if row.id in wanted), known)
        found |= {one.run.id: one for one in some if isinstance(one, Prediction)}
    return found


def without_their_groups(predicted: Mapping[str, Prediction]) -> dict[str, Prediction]:
    """Replace steps by those of fits that had not seen a run's group; runs that are in no fit keep theirs."""
    unseen = as_held_out(list(predicted.values()), read_held_out(HELD_OUT), GROUP)
    return {**predicted, **{one.run.id: one for one in unseen}}


@refuse_wrong_input
def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables; return 0 if the goals hold, else 1."""
    options = _parser().parse_args(arguments)
    pairs = [*read_groups(options.groups), *read_pairs(options.pairs)]
    predicted = predicted_runs(_names(pairs), options.runs, options.models)
    found = {SHIPPED: list(effects(pairs, predicted))}
    if options.runs == RUNS:
        found[LEFT_OUT] = list(effects(pairs, without_their_groups(predicted)))
    if options.write:
        write_pairs(options.write, found[SHIPPED])
    print_lines(lines(found))
    if missing := len(pairs) - len(found[SHIPPED]):
        print(f"{missing} pairs have a run that is not predicted")
    return 0 if all(_holds(some) for some in found.values()) else CHECKS_FAILED


def _names(pairs: Iterable[Pair]) -> set[str]:
    return {name for pair in pairs for name in (pair.first, pair.second)}


def _holds(found: Sequence[Effect]) -> bool:
    judged = counted(found)
    return bool(judged) and figures(judged).hold


_WHAT, _HOW, _EXIT_CODES = (__doc__ or "\n\n\n\n").replace("``", "'").split("\n\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.effects", description=_HOW, epilog=_EXIT_CODES)
    parser.add_argument("--runs", type=Path, default=RUNS, help="measured runs (default: the project's)")
    parser.add_argument("--models", type=Path, help="architectures behind the rows (default: the project's)")
    parser.add_argument("--pairs", type=Path, default=PAIRS, help="pairs of these runs (default: the project's)")
    parser.add_argument("--groups", type=Path, default=GROUPS, help="groups of one setting (default: the project's)")
    parser.add_argument("--write", type=Path, help="write every pair with both ratios (CSV)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
