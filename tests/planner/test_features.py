"""What a framework has: a job that asks it for something else is refused with those that have it."""

import numpy as np
import pytest

from costmodel import catalog
from costmodel.errors import SpecError
from costmodel.strategy import CudaGraphs, Schedule, TokenDispatcher
from planner.jobs.problem import load
from planner.jobs.strategy_file import require_features
from planner.search.space import build_space
from planner.verbs.plan import estimate
from tests.builders_cluster import a_cluster
from tests.planner.test_job import a_job, message_of


def with_release(name, **entries):
    """The plain job under a release."""
    return a_job(cluster__framework=name, **entries)


@pytest.mark.parametrize(
    ("entries", "place"),
    [
        ({"strategy": {"schedule": "zb_v"}}, "strategy.schedule"),
        ({"search__pin": {"schedule": "zb_v"}}, "search.pin.schedule"),
        ({"search__allow": {"schedule": ["zb_v"]}}, "search.allow.schedule"),
    ],
)
def test_what_a_job_asks_for_its_framework_has(entries, place):
    """Zero-bubble schedules are PyTorch's and the sail-sg forks': each of them is named."""
    message = message_of(with_release("megatron-bridge-26.04", **entries))

    assert message.startswith(f"{place}: megatron-bridge-26.04 has no schedule 'zb_v'. These have it: ")
    assert {"torchtitan-0.1", "zero-bubble-2023"} <= set(message.partition("have it: ")[2].split(" (")[0].split(", "))
    assert message.endswith(" (cluster.framework). To cost it nevertheless: search.framework_rules: false.")


@pytest.mark.parametrize("name", ["torchtitan-0.1", "zero-bubble-2023", "mofa"])
def test_those_that_are_named_have_it(name):
    """What is listed, and what lists nothing."""
    assert load(with_release(name, strategy={"schedule": "zb_v"})).given.decisions == {"schedule": Schedule.ZB_V}


def test_one_value_that_the_framework_has_is_enough():
    """Of several that a job allows, the others are not planned."""
    allow = load(with_release("megatron-bridge-26.04", search__allow={"schedule": ["zb_v", "1f1b"]})).search.allow

    assert allow == {"schedule": (Schedule.ONE_F_ONE_B, Schedule.ZB_V)}


def test_sets_of_modules_are_one_feature():
    """Megatron-Core captures modules, PyTorch's frameworks nothing; the set is named as it was written."""
    asked = {"cuda_graphs": "attn+mlp"}

    assert load(with_release("megatron-core-0.14", strategy=asked)).given.decisions == {
        "cuda_graphs": CudaGraphs.of("attn", "mlp")
    }
    message = message_of(with_release("torchtitan-0.1", strategy=asked))
    assert message.startswith("strategy.cuda_graphs: torchtitan-0.1 has no cuda_graphs 'attn+mlp'. These have it: ")
    assert "megatron-core-0.14" in message


ONCE_CHOSEN = [
    ("megatron-lm-2021", {"sequence_parallel", "sharding", "tp_overlap", "dp_overlap", "activation_offload"}),
    ("megatron-deepspeed-2021", {"sequence_parallel", "tp_overlap", "activation_offload"}),
]
"""Releases, and what none of their plans may use."""


@pytest.mark.parametrize(("name", "unknown"), ONCE_CHOSEN)
def test_plans_use_nothing_that_the_release_never_had(name, unknown):
    """The search once chose sequence parallelism, sharded weights and overlap for releases of 2021."""
    space = build_space(load(with_release(name, cluster__num_devices=16)))

    block = space.block(np.arange(space.num_rows))

    assert not {key for key, values in (block.degrees | block.features).items() if key in unknown and values.any()}
    assert block.degrees["tp"].max() > 1


def test_a_release_runs_its_own_schedule():
    """What the sail-sg fork is known for no rule forbids; Megatron-LM's rule once did."""
    problem = load(with_release("zero-bubble-2023"))

    report = estimate(problem, {"pp": 4, "schedule": "zb_h1"}, searched=False)

    assert not any("1F1B" in rule for rule in report.broken_rules)


def test_degrees_are_named_as_they_were_asked_for():
    """Of 2021 there is no context parallelism of any degree; Megatron-Core has it."""
    message = message_of(with_release("megatron-lm-2021", strategy={"cp": 4}))

    assert message.startswith("strategy.cp: megatron-lm-2021 has no cp '4'. These have it: ")
    assert "megatron-core-0.14" in message


def test_without_a_framework_nothing_is_refused():
    """A cluster of which nobody says what runs on it."""
    require_features(a_cluster(), {"schedule": (Schedule.ZB_V,), "token_dispatcher": (TokenDispatcher.DEEPEP,)}, "x")


def test_what_nobody_has_is_refused_without_a_hint():
    """DualPipe is of no release that lists its schedules; those that list nothing might have it."""
    framework = catalog.framework_of({"features": {"schedule": ["1f1b"]}}, "cluster.framework")
    cluster = load(a_job()).facts.cluster
    with pytest.raises(SpecError, match=r"x.schedule: inline has no schedule 'dualpipe'") as caught:
        require_features(
            type(cluster)(device=cluster.device, num_devices=8, framework=framework),
            {"schedule": (Schedule.DUALPIPE,)},
            "x",
        )

    assert "torchtitan" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "excluded"),
    [
        ({"shared_expert_overlap": True}, {"token_dispatcher", "ep_overlap"}),
        ({"optimizer": "dist_muon"}, {"optimizer_offload"}),
        ({"moments_dtype": "bf16"}, {"optimizer_offload"}),
    ],
)
def test_plans_use_nothing_that_a_setting_excludes(settings, excluded):
    """The search once proved optimal what the export to Megatron-LM then refused for the job's settings."""
    space = build_space(load(a_job(model="moonlight-16b-a3b", cluster__num_devices=16, settings=settings)))

    block = space.block(np.arange(space.num_rows))

    assert not {name for name in excluded if block.features[name].any()}
    assert block.degrees["ep"].max() > 1


def test_an_estimate_says_what_a_setting_excludes():
    """Delayed weight gradients hide expert-parallel communication, and nothing here overlaps it."""
    problem = load(a_job(settings={"delay_wgrad": True}))

    assert any("settings.delay_wgrad" in rule for rule in estimate(problem, {"tp": 2}, searched=False).broken_rules)
