"""``python -m docs.generated``: the generated parts of the documents anew; ``--check`` says which are not today's."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from docs.generated.regions import PAGES, written


def main(arguments: Sequence[str]) -> int:
    """Write, or print the pages that would change: 1 if there are any."""
    changed = {path: text for path in PAGES if (text := written(path)) != path.read_text(encoding="utf-8")}
    for path, text in changed.items():
        print(path.name)
        if "--check" not in arguments:
            path.write_text(text, encoding="utf-8")
    return int("--check" in arguments and bool(changed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
