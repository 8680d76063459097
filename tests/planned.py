"""Plan jobs and count what that needs, in a process of its own: ``python -m tests.planned JOB ...``."""

from __future__ import annotations

import ctypes
import inspect
import io
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from types import FrameType

from tests.sources import PACKAGES, ROOT


def plan(job: str) -> None:
    """Run ``planner plan`` as a user would, without its output."""
    from planner.cli import main

    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as said:
        code = main(["plan", job])
    assert code == 0, said.getvalue()


def modules(job: str) -> dict[str, int]:
    """Count modules of ours that a plan loads, and files of which it calls a function."""
    entered: set[str] = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        if frame.f_code.co_flags & inspect.CO_NEWLOCALS:
            entered.add(frame.f_code.co_filename)

    threading.settrace(note)
    sys.settrace(note)
    plan(job)
    sys.settrace(None)
    ours = tuple(f"{ROOT / package}/" for package in PACKAGES)
    return {
        "modules loaded": sum(name.partition(".")[0] in PACKAGES for name in sys.modules),
        "files entered": sum(name.startswith(ours) for name in entered),
    }


MALLOC = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
CALLOC = (*MALLOC, ctypes.c_size_t)
"""What they return and take."""

GET_HANDLER = 305
"""Place of ``PyDataMem_GetHandler`` in NumPy's table of C functions, which never changes (NEP 49)."""


class Handler(ctypes.Structure):
    """``PyDataMem_Handler``: who gives arrays their memory."""

    _fields_ = (
        ("name", ctypes.c_char * 127),
        ("version", ctypes.c_uint8),
        ("context", ctypes.c_void_p),
        ("malloc", ctypes.c_void_p),
        ("calloc", ctypes.c_void_p),
        ("realloc", ctypes.c_void_p),
        ("free", ctypes.c_void_p),
    )


@contextmanager
def counted_arrays() -> Iterator[list[int]]:
    """Count in its one entry how often NumPy asks for the memory of an array: no clock, no noise."""
    from numpy._core import _multiarray_umath

    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    functions = ctypes.cast(pointer(_multiarray_umath._ARRAY_API, None), ctypes.POINTER(ctypes.c_void_p))
    capsule = ctypes.PYFUNCTYPE(ctypes.py_object)(functions[GET_HANDLER])()
    handler = ctypes.cast(pointer(capsule, b"mem_handler"), ctypes.POINTER(Handler)).contents
    malloc, calloc = handler.malloc, handler.calloc
    # PYFUNCTYPE keeps the interpreter's lock, which NumPy's own functions release and take themselves.
    own_malloc, own_calloc = ctypes.PYFUNCTYPE(*MALLOC)(malloc), ctypes.PYFUNCTYPE(*CALLOC)(calloc)
    count = [0]

    def count_malloc(context: int, size: int) -> int:
        count[0] += 1
        return own_malloc(context, size)

    def count_calloc(context: int, number: int, size: int) -> int:
        count[0] += 1
        return own_calloc(context, number, size)

    callbacks = ctypes.CFUNCTYPE(*MALLOC)(count_malloc), ctypes.CFUNCTYPE(*CALLOC)(count_calloc)
    handler.malloc, handler.calloc = (ctypes.cast(one, ctypes.c_void_p).value for one in callbacks)
    yield count
    handler.malloc, handler.calloc = malloc, calloc


def count(jobs: list[str]) -> dict[str, dict[str, int]]:
    """Count arrays for each job, one after the other, and the modules that the first one loads."""
    arrays, loaded = {}, {}
    with counted_arrays() as count:
        for job in jobs:
            before = count[0]
            if loaded:
                plan(job)
            else:
                loaded = modules(job)
            arrays[Path(job).stem] = count[0] - before
    return {"modules": loaded, "arrays": arrays}


if __name__ == "__main__":
    print(json.dumps(count(sys.argv[1:])))
