"""The forms in which a plan is printed, and the step and peak of each when it is given back."""

from __future__ import annotations

import csv
import io
import json
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from costmodel.errors import PlanningError, SpecError
from costmodel.strategy import DECISIONS
from planner import estimate, explain, export, load, plan
from planner.frameworks import TARGETS
from planner.frameworks.imports.job import import_job
from planner.jobs.line import read_words
from planner.jobs.problem import split_overrides
from planner.report import render
from planner.report.records.reports import PlanReportRecord
from planner.results import Plan, PlanReport
from planner.verbs.any_job import read_any
from planner.verbs.plan import read_plan


@dataclass(frozen=True, kw_only=True, slots=True)
class Printed:
    """
    A plan as a report prints it.

    Parameters
    ----------
    job
        The job that was planned.
    plan
        The plan.
    number
        Its number in the report.
    line
        The plan in one line.
    entries
        Its strategy and settings in the JSON report.
    row
        Its row in the CSV report.
    folder
        An empty folder; the JSON report lies in it as ``plan.json``.
    """

    job: dict[str, Any]
    plan: Plan
    number: int
    line: str
    entries: Mapping[str, Any]
    row: Mapping[str, str]
    folder: Path

    @property
    def own_job(self) -> dict[str, Any]:
        """The job with the plan's settings, and without a strategy of its own."""
        settings = {**self.job.get("settings", {}), **self.entries["settings"]}
        return {name: own for name, own in self.job.items() if name != "strategy"} | {"settings": settings}


def printed(job: dict[str, Any], folder: Path) -> Iterator[Printed]:
    """
    Plan a job and print it.

    Raises
    ------
    PlanningError
        If the job has no plan.
    """
    report = plan(load(job), certified=False)
    told = json.loads(render(report, "json"))
    rows = list(csv.DictReader(io.StringIO(render(report, "csv"))))
    (folder / "plan.json").write_text(json.dumps(told), encoding="utf-8")
    records = PlanReportRecord.read(report).plans
    for number, (one, record) in enumerate(zip(report.plans, records, strict=True), start=1):
        yield Printed(
            job=job,
            plan=one,
            number=number,
            line=record.strategy.line,
            entries=told["plans"][number - 1],
            row=rows[number - 1],
            folder=folder,
        )


def _by_line(given: Printed) -> Plan:
    overrides, decisions = split_overrides(shlex.split(given.line))
    return estimate(load(given.job, overrides), read_words(decisions)).plan


def _by_explain(given: Printed) -> Plan | None:
    overrides, decisions = split_overrides(shlex.split(given.line))
    return explain(load(given.job, overrides), read_words(decisions)).given


def _by_strategy(given: Printed) -> Plan:
    """As the ``strategy:`` of a YAML file."""
    text = yaml.safe_dump({**given.own_job, "strategy": given.entries["strategy"]})
    return estimate(load(yaml.safe_load(text)), {}).plan


def _by_report(given: Printed) -> Plan:
    return read_plan(given.folder / "plan.json", given.number).plan


def _by_comparison(given: Printed) -> Plan:
    report = read_any(f"{given.folder / 'plan.json'} --number {given.number}").report()
    assert not isinstance(report, PlanReport)
    return report.plan


def _by_candidates(given: Printed) -> Plan | None:
    """As the only row of a list, its decisions cut out of the CSV report."""
    names = [*DECISIONS, "layout", "num_microbatches"]
    with (given.folder / "list.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, names, extrasaction="ignore")
        writer.writeheader()
        writer.writerow(given.row)
    job = given.own_job
    job["search"] = {**job.get("search", {}), "candidates": str(given.folder / "list.csv")}
    found = plan(load(job), certified=False).plans
    return found[0] if found else None


MAIN_FILES = {
    "megatron-lm": "megatron-args.txt",
    "megatron-bridge": "bridge-overrides.txt",
    "torchtitan": "torchtitan_recipe.py",
    "deepspeed": "deepspeed.json",
    "accelerate": "accelerate.yaml",
}
"""The file of a target's export that ``planner import`` takes."""

NOT_SAID = {
    "megatron-lm": (),
    "megatron-bridge": ("model",),
    "torchtitan": ("model",),
    "deepspeed": ("model", "sequence_length"),
    "accelerate": ("model", "sequence_length", "global_batch_size", "mbs"),
}
"""Entries of a job that a target's files do not say."""


def _by_import(target: str) -> Callable[[Printed], Plan | None]:
    def way(given: Printed) -> Plan | None:
        try:
            exported = export(given.plan, target)
        except SpecError:
            return given.plan
        folder = given.folder / f"{target}-{given.number}"
        folder.mkdir()
        variables = "".join(f"{name}={value}\n" for name, value in exported.environment.items())
        for name, text in exported.files.items():
            of_script = variables if name == MAIN_FILES["megatron-lm"] else ""
            (folder / name).write_text(of_script + text, encoding="utf-8")
        found = import_job(folder / MAIN_FILES[target], _entries(given, target))
        return estimate(load(found.document), {}).plan

    return way


def _entries(given: Printed, target: str) -> list[str]:
    """Return entries of the command for all that the files of an export do not say."""
    cluster, work, model = given.plan.cluster, given.plan.facts.workload, given.job["model"]
    if target == "megatron-bridge" and not isinstance(model, str):
        model = model["base"]  # the fields of an export say how many layers there are
    assert cluster.framework is not None
    values = {
        "model": ("model", model if isinstance(model, str) else json.dumps(model)),
        "sequence_length": ("training.sequence_length", work.sequence_length),
        "global_batch_size": ("training.global_batch_size", work.global_batch_size),
        "mbs": ("strategy.mbs", given.plan.strategy.mbs),
    }
    said = dict(values[name] for name in NOT_SAID[target])
    own = {
        "cluster.device": cluster.device.name,
        "cluster.num_devices": cluster.num_devices,
        "cluster.framework": cluster.framework.name,
    }
    of_framework = {} if target == "megatron-lm" else given.own_job["settings"]
    own |= {f"settings.{name}": json.dumps(value) for name, value in of_framework.items()}
    return [f"{name}={value}" for name, value in (own | said).items()]


WAYS: dict[str, Callable[[Printed], Plan | None]] = {
    "line": _by_line,
    "strategy": _by_strategy,
    "report": _by_report,
    "comparison": _by_comparison,
    "candidates": _by_candidates,
    "explain": _by_explain,
    **{f"import of {target}": _by_import(target) for target in TARGETS},
}
"""Ways to give a plan back to the planner."""


def difference(way: str, given: Printed) -> str | None:
    """Return the difference in cost of a plan that is given back; None: there is none."""
    try:
        back = WAYS[way](given)
    except PlanningError as error:
        return f"{type(error).__name__}: {error}"
    if back is None:
        return "no plan"
    step, peak = back.step_seconds, back.estimate.device_bytes
    own = given.plan.step_seconds, given.plan.estimate.device_bytes
    return None if (step, peak) == own else f"{step!r} s and {peak!r} bytes, not {own[0]!r} s and {own[1]!r} bytes"
