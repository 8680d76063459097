"""Configuration of a checkpoint from text in or beside it; its pickles are neither loaded nor executed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from costmodel.errors import SpecError
from costmodel.validation import shown

PICKLED = (".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".distcp", ".bin", ".metadata", ".safetensors", ".nemo")
HEADS = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
"""First bytes of zips and pickles."""

TEXTS = ("run_config.yaml", "args.json", "args.yaml")
"""Names of files that hold a run's configuration: Megatron-Bridge's, and arguments by name."""

LEVELS = 2
"""Folders above a file of a checkpoint in which its configuration may stand."""


def text_of_checkpoint(path: Path) -> Path:
    """
    Return the file with the configuration of a checkpoint, or the path itself if it is no checkpoint.

    Raises
    ------
    SpecError
        If the configuration of a checkpoint is in pickles only.
    """
    is_folder = path.is_dir()
    if not is_folder and not _is_pickled(path):
        return path
    for folder in _folders(path) if is_folder else path.absolute().parents[:LEVELS]:
        for name in TEXTS:
            if os.path.isfile(folder / name):
                return folder / name
    what = (
        "is a folder without" if is_folder else f"is {path.suffix or shown(path.name)}, a pickle, and beside it is no"
    )
    problem = f"{what} {TEXTS[0]} or {TEXTS[1]}; a pickle is code, which is not executed."
    written = "json.dump(vars(args), open('args.json', 'w'), default=str)"
    hint = f"Give the log of the run's first minute, or write its arguments: {written}."
    raise SpecError(str(path), problem, hint)


def _is_pickled(path: Path) -> bool:
    if path.suffix.lower() in PICKLED or path.name in PICKLED:
        return True
    try:
        with path.open("rb") as stream:
            return stream.read(4).startswith(HEADS)
    except OSError:
        return False


def _folders(path: Path) -> Iterator[Path]:
    """Yield a checkpoint's folder, and those of its steps, newest first."""
    yield path
    yield from sorted(path.glob("iter_*"), reverse=True)
