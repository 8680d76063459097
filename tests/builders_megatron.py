"""Random plans that Megatron-LM can run: every feature and setting, uneven stages, dense, sparse and latent models."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import islice
from typing import Any

from constraints import FRAMEWORK_RULES, MEMORY_RULES, PHYSICS_RULES
from constraints.rules.frameworks import recomputable_modules
from constraints.rules.physics import graph_modules
from costmodel import catalog
from costmodel.facts.model import Experts, Model
from costmodel.lowering.layer import recomputes
from costmodel.strategy import (
    CudaGraphs,
    Recompute,
    Schedule,
    Sharding,
    StageLayout,
    Strategy,
    TokenDispatcher,
    Vocabulary,
    default_microbatch_group,
)
from costmodel.tables import signature
from planner.frameworks.megatron.stages import full_by_block, stage_layers
from planner.jobs.problem import Problem, load
from planner.results import Plan
from planner.verbs.plan import evaluate
from tests.builders_problem import is_allowed

MODELS = (
    "llama3-8b",
    "gpt3-175b",
    "qwen3-8b",
    "mistral-7b",
    "mixtral-8x7b",
    "qwen3-30b-a3b",
    "gpt-oss-20b",
    "glm-4.5-air",
    "moonlight-16b-a3b",
    "deepseek-v2",
    "deepseek-v3",
)
"""Dense, with experts, with shared experts, windows and sinks, with latent attention, with multi-token prediction."""

HYBRIDS = ("nemotron-h-8b", "nemotron-3-nano-30b-a3b")
"""Mamba, attention and feed-forwards, dense or with experts, a block each."""

PRECISIONS = ("bf16", "fp16", "fp8", "fp8_current", "fp8_blockwise", "mxfp8", "nvfp4")

RULES = tuple(rule for rule in (*PHYSICS_RULES, *FRAMEWORK_RULES) if rule not in MEMORY_RULES)
"""Uneven stages are drawn, whatever the even deal would be."""

OF_MODELS = tuple(rule for rule in RULES if {*signature(rule)[0]} <= {"model"})
"""Rules that forbid most of what is drawn, whatever its settings, of which a job need not be made."""


def megatron_plans(count: int, seed: int = 0, models: Sequence[str] = MODELS) -> Iterator[Plan]:
    """So many plans that no rule but those of memory forbids; each strategy in its plainest spelling."""
    yield from (evaluate(*one) for one in islice(possible(seed, models), count))


@cache
def every_plan() -> tuple[Plan, ...]:
    """Plans that have every setting, once for the tests of all exports."""
    return tuple(megatron_plans(140))


@cache
def every_hybrid() -> tuple[Plan, ...]:
    """The same of hybrids."""
    return tuple(hybrid_plans(15))


def possible(seed: int, models: Sequence[str]) -> Iterator[tuple[Problem, Strategy]]:
    """Jobs and strategies of such plans, without end."""
    chooser = random.Random(seed)
    while True:
        model, precision = chooser.choice(models), chooser.choice(PRECISIONS)
        strategy, settings = drawn(chooser, model, precision)
        if strategy is not None:
            problem = a_job(model, precision, strategy.num_devices, 64, settings)
            if is_allowed(problem.facts, strategy.decisions(), RULES):
                yield problem, strategy


def hybrid_plans(count: int, seed: int = 0, models: Sequence[str] = HYBRIDS) -> Iterator[Plan]:
    """The same of hybrid models, with what Megatron-LM has for them: a chunk per rank, no multi-token prediction."""

    def has_it(problem: Problem, strategy: Strategy) -> bool:
        model = problem.facts.model
        return strategy.vpp == 1 and not model.mtp_layers and 0 not in stage_layers(strategy, model)

    found = (one for one in possible(seed, models) if has_it(*one))
    yield from (evaluate(*one) for one in islice(found, count))


@cache
def a_job(
    model: str, precision: str, num_devices: int, global_batch_size: int, settings: tuple[tuple[str, Any], ...] = ()
) -> Problem:
    """The model on devices of 8 per node that compute in every precision, trained by Megatron-LM's own defaults."""
    return load(
        {
            "model": model,
            "cluster": {"device": "b200", "num_devices": num_devices, "framework": "megatron-lm-0.17"},
            "settings": dict(settings),
            "training": {
                "global_batch_size": global_batch_size,
                "sequence_length": 2048,
                "tokens": 1e12,
                "precision": precision,
            },
        }
    )


def drawn(chooser: random.Random, name: str, precision: str) -> tuple[Strategy | None, tuple[tuple[str, Any], ...]]:
    """A strategy at random, and settings beside it; None where it is spelled in more than one way, or no strategy."""
    tp, cp, dp = chooser.choice((1, 2, 4, 8)), chooser.choice((1, 1, 2)), chooser.choice((1, 2, 4, 8))
    pp = chooser.choice((1, 2, 4, 8))
    vpp = chooser.choice((1, 2, 3, 4)) if pp > 1 else 1
    has_positions = catalog.model(name).learned_positions > 0
    mtp = chooser.choice(((), (), (("mtp_layers", 0),), () if has_positions else (("mtp_layers", 1),)))
    facts = a_job(name, "bf16", 8, 64, mtp).facts
    model = facts.model
    has_experts = any(hasattr(kind.feed_forward, "num_experts") for kind in model.kinds)
    values = {
        "tp": tp,
        "cp": cp,
        "pp": pp,
        "dp": dp,
        "ep": chooser.choice((1, 2, 4, 8)) if has_experts else 1,
        "etp": chooser.choice((1, tp)) if has_experts else 1,
        "vpp": vpp,
        "group": int(default_microbatch_group(pp=pp, vpp=vpp)) + (chooser.choice((0, 0, pp)) if vpp > 1 else 0),
        "mbs": chooser.choice((1, 2, 4)),
        "sequence_parallel": tp > 1 and (has_experts or chooser.random() < 0.8),
        "schedule": Schedule.ONE_F_ONE_B,
        "vocabulary": chooser.choice((Vocabulary.ENDS, Vocabulary.ENDS, Vocabulary.REDISTRIBUTED)),
        "recompute": a_recompute(chooser, model),
        **a_set_of_features(chooser, values={"tp": tp, "cp": cp, "pp": pp, "dp": dp, "vpp": vpp}),
        "cuda_graphs": some_graphs(chooser, model),
    }
    spread = values["ep"] > 1
    values["token_dispatcher"] = chooser.choice(tuple(TokenDispatcher)) if spread else TokenDispatcher.ALLTOALL
    strategy = with_stages(chooser, Strategy(**values), model)
    settings = some_settings(chooser, strategy, model, precision) if strategy else {}
    if "cp_comm_type" in settings:  # neither hides behind attention
        strategy = replace(strategy, cp_overlap=False)
    is_possible = strategy is not None and is_allowed(facts, strategy.decisions(), OF_MODELS)
    return strategy if is_possible else None, (*mtp, *settings.items())


def some_settings(chooser: random.Random, strategy: Strategy, model: Model, precision: str) -> dict[str, Any]:
    """Settings other than Megatron-LM's defaults, some of those that the strategy leaves a choice of."""
    replicas, half = strategy.dp * strategy.cp, "fp16" if precision == "fp16" else "bf16"
    has_optimizer = strategy.sharding > Sharding.NONE or replicas == 1
    shared = any(
        isinstance(kind.feed_forward, Experts) and kind.feed_forward.shared_ffn_hidden_size for kind in model.kinds
    )
    beside = strategy.token_dispatcher == TokenDispatcher.ALLTOALL and not strategy.ep_overlap
    kept = strategy.recompute == Recompute.FULL or not recomputes("shared_experts", recompute=strategy.recompute)
    by_layers = strategy.activation_offload and strategy.pp == 1 and strategy.recompute == Recompute.NONE
    possible = {
        "gradient_dtype": (True, chooser.choice(("fp32", half))),
        "moments_dtype": (has_optimizer and not strategy.optimizer_offload, "bf16"),
        "fp8_param_gather": (has_optimizer, True),
        "first_layers_bf16": (precision not in ("bf16", "fp16", "fp8"), 1),
        "last_layers_bf16": (precision not in ("bf16", "fp16", "fp8"), 2),
        "cp_comm_type": (strategy.cp > 1, chooser.choice(("all_gather", "a2a"))),
        "shared_expert_overlap": (shared and beside and kept, True),
        "delay_wgrad": (strategy.ep_overlap, True),
        "communication_sms": (strategy.token_dispatcher > TokenDispatcher.ALLTOALL, chooser.choice((16, 24, 32))),
        "offloaded_layers": (by_layers, chooser.randrange(1, model.num_layers - 1)),
        "offloaded_states": (strategy.optimizer_offload, chooser.choice((0.25, 0.5))),
        "offload_overlap": (strategy.optimizer_offload, True),
        "host_threads": (strategy.optimizer_offload, chooser.choice((1, 4))),
        "optimizer_group": (strategy.sharding > 0 and not model.has_experts and replicas % 2 == 0, replicas // 2),
        "attention": (True, "unfused"),
        "loss": (True, "unfused"),
        "allocator": (True, "expandable"),
        "launches": (True, "blocking"),
    }
    if chooser.random() < 0.2 and deals_matrices(strategy) and precision != "fp16":
        name = "muon" if strategy.sharding == Sharding.NONE else "dist_muon"
        mode = chooser.choice(("blockwise", "duplicated", "distributed"))
        return {"optimizer": name, "muon_tp_mode": mode, "muon_num_ns_steps": chooser.choice((5, 8))}
    return {name: value for name, (is_possible, value) in possible.items() if is_possible and chooser.random() < 0.5}


def deals_matrices(strategy: Strategy) -> bool:
    """Tell if Muon, which updates whole matrices, is an optimizer for the strategy."""
    overlaps = strategy.dp_overlap and strategy.sharding == Sharding.NONE
    return not overlaps and not strategy.optimizer_offload and strategy.sharding <= Sharding.OPTIMIZER


def some_graphs(chooser: random.Random, model: Model) -> CudaGraphs:
    """None, one of everything, or some modules."""
    some = [name for name in graph_modules(model) if chooser.random() < 0.4]
    return chooser.choice((CudaGraphs.NONE, CudaGraphs.FULL_ITERATION, CudaGraphs.of(*some)))


def a_recompute(chooser: random.Random, model: Model) -> Recompute:
    """Nothing, whole layers, or some modules; the paper's two are spelled ``selective``."""
    modules = recomputable_modules(model)
    some = Recompute.of(*(name for name in modules if chooser.random() < 0.3))
    own = Recompute.SELECTIVE if some == Recompute.of("core_attention", "qkv") else some
    return chooser.choice((Recompute.NONE, Recompute.FULL, own, own))


def a_set_of_features(chooser: random.Random, values: dict[str, int]) -> dict[str, Any]:
    """Switches and sharding; most of them where they are allowed."""
    replicas, is_on = values["dp"] * values["cp"] > 1, lambda: chooser.random() < 0.5
    sharding = chooser.choice(tuple(Sharding)) if values["pp"] == 1 else chooser.choice((0, 1))
    return {
        "sharding": Sharding(sharding if replicas else 0),
        "activation_offload": chooser.random() < 0.3,
        "optimizer_offload": chooser.random() < 0.3,
        "tp_overlap": values["tp"] > 1 and is_on(),
        "cp_overlap": values["cp"] > 1,
        "ep_overlap": is_on(),
        "pp_overlap": values["vpp"] > 1 and (values["pp"] == 2 or is_on()),
        "dp_overlap": replicas and (sharding > 1 or (sharding == 1 and is_on())),
    }


def with_stages(chooser: random.Random, strategy: Strategy, model: Model) -> Strategy | None:
    """The strategy with stages that differ, in one case of two; sometimes with a few layers in full on each."""
    chunks = strategy.pp * strategy.vpp
    if chunks > model.num_layers + 2:
        return None
    if chooser.random() < 0.5 or strategy.vocabulary != Vocabulary.ENDS:
        is_even = replace(strategy, vocabulary=Vocabulary.ENDS)
        return None if strategy != is_even and written(strategy, model) == written(is_even, model) else strategy
    layers = uneven_layers(chooser, model.num_layers, chunks)
    most = chooser.choice((0, 0, 1, 2, 5)) if strategy.recompute == Recompute.NONE else 0
    graphs_of_modules = strategy.cuda_graphs > CudaGraphs.FULL_ITERATION
    if most and (strategy.activation_offload or strategy.ep_overlap or graphs_of_modules):
        return None
    dealt = [stage_layers(replace(strategy, vocabulary=one), model) for one in Vocabulary if one <= 1]
    if not most and layers in dealt:
        return None
    full = full_by_block(most, layers, strategy.pp)
    ranks = strategy.pp
    return replace(
        strategy,
        layout=StageLayout(
            layers=layers,
            recompute=(strategy.recompute,) * ranks,
            full_layers=full,
            activation_offload=(strategy.activation_offload,) * ranks,
        ),
    )


def written(strategy: Strategy, model: Model) -> tuple[int, ...]:
    """Layers of each stage, which two decisions may say alike."""
    return stage_layers(strategy, model)


def uneven_layers(chooser: random.Random, num_layers: int, chunks: int) -> tuple[int, ...]:
    """Layers dealt evenly, some then moved elsewhere; no stage but the first and the last is empty."""
    layers = [num_layers // chunks + int(chunk < num_layers % chunks) for chunk in range(chunks)]
    for _ in range(chooser.randrange(4)):
        giver, taker = chooser.randrange(chunks), chooser.randrange(chunks)
        if layers[giver] > int(giver not in (0, chunks - 1)):
            layers[giver] -= 1
            layers[taker] += 1
    return tuple(layers)
