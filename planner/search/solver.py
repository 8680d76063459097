"""Settings of CP-SAT: one worker and one seed, so that each job has one answer."""

from __future__ import annotations

from constraints.cp_sat import cp_model


def new_solver(seconds: float, *, one_of_many: bool = False) -> cp_model.CpSolver:
    """
    Make a solver with one worker and one seed, so that answers repeat.

    OR-Tools issue 5293 asks for the inclusion limit.

    Parameters
    ----------
    seconds
        Time limit.
    one_of_many
        True where it chooses one entry of a list. Probing, symmetries and relaxations then find nothing and take more
        than half of the time.
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
