"""``planner fit``: makes a device file from samples of its operators."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from costmodel.errors import SpecError
from planner.cli.arguments import add_force, describe
from planner.cli.output import check_output, progress, require_new, write
from planner.cli.terminal.messages import note

EXIT_CODES = """exit codes:
  0  a device file was written
  1  the same, but nothing was learned of some operators: the roofline times them
  2  wrong input: nothing was written
"""
EXIT_SOME_UNLEARNED = 1


def add_fit_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    description = (
        "Learns the times of operators and collectives from a table of samples (planner sample). Says how far they "
        "are off on shapes that were left out. Writes a device file, which a job takes: "
        "cluster: {device: ./my-cluster.yaml}."
    )
    describe(parser, description, EXIT_CODES)
    parser.add_argument("samples", metavar="SAMPLES", type=Path, help="table of samples (CSV or Parquet)")
    parser.add_argument(
        "--facts",
        metavar="YAML",
        type=Path,
        help="what samples cannot say: entries of a device, such as memory_bytes, devices_per_node and networks, or "
        "base: a device of the catalog",
    )
    add_force(parser)
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, required=True, help="device file to write (YAML)")


def run_fit(arguments: argparse.Namespace) -> int:
    """Fit and write the device."""
    check_output(arguments.output, [path for path in (arguments.samples, arguments.facts) if path])
    require_new(arguments.output, force=arguments.force)
    with progress(f"learning from {arguments.samples}"):
        from planner.jobs.cluster import device_text
        from planner.measure.fit.device import fit_device, render_fit
        from planner.measure.sample.table import read_samples

        samples = read_samples(arguments.samples, notify=note)
        facts = read_facts(arguments.facts) if arguments.facts else None
        found = fit_device(samples, name=arguments.output.stem, facts=facts)
    write(device_text(found.entry), arguments.output)
    write(render_fit(found, str(arguments.output)), None)
    return EXIT_SOME_UNLEARNED if found.unlearned else 0


def read_facts(path: Path) -> dict[str, Any]:
    """Read the entries of a device that the user states in a file."""
    from planner.jobs.document import parse, read_text

    found = parse(read_text(path), str(path))
    if not isinstance(found, dict) or not found:
        raise SpecError(str(path), "is no mapping with entries of a device, such as base: h100-80gb-sxm.")
    return found
