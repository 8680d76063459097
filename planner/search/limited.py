"""Search of strategies that are faster than a given time."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

import numpy as np

from constraints.encoding import seconds_to_ticks
from planner.jobs.problem import Problem
from planner.search.branch_and_bound import Outcome, Search
from planner.search.candidates import OWN
from planner.search.incumbents import Rivals

LIMIT = "limit"
"""The group of the only rival."""


def search_below(problem: Problem, seconds: float, *, summed_seconds: float | None = None) -> Outcome:
    """
    Search the fastest strategy of a problem, with proof, with a given step time as the first cut.

    Slower strategies may still be found: uneven stages are compared by another formula.

    Parameters
    ----------
    problem
        Job to plan, each setting with one value.
    seconds
        The longest step that is of interest.
    summed_seconds
        The longest step by the sum over ranks that uneven stages are searched by; None: not known.
    """
    run = Search(replace(problem, top=1), OWN)
    run.compete_with(Rivals(ticks=_rival(seconds), summed_ticks=_rival(summed_seconds)))
    return run.run()


def _rival(seconds: float | None) -> dict[Hashable, int]:
    return {} if seconds is None else {LIMIT: int(seconds_to_ticks(np.asarray(seconds)))}
