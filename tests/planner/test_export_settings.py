"""Settings of the framework in exports and imports: each is mapped or refused by name, by every target."""

from __future__ import annotations

import json
import shlex
from dataclasses import fields

import pytest

from constraints.targets import effective_settings
from costmodel.errors import SpecError
from costmodel.facts.framework import Settings
from planner import export, load
from planner.frameworks import TARGETS
from planner.frameworks.megatron.read import from_megatron_lm, release_for
from planner.results import Plan
from tests.builders_estimate import estimate_by_recipes as estimate
from tests.cases import in_one_case, read_table

CASES = read_table("export_settings")

JOB = {
    "model": "llama3-8b",
    "cluster": {"device": "h100-80gb-sxm", "num_devices": 16, "framework": {"name": "any"}},
    "training": {"global_batch_size": 64, "sequence_length": 4096, "tokens": 1e11},
}
"""A framework of no recipes: gradients in FP32, weights as the recipe of BF16 has them."""

SHARDED = {"dp": 16, "mbs": 2, "sharding": "weights", "dp_overlap": True}
SHARED = {**SHARDED, "sharding": "optimizer"}
OFFLOADED = {**SHARED, "optimizer_offload": True}
EXPERTS = {
    "pp": 2,
    "dp": 8,
    "ep": 8,
    "vpp": 2,
    "mbs": 1,
    "pp_overlap": True,
    "sharding": "optimizer",
    "dp_overlap": True,
}
PLAIN = {"dp": 16, "mbs": 2, "sharding": "none", "dp_overlap": False}
NAMED = {"shared": SHARED, "offloaded": OFFLOADED, "plain": PLAIN}
FP8 = {"training": {**JOB["training"], "precision": "fp8"}}
CURRENT = {"training": {**JOB["training"], "precision": "fp8_current"}}

USUAL = {
    **{name: {} for name in TARGETS},
    "torchtitan": {"weight_dtype": "fp32"},
    "accelerate": {"weight_dtype": "fp32", "gradient_dtype": "bf16"},
}
"""What a target does of itself, of what others do otherwise."""

ALIKE = [[name for name in TARGETS if USUAL[name] == usual] for usual in ({}, USUAL["torchtitan"], USUAL["accelerate"])]
"""Targets that do the same of themselves."""

OTHERS = {
    "gradient_dtype": ("fp16", SHARDED, {}),
    "weight_dtype": (None, SHARDED, {}),
    "moments_dtype": ("bf16", SHARDED, {}),
    "fp8_param_gather": (True, SHARDED, FP8),
    "first_layers_bf16": (1, SHARDED, CURRENT),
    "last_layers_bf16": (1, SHARDED, CURRENT),
    "fp8_attention": (True, SHARDED, CURRENT),
    "mtp_layers": (1, SHARDED, {}),
    "shared_expert_overlap": (True, SHARDED, {"model": "moonlight-16b-a3b"}),
    "delay_wgrad": (True, SHARDED, {}),
    "communication_sms": (24, {**EXPERTS, "token_dispatcher": "deepep"}, {"model": "mixtral-8x7b"}),
    "offloaded_layers": (8, {**SHARED, "activation_offload": True}, {}),
    "offloaded_states": (0.5, OFFLOADED, {}),
    "offloaded_masters": (False, OFFLOADED, {}),
    "offload_overlap": (True, OFFLOADED, {}),
    "host_threads": (4, OFFLOADED, {}),
    "optimizer_group": (8, SHARDED, {}),
    "cp_comm_type": ("a2a", {"cp": 2, "dp": 8, "mbs": 2, "sharding": "optimizer", "dp_overlap": True}, {}),
    "cp_a2a_ranks": (
        4,
        {"cp": 8, "dp": 2, "mbs": 2, "sharding": "optimizer", "dp_overlap": True, "cp_overlap": True},
        {},
    ),
    "optimizer": ("dist_muon", SHARDED, {}),
    "muon_tp_mode": ("duplicated", SHARED, {}),
    "muon_num_ns_steps": (6, SHARED, {}),
    "kernels": ("eager", SHARDED, {}),
    "attention": ("unfused", SHARDED, {}),
    "loss": ("fused", SHARDED, {}),
    "loss_chunks": (4, SHARDED, {}),
    "allocator": ("expandable", SHARDED, {}),
    "launches": ("blocking", SHARDED, {}),
    "composition": ("parts", SHARDED, {}),
}
"""Another value of each setting, with a strategy and a job in which it has something to do."""


def a_plan(settings: dict | None = None, given: dict | None = None, **job) -> Plan:
    """What one strategy costs with some settings."""
    return estimate(load({**JOB, "settings": settings or {}, **job}), given or SHARDED).plan


def outcome(plan: Plan, target: str) -> object:
    """All that a target says, or why it refuses."""
    try:
        made = export(plan, target)
    except SpecError as error:
        return str(error)
    return dict(made.files), dict(made.environment), made.notes


def options(settings: dict | None = None, given: dict | None = None, **job) -> list[str]:
    """The lines of Megatron-LM's arguments."""
    return export(a_plan(settings, given, **job), "megatron-lm").files["megatron-args.txt"].splitlines()


# --- every target ------------------------------------------------------------------------------------------


def test_each_setting_has_another_value_here():
    """One that is added is a case, too."""
    assert {*OTHERS} == {one.name for one in fields(Settings)}


@pytest.mark.sampled(7)
@pytest.mark.parametrize("name", OTHERS)
def test_no_setting_is_dropped(name):
    """With another value a target writes something else, or says something else, or refuses it by its name."""
    other, given, job = OTHERS[name]
    beside = {"optimizer": "muon"} if name.startswith("muon_") else {}
    beside |= {"cp_comm_type": "a2a+p2p"} if name == "cp_a2a_ranks" else {}
    refusals = (f"settings.{name} = ", "settings.optimizer = ", "training.precision")
    for targets in ALIKE:
        usual = {**USUAL[targets[0]], **beside}
        value = other if name != "weight_dtype" else "recipe" if "weight_dtype" in usual else "fp32"
        before, after = (a_plan({**usual, **more}, given, **job) for more in ({}, {name: value}))
        for target in targets:
            said = outcome(after, target)

            if isinstance(said, str):
                assert any(one in said for one in refusals)
            else:
                assert said != outcome(before, target)


@pytest.mark.parametrize("target", TARGETS)
def test_what_a_target_does_of_itself_is_taken(target):
    """One strategy that all can run; a plan without gaps is written as that with its settings spelled out."""
    spelled = {
        "gradient_dtype": "fp32",
        "weight_dtype": "recipe",
        "moments_dtype": "fp32",
        "fp8_param_gather": True,  # of 8-bit recipes only
        "first_layers_bf16": 1,  # of recipes in 8 or 4 bits only
        "last_layers_bf16": 1,
        "fp8_attention": True,
        "mtp_layers": 0,
        "shared_expert_overlap": True,  # of models with shared experts only
        "delay_wgrad": False,
        "communication_sms": 24,  # of DeepEP and HybridEP only
        "offloaded_layers": 4,  # where activations are offloaded only
        "offloaded_states": 0.5,  # where optimizer states are offloaded only
        "offloaded_masters": False,
        "offload_overlap": True,
        "host_threads": 2,
        "optimizer_group": "all",
        "optimizer": "adam",
        "kernels": "fused",
        "attention": "flash",
        "loss": "unfused",
        "launches": "asynchronous",
        "composition": "step",
    }

    plain = outcome(a_plan(USUAL[target]), target)

    assert not isinstance(plain, str)
    assert outcome(a_plan({**spelled, **USUAL[target]}), target) == plain


def test_the_hint_names_settings_and_framework():
    """What the job does not say is the framework's, which can be another one."""
    with pytest.raises(SpecError) as error:
        export(a_plan({"gradient_dtype": "bf16", "weight_dtype": "fp32"}), "torchtitan")

    assert str(error.value).splitlines()[-1] == (
        "Plan again with other settings; what the job does not say is as cluster.framework has it (any)."
    )


def test_a_precision_with_bytes_of_its_own_is_nobodys():
    """Optimizer states of 16 bytes that no setting says would be trained in 12."""
    training = {**JOB["training"], "precision": {"base": "bf16", "name": "bf16", "optimizer_bytes": 16}}

    for target, usual in USUAL.items():
        with pytest.raises(SpecError, match=r"training\.precision: .* bytes of its own"):
            export(a_plan(usual, training=training), target)


# --- Megatron-LM -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("settings", "given", "job", "lines"), CASES["options"])
def test_settings_are_options(settings, given, job, lines):
    """Those of the parser of Megatron-LM; 16 replicas in groups of 4 are 4 instances."""
    strategy = NAMED[given] if isinstance(given, str) else given

    assert {*lines} <= {*options(settings, strategy, training={**JOB["training"], **job})}


@pytest.mark.parametrize(
    ("dispatcher", "line"), [("deepep", "--moe-deepep-num-sms 24"), ("hybridep", "--moe-hybridep-num-sms 24")]
)
def test_each_dispatcher_has_processors_of_its_own(dispatcher, line):
    """An all-to-all has none."""
    given = {**EXPERTS, "token_dispatcher": dispatcher}

    assert line in options({"communication_sms": 24}, given, model="mixtral-8x7b")
    assert not any("num-sms" in one for one in options({"communication_sms": 24}, EXPERTS, model="mixtral-8x7b"))


def test_weight_gradients_wait_behind_expert_parallel_communication():
    """And shared experts run beside an all-to-all."""
    overlapped = {**EXPERTS, "ep_overlap": True}

    assert "--delay-wgrad-compute" in options({"delay_wgrad": True}, overlapped, model="mixtral-8x7b")
    assert "--moe-shared-expert-overlap" in options(
        {"shared_expert_overlap": True}, {**SHARED, "ep": 8}, model="moonlight-16b-a3b"
    )


def test_one_replica_has_the_distributed_optimizer_for_nothing():
    """It shares nothing, and options that need it are taken."""
    given = {"tp": 8, "pp": 2, "dp": 1, "mbs": 1, "sharding": "none"}

    assert {"--use-distributed-optimizer", "--exp-avg-dtype bf16"} <= {*options({"moments_dtype": "bf16"}, given)}


@pytest.mark.parametrize(("release", "gathers"), [("megatron-lm-0.17", False), ("megatron-lm-0.18", True)])
def test_muon_deals_whole_matrices(release, gathers):
    """The distributed optimizer is off: it would cut them. Weights are gathered behind computation from 0.18 on."""
    lines = options({"optimizer": "dist_muon"}, SHARED, cluster={**JOB["cluster"], "framework": release})

    usual = options({"optimizer": "muon"}, SHARED, cluster={**JOB["cluster"], "framework": release})

    assert {"--optimizer muon", "--use-distributed-optimizer"} <= {*usual} or (not gathers and lines == usual)
    assert "--use-distributed-optimizer" not in lines
    assert "--overlap-grad-reduce" in lines
    assert ("--overlap-param-gather" in lines) == gathers


def test_the_loss_of_a_recipe_is_written():
    """Recipes of Megatron-Core have Transformer Engine's on 16-bit logits; Megatron-LM's own parser does not."""
    recipe = {"cluster": {**JOB["cluster"], "framework": "megatron-core-0.14"}}
    flags = {"--cross-entropy-loss-fusion", "--cross-entropy-fusion-impl te"}

    assert flags <= {*options(given=SHARED, **recipe)}
    assert not flags & {*options({"loss": "unfused"}, SHARED, **recipe)}


def test_a_launch_with_and_without_the_fused_loss_differs():
    """By 4 bytes of memory and 42 bytes of traffic per logit."""
    fused = "--cross-entropy-loss-fusion --cross-entropy-fusion-impl te"
    without, with_it = (estimate(load(imported(f"--bf16 {more}").document), {}).plan for more in ("", fused))

    assert with_it.step_seconds < without.step_seconds
    assert with_it.headroom_bytes > without.headroom_bytes


def test_a_fusion_that_costs_like_none_is_named():
    """Megatron-LM's own fusion works in FP32."""
    notes = imported("--bf16 --cross-entropy-loss-fusion").notes

    assert "--cross-entropy-loss-fusion, native: costed as the unfused loss, in FP32 as well." in notes


ALL_TO_ALL = {"cluster": {**JOB["cluster"], "framework": "megatron-lm-0.14"}}
CONTEXT = {**SHARED, "cp": 2, "dp": 8, "cp_overlap": True}


def test_context_is_exchanged_as_costed():
    """SimuMax's launches keep the attention's output twice, which is an all-to-all; others have a ring."""
    assert "--cp-comm-type a2a" in options(given=CONTEXT, **ALL_TO_ALL)
    assert "--cp-comm-type p2p" in options(given=CONTEXT)
    (text,) = export(a_plan(given=CONTEXT, **ALL_TO_ALL), "megatron-bridge").files.values()
    assert "model.cp_comm_type=a2a" in text.splitlines()


def test_an_all_to_all_needs_heads_for_each_rank():
    """Of Llama-3's 8 key-value heads 2 ranks get 4 each, 16 ranks none."""
    wide = {**CONTEXT, "cp": 16, "dp": 1, "mbs": 1}

    with pytest.raises(SpecError, match=r"cp = 16: With all-to-all context parallelism, each tensor-parallel rank has"):
        options(given=wide, **ALL_TO_ALL)


def test_blocking_launches_are_a_variable():
    """For every target."""
    for target, usual in USUAL.items():
        made = export(a_plan({**usual, "launches": "blocking"}), target)
        assert made.environment["CUDA_LAUNCH_BLOCKING"] == "1"


@pytest.mark.parametrize(
    ("settings", "number"), [({}, "14"), ({"host_threads": 4}, "4"), ({"host_threads": 112}, "14")]
)
def test_a_host_that_updates_is_given_its_threads(settings, number):
    """Two processors of 56 cores over 8 devices; torchrun would set one thread, and only where states are offloaded."""
    kept, offloaded = (a_plan(settings, {**SHARDED, "optimizer_offload": is_on}) for is_on in (False, True))

    for target in ("megatron-lm", "megatron-bridge", "deepspeed"):
        assert export(offloaded, target).environment["OMP_NUM_THREADS"] == number
        assert "OMP_NUM_THREADS" not in export(kept, target).environment


def test_threads_of_a_launch_come_back():
    """A script that exports them; of one that offloads nothing they mean nothing."""
    offloading, plain = (
        from_megatron_lm(f"export OMP_NUM_THREADS=4\nARGS=({COMMON} {more})", HERE).document["settings"]
        for more in (ON_HOST, "--bf16")
    )

    assert offloading["host_threads"] == 4
    assert "host_threads" not in plain


def test_deepspeed_offloads_a_part_in_stage_3():
    """Of the other stages all states (deepspeed/runtime/zero/offload_config.py)."""
    given = {**OFFLOADED, "sharding": "weights"}
    (text,) = export(a_plan({"offloaded_states": 0.5}, given), "deepspeed").files.values()

    assert json.loads(text)["zero_optimization"]["offload_optimizer"]["ratio"] == 0.5
    with pytest.raises(SpecError, match=r"offloaded_states = 0\.5: In DeepSpeed .* ratio is of stage 3"):
        export(a_plan({"offloaded_states": 0.5}, OFFLOADED), "deepspeed")


def test_the_arguments_say_that_they_lack_the_variable():
    """Whoever imports them alone would lose it."""
    notes = [export(a_plan({"launches": name}), "megatron-lm").notes for name in ("blocking", "asynchronous")]

    assert [any("CUDA_LAUNCH_BLOCKING=1" in note for note in each) for each in notes] == [True, False]


@pytest.mark.parametrize(
    ("settings", "given", "job", "message"),
    [
        ({"gradient_dtype": "bf16+fp32"}, SHARED, {}, "gradient_dtype = bf16+fp32: Gradients have one buffer"),
        ({"fp8_param_gather": True}, PLAIN, FP8, "fp8_param_gather = true: With replicas of the weights"),
        (
            {"mtp_layers": 1},
            SHARED,
            {"model": "gpt3-175b", "training": {**JOB["training"], "sequence_length": 2048}},
            "mtp_layers = 1: In Megatron-LM multi-token prediction excludes learned positions",
        ),
        (
            {"optimizer_group": 8},
            {**SHARED, "ep": 2},
            {"model": "mixtral-8x7b"},
            "optimizer_group = 8: Optimizer groups of experts are as many and as large",
        ),
        ({"optimizer": "muon"}, {**PLAIN, "dp_overlap": True}, {}, "optimizer = muon: In Megatron-LM data-parallel"),
        (
            {"optimizer": "muon", "muon_tp_mode": "layer_sharded"},
            PLAIN,
            {},
            "muon_tp_mode = layer_sharded: --muon-tp-mode has blockwise, duplicated and distributed",
        ),
    ],
)
def test_what_megatron_refuses_is_refused_by_name(settings, given, job, message):
    """By the setting that a rule is told of; ``tests/constraints`` has a case of each rule."""
    with pytest.raises(SpecError) as error:
        options(settings, given, **job)

    assert f"settings.{message}" in str(error.value)


# --- the others --------------------------------------------------------------------------------------------


def test_bridge_has_settings_as_fields():
    """Moments are the optimizer's; gradients and 8-bit weights belong to the precision, which overwrites the others."""
    settings = {"gradient_dtype": "bf16", "moments_dtype": "bf16", "fp8_param_gather": True}
    (text,) = export(a_plan(settings, SHARED, **FP8), "megatron-bridge").files.values()

    assert "optimizer.exp_avg_dtype='torch.bfloat16'" in shlex.split(text)
    for field in ("grad_reduce_in_fp32:false", "fp8_param_gather:true", "fp8_recipe:delayed"):
        assert field in text


@pytest.mark.parametrize(
    ("gradient_dtype", "given", "keys"),
    [
        ("bf16", {**SHARDED, "sharding": "gradients"}, ['"grad_accum_dtype": "bf16"']),
        ("fp32", SHARDED, ['"grad_accum_dtype": "fp32"', '"communication_data_type": "fp32"']),
        ("fp32", {**SHARED, "dp_overlap": False}, ['"grad_accum_dtype": "fp32"', '"immediate_grad_update": true']),
        ("bf16+fp32", {**SHARED, "dp_overlap": False}, ['"grad_accum_dtype": "fp32"']),
    ],
)
def test_deepspeed_accumulates_and_reduces_as_counted(gradient_dtype, given, keys):
    """BF16_Optimizer keeps both copies unless each is added at once."""
    (text,) = export(a_plan({"gradient_dtype": gradient_dtype}, given), "deepspeed").files.values()

    assert all(key in text for key in keys)
    assert ("immediate_grad_update" in text) == any("immediate" in key for key in keys)


@pytest.mark.parametrize(
    ("target", "lines"),
    [
        ("torchtitan", ("data_parallel_replicate_degree=2,", "data_parallel_shard_degree=8,")),
        ("accelerate", ("parallelism_config_dp_replicate_size: 2", "parallelism_config_dp_shard_size: 8")),
    ],
)
def test_groups_that_share_are_a_mesh(target, lines):
    """16 replicas in two groups of 8."""
    (text,) = export(a_plan({**USUAL[target], "optimizer_group": 8}), target).files.values()

    assert all(line in text for line in lines)


def test_the_release_is_told_where_it_is_another():
    """A plan for torchtitan is its own; one with another framework's times says so."""
    own = {**JOB["cluster"], "framework": "torchtitan-0.1"}
    notes = [export(plan, "torchtitan").notes for plan in (a_plan(USUAL["torchtitan"]), a_plan(cluster=own))]

    assert [any("cluster.framework=torchtitan-0.1" in note for note in each) for each in notes] == [True, False]


# --- imports -----------------------------------------------------------------------------------------------

COMMON = (
    "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention "
    "--num-query-groups 8 --swiglu --normalization RMSNorm --disable-bias-linear --position-embedding-type rope "
    "--untie-embeddings-and-output-weights --vocab-size 128256 --max-position-embeddings 8192 --train-iters 1000 "
    "--global-batch-size 128 --seq-length 4096 --micro-batch-size 1 "
)
HERE = ["cluster.device=h100-80gb-sxm", "cluster.num_devices=16"]
ON_HOST = "--bf16 --use-distributed-optimizer --use-precision-aware-optimizer --optimizer-cpu-offload"
SPREAD = "--num-experts 8 --expert-model-parallel-size 8 --moe-token-dispatcher-type "


def imported(more: str = "--bf16", overrides: list[str] = HERE):
    """The job of a launch of Llama-3-8B."""
    return from_megatron_lm(f"{COMMON} {more}", overrides)


def test_defaults_of_the_parser_are_written_out():
    """Gradients in FP32, as ``--bf16`` has them; the newest plain release that runs on the device."""
    document = imported().document

    assert document["cluster"]["framework"] == "megatron-lm-0.18"
    assert document["settings"] == {
        "gradient_dtype": "fp32",
        "moments_dtype": "fp32",
        "fp8_param_gather": False,
        "mtp_layers": 0,
        "shared_expert_overlap": False,
        "delay_wgrad": False,
        "optimizer": "adam",
        "loss": "unfused",
        "optimizer_group": "all",
    }


@pytest.mark.parametrize(("more", "settings"), CASES["settings"])
def test_options_are_settings(more, settings):
    """The other way round."""
    assert imported(more).document["settings"].items() >= settings.items()


def test_what_costs_like_something_else_is_said():
    """Lion has one moment, and FP8 ones have a byte."""
    narrow = "--use-precision-aware-optimizer --use-distributed-optimizer --exp-avg-dtype fp8 --exp-avg-sq-dtype fp16"

    assert "--optimizer lion: costed as Adam, with two moments." in imported("--bf16 --optimizer lion").notes
    assert "Moments are fp8 and fp16: costed as bf16." in imported(f"--bf16 {narrow}").notes


def test_parts_of_muon_that_are_not_costed_are_said():
    """Without Muon, and with the values that are costed, there is nothing to say."""
    other = "--muon-no-split-qkv --muon-fp32-matmul-prec high --muon-use-syrk --muon-scalar-optimizer lion"
    usual = "--muon-fp32-matmul-prec medium --muon-scalar-optimizer adam --muon-tp-mode blockwise"

    def notes(more: str) -> list[str]:
        return [one for one in imported(f"--bf16 {more}").notes if "costed" in one]

    assert [one.partition(":")[0] for one in notes(f"--optimizer muon {other}")] == other.replace(" high", "").replace(
        " lion", ""
    ).split(" ")
    assert not notes(f"--optimizer muon {usual}")
    assert not notes(other)
    assert notes("--optimizer adaptive_muon") == [
        "--optimizer adaptive_muon: costed as muon, without its second moment."
    ]


def test_muon_beside_the_distributed_optimizer_shares_states():
    """As functional tests of Megatron-LM launch it; alone it shares nothing."""
    shared, alone = (
        imported(f"--bf16 --optimizer muon {more}").document["strategy"] for more in ("--use-distributed-optimizer", "")
    )

    assert (shared["sharding"], alone["sharding"]) == ("optimizer", "none")


def test_the_release_that_is_assumed_is_said():
    """On top of the job; a release that the command names is not assumed."""
    told_by, named = imported(), imported(overrides=[*HERE, "cluster.framework=megatron-lm-0.14"])

    assert told_by.text.startswith("# No argument says the release: megatron-lm-0.18 is assumed")
    assert "cluster.framework=NAME" in told_by.notes[0]
    assert not any("is assumed" in note for note in named.notes)


def test_an_option_of_megatron_fsdp_without_it_is_said():
    """It would be read by nothing."""
    notes = imported("--bf16 --megatron-fsdp-main-grads-dtype bf16").notes

    assert "--megatron-fsdp-main-grads-dtype: without --use-megatron-fsdp it has no effect." in notes


@pytest.mark.parametrize(
    ("framework", "more", "notes"),
    [
        ("megatron-lm-0.14", "--cp-comm-type a2a", []),
        ("megatron-lm-0.14", "", ["--cp-comm-type is by default p2p: costed as a2a, as cluster.framework has it."]),
        ("megatron-lm-0.17", "", []),
        (
            "megatron-lm-0.17",
            "--cp-comm-type a2a p2p",
            ["--cp-comm-type is a2a p2p: costed as p2p, as cluster.framework has it."],
        ),
    ],
)
def test_another_exchange_than_the_one_costed_is_said(framework, more, notes):
    """Context parallelism is a ring or an all-to-all, as the release is launched."""
    found = imported(f"--bf16 --context-parallel-size 2 {more}", [*HERE, f"cluster.framework={framework}"]).notes

    assert [note for note in found if "--cp-comm-type" in note] == notes


def test_layers_that_are_offloaded_are_offloaded():
    """Some of them: as many leave the device."""
    strategy = imported("--bf16 --cpu-offloading-num-layers 4").document["strategy"]
    every = imported("--bf16 --cpu-offloading-num-layers 31").document

    assert strategy["activation_offload"] is True
    assert "offloaded_layers" not in every["settings"]


def test_what_the_job_says_itself_stays():
    """Entries of the command line come over the arguments."""
    own = [*HERE, "settings.gradient_dtype=bf16", "cluster.framework=megatron-core-0.16"]

    document = imported("--bf16", own).document

    assert document["settings"]["gradient_dtype"] == "bf16"
    assert document["cluster"]["framework"] == "megatron-core-0.16"


def test_a_script_that_blocks_launches_says_so():
    """As BLOOM's did."""
    text = f"export CUDA_LAUNCH_BLOCKING=1\nARGS=({COMMON} --bf16)"

    assert from_megatron_lm(text, HERE).document["settings"]["launches"] == "blocking"


@in_one_case(
    ("device", "release"),
    [
        ("h100-80gb-sxm", "megatron-lm-0.18"),
        ("b200", "megatron-lm-0.18"),
        ("v100-32gb-sxm", "megatron-lm-2022"),
        ("mofa-a", None),
        ({"base": "b200", "memory_bytes": 1e11}, "megatron-lm-0.18"),
    ],
)
def test_the_newest_release_for_a_device(device, release):
    """V100 have none of this decade's middle; the devices of the paper have their own."""
    assert release_for(device, "unfused") == release


@in_one_case(("more", "message"), CASES["refused"])
def test_what_the_parser_refuses_is_refused(more, message):
    """Before anything is costed."""
    with pytest.raises(SpecError) as error:
        imported(more)

    assert message in str(error.value)


def test_a_recipe_comes_back_as_it_was_told():
    """BF16 gradients and 8-bit weights of Megatron-Bridge, through Megatron-LM's arguments: the same bytes."""
    job = {**FP8, "cluster": {**JOB["cluster"], "framework": "megatron-bridge-26.04"}}
    plan = a_plan({"moments_dtype": "bf16", "optimizer_group": 8}, SHARED, **job)
    text = export(plan, "megatron-lm").files["megatron-args.txt"]

    back = estimate(load(from_megatron_lm(text, HERE).document), {}).plan

    assert effective_settings(back.facts, back.strategy) == effective_settings(plan.facts, plan.strategy)
    assert back.strategy == plan.strategy
    assert back.facts.workload.precision == plan.facts.workload.precision
    assert back.headroom_bytes == plan.headroom_bytes
    assert back.step_seconds == plan.step_seconds


def test_expandable_segments_are_a_variable():
    """For every target; beside CUDA graphs NCCL must not register them (megatron/core/transformer/cuda_graphs.py)."""
    for targets in ALIKE:
        usual, expandable = (a_plan(USUAL[targets[0]] | more) for more in ({}, {"allocator": "expandable"}))
        for target in targets:
            made = export(expandable, target)
            assert made.environment["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
            assert "NCCL_GRAPH_REGISTER" not in made.environment
            assert "PYTORCH_CUDA_ALLOC_CONF" not in export(usual, target).environment
    graphed = export(a_plan({"allocator": "expandable"}, {**SHARED, "cuda_graphs": "full_iteration"}), "megatron-lm")
    assert graphed.environment["NCCL_GRAPH_REGISTER"] == "0"


def test_a_launch_s_allocator_comes_back():
    """Whatever else the variable says."""
    exported, plain = (
        from_megatron_lm(f"{line}ARGS=({COMMON} --bf16)", HERE).document["settings"]
        for line in ("export PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:64,expandable_segments:True\n", "")
    )

    assert exported["allocator"] == "expandable"
    assert "allocator" not in plain
