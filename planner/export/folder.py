"""The files of an export in a folder: all of them or none, and nothing overwritten unasked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from costmodel.errors import SpecError


def paths_in(folder: Path, files: Mapping[str, str], *, force: bool) -> dict[Path, str]:
    """
    Where each file of an export goes.

    Parameters
    ----------
    folder
        The folder, which need not exist.
    files
        Texts by file name.
    force
        Whether files that exist are overwritten.

    Raises
    ------
    SpecError
        If the folder is none, or if a file exists already.
    """
    if folder.exists() and not folder.is_dir():
        raise SpecError(str(folder), "is a file, expected a folder to write to.")
    texts = {folder / name: text for name, text in files.items()}
    for path in texts:
        if path.is_dir():
            raise SpecError(str(path), "is a directory, expected a file to write to.")
        if path.exists() and not force:
            raise SpecError(str(path), "exists already; nothing was written.", "Name another folder, or add --force.")
    return texts
