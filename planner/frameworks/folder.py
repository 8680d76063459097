"""Writing of an export to a folder: all files or none; existing files are overwritten only with ``--force``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from costmodel.errors import SpecError


def write_files(folder: Path, files: Mapping[str, str], *, force: bool) -> tuple[Path, ...]:
    """
    Write the files of an export.

    They are written to temporary files beside their places, and moved there when all are complete.

    Parameters
    ----------
    folder
        The folder, created if it does not exist.
    files
        Texts by file name.
    force
        True to overwrite files that exist.

    Returns
    -------
    tuple of Path
        Paths of the written files.

    Raises
    ------
    SpecError
        If the folder is a file, or if a file exists already.
    OSError
        If a file cannot be written.
    """
    if folder.exists() and not folder.is_dir():
        raise SpecError(str(folder), "is a file, expected a folder to write to.")
    paths = tuple(folder / name for name in files)
    for path in paths:
        if path.is_dir():
            raise SpecError(str(path), "is a directory, expected a file to write to.")
        if path.exists() and not force:
            raise SpecError(str(path), "exists already; nothing was written.", "Name another folder, or add --force.")
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder, prefix=".export-") as drafts:
        for name, text in files.items():
            Path(drafts, name).write_text(text, encoding="utf-8")
        for name, path in zip(files, paths, strict=True):
            Path(drafts, name).replace(path)
    return paths
