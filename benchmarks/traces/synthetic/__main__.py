"""``python -m benchmarks.traces.synthetic``: random jobs, replayed to the nanosecond; exit code 1 if one is not."""

from __future__ import annotations

import argparse

from benchmarks.traces.synthetic.comparison import wrong_replays
from benchmarks.traces.synthetic.drawn import drawn_recipe
from benchmarks.traces.synthetic.making import make


def main() -> int:
    """Make, build, replay and compare; a line for each job."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.traces.synthetic", description=__doc__)
    parser.add_argument("--jobs", type=int, default=40, help="number of random jobs (default: 40)")
    parser.add_argument("--first", type=int, default=0, help="seed of the first one (default: 0)")
    arguments = parser.parse_args()
    exact = 0
    for seed in range(arguments.first, arguments.first + arguments.jobs):
        recipe = drawn_recipe(seed)
        made = make(recipe)
        wrong = wrong_replays(made)
        exact += not wrong
        print(
            f"job {seed}: {recipe.schedule.text}, pp {recipe.pp}, vpp {recipe.vpp}, dp {recipe.dp}, tp {recipe.tp}, "
            f"{recipe.num_microbatches} micro-batches, {sum(len(one.events) for one in made.traces):,} events: "
            + (f"differs: {wrong[0]}" if wrong else "exact"),
            flush=True,
        )
    print(f"{exact} of {arguments.jobs} jobs exact: each step, and the first one with other durations.")
    return int(exact < arguments.jobs)


if __name__ == "__main__":
    raise SystemExit(main())
