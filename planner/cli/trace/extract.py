"""``planner trace extract``: samples of operators, and a device's file, from traces."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from costmodel.errors import SpecError
from planner.cli.arguments import add_force, describe
from planner.cli.output import check_output, progress, real, require_new, write

EXIT_CODES = """exit codes:
  0  a table of samples was written
  1  the same, but most of the recorded computation is of no operator that the planner samples
  2  wrong input: nothing was written, or the table alone where no device can be made of it
"""
EXIT_MOSTLY_UNKNOWN = 1


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    description = (
        "Turns profiler traces of training steps into the table of samples that 'planner sample' writes: each "
        "operator, pass and size with the median of its times. Says what could not be converted, and why. With "
        "--device-file it learns from them, as 'planner fit' does, and adds what only a trace knows."
    )
    describe(parser, description, EXIT_CODES)
    parser.add_argument("traces", metavar="TRACE", type=Path, nargs="+", help="traces of ranks, of one run or several")
    parser.add_argument("--job", metavar="JOB.yaml", type=Path, help="the job, whose missing operators are named")
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=Path, required=True, help="table of samples to write (CSV or Parquet)"
    )
    parser.add_argument("--device-file", metavar="FILE", type=Path, help="device file to write as well (YAML)")
    parser.add_argument("--facts", metavar="YAML", type=Path, help="what traces cannot say, as planner fit takes it")
    add_force(parser, "the output files")


def run(arguments: argparse.Namespace) -> int:
    """Extract, write the table, and the device if it is asked for."""
    inputs = [*arguments.traces, *(path for path in (arguments.job, arguments.facts) if path)]
    if arguments.device_file and real(arguments.device_file) == real(arguments.output):
        raise SpecError("--device-file", f"is {arguments.device_file}, and so is --output.", "Name two files.")
    for path in (arguments.output, arguments.device_file):
        check_output(path, inputs)
        require_new(path, force=arguments.force)
    if arguments.facts and not arguments.device_file:
        raise SpecError("--facts", "is of a device file; without --device-file none is written.")
    with progress(f"reading {len(arguments.traces)} traces"):
        from planner.jobs.problem import load
        from planner.measure.traces.reading import read_recordings
        from planner.measure.traces.report.device_file import host_times, write_extraction_text
        from planner.measure.traces.report.extraction import extract_samples, missing_operators, write_samples

        traces = read_recordings(arguments.traces)
        problem = load(arguments.job) if arguments.job else None
        found = extract_samples(traces, problem)
        hosts = host_times(traces, found.by_trace)
        missing = missing_operators(problem, found) if problem else None
    write_samples(found, arguments.output)
    write(write_extraction_text(found, str(arguments.output), hosts=hosts, missing=missing), None)
    if arguments.device_file:
        write(f"\n{_device(arguments, traces, found)}", None)
    return 0 if 2 * found.known_fraction > 1 else EXIT_MOSTLY_UNKNOWN


def _device(arguments: argparse.Namespace, traces: Any, found: Any) -> str:
    """Write the device's file, and return the text about it."""
    with progress("learning from the samples"):
        from planner.cli.fit import read_facts
        from planner.jobs.cluster import device_text
        from planner.measure.traces.report.device_file import device_report, fit_device_file

        facts = read_facts(arguments.facts) if arguments.facts else None
        fitted, constants = fit_device_file(traces, found, name=arguments.device_file.stem, facts=facts)
    write(device_text(fitted.entry), arguments.device_file)
    return device_report(fitted, constants, str(arguments.device_file))
