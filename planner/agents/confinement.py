"""
Confinement of the process that answers one call: one folder to read, one to write, no network, no other process.

Python raises an audit event before it opens a file, lists a folder, connects a socket or starts a process
(PEP 578). A hook that refuses cannot be removed again. Limits of the operating system hold for memory and time.
"""

from __future__ import annotations

import os
import resource
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

MEMORY_BYTES = 6 * 2**30
"""Address space of a call: OR-Tools and the threads of NumPy reserve some 2 GiB, and use a tenth of it."""

FILE_BYTES = 64 * 2**20
"""Largest file that a call may write."""

REFUSED = (
    "socket.",
    "subprocess.",
    "os.exec",
    "os.fork",
    "os.forkpty",
    "os.posix_spawn",
    "os.spawn",
    "os.system",
    "pty.",
)
"""Beginnings of events that a call never needs."""

CHANGES = (
    *("os.chmod", "os.chown", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.symlink", "os.truncate"),
    *("os.utime", "shutil.copyfile", "shutil.move", "shutil.rmtree"),
)
"""Events that change files; their first argument is a path."""

PACKAGES = ("planner", "costmodel", "constraints")
CODE = (".py", ".pyc", ".so", ".typed")
"""Packages whose data a call reads, and endings of files that an import reads."""

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class OutsideRootError(PermissionError):
    """A path that the server does not serve; the message does not say whether it exists."""

    def __init__(self, path: object) -> None:
        super().__init__(1, "lies outside of the folder that the server may read", str(path))


def is_inside(path: str | os.PathLike[str], folder: Path) -> bool:
    """Tell whether a path, with its links followed, lies in a folder, which has none."""
    real = os.path.realpath(path)
    return real == str(folder) or real.startswith(f"{str(folder).rstrip(os.sep)}{os.sep}")


def find_outside(value: object, root: Path, where: str = "") -> tuple[str, str] | None:
    """Return the first text among arguments that is a path out of a folder, with its place; None if there is none."""
    if isinstance(value, Mapping):
        items = [(one, where) for one in value] + [(one, f"{where}.{name}".strip(".")) for name, one in value.items()]
    else:
        items = [(one, where) for one in value] if isinstance(value, list) else []
    for one, place in items:
        if found := find_outside(one, root, place):
            return found
    if isinstance(value, str):
        for part in (value, value.partition("=")[2].strip()):
            is_path = part.startswith(("/", "\\")) or ".." in part.replace("\\", "/").split("/")
            if "\0" in part or part.startswith("~"):
                return where, part
            if (is_path or os.path.lexists(root / part)) and not is_inside(root / part, root):
                return where, part
    return None


def confine(root: Path, scratch: Path, seconds: float) -> None:
    """
    Confine this process for the rest of its life.

    Parameters
    ----------
    root
        Folder whose files it may read.
    scratch
        Folder whose files it may write, too.
    seconds
        Processor time per core after which the operating system ends it.
    """
    root, scratch = (Path(os.path.realpath(one)) for one in (root, scratch))
    limits = {
        "RLIMIT_AS": MEMORY_BYTES,
        "RLIMIT_CPU": int(seconds * (os.cpu_count() or 1)) + 1,
        "RLIMIT_FSIZE": FILE_BYTES,
        "RLIMIT_CORE": 0,
    }
    for name, most in limits.items():
        resource.setrlimit(getattr(resource, name), (most, most))
    code = _code_folders()

    def allow(path: object, *, writes: bool) -> None:
        if isinstance(path, int) or path is None:  # a file that is open already
            return
        text = os.fsdecode(path) if isinstance(path, bytes | str | os.PathLike) else ""
        if is_inside(text, scratch) or (not writes and (is_inside(text, root) or _is_code(text, code))):
            return
        raise OutsideRootError(text)

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            allow(arguments[0], writes=bool((arguments[2] or 0) & WRITING))
        elif event in ("os.listdir", "os.scandir"):
            allow("." if arguments[0] is None else arguments[0], writes=False)
        elif event in CHANGES:
            allow(arguments[0], writes=True)
        elif event.startswith(REFUSED):
            raise PermissionError(1, f"is not allowed to a call: {event}")

    sys.addaudithook(audit)


def _code_folders() -> tuple[Sequence[Path], Sequence[Path]]:
    """Return folders of installed code, and those of our packages, whose data is read as well."""
    installed = [Path(os.path.realpath(one)) for one in (*sys.path, *sysconfig.get_paths().values()) if one]
    own = [Path(os.path.realpath(path)) for name in PACKAGES for path in getattr(sys.modules.get(name), "__path__", ())]
    return installed, own


def _is_code(path: str, code: tuple[Sequence[Path], Sequence[Path]]) -> bool:
    """Tell whether a path is what an import reads, or data of our packages."""
    installed, own = code
    if any(is_inside(path, folder) for folder in own):
        return True
    is_code = path.endswith(CODE) or os.path.isdir(path) or ".so." in path
    return is_code and any(is_inside(path, folder) for folder in installed)
