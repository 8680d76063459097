"""Overrides on top of Megatron-Bridge's own recipes, as its training checks them; skipped without the package."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec

import pytest

from benchmarks.exports.bridge_recipes import RECIPES, Given, checked
from constraints.targets import effective_settings
from costmodel.errors import SpecError
from costmodel.strategy import Sharding
from planner.frameworks.megatron.bridge import PACKAGED, to_megatron_bridge
from planner.frameworks.target import Export
from planner.results import Plan
from tests.builders_megatron import HYBRIDS, hybrid_plans, megatron_plans
from tests.cases import read_table
from tests.planner.test_megatron_lm import JOB, a_plan

FIELDS = read_table("bridge_fields")

NUM_PLANS = 2
"""Of each recipe."""


@pytest.fixture(autouse=True)
def _installed():
    for name in ("megatron", "torch", "transformers"):
        pytest.importorskip(name, reason=f"{name} is not installed")
    if find_spec("megatron.bridge") is None:
        pytest.skip("megatron-bridge is not installed")


def exports(model: str) -> Iterator[tuple[Plan, Export]]:
    """Plans of a model, each with its overrides; unfused attention and uneven stages of hybrids are refused."""
    made = 0
    for plan in (hybrid_plans if model in HYBRIDS else megatron_plans)(200, models=(model,)):
        with suppress(SpecError):
            yield plan, to_megatron_bridge(plan, PACKAGED)
            made += 1
        if made == NUM_PLANS:
            return


def overrides(export: Export) -> list[str]:
    """The words of the file."""
    return shlex.split(export.files["bridge-overrides.txt"], comments=True)


def decisions(fields: dict[str, object]) -> dict[str, object]:
    """The decisions that a configuration says in one field each."""
    offloads = fields["model.cpu_offloading"] or fields["model.fine_grained_activation_offloading"]
    said = {name: fields[field] for name, field in (FIELDS["sizes"] | FIELDS["others"]).items()}
    return {**said, "vpp": said["vpp"] or 1, "activation_offload": offloads}


def sharding(fields: dict[str, object]) -> Sharding:
    """What data-parallel ranks share of a configuration."""
    if fields["ddp.use_megatron_fsdp"]:
        is_whole = fields["ddp.data_parallel_sharding_strategy"] == "optim_grads"
        return Sharding.GRADIENTS if is_whole else Sharding.WEIGHTS
    return Sharding.OPTIMIZER if fields["ddp.use_distributed_optimizer"] else Sharding.NONE


def given(plan: Plan, export: Export, words: list[str], earlier: list[str]) -> Given:
    """Overrides of a plan on top of the recipe of its model, where it would run."""
    environment, devices = dict(export.environment), plan.cluster.num_devices
    return Given(plan.facts.model.name, words, earlier, environment, devices)


def test_recipes_take_the_overrides():
    """Fifteen recipes with two plans each: the checks pass, and what is decided is the plan's, whatever was there."""
    plans, recipes = [], []
    for model in RECIPES:
        those = [*exports(model)]
        plans += [plan for plan, _ in those]
        for (plan, export), (_, other) in zip(those, [*those[1:], those[0]], strict=True):
            recipes.append(given(plan, export, overrides(export), overrides(other)))

    found = checked(recipes)

    assert {one.complaint for one in found} == {""}
    assert {name for one in found for name in one.left} == set()
    for plan, one in zip(plans, found, strict=True):
        said = decisions(one.fields)
        assert said == {name: getattr(plan.strategy, name) for name in said}
        is_shared = (
            plan.strategy.dp * plan.strategy.cp > 1
            and effective_settings(plan.facts, plan.strategy).optimizer == "adam"
        )
        assert not is_shared or sharding(one.fields) == plan.strategy.sharding
        assert_facts(one.fields, plan)


def assert_facts(fields: dict[str, object], plan: Plan) -> None:
    """The configuration's model has the facts of the plan's, also where the recipe has others."""
    numerics = plan.facts.model.numerics
    rotary = numerics.rotary
    if numerics.norm_epsilon is not None:
        assert fields["model.layernorm_epsilon"] == numerics.norm_epsilon
    if numerics.initializer_range is not None:
        assert fields["model.init_method_std"] == numerics.initializer_range
    assert fields["model.attention_dropout"] == (numerics.attention_dropout or 0.0)
    assert fields["model.hidden_dropout"] == (numerics.hidden_dropout or 0.0)
    if rotary is not None and rotary.base is not None:
        assert fields["model.rotary_base"] == rotary.base
    if numerics.routing is not None:
        assert fields["model.moe_router_score_function"] == numerics.routing.score_function


@pytest.mark.parametrize(("sharding", "is_background"), [("optimizer", True), ("weights", False)])
def test_recipes_save_as_planned(sharding, is_background):
    """While training goes on, but for Megatron-FSDP, whose checks would refuse it."""
    job = {**JOB, "reliability": {"asynchronous_checkpoints": True}}
    plan = a_plan(job, tp=1, pp=1, sharding=sharding)
    export = to_megatron_bridge(plan, PACKAGED)

    (found,) = checked([given(plan, export, overrides(export), overrides(export))])

    assert found.complaint == ""
    assert found.fields["checkpoint.async_save"] is is_background
    assert any("Megatron-FSDP writes no checkpoints while" in note for note in export.notes) is not is_background


def test_the_checks_are_the_real_ones():
    """A layout beside a recipe that counts the embedding as a layer: what exports left there is refused."""
    plan, export = next(exports("llama3-405b"))
    wrong = [
        *(word for word in overrides(export) if "account_for_embedding" not in word and "layout" not in word),
        "model.pipeline_model_parallel_size=2",
        "model.pipeline_model_parallel_layout='Et*63|t*63L'",
        "model.virtual_pipeline_model_parallel_size=null",
        "model.account_for_embedding_in_pipeline_split=true",
    ]

    (found,) = checked([given(plan, export, wrong, wrong)])

    assert "pipeline_model_parallel_layout cannot be set with other pipeline layout arguments" in found.complaint
