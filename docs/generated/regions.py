"""Generated parts of pages, between ``<!-- generated: NAME -->`` and ``<!-- end: NAME -->``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from docs.generated.accuracy import goals, headline, newer
from docs.generated.commands import commands, exit_codes
from docs.generated.ledger import ledger_tables
from docs.generated.records import batch_entries, job_entries, report_entries
from docs.generated.support import support

DOCS = Path(__file__).parents[1]
ROOT = DOCS.parent
PAGES = (ROOT / "README.md", ROOT / "benchmarks" / "LEDGER.md", *sorted(DOCS.rglob("*.md")))

REGION = re.compile(r"(<!-- generated: ([\w-]+) -->\n)(.*?)(<!-- end: \2 -->)", flags=re.DOTALL)

MADE: Mapping[str, Callable[[], Iterable[str]]] = {
    **{f"ledger-{name}": rows.copy for name, rows in ledger_tables().items()},
    "commands": commands,
    "exit-codes": exit_codes,
    "job-entries": job_entries,
    "report-entries": report_entries,
    "batch-entries": batch_entries,
    "headline": headline,
    "support": support,
    "goals": goals,
    "newer": newer,
}
"""Function that makes the lines of each part."""


def written(path: Path) -> str:
    """Return a page with its generated parts as they are today."""
    return REGION.sub(_made, path.read_text(encoding="utf-8"))


def _made(found: re.Match[str]) -> str:
    lines = "\n".join(MADE[found[2]]()).strip("\n")
    return f"{found[1]}\n{lines}\n\n{found[4]}"
