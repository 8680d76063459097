"""Tokens, FLOP/s and utilisation of a step."""

from __future__ import annotations

import pytest

from costmodel.models.flops import flops_per_second_per_device, tokens_per_second_per_device, utilization_fraction
from tests.builders_cluster import a_cluster, a_workload


def test_tokens_per_second_per_device():
    """128 sequences of 4,096 tokens in 8 s on 64 devices: 1,024 each."""
    assert tokens_per_second_per_device(a_cluster(64), a_workload(), step_seconds=8.0) == 1024


def test_flops_per_second_per_device():
    """1,024 tokens of 480 GFLOP: 491.52 TFLOP/s, equation (15)."""
    flops = flops_per_second_per_device(a_cluster(64), a_workload(), flops_per_token=480e9, step_seconds=8.0)

    assert flops == pytest.approx(491.52e12)


def test_utilization():
    """491.52 of 989.5 TFLOP/s."""
    assert utilization_fraction(491.52e12, peak_flops=989.5e12) == pytest.approx(0.4967, abs=1e-4)


def test_paper_row():
    """
    Llama 3 405B, MoFa's count of 2.69264e12 FLOP per token: gbs 512 of 8,192 tokens on 1,024 devices.

    4,194,304 * 2.69264e12 / 1,024 = 1.10291e16 FLOP per device, which takes 60 s at 183.8 TFLOP/s.
    """
    workload = a_workload(global_batch_size=512, sequence_length=8192)
    flops = flops_per_second_per_device(a_cluster(1024), workload, flops_per_token=2.69264e12, step_seconds=60.0)

    assert flops == pytest.approx(183.8e12, rel=1e-3)
