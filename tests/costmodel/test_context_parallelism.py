"""Context parallelism by the communication of its ranks: bytes by hand, overlap, memory, and bounds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from costmodel import catalog
from costmodel.facts.framework import CommunicationStyle, MemoryModel, Settings
from costmodel.lowering import layer_communications, layer_operators
from costmodel.lowering.framework import apply_framework
from costmodel.network.collectives import call_group
from costmodel.step.compute import layer_seconds
from costmodel.step.layer import layer_parts
from costmodel.step.step import cost, least_seconds, lower_bound_seconds
from costmodel.tables import Facts, lookup
from tests.builders import a_model, a_shape
from tests.builders_cluster import a_strategy, a_workload
from tests.cases import in_one_case
from tests.costmodel.strategies import DENSE, MOE, random_strategies, the_facts, with_device, with_profile

KINDS = ("p2p", "all_gather", "a2a", "a2a+p2p")

WIDE = a_model(num_heads=8, num_kv_heads=8, hidden_size=64)
"""Eight heads of 8: queries, keys, values and outputs of 64 each."""


def style(kind: str) -> CommunicationStyle:
    """The communication of a kind; near ranks are pairs."""
    return CommunicationStyle(cp_comm_type=kind, cp_a2a_ranks=2 if kind == "a2a+p2p" else None)


def under(kind: str | None, model=DENSE) -> Facts:
    """A job whose context-parallel ranks communicate in one of these ways, on slow networks."""
    given = the_facts(model)
    if kind is None:
        return given
    return with_profile(given, communication=style(kind), memory=MemoryModel(context_output=kind.startswith("a2a")))


@in_one_case(
    ("kind", "expected"),
    [
        # 8 tokens of 32 on each of 4 ranks in 2 sequences: 16 tokens of 2 bytes; keys and values 128 elements wide
        ("p2p", [("cp", "ring", 16 * 2 * 128 * 3, 1, 2)]),
        (
            "all_gather",
            [("cp", "all_gather", 16 * 2 * 128 * 4, 1, 1), ("cp", "reduce_scatter", 16 * 2 * 128 * 4, 0, 1)],
        ),
        ("a2a", [("cp", "all_to_all", 16 * 2 * 192, 1, 1), ("cp", "all_to_all", 16 * 2 * 64, 1, 1)]),
        (
            "a2a+p2p",
            [
                ("cp_a2a", "all_to_all", 16 * 2 * 192, 1, 1),
                ("cp_a2a", "all_to_all", 16 * 2 * 64, 1, 1),
                ("cp_p2p", "ring", 16 * 2 * 128 * 1, 1, 2),  # half of the heads of twice the tokens
            ],
        ),
    ],
)
def test_bytes_of_each_kind(kind, expected):
    """Group, collective, bytes, and numbers in either pass."""
    shape = a_shape(sequence_length=32, cp=4, communication=style(kind))

    found = [one for one in layer_communications(WIDE.layers[0], shape) if one.group.startswith("cp")]

    assert [(one.group, one.kind, one.nbytes, one.forward, one.backward) for one in found] == expected


def test_near_ranks_are_neighbours_and_far_ones_are_one_of_each_group():
    """With tp 2, near ranks are 2 devices apart, and 4 groups of 2 ranks lie 4 devices apart."""
    shape = a_shape(tp=2, cp=8, communication=style("a2a+p2p"))
    near, far = (call_group(name, shape) for name in ("cp_a2a", "cp_p2p"))

    assert (near.ranks, near.stride) == (2, 2)
    assert (far.ranks, far.stride) == (4, 4)


@in_one_case(("kind", "kernels", "heads"), [("p2p", 7, 8), ("all_gather", 2, 8), ("a2a", 1, 2), ("a2a+p2p", 3, 4)])
def test_attention_of_each_kind(kind, kernels, heads):
    """Work is the same, in pieces of a ring, of gathered keys, or of fewer heads of more tokens."""
    shape = a_shape(sequence_length=32, cp=4, communication=style(kind))
    plain = a_shape(sequence_length=32, cp=4)
    own, ring = (
        next(one for one in layer_operators(WIDE.layers[0], each) if one.name == "core_attention")
        for each in (shape, plain)
    )

    assert (own.kernels, own.size.heads) == (kernels, heads)
    assert own.flops == ring.flops
    assert own.size.queries * own.size.heads == ring.size.queries * ring.size.heads


def test_the_ring_is_the_default():
    """A job that asks for p2p costs what a job that asks for nothing does."""
    strategies = random_strategies(DENSE, 50, seed=3)

    assert (cost(under("p2p"), strategies).step_seconds == cost(under(None), strategies).step_seconds).all()


@pytest.mark.parametrize("kind", ["all_gather", "a2a"])
def test_gathers_and_all_to_alls_never_overlap(kind):
    """The time of their layers is the same with and without overlap."""
    given = under(kind)
    both = [layer_parts(given, a_strategy(cp=4, cp_overlap=on).decisions()).cp for on in (False, True)]

    assert (both[0] == both[1]).all()
    assert (both[0] > 0).all()


def test_a_hierarchical_ring_overlaps_and_its_all_to_alls_do_not():
    """At least the all-to-alls are left of the exposed time, and less than all."""
    given, decisions = under("a2a+p2p"), a_strategy(cp=4).decisions()
    alone = lookup(layer_seconds, given, decisions)
    pairs = lookup(layer_seconds, under("a2a"), a_strategy(cp=2).decisions())  # as many bytes per token, half the ranks
    hidden = layer_parts(given, {**decisions, "cp_overlap": True}).cp

    assert (hidden < alone.cp_forward + alone.cp_backward).all()
    assert hidden == pytest.approx((pairs.cp_forward + pairs.cp_backward) / 2, rel=0.1)


def test_slow_networks_between_hosts_favour_near_all_to_alls():
    """With 8 devices on NVLink, 32 ranks of long sequences wait least if eight near ones exchange heads."""
    model = a_model(num_heads=32, num_kv_heads=8, hidden_size=4096, ffn_hidden_size=64)
    exposed = {}
    for kind, near in (("a2a", None), ("a2a+p2p", 8)):
        given = with_profile(
            the_facts(model),
            communication=CommunicationStyle(cp_comm_type=kind, cp_a2a_ranks=near),
            memory=MemoryModel(context_output=True),
        )
        given = replace(given, workload=a_workload(sequence_length=2**19))
        parts = layer_parts(given, a_strategy(cp=32, cp_overlap=kind != "a2a").decisions())
        exposed[kind] = float(parts.cp[0])

    assert exposed["a2a+p2p"] < exposed["a2a"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("model", [DENSE, MOE], ids=["dense", "moe"])
def test_bounds_hold_for_each_kind(kind, model):
    """No strategy takes less than its bounds."""
    given, strategies = under(kind, model), random_strategies(model, 25, seed=11)
    seconds = cost(given, strategies).step_seconds

    assert np.isfinite(seconds).all()
    assert (lower_bound_seconds(given, strategies) <= seconds * (1 + 1e-9)).all()
    assert (least_seconds(given, strategies) <= seconds * (1 + 1e-9)).all()


@pytest.mark.parametrize("kind", KINDS)
def test_faster_networks_never_slow_a_kind_down(kind):
    """None of 25 strategies takes longer with twice the bandwidth on every network."""
    given, strategies = under(kind), random_strategies(DENSE, 25, seed=7)
    networks = tuple(replace(one, bandwidth=2 * one.bandwidth) for one in given.cluster.device.networks)
    before, after = (cost(each, strategies).step_seconds for each in (given, with_device(given, networks=networks)))

    assert (after <= before * (1 + 1e-12)).all()
    assert (after < before).any()


def test_settings_say_the_kind():
    """Output is kept twice with all-to-alls only, also where a framework's own is one."""
    device, framework = catalog.device("h100-80gb-sxm"), catalog.framework("megatron-lm-0.14")
    for kind, twice in (("p2p", False), ("all_gather", False), ("a2a", True), ("a2a+p2p", True)):
        settings = Settings(cp_comm_type=kind, cp_a2a_ranks=4)
        behaviour = apply_framework(device, framework, settings).behaviour
        assert behaviour.communication.cp_comm_type == kind
        assert behaviour.communication.cp_a2a_ranks == (4 if kind == "a2a+p2p" else None)
        assert behaviour.memory.context_output is twice
