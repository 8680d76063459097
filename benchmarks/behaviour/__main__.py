"""
``python -m benchmarks.behaviour``: some 400 command lines, asked again, against what they answered before.

A change of the code's structure must not change an answer: exit codes, the entries of JSON and its figures to nine
digits, plans, exported files, and the entry that a complaint names. Sentences may be said in other words.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.behaviour.cases import Answer, Question, ask, differences, questions

REFERENCE = Path(__file__).parent / "reference.jsonl.gz"
MOST_LINES = 5
"""Differences of one answer that are printed."""


def main() -> int:
    """Ask everything, and compare or write; return 1 if an answer changed, else 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.behaviour", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the reference instead of comparing with it")
    parser.add_argument("--reference", type=Path, default=REFERENCE, help="another reference (default: the project's)")
    parser.add_argument("--every", type=int, default=1, help="ask only every so many-th question (default: 1)")
    parser.add_argument("--processes", type=int, default=2, help="worker processes (default: 2)")
    arguments = parser.parse_args()
    started = time.perf_counter()
    if arguments.write:
        asked = list(questions())[:: arguments.every]
        count = write(arguments.reference, zip(asked, answers(asked, arguments.processes), strict=True))
        print(f"{count} answers written in {time.perf_counter() - started:.0f} s.")
        return 0
    kept = list(read(arguments.reference))[:: arguments.every]
    now = answers([question for question, _ in kept], arguments.processes)
    changed = [
        lines for (question, then), new in zip(kept, now, strict=True) if (lines := compared(question, then, new))
    ]
    for lines in changed:
        print("\n".join(lines))
    print(f"{len(kept) - len(changed)} of {len(kept)} answers are the same ({time.perf_counter() - started:.0f} s).")
    return 1 if changed else 0


def answers(asked: Iterable[Question], processes: int) -> Iterator[Answer]:
    """Yield the answer to each question, in their order."""
    with ProcessPoolExecutor(processes) as pool:
        yield from pool.map(ask, asked, chunksize=4)


def compared(question: Question, before: Answer, after: Answer) -> list[str]:
    """List the changes of an answer, a line each; none if nothing changed."""
    lines = []
    if before.code != after.code:
        lines.append(f"  exit code {after.code} instead of {before.code}")
    if before.place != after.place:
        lines.append(f"  complains of '{after.place}' instead of '{before.place}'")
    lines += [f"  {line}" for line in differences(before.output, after.output)]
    rest = [f"  and {len(lines) - MOST_LINES} more"] if len(lines) > MOST_LINES else []
    return [question.name, *lines[:MOST_LINES], *rest] if lines else []


# --- the reference ---------------------------------------------------------------------------------------------


def write(path: Path, pairs: Iterable[tuple[Question, Answer]]) -> int:
    """Write questions with their answers, one line each; returns how many."""
    lines = [json.dumps({"question": asdict(question), "answer": asdict(answer)}) for question, answer in pairs]
    path.write_bytes(gzip.compress("\n".join(lines).encode(), mtime=0))
    return len(lines)


def read(path: Path) -> Iterator[tuple[Question, Answer]]:
    """The questions with the answers that were written."""
    for line in gzip.decompress(path.read_bytes()).decode().splitlines():
        pair = json.loads(line)
        yield _question(pair["question"]), Answer(**pair["answer"])


def _question(entries: dict[str, Any]) -> Question:
    sequences = {name: tuple(entries[name]) for name in ("arguments", "before")}
    return Question(**{**entries, **sequences})


if __name__ == "__main__":
    sys.exit(main())
