"""Frameworks: a device's calibration and a release's behaviour joined, and what settings change of both."""

from __future__ import annotations

from dataclasses import fields, replace
from operator import attrgetter
from typing import Any

import pytest

from costmodel import catalog
from costmodel.catalog.releases import allocator, framework_of, stands_in
from costmodel.errors import SpecError
from costmodel.facts.calibration import Constants
from costmodel.facts.framework import (
    Behaviour,
    Framework,
    Kernels,
    MemoryModel,
    Settings,
    feature_of,
    has_values,
    lacks,
)
from costmodel.lowering.framework import apply_framework, framework_stages, limit_mtp_layers, storage_precision
from costmodel.strategy import DEGREES, ENUMS, FLAGS, CudaGraphs, Recompute, Schedule
from tests.builders import a_latent_model, a_model
from tests.builders_cluster import GB, a_device
from tests.cases import in_one_case

H100 = catalog.device("h100-80gb-sxm")
NEWEST = "megatron-bridge-26.06"
"""What jobs get that name no release, on devices that it runs on."""
CONSTANTS = H100.calibration.constants

MOST_NUMBERS = 6
"""Fitted constants of one framework (the issue's own limit)."""


def a_framework(**changes: Any) -> Framework:
    """One that changes nothing."""
    return Framework(**({"name": "test-framework"} | changes))


def equipped_with(framework: Framework, settings: Settings | None = None, **others: Any):
    """What an H100 achieves with it."""
    return apply_framework(H100, framework, settings, **others)


# --- composition -------------------------------------------------------------------------------------------


def test_a_profile_is_constants_and_behaviour():
    """Without factors and settings each part is as its entry has it."""
    behaviour = Behaviour(kernels=Kernels(fused_attention=False), memory=MemoryModel(logit_bytes=10.0))

    device = equipped_with(a_framework(behaviour=behaviour))

    assert (device.constants, device.behaviour) == (CONSTANTS, behaviour)


def test_factors_multiply_what_the_calibration_says():
    """Twice the time between kernels; every dtype's matmul at half of its rate."""
    device = equipped_with(a_framework(factors={"kernel_gap_seconds": 2.0, "matmul_efficiency": 0.5}))

    assert device.constants.kernel_gap_seconds == 2 * CONSTANTS.kernel_gap_seconds
    assert device.constants.matmul_efficiency == {
        name: 0.5 * rate for name, rate in CONSTANTS.matmul_efficiency.items()
    }


def test_a_factor_lifts_no_rate_above_its_peak():
    """A fraction of a peak ends at 1, a mapping's as well; seconds end nowhere."""
    device = equipped_with(
        a_framework(factors={"memory_efficiency": 9.0, "matmul_efficiency": 9.0, "kernel_gap_seconds": 9.0})
    )

    assert device.constants.memory_efficiency == 1
    assert set(device.constants.matmul_efficiency.values()) == {1}
    assert device.constants.kernel_gap_seconds == 9 * CONSTANTS.kernel_gap_seconds


def test_a_factor_may_be_of_one_architecture():
    """``@hopper`` multiplies on an H100 and not on an A100, beside a factor for all."""
    framework = a_framework(factors={"attention_efficiency@hopper": 0.5, "attention_efficiency": 0.5})
    a100 = catalog.device("a100-80gb-sxm")

    ampere = apply_framework(a100, framework).constants.attention_efficiency

    assert equipped_with(framework).constants.attention_efficiency == 0.25 * CONSTANTS.attention_efficiency
    assert ampere == 0.5 * a100.calibration.constants.attention_efficiency


@in_one_case(
    ("factors", "sentence"),
    [
        (
            {"atention_efficiency": 0.5},
            "framework.factors.atention_efficiency: of test-framework is no constant .* mean 'attention_efficiency'",
        ),
        ({"fused_attention": 2.0}, "factors.fused_attention: of test-framework is no constant of a calibration"),
        ({"times": 2.0}, "factors.times: of test-framework is not a number that a factor can multiply"),
        ({"measured": 2.0}, "factors.measured: of test-framework is not a number that a factor can multiply"),
        (
            {"communication_sm_fraction": 9.0},
            "factors.communication_sm_fraction: of test-framework makes the constant impossible: Input should be",
        ),
        (
            {"atention_efficiency@volta": 0.5},
            "factors.atention_efficiency: of test-framework is no constant of a calibration",
        ),
    ],
)
def test_factors_that_fit_no_constant_are_refused(factors, sentence):
    """The error names the framework's entry and what was wrong, on every architecture."""
    with pytest.raises(SpecError, match=sentence):
        equipped_with(a_framework(factors=factors))


@pytest.mark.parametrize(
    ("targets", "scale"), [(("megatron-bridge", "megatron-lm"), 1.25), (("torchtitan",), 1.0), ((), 1.0)]
)
def test_models_of_one_size_have_a_scale_under_megatron(targets, scale):
    """Runs of such a model take 1.25 times as long: computation and bytes at 0.8 of the rate; no others."""
    model = a_model()
    known = replace(H100.calibration, constants=replace(CONSTANTS, model_scales={model.size: 1.25, "1x1": 3.0}))
    device = replace(H100, calibration=known)

    scaled = apply_framework(device, a_framework(targets=targets), model=model).constants.measured
    other = apply_framework(device, a_framework(targets=targets), model=a_model(hidden_size=64)).constants.measured

    assert (scaled.compute_scaling, scaled.communication_scaling) == pytest.approx((1 / scale, 1 / scale))
    assert other == CONSTANTS.measured


def test_networks_achieve_a_share_of_their_nominal_bandwidth():
    """0.8 of 400 GB/s by the level's name; a level that the calibration does not know reaches all of its 50 GB/s."""
    known = a_device()
    constants = replace(known.calibration.constants, link_efficiency={"nvlink": 0.8})
    device = apply_framework(
        replace(H100, networks=known.networks, calibration=replace(H100.calibration, constants=constants)),
        a_framework(),
    )

    assert [network.bandwidth for network in device.networks] == pytest.approx([320 * GB, 50 * GB])


def test_a_power_limit_moves_the_sustained_clock():
    """Of a device that its power lets run at 0.9 of its relative's clock, 0.9 of what the calibration sustains."""
    constants = replace(CONSTANTS, throttled_clock=1.1)
    device = replace(H100, power_clock=0.9, calibration=replace(H100.calibration, constants=constants))

    assert apply_framework(device, a_framework()).constants.throttled_clock == pytest.approx(0.99)


# --- settings ----------------------------------------------------------------------------------------------


@in_one_case(
    ("settings", "field", "off", "on"),
    [
        ({"kernels": "eager"}, "kernels.fused_kernels", True, False),
        ({"kernels": "fused"}, "kernels.fused_kernels", False, True),
        ({"kernels": "eager"}, "memory.unfused_kernels", False, True),
        ({"kernels": "fused"}, "memory.unfused_kernels", True, False),
        ({"attention": "unfused"}, "kernels.fused_attention", True, False),
        ({"attention": "flash"}, "kernels.fused_attention", False, True),
        ({"launches": "blocking"}, "host.launch_blocking", False, True),
        ({"launches": "asynchronous"}, "host.launch_blocking", True, False),
        ({"optimizer_group": 8}, "optimizer.sharding_ranks", None, 8),
        ({"optimizer_group": "all"}, "optimizer.sharding_ranks", 8, None),
        ({"shared_expert_overlap": True}, "communication.shared_expert_overlap", False, True),
        ({"loss_chunks": 8}, "memory.loss_chunks", 1, 8),
        ({"communication_sms": 24}, "communication.communication_sms", None, 24),
    ],
)
def test_settings_change_the_behaviour(settings, field, off, on):
    """What a framework is told takes the place of what it does; without it nothing changes."""
    part, _, name = field.partition(".")
    record = replace(getattr(Behaviour(), part), **{name: off})
    framework = a_framework(behaviour=Behaviour(**{part: record}))

    assert attrgetter(field)(equipped_with(framework, Settings()).behaviour) == off
    assert attrgetter(field)(equipped_with(framework, Settings(**settings)).behaviour) == on


def test_settings_of_the_framework_hold_where_none_are_given():
    """None is as its recipes have it, an empty record is not."""
    framework = a_framework(settings=Settings(launches="blocking"))

    assert equipped_with(framework).behaviour.host.launch_blocking
    assert not equipped_with(framework, Settings()).behaviour.host.launch_blocking


@pytest.mark.parametrize(("layers", "share"), [(1, 0.5), (2, 1.0), (9, 1.0)])
def test_offloaded_layers_are_a_share_of_the_model(layers, share):
    """One of two layers is half of them; nine are all."""
    device = equipped_with(a_framework(), Settings(offloaded_layers=layers), model=a_model())

    assert device.behaviour.memory.offloaded_fraction == share


def loss_bytes(device) -> tuple[float, float, float]:
    """What the loss reads and writes per logit, forward and backward, and what it keeps."""
    return (
        device.behaviour.kernels.loss_forward_bytes,
        device.behaviour.kernels.loss_backward_bytes,
        device.behaviour.memory.logit_bytes,
    )


@in_one_case(
    ("recipe", "loss", "expected"),
    [
        ("megatron-lm-0.17", None, (6, 4, 2)),
        ("megatron-lm-0.17", "fused", (6, 4, 2)),
        ("megatron-lm-0.17", "unfused", (38, 14, 6)),
        ("megatron-lm-2022", None, (38, 14, 10)),
        ("megatron-lm-2022", "unfused", (38, 14, 10)),
        ("megatron-lm-2022", "fused", (6, 4, 2)),
        ("torchtitan-0.1", "unfused", (18, 26, 4)),
        ("torchtitan-2024", "unfused", (18, 26, 12)),
    ],
)
def test_the_loss_is_the_recipes_or_another_one(recipe, loss, expected):
    """
    Transformer Engine's writes the gradient over 16-bit logits: two reads and a write of 2 bytes.

    Megatron-LM's makes an FP32 copy beside them, 2 + 4: cast 2 + 4, maximum 4, difference, exponential and quotient
    4 + 4 each, sum 4. A recipe that is not the fused one keeps its own, such as that of 2022 with one more FP32 tensor.
    """
    assert loss_bytes(equipped_with(catalog.framework(recipe), Settings(loss=loss))) == expected


def test_a_framework_with_another_loss_of_its_own_keeps_it():
    """Told the same as it does anyway, nothing changes."""
    own = a_framework(behaviour=Behaviour(kernels=Kernels(loss_forward_bytes=8.0), memory=MemoryModel(logit_bytes=2.0)))

    assert loss_bytes(equipped_with(own, Settings(loss="fused"))) == loss_bytes(equipped_with(own)) == (8, 14, 2)


def test_parts_are_timed_one_by_one():
    """No time of a step beside them, collectives that are waited for, the loss on 16-bit logits, dropout on."""
    device = equipped_with(a_framework(), Settings(composition="parts"))

    assert (device.constants.step_seconds, device.behaviour.host.blocking_collectives) == (0, True)
    assert (device.behaviour.kernels.loss_forward_bytes, device.behaviour.kernels.loss_backward_bytes) == (
        2 + 4 + 4 + 4 + 2,
        4,
    )
    assert (device.behaviour.memory.attention_score_bytes, device.behaviour.memory.dropout_mask_bytes) == (5, 1)


@in_one_case(("given", "trained"), [(None, 1), (0, 0), (1, 1), (3, 3)])
def test_layers_of_multi_token_prediction(given, trained):
    """As many as are trained, each like the model's own."""
    model = a_latent_model(mtp_layers=1)

    found = limit_mtp_layers(model, Settings(mtp_layers=given))

    assert found.mtp_layers == model.mtp_layers * trained
    assert found.layers == model.layers


def test_layers_of_multi_token_prediction_are_like_the_last_where_a_model_has_none():
    """Two more of a model without."""
    model = a_model()

    assert limit_mtp_layers(model, Settings(mtp_layers=2)).mtp_layers == (model.layers[-1],) * 2


# --- bytes -------------------------------------------------------------------------------------------------


def bytes_of(precision: str, **settings: Any) -> dict[str, float]:
    """Bytes per parameter of a recipe with settings."""
    known = storage_precision(catalog.precision(precision), Settings(**settings))
    names = ("weight_bytes", "copy_bytes", "gradient_bytes", "optimizer_bytes", "parameter_gather_bytes")
    return {name.removesuffix("_bytes"): getattr(known, name) for name in names}


@in_one_case(("dtype", "nbytes"), [("fp32", 4), ("bf16", 2), ("fp16", 2), ("bf16+fp32", 6), (None, 4)])
def test_gradients_take_what_they_are_accumulated_in(dtype, nbytes):
    """DeepSpeed's BF16 optimizer has both; the recipe of the catalog has Megatron-LM's 4."""
    assert bytes_of("bf16", gradient_dtype=dtype)["gradient"] == nbytes


def test_moments_may_be_narrower():
    """A master of 4 bytes and two moments of 2 instead of 4."""
    assert bytes_of("bf16", moments_dtype="bf16")["optimizer"] == 4 + 2 * 2
    assert bytes_of("bf16", moments_dtype="fp32")["optimizer"] == 4 + 2 * 4


def test_weights_without_an_8_bit_copy_stay():
    """Once a recipe of the job's own in FP8, which kept no copies of weights, ended in a traceback."""
    own = replace(catalog.precision("fp8"), copy_bytes=0.0, transposed_bytes=0.0)

    assert storage_precision(own, Settings(fp8_param_gather=True)) == own


def test_weights_in_fp32_are_their_own_masters():
    """FSDP: 4 bytes of weight, two moments of 4, cast to 2 bytes when they are gathered; no copies."""
    assert bytes_of("bf16", weight_dtype="fp32") == {
        "weight": 4,
        "copy": 0,
        "gradient": 4,
        "optimizer": 8,
        "parameter_gather": 2,
    }


def test_fp8_weights_are_gathered_in_8_bits():
    """A row-wise copy of a byte is the weight, the transposed one is kept beside it; a byte is gathered."""
    found = bytes_of("fp8", fp8_param_gather=True)

    assert (found["weight"], found["copy"], found["parameter_gather"]) == (1, 1, 1)
    assert bytes_of("fp8", fp8_param_gather=False) == bytes_of("fp8")


def test_mxfp8_weights_are_gathered_in_16_bits():
    """Both copies with a byte of scale per 32 elements are the weight; they are cast from the 16 bits that come."""
    found = bytes_of("mxfp8", fp8_param_gather=True)

    assert (found["weight"], found["copy"], found["parameter_gather"]) == (2 * (1 + 1 / 32), 0, 2)


def test_16_bits_are_gathered_as_they_are():
    """There is nothing to narrow in BF16, and NVFP4 keeps its weights."""
    for name in ("bf16", "nvfp4"):
        assert bytes_of(name, fp8_param_gather=True) == bytes_of(name)


def test_settings_are_laid_over_the_frameworks_own():
    """What is said holds, the rest is as it was."""
    usual = Settings(gradient_dtype="bf16", fp8_param_gather=True)

    assert Settings(gradient_dtype="fp32").fill_from(usual) == Settings(gradient_dtype="fp32", fp8_param_gather=True)
    assert Settings(fp8_param_gather=False).fill_from(usual).fp8_param_gather is False


# --- the catalog's releases --------------------------------------------------------------------------------


def test_a_release_of_an_entry_is_that_entry():
    """NeMo 25.02 is the entry of 25.07 under its own name, with the factors of the kernels that they share."""
    entry, release = catalog.framework("nemo-25.07"), catalog.framework("nemo-25.02")

    assert release.name == "nemo-25.02"
    assert replace(release, name=entry.name) == entry
    assert release.factors == catalog.framework("megatron-core-0.14").factors


def test_an_entry_is_what_it_extends_but_for_what_it_says():
    """Megatron-LM's FP32 gradients on Megatron-Core's kernels; nested mappings merge, recipes by precision do not."""
    core, plain = catalog.framework("megatron-core-0.14"), catalog.framework("megatron-lm-0.14")

    assert (core.settings.gradient_dtype, plain.settings.gradient_dtype) == ("bf16", "fp32")
    assert replace(plain.behaviour.memory, context_output=False) == core.behaviour.memory
    assert plain.strategy["sequence_parallel"] is True
    assert (bool(core.strategy_by_precision), bool(plain.strategy_by_precision)) == (True, False)


def test_factors_are_nobodys_but_their_own():
    """What was fitted to one entry's runs says nothing of those that extend it, unless they have its kernels."""
    assert catalog.framework("megatron-core-0.14").factors
    assert not catalog.framework("megatron-lm-2022").factors.keys() & {"matmul_efficiency@blackwell"}
    assert catalog.framework("megatron-lm-0.12").factors == catalog.framework("megatron-core-0.14").factors


@in_one_case(
    ("device", "framework"),
    [
        ("v100-32gb-sxm", "megatron-lm-2022"),
        ("a100-80gb-sxm", NEWEST),
        ("h100-80gb-sxm", NEWEST),
        ("gb300", NEWEST),
        ("mofa-a", "mofa"),
        ("mofa-b", "mofa"),
        ("mofa-b-deepseek", "mofa"),
    ],
)
def test_a_job_without_framework_gets_the_newest_that_runs(device, framework):
    """Transformer Engine needs Ampere: a V100 gets the last Megatron-LM without it; MoFa's devices know theirs."""
    assert catalog.default_framework(catalog.device(device)) == framework


def test_a_device_of_no_architecture_gets_the_newest():
    """A device that a user describes says nothing of kernels that it cannot run."""
    assert catalog.default_framework(replace(H100, architecture=None)) == NEWEST


WITHOUT_SOFTWARE = ("tpu", "trainium2", "trainium3")
"""Architectures whose own software no entry describes: another stands for it, and every answer says so."""


@in_one_case("name", catalog.devices())
def test_every_device_runs_what_it_gets(name):
    """Its default is among the releases, and known to run on its architecture."""
    device = catalog.device(name)
    framework = catalog.framework(catalog.default_framework(device))

    assert catalog.runs_on(framework, device.architecture) != (device.architecture in WITHOUT_SOFTWARE)
    assert catalog.equip_device(name) == apply_framework(device, framework)


@in_one_case(
    ("given", "sentence"),
    [
        (
            "megatron-brigde-26.04",
            r"cluster.framework: 'megatron-brigde-26.04' is not in the catalog. Did you mean 'mega",
        ),
        (
            {"base": "nem0-25.07"},
            r"cluster.framework.base: 'nem0-25.07' is not in the catalog. Did you mean 'nemo-25.07'",
        ),
        ({"base": 3}, r"cluster.framework.base: expected a name, got 3"),
        (3, r"cluster.framework: expected a name or a mapping, got 3"),
        ({"base": "mofa", "behavior": {}}, r"cluster.framework.behavior: no such entry. Did you mean 'behaviour'"),
        ({"base": "mofa", "behaviour": {"fused": 1}}, r"cluster.framework.behaviour.fused: no such entry"),
    ],
)
def test_unknown_frameworks_are_refused(given, sentence):
    """With the entry of the job and what may have been meant."""
    with pytest.raises(SpecError, match=sentence):
        framework_of(given, "cluster.framework")


def test_a_framework_may_start_from_another():
    """Only what differs is written; nested mappings merge, the rest stays as the release has it."""
    known = catalog.framework("torchtitan-0.1")

    changed = framework_of(
        {"base": "torchtitan-0.1", "behaviour": {"memory": {"unfused_kernels": True}}}, "cluster.framework"
    )

    assert changed.name == "torchtitan-0.1, changed"
    assert changed.behaviour == replace(known.behaviour, memory=replace(known.behaviour.memory, unfused_kernels=True))
    assert replace(changed, name=known.name, behaviour=known.behaviour, sources=known.sources) == known


@in_one_case("name", catalog.frameworks())
def test_every_framework_says_what_it_is_in_few_numbers(name):
    """Six fitted numbers at most, each a factor on a constant that there is; it runs on every architecture it names."""
    framework = catalog.framework(name)
    known = {field.name for field in fields(Constants)}

    assert framework.description
    assert framework.since
    assert {factor.partition("@")[0] for factor in framework.factors} <= known
    assert len(framework.factors) <= MOST_NUMBERS
    for device in map(catalog.device, catalog.devices()):
        if device.architecture and catalog.runs_on(framework, device.architecture):
            assert apply_framework(device, framework).constants.attention_efficiency <= 1


@in_one_case("name", catalog.frameworks())
def test_scores_that_are_no_kernel_stay_in_memory(name):
    """Korthikanti et al.: 5 a s^2 b bytes of scores per layer with dropout, 2 without."""
    device = equipped_with(catalog.framework(name))

    assert device.behaviour.kernels.fused_attention or device.behaviour.memory.attention_score_bytes in (2, 5)


@in_one_case("name", catalog.frameworks())
def test_features_are_values_of_decisions(name):
    """Whatever an entry lists is a value that a strategy can have, ``modules`` any set of them, ``many`` above 1."""
    for decision, values in catalog.framework(name).features.items():
        assert values
        if decision in DEGREES:
            assert set(values) <= {"1", "many"}
        elif decision in ENUMS:
            assert all(value == "modules" or ENUMS[decision].named(value) is not None for value in values)
        else:
            assert decision in FLAGS
            assert set(values) <= {"false", "true"}


@in_one_case("name", ["torchtitan-0.1", "automodel-26.02", "llm-foundry-0.6", "internevo-0.2"])
def test_vocabularies_are_padded_by_megatron_alone(name):
    """``make_vocab_size_divisible_by`` is Megatron-LM's; models of other frameworks are as their configs have them."""
    assert catalog.framework(name).behaviour.kernels.vocabulary_multiple == 1
    assert catalog.framework("megatron-core-0.14").behaviour.kernels.vocabulary_multiple == 128


# --- features ----------------------------------------------------------------------------------------------


def test_what_a_framework_does_not_list_it_has():
    """Schedules are listed, recomputation is not; a set of modules is one value."""
    framework = a_framework(features={"schedule": ("1f1b",), "cuda_graphs": ("none", "modules")})

    assert not lacks(framework, "schedule", Schedule.ONE_F_ONE_B)
    assert lacks(framework, "schedule", Schedule.ZB_V)
    assert not lacks(framework, "recompute", Recompute.FULL)
    assert lacks(framework, "cuda_graphs", CudaGraphs.FULL_ITERATION)
    assert not lacks(framework, "cuda_graphs", CudaGraphs.of("attn"))
    assert feature_of("cuda_graphs", CudaGraphs.of("attn", "mlp")) == "modules"


def test_features_of_arrays():
    """Each value of an array by itself; no framework lacks nothing."""
    framework = a_framework(features={"schedule": ("1f1b", "gpipe")})
    values = [[Schedule.ONE_F_ONE_B, Schedule.ZB_V], [Schedule.GPIPE, Schedule.ZB_V]]

    assert has_values(framework, "schedule", values).tolist() == [[True, False], [True, False]]
    assert has_values(None, "schedule", values).all()
    assert has_values(framework, "tp", [1, 2]).all()


def test_degrees_above_one_are_one_feature():
    """An entry says whether it has context parallelism, not to which degree."""
    without, having = (a_framework(features={"cp": values}) for values in (("1",), ("1", "many")))

    assert has_values(without, "cp", [1, 2, 8]).tolist() == [True, False, False]
    assert has_values(having, "cp", [1, 2, 8]).all()


def test_sets_of_modules_may_be_listed_one_by_one():
    """Megatron-LM of 2022 recomputes the core of attention alone, not any set of modules."""
    framework = a_framework(features={"recompute": ("none", "core_attention")})
    values = [Recompute.NONE, Recompute.of("core_attention"), Recompute.of("core_attention", "norms")]

    assert has_values(framework, "recompute", values).tolist() == [True, True, False]


def test_who_has_a_feature():
    """HybridEP came with Megatron-Bridge; the sail-sg forks alone slice vocabularies."""
    hybrid = catalog.releases_with_feature("token_dispatcher", "hybridep")

    assert "megatron-bridge-26.04" in hybrid
    assert not {"torchtitan-0.1", "nemo-25.07", "megatron-lm-2022"} & set(hybrid)
    assert set(catalog.releases_with_feature("vocabulary", "vocab_1")) >= {"vocabulary-parallelism-2024", "v-half-2024"}


# --- stages ------------------------------------------------------------------------------------------------


@in_one_case(
    ("stages", "layers", "expected"),
    [
        ("even", 61, None),
        ("filled", 61, (8, 8, 8, 8, 8, 8, 8, 5)),
        ("filled", 64, None),
        ("filled", 62, None),
        ("modules", 61, (7, 8, 8, 8, 8, 8, 8, 6)),
    ],
)
def test_layers_are_dealt_as_frameworks_deal_them(stages, layers, expected):
    """
    Over eight stages: Megatron-Bridge fills one after the other where 61 and 61 + 2 are no multiples of 8.

    DeepSpeed counts 1 + 61 + 3 modules, of which eight stages take 8 each and the last takes 9: less 1 in front and 3
    behind.
    """
    assert framework_stages(a_framework(stages=stages), layers, 8) == expected


def test_weights_in_bf16_have_no_masters():
    """2 bytes of weight, two moments of 2: torch.optim's Adam on 16-bit weights."""
    found = bytes_of("bf16", weight_dtype="bf16")

    assert (found["weight"], found["copy"], found["optimizer"]) == (2, 0, 4)


def test_expandable_segments_leave_fewer_fragments():
    """The catalog's share of the simulation in place of the release's own; eager kernels do not compile the loss."""
    recipe = catalog.framework("megatron-bridge-26.04")
    usual, told, same = (
        equipped_with(recipe, Settings(allocator=one)).behaviour.memory for one in (None, "expandable", "segments")
    )
    eager = equipped_with(catalog.framework("torchtitan-0.1"), Settings(kernels="eager")).behaviour.memory

    assert told.fragmentation == allocator("expandable").at_the_limit
    assert (told.allocator, same) == ("expandable", usual)
    assert told.fragmentation < usual.fragmentation
    assert eager.logit_bytes == 12


def test_software_that_no_entry_resembles_is_costed_as_plain_pytorch():
    """Nothing is known to be missing in it; the sentence says what to state and to measure."""
    made = framework_of("in-house-trainer-2.1", "cluster.framework")

    assert made.name == "nanotron-0.4"
    assert not made.features
    assert catalog.unknown_release("in-house-trainer-2.1") == "in-house-trainer-2.1"
    assert "planner calibrate" in stands_in("in-house-trainer-2.1", "nanotron-0.4")
    assert stands_in("nemo-25.10", "nemo-25.09").endswith("its nearest release")
