"""Answers to the calls of agents, from the planner's own verbs; run in a confined worker."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from costmodel.errors import PlanningError, SpecError, SpecErrors
from costmodel.record import record
from costmodel.validation import shown
from planner.agents.tools import ADVISED, COMPARED, EXPLAINED, MOST_PLANS, OF_PLANS, PLAN_ENTRIES, POINT
from planner.batch.executors.confined import OutsideRootError
from planner.batch.job_result import JobOutcome, JobResult, JobStatus, result_of
from planner.batch.jobs import BatchJob
from planner.jobs.line import pin_words, read_decisions
from planner.jobs.problem import Problem, load, split_overrides
from planner.report import render
from planner.report.console import sections_text
from planner.report.records.reports import AnyReport
from planner.report.short import short_sections
from planner.results import EstimateReport, PlanReport
from planner.verbs.any_job import AnyJob, read_any
from planner.verbs.compare import Comparison

Arguments: TypeAlias = Mapping[str, Any]
Reply: TypeAlias = dict[str, Any]

LONGEST_TEXT = 6000
"""Characters of the text of an answer, some three screens; the whole holds the rest."""


MOST_ANSWER_BYTES = 32 * 2**20

SEARCH_SHARE = 0.4
"""Part of a call's time for its search, whose time limit counts processor time; the rest reads and writes reports."""


@record(frozen=True, kw_only=True, slots=True)
class Call:
    """
    One call.

    Parameters
    ----------
    tool
        Name of the tool.
    arguments
        Arguments that its schema allows, as JSON: deep ones cannot be pickled.
    deadline
        Time of the clock after which nobody waits for the answer.
    report
        The report that ``report`` among the arguments refers to.
    """

    tool: str
    arguments: str
    deadline: float
    report: str = ""


def reply(call: Call, *, scratch: Path) -> JobOutcome:
    """
    Reply to a call; an error is an outcome, too.

    The report has ``answer``, as the tool's schema says but for ``whole``, and ``whole``, the text of the whole answer.
    """
    report = scratch / f"report-{os.getpid()}.json"
    report.write_text(call.report, encoding="utf-8")
    function = {"import": import_}.get(call.tool) or getattr(sys.modules[__name__], call.tool)
    seconds = (call.deadline - time.time()) * SEARCH_SHARE
    if seconds <= 0:
        return JobOutcome(status=JobStatus.TIMED_OUT, message="It waited too long.")
    try:
        arguments = json.loads(call.arguments)
        found: Reply = function(arguments, min(seconds, float(arguments.get("seconds", seconds))), report)
        if len(found["whole"]) > MOST_ANSWER_BYTES:
            raise SpecError("answer", f"has more than {MOST_ANSWER_BYTES:,} bytes.", "Ask for fewer plans.")
        answered = json.loads(json.dumps(found, default=str))
        return JobOutcome(status=JobStatus.OPTIMAL, exit_code=0, report=answered)
    except (PlanningError, OSError, MemoryError, RecursionError) as error:
        return JobOutcome(status=JobStatus.WRONG_INPUT, message=describe_error(error) or type(error).__name__)


def require_file(path: str, where: str) -> Path:
    """Return a path of a file in the working directory."""
    if not os.path.isfile(path):
        raise SpecError(where, f"there is no file {shown(path)}.", "Paths are relative to the server's folder.")
    return Path(path)


# --- jobs --------------------------------------------------------------------------------------------------


def read_job(arguments: Arguments, seconds: float, name: str = "job", *, pins: bool = False) -> AnyJob:
    """
    Read the job of a call in the form that it has.

    Parameters
    ----------
    arguments
        Arguments with ``job`` and ``changes``.
    seconds
        Most seconds of its search.
    name
        The argument that holds the job.
    pins
        True if decisions among the changes limit the search.
    """
    job = arguments[name]
    changes = [*(arguments.get("changes") or ())]
    overrides, words = split_overrides(changes)
    limits: list[str] = []
    if pins:
        limits, changes, words = pin_words(words, overrides), overrides, []
    if isinstance(job, str):
        read = read_any(str(require_file(job, name)), changes, None, limits)
    else:
        problem = load(job, [*overrides, *limits])
        read = AnyJob(name=problem.name, problem=problem, decisions=read_decisions(words, overrides))
    return replace(read, problem=_limit(read.problem, seconds))


def _limit(problem: Problem, seconds: float) -> Problem:
    if problem.top > MOST_PLANS:
        raise SpecError("top", f"at most {MOST_PLANS} plans are reported to an agent, got {problem.top:,}.")
    least = min(problem.search.time_limit_seconds, seconds)
    return replace(problem, search=replace(problem.search, time_limit_seconds=least))


def plan(arguments: Arguments, seconds: float, report_file: Path) -> Reply:
    """Plan a job."""
    from planner.verbs.plan import plan

    problem = read_job(arguments, seconds, pins=True).problem
    report = plan(replace(problem, top=arguments.get("top", problem.top)))
    whole = json.loads(render(report, "json"))
    plans = [pick_plan(one) for one in whole["plans"]]
    return answer(report, whole, status=whole["status"], plans=plans, **conflict_of(whole))


def estimate(arguments: Arguments, seconds: float, report_file: Path) -> Reply:
    """Estimate a strategy."""
    from planner.verbs.plan import estimate, judge_strategy

    job = read_job(arguments, seconds)
    if job.strategy is not None:
        report = judge_strategy(job.problem, job.strategy)
    else:
        report = estimate(job.problem, job.decisions)
    whole = json.loads(render(report, "json"))
    one = {name: value for name, value in pick_plan(whole).items() if name not in OF_PLANS}
    return answer(report, whole, plan=one, **pick(whole, ("allowed", "broken_rules")))


def explain(arguments: Arguments, seconds: float, report_file: Path) -> Reply:
    """Explain the best plan, or a strategy."""
    from planner.verbs.explain import explain

    job = read_job(arguments, seconds)
    report = explain(job.problem, job.decisions or None)
    whole = json.loads(render(report, "json"))
    bindings = [pick(one, ("constraint", "saved_seconds")) for one in whole["bindings"]]
    return answer(report, whole, **pick(whole, EXPLAINED), bindings=bindings, **conflict_of(whole))


def compare(arguments: Arguments, seconds: float, report_file: Path) -> Reply:
    """Compare a strategy with the recommended plan, or two jobs."""
    from planner.verbs.compare import compare_two

    job = read_job(arguments, seconds / 2 if "other" in arguments else seconds)
    report: Comparison
    if "other" in arguments:
        report = compare_two(job.side(), read_job(arguments, seconds / 2, "other").side())
    else:
        report = job.compare_with_plan()
    whole = json.loads(render(report, "json"))
    return answer(report, whole, **pick(whole, COMPARED))


def advise(arguments: Arguments, seconds: float, report_file: Path) -> Reply:
    """Choose devices and their number; cells that no time is left for are named as not planned."""
    from planner.advice.advise import SIZES, ClusterChoices, advise
    from planner.advice.prices import PriceList, read_prices
    from planner.advice.render import render_advice
    from planner.advice.wish import Wish, read_date
    from planner.batch.work import plan_job

    end = time.monotonic() + seconds
    late = JobOutcome(status=JobStatus.TIMED_OUT, message="The call had no time left for it.")

    def run(jobs: Iterable[BatchJob]) -> Iterator[JobResult]:
        for index, job in enumerate(jobs):
            yield result_of(job, plan_job(job) if time.monotonic() < end else late, index)

    job = read_job(arguments, seconds)
    if job.decisions or job.strategy is not None:
        raise SpecError("changes", "hold a strategy, and advise plans each cluster.", "Pin one with search.pin.")
    problem, search = job.problem, job.problem.document.get("search") or {}
    search = {**search, "time_limit_seconds": problem.search.time_limit_seconds}
    wish = {name: arguments[name] for name in ("aim", "days", "budget", "power_watts") if name in arguments}
    if "by" in arguments:
        wish["by"] = read_date(arguments["by"], "by")
    prices = read_prices(require_file(arguments["prices"], "prices")) if "prices" in arguments else PriceList()
    devices = arguments.get("devices") or (() if prices.offers else [problem.facts.cluster.device.name])
    choices = ClusterChoices(devices=tuple(devices), sizes=tuple(arguments.get("sizes", SIZES)), prices=prices)
    problem = replace(problem, document={**problem.document, "search": search})
    found = advise(problem, choices, Wish(**wish), run=run)
    whole = json.loads(render_advice(found, "json"))
    points = [pick(one, POINT) for one in whole["points"]]
    entries = {"points": points, **pick(whole, ADVISED)}
    return {"answer": {"text": cut(render_advice(found)), **entries}, "whole": json.dumps(whole, indent=1)}


def pick(whole: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Pick entries of a report."""
    return {name: whole[name] for name in names}


def pick_plan(whole: Mapping[str, Any]) -> dict[str, Any]:
    """Pick the entries of a plan that answers repeat."""
    run, fits = whole["training_run"], whole["chance_to_fit"]
    picked = {name: whole.get(name) for name in PLAN_ENTRIES}
    return picked | {"days": run["days"], "gpu_hours": run["gpu_hours"], "chance_to_fit": fits and fits["share"]}


def conflict_of(whole: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the rules that together leave no strategy, and the entries of the job to let go."""
    conflict = whole["conflict"] or {}
    rules = [rule for several in conflict.get("exclusive_rules", ()) for rule in several]
    return {"reasons": list(dict.fromkeys(rules)), "release": conflict.get("release") or []}


def answer(report: AnyReport, whole: Mapping[str, Any], **entries: Any) -> Reply:
    """Return an answer with the short text of a report, or the beginning of its table."""
    if isinstance(report, PlanReport | EstimateReport):
        # Commands to be copied are for people.
        text = sections_text([one for one in short_sections(report) if not one.is_verbatim])
    else:
        text = render(report, "table")
    return {"answer": {"text": cut(text), **entries}, "whole": json.dumps(whole, indent=1, ensure_ascii=False)}


def cut(text: str) -> str:
    """Return a text, cut after a line if it is long."""
    if len(text) <= LONGEST_TEXT:
        return text
    return f"{text[:LONGEST_TEXT].rpartition(chr(10))[0]}\n... the whole answer has the rest."


# --- files and tables --------------------------------------------------------------------------------------


def import_(arguments: Arguments, seconds: float, report_file: Path) -> Reply:
    """Import a launch file as a job."""
    from planner.frameworks.imports.job import import_job

    file = require_file(arguments["file"], "file")
    found = import_job(file, arguments.get("changes", ()), arguments.get("variables"))
    entries = {"job": dict(found.document), "notes": [*found.notes]}
    return {"answer": {"text": cut(found.text), **entries}, "whole": json.dumps(entries, indent=1, default=str)}


def export(arguments: Arguments, seconds: float, report_file: Path) -> Reply:
    """Export a plan of an earlier report."""
    from planner.frameworks import export
    from planner.frameworks.launch import launched
    from planner.verbs.plan import read_plan

    saved = read_plan(report_file, arguments.get("number", 1))
    found = export(saved.plan, arguments["target"], arguments.get("framework_version"))
    if "launch" in arguments:
        found = launched(saved.plan, found, arguments["launch"])
    names = [f"{name}: {len(text.splitlines())} lines" for name, text in found.files.items()]
    entries = {"files": dict(found.files), "environment": dict(found.environment), "notes": [*found.notes]}
    return {"answer": {"text": "\n".join(names), **entries}, "whole": json.dumps(entries, indent=1)}


def support(arguments: Arguments, seconds: float, report_file: Path) -> Reply:
    """Tell what is planned, exported, measured and refused."""
    from planner.report.support import support_sections, support_tables

    sections = support_sections(arguments.get("model"), arguments.get("device"))
    tables = support_tables(sections)
    return {"answer": {"text": cut(sections_text(sections)), "tables": tables}, "whole": json.dumps(tables, indent=1)}


def calibrate(arguments: Arguments, seconds: float, report_file: Path) -> Reply:
    """Calibrate a device to runs."""
    from planner.jobs.cluster import device_text
    from planner.jobs.run_jobs import references
    from planner.measure.calibrate.calibrate import calibrate
    from planner.measure.calibrate.wording import calibration_text

    runs = require_file(arguments["runs"], "runs")
    models = require_file(arguments["models"], "models") if "models" in arguments else None
    name = arguments.get("name", "my-cluster")
    found = calibrate(runs, references(models, runs.parent), name=name, base=arguments.get("device"))
    refused = [f"{row.id}: {row.reason}" for row in found.refused]
    entries = {"device_file": device_text(found.device), "refused": refused}
    text = calibration_text(found, f"{name}.yaml")
    return {"answer": {"text": cut(text), **entries}, "whole": json.dumps({"text": text, **entries}, indent=1)}


def describe_error(error: BaseException) -> str:
    """Return the message of an error for the agent."""
    if isinstance(error, OutsideRootError):
        return f"{error.filename}: {error.strerror}."
    if isinstance(error, MemoryError):
        return "The call needs more memory than a call may take. Ask for a smaller job."
    if isinstance(error, SpecErrors):
        return "\n".join([error.title, *(f"  {one}" for one in error.errors)])
    return str(error)
