"""Some decisions -> a whole strategy, as the recipes of a framework have it."""

from dataclasses import replace

import pytest

from costmodel.errors import SpecError
from costmodel.strategy import FLAGS, Recompute, Schedule, Sharding, Vocabulary
from planner.jobs.problem import load
from planner.jobs.strategy_file import StrategyFile, complete_strategy, read_given
from tests.builders import a_model, a_moe_model
from tests.builders_cluster import a_cluster, facts
from tests.cases import in_one_case
from tests.planner.test_job import a_job


def facts_of(framework=None, **entries):
    """Llama 3 8B on 64 H100 under a release; other entries with their dotted names."""
    named = {} if framework is None else {"cluster__framework": framework}
    return load(a_job(**named, **entries)).facts


def strategy_of(known, /, *, max_devices=None, **decisions):
    """The whole strategy of some decisions, as a job file spells them."""
    return complete_strategy(known, read_given(decisions), max_devices)


def switched_on(strategy):
    """Names of the flags that are on."""
    return {name for name in FLAGS if getattr(strategy, name)}


DEGREES = {"tp": 2, "cp": 2, "pp": 2, "vpp": 2}
"""Everything has something to do: 8 replicas, two chunks per rank."""


@in_one_case(
    ("framework", "sharding", "flags"),
    [
        (
            "megatron-bridge-26.04",
            Sharding.OPTIMIZER,
            {"sequence_parallel", "tp_overlap", "cp_overlap", "pp_overlap", "dp_overlap"},
        ),
        ("megatron-lm-0.14", Sharding.OPTIMIZER, {"sequence_parallel"}),
        ("megatron-lm-2022", Sharding.NONE, {"cp_overlap"}),
        ("torchtitan-0.1", Sharding.WEIGHTS, {"cp_overlap", "dp_overlap"}),
        ("internevo-0.2", Sharding.OPTIMIZER, {"cp_overlap", "dp_overlap"}),
        ("mofa", Sharding.OPTIMIZER, {"sequence_parallel"}),
    ],
)
def test_recipes_fill_what_is_not_given(framework, sharding, flags):
    """
    As the entry's ``strategy`` says.

    Megatron-Bridge: everything that overlaps; SimuMax's launcher of Megatron-LM 0.14: nothing; Megatron-LM of 2022
    shares no states; PyTorch's FSDP shares weights; what says nothing: sequence parallelism, shared optimizer states.
    """
    strategy = strategy_of(facts_of(framework), **DEGREES)

    assert (strategy.sharding, switched_on(strategy)) == (sharding, flags)
    assert (strategy.recompute, strategy.schedule, strategy.vocabulary) == (
        Recompute.NONE,
        Schedule.ONE_F_ONE_B,
        Vocabulary.ENDS,
    )


def test_devices_that_are_left_are_replicas():
    """64 devices over 2 x 2 x 2 are 8; of 32 that may be used 4 are; what is given stays."""
    known = facts_of()

    assert strategy_of(known, **DEGREES).dp == 8
    assert strategy_of(known, max_devices=32, **DEGREES).dp == 4
    assert strategy_of(known, dp=2, **DEGREES).dp == 2


@in_one_case(
    ("decisions", "off"),
    [
        ({}, {"sequence_parallel", "tp_overlap", "cp_overlap", "pp_overlap"}),
        ({"tp": 8, "pp": 8}, {"cp_overlap", "pp_overlap", "dp_overlap"}),
        ({"tp": 2, "sequence_parallel": False}, {"sequence_parallel", "tp_overlap", "cp_overlap", "pp_overlap"}),
        ({"pp": 2}, {"sequence_parallel", "tp_overlap", "cp_overlap", "pp_overlap"}),
    ],
)
def test_what_has_nothing_to_do_is_off(decisions, off):
    """Whatever the recipes say: without ranks to talk to there is nothing to overlap."""
    strategy = strategy_of(facts_of("megatron-bridge-26.04"), **decisions)

    every = {"sequence_parallel", "tp_overlap", "cp_overlap", "pp_overlap", "dp_overlap"}
    assert switched_on(strategy) == every - off


def test_nothing_is_shared_by_one_replica():
    """Context-parallel ranks are replicas as well."""
    known = facts_of("megatron-bridge-26.04")

    assert strategy_of(known, tp=8, pp=8).sharding == Sharding.NONE
    assert strategy_of(known, tp=8, cp=8).sharding == Sharding.OPTIMIZER


def test_what_is_given_is_kept():
    """Against the recipes, and even where it has nothing to do: rules say so, not this."""
    given = {"tp": 2, "sharding": "none", "dp_overlap": False, "cp_overlap": True, "recompute": "full"}

    strategy = strategy_of(facts_of("megatron-bridge-26.04"), **given)

    assert (strategy.sharding, strategy.recompute) == (Sharding.NONE, Recompute.FULL)
    assert (strategy.dp_overlap, strategy.cp_overlap) == (False, True)


def test_recipes_may_depend_on_the_precision():
    """Megatron-Bridge's recipes overlap tensor-parallel communication, but not in NVFP4."""
    named = {"cluster__device": "b200"}
    narrow = facts_of("megatron-bridge-26.04", **named, training__precision="nvfp4")
    wide = facts_of("megatron-bridge-26.04", **named, training__precision="bf16")

    assert [strategy_of(known, tp=2).tp_overlap for known in (narrow, wide)] == [False, True]


def test_experts_on_tensor_parallel_ranks_want_sequence_parallelism():
    """Megatron-LM of 2022 has it off, and refuses experts without."""
    dense, sparse = (facts_of("megatron-lm-2022", model=name) for name in ("llama3-8b", "mixtral-8x7b"))

    assert [strategy_of(known, tp=2).sequence_parallel for known in (dense, sparse)] == [False, True]


@in_one_case(
    ("framework", "decisions", "etp"),
    [
        ("megatron-bridge-26.04", {"tp": 2, "ep": 4}, 1),
        ("megatron-core-0.14", {"tp": 2, "ep": 4}, 2),
        ("megatron-core-0.14", {"tp": 2, "ep": 4, "etp": 1}, 1),
        ("megatron-core-0.14", {"tp": 8, "pp": 8, "ep": 8}, 1),
        ("megatron-core-0.14", {"tp": 2}, 1),
    ],
)
def test_experts_are_whole_or_split_like_attention(framework, decisions, etp):
    """
    Megatron-Bridge's recipes keep them whole; Megatron-LM's default is tp where a stage holds such groups.

    Eight ranks of a stage do not hold 8 x 8.
    """
    assert strategy_of(facts_of(framework, model="mixtral-8x7b"), **decisions).etp == etp


def test_groups_and_chunks_follow_from_the_schedule():
    """Interleaved passes come in groups of pp; schedules that form a V have two chunks whose transfers overlap."""
    interleaved = strategy_of(facts_of(), pp=4, vpp=2)
    folded = strategy_of(facts_of("torchtitan-0.1"), pp=4, schedule="zb_v")

    assert (interleaved.group, interleaved.vpp) == (4, 2)
    assert (folded.vpp, folded.pp_overlap) == (2, True)
    assert strategy_of(facts_of(), pp=4).group == 1


# --- stages ------------------------------------------------------------------------------------------------


def layers_of(framework, **decisions):
    """Layers of DeepSeek-V3's stages; None: as the planner deals them."""
    strategy = strategy_of(facts_of(framework, model="deepseek-v3", cluster__num_devices=128), **decisions)
    return strategy.layout.layers if strategy.layout else None


def test_megatron_bridge_fills_stages():
    """
    61 layers on 8 stages: seven of 8, and 5; on 16 with two chunks per rank fifteen of 4, and 1.

    set_deepseek_v3_pipeline_model_parallel_layout of its recipes prints the same.
    """
    assert layers_of("megatron-bridge-26.04", pp=8) == (8,) * 7 + (5,)
    assert layers_of("megatron-bridge-26.04", pp=8, vpp=2) == (4,) * 15 + (1,)


def test_even_stages_are_the_planners():
    """Megatron-LM itself; one stage; 61 + 2 slots over 7 stages; embedding and head elsewhere; said so."""
    assert layers_of("megatron-lm-0.17", pp=8) is None
    assert layers_of("megatron-bridge-26.04") is None
    assert layers_of("megatron-bridge-26.04", pp=7, dp=1) is None
    assert layers_of("megatron-bridge-26.04", pp=8, vocabulary="redistributed") is None
    known = facts_of("megatron-bridge-26.04", model="deepseek-v3")
    assert strategy_of(known, pp=8, layout=None).layout is None


def test_stages_that_are_given_come_first():
    """Whatever the framework would deal."""
    layers = [7, 8, 8, 8, 8, 8, 7, 7]

    assert layers_of("megatron-bridge-26.04", pp=8, layout={"layers": layers}) == tuple(layers)


def test_layers_go_with_the_degrees_that_they_are_for():
    """Layers without pp belong to the words beside them; those of a strategy with another pp or vpp are left out."""
    layers = {"layers": [15, 17]}
    of_words = read_given({"layout": layers})
    of_file = read_given({"pp": 2, "layout": layers})

    for words in ({"pp": 2}, {"pp": 2, "vpp": 1}, {"pp": 4}, {"vpp": 2}, {"tp": 2}):
        assert read_given(words).override(of_words).layout == {"layers": (15, 17)}
    assert [read_given(words).override(of_file).layout for words in ({"pp": 4}, {"vpp": 2})] == [None, None]
    assert read_given({"vpp": 1, "tp": 2}).override(of_file).layout == {"layers": (15, 17)}


def test_gpt_neox_counts_modules():
    """DeepSpeed deals 1 + 32 + 3 modules: 9 on each of 4 stages, less what is no layer at both ends."""
    known = facts_of("gpt-neox-2.0", cluster__device="a100-80gb-sxm", training__precision="fp16")

    assert strategy_of(known, pp=4).layout.layers == (8, 9, 9, 6)


# --- without a framework, and what has no cost -------------------------------------------------------------


def test_of_an_unknown_framework_little_is_assumed():
    """Sequence parallelism on tensor-parallel ranks, shared optimizer states, whole experts, nothing overlapped."""
    strategy = strategy_of(facts(a_moe_model(), cluster=a_cluster(8)), tp=2, ep=2)

    assert switched_on(strategy) == {"sequence_parallel"}
    assert (strategy.sharding, strategy.etp, strategy.dp) == (Sharding.OPTIMIZER, 1, 4)


def test_a_framework_without_recipes_is_taken_as_unknown():
    """MoFa's paper names none: what its entry says of stages still holds."""
    known = facts_of("mofa")
    bare = replace(known, cluster=replace(known.cluster, framework=None))

    assert strategy_of(known, **DEGREES) == strategy_of(bare, **DEGREES)


@in_one_case(
    ("decisions", "message"),
    [
        ({"tp": 16}, "strategy.dp: nothing is left for it: tp * cp * pp = 16 of 8 devices."),
        ({"dp": 10**9, "tp": 8}, "strategy: takes 8e+09 devices"),
        ({"mbs": 100}, "strategy.mbs: dp * mbs = 800 sequences are more than the global batch of 128."),
        ({"pp": 8}, "strategy.pp: pp * vpp = 8 virtual stages are more than 2 layers"),
        ({"ep": 16}, "strategy.ep: ep * etp = 16 ranks share experts, a pipeline stage has only tp * cp * dp = 8."),
    ],
)
def test_what_no_formula_covers_is_refused(decisions, message):
    """Rules forbid it, too, but there would be nothing to report beside them."""
    known = facts(a_model(), cluster=a_cluster(8))
    with pytest.raises(SpecError) as caught:
        complete_strategy(known, StrategyFile(decisions=decisions))

    assert message in str(caught.value)
