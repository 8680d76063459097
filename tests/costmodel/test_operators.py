"""Who times operators: roofline, modified roofline, measured rates, behind one protocol."""

from __future__ import annotations

import csv
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from costmodel import catalog
from costmodel.errors import SpecError
from costmodel.facts.calibration import MeasuredRate
from costmodel.strategy import CudaGraphs
from costmodel.timing.roofline import GRAPHED_SECONDS, STREAMING_SECONDS
from costmodel.timing.source import operator_times, slowest_of
from costmodel.timing.work import AttentionSize, Operator
from tests.builders_cluster import a_device, achieved
from tests.cases import in_one_case

GB = 10**9
MATMULS = Path(__file__).parents[1] / "data" / "matmuls.csv"
"""Of a millisecond and more: m, n, k, whether a weight's gradient is added to earlier ones, and the rate."""

RATES = (
    MeasuredRate(kinds=("matmul", "attention"), flops_per_second=200e12, rows=4096, shards=8),
    MeasuredRate(kinds=("matmul", "attention"), flops_per_second=100e12, rows=2048, shards=8),
    MeasuredRate(kinds=("matmul:head",), flops_per_second=400e12),
    MeasuredRate(kinds=("grouped_matmul",), flops_per_second=50e12, groups=4),
)
KINDS = ("matmul", "grouped_matmul", "attention", "elementwise", "scores", "scan")


def a_source(times="modified_roofline", compute="bf16", num_devices=1, cuda_graphs=CudaGraphs.NONE, **changes):
    """Peaks of 1 PFLOP/s in BF16, 2 in FP8, 4 TB/s; half of each is achieved."""
    facts = {
        "times": times,
        "matmul_efficiency": {"bf16": 0.5, "fp8": 0.5},
        "attention_efficiency": 0.5,
        "memory_efficiency": 0.5,
        "measured_rates": RATES,
    }
    device = a_device(
        peak_flops={"bf16": 1e15, "fp8": 2e15}, memory_bandwidth=4000 * GB, **achieved(**(facts | changes))
    )
    return operator_times(device, compute, num_devices=num_devices, cuda_graphs=cuda_graphs)


def an_attention_size(keys=4096, head_dim=128) -> AttentionSize:
    """One sequence of 4,096 tokens and 8 heads."""
    return AttentionSize(
        sequences=1,
        queries=4096,
        keys=keys,
        heads=8,
        kv_heads=8,
        qk_head_dim=head_dim,
        v_head_dim=head_dim,
        causal=True,
    )


def an_operator(kind="matmul", **changes) -> Operator:
    """1 TFLOP forward, 2 TFLOPs backward, for 4,096 tokens on one of 8 shards."""
    facts = {"name": "up", "flops": 1e12, "backward_flops": 2e12, "rows": 4096, "shards": 8}
    attention = {name: changes.pop(name) for name in ("keys", "head_dim") if name in changes}
    if attention:
        facts["size"] = an_attention_size(**attention)
    return Operator(kind=kind, **(facts | changes))


def seconds(source, operator) -> tuple[float, float]:
    """Both passes."""
    return source.forward_seconds(operator), source.backward_seconds(operator)


# --- roofline --------------------------------------------------------------------------------------------------


def test_theoretical_roofline_takes_the_slower_of_compute_and_memory():
    """Equation (19): 1 TFLOP at 1 PFLOP/s is 1 ms; 8 GB at 4 TB/s are 2 ms."""
    source = a_source("roofline")

    assert seconds(source, an_operator()) == pytest.approx((1e-3, 2e-3))
    assert seconds(source, an_operator(bytes=8e9, backward_bytes=4e9)) == pytest.approx((2e-3, 2e-3))


def test_modified_roofline_achieves_a_part_of_the_peaks():
    """Half of both peaks doubles both times."""
    operator = an_operator(bytes=8e9, backward_bytes=4e9)

    assert seconds(a_source(), an_operator()) == pytest.approx((2e-3, 4e-3))
    assert seconds(a_source(), operator) == pytest.approx((4e-3, 4e-3))


def test_elementwise_only_moves_bytes():
    """2 GB at half of 4 TB/s; FLOPs of element-wise operators never bind."""
    assert seconds(a_source(), an_operator("elementwise", bytes=2e9)) == pytest.approx((1e-3, 0))


def test_scores_have_their_own_share_of_the_memory_rate():
    """2 GB of softmax and dropout at a quarter of 4 TB/s, or at the half of every other kernel."""
    softmax = an_operator("scores", bytes=2e9)

    assert seconds(a_source(score_efficiency=0.25), softmax) == pytest.approx((2e-3, 0))
    assert seconds(a_source(), softmax) == pytest.approx((1e-3, 0))
    assert seconds(a_source("roofline"), softmax) == pytest.approx((0.5e-3, 0))


def test_scans_have_their_own_share_of_the_memory_rate():
    """2 GB at a quarter of 4 TB/s, or at the half of every other kernel; 1 TFLOP at attention's 0.5 PFLOP/s binds."""
    bytes_bind = an_operator("scan", flops=1e11, backward_flops=0, bytes=2e9)
    flops_bind = an_operator("scan", flops=1e12, backward_flops=0, bytes=1e9)

    assert seconds(a_source(scan_efficiency=0.25), bytes_bind) == pytest.approx((2e-3, 0))
    assert seconds(a_source(), bytes_bind) == pytest.approx((1e-3, 0))
    assert seconds(a_source(scan_efficiency=0.25), flops_bind) == pytest.approx((2e-3, 0))


def test_results_of_matmuls_are_written_behind_them():
    """Half of 2 and 6 GB at half of 4 TB/s show; traffic of 8 GB hides them; of 4 groups a quarter is plain."""
    written = {"written_bytes": 2e9, "backward_written_bytes": 6e9}
    source = a_source(epilogue_store_fraction=0.5)

    assert seconds(source, an_operator(**written)) == pytest.approx((2e-3 + 0.5e-3, 4e-3 + 1.5e-3))
    assert seconds(source, an_operator(bytes=8e9, **written)) == pytest.approx((4e-3, 4e-3 + 1.5e-3))
    assert seconds(source, an_operator("attention", **written)) == seconds(source, an_operator("attention"))
    assert seconds(source, an_operator("grouped_matmul", groups=4, **written)) == pytest.approx(
        (2e-3 + 0.5e-3 / 4, 4e-3 + 1.5e-3 / 4)
    )
    assert seconds(a_source("roofline", epilogue_store_fraction=0.5), an_operator(**written)) == pytest.approx(
        (1e-3, 2e-3)
    )


@pytest.mark.parametrize(("device", "before", "after"), [("a100-80gb-pcie", 0.027, 0.015), ("b200", 0.041, 0.035)])
def test_measured_matmuls_show_half_of_their_writes(device: str, before: float, after: float):
    """
    Matmuls of a millisecond and more, by one rate alone and by one rate and a share of their writes.

    Results have 16 bits; gradients of weights are added to 32-bit ones, which reads and writes 8 bytes. The share is
    the prior of ``epilogue_store_fraction``.

    References
    ----------
    SimuMax 1.2, ``configs/system/a100_pcie.json`` and ``b200_bf16_ceperm.json``: efficiencies of single matmuls.
    """
    with MATMULS.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["device"] == device]
    m, n, k, adds, rate = (
        np.array([float(row[name]) for row in rows]) for name in ("m", "n", "k", "accumulates", "tflops_per_second")
    )
    taken = 2 * m * n * k / rate / 1e12
    facts = catalog.equip_device(device)
    laws = np.stack([2 * m * n * k / facts.peak_flops["bf16"], (2 + 6 * adds) * m * n / facts.memory_bandwidth])

    def fitted(columns: slice) -> tuple[np.ndarray, float]:
        relative = (laws[columns] / taken).T
        found = np.linalg.lstsq(relative, np.ones(len(rows)), rcond=None)[0]
        return found, float(np.abs(relative @ found - 1).mean())

    (_, share), with_writes = fitted(slice(2))

    assert len(rows) > 100
    assert share == pytest.approx(0.5, abs=0.05)
    assert fitted(slice(1))[1] == pytest.approx(before, abs=0.002)
    assert with_writes < after


def test_every_kernel_adds_a_gap_and_the_backward_pass_has_twice_as_many():
    """3 kernels of 10 us forward, 6 backward."""
    operator = an_operator(kernels=3)

    assert seconds(a_source(kernel_gap_seconds=1e-5), operator) == pytest.approx((2e-3 + 3e-5, 4e-3 + 6e-5))


@in_one_case(
    ("cuda_graphs", "kind", "module", "gap"),
    [
        ("none", "copy", "attn", 1e-5),
        ("attn", "copy", "attn", GRAPHED_SECONDS),
        ("mlp+mamba", "copy", "attn", 1e-5),
        ("attn+mlp", "elementwise", "", 1e-5),
        ("moe", "elementwise", "moe_router", GRAPHED_SECONDS),
        ("moe_router", "elementwise", "moe", 1e-5),
        ("full_iteration", "elementwise", "", GRAPHED_SECONDS),
        ("full_iteration", "matmul", "attn", 1e-5),
    ],
)
def test_graphs_take_the_gaps_of_kernels_that_move_bytes(cuda_graphs, kind, module, gap):
    """Of the modules that they hold; a matmul's tail is its own."""
    operator = Operator(name="norms", kind=kind, kernels=3, graph_module=module)
    source = a_source(kernel_gap_seconds=1e-5, cuda_graphs=CudaGraphs.named(cuda_graphs))

    assert seconds(source, operator) == pytest.approx((3 * gap, 6 * gap))


def test_graphs_of_many_strategies_are_timed_at_once():
    """Three kernels without graphs, with those of attention, with one of everything."""
    operator = Operator(name="norms", kind="copy", kernels=3, graph_module="attn")
    graphs = np.array([CudaGraphs.NONE, CudaGraphs.of("attn"), CudaGraphs.FULL_ITERATION])

    forward, _ = seconds(a_source(kernel_gap_seconds=1e-5, cuda_graphs=graphs), operator)

    assert forward == pytest.approx([3e-5, 3 * GRAPHED_SECONDS, 3 * GRAPHED_SECONDS])


@pytest.mark.parametrize(
    ("kind", "is_routed", "gap"),
    [("elementwise", False, STREAMING_SECONDS), ("elementwise", True, 4e-5), ("matmul", False, 4e-5)],
)
def test_kernels_that_only_move_bytes_have_no_matmul_s_tail(kind, is_routed, gap):
    """A gap of 40 us is a matmul's; routed tokens pass several kernels more."""
    operator = Operator(name="norms", kind=kind, kernels=3, is_routed=is_routed)

    assert seconds(a_source(kernel_gap_seconds=4e-5), operator) == pytest.approx((3 * gap, 6 * gap))


def test_graphs_add_nothing_where_there_are_no_gaps():
    """A profile of the paper has none."""
    assert seconds(a_source(cuda_graphs=CudaGraphs.FULL_ITERATION), Operator(name="norms", kind="copy")) == (0.0, 0.0)


def test_grouped_matmuls_are_slower_by_their_own_factor():
    """A quarter of four groups at 0.5 PFLOP/s, as plain matmuls, three quarters at half of it: 0.5 + 3 ms."""
    source = a_source(grouped_matmul_efficiency=0.5)

    assert seconds(source, an_operator("grouped_matmul", groups=4)) == pytest.approx((3.5e-3, 7e-3))


@pytest.mark.parametrize("compute", ["bf16", "fp8"])
def test_a_grouped_matmul_of_one_expert_is_a_plain_one(compute):
    """A single group waits for no other, however slow many are, with few rows and in 8 bits."""
    slow = {"grouped_matmul_efficiency": 0.5, "grouped_low_precision_efficiency": 0.5, "epilogue_store_fraction": 0.5}
    source = a_source(compute=compute, grouped_half_saturation_rows=256, **slow)
    shape = {"dtype": compute, "written_bytes": 2e9, "backward_written_bytes": 6e9, "rows": 64}

    assert seconds(source, an_operator("grouped_matmul", groups=1, **shape)) == pytest.approx(
        seconds(source, an_operator(**shape))
    )


def test_grouped_matmuls_of_few_rows_are_slow():
    """4,096 rows of 4 experts: a quarter at 0.5 PFLOP/s; the rest at 4/5, 1,024 rows each and half of it at 256."""
    source = a_source(grouped_half_saturation_rows=256)

    assert source.forward_seconds(an_operator("grouped_matmul", groups=4)) == pytest.approx(2e-3 / 4 + 3 / 4 * 2.5e-3)


@in_one_case(("rows", "tflops"), [(128, 327), (256, 523), (512, 705), (1024, 845), (2460, 1022)])
def test_grouped_matmuls_of_a_b200_agree_with_measurements(rows, tflops):
    """
    SimuMax's operator table, forward and both backward matmuls of DeepSeek's experts together: within 5 %.

    The law with 300 rows, 32 experts and 1,090 TFLOP/s fits the table; the catalog's constant comes from whole steps.
    Here the rate of many rows is 0.5 PFLOP/s.
    """
    operator = an_operator("grouped_matmul", groups=32, rows=32 * rows)
    share = 2e-3 / a_source(grouped_half_saturation_rows=300).forward_seconds(operator)

    assert 1090 * share == pytest.approx(tflops, rel=0.05)


def test_attention_reaches_half_of_its_rate_at_the_half_length():
    """At 1,220 tokens s / (s + 1220) is 1/2, at 3,660 it is 3/4; 0.5 PFLOP/s would take 2 ms."""
    operator = an_operator("attention", keys=np.array([1220, 3660]))

    np.testing.assert_allclose(a_source(attention_half_length=1220).forward_seconds(operator), [4e-3, 2e-3 / 0.75])


def test_attention_without_a_length_takes_its_rows():
    """1,220 rows are the half length: 2 ms become 4."""
    operator = an_operator("attention", rows=1220)

    assert a_source(attention_half_length=1220).forward_seconds(operator) == pytest.approx(4e-3)


def test_fp8_recipes_compute_attention_and_head_in_16_bits():
    """FP8 has twice the peak of BF16, and only the layers' matmuls use it."""
    source = a_source(compute="fp8")

    assert source.forward_seconds(an_operator()) == pytest.approx(1e-3)
    assert source.forward_seconds(an_operator("attention")) == pytest.approx(2e-3)
    assert source.forward_seconds(an_operator(name="head", dtype="bf16")) == pytest.approx(2e-3)


@pytest.mark.parametrize("times", ["roofline", "modified_roofline", "measured"])
def test_compute_scaling_divides_time(times):
    """Equation (17): alpha = 2 is a kernel twice as fast."""
    plain, scaled = a_source(times), a_source(times, compute_scaling=2)

    assert plain.forward_seconds(an_operator()) == pytest.approx(2 * scaled.forward_seconds(an_operator()))


def test_device_without_the_dtype_is_refused():
    """The message lists what the device has."""
    with pytest.raises(SpecError, match=r"test-device has no nvfp4 matmuls\. It has: bf16, fp8\."):
        a_source(compute="nvfp4")


def test_profile_without_the_dtype_is_refused():
    """A peak alone is not enough for the modified roofline."""
    with pytest.raises(SpecError, match=r"calibration\.matmul_efficiency: has no entry for fp8 on"):
        a_source(compute="fp8", matmul_efficiency={"bf16": 0.5})


# --- measured rates --------------------------------------------------------------------------------------------


def test_measured_rate_is_found_by_shape():
    """200 TFLOP/s for 4,096 rows, 100 for 2,048: 1 TFLOP takes 5 and 10 ms; nothing is known of 1,024."""
    operator = an_operator(rows=np.array([4096, 2048, 1024]))

    np.testing.assert_allclose(a_source("measured").forward_seconds(operator), [5e-3, 10e-3, np.nan])


def test_measured_rate_of_a_name_goes_before_its_kind():
    """1 TFLOP at the 400 TFLOP/s of ``matmul:head``, not at the 200 of ``matmul``."""
    assert a_source("measured").forward_seconds(an_operator(name="head", dtype="bf16")) == pytest.approx(2.5e-3)


def test_measured_rate_of_local_experts():
    """Any number of rows, 4 groups only."""
    operator = an_operator("grouped_matmul", groups=np.array([4, 8]), rows=7)

    np.testing.assert_allclose(a_source("measured").forward_seconds(operator), [20e-3, np.nan])


def test_elementwise_operators_are_inside_the_measured_rates():
    """Seconds per layer contain them; other kinds without an entry are unknown."""
    source = a_source("measured", measured_rates=RATES[:1])

    assert seconds(source, an_operator("elementwise", bytes=1e9)) == (0, 0)
    assert np.isnan(source.forward_seconds(an_operator("grouped_matmul")))
    assert source.origin(an_operator("elementwise")) == "inside the measured rates of test-device"


@in_one_case(("tp", "mbs", "expected"), [(8, 2, 0.11727), (8, 1, 0.07154), (4, 2, 0.2121), (4, 1, 0.12623)])
def test_mofa_seconds_per_layer(tp, mbs, expected):
    """Constants behind MoFa's Table 6, LLaMA3-405B: h = 16384, 16 groups of 128, g = 53248, s = 8192."""
    tokens, h, h_kv, g = mbs * 8192, 16384, 2048, 53248
    flops = (2 * tokens * h * (h + 2 * h_kv) + 4 * tokens * 8192 * h + 2 * tokens * h * h + 6 * tokens * h * g) / tp
    layer = an_operator(flops=flops, backward_flops=2 * flops, rows=tokens, shards=tp)

    source = operator_times(catalog.equip_device("mofa-b"), "bf16")

    assert sum(seconds(source, layer)) == pytest.approx(expected, rel=1e-6)


@in_one_case(
    ("ep", "pp", "microbatches", "vpp", "expected"),
    [
        (8, 8, 30, 8, 46.80),
        (16, 8, 30, 8, 45.12),
        (64, 8, 30, 8, 43.90),
        (64, 4, 15, 16, 41.18),
        (256, 4, 15, 16, 41.04),
    ],
)
def test_mofa_deepseek_computation(ep, pp, microbatches, vpp, expected):
    """MoFa, Table 8: the last rank's layers and head set the pace, all others and 0.4067 heads a rank fill once."""
    tokens, h = 2 * 4096, 7168
    projections = h * 1536 + 1536 * 128 * 192 + h * 576 + 512 * 128 * 256 + 128 * 128 * h
    dense = 2 * tokens * (projections + 4096 * 128 * 320 + h * 256)
    routed = 2 * tokens * 8 * 3 * h * 2048
    head = 2 * tokens * h * 129280
    source = operator_times(catalog.equip_device("mofa-b-deepseek"), "bf16")
    shape = {"rows": tokens, "shards": 1, "groups": 256 // ep}

    layer = sum(seconds(source, an_operator(flops=dense, backward_flops=2 * dense, **shape)))
    layer += sum(seconds(source, an_operator("grouped_matmul", flops=routed, backward_flops=2 * routed, **shape)))
    last = sum(seconds(source, an_operator(name="head", flops=head, backward_flops=2 * head, **shape)))

    held = 64 // pp - 1
    total = microbatches * (held * layer + last) + (62 - held) * layer / vpp + 0.40667 * pp * last
    assert total == pytest.approx(expected, abs=0.02)


# --- the protocol, every source ----------------------------------------------------------------------------------


@in_one_case("kind", KINDS)
@in_one_case("times", ["roofline", "modified_roofline", "measured"])
def test_arrays_equal_scalars(times, kind):
    """One law for one strategy and for a table of them."""
    source = a_source(times, attention_half_length=1000)
    varied = ("flops", "backward_flops", "bytes", "backward_bytes", "rows", "shards", "groups")
    values = np.array([4096.0, 2048.0, 8.0, 4.0, 0.0])
    table = an_operator(kind, **dict.fromkeys(varied, values) | {"rows": values[::-1] + 4096, "shards": 8})

    rows = [one_of(table, varied, index) for index in range(len(values))]

    np.testing.assert_allclose(
        np.broadcast_to(source.forward_seconds(table), 5), [source.forward_seconds(o) for o in rows]
    )
    np.testing.assert_allclose(
        np.broadcast_to(source.backward_seconds(table), 5), [source.backward_seconds(o) for o in rows]
    )


def one_of(table: Operator, varied: tuple[str, ...], index: int) -> Operator:
    """One strategy out of a table of them."""
    return replace(table, **{name: np.broadcast_to(getattr(table, name), 5)[index] for name in varied})


@pytest.mark.parametrize("times", ["roofline", "modified_roofline", "measured"])
def test_hosts_launch_alike_whoever_times_the_kernels(times):
    """Three kernels and two on streams of their own at 7 us each; none of a module that a graph holds."""
    operator = an_operator("grouped_matmul", kernels=3, more_launches=2, graph_module="moe")
    eager, graphed = (
        a_source(times, launch_overhead_seconds=7e-6, cuda_graphs=CudaGraphs.named(graphs))
        for graphs in ("none", "moe")
    )

    assert eager.launch_seconds(operator) == pytest.approx(35e-6)
    assert graphed.launch_seconds(operator) == 0


def test_kernels_that_cast_groups_run_one_after_the_other():
    """Five of 2.9 us forward and seven backward, 0.9 us apart where the host launches them, 0.5 us in a graph."""
    plain = an_operator("grouped_matmul", graph_module="moe")
    cast = replace(plain, group_kernels=(5, 7))
    for graphs, seconds in (("none", 3.8e-6), ("moe", 3.4e-6)):
        source = a_source("modified_roofline", kernel_gap_seconds=2e-5, cuda_graphs=CudaGraphs.named(graphs))
        assert source.forward_seconds(cast) - source.forward_seconds(plain) == pytest.approx(5 * seconds)
        assert source.backward_seconds(cast) - source.backward_seconds(plain) == pytest.approx(7 * seconds)


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ("roofline", "theoretical roofline of test-device"),
        ("modified_roofline", "modified roofline of test-device"),
        ("measured", "measured rates of test-device"),
    ],
)
def test_source_names_itself(times, expected):
    """The report says who timed what."""
    assert a_source(times).origin(an_operator()) == expected


def test_theoretical_roofline_is_a_lower_bound():
    """Nothing runs faster than the datasheet, whatever the profile says."""
    operator = an_operator(bytes=1e9, backward_bytes=1e9)
    device = catalog.equip_device("h100-80gb-sxm")
    peak = operator_times(replace(device, **achieved(device, times="roofline")), "bf16")

    assert seconds(peak, operator) < seconds(operator_times(device, "bf16"), operator)


def test_operator_has_a_default_for_every_shape_fact():
    """Sources may read any of them from any operator."""
    operator = Operator(name="x", kind="matmul")

    assert [field.name for field in fields(Operator) if getattr(operator, field.name) is None] == ["size"]


@pytest.mark.parametrize(("head_dim", "share"), [(64, 0.75), (128, 1.0), (256, 1.2)])
def test_narrow_heads_wait_for_their_exponentials(head_dim, share):
    """FlashAttention-3 on H100, figure 5: about 500, 650 and 750 TFLOP/s for widths of 64, 128 and 256."""
    usual, other = (
        operator_times(catalog.equip_device("h100-80gb-sxm"), "bf16").forward_seconds(
            an_operator("attention", kernels=0, head_dim=width)
        )
        for width in (128, head_dim)
    )

    assert usual / other == pytest.approx(share)


def test_attention_in_several_kernels_has_no_exponentials_in_its_matmuls():
    """Without a size the rate is that of usual heads at as many keys as there are rows."""
    source = operator_times(catalog.equip_device("h100-80gb-sxm"), "bf16")

    assert source.forward_seconds(an_operator("attention")) == source.forward_seconds(
        an_operator("attention", keys=4096, head_dim=128)
    )


# --- the slowest of many ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_devices", [1, 8, 64, 2048])
def test_the_slowest_of_many_devices_is_the_largest_of_random_delays(num_devices):
    """Delays drawn with an exponential tail; the mean of one device is the usual time."""
    spread = 0.01
    drawn = 1 + spread * (np.random.default_rng(0).exponential(size=(2000, num_devices)) - 1)

    assert slowest_of(num_devices, spread=spread) == pytest.approx(drawn.max(axis=1).mean(), abs=0.45 * spread)


@pytest.mark.parametrize("times", ["modified_roofline", "measured"])
def test_times_of_many_devices_are_those_of_the_slowest(times):
    """64 devices with a spread of 1 % take 1 + ln(64) / 100 of the time of one; the names of the sources stay."""
    one, many = (a_source(times, num_devices=n, straggler_spread=0.01) for n in (1, np.array([1, 64])))
    usual, slowest = seconds(a_source(times), an_operator()), seconds(many, an_operator())

    assert seconds(one, an_operator()) == pytest.approx(usual)
    for before, after in zip(usual, slowest, strict=True):
        assert after == pytest.approx([before, before * (1 + np.log(64) / 100)])
    assert many.origin(an_operator()) == one.origin(an_operator())


def test_the_theoretical_roofline_knows_no_slowest():
    """It stays a lower bound."""
    one, many = (a_source("roofline", num_devices=n, straggler_spread=0.01) for n in (1, 64))

    assert seconds(many, an_operator()) == seconds(one, an_operator())


def test_a_host_that_waits_launches_every_kernel_late():
    """7 us in front of each kernel, whether it computes or moves bytes; twice as many backward."""
    plain = a_source(launch_overhead_seconds=7e-6, kernel_gap_seconds=2e-5)
    blocking = a_source(launch_overhead_seconds=7e-6, kernel_gap_seconds=2e-5, launch_blocking=True)

    for kind in ("matmul", "elementwise"):
        forward, backward = np.subtract(seconds(blocking, an_operator(kind)), seconds(plain, an_operator(kind)))
        assert (forward, backward) == pytest.approx((7e-6, 14e-6))


@in_one_case(
    ("graphs", "late"), [("full_iteration", (0, 0)), ("mlp", (0, 0)), ("attn", (7e-6, 14e-6)), ("none", (7e-6, 14e-6))]
)
def test_a_host_that_waits_launches_no_kernel_of_a_graph(graphs, late):
    """What a CUDA graph holds does not wait for it: all, or the feed-forward's own; other graphs leave it as it is."""
    plain, blocking = (
        a_source(launch_overhead_seconds=7e-6, launch_blocking=on, cuda_graphs=CudaGraphs.named(graphs))
        for on in (False, True)
    )
    operator = an_operator("matmul", graph_module="mlp")

    assert np.subtract(seconds(blocking, operator), seconds(plain, operator)) == pytest.approx(late, abs=1e-12)


def test_attention_in_triton_is_slower_than_the_second_flash_attention():
    """By 1.3 in either pass."""
    ampere, triton = (a_source(attention_kernels="mma", attention_fraction=share) for share in (1.0, 1 / 1.3))
    attention = an_operator("attention", keys=4096)

    assert np.divide(seconds(triton, attention), seconds(ampere, attention)) == pytest.approx([1.3, 1.3])
