"""
``python -m benchmarks.expert``: default plans of jobs with a published layout, judged as an expert would.

Each job is planned without a word on software or strategy. Judged are unproven features, the published layout by the
planner's own estimate where the default space has it, the best published rate, and the plan's own line given back.
Exits with 1 where a limit is missed.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from benchmarks.expert.jobs import ExpertJob, expert_jobs
from costmodel.errors import PlanningError
from planner.jobs.problem import Problem, load
from planner.jobs.run_jobs import recipe
from planner.report import render
from planner.report.records.reports import report_record
from planner.results import EstimateReport, PlanReport
from planner.search.recipes import fit_recipe
from planner.verbs.compare import Comparison
from planner.verbs.plan import estimate, plan
from planner.verbs.recipes import judge_layout, reasons_outside

FEWEST_JOBS = 40
FEWEST_INSIDE = 30
"""Layouts that the default space has."""

MOST_SLOWER = 0.01
"""Fraction by which a recommended plan may be slower than a published layout, by the planner's own estimate."""

MOST_DOUBTFUL = 0.05
"""Share of the plans that may be predicted more than 10 % above the best published run."""

SAME = 1e-9


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """
    One default plan, judged.

    Parameters
    ----------
    job
        The job's name.
    problem
        The reason why there is no plan; empty: there is one.
    line
        The plan in one line.
    unproven
        Features and pairs that too few runs have, in words.
    outside
        The first reason why the layout is not in the default space; empty: it is.
    slower_fraction
        Excess of the plan's step over the layout's, as a fraction of it; None: the layout has no estimate.
    above_fraction
        Excess of its rate over the best published one, as a fraction of it; None: none is published.
    is_doubtful, is_doubt_first
        True if it is doubted; True if a report says so first.
    is_same
        True if estimating its printed line gives the same step and peak, and comparing it with itself no difference.
    """

    job: str
    problem: str = ""
    line: str = ""
    unproven: tuple[str, ...] = ()
    outside: str = ""
    slower_fraction: float | None = None
    above_fraction: float | None = None
    is_doubtful: bool = False
    is_doubt_first: bool = True
    is_same: bool = True

    @property
    def is_beaten(self) -> bool:
        """True where the published layout is in the default space and faster than it may be."""
        return not self.outside and self.slower_fraction is not None and self.slower_fraction > MOST_SLOWER


def judge(job: ExpertJob) -> Verdict:
    """Plan a job by default and judge the recommended plan."""
    try:
        problem = load(job.document, name=job.name)
        report = plan(problem, certified=False)
        if not report.plans:
            return Verdict(job=job.name, problem="nothing fits")
        layout, outside = _layout(job, problem)
    except PlanningError as error:
        return Verdict(job=job.name, problem=str(error).splitlines()[0])
    return _judged(job, report, layout, outside)


def _layout(job: ExpertJob, problem: Problem) -> tuple[EstimateReport, str]:
    """Cost the published layout; and the first reason why it is not in the default space."""
    if job.recipe:
        found = judge_layout(fit_recipe(recipe(job.recipe), problem.each[0]))
        return found.report, next(iter(found.outside), "")
    given = estimate(problem, job.decisions or {}, searched=False)
    return given, next(reasons_outside(given), "")


def _judged(job: ExpertJob, report: PlanReport, layout: EstimateReport, outside: str) -> Verdict:
    best = report.plans[0]
    text = render(report)
    record, line = best.record, report_record(report).plans[0].line
    given = estimate(report.problem, line)
    again, gain = given.plan, Comparison(given=given, report=report).gain
    shares = [again.step_seconds / best.step_seconds, again.estimate.device_bytes / best.estimate.device_bytes]
    return Verdict(
        job=job.name,
        line=line,
        unproven=tuple(one.text for one in best.unproven),
        outside=outside,
        slower_fraction=best.step_seconds / layout.plan.step_seconds - 1,
        above_fraction=None if record is None else record.above_fraction,
        is_doubtful=record is not None and record.same_model and record.is_doubtful,
        is_doubt_first=record is None or not record.is_doubtful or -1 < text.find("\ndoubt ") < text.find("\nanswer "),
        is_same=all(abs(share - 1) <= SAME for share in shares) and gain is not None and abs(gain.fraction) <= SAME,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge the plans of some jobs and print a line each; 1 where a limit is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.expert", description=__doc__)
    parser.add_argument("--jobs", type=int, default=48, help="jobs, evenly spread over all (default: 48; 0: all)")
    options = parser.parse_args(arguments)
    chosen = expert_jobs(options.jobs)
    with ProcessPoolExecutor(max_workers=os.cpu_count()) as pool:
        verdicts = list(pool.map(judge, chosen))
    for one in verdicts:
        print(_text(one))
    return _summary([one for one in verdicts if not one.problem])


def _text(one: Verdict) -> str:
    if one.problem:
        return f"{one.job}: {one.problem}"
    layout = f"layout {'outside: ' + one.outside if one.outside else 'inside'}"
    slower = "" if one.slower_fraction is None else f", plan {one.slower_fraction:+.1%}"
    above = "no record" if one.above_fraction is None else f"record {one.above_fraction:+.0%}"
    marks = [
        *(f"UNPROVEN {text}" for text in one.unproven),
        *(["BEATEN"] if one.is_beaten else []),
        *(["DOUBTFUL"] if one.is_doubtful else []),
        *([] if one.is_same else ["UNLIKE ITS LINE"]),
    ]
    return f"{one.job}: {' '.join(marks) or 'ok'}; {layout}{slower}; {above}\n  {one.line}"


def _summary(planned: Sequence[Verdict]) -> int:
    """Print the counts beside their limits; 1 where one is missed."""
    inside = [one for one in planned if not one.outside]
    doubtful = [one for one in planned if one.is_doubtful]
    counts = {
        f"jobs (at least {FEWEST_JOBS})": (len(planned), len(planned) >= FEWEST_JOBS),
        "plans with something unproven (0)": (sum(bool(one.unproven) for one in planned),) * 2,
        f"layouts inside (at least {FEWEST_INSIDE})": (len(inside), len(inside) >= FEWEST_INSIDE),
        f"layouts more than {MOST_SLOWER:.0%} faster (0)": (sum(one.is_beaten for one in planned),) * 2,
        f"plans doubted (at most {MOST_DOUBTFUL:.0%})": (len(doubtful), len(doubtful) <= MOST_DOUBTFUL * len(planned)),
        "doubts not said first (0)": (sum(not one.is_doubt_first for one in planned),) * 2,
        "lines that give another plan (0)": (sum(not one.is_same for one in planned),) * 2,
    }
    failed = False
    for text, (count, holds) in counts.items():
        is_met = holds if isinstance(holds, bool) else not holds
        failed |= not is_met
        print(f"{text:42} {count:4}  {'met' if is_met else 'MISSED'}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
