"""
MCP server of the planner's tools, over stdin and stdout or over HTTP on this machine alone.

Calls run in confined workers, which are killed when their time is over. So no call reads outside of the folder, and
none stops the server. Wholes of answers stay in memory, and answers refer to them.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import os
import re
import socket
import time
from collections import OrderedDict
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
from jsonschema import Draft202012Validator
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

from costmodel.errors import SpecError
from costmodel.validation import shown
from costmodel.version import version
from planner.agents.tools import SKILL, tools
from planner.agents.work import Call, reply
from planner.batch.executors.confined import ConfinedPool, refuse_outside, unfold
from planner.batch.job_result import JobOutcome
from planner.jobs.document import MAX_DEPTH, MAX_ENTRIES
from planner.schema import SCHEMAS, schema_text

SCHEME = "planner://"

MOST_ARGUMENT_BYTES = 2**20
"""Longest arguments of a call, as JSON; the longest job file."""

MOST_PART_BYTES = 100_000
"""Longest part of a whole that ``read`` returns at once."""

MOST_KEPT_BYTES = 128 * 2**20
MOST_WAITING = 64
"""Calls that may run and wait at once."""

MODULES = ("planner.frameworks", "planner.report", "planner.verbs.any_job", "planner.verbs.explain")
"""Modules of most calls, which a worker imports before its first one."""

WARM_UP = Call(tool="support", arguments='{"model": "llama3-8b", "device": "h100"}', deadline=math.inf)

INSTRUCTIONS = (
    "Plans how to split LLM pretraining over a cluster, with proofs and intervals. Read planner://skill first. Answers "
    "are short; 'whole' refers to the whole report (a resource, or the tool 'read'). Paths are relative to the "
    "server's folder; nothing outside of it is read, and nothing is written."
)


class CallError(Exception):
    """A call that is refused, or failed, with the message for the agent."""


class PlannerServer:
    """
    The server: its tools, its limits, and the answers that it keeps.

    Parameters
    ----------
    root
        Folder whose files calls may read.
    seconds
        Most seconds from a call to its answer, waiting included.
    processes
        Calls that run at once.
    """

    def __init__(self, root: Path, *, seconds: float, processes: int) -> None:
        self.root, self.seconds = Path(os.path.realpath(root)), seconds
        self.tools = tools()
        self._answers: OrderedDict[str, str] = OrderedDict()
        self._pool = ConfinedPool(reply, root=self.root, processes=processes, seconds=seconds + 1, modules=MODULES)
        self._num_calls = 0
        for _ in range(processes):  # each starts a worker, so that the first call does not wait for it
            self._pool.submit(WARM_UP)

    def close(self) -> None:
        """Stop all workers."""
        self._pool.close()

    def server(self) -> Server[Any]:
        """Return the server of the protocol."""
        return Server(
            "planner",
            version=version(),
            instructions=INSTRUCTIONS,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_list_resources=self._list_resources,
            on_list_resource_templates=self._list_templates,
            on_read_resource=self._read_resource,
        )

    # --- calls ---------------------------------------------------------------------------------------------

    async def call(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """
        Answer a call.

        Raises
        ------
        CallError
            If it is refused or fails.
        """
        if self._num_calls >= MOST_WAITING:
            raise CallError(f"{MOST_WAITING} calls run or wait already. Ask again when one was answered.")
        self._num_calls += 1
        end = time.time() + self.seconds
        try:
            with anyio.fail_after(self.seconds):
                text = await anyio.to_thread.run_sync(self._check, name, arguments)  # beside the other calls
                if name == "read":
                    return self._read(arguments["reference"], arguments.get("pointer", ""))
                report = self.whole(arguments["report"]) if "report" in arguments else ""
                call = Call(tool=name, arguments=text, report=report, deadline=end)
                outcome: JobOutcome = await asyncio.wrap_future(self._pool.submit(call))
        except TimeoutError:
            problem = f"The call took longer than the server's {self.seconds:g} s, waiting included."
            raise CallError(f"{problem} Ask for fewer plans, fewer open settings, or with less running.") from None
        finally:
            self._num_calls -= 1
        if outcome.report is None:
            raise CallError(outcome.message or str(outcome.status))
        return {**outcome.report["answer"], "whole": self._keep(name, arguments, outcome.report["whole"])}

    def _check(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Return the arguments as JSON; refuse those that the schema does not allow."""
        if name not in self.tools:
            raise CallError(f"There is no tool {shown(name)}. Known: {', '.join(self.tools)}.")
        try:
            text = json.dumps(arguments)
        except (ValueError, RecursionError) as error:
            raise CallError(f"The arguments are no JSON: {error}.") from None
        if len(text) > MOST_ARGUMENT_BYTES:
            raise CallError(f"The arguments have {len(text):,} bytes, at most {MOST_ARGUMENT_BYTES:,} are read.")
        _require_small(arguments)
        wrong = next(Draft202012Validator(self.tools[name].arguments).iter_errors(arguments), None)
        if wrong is not None:
            place = ".".join(map(str, wrong.absolute_path)) or "arguments"
            raise CallError(f"{place[:200]}: {wrong.message[:400]}")
        try:
            if name != "read":  # whose pointers begin like paths
                refuse_outside({**arguments, "changes": unfold(arguments.get("changes", ()))}, self.root)
        except SpecError as error:
            raise CallError(str(error)) from None
        return text

    # --- wholes --------------------------------------------------------------------------------------------

    def _keep(self, name: str, arguments: Mapping[str, Any], whole: str) -> str:
        """Keep the whole of an answer, forget the oldest ones, and return its reference."""
        key = hashlib.sha256(json.dumps([name, arguments], sort_keys=True).encode()).hexdigest()[:12]
        self._answers[key] = whole
        self._answers.move_to_end(key)
        while sum(map(len, self._answers.values())) > MOST_KEPT_BYTES and len(self._answers) > 1:
            self._answers.popitem(last=False)
        return f"{SCHEME}answers/{key}"

    def whole(self, reference: str) -> str:
        """Return the whole of an answer, a schema or the skill; CallError if there is none."""
        kind, _, name = reference.removeprefix(SCHEME).partition("/")
        if not reference.startswith(SCHEME):
            raise CallError(f"{shown(reference)} is no reference, expected one such as {SCHEME}answers/0123456789ab.")
        if kind == "answers" and name in self._answers:
            return self._answers[name]
        if kind == "schemas" and name in SCHEMAS:
            return schema_text(name)
        if reference == f"{SCHEME}skill":
            return SKILL.read_text(encoding="utf-8")
        raise CallError(f"There is no {shown(reference)}; old answers are forgotten. Call the tool again.")

    def _read(self, reference: str, pointer: str) -> dict[str, Any]:
        """Return a part of a whole."""
        text = self.whole(reference)
        value: Any = text if reference == f"{SCHEME}skill" else json.loads(text)
        for name in pointer.split("/")[1:] if pointer else ():
            name = name.replace("~1", "/").replace("~0", "~")
            try:
                value = value[_place(name)] if isinstance(value, list) else value[name]
            except (KeyError, IndexError, ValueError, TypeError):
                raise CallError(f"{shown(pointer)}: there is no {shown(name)}. Known: {_names(value)}.") from None
        size = len(json.dumps(value))
        if size > MOST_PART_BYTES:
            problem = f"The part has {size:,} bytes, at most {MOST_PART_BYTES:,} are read at once."
            raise CallError(f"{problem} Read a part of it: {_names(value)}.")
        return {"text": f"{reference}{pointer}", "whole": reference, "value": value}

    # --- protocol ------------------------------------------------------------------------------------------

    async def _list_tools(self, context: Any, asked: Any) -> types.ListToolsResult:
        return types.ListToolsResult(
            tools=[
                types.Tool(
                    name=one.name,
                    description=one.description,
                    input_schema=one.arguments,
                    output_schema=one.answer,
                    annotations=types.ToolAnnotations(read_only_hint=True, open_world_hint=False),
                )
                for one in self.tools.values()
            ]
        )

    async def _call_tool(self, context: Any, asked: types.CallToolRequestParams) -> types.CallToolResult:
        try:
            found = await self.call(asked.name, asked.arguments or {})
        except CallError as error:
            return types.CallToolResult(content=[types.TextContent(type="text", text=str(error))], is_error=True)
        text = f"{found['text']}\nwhole: {found['whole']}"
        return types.CallToolResult(content=[types.TextContent(type="text", text=text)], structured_content=found)

    async def _list_resources(self, context: Any, asked: Any) -> types.ListResourcesResult:
        schemas = [
            types.Resource(uri=f"{SCHEME}schemas/{name}", name=name, description=what, mime_type="application/json")
            for name, (_, what) in SCHEMAS.items()
        ]
        skill = types.Resource(uri=f"{SCHEME}skill", name="skill", mime_type="text/markdown")
        return types.ListResourcesResult(resources=[skill, *schemas])

    async def _list_templates(self, context: Any, asked: Any) -> types.ListResourceTemplatesResult:
        whole = types.ResourceTemplate(
            uri_template=f"{SCHEME}answers/{{id}}", name="answer", mime_type="application/json"
        )
        return types.ListResourceTemplatesResult(resource_templates=[whole])

    async def _read_resource(self, context: Any, asked: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        from mcp import MCPError

        try:
            text = self.whole(str(asked.uri))
        except CallError as error:
            raise MCPError(types.INVALID_PARAMS, str(error)) from None
        return types.ReadResourceResult(contents=[types.TextResourceContents(uri=str(asked.uri), text=text)])


def _require_small(arguments: object) -> None:
    """Refuse arguments of more entries or levels than jobs have, whose checks would take seconds."""
    level, num_entries, depth = [arguments], 0, 0
    while level:
        several = (
            one.values() if isinstance(one, Mapping) else one for one in level if isinstance(one, Mapping | list)
        )
        level = [one for values in several for one in values]
        num_entries, depth = num_entries + len(level), depth + 1
        if num_entries > MAX_ENTRIES or depth > MAX_DEPTH:
            limits = f"at most {MAX_ENTRIES:,} entries in {MAX_DEPTH} levels are read"
            raise CallError(f"The arguments have {num_entries:,} entries in {depth} levels or more, {limits}.")


def _place(name: str) -> int:
    """Return the index that a pointer names (RFC 6901: digits without a sign)."""
    if not re.fullmatch("0|[1-9][0-9]*", name):
        raise IndexError
    return int(name)


def _names(value: object) -> str:
    """Return the parts of a value, as pointers name them."""
    if isinstance(value, list):
        return f"0 to {len(value) - 1}"
    return ", ".join(value)[:1000] if isinstance(value, dict) else "none"


# --- transports --------------------------------------------------------------------------------------------


def serve_stdio(server: PlannerServer) -> None:
    """Serve one client over stdin and stdout until it leaves."""

    async def run() -> None:
        async with stdio_server() as (incoming, outgoing):
            own = server.server()
            await own.run(incoming, outgoing, own.create_initialization_options())

    anyio.run(run)


def serve_http(server: PlannerServer, port: int) -> None:
    """
    Serve clients of this machine over HTTP at ``/mcp`` until the process is interrupted.

    Raises
    ------
    SpecError
        If the port is in use.
    """
    import uvicorn

    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
    except OSError as error:
        listener.close()
        raise SpecError("--port", f"127.0.0.1:{port} cannot be used: {error.strerror}.", "Name another one.") from None
    app = server.server().streamable_http_app(host="127.0.0.1", max_request_body_size=2 * MOST_ARGUMENT_BYTES)
    config = uvicorn.Config(app, log_level="warning")
    anyio.run(partial(uvicorn.Server(config).serve, sockets=[listener]))
