"""Random plans of small models: every decision is drawn, and what the mathematics forbids is thrown away."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from benchmarks.inputs import job_document
from benchmarks.plans.laws import JOBS
from constraints import MEMORY_RULES, PHYSICS_RULES
from constraints.targets import require_expressible
from costmodel import catalog
from costmodel.errors import SpecError
from costmodel.facts.framework import Settings
from costmodel.facts.model import Experts, Model
from costmodel.lowering.framework import storage_precision
from costmodel.strategy import (
    FLAGS,
    V_SHAPED,
    CudaGraphs,
    Recompute,
    Schedule,
    Sharding,
    StageLayout,
    Strategy,
    TokenDispatcher,
    Vocabulary,
)
from costmodel.tables import Facts
from planner.frameworks import export
from planner.frameworks.target import Export
from planner.jobs.problem import Problem, load
from planner.results import Plan
from planner.search.runnable import require_runnable
from planner.verbs.plan import evaluate
from planner.verbs.plan import plan as plan_of
from tests.builders import a_latent_model, a_model, a_moe_model
from tests.builders_problem import a_problem, is_allowed

RULES = tuple(rule for rule in PHYSICS_RULES if rule not in MEMORY_RULES)

VALUES: dict[str, Sequence[Any]] = {
    "tp": (1, 2, 4),
    "cp": (1, 1, 2),
    "pp": (1, 2, 4),
    "dp": (1, 2, 4, 8),
    "ep": (1, 1, 2, 4),
    "etp": (1, 1, 2),
    "vpp": (1, 2, 3, 4),
    "group": (1, 2, 3, 4),
    "mbs": (1, 2),
    "schedule": (Schedule.ONE_F_ONE_B, Schedule.ONE_F_ONE_B, *Schedule),
    "vocabulary": (Vocabulary.ENDS, Vocabulary.ENDS, *Vocabulary),
    "sharding": tuple(Sharding),
    "recompute": (
        Recompute.NONE,
        Recompute.FULL,
        Recompute.of("every_other_matmul"),
        Recompute.of("core_attention", "norms"),
    ),
    "token_dispatcher": (TokenDispatcher.ALLTOALL, *TokenDispatcher),
    "cuda_graphs": (CudaGraphs.NONE, *CudaGraphs, CudaGraphs.of("attn")),
    **dict.fromkeys(FLAGS, (False, True)),
}
"""What is drawn of each decision; what stands twice is drawn more often."""


def random_exports(
    target: str, count: int, *, within: Mapping[str, Sequence[Any]], settings: Settings, seed: int = 0
) -> Iterator[tuple[Plan, Export]]:
    """
    Plans that a target accepts, with what it makes of them.

    Parameters
    ----------
    target
        The target's name.
    count
        How many.
    within
        Values of some decisions, so that not too many draws are refused.
    settings
        What the target does of itself.
    seed
        Where the draws begin.
    """
    generator = random.Random(seed)
    while count:
        problem, strategy = _draw(generator, VALUES | within, settings)
        if strategy is None or not _is_expressible(problem.facts, strategy, target):
            continue  # before it is costed
        plan = evaluate(problem, strategy)
        with suppress(SpecError):
            exported = export(plan, target)
            count -= 1
            yield plan, exported


def _is_expressible(facts: Facts, strategy: Strategy, target: str) -> bool:
    with suppress(SpecError):
        require_expressible(facts, strategy, target)
        return True
    return False


def planned_exports(target: str) -> Iterator[tuple[Plan, Export]]:
    """The plans of the benchmark's plain jobs, made for a target, with what it makes of them; others are refused."""
    for job in JOBS:
        if job[2] > MOST_DEVICES:
            continue
        try:
            problem = load(job_document(*job, search={"target": target}))
            require_runnable(problem)
        except SpecError:
            continue
        for plan in plan_of(problem, certified=False).plans[:1]:
            yield plan, export(plan, target)


MOST_DEVICES = 128
"""Of larger jobs the search takes most of the time."""


def _draw(
    generator: random.Random, values: Mapping[str, Sequence[Any]], settings: Settings
) -> tuple[Problem, Strategy | None]:
    """Draw a problem and a strategy; None where the mathematics forbids it."""
    model = generator.choice((_dense, _with_experts, _latent))(generator.choice((8, 12)))
    drawn = {name: generator.choice(choices) for name, choices in values.items()}
    strategy = Strategy(**drawn | idle(drawn, has_experts=isinstance(model.kinds[-1].feed_forward, Experts)))
    batch = strategy.dp * strategy.mbs * generator.choice((4, 6, 8, 12))
    problem = a_problem(
        model,
        num_devices=strategy.tp * strategy.cp * strategy.pp * strategy.dp,
        workload={
            "global_batch_size": batch,
            "sequence_length": 64,
            "precision": storage_precision(catalog.precision("bf16"), settings),
        },
    )
    problem = replace(problem, facts=replace(problem.facts, cluster=replace(problem.facts.cluster, settings=settings)))
    if not is_allowed(problem.facts, strategy.decisions(), RULES):
        return problem, None
    return problem, _with_stages(generator, strategy, model)


def idle(drawn: Mapping[str, Any], *, has_experts: bool) -> dict[str, Any]:
    """The values of decisions that have nothing to do, which few draws would hit all at once."""
    idle: dict[str, Any] = {}
    if not has_experts:
        idle |= {"ep": 1, "etp": 1, "ep_overlap": False, "token_dispatcher": TokenDispatcher.ALLTOALL}
    if drawn["ep"] == 1:
        idle |= {"ep_overlap": False, "token_dispatcher": TokenDispatcher.ALLTOALL}
    if drawn["tp"] == 1:
        idle |= {"tp_overlap": False, "sequence_parallel": False, "etp": 1}
    if drawn["cp"] == 1:
        idle |= {"cp_overlap": False}
    if drawn["dp"] * drawn["cp"] == 1:
        idle |= {"dp_overlap": False, "sharding": Sharding.NONE}
    if drawn["pp"] == 1:
        plain = {"schedule": Schedule.ONE_F_ONE_B, "vocabulary": Vocabulary.ENDS}
        return idle | plain | {"vpp": 1, "group": 1, "pp_overlap": False}
    vpp = 2 if drawn["schedule"] in V_SHAPED else drawn["vpp"] if drawn["schedule"] == Schedule.ONE_F_ONE_B else 1
    return idle | {"vpp": vpp, "group": drawn["group"] if vpp > 1 else 1}


def _with_stages(generator: random.Random, strategy: Strategy, model: Model) -> Strategy:
    """Every other pipeline has stages of its own, as far as they can be costed."""
    plain = strategy.schedule == Schedule.ONE_F_ONE_B and strategy.vocabulary == Vocabulary.ENDS
    if strategy.pp == 1 or not plain or generator.random() < 0.5:
        return strategy
    cuts = sorted(generator.choices(range(1, model.num_layers), k=strategy.pp * strategy.vpp - 1))
    layers = tuple(end - begin for begin, end in zip((0, *cuts), (*cuts, model.num_layers), strict=True))
    layout = StageLayout(
        layers=layers,
        recompute=(strategy.recompute,) * strategy.pp,
        full_layers=(0,) * strategy.pp,
        activation_offload=(strategy.activation_offload,) * strategy.pp,
    )
    return replace(strategy, layout=layout)


def _dense(num_layers: int) -> Model:
    return a_model(num_layers=num_layers, num_kv_heads=4, ffn_hidden_size=64)


def _with_experts(num_layers: int) -> Model:
    return a_moe_model(num_layers=num_layers, num_kv_heads=4, first_dense_layers=0, expert_ffn_hidden_size=32)


def _latent(num_layers: int) -> Model:
    return a_latent_model(num_layers=num_layers, ffn_hidden_size=64)
