"""Layers in 16 bits beside narrower ones, and attention in 8 bits."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from costmodel.errors import SpecError
from costmodel.facts.framework import Settings
from costmodel.lowering import layer_communications, layer_operators
from costmodel.lowering.framework import keep_wide_layers
from costmodel.lowering.shape import layer_shape
from costmodel.timing.source import operator_times
from planner import estimate, load
from tests.documents import ROOT

JOB = ROOT / "benchmarks/jobs/deepseek-v3-2048xh100.yaml"
DEVICES = {"cluster.device": "gb300", "cluster.num_devices": 64, "training.global_batch_size": 2048}
STRATEGY = dict.fromkeys(("tp", "cp", "pp", "vpp"), 1) | {"ep": 64, "sharding": "optimizer"}
DEGREES = {"tp": 2, "cp": 1, "ep": 8, "etp": 1, "mbs": 1, "sequence_parallel": 1}


@cache
def a_problem(precision: str, **settings: bool | int | str):
    """DeepSeek-V3 on 64 GB300."""
    entries = {**DEVICES, "training.precision": precision}
    own = {f"settings.{name}": str(value).lower() for name, value in settings.items()}
    return load(JOB, [f"{name}={value}" for name, value in {**entries, **own}.items()])


@cache
def facts_with_attention(*, is_narrow: bool):
    """Llama-3-405B on 2,048 H100 in FP8 with current scaling."""
    entries = ["training.precision=fp8_current", f"settings.fp8_attention={str(is_narrow).lower()}"]
    return load(ROOT / "benchmarks/jobs/llama3-405b-2048xh100.yaml", entries).facts


@pytest.mark.parametrize("precision", ["fp8_current", "fp8_blockwise", "mxfp8", "nvfp4"])
def test_a_wide_layer_is_that_of_the_recipe_in_16_bits(precision):
    """Operators, collectives and seconds of each kind of layer are those of the same job with bf16."""
    narrow, plain = a_problem(precision).facts, a_problem("bf16").facts
    times = {
        one.workload.precision.name: operator_times(one.cluster.device, one.workload.precision.compute)
        for one in (narrow, plain)
    }
    shapes = [layer_shape(one.model, one.cluster, one.workload, **DEGREES) for one in (narrow, plain)]

    for layer in plain.model.kinds:
        ours, theirs = layer_operators(replace(layer, is_wide=True), shapes[0]), layer_operators(layer, shapes[1])

        assert ours == theirs
        assert layer_communications(replace(layer, is_wide=True), shapes[0]) == layer_communications(layer, shapes[1])
        for one in ours:
            assert times[precision].forward_seconds(one) == pytest.approx(times["bf16"].forward_seconds(one))
            assert times[precision].backward_seconds(one) == pytest.approx(times["bf16"].backward_seconds(one))


def test_only_the_ends_are_wide():
    """The first and the last two of 61 layers; the layer of multi-token prediction has no number of its own."""
    facts = a_problem("mxfp8", first_layers_bf16=1, last_layers_bf16=2, mtp_layers=1).facts

    assert [index for index, layer in enumerate(facts.model.layers) if layer.is_wide] == [0, 59, 60]
    assert not facts.model.mtp_layers[0].is_wide


def test_a_recipe_in_16_bits_has_nothing_to_widen():
    """All of its layers are alike."""
    facts = a_problem("bf16").facts

    assert keep_wide_layers(facts.model, Settings(first_layers_bf16=3), facts.workload.precision) is facts.model


@pytest.mark.slow
def test_wide_layers_hold_weights_of_two_bytes_and_no_copy():
    """
    Weights of MXFP8 that are gathered narrow are two copies of 1 + 1/32 bytes, 2.0625 in all, against 2.

    Of the last layer a rank has the whole attention, a shared expert, 4 of 256 experts, the router and two norms.
    """
    attention = 7168 * 1536 + 1536 + 1536 * 128 * 192 + 7168 * 576 + 512 + 512 * 128 * 256 + 128 * 128 * 7168
    layer = attention + 5 * 3 * 7168 * 2048 + 256 * 7168 + 2 * 7168
    narrow, wide = (
        estimate(a_problem("mxfp8", fp8_param_gather=True, last_layers_bf16=number), STRATEGY) for number in (0, 1)
    )

    held = [one.plan.estimate.ranks[0].bytes_by_part["weights"] for one in (narrow, wide)]

    assert held[0] - held[1] == pytest.approx(layer * 0.0625, rel=1e-6)


def test_more_layers_than_the_model_has_are_refused():
    """DeepSeek-V3 has 61."""
    with pytest.raises(SpecError, match=r"settings\.last_layers_bf16: must be at most the model's 61 layers, got 62"):
        a_problem("mxfp8", last_layers_bf16=62)
    with pytest.raises(SpecError, match=r"is 21, but with .* = 41 these are 62 of the model's 61") as told:
        a_problem("mxfp8", first_layers_bf16=41, last_layers_bf16=21)
    assert (told.value.where, told.value.hint) == ("settings.last_layers_bf16", "At most 20 are left.")
    assert a_problem("mxfp8", first_layers_bf16=41, last_layers_bf16=20)


def test_attention_of_several_kernels_has_no_8_bits():
    """Its scores are in device memory, in 16 bits."""
    with pytest.raises(SpecError, match=r"settings\.fp8_attention: is true, but settings\.attention is 'unfused'"):
        a_problem("mxfp8", fp8_attention=True, attention="unfused")


def test_attention_in_8_bits_saves_matmuls_and_not_exponentials():
    """
    At the same efficiency matmuls take half the time and exponentials all of theirs.

    On H100 exponentials take as long as 64 units of width (the catalog's hopper): of 128 + 64 units 64 + 64 remain.
    """
    seconds = []
    for one in (facts_with_attention(is_narrow=state) for state in (False, True)):
        shape = layer_shape(one.model, one.cluster, one.workload, **{**DEGREES, "ep": 1})
        (core,) = (operator for operator in layer_operators(one.model.kinds[0], shape) if operator.kind == "attention")
        seconds.append(operator_times(one.cluster.device, "fp8").forward_seconds(replace(core, kernels=0)))

    assert seconds[1] / seconds[0] == pytest.approx((64 + 64) / (128 + 64), rel=0.01)


def test_attention_in_8_bits_keeps_half_of_its_tensors():
    """Queries, keys, values and the output take a byte instead of two each; casts come around it."""
    saved, casts = [], []
    for one in (facts_with_attention(is_narrow=state) for state in (False, True)):
        shape = layer_shape(one.model, one.cluster, one.workload, **{**DEGREES, "ep": 1, "sequence_parallel": 0})
        operators = layer_operators(one.model.kinds[0], shape)
        saved.append(sum(operator.saved_bytes for operator in operators))
        casts.append(sum(operator.name == "attention_casts" for operator in operators))

    # 8,192 tokens of 64 query heads, twice 4 key heads and 64 output heads of 128 channels on each of 2 ranks
    assert saved[0] - saved[1] == 8192 * 128 * (64 + 2 * 4 + 64)
    assert casts == [0, 1]
