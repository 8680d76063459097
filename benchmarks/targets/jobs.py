"""Random jobs, and what becomes of one that is planned for a target."""

from __future__ import annotations

import random
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from enum import StrEnum
from itertools import count, islice
from typing import Any

from benchmarks.inputs import job_document, read_yaml
from constraints import MEMORY_RULES, sentence
from constraints.rules.exports import EXPORTS
from costmodel import catalog
from costmodel.errors import PlanningError, SpecError
from planner import export, load, plan
from planner.search.runnable import require_runnable

MODELS = tuple(name for name in catalog.models() if not name.startswith("mofa"))
DRAWN = read_yaml(__file__)
SETTINGS, SEARCH = DRAWN["settings"], DRAWN["search"]

CHANGED, SEARCHED = 0.25, 0.35
"""Shares of the jobs that say something of settings and of the search."""


class Answer(StrEnum):
    """Outcomes of a job for a target."""

    EXPORTED = "planned and exported"
    REFUSED = "refused before the search"
    NO_MEMORY = "infeasible: memory"
    NO_RULES = "infeasible: other rules"
    UNKNOWN = "no plan in time"
    WRONG = "wrong"


@dataclass(frozen=True, kw_only=True, slots=True)
class Became:
    """
    Outcome of a job for a target.

    Parameters
    ----------
    answer
        In a word.
    text
        The refusal, or what is wrong.
    """

    answer: Answer
    text: str = ""


def random_jobs(seed: int, number: int, seconds: float) -> Iterator[dict[str, Any]]:
    """
    Jobs that the planner takes without a target.

    Parameters
    ----------
    seed
        Seed of the draws.
    number
        Number of jobs.
    seconds
        Time limit of each search.
    """
    drawn = (_draw_job(random.Random(f"{seed} {at}"), seconds) for at in count())
    yield from islice((job for job in drawn if is_sound(job)), number)


def _draw_job(chooser: random.Random, seconds: float) -> dict[str, Any]:
    device = chooser.choice(DRAWN["devices"])
    num_devices = chooser.choice(DRAWN["nodes"]) * catalog.device(device).devices_per_node
    batch = chooser.choice(DRAWN["batches"])
    job = job_document(
        chooser.choice(MODELS),
        device,
        num_devices,
        max(batch, num_devices // 4),
        chooser.choice(DRAWN["sequences"]),
        precision=chooser.choice(DRAWN["precisions"]),
        search={"time_limit_seconds": seconds},
        top=chooser.choice((1, 3)),
        variants=chooser.choice(("groups", "groups", "all")),
    )
    if chooser.random() < CHANGED:
        names = chooser.sample(sorted(SETTINGS), k=chooser.choice((1, 1, 2)))
        job["settings"] = {name: chooser.choice(SETTINGS[name]) for name in names}
    if chooser.random() < SEARCHED:
        name = chooser.choice(sorted(SEARCH))
        job["search"][name] = chooser.choice(SEARCH[name])
    return job


def is_sound(job: dict[str, Any]) -> bool:
    """Return True if the planner reads a job."""
    try:
        load(job)
    except PlanningError:
        return False
    return True


def became(job: dict[str, Any], target: str) -> Became:
    """Plan a job for a target and return its outcome."""
    given = deepcopy(job)
    given["search"]["target"] = target
    try:
        problem = load(given)
        require_runnable(problem)
    except SpecError as error:
        return _refused(error, target)
    report = plan(problem, certified=False)
    for one in report.plans:
        try:
            export(one, target)
        except SpecError as error:
            return Became(answer=Answer.WRONG, text=f"{one.strategy}: {error}")
    if report.plans:
        return Became(answer=Answer.EXPORTED)
    if report.exit_code != 1:
        return Became(answer=Answer.UNKNOWN)
    conflict = report.outcome.conflict
    memory = {sentence(rule) for rule in MEMORY_RULES}
    sets = conflict.exclusive if conflict else ()
    if not sets or any(memory & set(rules) for rules in sets):
        return Became(answer=Answer.NO_MEMORY)
    return Became(answer=Answer.NO_RULES, text=" ".join(sets[0]))


def _refused(error: SpecError, target: str) -> Became:
    """A refusal names the entry, and the target or one of its releases."""
    text = str(error)
    names = (target, EXPORTS[target].name, *catalog.releases_for(target))
    is_told = error.where and any(name in text for name in names)
    return Became(answer=Answer.REFUSED if is_told else Answer.WRONG, text=text)
