"""``planner import``: makes a job file from a launch script, arguments or a configuration."""

from __future__ import annotations

import argparse
from pathlib import Path

from planner.cli.arguments import add_force, add_output_file, describe
from planner.cli.output import check_output, progress, require_new, write


def add_import_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    description = (
        "Reads a launch, and writes its job with the strategy, which 'estimate' and 'explain' take. A launch is a "
        "shell script, arguments of Megatron-LM, its MODEL_ARGS (YAML), or a recipe of Megatron-Bridge or NeMo (by "
        "name, Python, overrides, YAML). It may be a configuration of torchtitan (TOML, Python), DeepSpeed (JSON) or "
        "Accelerate (YAML). It may be what a run printed or saved: a log, run_config.yaml, arguments beside a "
        "checkpoint. Nothing of it is executed. Entries that the file lacks come as key=value: "
        "cluster.device=h100-80gb-sxm cluster.num_devices=64."
    )
    describe(parser, description)
    parser.add_argument("file", metavar="FILE", type=Path, help="the script, the arguments or the configuration")
    parser.add_argument("assignments", metavar="key=value", nargs="*", help="an entry of the job")
    parser.add_argument(
        "--set",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="a variable that a script leaves to its environment, or an argument of it (1=...); may come several times",
    )
    add_force(parser)
    add_output_file(parser)


def run_import(arguments: argparse.Namespace) -> int:
    """Read the file and write the job."""
    check_output(arguments.output, (arguments.file,))
    require_new(arguments.output, force=arguments.force)
    with progress(f"importing {arguments.file}"):
        from planner.frameworks.imports.job import import_job, read_variables

        imported = import_job(arguments.file, arguments.assignments, read_variables(arguments.set))
    write(imported.text, arguments.output)
    return 0
