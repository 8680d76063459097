"""``planner serve``: a local web page of plans; with ``--mcp`` tools for agents."""

from __future__ import annotations

import argparse
import os
import socket
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

from costmodel.errors import SpecError, install_hint
from costmodel.validation import shown
from planner.cli.arguments import count, describe, seconds
from planner.cli.output import note

PORT = 8765
HOST = "127.0.0.1"
LOOPBACK = ("127.0.0.1", "localhost", "::1")
DEFAULT_SECONDS = 20.0
"""Longest time limit of a search; most take one to three seconds."""

CALL_SECONDS, LONGEST_CALL = 15.0, 600.0
"""Most seconds of an agent's call by default, and at all."""

MAX_REQUEST = 2**21
"""Most bytes of a request's head that are read, so that a URL that is too long gets an answer."""

LEAST_TOKEN = 16
"""Fewest letters of a token."""


def add_serve_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    description = (
        "Serves a page with a form and its plan in a browser of this machine: sliders, plans side by side, links that "
        "hold the job, files to start it. Needs pip install '.[serve]'. Ctrl-C ends it. With --mcp it serves the "
        "planner's tools to agents by the Model Context Protocol, over stdin and stdout, or with --port over HTTP on "
        "this machine: calls read files of one folder, write none, and use no network. Needs pip install '.[agents]'."
    )
    describe(parser, description)
    parser.add_argument("--mcp", action="store_true", help="serve tools for agents")
    parser.add_argument("--root", metavar="DIR", type=Path, help="folder that calls of --mcp may read (default: .)")
    port_help = f"default: {PORT}; of --mcp: http://127.0.0.1:N/mcp"
    parser.add_argument("--port", metavar="N", type=count("--port"), help=port_help)
    parser.add_argument("--host", metavar="NAME", help=f"address to listen on (default: {HOST}); others need --token")
    parser.add_argument("--token", metavar="TEXT", help=f"secret of every request, at least {LEAST_TOKEN} letters")
    parser.add_argument(
        "--processes", metavar="N", type=count("--processes"), help="plans or calls at once (default: the cores)"
    )
    parser.add_argument(
        "--time-limit",
        metavar="S",
        type=seconds("--time-limit"),
        help=f"longest time of a search (default: {DEFAULT_SECONDS:g} s), or of a call, waiting included "
        f"(default: {CALL_SECONDS:g} s)",
    )


def run_serve(arguments: argparse.Namespace) -> int:
    """Serve until Ctrl-C, or until the agent leaves."""
    if arguments.mcp:
        return _serve_agents(arguments)
    if arguments.root is not None:
        raise SpecError("--root", "is of --mcp; the page reads no files.", "Leave it out.")
    limit = DEFAULT_SECONDS if arguments.time_limit is None else arguments.time_limit
    host, port = arguments.host or HOST, arguments.port or PORT
    missing = [name for name in ("starlette", "uvicorn") if find_spec(name) is None]
    if missing:
        fix = "pip install '.[serve]' brings it."
        raise SpecError("planner serve", f"{' and '.join(missing)} is not installed.", fix)
    token: str | None = arguments.token
    if token is not None and len(token) < LEAST_TOKEN:
        raise SpecError("--token", f"has {len(token)} letters; at least {LEAST_TOKEN} are needed.")
    if token is None and host not in LOOPBACK:
        raise SpecError("--host", f"{shown(host)} can be reached by others.", "Add --token TEXT.")
    listening = _listen(host, port)

    import uvicorn

    from planner.batch.executors.local import num_cores
    from planner.serve.app import LOCAL_HOSTS, Answers, build_app

    answers = Answers(processes=arguments.processes or num_cores(), seconds=limit)
    hosts = LOCAL_HOSTS if host in LOOPBACK else ("*",)
    app = build_app(answers, hosts=hosts, token=token)
    place = f"[{host}]" if ":" in host else host
    note(f"http://{place}:{port}/{f'?token={token}' if token else ''} (Ctrl-C ends it)")
    config = uvicorn.Config(app, log_level="warning", server_header=False, h11_max_incomplete_event_size=MAX_REQUEST)
    server = uvicorn.Server(config)
    with listening, closing(answers):
        server.run(sockets=[listening])
    return 0


def _serve_agents(arguments: argparse.Namespace) -> int:
    """Serve tools until the client leaves, or the process is interrupted."""
    for name in ("host", "token"):
        if getattr(arguments, name) is not None:
            raise SpecError(f"--{name}", "is not of --mcp, which serves this machine alone.", "Leave it out.")
    root: Path = arguments.root or Path()
    if not root.is_dir():
        raise SpecError("--root", f"there is no folder '{root}'.")
    limit = CALL_SECONDS if arguments.time_limit is None else arguments.time_limit
    if not 0 < limit <= LONGEST_CALL:
        raise SpecError("--time-limit", f"must be above 0 and at most {LONGEST_CALL:g} s, got {limit:g}.")
    if arguments.port is not None and arguments.port > 65535:
        raise SpecError("--port", f"must be from 1 to 65535, got {arguments.port}.")
    try:
        from planner.agents.server import PlannerServer, serve_http, serve_stdio
    except ModuleNotFoundError as error:
        if error.name not in ("mcp", "mcp_types", "anyio", "jsonschema"):
            raise
        raise SpecError("--mcp", f"the Python package '{error.name}' is missing.", install_hint("agents")) from None
    server = PlannerServer(root, seconds=limit, processes=arguments.processes or os.cpu_count() or 1)
    with closing(server):
        if arguments.port is None:
            serve_stdio(server)
        else:
            note(f"serving http://127.0.0.1:{arguments.port}/mcp, files of {server.root}")
            serve_http(server, arguments.port)
    return 0


def _listen(host: str, port: int) -> socket.socket:
    """
    Open the port.

    Raises
    ------
    SpecError
        If the port is in use, is none, or the address is not this machine's.
    """
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, OverflowError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).rstrip(".")
        raise SpecError(
            "--port", f"{host}:{port} cannot be opened: {reason}.", f"Such as: --port {PORT + 1}."
        ) from None
