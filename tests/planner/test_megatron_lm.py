"""Plans as arguments of Megatron-LM, and back."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from constraints.targets import effective_settings
from costmodel.errors import SpecError
from costmodel.strategy import FLAGS, Sharding
from planner import load
from planner.frameworks.launch import launched
from planner.frameworks.megatron.lm import to_megatron_lm
from planner.frameworks.megatron.options import options, read_arguments, split_words
from planner.frameworks.megatron.read import from_megatron_lm
from planner.frameworks.megatron.settings import PRECISIONS
from planner.frameworks.megatron.stages import layout_text, read_layout
from planner.frameworks.target import FIELDS
from planner.jobs.strategy_file import complete_strategy
from planner.verbs.plan import evaluate
from tests.builders_estimate import estimate_by_recipes as estimate
from tests.builders_job import a_document
from tests.builders_megatron import every_hybrid, every_plan
from tests.cases import in_one_case, read_table

JOB = a_document("llama3-8b", "16xh100-80gb-sxm", batch=128, sequence=8192, tokens=1e11)
MIXTRAL = {**JOB, "model": "mixtral-8x7b"}
DEEPSEEK = {
    **JOB,
    "model": "deepseek-v3",
    "cluster": {"device": "h100-80gb-sxm", "num_devices": 512},
    "training": {**JOB["training"], "sequence_length": 4096, "global_batch_size": 8192},
}


def a_plan(job=JOB, **decisions):
    """What one strategy of a job costs."""
    return estimate(load(job), decisions).plan


def arguments_of(job=JOB, **decisions):
    """Values by option."""
    return read_arguments(split_words(to_megatron_lm(a_plan(job, **decisions)).files["megatron-args.txt"])[0])


def imported(plan, release=None):
    """The plan that comes back from the arguments, for a release, and the environment."""
    return read_back(plan, to_megatron_lm(plan, release))


def read_back(plan, exported):
    """The plan that comes back from its export."""
    variables = "".join(f"{name}={value}\n" for name, value in exported.environment.items())
    cluster = [f"cluster.device={plan.cluster.device.name}", f"cluster.num_devices={plan.cluster.num_devices}"]
    cluster += [f"cluster.framework={plan.cluster.framework.name}"]
    problem = load(from_megatron_lm(variables + exported.files["megatron-args.txt"], cluster).document)
    return evaluate(problem, complete_strategy(problem.facts, problem.given))


def assert_same(back, plan):
    """The strategy, the settings, the model and the bytes; and so the step and the memory. A ring is written always."""
    settings, own = effective_settings(back.facts, back.strategy), effective_settings(plan.facts, plan.strategy)
    assert back.strategy == plan.strategy
    assert settings == (replace(own, cp_comm_type=own.cp_comm_type or "p2p") if settings.cp_comm_type else own)
    assert back.facts.model == plan.facts.model
    assert replace(back.facts.workload, tokens=1.0) == replace(plan.facts.workload, tokens=1.0)
    assert back.cluster.framework == plan.cluster.framework
    assert back.step_seconds == plan.step_seconds
    assert back.headroom_bytes == plan.headroom_bytes


# --- round trip --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_140_random_plans_come_back():
    """
    Every option and value of an export is in the table of Megatron-LM's own parser, and means the same plan.

    Dense, sparse and latent models; uneven and redistributed stages; every feature, precision, kind of sharding and
    setting that Megatron-LM has.
    """
    seen = every_plan()

    for plan in seen:
        assert_same(imported(plan), plan)

    strategies = [plan.strategy for plan in seen]
    assert all({getattr(one, name) for one in strategies} == {False, True} for name in FLAGS)
    assert {one.sharding for one in strategies} == {*Sharding}
    assert sum(one.layout is not None for one in strategies) > 40
    assert {plan.facts.workload.precision.name for plan in seen} == {*PRECISIONS}
    settings = [effective_settings(plan.facts, plan.strategy) for plan in seen]
    every = {name.removeprefix("settings.") for name in FIELDS if "." in name}
    constant = {"weight_dtype", "offloaded_masters", "kernels", "composition", "loss_chunks"}
    constant |= {"fp8_attention", "cp_a2a_ranks"}
    assert {name for name in every if len({getattr(one, name) for one in settings}) > 1} == every - constant


@pytest.mark.parametrize(
    "decisions",
    [
        {"pp": 4, "vpp": 3},
        {"pp": 4, "vocabulary": "redistributed"},
        {"pp": 8, "vocabulary": "redistributed"},
        {"pp": 4, "vpp": 2, "group": 8, "pp_overlap": True},
    ],
)
def test_dealt_stages_come_back(decisions):
    """Also where Megatron-LM would deal layers otherwise."""
    plan = a_plan(**decisions)

    assert imported(plan).strategy == plan.strategy


# --- what is written ---------------------------------------------------------------------------------------


def test_every_option_is_one_of_megatron():
    """A strategy with everything in it has nothing that the parser would not know."""
    words = split_words(
        to_megatron_lm(a_plan(MIXTRAL, tp=2, pp=2, vpp=2, ep=4, mbs=1, pp_overlap=True)).files["megatron-args.txt"]
    )[0]

    assert {word for word in words if word.startswith("--")} <= {*options()}


@pytest.mark.parametrize(("decisions", "expected"), read_table("megatron_lm")["decisions_are_options"])
def test_decisions_are_options(decisions, expected):
    """The ones that the glossary names."""
    assert arguments_of(**decisions).items() >= expected.items()


@pytest.mark.parametrize(("sharding", "gathers"), [("none", False), ("optimizer", True)])
def test_parameters_are_gathered_where_states_are_sharded(sharding, gathers):
    """Gradients are reduced behind the backward pass with and without the distributed optimizer."""
    arguments = arguments_of(sharding=sharding, dp_overlap=True)

    assert arguments["--overlap-grad-reduce"] is True
    assert ("--overlap-param-gather" in arguments) == gathers


@pytest.mark.parametrize(
    ("dispatcher", "options_said"),
    [
        ("alltoall", {"--moe-token-dispatcher-type": "alltoall"}),
        ("deepep", {"--moe-token-dispatcher-type": "flex", "--moe-flex-dispatcher-backend": "deepep"}),
        ("hybridep", {"--moe-token-dispatcher-type": "flex", "--moe-flex-dispatcher-backend": "hybridep"}),
    ],
)
def test_dispatchers_are_options(dispatcher, options_said):
    """The flex dispatcher has two backends; a model without experts has no option at all."""
    arguments = arguments_of(MIXTRAL, ep=8, token_dispatcher=dispatcher)

    assert {name: arguments[name] for name in options_said} == options_said
    assert "--moe-token-dispatcher-type" not in arguments_of(tp=2)


def test_experts_are_offloaded_by_modules():
    """In a pipeline, of layers that are attention and experts."""
    arguments = arguments_of(MIXTRAL, pp=2, activation_offload=True)

    assert arguments["--fine-grained-activation-offloading"] is True
    assert arguments["--offload-modules"] == [
        "attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm", "expert_fc1", "moe_act",
    ]  # fmt: skip


def test_deepseek_is_written_whole():
    """Latent attention, three dense layers, shared experts, multi-token prediction beside the loss."""
    arguments = arguments_of(DEEPSEEK, pp=16, ep=16, vpp=2, pp_overlap=True, ep_overlap=True)

    assert arguments["--pipeline-model-parallel-layout"] == "Et|(t*2|)*30mL"
    assert arguments["--moe-layer-freq"] == "([0]*3+[1]*58)"
    assert (arguments["--mtp-num-layers"], arguments["--q-lora-rank"]) == (1, 1536)
    assert arguments["--expert-tensor-parallel-size"] == 1


def test_the_activation_of_gpt_oss_is_no_swiglu():
    """Its gate is clamped at 7 and multiplies the other half plus one; the same model comes back."""
    plan = a_plan({**JOB, "model": "gpt-oss-20b"})
    arguments = arguments_of({**JOB, "model": "gpt-oss-20b"})

    assert "--swiglu" not in arguments
    assert (arguments["--quick-geglu"], arguments["--glu-linear-offset"]) == (True, 1.0)
    assert arguments["--activation-func-clamp-value"] == 7.0
    assert imported(plan).facts.model == plan.facts.model


@pytest.mark.slow
def test_15_random_plans_of_hybrids_come_back():
    """The block of each layer is a letter, the sizes of Mamba are options; uneven stages are bars in the pattern."""
    plans = every_hybrid()
    patterns = [str(words) for plan in plans for words in [to_megatron_lm(plan).files["megatron-args.txt"]]]

    for plan in plans:
        assert_same(imported(plan), plan)

    assert any("|" in text for text in patterns)
    assert any("--hybrid-layer-pattern 'M-M-M-M*-" in text for text in patterns)
    assert any("MEMEM*EMEMEM*" in text for text in patterns)


@pytest.mark.parametrize(
    ("decisions", "settings", "complaint"),
    [
        ({"pp": 2, "vpp": 2}, {}, "vpp = 2: In Megatron-LM pipeline ranks of a model whose layers are single"),
        ({}, {"mtp_layers": 1}, "model.mtp_layers: hybrids have them in another pattern"),
    ],
)
def test_what_hybrids_have_not_is_refused(decisions, settings, complaint):
    """By name."""
    job = {**JOB, "model": "nemotron-h-8b", "settings": settings}

    with pytest.raises(SpecError, match=re.escape(complaint)):
        to_megatron_lm(a_plan(job, **decisions))


def test_hybrids_have_another_program():
    """As a note, and in what starts it."""
    plan = a_plan({**JOB, "model": "nemotron-h-8b"})
    exported = to_megatron_lm(plan)

    assert any("pretrain_mamba.py" in note for note in exported.notes)
    assert "pretrain_mamba.py" in launched(plan, exported, "torchrun").files["launch.sh"]


def test_the_schedule_is_written():
    """Iterations and checkpoints are those of the plan; a checkpoint beside the training is asynchronous."""
    job = {**JOB, "reliability": {"asynchronous_checkpoints": True}}
    plan = a_plan(job, tp=2)

    arguments = arguments_of(job, tp=2)

    assert arguments["--train-iters"] == plan.schedule.num_steps == 95_368  # 1e11 tokens / (128 x 8192)
    assert arguments["--save-interval"] == plan.schedule.interval_steps
    assert arguments["--async-save"] is arguments["--use-persistent-ckpt-worker"] is True
    assert arguments["--ckpt-format"] == "torch_dist"
    assert "--async-save" not in arguments_of(tp=2)


@pytest.mark.parametrize(
    ("decisions", "device", "connections"),
    [
        ({"tp": 2}, "h100-80gb-sxm", "1"),
        ({"cp": 2, "cp_overlap": True}, "h100-80gb-sxm", "1"),
        ({"tp": 2}, "b200", None),
        ({}, "h100-80gb-sxm", None),
        ({"sharding": "gradients", "dp_overlap": True}, "h100-80gb-sxm", "8"),
    ],
)
def test_connections_of_devices(decisions, device, connections):
    """One where tensor or context parallelism needs an order, before Blackwell; FSDP refuses one."""
    job = {**JOB, "cluster": {"device": device, "num_devices": 16}}

    assert to_megatron_lm(a_plan(job, **decisions)).environment.get("CUDA_DEVICE_MAX_CONNECTIONS") == connections
    # From 2.10 on Transformer Engine offloads in another way unless told.
    assert to_megatron_lm(a_plan(activation_offload=True)).environment["NVTE_CPU_OFFLOAD_V1"] == "1"


def test_timeouts_follow_the_prediction():
    """Five times the upper end of the predicted step, at least a minute."""
    plan = a_plan(tp=2)

    text = to_megatron_lm(plan).files["ft-launcher-args.txt"]

    assert f"step:{max(60, -(-5 * plan.interval.high_seconds // 1)):.0f}," in text
    assert "setup:600" in text


# --- what is refused ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("decisions", "message"), read_table("megatron_lm")["what_no_option_says_is_refused_by_name"])
def test_what_no_option_says_is_refused_by_name(decisions, message):
    """With the reason; all of several."""
    with pytest.raises(SpecError, match=re.escape(message)):
        to_megatron_lm(estimate(load(JOB, ["search.framework_rules=false"]), decisions).plan)


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        (
            {"recompute": ["full", "none", "none", "none"]},
            "layout = its own stages: In Megatron-LM one option says what all",
        ),
        ({"full_layers": [2, 1, 2, 2]}, "layout = its own stages: In Megatron-LM each stage recomputes as many"),
        (
            {"activation_offload": [True, False, False, False]},
            "layout = its own stages: In Megatron-LM one option says what all",
        ),
    ],
)
def test_ranks_of_their_own_are_refused(layout, message):
    """``search.stages: free`` has no option."""
    given = {"pp": 4, "layout": {"layers": [7, 9, 9, 7], **layout}}

    with pytest.raises(SpecError, match=re.escape(message)):
        to_megatron_lm(a_plan({**JOB, "strategy": given}))


@pytest.mark.parametrize("precision", ["mofa", "fp8_rowwise", {"base": "bf16", "gradient_bytes": 2}])
def test_precisions_without_options_are_refused(precision):
    """Those of the paper, of other software, and one's own."""
    job = {**JOB, "training": {**JOB["training"], "precision": precision}}

    with pytest.raises(SpecError, match=r"training\.precision: Megatron-LM has no options for"):
        to_megatron_lm(a_plan(job))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("gemma-2-27b", "model.layers: a layer has 4 norms"),
        ("gpt-neox-20b", "model.layers: a layer has blocks side by side"),
        ("olmo-2-32b", "model.qk_norm: is over all heads"),
        ("qwen3-next-80b-a3b", "model.layers: a layer is LinearAttention and Experts"),
        ("mofa-llama2-70b", "model.norm: is none"),
        ("gpt2-xl", "model.learned_positions: is 1024, fewer than the 8192 tokens"),
    ],
)
def test_models_that_are_no_gpt_of_megatron_are_refused(model, message):
    """What is not said would be trained otherwise."""
    with pytest.raises(SpecError, match=re.escape(message)):
        to_megatron_lm(a_plan({**JOB, "model": model}))


# --- layouts -----------------------------------------------------------------------------------------------


@in_one_case(
    ("layers", "mtp_layers", "text"),
    [
        ((7, 9, 9, 7), 0, "Et*7|(t*9|)*2t*7L"),
        ((0, 16, 16, 0), 0, "E|(t*16|)*2L"),
        ((1, *[2] * 30, 0), 1, "Et|(t*2|)*30mL"),
        ((5, 3), 2, "Et*5|t*3m*2L"),
    ],
)
def test_layouts_are_short(layers, mtp_layers, text):
    """Equal stages are written once; the first three are among the 55 cases and the examples of Megatron-LM."""
    model = load({**JOB, "model": "deepseek-v3"}).facts.model
    sized = replace(model, layers=model.layers[:1] * sum(layers), mtp_layers=model.mtp_layers * mtp_layers)

    assert layout_text(layers, mtp_layers=mtp_layers) == text
    assert read_layout(text, sized) == layers


@in_one_case(
    ("text", "message"),
    [
        ("Et*31L", "has 31 of 't', but the model needs 32"),
        ("t*32L", "has 0 of 'E', but the model needs 1"),
        ("Et*32", "must begin with its only E (embedding) and end with its only L (loss)"),
        ("Et*32x", "expected E, t, m, L"),
        ("Et*9999|t*9999L", "has more than 4096 stages or layers"),
        ("Et*32mL", "has 1 of 'm', but the model needs 0"),
    ],
)
def test_layouts_that_are_none_are_refused(text, message):
    """As Megatron-LM's own validation does."""
    with pytest.raises(SpecError, match=re.escape(message)):
        read_layout(text, load(JOB).facts.model)
