"""DeepSpeed's own division of modules into stages."""

from __future__ import annotations

import random

import pytest

from costmodel.lowering.framework import balance_stages

utils = pytest.importorskip("deepspeed.runtime.utils")


def test_modules_are_dealt_as_deepspeed_deals_them():
    """Three hundred lists of weights, those of whole parameters among them."""
    chance = random.Random(52)
    for _ in range(300):
        most = chance.choice([1, 1, 9])
        weights = [chance.randint(0, most) for _ in range(chance.randint(1, 40))]
        stages = chance.randint(1, 9)

        assert list(balance_stages(weights, stages)) == [int(one) for one in utils.partition_balanced(weights, stages)]
