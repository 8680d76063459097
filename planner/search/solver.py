"""
Means of a search: CP-SAT with one worker and one seed, the clock of a time limit, and memory that is given back.

Limits are processor time, so that a busy machine does not change an answer. Time on the wall is an outer bound.
"""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Callable
from dataclasses import field
from functools import wraps
from typing import Any, TypeVar, cast

from constraints.cp_sat import cp_model
from costmodel.record import record
from planner.jobs.problem import Problem

LONGEST_WALL = 4.0
"""Seconds on the wall for each second of a limit; a process that gets less of a processor is cut short."""


class OutOfTimeError(Exception):
    """Time ran out; the caller reports the incomplete result."""


@record(frozen=True, kw_only=True, slots=True)
class Clock:
    """
    A running time limit.

    Parameters
    ----------
    seconds
        Length of the limit: seconds of the processor, or :data:`LONGEST_WALL` times as many on the wall.
    """

    seconds: float
    started: tuple[float, float] = field(default_factory=lambda: (time.process_time(), time.perf_counter()))

    @property
    def usage_seconds(self) -> float:
        """Seconds since the start."""
        busy, wall = time.process_time() - self.started[0], time.perf_counter() - self.started[1]
        return max(busy, wall / LONGEST_WALL)

    @property
    def seconds_left(self) -> float:
        """Remaining seconds; negative once time is up."""
        return self.seconds - self.usage_seconds

    @property
    def is_over(self) -> bool:
        """True once time is up."""
        return self.seconds_left <= 0

    def require(self) -> None:
        """
        Check that time is left.

        Raises
        ------
        OutOfTimeError
            If time is up.
        """
        if self.is_over:
            raise OutOfTimeError


def new_solver(seconds: float, *, of_tables: bool = True) -> cp_model.CpSolver:
    """
    Make a solver with one worker and one seed, so that answers repeat.

    OR-Tools issue 5293 asks for the inclusion limit.

    Parameters
    ----------
    seconds
        Time limit in seconds of the processor.
    of_tables
        True for a choice among the rows of tables. Propagation alone finds the least one: presolve and linear programs
        take half of the time of 50 rows, and nine tenths of that of 7,000.
    """
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    solver.parameters.presolve_inclusion_work_limit = 0
    solver.parameters.catch_sigint_signal = False  # its handler takes the place of Python's: Ctrl-C would kill
    if of_tables:
        solver.parameters.cp_model_presolve = False
        solver.parameters.linearization_level = 0
    solver.parameters.max_deterministic_time = max(seconds, 0.0)  # counts work, about a second of it in a second
    solver.parameters.max_time_in_seconds = max(seconds, 0.0) * LONGEST_WALL
    return solver


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
    def run_and_release(problem: Problem, **options: Any) -> Any:
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

    return cast(Verb, run_and_release)
