"""One layer with its features: what the pipeline has to wait for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from costmodel.facts.device import Network
from costmodel.lowering import layer_operators
from costmodel.lowering.collectives import PIECE_LAUNCHES, RING_LAUNCHES
from costmodel.step.compute import LayerSeconds, layer_seconds
from costmodel.step.layer import LayerParts, host_exposed, late_fraction, launching_seconds, layer_parts, steady_parts
from costmodel.strategy import MODULES, CudaGraphs, Recompute, TokenDispatcher
from costmodel.tables import Facts, lookup
from costmodel.timing.roofline import STREAMING_SECONDS
from costmodel.timing.source import operator_times
from tests.builders import a_shape
from tests.builders_cluster import GB, a_strategy
from tests.costmodel.strategies import DENSE, MOE, the_facts, with_device

NO_LATENCY = (
    Network(name="nvlink", num_peers=8, bandwidth=400 * GB, latency=0.0),
    Network(name="node", num_peers=10**6, bandwidth=50 * GB, latency=0.0),
)

HIDDEN_STATE = 4096 * 2048 * 2
"""Bytes of a micro-batch of one sequence: s h 2."""


def on_the_networks(model: Any, **profile: Any) -> Facts:
    """The model on 400 GB/s inside a node of eight and 50 GB/s between them, without latency."""
    return with_device(the_facts(model, **profile), networks=NO_LATENCY)


def parts_of(given: Facts, **changes: Any) -> LayerParts:
    """One layer of each kind under a strategy."""
    return steady_parts(given, a_strategy(**changes).decisions())


def alone(given: Facts, **changes: Any) -> LayerSeconds:
    """Every part of it alone."""
    return lookup(layer_seconds, given, a_strategy(**changes).decisions())


def test_one_device_only_computes():
    """No degree, no feature: forward and backward."""
    given = on_the_networks(DENSE)
    parts, seconds = parts_of(given), alone(given)

    assert parts.total == pytest.approx(seconds.forward + seconds.backward)
    assert (parts.tp, parts.cp, parts.ep, parts.offload, parts.recompute, parts.ep_edges) == ([0],) * 6


@pytest.mark.parametrize("sequence_parallel", [True, False])
def test_tensor_parallelism_is_eight_collectives(sequence_parallel):
    """Two gathers and two scatters in each pass, or two sums, which are twice as long: 8 * 7 / 8 of s h 2 bytes."""
    given = on_the_networks(DENSE)

    parts = parts_of(given, tp=8, sequence_parallel=sequence_parallel)

    assert parts.tp == pytest.approx([8 * HIDDEN_STATE * 7 / 8 / (400 * GB)])


def test_overlapped_tensor_parallelism_leaves_a_quarter():
    """Four pieces, the computation longer: equation (20)."""
    given = on_the_networks(DENSE)

    plain, overlapped = (parts_of(given, tp=2, sequence_parallel=True, tp_overlap=on).tp for on in (False, True))

    assert overlapped == pytest.approx(plain / 4)


def test_overlap_hides_what_parallel_blocks_send_and_no_more():
    """Blocks side by side gather and sum once in the forward pass, each by itself in the backward pass."""
    side_by_side = replace(DENSE, layers=tuple(replace(layer, parallel_blocks=True) for layer in DENSE.layers))
    given = on_the_networks(side_by_side)

    plain, overlapped = (parts_of(given, tp=2, sequence_parallel=True, tp_overlap=on).tp for on in (False, True))

    assert plain == pytest.approx([6 * HIDDEN_STATE / 2 / (400 * GB)])
    assert overlapped == pytest.approx(plain / 4)


def test_sequences_before_tokens_are_copied_into_the_order_of_ranks():
    """Every gather and scatter of two sequences reads and writes all; one sequence is in order as it is."""
    given, first = (on_the_networks(DENSE, batch_first=first) for first in (False, True))
    rate = given.cluster.device.memory_bandwidth * given.cluster.device.constants.memory_efficiency

    def added(mbs: int) -> Any:
        return (parts_of(first, tp=2, sequence_parallel=True, mbs=mbs).tp
                - parts_of(given, tp=2, sequence_parallel=True, mbs=mbs).tp)  # fmt: skip

    assert added(1) == pytest.approx([0])
    assert added(2) == pytest.approx([8 * (2 * 2 * HIDDEN_STATE / rate + STREAMING_SECONDS)])


def test_sums_of_several_matmuls_do_not_overlap_with_one():
    """PyTorch: of eight collectives the backward pass's two scatters show; ranks add up what the forward pass sends."""
    given = on_the_networks(DENSE, tp_overlaps_single_matmuls=True, kernel_gap_seconds=0.0)
    rate = given.cluster.device.memory_bandwidth * given.cluster.device.constants.memory_efficiency
    plain, overlapped = (parts_of(given, tp=2, sequence_parallel=True, tp_overlap=on).tp for on in (False, True))

    assert overlapped == pytest.approx(plain * (2 / 8 + 6 / 8 / 4) + 2 * HIDDEN_STATE / rate)


def test_plain_tensor_parallelism_costs_computation():
    """A contention of 2 % of its time, which an overlap avoids."""
    given = on_the_networks(DENSE, tp_contention=0.02)
    plain, overlapped = (parts_of(given, tp=8, sequence_parallel=True, tp_overlap=on) for on in (False, True))

    assert plain.compute - overlapped.compute == pytest.approx(0.02 * plain.tp)


def test_context_parallelism_passes_keys_and_values_by():
    """
    Four ranks in a node: each sends K and V of 1,024 tokens three times, and twice as much backward.

    8 heads of 128, K and V, 2 bytes: 1,024 * 2,048 * 2 bytes, nine times, at 400 GB/s.
    """
    parts = parts_of(on_the_networks(DENSE), cp=4)

    assert parts.cp == pytest.approx([9 * 1024 * 2048 * 2 / (400 * GB)])


def test_context_parallelism_behind_a_long_attention_is_free():
    """Equation (21) with sends shorter than the pieces, 4,096 tokens on a network of 4 TB/s."""
    fast = (Network(name="nvlink", num_peers=8, bandwidth=4000 * GB, latency=0.0),)
    given = with_device(the_facts(DENSE), networks=fast)

    assert parts_of(given, cp=4, cp_overlap=True).cp == pytest.approx([0])


def test_expert_parallelism_is_four_all_to_alls():
    """Eight ranks, four experts per token: 7 / 8 of 4 s h 2 bytes, four times; none in the dense layers."""
    parts = parts_of(on_the_networks(MOE), ep=8, dp=8)

    assert parts.ep == pytest.approx([0, 4 * 4 * HIDDEN_STATE * 7 / 8 / (400 * GB)])


def test_tensor_parallel_ranks_share_the_dispatch():
    """Two ranks send half of the tokens each; 16 ranks on two nodes send 8 of 16 parts at 50 GB/s."""
    parts = parts_of(on_the_networks(MOE), tp=2, ep=16, dp=16, sequence_parallel=True)

    assert parts.ep == pytest.approx([0, 4 * 2 * HIDDEN_STATE * 8 / 16 / (50 * GB)])


def test_hidden_expert_parallelism_shows_at_the_edges():
    """Passes alone expose all that the steady phase hides; one of m forward passes and one of m backward are alone."""
    given = on_the_networks(MOE)
    plain, hidden = (parts_of(given, ep=8, dp=8, ep_overlap=on) for on in (False, True))
    strategy = a_strategy(ep=8, dp=8, ep_overlap=True)
    mean, m = layer_parts(given, strategy.decisions()), given.workload.global_batch_size / (8 * strategy.mbs)

    assert hidden.ep == pytest.approx([0, 0])
    assert mean.ep == pytest.approx(plain.ep / m)
    assert mean.ep + mean.ep_edges == pytest.approx(plain.ep)
    assert plain.ep_edges == pytest.approx([0, 0])


def test_passes_alone_are_launched_as_without_the_overlap():
    """A host that is late for alternating passes is less late for those alone: they take as long as without overlap."""
    late = {"overlap_slowdown_launches": 2.0, "overlap_launches_most_fraction": 0.5}
    slow = the_facts(MOE, launch_overhead_seconds=1e-4, **late)
    changes = {"ep": 4, "dp": 4, "pp": 2, "vpp": 7, "group": 2, "token_dispatcher": TokenDispatcher.HYBRIDEP}
    apart, together = (parts_of(slow, **changes, ep_overlap=on) for on in (False, True))
    mean = layer_parts(slow, a_strategy(**changes, ep_overlap=True).decisions())

    assert together.host[-1] > apart.host[-1]
    assert mean.total + mean.ep_edges + mean.host_edges == pytest.approx(apart.total)
    assert apart.total[-1] < mean.total[-1] < together.total[-1]


def test_all_to_alls_wait_for_a_host_that_asks_for_counts():
    """Launches for a quarter of the computation leave a quarter of what is hidden exposed; Hybrid-EP asks nobody."""
    seconds = alone(the_facts(MOE), ep=4)
    working = seconds.forward + seconds.backward
    launching = replace(seconds, host_forward=working / 12, host_backward=working / 6)
    late = [late_fraction(launching, token_dispatcher=np.array([one])) for one in TokenDispatcher]
    never = late_fraction(seconds, token_dispatcher=np.array([TokenDispatcher.ALLTOALL]))

    np.testing.assert_allclose(np.array(late), np.broadcast_to([[0.25], [0.25], [0.0]], np.shape(late)), rtol=1e-12)
    assert (never == 0).all()  # the facts launch nothing


@pytest.mark.parametrize(("dispatcher", "is_late"), [("ALLTOALL", True), ("DEEPEP", True), ("HYBRIDEP", False)])
def test_late_launches_show_as_exposed_all_to_alls(dispatcher, is_late):
    """An overlapped layer exposes more than with a host that takes no time, never more than without the overlap."""
    slow = {"launch_overhead_seconds": 1e-6}
    one = {"ep": 4, "ep_overlap": True, "token_dispatcher": TokenDispatcher[dispatcher]}
    with_host, without = (float(parts_of(the_facts(MOE, **x), **one).ep[-1]) for x in (slow, {}))
    apart = float(parts_of(the_facts(MOE, **slow), **(one | {"ep_overlap": False})).ep[-1])

    assert (with_host > without) is is_late
    assert with_host <= apart


def test_full_recomputation_repeats_the_forward_pass_with_its_communication():
    """Equation (32): computation, half of the tensor, a third of the context, half of the expert communication."""
    given = on_the_networks(MOE)
    degrees = {"tp": 2, "cp": 2, "dp": 4, "ep": 8, "sequence_parallel": True}
    seconds = alone(given, **degrees)

    parts = parts_of(given, **degrees, recompute=Recompute.FULL)

    assert parts.recompute == pytest.approx(seconds.forward + parts.tp / 2 + parts.cp / 3 + parts.ep / 2)


def attention_forward(seconds):
    """Projections to Q, K and V, and the core."""
    return sum(seconds.module_forward[..., MODULES.index(name)] for name in ("qkv", "core_attention"))


def test_selective_recomputation_repeats_attention():
    """Equation (30): the projections of Q, K and V, and the core, which is less than the whole forward pass."""
    given = on_the_networks(DENSE)
    seconds = alone(given)

    recompute = parts_of(given, recompute=Recompute.SELECTIVE).recompute

    assert recompute == pytest.approx(attention_forward(seconds))
    assert (seconds.module_forward[..., MODULES.index("core_attention")] < recompute).all()
    assert (recompute < seconds.forward).all()


def test_selective_recomputation_of_attention_passes_keys_and_values_by_again():
    """With context parallelism the core cannot be computed again from this rank's keys alone: another ring."""
    given = on_the_networks(DENSE)
    seconds = alone(given, cp=4)

    recompute = parts_of(given, cp=4, recompute=Recompute.SELECTIVE).recompute

    assert recompute == pytest.approx(attention_forward(seconds) + seconds.cp_forward)


def test_modules_are_recomputed_one_by_one():
    """Each adds its own forward pass, a dense feed-forward with half of the tensor-parallel collectives."""
    given = on_the_networks(DENSE)
    seconds = alone(given, tp=2, sequence_parallel=True)
    core, mlp = (seconds.module_forward[..., MODULES.index(name)] for name in ("core_attention", "mlp"))

    both = parts_of(given, tp=2, sequence_parallel=True, recompute=Recompute.of("core_attention", "mlp"))

    assert both.recompute == pytest.approx(core + mlp + seconds.tp_forward / 2)


def test_recomputation_may_stop_with_the_last_tensor_that_is_needed():
    """The last matmul, the addition behind it and the scatter, a quarter of the collectives, are not repeated."""
    degrees: dict[str, Any] = {"tp": 2, "sequence_parallel": True, "recompute": Recompute.FULL}
    whole, early = (on_the_networks(DENSE, recompute_stops_early=early) for early in (False, True))
    layer, shape = DENSE.layers[0], a_shape(hidden_size=2048, sequence_length=4096, mbs=1, tp=2, sequence_parallel=1)
    times = operator_times(whole.cluster.device, "bf16")
    left = {one.name: times.forward_seconds(one) for one in layer_operators(layer, shape)}

    saved = parts_of(whole, **degrees).recompute - parts_of(early, **degrees).recompute

    expected = left["down"] + left["residuals"] + alone(whole, tp=2, sequence_parallel=True).tp_forward / 4
    assert saved == pytest.approx(expected)


def test_every_other_matmul_gathers_again():
    """torchtitan keeps what was reduced and scattered: half of the forward pass's collectives run again."""
    given = on_the_networks(DENSE)
    seconds = alone(given, tp=2, sequence_parallel=True)
    matmuls = seconds.module_forward[..., MODULES.index("every_other_matmul")]

    again = parts_of(given, tp=2, sequence_parallel=True, recompute=Recompute.of("every_other_matmul")).recompute

    assert again == pytest.approx(matmuls + seconds.tp_forward / 2)


def test_a_tensor_parallel_collective_has_a_kernel_s_gap():
    """Without sequence parallelism two sums in either pass, with it two gathers and two scatters: 10 us each."""
    for sequence_parallel, calls in ((False, 2), (True, 4)):
        degrees = {"tp": 2, "sequence_parallel": sequence_parallel}
        plain, late = (alone(on_the_networks(DENSE, kernel_gap_seconds=gap), **degrees) for gap in (0.0, 1e-5))

        assert late.tp_forward - plain.tp_forward == pytest.approx(calls * 1e-5)
        assert late.tp_backward - plain.tp_backward == pytest.approx(calls * 1e-5)


def test_a_host_that_waits_for_collectives_has_the_next_kernels_to_launch():
    """Three of a second each behind each of two sums, one rank has none; and three in front of either pass."""
    given = on_the_networks(DENSE, launch_overhead_seconds=1.0)
    waiting = on_the_networks(DENSE, launch_overhead_seconds=1.0, blocking_collectives=True)

    assert alone(waiting).forward - alone(given).forward == pytest.approx(3.0)
    assert alone(waiting).backward - alone(given).backward == pytest.approx(3.0)
    assert alone(waiting, tp=2).tp_forward - alone(given, tp=2).tp_forward == pytest.approx(6.0)
    assert alone(waiting).tp_forward == 0


def test_a_host_that_waits_for_collectives_launches_nothing_meanwhile():
    """Its time in a pass is that of the launches and of the collectives; one that runs ahead only launches them."""
    given = alone(on_the_networks(DENSE, launch_overhead_seconds=1.0), tp=2)
    waiting = alone(on_the_networks(DENSE, launch_overhead_seconds=1.0, blocking_collectives=True), tp=2)

    assert (given.tp_forward > 0).all()
    assert waiting.host_forward - given.host_forward == pytest.approx(given.tp_forward)
    assert waiting.host_backward - given.host_backward == pytest.approx(given.tp_backward)


def test_a_blocking_host_waits_for_collectives_outside_of_a_graph_only():
    """One launch of a second with each of two sums in the forward pass; a graph of all holds them too."""
    given, blocking = (on_the_networks(DENSE, launch_overhead_seconds=1.0, launch_blocking=on) for on in (False, True))
    graphed = {"tp": 2, "cuda_graphs": CudaGraphs.FULL_ITERATION}

    assert alone(blocking, tp=2).tp_forward - alone(given, tp=2).tp_forward == pytest.approx(2)
    for name in ("forward", "backward", "tp_forward", "tp_backward"):
        assert getattr(alone(blocking, **graphed), name) == pytest.approx(getattr(alone(given, **graphed), name))


def test_pieces_of_ring_attention_are_launched_one_by_one():
    """Four pieces, twice as much backward, more than an all-to-all; a graph leaves the ring's own send."""
    given = on_the_networks(DENSE, launch_overhead_seconds=1.0)
    all_to_all = on_the_networks(DENSE, launch_overhead_seconds=1.0, context_output=True)
    ring, exchange = alone(given, cp=4), alone(all_to_all, cp=4)

    assert ring.host_forward - exchange.host_forward == pytest.approx(RING_LAUNCHES + 4 * PIECE_LAUNCHES)
    assert ring.host_backward - exchange.host_backward == pytest.approx(2 * (RING_LAUNCHES + 4 * PIECE_LAUNCHES))
    graphed = alone(given, cp=4, cuda_graphs=CudaGraphs.of("attn", "mlp"))
    assert graphed.host_forward == pytest.approx(1)
    assert alone(given, cp=4, cuda_graphs=CudaGraphs.of("mlp")).host_forward > graphed.host_forward + RING_LAUNCHES


def test_graphs_launch_what_they_hold():
    """Attention and feed-forward of a dense layer each launch some kernels, together all; the ring's send is left."""
    given = on_the_networks(DENSE, launch_overhead_seconds=1.0)
    sets = ("none", "attn", "mlp", "attn+mlp", "full_iteration", "moe_router+mamba")
    eager, attn, mlp, both, full, others = (alone(given, cuda_graphs=CudaGraphs.named(text)) for text in sets)

    assert [both.host_forward[0], full.host_forward[0], full.host_backward[0]] == [0, 0, 0]
    assert 0 < attn.host_forward[0] < eager.host_forward[0] == others.host_forward[0]
    assert attn.host_forward + mlp.host_forward == pytest.approx(eager.host_forward)


def test_graphs_of_experts_hold_the_router_and_what_comes_before_the_dispatch():
    """Of the kernels of a layer with experts the routed ones, the way back and the residual are launched one by one."""
    given = on_the_networks(MOE, launch_overhead_seconds=1.0)
    sets = ("attn", "attn+moe_router", "attn+moe_router+moe_preprocess", "attn+moe")
    launched = [float(alone(given, cuda_graphs=CudaGraphs.named(text)).host_forward[-1]) for text in sets]

    assert launched == sorted(launched, reverse=True)
    assert launched[1] - launched[2] == pytest.approx(1)  # tokens sorted before they are sent
    assert launched[3] == pytest.approx(1)  # the residual


@pytest.mark.parametrize("ep_overlap", [False, True])
def test_layers_without_shared_experts_exchange_as_before(ep_overlap):
    """Beside nothing there is nothing to slow the exchange down by 1.5; where there are some, they hide part of it."""
    without = replace_shared(MOE, None)
    slow = {"overlap_slowdown_communication": 1.5, "overlap_slowdown_compute": 1.1}
    told = {"ep": 8, "ep_overlap": ep_overlap}

    def exchanges(model: Any) -> tuple[Any, Any]:
        apart, beside = (on_the_networks(model, shared_expert_overlap=on, **slow) for on in (False, True))
        return parts_of(apart, **told).ep, parts_of(beside, **told).ep

    apart, beside = exchanges(without)
    assert apart[-1] > 0
    assert beside == pytest.approx(apart)
    assert exchanges(MOE)[0][0] == exchanges(MOE)[1][0] == 0  # the dense layers have no exchange


def test_shared_experts_hide_the_exchange_of_their_own_layers_only():
    """One layer of two kinds has a shared expert: its exchange is beside it, the other's is as long as alone."""
    routed, shared = replace_shared(MOE, None).layers[-1], MOE.layers[-1]
    both = replace(MOE, layers=(routed, shared))
    slow = {"overlap_slowdown_communication": 1.5}
    apart, beside = (alone(on_the_networks(both, shared_expert_overlap=on, **slow), ep=8) for on in (False, True))

    assert beside.ep_forward[0] == apart.ep_forward[0]
    assert beside.ep_forward[1] != apart.ep_forward[1]
    assert beside.ep_backward[0] == apart.ep_backward[0]


def replace_shared(model: Any, width: int | None) -> Any:
    """The model with shared experts of that width in its layers with experts; None: without."""
    layers = [
        replace(layer, feed_forward=replace(layer.feed_forward, shared_ffn_hidden_size=width or 0))
        if hasattr(layer.feed_forward, "num_experts")
        else layer
        for layer in model.layers
    ]
    return replace(model, layers=tuple(layers))


@pytest.mark.parametrize(("sequence_parallel", "summed"), [(False, 1.0), (True, 0.5)])
def test_sums_run_beside_the_weights_gradients(sequence_parallel, summed):
    """Of the backward pass's collectives the sums are hidden where there is time: all, or half with gathers."""
    degrees = {"tp": 2, "sequence_parallel": sequence_parallel}
    plain, beside = (on_the_networks(DENSE, async_tp_allreduce=beside) for beside in (False, True))
    seconds = alone(plain, **degrees)

    hidden = parts_of(plain, **degrees).tp - parts_of(beside, **degrees).tp

    assert (seconds.tp_backward < seconds.weight / 2).all()  # else there would not be time
    assert hidden == pytest.approx(summed * seconds.tp_backward)


def test_sums_beside_the_weights_gradients_are_exposed_where_those_are_short():
    """A network a thousand times slower: nothing but the weights' gradients of the two wide linears hides anything."""
    slow = tuple(replace(network, bandwidth=network.bandwidth / 1000) for network in NO_LATENCY)
    plain, beside = (
        with_device(on_the_networks(DENSE, async_tp_allreduce=beside), networks=slow) for beside in (False, True)
    )
    seconds = alone(plain, tp=2)

    hidden = parts_of(plain, tp=2).tp - parts_of(beside, tp=2).tp

    assert (hidden > 0).all()
    assert (hidden < seconds.weight).all()


def test_an_input_that_is_gathered_again_shows_where_its_gradient_is_short():
    """A slow network, sequence parallelism: the second gather of both inputs costs more than the sums gain."""
    slow = tuple(replace(network, bandwidth=network.bandwidth / 1000) for network in NO_LATENCY)
    plain, beside = (
        with_device(on_the_networks(DENSE, async_tp_allreduce=beside), networks=slow) for beside in (False, True)
    )
    seconds = alone(plain, tp=2, sequence_parallel=True)
    gathers = seconds.tp_forward / 2

    shown = parts_of(beside, tp=2, sequence_parallel=True).tp - parts_of(plain, tp=2, sequence_parallel=True).tp

    assert (shown < gathers).all()
    assert (shown > gathers - 2 * seconds.weight).all()


def test_offloading_shows_what_a_layer_cannot_hide():
    """Saved bytes at 32 GB/s down behind the forward, up behind the backward pass (34), (35), as no collective is."""
    given = on_the_networks(DENSE, overlap_slowdown_communication=1.5, communication_sm_fraction=0.2)
    seconds = alone(given)
    tokens, hidden, kv, wide = 4096, 2048, 1024, 6144
    # Norms 2 h, input h, Q h, K and V, output h, input h, activation 2 g, down g; 2 bytes each.
    saved = 2 * tokens * (6 * hidden + 2 * kv + 3 * wide)
    transfer = saved / (32 * GB)

    offload = parts_of(given, activation_offload=True).offload

    assert offload == pytest.approx(
        np.maximum(transfer - seconds.forward, 0) + np.maximum(transfer - seconds.backward, 0)
    )


def test_recomputation_leaves_less_to_offload():
    """Selective recomputation sends neither Q, K nor V to the host."""
    given = with_device(on_the_networks(DENSE), host_to_device_bandwidth=1e9, device_to_host_bandwidth=1e9)

    none, selective = (
        parts_of(given, activation_offload=True, recompute=recompute).offload
        for recompute in (Recompute.NONE, Recompute.SELECTIVE)
    )

    # 4,096 tokens, Q of 2,048, K and V of 1,024, 2 bytes, down and up at 1 GB/s.
    assert none - selective == pytest.approx([2 * 4096 * (2048 + 2 * 1024) * 2 / 1e9])


def test_kinds_of_layers_are_on_the_last_axis():
    """A dense and an expert kind, for each strategy."""
    decisions = a_strategy(tp=2, sequence_parallel=True).decisions() | {"dp": np.array([1, 2, 4])}

    assert layer_parts(on_the_networks(MOE), {**decisions, "ep": np.array([1, 2, 4])}).total.shape == (3, 2)


def test_faster_kernels_by_the_paper_s_factors():
    """MoFa's alpha and beta, (17) and (18): twice the rates, half the time."""
    given = on_the_networks(DENSE)
    faster = replace(given, cluster=on_the_networks(DENSE, compute_scaling=2.0, communication_scaling=2.0).cluster)
    degrees = {"tp": 2, "cp": 2, "sequence_parallel": True}

    assert parts_of(faster, **degrees).total == pytest.approx(parts_of(given, **degrees).total / 2)


# --- the host ---------------------------------------------------------------------------------------------------


def test_a_device_never_overtakes_its_host():
    """Launches of 1 s each, twice as many backward: three forward passes of launches, whatever the device."""
    given = on_the_networks(DENSE, launch_overhead_seconds=1.0)
    parts, seconds = parts_of(given), alone(given)
    kernels = float(seconds.host_forward[0])

    assert float(seconds.host_backward[0]) == 2 * kernels
    assert parts.total == pytest.approx([3 * kernels])


@pytest.mark.parametrize(("ep", "share"), [(8, 1.0), (16, (15 / 400) / (8 / 50))])
def test_experts_between_nodes_take_processors_while_they_copy(ep, share):
    """
    Ranks of a node exchange tokens as its network does, 15 of 16 parts at 400 GB/s were 16 of them in one.

    Between two nodes 8 of 16 parts leave at 50 GB/s.
    """
    given = on_the_networks(MOE, communication_sm_fraction=0.16, overlap_slowdown_communication=1.25)

    seconds = alone(given, ep=ep, dp=ep)
    copying = share * seconds.ep_forward

    assert copying.max() > 0
    assert seconds.overlapped.ep_backward_taken == pytest.approx(0.16 * 1.25 * copying, rel=1e-12)
    expected = seconds.ep_forward - seconds.backward / 1.25
    assert seconds.overlapped.ep_backward_excess == pytest.approx(expected, rel=1e-9)


def test_a_pass_takes_the_longest_of_what_its_links_carry():
    """
    Exchanges between nodes beside rings of attention between nodes use one adapter: both add up, hidden or not.

    Without rings, computation hides the exchanges alone.
    """
    given = on_the_networks(MOE)
    slow = replace(NO_LATENCY[1], bandwidth=GB)
    given = with_device(given, networks=(NO_LATENCY[0], slow), peak_flops={"bf16": 1e14})
    strategy = {"tp": 8, "etp": 8, "ep": 2, "dp": 2, "cp": 2, "cp_overlap": True, "ep_overlap": True}

    seconds, parts = alone(given, **strategy), parts_of(given, **strategy)

    moe = seconds.ep_forward > 0
    load = seconds.adapter.total
    longest = np.maximum(load, seconds.forward + seconds.backward)
    assert load[moe] == pytest.approx(
        (seconds.ep_forward + seconds.ep_backward + seconds.cp_forward + seconds.cp_backward)[moe]
    )
    assert (parts.total >= longest * (1 - 1e-9))[moe].all()


def test_a_host_that_is_ahead_after_one_pass_is_so_in_the_next():
    """Nine seconds of launches: what one pass leaves the host behind, the other makes up for."""
    seconds = replace(alone(on_the_networks(DENSE)), host_forward=np.array([3.0]), host_backward=np.array([6.0]))
    plain = np.array(int(Recompute.NONE))

    for forward, backward, late in ((2.0, 8.0, 0.0), (4.0, 5.0, 0.0), (2.0, 5.0, 2.0)):
        device = np.array([forward + backward])
        launching = launching_seconds(seconds, recompute=plain)
        assert host_exposed(launching, device_seconds=device) == pytest.approx([late])


def test_a_host_launches_alternating_passes_more_slowly():
    """Twice the seconds of all launches where exchanges overlap; none in a graph of the whole iteration."""
    slowdown = {"overlap_slowdown_launches": 2.0, "overlap_launches_most_fraction": 1.0}
    given = on_the_networks(MOE, launch_overhead_seconds=1.0, **slowdown)
    strategy = {"ep": 8, "dp": 8, "recompute": Recompute.FULL}

    apart, alternating, graphed = (
        parts_of(given, **strategy, **more)
        for more in ({}, {"ep_overlap": True}, {"ep_overlap": True, "cuda_graphs": CudaGraphs.FULL_ITERATION})
    )

    assert alternating.total == pytest.approx(2 * apart.total)  # all that the device does hides behind the host
    assert graphed.host == pytest.approx(np.zeros_like(graphed.host))


@pytest.mark.parametrize(("launch", "longer", "beyond"), [(1.0, 1.25, 1.6), (1e-9, 1.0, 1.0)])
def test_alternating_launches_lengthen_a_layer_by_no_more_than_was_measured(launch, longer, beyond):
    """
    A quarter was measured: where launches are all and twice as slow, a layer is 1.25 times as long, 2 / 1.25 are left.

    Launches of a nanosecond hide behind the device: nothing is bounded.
    """
    slowdown = {"overlap_slowdown_launches": 2.0, "overlap_launches_most_fraction": 0.25}
    given = on_the_networks(MOE, launch_overhead_seconds=launch, **slowdown)
    strategy = {"ep": 8, "dp": 8}

    apart, alternating = (parts_of(given, **strategy, ep_overlap=overlaps) for overlaps in (False, True))

    assert apart.launches_beyond == pytest.approx(np.ones_like(apart.total))
    assert alternating.launches_beyond == pytest.approx(np.full_like(apart.total, beyond))
    assert (alternating.total <= longer * apart.total * (1 + 1e-12)).all()
    assert launch < 1 or alternating.total == pytest.approx(longer * apart.total)


@pytest.mark.parametrize("launch", [0.0, 1e-6, 1e-5, 1e-4, 1e-3])
@pytest.mark.parametrize("host", [1.0, 2.0])
def test_the_overlap_changes_both_passes_of_a_layer_by_one_factor(launch, host):
    """So a pipeline, which waits for single passes, gets no longer than its longest layer does."""
    slowdown = {"overlap_slowdown_launches": host, "overlap_launches_most_fraction": 0.25}
    given = on_the_networks(MOE, launch_overhead_seconds=launch, **slowdown)
    strategy = {"ep": 16, "dp": 16}

    apart, alternating = (parts_of(given, **strategy, ep_overlap=overlaps) for overlaps in (False, True))

    factor = alternating.total / apart.total
    assert alternating.forward == pytest.approx(factor * apart.forward)
    assert (factor <= (1.25 if host > 1 else 1.0) * (1 + 1e-12)).all()
    assert launch > 1e-6 or (factor[apart.ep > 0] < 1).all()


@pytest.mark.parametrize("offloads", [False, True])
def test_the_bound_counts_the_layer_without_the_overlap(offloads):
    """
    A host that takes a third of the device's time, ten times as long by turns, and nothing measured: as long as apart.

    Exchanges and copies that show without the overlap count, too; tables say the same as scalars.
    """
    strategy = {"ep": 16, "dp": 16, "activation_offload": offloads}
    free = {"overlap_slowdown_launches": 10.0, "overlap_launches_most_fraction": 0.0}
    device = parts_of(on_the_networks(MOE), **strategy)
    launch = float(device.total.max()) / float(
        alone(on_the_networks(MOE, launch_overhead_seconds=1.0)).host_forward.max()
    )
    given = on_the_networks(MOE, launch_overhead_seconds=launch / 9, **free)

    apart, alternating = (parts_of(given, **strategy, ep_overlap=overlaps) for overlaps in (False, True))
    both = {name: np.array([value] * 2) for name, value in a_strategy(**strategy, ep_overlap=True).decisions().items()}

    assert (apart.ep + apart.offload > 0).any()
    assert alternating.total == pytest.approx(apart.total, rel=1e-12)
    assert layer_parts(given, both).total[0] == pytest.approx(alternating.total, rel=1e-12)


def test_full_recomputation_launches_the_forward_pass_again():
    """Four passes' worth of launches instead of three."""
    given = on_the_networks(DENSE, launch_overhead_seconds=1.0)
    plain, again = (parts_of(given, recompute=what).total for what in (Recompute.NONE, Recompute.FULL))

    assert again == pytest.approx(4 / 3 * plain)


def test_a_fast_host_is_not_seen():
    """A nanosecond per launch hides behind every kernel."""
    given = on_the_networks(DENSE, launch_overhead_seconds=1e-9)

    assert parts_of(given).host == [0]
