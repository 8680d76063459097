"""
``python -m benchmarks.agents``: recorded calls of agents replayed through the MCP server, checked by the oracle.

Needs the extra ``agents``. The client is the official one; arguments and answers are held against the schemas of the
tools. Exits with 1 if an answer is wrong or a schema does not hold.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import anyio
from jsonschema import Draft202012Validator
from mcp import Client, StdioServerParameters, stdio_client

from benchmarks.agents.questions import QUESTIONS, Question
from benchmarks.output import conclude

ROOT = Path(__file__).parents[2]
SAME = 1e-9
"""Relative difference of equal figures."""


def parameters(root: Path = ROOT, *options: str) -> StdioServerParameters:
    """Return the command of the server."""
    words = ["-m", "planner", "serve", "--mcp", "--root", str(root), *options]
    return StdioServerParameters(command=sys.executable, args=words, env={"PYTHONPATH": str(ROOT)}, cwd=ROOT)


async def answer(client: Client, question: Question) -> Any:
    """Make the calls of a question, and pick the answer from the last one."""
    tools = {one.name: one for one in (await client.list_tools()).tools}
    found: Any = {}
    for name, recorded in question.calls:
        arguments = {key: found["whole"] if value == "{whole}" else value for key, value in recorded.items()}
        Draft202012Validator(tools[name].input_schema).validate(arguments)
        result = await client.call_tool(name, arguments)
        if result.is_error:
            raise ValueError(f"{name}: {result.content[0].text}")
        found = result.structured_content
        Draft202012Validator(tools[name].output_schema or {}).validate(found)
    return question.pick(found)


def is_right(given: object, expected: object) -> bool:
    """Compare an answer with the oracle's."""
    if isinstance(given, float) and isinstance(expected, float):
        return math.isclose(given, expected, rel_tol=SAME)
    return given == expected


def main() -> int:
    """Replay, check, print."""
    argparse.ArgumentParser(description=__doc__).parse_args()

    async def ask() -> list[tuple[Any, float]]:
        answers = []
        async with Client(stdio_client(parameters(ROOT, "--time-limit", "60"))) as client:
            for question in QUESTIONS:
                begin = monotonic()
                answers.append((await answer(client, question), monotonic() - begin))
        return answers

    return conclude(_wrong(anyio.run(ask)))


def _wrong(answers: list[tuple[Any, float]]) -> Iterator[str]:
    for question, (given, seconds) in zip(QUESTIONS, answers, strict=True):
        expected = question.oracle(str(ROOT))
        verdict = "right" if is_right(given, expected) else "WRONG"
        print(f"{verdict} {seconds:5.1f} s  {question.text}  {str(given).splitlines()[0][:80]}", flush=True)
        if verdict == "WRONG":
            yield f"{question.text}: answered {given!r}, expected {expected!r}"


if __name__ == "__main__":
    sys.exit(main())
