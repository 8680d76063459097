"""Operators timed by samples: each pass by its own law, the rest by the roofline, arrays as scalars."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest

from costmodel.errors import SpecError
from costmodel.step.data_parallel import device_update_seconds
from costmodel.timing.sampled_source import (
    SampledSource,
    backward_passes,
    load_learned_times,
    shapes_of_samples,
    size_of_operator,
)
from costmodel.timing.source import build_sampled_source, operator_times
from costmodel.timing.work import AttentionSize, KernelSize, MatmulSize, Operator
from tests.builders_cluster import a_device, achieved
from tests.builders_samples import a_sampled, a_sampled_operator
from tests.cases import in_one_case

SIZE = MatmulSize(m=4096, n=4096, k=4096)
MATMUL = Operator(name="up", kind="matmul", size=SIZE, dtype="bf16", flops=2 * 4096**3, backward_flops=4 * 4096**3)
NORM = Operator(
    name="norms",
    kind="copy",
    size=KernelSize(kernel="rms_norm", sizes={"rows": 4096, "width": 2048}, dtype="bf16", count=2),
    bytes=1e8,
    backward_bytes=1.5e8,
)
PASSES = (
    a_sampled_operator("matmul", "forward", seconds=[2e-5, 1e-3, 3e-4]),
    a_sampled_operator("matmul", "dgrad", seconds=[2e-5, 2e-3, 3e-4]),
    a_sampled_operator("matmul", "wgrad", seconds=[2e-5, 4e-3, 3e-4]),
)


def a_sampled_device(*operators, **changes):
    """A device whose calibration says that samples time its operators."""
    constants = {
        "times": "sampled",
        "matmul_efficiency": {"bf16": 0.5},
        "attention_efficiency": 0.5,
        "memory_efficiency": 0.5,
    }
    device = a_device(num_processors=100, **achieved(**(constants | changes)))
    return replace(device, calibration=replace(device.calibration, samples=a_sampled(*operators)))


def a_source(*operators) -> SampledSource:
    """What times the operators of that device."""
    return build_sampled_source(a_sampled_device(*operators), "bf16")


class TestTimes:
    def test_a_sampled_shape_takes_what_was_sampled(self):
        source = a_source(*PASSES)
        assert source.forward_seconds(MATMUL) == pytest.approx(1e-3, rel=0.01)
        assert source.backward_seconds(MATMUL) == pytest.approx(2e-3 + 4e-3, rel=0.01)

    def test_far_from_all_samples_the_roofline_speaks(self):
        far = replace(MATMUL, size=MatmulSize(m=2**22, n=2**20, k=2**20))
        assert a_source(*PASSES).forward_seconds(far) == pytest.approx(2 * 2**62 / 5e14, rel=0.02)

    def test_what_was_not_sampled_takes_the_roofline(self):
        source = a_source(PASSES[0])
        otherwise = source.otherwise
        assert source.forward_seconds(NORM) == otherwise.forward_seconds(NORM)
        assert source.backward_seconds(MATMUL) == otherwise.backward_seconds(MATMUL), "half of its passes are unknown"
        assert source.launch_seconds(NORM) == otherwise.launch_seconds(NORM)

    def test_several_kernels_take_as_often_as_long(self):
        law = a_sampled_operator(
            "rms_norm", "forward", columns=("rows", "width"), sizes=((4096, 2048),), seconds=[5e-5], features=3
        )
        assert a_source(law).forward_seconds(NORM) == pytest.approx(2 * 5e-5, rel=0.01)

    def test_an_addition_adds_up_gradients_in_the_backward_pass(self):
        law = a_sampled_operator(
            "residual", "forward", columns=("rows", "width"), sizes=((4096, 2048),), seconds=[5e-5], features=3
        )
        added = replace(NORM, size=KernelSize(kernel="residual", sizes={"rows": 4096, "width": 2048}, dtype="bf16"))
        assert backward_passes(added) == ("forward",)
        assert a_source(law).backward_seconds(added) == pytest.approx(5e-5, rel=0.01)

    def test_arrays_give_what_scalars_give(self):
        source, sizes = a_source(*PASSES), np.array([[1024.0, 4096.0], [8192.0, 1024.0]])
        many = source.backward_seconds(replace(MATMUL, size=MatmulSize(m=sizes, n=4096, k=1024)))
        single = [
            [float(source.backward_seconds(replace(MATMUL, size=MatmulSize(m=m, n=4096, k=1024)))) for m in row]
            for row in sizes
        ]
        np.testing.assert_allclose(many, single, rtol=1e-12)

    def test_a_shape_is_computed_once(self, monkeypatch):
        known = load_learned_times(a_sampled(*PASSES), 100)("matmul", "forward", "bf16")
        shapes, sizes = Mock(wraps=shapes_of_samples), {"m": np.full(1000, 777.0), "n": 64.0, "k": 64.0}
        monkeypatch.setattr("costmodel.timing.sampled_source.shapes_of_samples", shapes)
        np.testing.assert_array_equal(known.seconds(sizes)[0], known.seconds(sizes | {"m": 777.0}))
        assert [asked.args[2]["m"].tolist() for asked in shapes.call_args_list] == [[777.0]]

    def test_numbers_that_do_not_belong_together_are_refused(self):
        broken = a_sampled_operator(lengths=(1.0, 2.0))
        with pytest.raises(SpecError, match="matmul forward bf16: lengths: has 2 numbers, expected 9"):
            a_source(broken).forward_seconds(MATMUL)

    def test_operators_without_kernels_take_no_time(self):
        fused = replace(MATMUL, kernels=np.array([0.0, 1.0]))
        seconds = a_source(*PASSES).forward_seconds(fused)
        assert seconds[0] == 0
        assert seconds[1] == pytest.approx(1e-3, rel=0.01)

    def test_the_report_names_who_timed_what(self):
        source = a_source(*PASSES)
        assert source.origin(MATMUL) == "samples of test-device"
        assert source.origin(NORM) == "modified roofline of test-device"

    def test_a_device_without_samples_is_refused(self):
        device = a_device(**achieved(times="sampled", attention_efficiency=0.5, memory_efficiency=0.5))
        with pytest.raises(SpecError, match="'planner calibrate' writes"):
            operator_times(device, "bf16")


class TestSizes:
    def test_attention_in_a_window_is_no_sample_of_a_mask(self):
        size = AttentionSize(
            sequences=1, queries=64, keys=64, heads=8, kv_heads=2, qk_head_dim=16, v_head_dim=16, causal=True
        )
        whole = Operator(name="core_attention", kind="attention", size=size, dtype="bf16")
        assert size_of_operator(whole).kernel == "attention"
        assert size_of_operator(replace(whole, size=replace(size, is_window=True))) is None

    def test_what_has_no_size_is_no_sample(self):
        assert size_of_operator(Operator(name="rotary", kind="copy")) is None

    def test_a_wgrad_sums_over_rows(self):
        forward, dgrad, wgrad = (
            shapes_of_samples("matmul", name, {"m": 64, "n": 32, "k": 16}, element_bytes=2, num_processors=4)
            for name in ("forward", "dgrad", "wgrad")
        )
        assert forward.flops == dgrad.flops == wgrad.flops == 2 * 64 * 32 * 16
        np.testing.assert_allclose(np.exp2(wgrad.features[0, :3]), [32, 16, 64])
        np.testing.assert_allclose(np.exp2(dgrad.features[0, :3]), [64, 16, 32])

    def test_rows_of_grouped_matmuls_are_dealt_to_their_groups(self):
        grouped = shapes_of_samples(
            "grouped_matmul", "forward", {"batch": 8, "m": 1024, "n": 32, "k": 16}, element_bytes=2, num_processors=4
        )
        assert grouped.flops == 2 * 1024 * 32 * 16
        assert np.exp2(grouped.features[0, 0]) == pytest.approx(128)

    def test_one_group_has_as_many_features_as_several(self):
        one, several = (
            shapes_of_samples(
                "grouped_matmul", "forward", {"batch": n, "m": 64, "n": 32, "k": 16}, element_bytes=2, num_processors=4
            )
            for n in (1, 2)
        )
        assert one.features.shape == several.features.shape

    def test_a_causal_mask_halves_the_scores(self):
        sizes = {
            "sequences": 1, "queries": 64, "keys": 64, "heads": 8, "kv_heads": 2, "qk_head_dim": 16, "v_head_dim": 16,
        }  # fmt: skip
        full, causal = (
            shapes_of_samples("attention", "forward", sizes | {"causal": c}, element_bytes=2, num_processors=4)
            for c in (0.0, 1.0)
        )
        assert full.flops == 2 * 8 * 64 * 64 * 32
        assert causal.flops == full.flops / 2

    def test_gradients_of_an_embedding_are_as_large_as_its_vocabulary(self):
        sizes = {"rows": 16, "width": 8, "n": 1000}
        forward, backward = (
            shapes_of_samples("embedding", name, sizes, element_bytes=2, num_processors=4)
            for name in ("forward", "backward")
        )
        assert forward.nbytes == 2 * 2 * 16 * 8
        assert backward.nbytes - forward.nbytes == 2 * 1000 * 8

    @in_one_case(
        ("operator", "sizes", "elements"),
        [
            ("rotary", {"rows": 16, "heads": 4, "qk_head_dim": 8}, 2 * 16 * 4 * 8),
            ("top_k", {"rows": 16, "experts": 8}, 2 * 16 * 8),
            ("permutation", {"rows": 16, "width": 8, "top_k": 3}, 16 * 8 + 3 * 16 * 8),  # each token read once
        ],
    )
    def test_what_moves_data_reads_and_writes_all_of_it(self, operator, sizes, elements):
        found = shapes_of_samples(operator, "forward", sizes, element_bytes=2, num_processors=4)
        assert (found.flops, found.nbytes) == (0, 2 * elements)


class TestUpdate:
    LAW = a_sampled_operator(
        "adam", "forward", dtype="fp32", columns=("n",), sizes=((10**6,), (10**8,)), seconds=[1e-4, 1e-2], features=2
    )

    def test_a_sampled_update_counts_by_its_bytes(self):
        device = a_sampled_device(self.LAW, optimizer_bytes_per_parameter=14.0)
        assert device_update_seconds(device, local_parameters=1e8) == pytest.approx(1e-2 / 2, rel=0.02)

    def test_other_times_know_no_sampled_update(self):
        device = a_sampled_device(self.LAW, times="modified_roofline", optimizer_bytes_per_parameter=14.0)
        assert device.samples_used is None
        assert device_update_seconds(device, local_parameters=1e8) == pytest.approx(14e8 / 1.5e12)
