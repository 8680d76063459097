"""
Worker processes that are confined: one folder to read, one to write, no network, no other process.

Python raises an audit event before it opens a file, lists a folder, connects a socket or starts a process
(PEP 578). A hook that refuses cannot be removed again. A limit of the operating system holds for memory; a worker that
takes too long is killed and replaced.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from costmodel.errors import SpecError
from costmodel.validation import shown
from planner.batch.executors.local import Work, Workers
from planner.batch.job_result import JobOutcome
from planner.jobs.document import parse

MEMORY_BYTES = 2 * 2**30
"""Most address space of a worker; a plan of 65,536 GPUs takes 0.3 GB."""

FILE_BYTES = 64 * 2**20
"""Largest file that a worker may write."""

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
"""Beginnings of events that a worker never needs."""

CHANGES = (
    *("os.chmod", "os.chown", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.symlink", "os.truncate"),
    *("os.utime", "shutil.copyfile", "shutil.move", "shutil.rmtree"),
)
"""Events that change files; their first argument is a path."""

PACKAGES = ("planner", "costmodel", "constraints")
CODE = (".py", ".pyc", ".so", ".typed")
"""Packages whose data a worker reads, and endings of files that an import reads."""

OWN_MEMORY = ("/proc/stat", "/proc/{pid}/stat", "/proc/{pid}/statm")
"""Files by which joblib watches the memory of a worker where psutil is installed."""

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class ConfinedPool:
    """
    Confined workers, replaced when they die or take too long.

    Parameters
    ----------
    work
        Function that answers a question; it gets ``scratch``, the folder that it may write, by keyword.
    root
        Folder whose files it may read; None: only the scratch folder.
    processes
        Number of workers.
    seconds
        Time after which a worker is killed.
    modules
        Modules to import before a worker is confined.
    """

    def __init__(
        self,
        work: Callable[..., JobOutcome],
        *,
        root: Path | None,
        processes: int,
        seconds: float,
        modules: Iterable[str] = (),
    ) -> None:
        self._folder = TemporaryDirectory(prefix="planner-")  # goes with the pool
        scratch = Path(os.path.realpath(self._folder.name))
        prepare = partial(confine, root or scratch, scratch, tuple(modules))
        bound: Work = partial(work, scratch=scratch)
        self._pool = Workers(bound, prepare=prepare, timeout_seconds=seconds, processes=processes)

    def submit(self, question: Any) -> Future[JobOutcome]:
        """Hand a question to the next worker that is free."""
        return self._pool.submit(question)

    def close(self) -> None:
        """Stop all workers."""
        self._pool.close()
        self._folder.cleanup()


class OutsideRootError(PermissionError):
    """A path that is not served; the message does not say whether it exists."""

    def __init__(self, path: object) -> None:
        super().__init__(1, "lies outside of the folder that may be read", str(path))


def is_inside(path: str | os.PathLike[str], folder: Path) -> bool:
    """Tell whether a path, with its links followed, lies in a folder, which has none."""
    real = os.path.realpath(path)
    return real == str(folder) or real.startswith(f"{str(folder).rstrip(os.sep)}{os.sep}")


def refuse_outside(value: object, root: Path, where: str = "") -> None:
    """
    Refuse arguments with a text that is a path out of a folder, also after ``key=``.

    Files are opened under the audit hook alone; this is so that no message says which paths exist.

    Raises
    ------
    SpecError
        With the place of the path.
    """
    if isinstance(value, Mapping):
        for name, one in value.items():
            refuse_outside(name, root, where)
            refuse_outside(one, root, f"{where}.{name}".strip("."))
    elif isinstance(value, list):
        for one in value:
            refuse_outside(one, root, where)
    elif isinstance(value, str):
        for part in (value, value.partition("=")[2].strip()):
            if _leads_outside(part, root):
                hint = "Give a name of the catalog, or a path inside of it."
                raise SpecError(where or "path", f"{shown(part)} lies outside of the folder that may be read.", hint)


def unfold(words: Iterable[str]) -> list[object]:
    """Return words such as ``key=value``, and what those values hold that are lists, mappings or quoted in YAML."""
    found: list[object] = list(words)
    for word in tuple(found):
        value = str(word).partition("=")[2].strip()
        with suppress(SpecError):  # what is no YAML is refused where it is read
            found.append(parse(value, "value") if value.startswith(("[", "{", "'", '"')) else None)
    return found


def _leads_outside(text: str, root: Path) -> bool:
    if "\0" in text or text.startswith("~"):
        return True
    is_path = text.startswith("/") or ".." in text.split("/") or os.path.lexists(root / text)
    return is_path and not is_inside(root / text, root)


def confine(root: Path, scratch: Path, modules: Sequence[str] = ()) -> None:
    """
    Confine this process for the rest of its life, and make the folder to read its working directory.

    Parameters
    ----------
    root
        Folder whose files it may read.
    scratch
        Folder whose files it may write, too.
    modules
        Modules to import before.
    """
    import resource

    for module in modules:
        import_module(module)
    served = {os.path.realpath(one) for one in (root, os.getcwd())}
    sys.path[:] = [one for one in sys.path if one and os.path.realpath(one) not in served]
    os.dup2(2, 1)  # standard output may be a client's
    os.environ.clear()  # secrets of the server, and caches of models in its home
    os.environ.update(HOME=str(scratch), TMPDIR=str(scratch))
    os.chdir(root)
    limits = {"RLIMIT_AS": MEMORY_BYTES, "RLIMIT_FSIZE": FILE_BYTES, "RLIMIT_CORE": 0}
    for name, most in limits.items():
        resource.setrlimit(getattr(resource, name), (most, most))
    code, own = _code_folders(), {path.format(pid=os.getpid()) for path in OWN_MEMORY}

    def allow(path: object, *, writes: bool) -> None:
        if isinstance(path, int) or path is None:  # a file that is open already
            return
        text = os.fsdecode(path) if isinstance(path, bytes | str | os.PathLike) else ""
        if is_inside(text, scratch):
            return
        if not writes and (is_inside(text, root) or _is_code(text, code) or text in own):
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
            raise PermissionError(1, f"is not allowed to a worker: {event}")

    sys.addaudithook(audit)


def _code_folders() -> tuple[Sequence[Path], Sequence[Path]]:
    """Return folders of installed code, and those of our packages, whose data is read as well."""
    installed = [Path(os.path.realpath(one)) for one in (*sys.path, *sysconfig.get_paths().values())]
    own = [Path(os.path.realpath(path)) for name in PACKAGES for path in getattr(sys.modules.get(name), "__path__", ())]
    return installed, own


def _is_code(path: str, code: tuple[Sequence[Path], Sequence[Path]]) -> bool:
    """Tell whether a path is what an import reads, or data of our packages."""
    installed, own = code
    if any(is_inside(path, folder) for folder in own):
        return True
    is_code = path.endswith(CODE) or os.path.isdir(path) or ".so." in path
    return is_code and any(is_inside(path, folder) for folder in installed)
