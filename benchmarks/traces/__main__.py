"""
``python -m benchmarks.traces``: traces replayed, changed and predicted, beside what was measured.

``--record FOLDER`` trains small transformers on this machine, ``--minutes`` long: steps without the profiler, and
traces of steps with it. Rounds are added to those that the folder has. ``--recorded FOLDER`` prints what it has.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.traces.recorded.configurations import TracedConfiguration, traced_configurations
from benchmarks.traces.recorded.folder import read_recorded
from benchmarks.traces.recorded.recording import record
from costmodel.errors import SpecError, did_you_mean


def main() -> int:
    """Do what is asked; return the exit code."""
    parser = _parser()
    arguments = parser.parse_args()
    try:
        if arguments.record:
            chosen = _chosen(arguments.only)
            record(chosen, arguments.record, minutes=arguments.minutes, rounds=arguments.rounds)
        elif arguments.recorded:
            print("\n".join(recorded_lines(arguments.recorded)))
        else:
            parser.error("nothing to do: --record or --recorded.")
    except (SpecError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.traces", description=__doc__)
    parser.add_argument("--record", type=Path, metavar="FOLDER", help="record steps of this machine into this folder")
    parser.add_argument("--minutes", type=float, default=12.0, help="how long (default: 12)")
    parser.add_argument("--rounds", type=int, default=5, help="over all configurations, at most (default: 5)")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="only these configurations")
    parser.add_argument("--recorded", type=Path, metavar="FOLDER", help="print what this folder has")
    return parser


def _chosen(names: Sequence[str] | None) -> tuple[TracedConfiguration, ...]:
    everything = {one.name: one for one in traced_configurations()}
    for name in names or ():
        if name not in everything:
            raise SpecError(name, "no such configuration.", did_you_mean(name, everything))
    return tuple(everything[name] for name in names or everything)


def recorded_lines(folder: Path) -> Iterator[str]:
    """A table in text, a row for each configuration of a folder."""
    index = read_recorded(folder)
    yield f"{index.device}, {index.software}; a reference step takes {1e3 * index.pace:.1f} ms"
    heads = f"{'unscaled':>10}{'spread':>8}{'others':>8}{'steps':>7}{'profiler':>10}{'peak, MiB':>12}"
    yield f"{'configuration':32}{'step, ms':>10}{heads}"
    for name, one in index.recordings.items():
        plain, profiled = index.plain(name), index.profiled(name)
        peaks = ", ".join(f"{value / 2**20:.0f}" for value in one.peak_bytes)
        yield (
            f"{name:32}{1e3 * plain.seconds:>10.1f}{1e3 * plain.unscaled_seconds:>10.1f}{plain.spread:>8.1%}"
            f"{plain.others:>8.0%}{plain.num_steps:>7}{profiled.seconds / plain.seconds - 1:>+10.1%}{peaks:>12}"
        )


if __name__ == "__main__":
    sys.exit(main())
