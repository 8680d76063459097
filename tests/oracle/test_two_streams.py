"""The law of overlapped all-to-alls under a late host against streams and launches played kernel by kernel."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from costmodel.facts.calibration import Constants
from costmodel.facts.device import Slowdowns
from costmodel.step.layer import alternating_launch_seconds, host_exposed, late_fraction
from costmodel.step.overlap import exposed_overlapped_seconds
from costmodel.strategy import TokenDispatcher
from tests.cases import in_one_case
from tests.oracle.two_streams import Layer, Part, layer_seconds

NONE = Slowdowns(slowdown_communication=1.0, slowdown_compute=1.0, processors_taken=0.0)

BELOW = 0.1
"""Share of a layer by which the law may be below the oracle: it hides an all-to-all behind a whole pass, not a half."""

SLOWER = 2.0
"""Factor by which launches of alternating passes take longer."""


def random_layer(random: Random) -> Layer:
    """A backward pass of twice the work; all-to-alls of a tenth to all of what may hide them, or more."""
    attention, experts = (random.uniform(0.5, 2.0) for _ in range(2))
    exchange = random.uniform(0.05, 1.5)
    layer: Layer = {}
    for own, times in (("forward", 1), ("backward", 2)):
        layer[own, "attention"] = Part(seconds=times * attention, kernels=10 * times)
        layer[own, "experts"] = Part(seconds=times * experts, kernels=8 * times)
        layer |= {(own, name): Part(seconds=exchange, kernels=1) for name in ("dispatch", "combine")}
    return layer


def drawn(seed: int) -> tuple[Layer, float]:
    """A random layer, and seconds of a launch with which the host is ahead, close, or late."""
    random = Random(seed)
    layer = random_layer(random)
    device = sum(part.seconds for part in layer.values())
    return layer, random.choice((0.0, random.uniform(0.0, 1.5))) * device / kernels_of(layer)


def kernels_of(layer: Layer) -> int:
    """Kernels of both passes."""
    return sum(part.kernels for part in layer.values())


def law_seconds(layer: Layer, *, launch: float, alternates: bool, asks: bool = False) -> float:
    """Seconds of both passes by the cost model's functions."""
    computing, exchanging = (
        {own: sum(layer[own, name].seconds for name in names) for own in ("forward", "backward")}
        for names in (("attention", "experts"), ("dispatch", "combine"))
    )
    launching = np.array(launch * kernels_of(layer))
    apart = np.array(sum(computing.values()) + sum(exchanging.values()))
    if not alternates:
        return float(apart + host_exposed(launching, device_seconds=apart))
    seconds: Any = SimpleNamespace(**computing, host_forward=launching / 3, host_backward=2 * launching / 3)
    dispatcher = TokenDispatcher.ALLTOALL if asks else TokenDispatcher.HYBRIDEP
    late = late_fraction(seconds, token_dispatcher=np.array(int(dispatcher)))
    working = np.array(sum(computing.values()))
    for own, opposite in (("forward", "backward"), ("backward", "forward")):
        hidden = exposed_overlapped_seconds(exchanging[opposite], computing[own], NONE)
        working = working + hidden + late * (exchanging[opposite] - hidden)
    constants = Constants(
        attention_efficiency=0.5,
        memory_efficiency=0.5,
        overlap_slowdown_launches=SLOWER,
        overlap_launches_most_fraction=10.0,
    )
    slowed = alternating_launch_seconds(launching, apart_seconds=apart, constants=constants)
    return float(working + host_exposed(slowed, device_seconds=working))


@in_one_case("seed", range(40))
def test_the_law_is_the_oracle_s_within_a_tenth(seed):
    """Exact where passes do not alternate, and never above the oracle where they do."""
    layer, launch = drawn(seed)

    apart, together = (law_seconds(layer, launch=launch, alternates=one) for one in (False, True))

    assert apart == pytest.approx(layer_seconds(layer, launch=launch, alternates=False))
    played = layer_seconds(layer, launch=SLOWER * launch, alternates=True)
    assert (1 - BELOW) * played <= together <= played * (1 + 1e-9)


@in_one_case("seed", range(40))
def test_a_host_that_asks_is_no_faster_than_one_that_waits_for_attention_alone(seed):
    """Measured runs wait for more (:func:`late_fraction`), so the oracle is a floor: less a tenth, as above."""
    layer, launch = drawn(seed)

    together = law_seconds(layer, launch=launch, alternates=True, asks=True)

    assert together >= (1 - BELOW) * layer_seconds(layer, launch=SLOWER * launch, alternates=True, asks=True)
    assert together >= law_seconds(layer, launch=launch, alternates=True) * (1 - 1e-12)


@pytest.mark.parametrize("asks", [False, True])
@in_one_case("seed", range(15))
def test_neither_is_faster_with_a_slower_host_kernel_or_link(seed, asks):
    """Each part and the launches in turn 1.3 times as long, in the law and in the oracle."""
    layer, launch = drawn(seed)
    slower = [(layer | {name: replace(part, seconds=1.3 * part.seconds)}, launch) for name, part in layer.items()]

    for law in (law_seconds, layer_seconds):
        before = law(layer, launch=launch, alternates=True, asks=asks)
        for changed, launching in (*slower, (layer, 1.3 * launch)):
            assert law(changed, launch=launching, alternates=True, asks=asks) >= before * (1 - 1e-9)
