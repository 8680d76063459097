"""``planner serve``: a local web page of plans."""

from __future__ import annotations

import argparse
import socket
from contextlib import closing
from importlib.util import find_spec

from costmodel.errors import SpecError
from costmodel.validation import shown
from planner.cli.arguments import count, describe, seconds
from planner.cli.terminal.messages import note

PORT = 8765
HOST = "127.0.0.1"
LOOPBACK = ("127.0.0.1", "localhost", "::1")
DEFAULT_SECONDS = 20.0
"""Longest time limit of a search; most take one to three seconds."""

MAX_REQUEST = 2**21
"""Most bytes of a request's head that are read, so that a URL that is too long gets an answer."""

LEAST_TOKEN = 16
"""Fewest letters of a token."""


def add_serve_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    description = (
        "Serves a page with a form and its plan in a browser of this machine: sliders, plans side by side, links that "
        "hold the job, files to start it. Needs pip install '.[serve]'. Ctrl-C ends it."
    )
    describe(parser, description)
    parser.add_argument("--port", metavar="N", type=count("--port"), default=PORT, help=f"default: {PORT}")
    parser.add_argument(
        "--host", metavar="NAME", default=HOST, help=f"address to listen on (default: {HOST}); others need --token"
    )
    parser.add_argument("--token", metavar="TEXT", help=f"secret of every request, at least {LEAST_TOKEN} letters")
    parser.add_argument(
        "--processes", metavar="N", type=count("--processes"), help="plans at once (default: the cores)"
    )
    parser.add_argument(
        "--time-limit",
        metavar="S",
        type=seconds("--time-limit"),
        default=DEFAULT_SECONDS,
        help=f"longest time of a search (default: {DEFAULT_SECONDS:g} s)",
    )


def run_serve(arguments: argparse.Namespace) -> int:
    """Serve until Ctrl-C."""
    missing = [name for name in ("starlette", "uvicorn") if find_spec(name) is None]
    if missing:
        fix = "pip install '.[serve]' brings it."
        raise SpecError("planner serve", f"{' and '.join(missing)} is not installed.", fix)
    token: str | None = arguments.token
    if token is not None and len(token) < LEAST_TOKEN:
        raise SpecError("--token", f"has {len(token)} letters; at least {LEAST_TOKEN} are needed.")
    if token is None and arguments.host not in LOOPBACK:
        raise SpecError("--host", f"{shown(arguments.host)} can be reached by others.", "Add --token TEXT.")
    listening = _listen(arguments.host, arguments.port)

    import uvicorn

    from planner.batch.executors.local import num_cores
    from planner.serve.app import LOCAL_HOSTS, Answers, build_app

    answers = Answers(processes=arguments.processes or num_cores(), seconds=arguments.time_limit)
    hosts = LOCAL_HOSTS if arguments.host in LOOPBACK else ("*",)
    app = build_app(answers, hosts=hosts, token=token)
    place = f"[{arguments.host}]" if ":" in arguments.host else arguments.host
    note(f"http://{place}:{arguments.port}/{f'?token={token}' if token else ''} (Ctrl-C ends it)")
    config = uvicorn.Config(app, log_level="warning", server_header=False, h11_max_incomplete_event_size=MAX_REQUEST)
    server = uvicorn.Server(config)
    with listening, closing(answers):
        server.run(sockets=[listening])
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
        reason = getattr(error, "strerror", None) or str(error)
        raise SpecError(
            "--port", f"{host}:{port} cannot be opened: {reason}.", f"Such as: --port {PORT + 1}."
        ) from None
