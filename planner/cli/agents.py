"""``planner mcp``: the planner's tools for agents; ``planner skill``: the text that says when to use them."""

from __future__ import annotations

import argparse
import os
from contextlib import closing
from pathlib import Path

from costmodel.errors import SpecError, install_hint
from planner.cli.arguments import count, describe, seconds
from planner.cli.output import write
from planner.cli.terminal.messages import note

LONGEST_CALL = 600.0
"""Most seconds of a call."""


def add_mcp_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    describe(
        parser,
        "Serves the planner's tools to agents by the Model Context Protocol, over stdin and stdout or over HTTP on "
        "this machine. Calls read files of one folder, write none, and use no network. Needs the extra 'agents'.",
    )
    parser.add_argument(
        "--root", metavar="DIR", type=Path, default=Path(), help="folder whose files calls may read (default: this one)"
    )
    parser.add_argument(
        "--port", metavar="N", type=count("--port"), help="serve http://127.0.0.1:N/mcp (default: stdin and stdout)"
    )
    parser.add_argument(
        "--call-limit",
        metavar="S",
        type=seconds("--call-limit"),
        default=15.0,
        help="most seconds of a call, waiting included (default: 15)",
    )


def run_mcp(arguments: argparse.Namespace) -> int:
    """Serve until the client leaves, or the process is interrupted."""
    root: Path = arguments.root
    if not root.is_dir():
        raise SpecError("--root", f"there is no folder '{root}'.")
    if not 0 < arguments.call_limit <= LONGEST_CALL:
        raise SpecError(
            "--call-limit", f"must be above 0 and at most {LONGEST_CALL:g} s, got {arguments.call_limit:g}."
        )
    if arguments.port is not None and arguments.port > 65535:
        raise SpecError("--port", f"must be from 1 to 65535, got {arguments.port}.")
    try:
        from planner.agents.server import Limits, PlannerServer, serve_http, serve_stdio
    except ModuleNotFoundError as error:
        if error.name not in ("mcp", "mcp_types", "anyio", "jsonschema"):
            raise
        raise SpecError("mcp", f"the Python package '{error.name}' is missing.", install_hint("agents")) from None
    limits = Limits(seconds=arguments.call_limit, at_once=os.cpu_count() or 1)
    server = PlannerServer(root, limits)
    with closing(server):
        if arguments.port is None:
            serve_stdio(server)
        else:
            note(f"serving http://127.0.0.1:{arguments.port}/mcp, files of {server.root}")
            serve_http(server, arguments.port)
    return 0


def add_skill_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    describe(parser, "Prints the folder of the skill, which agents load to learn when to use what.")


def run_skill(arguments: argparse.Namespace) -> int:
    """Print the folder."""
    from planner.agents.schemas import SKILL

    write(str(SKILL.parent), None)
    return 0
