"""
``python -m benchmarks.random_inputs``: real inputs made wrong in every way, and what the commands make of them.

Job files, ``config.json`` files, scripts and other files that start a training, tables, reports, traces and words of
command lines, changed by bytes, lines and entries. Exits with 1 if one of them ends in a traceback or an unknown exit
code, takes longer than 20 s of processor time, is executed, or writes what the command line does not name.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from statistics import median

from benchmarks.random_inputs.trials import trial_of
from benchmarks.random_inputs.watch import SECONDS, Outcome, outcomes

EVERY = 500
"""Inputs after which there is a line on how far it is."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run random inputs and print what became of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20_000, help="inputs (default: 20000)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the first inputs; another seed gives others")
    parser.add_argument("--processes", type=int, default=2, help="inputs at once (default: 2)")
    parser.add_argument("--only", type=int, help="the input of this number alone")
    parser.add_argument("--keep", type=Path, help="folder to write the input of --only to")
    arguments = parser.parse_args(argv)
    if arguments.keep and arguments.only is not None:
        keep(arguments.seed, arguments.only, arguments.keep)
    numbers = range(arguments.count) if arguments.only is None else [arguments.only]
    found = run(arguments.seed, numbers, arguments.processes)
    print(summary(found))
    return 1 if any(one.complaint for one in found) else 0


def run(seed: int, numbers: Sequence[int], processes: int) -> list[Outcome]:
    """The outcomes of inputs, each process with a share of them."""
    done: SimpleQueue[Outcome | None] = SimpleQueue()

    def share(which: int) -> None:
        try:
            for one in outcomes(seed, numbers[which::processes]):
                done.put(one)
        finally:
            done.put(None)

    found: list[Outcome] = []
    with ThreadPoolExecutor(processes) as pool:
        shares = [pool.submit(share, which) for which in range(processes)]
        running = processes
        while running:
            one = done.get()
            if one is None:
                running -= 1
                continue
            found.append(one)
            if one.complaint:
                print(f"--- seed {seed} number {one.number}, {one.kind}: {one.complaint}", file=sys.stderr, flush=True)
            if len(found) % EVERY == 0:
                print(f"{len(found):,} of {len(numbers):,}", file=sys.stderr, flush=True)
        for one_share in shares:
            one_share.result()
    return found


def summary(found: Sequence[Outcome]) -> str:
    """Count the inputs of each kind by their end; name the slowest, and those that ended as none may."""
    codes: dict[str, Counter[int | None]] = defaultdict(Counter)
    for one in found:
        codes[one.kind][one.exit_code] += 1
    known = sorted({code for counts in codes.values() for code in counts if code is not None})
    lines = [f"{'kind':12} {'inputs':>7} {'slowest':>8} " + " ".join(f"{f'exit {code}':>7}" for code in known)]
    for kind in sorted(codes):
        slowest = max(one.seconds for one in found if one.kind == kind)
        counts = " ".join(f"{codes[kind][code]:7,}" for code in known)
        lines.append(f"{kind:12} {codes[kind].total():7,} {slowest:6.1f} s {counts}")
    wrong = [one for one in found if one.complaint]
    seconds = sorted(one.seconds for one in found)
    lines.append(f"{len(found):,} inputs, half of them within {median(seconds):.2f} s, all within {seconds[-1]:.1f} s.")
    lines.append(f"{len(wrong):,} with a traceback, longer than {SECONDS:g} s, executed, or written elsewhere.")
    return "\n".join(lines)


def keep(seed: int, number: int, folder: Path) -> None:
    """Write an input to a folder, and its command line."""
    trial = trial_of(seed, number)
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in (*trial.files.items(), ("standard_input", trial.stdin)):
        (folder / name).write_bytes(data)
    print("planner", *(repr(word) for word in trial.words))


if __name__ == "__main__":
    sys.exit(main())
