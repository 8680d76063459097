"""``planner trace``: reads, replays and changes profiler traces, and compares them with the planner's figures."""

from __future__ import annotations

import argparse
from importlib import import_module

COMMANDS: dict[str, tuple[str, str]] = {
    "read": ("planner.cli.trace.read", "what traces hold, what they lack, and how to record it"),
    "replay": (
        "planner.cli.trace.replay",
        "replay of an iteration, compared with the measured one: breakdown, critical path",
    ),
    "extract": ("planner.cli.trace.extract", "samples of operators from traces"),
    "compare": (
        "planner.cli.trace.compare",
        "the planner's step of a job compared with the recorded one, part by part",
    ),
    "what-if": ("planner.cli.trace.what_if", "a recorded step after a change of the job"),
    "project": ("planner.cli.trace.project", "a whole job predicted from runs of it on one node"),
}
"""The file of each command, with its ``add_options`` and ``run``, and its help."""


def add_trace_options(parser: argparse.ArgumentParser) -> None:
    """Add the commands on traces with their options."""
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, (home, what) in COMMANDS.items():
        module = import_module(home)
        command = commands.add_parser(name, help=what)
        module.add_options(command)
        command.set_defaults(run_command=module.run)


def run_trace(arguments: argparse.Namespace) -> int:
    """Run the command that was named."""
    code: int = arguments.run_command(arguments)
    return code
