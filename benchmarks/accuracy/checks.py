"""Check that rules allow configurations that really ran: all of physics, and nearly all of each row's own software."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.accuracy.jobs import job_entries
from constraints import FRAMEWORK_RULES, MEMORY_RULES, PHYSICS_RULES, PREFERENCE_RULES, find_violations
from constraints.rule import Rule, sentence
from constraints.rules.physics import fits_in_device_memory
from costmodel.step.estimate import estimate
from costmodel.step.layouts import strategy_bytes
from planner.jobs.problem import Problem, load
from planner.measure.runs.predictions import Case, Prediction

FAMILIES: Mapping[str, tuple[Rule, ...]] = {
    "physics": tuple(rule for rule in PHYSICS_RULES if rule not in MEMORY_RULES),
    "their own software's rules": FRAMEWORK_RULES,
    "preferences of the search": PREFERENCE_RULES,
    "memory": MEMORY_RULES,
}

"""Rules by what people call them; memory apart, which is as good as the prediction of the peak."""

GOALS: Mapping[str, float] = {"physics": 0.0, "their own software's rules": 0.01}

"""Largest share of the configurations that rules of a family may forbid."""

NUM_EXAMPLES = 3

"""Rows that are named for each rule."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusals:
    """
    Configurations that the rules of one family forbid.

    Parameters
    ----------
    family
        Family of the rules.
    by_rule
        Rows that each rule forbids, where it forbids any.
    num_refused, num_asked
        Configurations that at least one of the rules forbids; all of them.
    """

    family: str
    by_rule: Mapping[Rule, Sequence[Case]]
    num_refused: int
    num_asked: int

    @property
    def fraction(self) -> float:
        """Share of the configurations that are forbidden."""
        return self.num_refused / max(self.num_asked, 1)

    @property
    def is_met(self) -> bool:
        """True if no more are forbidden than allowed."""
        return self.fraction <= GOALS.get(self.family, 1.0)


def distinct_configurations(cases: Iterable[Case]) -> list[Case]:
    """The first row of each job and strategy that ran to the end of a step."""
    first: dict[str, Case] = {}
    for one in cases:
        if one.run.kind != "oom":
            first.setdefault(json.dumps(one.run.entries, sort_keys=True, default=str), one)
    return list(first.values())


def refusals(cases: Sequence[Case]) -> Iterator[Refusals]:
    """Count the configurations that the rules of each family forbid, with the facts of each row's own software."""
    asked = [(one, one.strategy.decisions() | _resources(one)) for one in cases]
    for family, rules in FAMILIES.items():
        broken = [(one, find_violations(one.facts, decisions, rules=rules)) for one, decisions in asked]
        by_rule = {rule: [one for one, some in broken if rule in some] for rule in rules}
        yield Refusals(
            family=family,
            by_rule={rule: some for rule, some in by_rule.items() if some},
            num_refused=sum(bool(some) for _, some in broken),
            num_asked=len(broken),
        )


def _resources(one: Case) -> dict[str, Any]:
    device_bytes, host_bytes = strategy_bytes(one.facts, one.strategy)
    return {"device_bytes": device_bytes, "host_bytes": host_bytes, "memory_headroom_bytes": 0.0}


def allowed_lines(found: Sequence[Refusals]) -> Iterator[str]:
    """The figures as text: each family, its rules in their own sentences, and rows that they forbid."""
    num_asked = found[0].num_asked if found else 0
    yield f"\n{f'Distinct configurations that ran: {num_asked:,}':<50} {'forbidden':>10} {'share':>7} {'goal':>8} met"
    for one in found:
        goal = GOALS.get(one.family)
        aim, met = ("", "") if goal is None else (f"<= {goal:.0%}", "yes" if one.is_met else "no")
        yield f"  {one.family:<48} {one.num_refused:>10} {one.fraction:>7.1%} {aim:>8} {met}".rstrip()
        for rule, some in sorted(one.by_rule.items(), key=lambda item: -len(item[1])):
            more = f" and {len(some) - NUM_EXAMPLES} more" if len(some) > NUM_EXAMPLES else ""
            yield f"    {len(some):>3}: {sentence(rule)}"
            yield f"         {', '.join(case.run.id for case in some[:NUM_EXAMPLES])}{more}"


OF_CLUSTER = ("device", "num_devices", "framework")

"""Entries of a plain job that describe its cluster."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plain:
    """
    A row as a plain job.

    Parameters
    ----------
    case
        The row.
    step_seconds
        Predicted.
    fits
        True if it fits into the device's memory.
    """

    case: Case
    step_seconds: float
    fits: bool

    @property
    def ran(self) -> bool:
        """True if the configuration really ran."""
        return self.case.run.kind != "oom"


def plain_job(case: Case) -> dict[str, Any]:
    """A row's job with nothing but model, device, count, framework, batch, sequence and precision."""
    job = job_entries(case)
    cluster = {name: job["cluster"][name] for name in OF_CLUSTER if name in job["cluster"]}
    return {"model": job["model"], "cluster": cluster, "training": job["training"]}


def plain_estimates(predicted: Iterable[Prediction]) -> Iterator[Plain]:
    """Every predicted row as a plain job with the row's strategy."""
    problems: dict[str, Problem] = {}
    for one in predicted:
        job = plain_job(one)
        key = json.dumps(job, sort_keys=True, default=str)
        if key not in problems:
            problems[key] = load(job, name=one.run.id)
        facts = problems[key].facts
        estimated = estimate(facts, one.strategy)
        fits = fits_in_device_memory(facts.cluster, device_bytes=estimated.device_bytes, memory_headroom_bytes=0.0)
        yield Plain(case=one, step_seconds=estimated.step_seconds, fits=bool(fits))


MEGATRON = ("nemo", "megatron-bridge", "megatron-core")

"""First words of the frameworks built on Megatron Core."""


def plain_lines(predicted: Iterable[Prediction]) -> Iterator[str]:
    """List, as text, the plain jobs that are refused for memory."""
    rows = list(plain_estimates(predicted))
    yield f"\n{'Plain jobs: does it fit?':<60} {'ran':>5} {'refused':>8} {'oom':>5} {'refused':>8} {'step off':>9}"
    for name, starts in (("all", ("",)), ("NeMo, Megatron-Bridge, Megatron-Core", MEGATRON)):
        chosen = [one for one in rows if _framework(one).startswith(starts)]
        yield f"  {name:<58} {_counts(chosen)}"
    for one in rows:
        if one.ran and not one.fits:
            yield f"    refused: {one.case.run.id}"


def _framework(one: Plain) -> str:
    framework = one.case.facts.cluster.framework
    return framework.name if framework else ""


def _counts(rows: list[Plain]) -> str:
    ran, oom = [one for one in rows if one.ran], [one for one in rows if not one.ran]
    refused, caught = (sum(not one.fits for one in some) for some in (ran, oom))
    errors = [abs(one.step_seconds / one.case.run.step_seconds - 1) for one in ran if one.case.run.step_seconds]
    mean = sum(errors) / max(len(errors), 1)
    share = f"{refused} ({refused / max(len(ran), 1):.1%})"
    return f"{len(ran):>5} {share:>8} {len(oom):>5} {caught:>8} {mean:>9.1%}"
