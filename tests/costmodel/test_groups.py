"""Process groups in Megatron-LM's default order of ranks: tp, cp, ep, dp, pp."""

from __future__ import annotations

from costmodel.network.collectives import (
    Group,
    dense_data_group,
    expert_data_group,
    layer_group,
    pipeline_group,
    sharding_group,
)
from tests.cases import in_one_case


@in_one_case(("name", "ranks", "stride"), [("tp", 4, 1), ("cp", 2, 4), ("ep", 8, 2), ("etp", 2, 1)])
def test_groups_of_a_layer(name, ranks, stride):
    """Tensor-parallel neighbours are adjacent, context-parallel ones tp apart, expert-parallel ones etp apart."""
    assert layer_group(name, tp=4, cp=2, ep=8, etp=2) == Group(ranks=ranks, stride=stride)


def test_context_parallel_ranks_share_parameters():
    """With tp 4, cp 2, dp 8: sixteen ranks hold the same dense parameters, four apart."""
    assert dense_data_group(tp=4, cp=2, dp=8) == Group(ranks=16, stride=4)


def test_replicas_of_experts():
    """A stage of 4 * 2 * 8 = 64 ranks holds 64 / (8 * 2) = 4 copies of each expert, 16 apart."""
    assert expert_data_group(tp=4, cp=2, dp=8, ep=8, etp=2) == Group(ranks=4, stride=16)


def test_experts_like_attention_have_the_replicas_of_attention():
    """One-way experts with etp = tp are a dense layout."""
    assert expert_data_group(tp=4, cp=2, dp=8, ep=1, etp=4) == dense_data_group(tp=4, cp=2, dp=8)


def test_states_are_shared_by_neighbours():
    """Of sixteen replicas the nearest four; a group of two has no more."""
    group = dense_data_group(tp=4, cp=2, dp=8)

    assert sharding_group(group, sharding_ranks=None) == group
    assert sharding_group(group, sharding_ranks=4) == Group(ranks=4, stride=4)
    assert sharding_group(Group(ranks=2, stride=4), sharding_ranks=4) == Group(ranks=2, stride=4)


def test_pipeline_ranks_are_a_stage_apart():
    """A stage is tp cp dp ranks."""
    assert pipeline_group(tp=4, cp=2, dp=8, pp=16) == Group(ranks=16, stride=64)


def test_groups_cover_the_devices():
    """Ranks of each dense and each expert dimension multiply to 1,024."""
    degrees = {"tp": 4, "cp": 2, "dp": 8}
    stage = degrees["tp"] * dense_data_group(**degrees).ranks

    assert stage * 16 == 1024
    assert 8 * 2 * expert_data_group(**degrees, ep=8, etp=2).ranks * 16 == 1024
