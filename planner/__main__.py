"""``python -m planner``: run the command ``planner`` as a process of its own."""

from __future__ import annotations

import gc
import os
import sys

from planner.cli import main


def run() -> int:
    """
    Run one command in a process that ends with it, and return its exit code.

    NumPy's OpenBLAS starts a thread per core when it is loaded, and they spin; nothing here multiplies matrices that
    would need them. Pydantic looks for plugins in every installed package, and none checks the planner's records.
    Python looks for cycles after each 700 new objects, of which imports alone make 100,000 that stay; at the end it
    needs none, since the process gives all memory back.
    """
    gc.set_threshold(200_000)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    code = main()
    gc.freeze()
    return code


if __name__ == "__main__":
    sys.exit(run())
