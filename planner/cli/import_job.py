"""``planner import``: a job file from what somebody runs."""

from __future__ import annotations

import argparse
from pathlib import Path

from planner.cli.arguments import add_force, add_output_file, describe
from planner.cli.output import check_output, progress, require_new, write


def add_import_options(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    description = (
        "Reads arguments of Megatron-LM's pretrain_gpt.py, one line or a shell script without variables, "
        "and writes the job with its strategy, which 'estimate' and 'compare' take. What no argument says comes as "
        "key=value: cluster.device=h100-80gb-sxm cluster.num_devices=64."
    )
    describe(parser, description)
    parser.add_argument("arguments", metavar="ARGS.txt", type=Path, help="file with the arguments")
    parser.add_argument("assignments", metavar="key=value", nargs="*", help="an entry of the job")
    add_force(parser)
    add_output_file(parser)


def run_import(arguments: argparse.Namespace) -> int:
    """Read the arguments and write the job."""
    check_output(arguments.output, (arguments.arguments,))
    require_new(arguments.output, force=arguments.force)
    with progress(f"importing {arguments.arguments}"):
        from planner.frameworks.megatron.read import from_megatron_lm
        from planner.jobs.document import read_text

        imported = from_megatron_lm(read_text(arguments.arguments), arguments.assignments)
    write(imported.text, arguments.output)
    return 0
