"""
``python -m benchmarks.traces``: traces replayed, changed and predicted, beside what was measured.

Real traces are those of a folder (``--traces``). Small transformers are trained and traced on this machine by
``--record FOLDER``, half an hour during which nothing else should run; ``--recorded FOLDER`` predicts them.
``--only`` runs some of the parts. The exit code is 0 only if something was run, all of it is as it must be,
and no part that was named lacks its traces.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.output import refuse_wrong_input
from benchmarks.traces import changed, predicting, projected, projected_recorded, replayed, speed
from benchmarks.traces.recorded.configurations import TracedConfiguration, traced_configurations
from benchmarks.traces.recorded.folder import read_recorded
from benchmarks.traces.recorded.recording import record
from benchmarks.traces.synthetic import make
from benchmarks.traces.synthetic.comparison import wrong_replays
from benchmarks.traces.synthetic.drawn import drawn_recipe
from costmodel.errors import SpecError, did_you_mean

PARTS = {
    "replay": "real traces, unchanged",
    "made": "traces of pipelines that a machine of threads and streams made",
    "changed": "these, changed to another layout",
    "speed": "reading, graph and replay, a change",
    "projected": "published runs, from smaller ones",
    "recorded": "small transformers recorded on this machine, predicted from one another",
}


@refuse_wrong_input
def main() -> int:
    """Run the chosen parts; return 0 if something ran and every check holds, else 1."""
    arguments = _parser().parse_args()
    if arguments.record:
        chosen = _chosen(arguments.names)
        record(chosen, arguments.record, minutes=arguments.minutes, rounds=arguments.rounds)
        return 0
    held = {name: _part(name, arguments) for name in arguments.only or PARTS}
    missing = [name for name, one in held.items() if one is None]
    if missing:
        print(f"Not checked: {', '.join(missing)}.")
    return int(False in held.values() or True not in held.values() or bool(arguments.only and missing))


def _part(name: str, arguments: argparse.Namespace) -> bool | None:
    """Run one part, print it and return whether all of it is as it must be; None where its traces are missing."""
    print(f"--- {name}: {PARTS[name]}", flush=True)
    if missing := _missing(name, arguments):
        print(f"SKIPPED: {missing}\n", flush=True)
        return None
    begin, holds = time.perf_counter(), []
    for line in _lines(name, arguments):
        if isinstance(line, bool):
            holds.append(line)
        else:
            print(line, flush=True)
    good = all(holds)
    print(f"{'ok' if good else 'NOT REACHED'}, {time.perf_counter() - begin:.0f} s\n", flush=True)
    return good


def _missing(name: str, arguments: argparse.Namespace) -> str:
    """Say what a part needs and does not have; empty: nothing."""
    if name in ("replay", "speed") and not arguments.traces:
        return "--traces FOLDER names a folder of real traces."
    if arguments.traces and not arguments.traces.is_dir():
        raise SpecError("--traces", f"there is no folder {arguments.traces}.")
    if name == "recorded" and not arguments.recorded:
        return "--record FOLDER records small transformers, --recorded FOLDER predicts them."
    return ""


def _lines(name: str, arguments: argparse.Namespace) -> Iterator[str | bool]:
    folder: Path = arguments.traces
    if name == "replay":
        yield from replayed.report(folder)
    elif name == "made":
        yield from made_lines(arguments.jobs, arguments.first)
    elif name == "changed":
        yield from changed.report()
    elif name == "speed":
        yield from speed.report(folder / replayed.DEEPSEEK)
    elif name == "projected":
        yield projected.report()
    else:
        yield from recorded_lines(arguments.recorded)
        yield from predicting.report(arguments.recorded)
        yield projected_recorded.recorded_report(arguments.recorded)


def made_lines(jobs: int, first: int) -> Iterator[str | bool]:
    """Count random jobs that are replayed to the nanosecond, with their own and with other durations; name others."""
    exact = 0
    for seed in range(first, first + jobs):
        recipe = drawn_recipe(seed)
        wrong = wrong_replays(make(recipe))
        exact += not wrong
        if wrong:
            yield f"job {seed} differs: {wrong[0]}: {recipe}"
    yield f"{exact} of {jobs} random jobs exact: each step, and the first one with other durations."
    yield exact == jobs


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.traces", description=__doc__)
    parser.add_argument("--record", type=Path, metavar="FOLDER", help="record steps of this machine into this folder")
    parser.add_argument("--minutes", type=float, default=12.0, help="how long (default: 12)")
    parser.add_argument("--rounds", type=int, default=5, help="over all configurations, at most (default: 5)")
    parser.add_argument("--names", nargs="+", metavar="NAME", help="record only these configurations")
    parser.add_argument("--recorded", type=Path, metavar="FOLDER", help="predict what this folder has")
    parser.add_argument("--traces", type=Path, metavar="FOLDER", help="folder of real traces")
    parser.add_argument("--jobs", type=int, default=40, help="number of made jobs (default: 40)")
    parser.add_argument("--first", type=int, default=0, help="seed of the first one (default: 0)")
    parser.add_argument("--only", nargs="+", choices=PARTS, metavar="PART", help=", ".join(PARTS))
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
