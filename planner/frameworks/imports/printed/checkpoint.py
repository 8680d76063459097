"""Configuration of a checkpoint: text beside its pickles or in its zip, else arguments in a pickle, not loaded."""

from __future__ import annotations

import json
import os
import pickletools
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

from costmodel.errors import SpecError
from costmodel.validation import shown
from planner.frameworks.imports.documents import read_yaml
from planner.frameworks.imports.printed.container import MEMBERS

SAVED = (".pt", ".pth", ".ckpt", ".distcp", ".bin", ".metadata", ".safetensors", ".nemo")
"""Suffixes of files of a checkpoint."""

PICKLES = (".pkl", ".pickle")
HEADS = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
"""First bytes of zips and pickles."""

TEXTS = ("run_config.yaml", "args.json", "args.yaml")
"""Names of files that hold a run's configuration: Megatron-Bridge's, and arguments by name."""

WITH_ARGUMENTS = ("common.pt", "mp_rank_*/model_optim_rng.pt", "mp_rank_*/*.pt")
"""Files of Megatron-LM's checkpoints with its arguments."""

LEVELS = 2
"""Folders above a file of a checkpoint in which its configuration may stand."""

MOST_OF_A_PICKLE = 8 << 20
MOST_BITS = 256


def is_checkpoint(path: Path) -> bool:
    """Tell whether a path is a folder, or a file of pickles by its name or its first bytes."""
    if path.is_dir() or path.suffix.lower() in (*SAVED, *PICKLES) or path.name in SAVED:
        return True
    try:
        with path.open("rb") as stream:
            return stream.read(4).startswith(HEADS)
    except OSError:
        return False


def text_beside(path: Path) -> Path | None:
    """Return the file with the configuration of a checkpoint; None: there is none, or the path is of no checkpoint."""
    is_saved = path.suffix.lower() in SAVED or path.name in SAVED
    folders = _folders(path) if path.is_dir() else path.absolute().parents[:LEVELS] if is_saved else ()
    places = (folder / name for folder in folders for name in TEXTS)
    return next((place for place in places if os.path.isfile(place)), None)


def arguments_inside(path: Path) -> tuple[Path, Mapping[str, Any]]:
    """
    Return a checkpoint's file, and the configuration in its zip: text, or Megatron-LM's arguments by their names.

    Raises
    ------
    SpecError
        If there is none, with what to give instead.
    """
    files = [path]
    if path.is_dir():
        files = [file for folder in _folders(path) for name in WITH_ARGUMENTS for file in sorted(folder.glob(name))]
    for file in files:
        with suppress(OSError, BadZipFile, ValueError, TypeError, LookupError, RecursionError, NotImplementedError):
            content = _content_of_zip(file)
            if content:
                return file, content
    what = (
        "is a folder without" if path.is_dir() else f"is {path.suffix or shown(path.name)}, a pickle, beside it is no"
    )
    problem = (
        f"{what} {TEXTS[0]} or {TEXTS[1]}, and no arguments of Megatron-LM are in it; a pickle is code, not executed."
    )
    written = "json.dump(vars(args), open('args.json', 'w'), default=str)"
    hint = f"Give the log of the run's first minute, or write its arguments: {written}."
    raise SpecError(str(path), problem, hint)


def _folders(path: Path) -> Iterator[Path]:
    """Yield a checkpoint's folder, and those of its steps, newest first."""
    yield path
    yield from sorted(path.glob("iter_*"), reverse=True)


def _content_of_zip(path: Path) -> Mapping[str, Any] | None:
    with ZipFile(path) as archive:
        for member in sorted(archive.namelist(), key=lambda name: not name.endswith(TEXTS)):
            if not member.endswith((*TEXTS, "data.pkl")):
                continue
            with archive.open(member) as stream:
                content = stream.read(MOST_OF_A_PICKLE + 1)
            if len(content) > MOST_OF_A_PICKLE:
                continue
            if not member.endswith("data.pkl"):
                text = content.decode()
                read = json.loads(text) if member.endswith(".json") else read_yaml(text, f"{path}: {member}")
                return read if isinstance(read, Mapping) else None
            whole = _follow(content)
            found = whole.get("args") if isinstance(whole, dict) else None
            given = found.state if isinstance(found, Named) and found.name == "argparse.Namespace" else found
            if isinstance(given, dict):
                return {str(name): _write(value) for name, value in given.items()}
    return None


# --- instructions of a pickle ------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class Named:
    """
    Object of a class, or the class or function itself; none of them is imported.

    Parameters
    ----------
    name
        Its module and name.
    arguments
        Values that it would be called with; None: it is not called.
    state
        Values that its attributes would get.
    """

    name: str
    arguments: Any = None
    state: Any = None


MARK = object()
PLAIN: Mapping[str, Callable[[], Any]] = {
    **{"NONE": lambda: None, "NEWTRUE": lambda: True, "NEWFALSE": lambda: False, "MARK": lambda: MARK},
    **{"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple, "EMPTY_SET": list},
}
"""Values by the instruction that makes them."""

FROM_STACK: Mapping[str, tuple[int, Callable[[list[Any]], Any]]] = {
    **{f"TUPLE{number}": (number, tuple) for number in (1, 2, 3)},
    **{"TUPLE": (0, tuple), "LIST": (0, list), "FROZENSET": (0, list)},
    "DICT": (0, lambda items: dict(_pairs(items))),
    "STACK_GLOBAL": (2, lambda parts: Named(".".join(map(str, parts)))),
    **dict.fromkeys(("REDUCE", "NEWOBJ"), (2, lambda parts: Named(getattr(parts[0], "name", ""), parts[1]))),
    "BINPERSID": (1, lambda _: Named("tensor")),
}
"""Values that take others from the stack: so many, or 0 for all up to the mark."""

INTO: Mapping[str, int] = {"APPEND": 1, "SETITEM": 2, "BUILD": 1, "APPENDS": 0, "ADDITEMS": 0, "SETITEMS": 0}
"""Instructions that put values into the object below them, with their number; 0: all up to the mark."""


def _follow(content: bytes) -> Any:
    """
    Follow a pickle's instructions with plain values alone: what it names is a name, and nothing is called.

    Raises
    ------
    ValueError, LookupError, TypeError
        If it is no such pickle.
    """
    stack: list[Any] = []
    memo: dict[Any, Any] = {}
    for opcode, argument, _ in pickletools.genops(BytesIO(content)):
        match opcode.name:
            case "PROTO" | "FRAME" | "STOP":
                pass
            case name if name in PLAIN:
                stack.append(PLAIN[name]())
            case name if name in FROM_STACK:
                number, make = FROM_STACK[name]
                stack.append(make(_take(stack, number)))
            case name if name in INTO:
                _put(stack, _take(stack, INTO[name]))
            case "GLOBAL":
                stack.append(Named(str(argument).replace(" ", ".")))
            case "BINPUT" | "LONG_BINPUT" | "PUT" | "MEMOIZE":
                memo[len(memo) if argument is None else argument] = stack[-1]
            case "BINGET" | "LONG_BINGET" | "GET":
                stack.append(memo[argument])
            case _ if isinstance(argument, str | int | float | bytes) and not opcode.stack_before:
                stack.append(argument)
            case name:
                raise ValueError(f"{name} is no instruction of plain values")
    return stack[0]


def _take(stack: list[Any], number: int) -> list[Any]:
    """Take so many values from the stack, or all up to the mark, and the mark."""
    if number > len(stack):
        raise ValueError("takes more than there is")
    place = len(stack) - number
    if not number:
        place = next((one for one in reversed(range(len(stack))) if stack[one] is MARK), -1)
        if place < 0:
            raise ValueError("has no mark")
    taken = stack[place:]
    del stack[place:]
    return taken if number else taken[1:]


def _put(stack: list[Any], items: list[Any]) -> None:
    """Put values into a list or a mapping, or the state into an object; other objects stay as they are."""
    whole = stack[-1]
    if isinstance(whole, Named):
        whole.state = items[0] if len(items) == 1 else None
    elif isinstance(whole, list):
        whole += items
    elif isinstance(whole, dict):
        whole.update(_pairs(items))


def _pairs(items: list[Any]) -> Iterator[tuple[Any, Any]]:
    return zip(items[::2], items[1::2], strict=True)


def _write(value: Any) -> str:
    """Write a value as Megatron-LM prints it; of a class and a member of an enumeration its name."""
    if isinstance(value, list | tuple):
        return str(
            [one if isinstance(one, bool | int | float | str) or one is None else _write_one(one) for one in value]
        )
    return _write_one(value)


def _write_one(value: Any) -> str:
    if isinstance(value, Named):
        kind, chosen = value.name.rpartition(".")[2], value.arguments
        members = MEMBERS.get(kind, ())
        number = chosen[0] if isinstance(chosen, tuple | list) and len(chosen) == 1 else None
        named = members[number - 1] if isinstance(number, int) and 0 < number <= len(members) else number
        return value.name if chosen is None else f"{kind}.{named}"
    is_plain = (
        value is None
        or isinstance(value, bool | float | str)
        or (isinstance(value, int) and value.bit_length() < MOST_BITS)
    )
    return str(value) if is_plain else "..."
