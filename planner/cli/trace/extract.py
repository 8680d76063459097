"""``planner trace extract``: samples of operators from traces."""

from __future__ import annotations

import argparse
from pathlib import Path

from planner.cli.arguments import add_force, describe
from planner.cli.output import check_output, progress, require_new, write

EXIT_CODES = """exit codes:
  0  a table of samples was written
  1  the same, but most of the recorded computation is of no operator that the planner samples
  2  wrong input: nothing was written
"""
EXIT_MOSTLY_UNKNOWN = 1


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    description = (
        "Turns profiler traces of training steps into the table of samples that 'planner sample' writes: each "
        "operator, pass and size with the median of its times. Says what could not be converted, and why. A device "
        "file of traces: 'planner calibrate'."
    )
    describe(parser, description, EXIT_CODES)
    parser.add_argument("traces", metavar="TRACE", type=Path, nargs="+", help="traces of ranks, of one run or several")
    parser.add_argument("--job", metavar="JOB.yaml", type=Path, help="the job, whose missing operators are named")
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=Path, required=True, help="table of samples to write (CSV or Parquet)"
    )
    add_force(parser)


def run(arguments: argparse.Namespace) -> int:
    """Extract, and write the table."""
    check_output(arguments.output, [*arguments.traces, *([arguments.job] if arguments.job else [])])
    require_new(arguments.output, force=arguments.force)
    with progress(f"reading {len(arguments.traces)} traces"):
        from planner.jobs.problem import load
        from planner.measure.traces.reading import read_recordings
        from planner.measure.traces.report.extraction import (
            extract_samples,
            host_times,
            missing_operators,
            write_extraction_text,
            write_samples,
        )

        traces = read_recordings(arguments.traces)
        problem = load(arguments.job) if arguments.job else None
        found = extract_samples(traces, problem)
        hosts = host_times(traces, found.by_trace)
        missing = missing_operators(problem, found) if problem else None
    write_samples(found, arguments.output)
    write(write_extraction_text(found, str(arguments.output), hosts=hosts, missing=missing), None)
    return 0 if 2 * found.known_fraction > 1 else EXIT_MOSTLY_UNKNOWN
