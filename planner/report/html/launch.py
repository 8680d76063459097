"""Commands and files that start a plan: the planner's commands, their job file, and each framework's files."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import yaml

from constraints.targets import find_first_refusals
from costmodel.errors import SpecError
from planner.frameworks import LAUNCHERS, TARGETS, export
from planner.frameworks.launch import launched
from planner.report.html.frame import code_html, details_html, pair, section_html
from planner.report.section import Section, number_rows

if TYPE_CHECKING:
    from planner.frameworks.target import Export
    from planner.report.html.shown import Shown
    from planner.results import Plan

LAUNCHER = "slurm"
"""The launcher that the commands name; the page has the files of the others too."""

SCRIPTS = {"slurm": "Slurm", "torchrun": "torchrun", "kubernetes": "Kubernetes"}
"""Names of the launchers."""


BESIDE_TODAY = (
    "# Compare with what you run today: write its decisions instead of these",
    "planner explain {job} strategy='TP8 PP4' --format html -o compared.html",
)
BESIDE_BEST = ("# Compare with the fastest plan", "planner explain {job}")
"""The next command, with its comment."""


def launch_blocks(one: Shown, *, searched: bool, further: Sequence[str] = ()) -> Iterator[str]:
    """
    Build the blocks of HTML with the commands and files that start a plan.

    Parameters
    ----------
    one
        The plan.
    searched
        True if a search finds the plan again; otherwise the job file holds its strategy.
    further
        A comment and a command that follow.
    """
    reasons = find_first_refusals(one.plan.facts, one.plan.strategy)
    able = [target for target in targets_in_order(one.plan) if reasons[target] is None]
    file = job_file(one.plan)
    lines = [*commands(one, file, able[0] if able else None, searched=searched)]
    lines += [line.format(job=shlex.quote(file)) for line in further]
    yield code_html("Planner commands", "\n".join(lines))
    yield details_html(f"{file}: the job that they read", code_html(file, job_text(one, searched=searched)))
    for place, target in enumerate(able):
        yield _target(one.plan, export(one.plan, target), target, is_first=place == 0)
    refused = tuple((target, reason) for target, reason in reasons.items() if reason is not None)
    if refused:
        title = "Frameworks that cannot run it"
        yield section_html(Section(title=title, header=("framework", "first reason"), rows=refused), folded=bool(able))


def targets_in_order(plan: Plan) -> list[str]:
    """List every target, those of the plan's own framework first."""
    framework = plan.cluster.framework
    own = [name for name in (framework.targets if framework else ()) if name in TARGETS]
    return list(dict.fromkeys([*own, *TARGETS]))


def job_file(plan: Plan) -> str:
    """Return the name of the job file in the commands."""
    return f"{re.sub(r'[^A-Za-z0-9._-]+', '-', plan.problem.name).strip('-.') or 'job'}.yaml"


def commands(one: Shown, file: str, target: str | None, *, searched: bool) -> Iterator[str]:
    """Write the commands that give the same answer again, and export its files."""
    number = f" --number {one.number}" if searched and one.number > 1 else ""
    yield f"# Save the job below as {file}, then: the same answer again"
    yield f"planner {'plan' if searched else 'estimate'} {shlex.quote(file)} --format json -o plan.json"
    if target is not None:
        yield f"# The files below, with a script for {SCRIPTS[LAUNCHER]} (or --launch torchrun, kubernetes)"
        yield f"planner export plan.json{number} --target {target} --launch {LAUNCHER} -o run"


def job_text(one: Shown, *, searched: bool) -> str:
    """Write the job as a file that needs no other one, with the strategy where that was given."""
    document: dict[str, Any] = {name: part for name, part in one.plan.problem.document.items() if name != "strategy"}
    if not searched:
        whole = one.record.strategy.plain()
        left_out = ("num_microbatches", *(name for name, value in whole.items() if value is None))
        document["strategy"] = {name: value for name, value in whole.items() if name not in left_out}
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=88)


def _target(plan: Plan, exported: Export, target: str, *, is_first: bool) -> str:
    """Build the block on one target: its own files, and the scripts that launch them."""
    own = [code_html(f"{target}: {name}", text) for name, text in exported.files.items()]
    if exported.environment:
        variables = "\n".join(f"export {name}={shlex.quote(value)}" for name, value in exported.environment.items())
        own.append(code_html(f"{target}: environment", variables))
    notes, scripts = list(exported.notes), []
    for launcher, word in SCRIPTS.items():
        try:
            started = launched(plan, exported, launcher)
        except SpecError as error:
            notes.append(str(error))
            break
        name = LAUNCHERS[launcher]
        block = code_html(f"{target}: {name}, for {word}", started.files[name])
        scripts.append(block if launcher == LAUNCHER else details_html(f"{name}, for {word}", block, kind="other"))
        notes += [note for note in started.notes if note not in notes]
    said = section_html(Section(title=f"Before you start {exported.target}", rows=number_rows(notes)), level=4)
    return (
        f"<details{' open' if is_first else ' class=other'}><summary><h3>{escape(exported.target)}</h3></summary>"
        f"{said if notes else ''}{pair(''.join(own), ''.join(scripts))}</details>"
    )
