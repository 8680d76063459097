"""
``python -m benchmarks.solver --ablation``: what the rules and the memory limits of CP-SAT's model decide.

The certificate's tables hold every strategy up to the answer's step, those that break a rule or do not fit among them.
For each job the model is solved as it is, without the memory limits, and without the rules. Beside it stands the step
of the same job with unlimited memory, from a search of its own with proof. A job where that is no shorter is named:
the fastest strategy of all fits, so no memory limit can change the optimum. The limits must change all the others.
Then each rule: the strategies of these tables, up to 5 % above the answer, that it alone excludes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from benchmarks.inputs import job_document
from benchmarks.solver.alone import run_alone
from constraints.cp_sat import TICK_SECONDS, cp_model
from constraints.rule import sentence
from costmodel.strategy import FLAGS
from costmodel.tables import tabulate
from planner import load
from planner.jobs.problem import Problem
from planner.search.alternatives import search_each
from planner.search.branch_and_bound import Outcome, Status
from planner.search.certificate import tabulate_anew
from planner.search.margin import Margin, build_model
from planner.search.solver import Clock, new_solver

MODELS = (
    "llama3-8b",
    "llama3-70b",
    "llama3-405b",
    "qwen3-30b-a3b",
    "qwen3-235b-a22b",
    "deepseek-v3",
    "mixtral-8x7b",
    "nemotron-h-56b",
)
CLUSTERS = (("h100-80gb-sxm", 64), ("h100-80gb-sxm", 512), ("b200", 256), ("gb200", 1152))
BATCH, LENGTH = 1024, 4096

LEAST_RULES = 9
"""Jobs in which the rules must change the optimum."""

WIDE = 1.05
"""Steps, as a multiple of the answer's, up to which each rule is asked what it excludes alone."""

MANY = 1e15
"""Bytes of memory that hold every strategy."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """
    One job.

    Parameters
    ----------
    name
        Model and cluster.
    entries, usable, unfit
        Strategies in the tables; allowed ones that fit; allowed ones that do not.
    seconds, without_memory, without_rules
        The optimum of the model as it is, without the memory limits, without the rules.
    with_all_memory
        Step of the job's answer with unlimited memory.
    """

    name: str
    entries: int
    usable: int
    unfit: int
    seconds: float
    without_memory: float
    without_rules: float
    with_all_memory: float

    @property
    def can_bind(self) -> bool:
        """False where the fastest of all strategies fits."""
        return self.with_all_memory < self.seconds - TICK_SECONDS


def run_ablation() -> Iterator[str]:
    """Print both tables; sentences about what decides too little."""
    rows, alone = [], Counter[str]()
    print(
        f"{'ablation':40}{'entries':>9}{'usable':>8}{'unfit':>7}{'optimum':>11}{'no memory':>11}{'no rules':>11}"
        f"{'memory without end':>20}"
    )
    for model in MODELS:
        for device, number in CLUSTERS:
            problem = load(job_document(model, device, number, BATCH, LENGTH))
            outcome = search_each(problem).outcome
            if not outcome.strategies:
                continue
            row = _ask(problem, f"{model} on {number} {device}", outcome.ticks)
            rows.append(row)
            print(
                f"{row.name:40}{row.entries:9,}{row.usable:8,}{row.unfit:7,}{row.seconds:11.6f}"
                f"{row.without_memory:11.6f}{row.without_rules:11.6f}{row.with_all_memory:20.6f}"
                f"{'' if row.can_bind else '  cannot bind: the fastest of all fits'}",
                flush=True,
            )
            alone += _excluded_alone(problem, round(WIDE * outcome.ticks))
    by_memory = sum(row.without_memory < row.seconds for row in rows if row.can_bind)
    by_rules = sum(row.without_rules < row.seconds for row in rows)
    could = sum(row.can_bind for row in rows)
    print(
        f"In {could} of {len(rows)} jobs the memory limits can bind, in {by_memory} they change the optimum; the rules "
        f"change it in {by_rules}."
    )
    print(f"{len(alone)} rules exclude strategies that no other rule excludes:")
    for text, number in alone.most_common():
        print(f"{number:7,}  {text}")
    yield from run_alone()
    if by_memory < could:
        yield f"the memory limits change {by_memory} optima of {could} that they can."
    if wrong := [row.name for row in rows if row.without_memory < row.with_all_memory - TICK_SECONDS]:
        yield f"without memory limits the model is faster than any strategy for {', '.join(wrong)}."
    if by_rules < LEAST_RULES:
        yield f"the rules change {by_rules} optima."


def _ask(problem: Problem, name: str, ticks: int) -> Row:
    margin, _ = tabulate_anew(problem, ticks, Clock(seconds=inf))
    usable, allowed = margin.usable, margin.candidates.allowed
    return Row(
        name=name,
        entries=len(usable),
        usable=int(usable.sum()),
        unfit=int((allowed & ~usable).sum()),
        seconds=_optimum(margin),
        without_memory=_optimum(margin, with_memory=False),
        without_rules=_optimum(margin, with_rules=False),
        with_all_memory=_proven(search_each(_with_all_memory(problem)).outcome),
    )


def _proven(outcome: Outcome) -> float:
    """Step of a proven answer."""
    assert outcome.status == Status.OPTIMAL, outcome.status
    return outcome.step_seconds[0]


def _optimum(margin: Margin, *, with_rules: bool = True, with_memory: bool = True) -> float:
    """Seconds of the fastest strategy of a model."""
    solver = new_solver(inf)
    status = solver.solve(build_model([margin], with_rules=with_rules, with_memory=with_memory).model)
    return solver.objective_value * TICK_SECONDS if status == cp_model.OPTIMAL else inf


def _with_all_memory(problem: Problem) -> Problem:
    """The job on devices with unlimited memory of their own and of their hosts."""
    cluster = problem.facts.cluster
    device = replace(cluster.device, memory_bytes=MANY, host_memory_bytes=MANY)
    return replace(problem, facts=replace(problem.facts, cluster=replace(cluster, device=device)))


def _excluded_alone(problem: Problem, ticks: int) -> Counter[str]:
    """Strategies that exactly one rule excludes, by its sentence; the memory limits count as one."""
    margin, _ = tabulate_anew(problem, ticks, Clock(seconds=inf))
    found = margin.candidates
    decisions = {name: values.astype(bool) if name in FLAGS else values for name, values in found.decisions.items()}
    rules = (*margin.space.rules.rows, *margin.space.rules.mixed)
    holds = [np.broadcast_to(tabulate(rule, problem.facts, decisions), len(found)) for rule in rules]
    broken = np.array([*(~one for one in holds), margin.is_unfit])
    one = broken.sum(axis=0) == 1
    texts = (*(sentence(rule) for rule in rules), "The memory of device and host holds it.")
    return Counter({text: int((row & one).sum()) for text, row in zip(texts, broken, strict=True) if (row & one).any()})
