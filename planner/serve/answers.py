"""Answers to questions, made in a worker process: sections and figures, a whole page, a report, exported files."""

from __future__ import annotations

import io
import shlex
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from costmodel import GIB_BYTES
from costmodel.errors import PlanningError, SpecError
from costmodel.validation import shown
from planner.batch.executors.confined import MEMORY_BYTES, refuse_outside, unfold
from planner.batch.job_result import JobOutcome, JobStatus
from planner.serve.question import FIELDS, Question

if TYPE_CHECKING:
    from planner.jobs.problem import Problem
    from planner.report.records.reports import ReportRecord
    from planner.results import PlanReport

MODULES = ("planner.report.short", "planner.verbs.plan")
"""Modules of every question, which a worker imports before it is confined."""


def answer(question: Question, *, seconds: float, scratch: Path) -> JobOutcome:
    """
    Answer one question; an error is an outcome, too.

    Parameters
    ----------
    question
        The question.
    seconds
        Longest time limit of its search.
    scratch
        Empty folder of the worker, the only one that it reads.
    """
    try:
        refuse_outside({field.label: question[field.name].split() for field in FIELDS}, scratch)
        refuse_outside({"Words and entries": unfold(_split(question["more"]))}, scratch)
        return JobOutcome(status=JobStatus.OPTIMAL, exit_code=0, report=_answer(question, seconds))
    except (PlanningError, OSError, RecursionError) as error:
        return JobOutcome(status=JobStatus.WRONG_INPUT, exit_code=2, message=str(error))
    except MemoryError:
        return JobOutcome(status=JobStatus.FAILED, message=f"It needs more than {MEMORY_BYTES / GIB_BYTES:g} GiB.")


def _answer(question: Question, seconds: float) -> dict[str, Any]:
    from planner.report import render
    from planner.report.records.reports import report_record
    from planner.verbs.plan import plan

    problem = read_problem(question, seconds)
    report = plan(problem)
    if question.wanted == "page":
        return {"body": render(report, "html")}
    if question.wanted == "report":
        return {"body": render(report, "json")}
    if question.wanted == "export":
        return {"body": _export(report)}
    return _parts(report_record(report), report.exit_code)


def _parts(whole: ReportRecord, exit_code: int) -> dict[str, Any]:
    """Return sections as HTML, key figures, bars of the step, and the targets that can run the plan."""
    from planner.report.html.charts import steps_chart
    from planner.report.html.frame import section_html
    from planner.report.html.shown import report_plans
    from planner.report.records import finite
    from planner.report.short import short_sections

    first = report_plans(whole)[:1]
    return {
        "html": "".join(section_html(one, level=2) for one in short_sections(whole) if not one.is_verbatim),
        "figures": dict(_figures(whole)) if whole.plans else {},
        "chart": finite(steps_chart(first)) if first else None,
        "exit_code": exit_code,
    }


def _figures(whole: ReportRecord) -> list[tuple[str, str]]:
    """Return the figures of the first plan that people compare."""
    from planner.report.results import money_rows
    from planner.report.section import amount, gib, seconds, share

    best, run = whole.plans[0], whole.plans[0].training_run
    return [
        ("Step", f"{seconds(best.step_time_seconds)} s"),
        ("Tokens/s/GPU", f"{best.tokens_per_second_per_gpu:,.1f}"),
        ("MFU", f"{best.mfu:.1%}"),
        ("Peak memory", f"{gib(best.peak_memory_bytes)} of {gib(whole.cluster.memory_bytes)} GiB"),
        ("Chance to fit", share(best.chance_to_fit.share, 1.0)),
        ("Training", f"{run.days:,.2f} days"),
        ("GPU-hours", amount(run.gpu_hours)),
        *((name.capitalize(), text) for name, text in money_rows(whole.job.costs, best) if name),
        ("Strategy", best.strategy.line),
    ]


def read_problem(question: Question, seconds: float) -> Problem:
    """
    Read a question as a job.

    Raises
    ------
    SpecError
        For all mistakes of the job.
    """
    from planner.jobs.document import Place
    from planner.jobs.entries import OPTIONS
    from planner.jobs.line import PIN, pin_words, read_words, require_parts
    from planner.jobs.one_line import one_line
    from planner.jobs.problem import load, split_overrides

    numbers = {name: question[name] for name in OPTIONS if question[name]}
    read = one_line(question["model"], f"{question['devices']}x{question['device']}", numbers)
    named = [field for field in FIELDS if field.name in OPTIONS]
    places = {OPTIONS[field.name]: Place(where=field.label, text=question[field.name]) for field in named}
    document = replace(read, places={**read.places, **places})
    overrides, words = split_overrides(_split(question["more"]))
    if question["target"]:
        overrides.append(f"search.target={question['target']}")
    problem = load(document, [*overrides, *pin_words(words, overrides)])
    require_parts(problem.facts.model, read_words(words), PIN)
    return problem.change_limits(time_limit_seconds=min(seconds, problem.search.time_limit_seconds))


def _split(text: str) -> list[str]:
    """Split words as a shell does, so that a quoted entry may have spaces."""
    try:
        return shlex.split(text)
    except ValueError:
        raise SpecError("Words and entries", f"a quote is not closed in {shown(text)}.") from None


def _export(report: PlanReport) -> bytes:
    """Return a ZIP archive of the files that start the first plan."""
    from planner.frameworks import export
    from planner.report.records.reports import report_record
    from planner.report.short import launch_target

    if not report.plans:
        raise SpecError("plan", "there is none to export.")
    target = launch_target(report_record(report))
    if target is None:
        raise SpecError("plan", "no target can run it; name one in the field Target.")
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as files:
        exported = export(report.plans[0], target)
        for name, text in exported.files.items():
            files.writestr(name, text)
        files.writestr("notes.txt", "\n".join(exported.notes))
    return archive.getvalue()
