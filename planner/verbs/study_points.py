"""Records of a study: one job changed in one thing, each point a proven plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from costmodel.record import record
from planner.jobs.problem import Problem
from planner.results import EXIT_CODES, Displayed, Plan

if TYPE_CHECKING:
    from planner.search.branch_and_bound import Status
    from planner.verbs.study_features import Feature


@record(frozen=True, kw_only=True, slots=True)
class Point:
    """
    The fastest plan for one value of an entry.

    Parameters
    ----------
    value
        The value as a number, in the entry's unit.
    text
        The value as it was written.
    plan
        Fastest plan; None where there is none.
    status
        Status of the search: ``optimal`` and ``infeasible`` are proven.
    linearity_fraction
        Throughput of one device over that of the first point, MoFa equation (45); None where it is not studied.
    reason
        Reason that there is no plan, besides its status; empty for others.
    """

    value: float
    text: str
    plan: Plan | None
    status: Status
    linearity_fraction: float | None = None
    reason: str = ""


@record(frozen=True, kw_only=True, slots=True)
class Series:
    """
    The points of one entry of a job.

    Parameters
    ----------
    name
        Word of the entry on the command line.
    label
        Words of the entry, with its unit, for people.
    points
        Points in ascending order of their values.
    own
        The job's own value; None where it is not among the points.
    """

    name: str
    label: str
    points: tuple[Point, ...]
    own: float | None


@record(frozen=True, kw_only=True, slots=True)
class StudyReport(Displayed):
    """
    A study of a job.

    Parameters
    ----------
    name
        Name of the study.
    problem
        The job.
    base
        Fastest plan of the job itself; None where there is none.
    status
        Status of its search.
    series
        The points of each entry that was changed.
    features
        Gains of the features of the plan, and costs of the others; empty in other studies.
    notes
        Sentences on assumptions and on parts that do not apply.
    """

    name: str
    problem: Problem
    base: Plan | None
    status: Status
    series: tuple[Series, ...] = ()
    features: tuple[Feature, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """0: every point is proven; 1: no point has a plan; 3: a time limit came before a proof."""
        statuses = [point.status for one in self.series for point in one.points]
        statuses += [one.status for one in self.features]
        if any(EXIT_CODES[status] == EXIT_CODES["unknown"] for status in (self.status, *statuses)):
            return EXIT_CODES["unknown"]
        found = self.features or any(point.plan for one in self.series for point in one.points)
        return 0 if found else EXIT_CODES["infeasible"]


Own: TypeAlias = Callable[[Problem, Plan | None], float | None]
"""Reader of the job's own value, which its plan may have."""


@record(frozen=True, kw_only=True, slots=True)
class Axis:
    """
    One entry of a job that a study changes.

    Parameters
    ----------
    name, label
        As in :class:`Series`.
    entry
        Dotted name of the entry, which decides on units; empty for whole numbers.
    defaults
        Values that are studied unless others are given; None: multiples of the job's own value.
    plan
        Plan of the job with a value; None: the job is searched anew.
    also
        Further entries that follow from the value, as ``key=value``.
    is_read
        True where the job is read anew with the value; False where ``plan`` alone changes.
    own
        The job's own value.
    is_scale
        True where the points are compared by their linearity.
    refusal
        Sentence on jobs to which the axis does not apply; empty for others.
    """

    name: str
    label: str
    entry: str
    own: Own
    defaults: Callable[[Problem, Plan | None], Sequence[float | str]] | None = None
    plan: Callable[[Plan, Problem, float], Plan] | None = None
    also: Callable[[Problem, float], Sequence[str]] = lambda problem, value: ()
    is_read: bool = True
    is_scale: bool = False
    refusal: Callable[[Problem, Plan | None], str] = lambda problem, plan: ""
