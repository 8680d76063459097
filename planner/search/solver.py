"""How CP-SAT is set: one worker and one seed, so that the same job has the same answer."""

from __future__ import annotations

from ortools.sat.python import cp_model


def new_solver(seconds: float, *, one_of_many: bool = False) -> cp_model.CpSolver:
    """
    One worker, one seed: the same answer every time. OR-Tools issue 5293 asks for the inclusion limit.

    Parameters
    ----------
    seconds
        When it stops.
    one_of_many
        Whether it chooses one of a list, in which probing, symmetries and relaxations find nothing for more than half
        of the time.
    """
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    solver.parameters.presolve_inclusion_work_limit = 0
    solver.parameters.catch_sigint_signal = False  # its handler takes the place of Python's: Ctrl-C would kill
    if one_of_many:
        solver.parameters.cp_model_probing_level = 0
        solver.parameters.symmetry_level = 0
        solver.parameters.linearization_level = 0
    solver.parameters.max_time_in_seconds = max(seconds, 0.0)
    return solver
