"""
Write the comment on a change: each launch script before and after, costed by the planner, as Markdown on stdout.

Nothing is printed where no file changed. Files are read, never run. A file that cannot be read is named with the
reason; the exit code is 0 all the same, since a change is not wrong because the planner cannot read it.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from html import escape
from pathlib import Path

GIB = 2**30
MOST_FILES = 20
"""Most files of a comment; a change of more is named by their number."""

MOST_LETTERS = 400
"""Most letters of a reason."""

SECONDS = 300
"""Time for one call of the planner."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Version:
    """
    A file before or after a change.

    Parameters
    ----------
    plan
        Figures of its strategy, as the JSON report has them; None: it cannot be read or costed.
    line
        Its strategy in a line.
    broken
        Rules that its strategy breaks.
    notes
        What the import says of it: options without meaning, assumptions, what is not understood.
    reason
        Reason that there are no figures.
    """

    plan: dict | None = None
    line: str = ""
    broken: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    reason: str = ""


FIGURES = (
    ("step", lambda plan: plan["step_time_seconds"], "{:.3f} s"),
    ("tokens/s/GPU", lambda plan: plan["tokens_per_second_per_gpu"], "{:,.0f}"),
    ("peak memory", lambda plan: plan["peak_memory_bytes"] / GIB, "{:.1f} GiB"),
    ("chance to fit", lambda plan: 100 * plan["chance_to_fit"]["share"], "{:.0f} %"),
    ("training", lambda plan: plan["training_run"]["days"], "{:,.2f} days"),
    ("GPU-hours", lambda plan: plan["training_run"]["gpu_hours"], "{:,.0f}"),
)
"""Name, value and form of each row."""


def main(argv: Sequence[str] | None = None) -> int:
    """Print the comment."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", required=True, metavar="COMMIT", help="commit before the change")
    parser.add_argument("--head", default="HEAD", metavar="COMMIT", help="commit after it (default: HEAD)")
    parser.add_argument("--files", default="*.sh *.slurm *.sbatch", help="patterns of files, separated by blanks")
    parser.add_argument("--words", default="", help="entries and variables, as behind 'planner import'")
    arguments = parser.parse_args(argv)
    words = shlex.split(arguments.words)
    changed = list(_changed(arguments.base, arguments.head, arguments.files.split()))
    if not changed:
        return 0
    print("### Plan of this change\n")
    with tempfile.TemporaryDirectory() as folder:
        before, after = (_checkout(commit, Path(folder)) for commit in (arguments.base, arguments.head))
        for name in changed[:MOST_FILES]:
            print("\n".join(_section(name, _version(before / name, words), _version(after / name, words))))
    if len(changed) > MOST_FILES:
        print(f"\n{len(changed) - MOST_FILES} more files changed.")
    return 0


def _changed(base: str, head: str, patterns: Sequence[str]) -> Iterator[str]:
    """Yield the changed files of some patterns; files beside them that they read count with them only."""
    found = _run("git", "diff", "--name-only", "-z", "--diff-filter=AMR", base, head).stdout
    for name in found.split("\0"):
        if name and any(fnmatch(name, one) or fnmatch(Path(name).name, one) for one in patterns):
            yield name


def _checkout(commit: str, folder: Path) -> Path:
    """Return a folder with all files of a commit: scripts read others beside them."""
    place = Path(tempfile.mkdtemp(dir=folder))
    archive = subprocess.run(("git", "archive", "--format=tar", commit), check=True, capture_output=True).stdout
    subprocess.run(("tar", "-x", "-C", str(place)), input=archive, check=True)
    return place


def _version(path: Path, words: Sequence[str]) -> Version:
    """Import and cost one version of a file."""
    if not path.exists():
        return Version(reason="new")
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder) / "job.yaml"
        read = _planner("import", "-q", str(path), *words, "-o", str(job))
        if read.returncode:
            return Version(reason=_last(read.stderr))
        notes = tuple(line[2:] for line in job.read_text(encoding="utf-8").splitlines() if line.startswith("# "))
        costed = _planner("estimate", "-q", str(job), "--format", "json")
        if costed.returncode not in (0, 1) or not costed.stdout:
            return Version(notes=notes, reason=_last(costed.stderr))
        plan = json.loads(costed.stdout)
        return Version(plan=plan, line=plan["line"], broken=tuple(plan["broken_rules"]), notes=notes)


def _section(name: str, before: Version, after: Version) -> Iterator[str]:
    """Yield the lines on one file."""
    yield f"#### `{name.replace('`', ' ')}`\n"
    if after.plan is None:
        yield f"It is not costed: {escape(after.reason)}\n"
        return
    earlier = before.plan
    yield f"| | {'before' if earlier else escape(before.reason).replace('|', '/')} | after | |"
    yield "|---|---:|---:|---:|"
    for row, value, form in FIGURES:
        now, then = value(after.plan), value(earlier) if earlier else None
        change = f"{now / then - 1:+.1%}" if then and f"{now / then - 1:+.1%}" not in ("+0.0%", "-0.0%") else ""
        yield f"| {row} | {form.format(then) if then is not None else ''} | {form.format(now)} | {change} |"
    yield f"\n`{after.line}`" + (f" (was `{before.line}`)" if earlier and before.line != after.line else "") + "\n"
    yield from (f"- **forbidden**: {escape(rule)}" for rule in after.broken)
    lost = [note for note in after.notes if note not in before.notes] if earlier else list(after.notes)
    if lost:
        yield f"<details><summary>{'New of' if earlier else 'Of'} what was read</summary>\n"
        yield from (f"- {escape(note)}" for note in lost)
        yield "\n</details>\n"


def _planner(*words: str) -> subprocess.CompletedProcess[str]:
    return _run(sys.executable, "-m", "planner", *words, check=False)


def _run(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, check=check, capture_output=True, text=True, timeout=SECONDS)


def _last(text: str) -> str:
    """Return what a command complained of, in a line."""
    return " ".join(text.split()).removeprefix("planner: ")[:MOST_LETTERS]


if __name__ == "__main__":
    sys.exit(main())
