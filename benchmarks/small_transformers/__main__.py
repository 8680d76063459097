"""
``python -m benchmarks.small_transformers``: training steps of small transformers on this machine, beside predictions.

``--sample samples.csv`` measures operators of other models for ``--seconds``; ``--measure steps.csv`` times the steps,
in ``--rounds`` over all configurations, and goes on where it was stopped. ``--steps steps.csv`` then prints both:
predicted by ``planner estimate`` with ``--device device.yaml``, or by the sum of the operators with ``--samples
samples.csv``. Exits with 1 if the mean error exceeds the limit.

With ``--exact`` ``--sample`` measures the operators of the steps themselves, and ``--samples`` uses no others.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.output import conclude, print_lines, refuse_wrong_input
from benchmarks.small_transformers import composition
from benchmarks.small_transformers.configurations import Configuration, configurations
from benchmarks.small_transformers.measure import ENVIRONMENT, measure, read_steps
from costmodel.errors import SpecError, did_you_mean
from planner.measure.sample.run import sample_operators
from planner.measure.sample.samples import require_torch
from planner.measure.sample.table import read_samples

LIMITS = {"cpu": 0.10, "cuda": 0.05}
"""Largest mean error."""

DTYPES = {"cpu": "fp32", "cuda": "bf16"}


@refuse_wrong_input
def main() -> int:
    """Measure, or print the tables; return 1 if the mean error exceeds the limit, else 0."""
    parser = _parser()
    arguments = parser.parse_args()
    chosen = _chosen(arguments)
    if arguments.sample:
        _sample(arguments)
    elif arguments.measure:
        measure(chosen, arguments.measure, rounds=arguments.rounds, device=arguments.on)
    elif arguments.steps and (arguments.samples or arguments.device):
        return _compare(arguments, chosen)
    else:
        parser.error("nothing to do: one of --sample, --measure, or --steps with --device or --samples.")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.small_transformers", description=__doc__)
    parser.add_argument("--sample", type=Path, metavar="samples.csv", help="measure operators into this table")
    parser.add_argument("--seconds", type=float, default=600.0, help="how long (default: 600)")
    parser.add_argument("--exact", action="store_true", help="operators of the measured steps, not of other models")
    parser.add_argument("--measure", type=Path, metavar="steps.csv", help="time steps into this table")
    parser.add_argument("--rounds", type=int, default=5, help="rounds over all configurations (default: 5)")
    parser.add_argument("--steps", type=Path, metavar="steps.csv", help="measured steps to compare with")
    parser.add_argument("--samples", type=Path, metavar="samples.csv", help="predict by the sum of sampled operators")
    parser.add_argument("--device", metavar="device.yaml", help="predict by planner estimate on this device")
    parser.add_argument("--precision", help="precision of the planner's jobs (default: fp32 on a CPU, bf16 on a GPU)")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="only these configurations")
    parser.add_argument("--on", choices=tuple(DTYPES), default="cpu", help="where steps run (default: cpu)")
    return parser


def _chosen(arguments: argparse.Namespace) -> tuple[Configuration, ...]:
    everything = {one.name: one for one in configurations() if arguments.on == "cpu" or one.dp == 1}
    wanted = arguments.only or list(everything)
    for name in wanted:
        if name not in everything:
            raise SpecError(name, "no such configuration.", did_you_mean(name, everything))
    return tuple(everything[name] for name in wanted)


def _alone() -> None:
    """Begin anew as processes that measure do, if need be: one thread, and memory that is kept; libraries ask once."""
    if any(os.environ.get(name) != value for name, value in ENVIRONMENT.items()):
        os.environ.update(ENVIRONMENT)
        os.execv(sys.executable, [sys.executable, "-m", "benchmarks.small_transformers", *sys.argv[1:]])
    require_torch().set_num_threads(1)


def _sample(arguments: argparse.Namespace) -> None:
    _alone()
    others = configurations("measured" if arguments.exact else "sampled")
    points = composition.points_of(others, DTYPES[arguments.on])
    counts = sample_operators(
        arguments.sample,
        budget_seconds=arguments.seconds,
        device=arguments.on,
        dtype=DTYPES[arguments.on],
        ranks=max(one.dp for one in others),
        first=points,
        notify=print,
    )
    if counts:
        print(f"{counts.measured} measured, {counts.known} known, {sum(counts.skipped.values())} skipped")


def _compare(arguments: argparse.Namespace, chosen: Sequence[Configuration]) -> int:
    steps, dtype = read_steps(arguments.steps), DTYPES[arguments.on]
    if arguments.device:
        precision = arguments.precision or dtype
        predicted = {one.name: composition.planned(one, arguments.device, precision=precision) for one in chosen}
    else:
        samples = read_samples(arguments.samples)
        seconds = composition.exactly(samples) if arguments.exact else composition.by_learning(samples)
        predicted = {one.name: composition.composed(one, seconds, dtype) for one in chosen}
    rows = composition.compared(chosen, steps, predicted)
    print_lines(composition.lines(rows))
    mean, most = composition.mean_error(rows), LIMITS[arguments.on]
    return conclude([] if mean <= most else [f"mean error {mean:.1%} of at most {most:.0%}."])


if __name__ == "__main__":
    sys.exit(main())
