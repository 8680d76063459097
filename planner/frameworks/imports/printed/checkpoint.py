"""Configuration of a checkpoint: text beside its pickles or in its zip, else arguments in a pickle, not loaded."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Iterator, Mapping
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

from costmodel.errors import SpecError
from costmodel.validation import shown
from planner.frameworks.imports.documents import read_yaml
from planner.frameworks.imports.printed.names import MEMBERS

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

BROKEN = (
    *(pickle.PickleError, ValueError, TypeError, LookupError, AttributeError, EOFError),
    *(RecursionError, NotImplementedError, OverflowError),
)
"""Errors of a pickle or a zip that is cut or no checkpoint."""


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
        with suppress(OSError, BadZipFile, *BROKEN):
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
            whole = _Reader(BytesIO(content)).load()
            found = whole.get("args") if isinstance(whole, dict) else None
            given = found.state if isinstance(found, Named) and found.name == "argparse.Namespace" else found
            if isinstance(given, dict):
                return {str(name): _write(value) for name, value in given.items()}
    return None


# --- pickles -----------------------------------------------------------------------------------------------


class Named:
    """
    Object of a class or of a function's call, or as a type the class itself; none of them is imported or called.

    Its values go to ``arguments`` and ``state``, whatever the class would do with them.
    """

    name = ""
    state: Any = None

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def __new__(cls, *_: Any) -> Named:
        """Return an object without values."""
        return super().__new__(cls)

    def __setstate__(self, state: Any) -> None:
        """Keep the values that its attributes would get."""
        self.state = state

    def __setitem__(self, *_: Any) -> None:
        """Drop a value that it would hold."""

    append = extend = add = __setitem__


class _Reader(pickle._Unpickler):
    """Reader of a pickle to which each class and function is a name alone: nothing is imported, nothing is called."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a type of that name."""
        return type("Named", (Named,), {"name": f"{module}.{name}"})

    def persistent_load(self, pid: Any) -> Any:
        """Return a tensor of the archive by its kind."""
        return Named(pid)


def _write(value: Any) -> str:
    """Write a value as Megatron-LM prints it; of a class and a member of an enumeration its name."""
    if isinstance(value, list | tuple):
        return str(
            [one if isinstance(one, bool | int | float | str) or one is None else _write_one(one) for one in value]
        )
    return _write_one(value)


def _write_one(value: Any) -> str:
    if isinstance(value, type):
        return str(getattr(value, "name", "..."))
    if isinstance(value, Named):
        kind, chosen = value.name.rpartition(".")[2], [*getattr(value, "arguments", ())]
        members = dict(enumerate(MEMBERS.get(kind, ()), 1))
        return f"{kind}.{members.get(chosen[0], chosen[0]) if len(chosen) == 1 else None}"
    is_plain = value is None or isinstance(value, bool | float | str)
    return str(value) if is_plain or (isinstance(value, int) and value.bit_length() < MOST_BITS) else "..."
