"""Recognition of a configuration's tool by its keys; files of tools that are not imported are refused by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from costmodel.errors import SpecError
from planner.frameworks.imports.documents import read_rows
from planner.frameworks.imports.tools.entries import foundry_job, nanotron_job, neox_job
from planner.frameworks.imports.tools.keys import text_of
from planner.frameworks.imports.tools.references import File, flatten
from planner.frameworks.imports.tools.words import flagscale_job, nemo_job, primus_job
from planner.frameworks.megatron.read import Imported

TOOLS = Path(__file__).parent / "tools.csv"
"""
Table of tools by keys that mark their files; the first row whose marks all match counts.

``marks`` are patterns of dotted names, with ``=`` also of values; ``import:NAME`` is a module that a file of Python
imports. ``reader`` is the name in the table of keys; empty: the tool is not imported, and the last column describes it.
"""

HINT = (
    "Write the job by hand (planner init), or give what Megatron-LM, a fork of it, NeMo, Megatron-Bridge, torchtitan, "
    "DeepSpeed, Accelerate, GPT-NeoX, FlagScale, Primus, nanotron or llm-foundry starts with."
)


def tool_of(content: Mapping[Any, Any]) -> Mapping[str, str] | None:
    """
    Return the row of the tool whose keys a configuration has; None: unknown.

    >>> tool_of({"pipe-parallel-size": 4, "num-layers": 8})["name"], tool_of({"model": "llama3-8b"})
    ('GPT-NeoX', None)
    """
    flat = {key if "." in key else key.replace("-", "_"): value for key, value in flatten(content).items()}
    return next((tool for tool in read_rows(TOOLS) if all(_has(flat, mark) for mark in tool["marks"].split())), None)


def refuse_other_tool(content: Mapping[Any, Any], where: str) -> None:
    """
    Refuse a configuration of a tool that is not imported.

    Raises
    ------
    SpecError
        Names and describes the tool, and the inputs that are accepted.
    """
    tool = tool_of(content)
    if tool is not None and not tool["reader"]:
        raise _refusal(tool, where)


def refuse_other_program(text: str, where: str) -> None:
    """
    Refuse a file of Python that is a configuration of a tool that is not imported.

    Raises
    ------
    SpecError
        As :func:`refuse_other_tool`.
    """
    for tool in read_rows(TOOLS):
        package = tool["marks"].removeprefix("import:")
        if package != tool["marks"] and re.search(rf"(?m)^\s*(from|import)\s+{package}\b", text):
            raise _refusal(tool, where)


READERS: Mapping[str, Callable[[File], Imported]] = {
    "nemo1": nemo_job,
    "flagscale": flagscale_job,
    "primus": primus_job,
    "gpt_neox": neox_job,
    "nanotron": nanotron_job,
    "llm_foundry": foundry_job,
}
"""Import function of each tool, by its name in the table of keys."""


def _refusal(tool: Mapping[str, str], where: str) -> SpecError:
    return SpecError(where, f"is a configuration of {tool['name']}, which is not read: {tool['what']}.", HINT)


def _has(flat: Mapping[str, Any], mark: str) -> bool:
    name, equals, value = mark.partition("=")
    return any(fnmatchcase(key, name) and (not equals or fnmatchcase(text_of(one), value)) for key, one in flat.items())
