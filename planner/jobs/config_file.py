"""Files of models: the ``config.json`` of a path, or of a name on the Hugging Face hub, from its cache."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from costmodel.errors import SpecError
from costmodel.validation import shown

MAX_FILE_BYTES = 4 * 2**20

"""Largest accepted file, far above any config.json."""


def read_config(file: Path) -> Mapping[str, Any]:
    """
    Read the object in a JSON file.

    Raises
    ------
    SpecError
        If the file cannot be read, or is not one JSON object without doubled keys.
    """
    return _parse(_read(file), str(file))


def _read(file: Path) -> bytes:
    try:
        if file.is_dir():
            inner = file / "config.json"
            fix = f"Write '{inner}'." if inner.is_file() else "Give the file config.json of a model."
            raise SpecError(str(file), "is a folder, expected a file.", fix)
        if not file.exists():
            raise SpecError(str(file), "no such file.", "Give the config.json of a model, or its folder.")
        if not file.is_file():
            raise SpecError(str(file), "is not a regular file.")
        if (size := file.stat().st_size) > MAX_FILE_BYTES:
            raise SpecError(str(file), f"has {size} bytes, a config.json at most {MAX_FILE_BYTES}.")
        return file.read_bytes()
    except (OSError, ValueError) as error:
        raise SpecError(repr(str(file))[:200], f"cannot be read: {error}.") from None


def _parse(raw: bytes, where: str) -> Mapping[str, Any]:
    if not raw.strip():
        raise SpecError(where, "is empty.")
    try:
        value = json.loads(_blank_comments(raw.decode("utf-8-sig")), object_pairs_hook=_unique)
    except UnicodeDecodeError:
        raise SpecError(where, "is not text in UTF-8.") from None
    except json.JSONDecodeError as error:
        raise SpecError(where, f"is not JSON: {error.msg} in line {error.lineno}, column {error.colno}.") from None
    except RecursionError:
        raise SpecError(where, "is nested too deep for a config.json.") from None
    except ValueError as error:
        raise SpecError(where, f"is not a config.json: {error}.") from None
    if not isinstance(value, dict):
        raise SpecError(where, f"expected an object, got {shown(value)}.")
    return value


COMMENT = re.compile(r'"(?:[^"\\\n]|\\.)*"|(?://|#)[^\n]*|/\*.*?(?:\*/|\Z)', re.DOTALL)

"""A text in quotes, which may hold the signs of a comment, or a comment."""


def _blank_comments(text: str) -> str:
    """Return a text with spaces in place of comments, so that messages still name lines and columns of the file."""

    def blank(found: re.Match[str]) -> str:
        if found[0].startswith('"'):
            return found[0]
        if found[0].startswith("/*") and not (found[0].endswith("*/") and len(found[0]) >= len("/**/")):
            raise ValueError(f"the comment in line {text.count(chr(10), 0, found.start()) + 1} has no end")
        return re.sub(r"[^\n]", " ", found[0])

    return COMMENT.sub(blank, text)


NO_NUMBERS = {"Infinity": math.inf, "-Infinity": -math.inf, "NaN": math.nan}

"""
Values of non-finite numbers that Python writes into JSON, such as the ``time_step_limit`` of Mamba-2; transformers 5
writes ``{"__float__": "Infinity"}``. No size may be one of them.
"""


def _unique(pairs: list[tuple[str, Any]]) -> Any:
    """Build an object without doubled keys; an object that stands for a number becomes that number."""
    entries = dict(pairs)
    if len(entries) < len(pairs):
        names = [key for key, _ in pairs]
        twice = next(key for key in names if names.count(key) > 1)
        raise ValueError(f"the key {shown(twice)} appears twice")
    number = entries.get("__float__")
    return NO_NUMBERS.get(number, entries) if isinstance(number, str) and len(entries) == 1 else entries


def model_name(file: Path) -> str:
    """Return the name of a file's model."""
    return Path(os.path.realpath(file)).parent.name if file.name == FILE else file.stem


# --- the cache of the hub ------------------------------------------------------------------------------------


NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)

"""Name of an owner and a model; relative paths that begin with a dot do not match."""

FILE = "config.json"


def is_hub_name(name: str) -> bool:
    """
    Return True if a text has the form of a name on the hub.

    >>> is_hub_name("meta-llama/Meta-Llama-3-70B"), is_hub_name("models/config.json"), is_hub_name("./llama/70b")
    (True, False, False)
    """
    return NAME.fullmatch(name) is not None and ".." not in name and not name.endswith((".json", ".yaml", ".yml"))


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of the ``huggingface_hub`` cache."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if environment.get(name):
            return Path(environment[name]).expanduser()
    caches = environment.get("XDG_CACHE_HOME") or "~/.cache"
    home = environment.get("HF_HOME") or f"{caches}/huggingface"
    return Path(home).expanduser() / "hub"


def find_cached_config(name: str, environment: Mapping[str, str] = os.environ) -> Path | None:
    """
    Return the path of a model's ``config.json`` in the cache; None if there is none.

    Parameters
    ----------
    name
        Name on the hub.
    environment
        Variables that set the place of the cache: ``HF_HUB_CACHE``, ``HF_HOME``, ``XDG_CACHE_HOME``.

    Raises
    ------
    SpecError
        If the cache holds several revisions and none of them is ``main``.
    """
    folder = cache_folder(environment) / f"models--{name.replace('/', '--')}"
    main = _revision(folder / "refs" / "main")
    if main and (path := folder / "snapshots" / main / FILE).is_file():
        return path
    found = sorted(path for path in folder.glob(f"snapshots/*/{FILE}") if path.is_file())
    if len(found) > 1:
        problem = f"{shown(name)} is in the cache in {len(found)} revisions, none of which is 'main'."
        raise SpecError("model", problem, f"Give the path of one, such as {found[-1]}.")
    return found[0] if found else None


def _revision(file: Path) -> str:
    """Return the commit that a reference names; empty if there is none."""
    try:
        text = file.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
    return text if text.isalnum() else ""
