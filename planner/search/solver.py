"""Settings of CP-SAT: one worker and one seed, so that each job has one answer."""

from __future__ import annotations

from constraints.cp_sat import cp_model
from planner.search.clock import LONGEST_WALL


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
