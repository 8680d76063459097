"""
``python -m benchmarks.paper_chain``: steps of ten runs from sampled operators and collectives, beside arXiv 2509.22832.

Prints every measured part of the runs beside this prediction and the paper's, then the steps. No constant is fitted to
parts or steps, and no linear has seen samples of the runs' hidden sizes. ``--machine`` limits it to one machine. Exits
with 1 if encoders or steps of a machine are not closer than the paper's.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from benchmarks.output import conclude, refuse_wrong_input
from benchmarks.paper_chain.report import component_lines, predicted, step_lines, worse_than_paper
from benchmarks.paper_chain.runs import MACHINES, measured_runs


@refuse_wrong_input
def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables and the errors that exceed the paper's; return 1 if there are any, else 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paper_chain", description=__doc__)
    parser.add_argument("--machine", choices=sorted(MACHINES.values()), help="only the runs of this machine")
    options = parser.parse_args(arguments)
    runs, known = measured_runs()
    found = list(predicted([run for run in runs if options.machine in (None, run.machine)], known))
    print("\n".join([*component_lines(found), "", *step_lines(found)]))
    return conclude(worse_than_paper(found))


if __name__ == "__main__":
    sys.exit(main())
