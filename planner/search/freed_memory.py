"""Memory of a search: no collections meanwhile, and its return to the system afterwards."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

from planner.jobs.problem import Problem

Verb = TypeVar("Verb", bound=Callable[..., Any])


def releases_memory(verb: Verb) -> Verb:
    """
    Drop a job's tables when a verb has returned, and give freed memory back to the system.

    Meanwhile the garbage collector rests: a search leaves a megabyte per second in cycles, and looking for them takes
    a twentieth of its time.

    glibc raises its thresholds with the largest array that is freed, then keeps up to 64 MB at the top of the heap
    (mallopt(3), M_MMAP_THRESHOLD). A process that plans many jobs would keep the memory of the largest one. The call
    takes a hundredth of a second. Other C libraries have no such call and keep their memory.
    """

    @wraps(verb)
    def released(problem: Problem, **options: Any) -> Any:
        collects = gc.isenabled()
        gc.disable()
        try:
            report = verb(problem, **options)
        finally:
            if collects:
                gc.enable()
        for one in problem.each:
            one.facts.forget()
        try:
            ctypes.CDLL(None).malloc_trim(0)
        except (AttributeError, OSError, TypeError):  # TypeError: Windows has no library without a name
            return report
        return report

    return cast(Verb, released)
