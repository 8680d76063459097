"""Models by their name on the Hugging Face hub, from the local cache of its tools; without network access."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from costmodel.errors import SpecError
from costmodel.validation import shown

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
