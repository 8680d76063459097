"""Gain of each feature of a plan, alone and last, and cost of each feature that the plan leaves out."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from constraints import MEMORY_RULES, sentence
from costmodel.errors import SpecError
from costmodel.record import record
from costmodel.strategy import (
    ENUMS,
    FLAGS,
    CudaGraphs,
    Recompute,
    Schedule,
    Sharding,
    Strategy,
    TokenDispatcher,
    Vocabulary,
    decision_text,
    default_microbatch_group,
)
from planner.jobs.problem import Problem
from planner.jobs.strategy_file import StrategyFile
from planner.results import EstimateReport, Plan, PlanReport
from planner.search.complete import question_of
from planner.search.domains import cheap_recompute, feature_values
from planner.verbs.compare import Gain, gain_interval
from planner.verbs.plan import judge_strategy, plan

if TYPE_CHECKING:
    from planner.search.branch_and_bound import Status

BARE: Mapping[str, int] = {
    "mbs": 1,
    "vpp": 1,
    "sequence_parallel": 0,
    "schedule": int(Schedule.ONE_F_ONE_B),
    "vocabulary": int(Vocabulary.ENDS),
    "sharding": int(Sharding.NONE),
    "recompute": int(Recompute.NONE),
    "activation_offload": 0,
    "optimizer_offload": 0,
    "token_dispatcher": int(TokenDispatcher.ALLTOALL),
    "cuda_graphs": int(CudaGraphs.NONE),
    "tp_overlap": 0,
    "cp_overlap": 0,
    "ep_overlap": 0,
    "pp_overlap": 0,
    "dp_overlap": 0,
}
"""Features, with their values in a bare plan."""


@record(frozen=True, kw_only=True, slots=True)
class Feature:
    """
    One feature and its value.

    Parameters
    ----------
    name, text
        The decision; its value as a word of a line.
    is_in_plan
        True where the plan has it; else the plan leaves it out.
    alone
        Gain of the bare plan with this feature over the bare plan; None where it cannot be costed.
    other
        The plan without the feature, or with it where it leaves it out; its degrees unchanged.
    last
        Gain of the plan over ``other``.
    replanned
        The fastest plan of the job without the feature, or with it where the plan leaves it out.
    replanned_gain
        Gain of the plan over ``replanned``; None where there is none.
    """

    name: str
    text: str
    is_in_plan: bool
    alone: Gain | None
    other: EstimateReport
    last: Gain
    replanned: PlanReport
    replanned_gain: Gain | None

    @property
    def status(self) -> Status:
        """Status of the search for ``replanned``."""
        return self.replanned.outcome.status


def study_features(problem: Problem, best: Plan, names: Collection[str] = tuple(BARE)) -> Iterator[Feature]:
    """
    Study each feature of a plan, then each value of a feature that the plan leaves out.

    Parameters
    ----------
    problem
        The job.
    best
        Its fastest plan.
    names
        Features to study; default: all.
    """
    whole, bare = best.strategy, change(best.strategy, **BARE)
    ground = _cost(best.problem, bare)
    for name, value in (*_features_of(whole), *_list_left_out(best)):
        if name not in names:
            continue
        is_in_plan = getattr(whole, name) == value
        other = _cost(best.problem, change(whole, **{name: BARE[name] if is_in_plan else value}))
        if other is None or (not is_in_plan and _changes_nothing(other, best)):
            continue
        with_it = _cost(best.problem, change(bare, **{name: value}))
        found = _replan(problem, name, BARE[name] if is_in_plan else value)
        yield Feature(
            name=name,
            text=decision_text(name, value),
            is_in_plan=is_in_plan,
            alone=gain_interval(ground.plan, with_it.plan) if ground and with_it else None,
            other=other,
            last=gain_interval(other.plan, best),
            replanned=found,
            replanned_gain=gain_interval(found.plans[0], best) if found.plans else None,
        )


def change(strategy: Strategy, **decisions: int) -> Strategy:
    """Return a strategy with other decisions; its micro-batch group and its stages follow where they must."""
    vpp = decisions.get("vpp", strategy.vpp)
    group = strategy.group if vpp == strategy.vpp else int(default_microbatch_group(pp=strategy.pp, vpp=vpp))
    changed: dict[str, Any] = {
        name: ENUMS.get(name, bool if name in FLAGS else int)(value) for name, value in decisions.items()
    }
    changed["layout"] = None if decisions.keys() & OF_LAYOUT else strategy.layout
    return replace(strategy, **changed, group=group)


OF_LAYOUT = {"vpp", "recompute", "activation_offload"}
"""Decisions that a custom pipeline layout contains."""


def _features_of(strategy: Strategy) -> Iterator[tuple[str, int]]:
    """Yield the features that a plan has, with their values."""
    return ((name, int(value)) for name, bare in BARE.items() if (value := getattr(strategy, name)) != bare)


def _list_left_out(best: Plan) -> Iterator[tuple[str, int]]:
    """Yield values of features that the search tries and the plan does not have; cheap sets of recomputation alone."""
    facts = best.problem.facts
    cheap = cheap_recompute(facts.model, facts.cluster.framework)
    for name, values in feature_values(best.problem).items():
        for value in map(int, values):
            is_known = name != "recompute" or value in cheap
            if is_known and value not in (BARE[name], int(getattr(best.strategy, name))):
                yield name, value


def _cost(problem: Problem, strategy: Strategy) -> EstimateReport | None:
    """Cost a strategy, even if a rule forbids it; None where it has no shape of its measured operators."""
    try:
        return judge_strategy(problem, strategy)
    except SpecError:
        return None


def _changes_nothing(other: EstimateReport, best: Plan) -> bool:
    """Tell whether a feature has nothing to work on, or excludes one of the others: nobody could choose it."""
    is_same = other.plan.slower_fraction(best) == 0 and other.plan.estimate.device_bytes == best.estimate.device_bytes
    return is_same or not {*other.broken_rules} <= {sentence(rule) for rule in MEMORY_RULES}


def _replan(problem: Problem, name: str, value: int) -> PlanReport:
    """Plan the job with one decision pinned; where nothing fits, the report says why."""
    question, _ = question_of(problem, StrategyFile(decisions={name: value}))
    return plan(question.change_limits(simplest=False, candidates=None), certified=False)
