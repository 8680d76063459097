"""Estimate of one strategy: its step with the breakdown, and the contents of every pipeline rank."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from costmodel.memory import rank_bytes, rank_host_bytes, rank_port_bytes, whole_stages
from costmodel.pipelines.schedules import Passes
from costmodel.pipelines.simulator import Timeline, fewest_passes, simulate, span_seconds
from costmodel.pipelines.stages import Stages, every_stage
from costmodel.record import record
from costmodel.step.compute import layer_seconds
from costmodel.step.data_parallel import dp_seconds, update_seconds
from costmodel.step.embedding_head import embedding_head_seconds
from costmodel.step.layer import LayerParts, layer_parts
from costmodel.step.layouts import (
    IN_FULL,
    PER_RANK,
    average_rank,
    contents_of,
    layout_cost,
    layout_passes,
    rank_decisions,
)
from costmodel.step.rank_time import (
    edge_seconds,
    ep_fill_seconds,
    imbalance_seconds,
    once_seconds,
    pipeline_order,
    pp_seconds,
    rank_seconds,
    sent_seconds,
    slices_seconds,
    stage_passes,
    waiting_seconds,
)
from costmodel.strategy import Strategy
from costmodel.tables import Array, Decisions, Facts, lookup, microbatches


@record(frozen=True, kw_only=True, slots=True)
class Part:
    """
    One line of a step's breakdown.

    Parameters
    ----------
    name
        ``compute``, ``recompute``, ``tp``, ``cp``, ``ep``, ``offload``, ``host``, ``pp``, ``bubble``, ``dp``,
        ``optimizer``.
    exposed_seconds
        Exposed seconds, its part of the step; the parts add up to the step.
    hidden_seconds
        Seconds hidden by computation.
    """

    name: str
    exposed_seconds: float
    hidden_seconds: float


@record(frozen=True, kw_only=True, slots=True)
class RankEstimate:
    """
    One pipeline rank.

    Parameters
    ----------
    rank
        Number of the pipeline rank.
    num_layers
        Number of its layers, those of multi-token prediction included.
    microbatch_seconds
        Seconds of one micro-batch, forward and backward.
    bytes_by_part
        Peak device memory by contents, with the names of :meth:`costmodel.memory.RankBytes.part_bytes`.
    host_bytes
        Bytes of host memory that one of its devices needs.
    port_bytes
        Bytes that one of its devices copies to the host in a step, and as many back.
    """

    rank: int
    num_layers: int
    microbatch_seconds: float
    bytes_by_part: dict[str, float]
    host_bytes: float
    port_bytes: float

    @property
    def device_bytes(self) -> float:
        """Bytes of peak device memory."""
        return sum(self.bytes_by_part.values())


@record(frozen=True, kw_only=True, slots=True)
class Estimate:
    """
    Cost of one strategy, in detail.

    Parameters
    ----------
    strategy
        The decisions.
    num_microbatches
        Micro-batches per pipeline and step.
    step_seconds
        Seconds of one optimizer step, its pipeline simulated pass by pass; a search compares
        :func:`costmodel.step.layouts.strategy_seconds`.
    breakdown
        Parts of the step, on the slowest rank.
    ranks
        Every pipeline rank.
    """

    strategy: Strategy
    num_microbatches: int
    step_seconds: float
    breakdown: tuple[Part, ...]
    ranks: tuple[RankEstimate, ...]

    @property
    def device_bytes(self) -> float:
        """Peak memory of the fullest rank."""
        return max(rank.device_bytes for rank in self.ranks)

    @property
    def host_bytes(self) -> float:
        """Host memory of the fullest rank, per device."""
        return max(rank.host_bytes for rank in self.ranks)


@record(frozen=True, kw_only=True, slots=True)
class SimulatedStep:
    """
    The pipeline of a step pass by pass, as in :attr:`Estimate.step_seconds`, and the rest of the step.

    Parameters
    ----------
    timeline
        Every pass of every rank.
    passes
        Simulated passes: seconds of every virtual stage in model order, shape (pp * vpp,).
    other_seconds
        Seconds outside of passes, by line of the breakdown: transfers between ranks, edges of expert-parallel
        communication, which are spread over the step, and the end of the step.
    """

    timeline: Timeline
    passes: Passes
    other_seconds: dict[str, float]

    @property
    def step_seconds(self) -> float:
        """Seconds of one optimizer step: the longest span of a rank, plus the seconds outside of passes."""
        return max(self.timeline.spans) + sum(self.other_seconds.values())


def simulate_step(facts: Facts, strategy: Strategy, *, most_passes: int) -> SimulatedStep | None:
    """
    Simulate the pipeline of one strategy and keep its passes.

    Parameters
    ----------
    facts, strategy
        As in :func:`estimate`.
    most_passes
        Largest number of passes, forward and backward, that is simulated.

    Returns
    -------
    SimulatedStep or None
        None if the schedule has no simulation, or too many passes.
    """
    decisions = strategy.decisions()
    order = _order(facts, decisions)
    if order is None or 2 * order["pp"] * order["vpp"] * order["num_microbatches"] > most_passes:
        return None
    passes = layout_passes(facts, strategy) if strategy.layout else stage_passes(facts, decisions)
    ranks, whole = _ranks_of(facts, strategy), average_rank(facts, decisions)
    return SimulatedStep(
        timeline=simulate(
            forward=np.asarray(passes.forward),
            backward=np.asarray(passes.backward),
            weight=np.asarray(passes.weight),
            keep_passes=True,
            **order,
        ),
        passes=passes,
        other_seconds={
            "ep": float(ep_fill_seconds(decisions, whole, layer_parts(facts, decisions))),
            "host": float(once_seconds(facts, decisions)),
            "pp": _transfer_seconds(facts, decisions, whole),
            "bubble": float(edge_seconds(facts, decisions) + imbalance_seconds(facts, decisions)),
            **_take_rank(_build_ending(facts, ranks.decisions, ranks.stages)),
        },
    )


def estimate(facts: Facts, strategy: Strategy) -> Estimate:
    """Estimate one strategy, even if a rule forbids it; once for equal facts."""
    return facts.compute_once((estimate, strategy), lambda: _estimate(facts, strategy))


def _estimate(facts: Facts, strategy: Strategy) -> Estimate:
    ranks = _ranks_of(facts, strategy)
    breakdown = _breakdown(facts, strategy, ranks)
    return Estimate(
        strategy=strategy,
        num_microbatches=int(microbatches(facts, strategy.decisions())),
        step_seconds=sum(part.exposed_seconds for part in breakdown),
        breakdown=breakdown,
        ranks=_estimates(facts, strategy, ranks),
    )


def simulated_seconds(facts: Facts, strategy: Strategy) -> float:
    """
    Seconds of one strategy's step with a simulated pipeline, as in :attr:`Estimate.step_seconds`.

    Derivation: the terms of :func:`costmodel.step.step.step_seconds`, with the waiting of
    :func:`costmodel.pipelines.simulator.span_seconds`, one block after the other.
    """
    ranks = _ranks_of(facts, strategy)
    waiting = _waiting_seconds(facts, strategy, ranks)
    decisions, whole = strategy.decisions(), average_rank(facts, strategy.decisions())
    parts = layer_parts(facts, decisions)
    beside = (
        float(ep_fill_seconds(decisions, whole, parts))
        + float(pp_seconds(facts, decisions, whole, parts))
        + float(once_seconds(facts, decisions))
        + sum(_take_rank(_build_ending(facts, ranks.decisions, ranks.stages)).values())
    )
    return float(microbatches(facts, decisions) * ranks.seconds.max()) + waiting + beside


@record(frozen=True, kw_only=True, slots=True)
class _Ranks:
    """
    Every rank of one strategy.

    With a layout, each is a strategy of one rank, on the first axis of ``stages`` and of its decisions. Otherwise they
    are on the axis of the ranks.
    """

    stages: Stages
    decisions: Decisions
    parts: LayerParts
    full: LayerParts
    seconds: Array

    @property
    def slowest(self) -> int:
        """Index of the slowest rank, which sets the pace."""
        return int(self.seconds.argmax())

    @property
    def layers(self) -> Array:
        """Layers of each kind of every rank, shape (pp, K)."""
        return self.stages.layers.reshape(-1, self.stages.layers.shape[-1])

    def each(self, values: Any) -> Array:
        """Return a quantity of every rank, shape (pp,)."""
        return np.broadcast_to(values, self.stages.rank.shape).ravel()

    def busy_seconds(self, part: str) -> Array:
        """Sum a part of a layer's time over the layers of each rank."""
        in_full = self.stages.full_layers.reshape(self.layers.shape)
        of_mode, of_full = (np.atleast_2d(getattr(one, part)) for one in (self.parts, self.full))
        busy: Array = ((self.layers - in_full) * of_mode + in_full * of_full[:1]).sum(axis=-1)
        return busy


def _ranks_of(facts: Facts, strategy: Strategy) -> _Ranks:
    return facts.compute_once((_Ranks, strategy), lambda: _build_ranks(facts, strategy))


def _build_ranks(facts: Facts, strategy: Strategy) -> _Ranks:
    stages, decisions = stages_of(facts, strategy), _decisions_of(strategy)
    parts = layer_parts(facts, decisions)
    full = layer_parts(facts, strategy.decisions() | dict(zip(PER_RANK, IN_FULL, strict=True)))
    seconds = rank_seconds(facts, decisions, stages, parts.total, full.total)
    return _Ranks(stages=stages, decisions=decisions, parts=parts, full=full, seconds=seconds.ravel())


def _decisions_of(strategy: Strategy) -> Decisions:
    """Return the decisions of all pipeline ranks, in step with :func:`stages_of`."""
    return rank_decisions(strategy) if strategy.layout else strategy.decisions()


def stages_of(facts: Facts, strategy: Strategy) -> Stages:
    """Return all pipeline ranks with their layers: on the first axis with a layout, else on the axis of the ranks."""
    if strategy.layout:
        return contents_of(strategy, facts.model).stages(facts, pp=strategy.pp)
    where = {name: getattr(strategy, name) for name in ("pp", "vpp", "schedule", "vocabulary")}
    return every_stage(facts.model, **where)


def rank_breakdowns(facts: Facts, strategy: Strategy) -> tuple[tuple[Part, ...], ...]:
    r"""
    Return the breakdown of the step on every pipeline rank; the parts of each add up to the step.

    .. math:: B_r = T - m R_r - E_r

    Derivation: all ranks take the same step T. A rank works R for each of its micro-batches and E at its end, and waits
    for others for the rest. So a rank with less work has a longer bubble. On the slowest rank these are the parts of
    :attr:`Estimate.breakdown`, except for the end, which there is that of the rank that finishes last.

    Parameters
    ----------
    facts, strategy
        As in :func:`estimate`.

    Returns
    -------
    tuple
        One breakdown for each of the pp ranks.
    """
    step, each = estimate(facts, strategy).step_seconds, _parts_of_ranks(facts, strategy)
    return tuple(_rank_breakdown(each, rank, step) for rank in range(strategy.pp))


def _rank_breakdown(each: _RankParts, rank: int, step: float) -> tuple[Part, ...]:
    exposed, alone = (_take_rank(parts, rank, ending=rank) for parts in each)
    return _build_parts({**exposed, "bubble": max(0.0, step - sum(exposed.values()))}, alone)


def _breakdown(facts: Facts, strategy: Strategy, ranks: _Ranks) -> tuple[Part, ...]:
    """Return the terms of :func:`costmodel.step.step.step_seconds` one by one, for the slowest rank."""
    each = _parts_of_ranks(facts, strategy)
    exposed, alone = (_take_rank(parts, ranks.slowest) for parts in each)
    return _build_parts({**exposed, "bubble": _waiting_seconds(facts, strategy, ranks)}, alone)


def _build_parts(exposed: dict[str, float], alone: dict[str, float]) -> tuple[Part, ...]:
    hidden = {name: max(0.0, seconds - exposed[name]) for name, seconds in alone.items() if name != "optimizer"}
    return tuple(Part(name=name, exposed_seconds=exposed[name], hidden_seconds=hidden.get(name, 0.0)) for name in PARTS)


ENDING = ("dp", "optimizer")
"""Lines of a breakdown after the last micro-batch."""


def _take_rank(parts: dict[str, Array], rank: int = 0, *, ending: int | None = None) -> dict[str, float]:
    """Return the lines of a rank, and of the end those of another one; None: of the rank that finishes last."""
    last = int((parts["dp"] + parts["optimizer"]).argmax()) if ending is None else ending
    return {name: float(seconds[last if name in ENDING else rank]) for name, seconds in parts.items()}


_RankParts: TypeAlias = tuple[dict[str, Array], dict[str, Array]]
"""
Exposed seconds of every rank by line of the breakdown, without waiting, shape (pp,).

Beside them those of communication alone, whether or not computation hides it.
"""


def _parts_of_ranks(facts: Facts, strategy: Strategy) -> _RankParts:
    return facts.compute_once((_parts_of_ranks, strategy), lambda: _build_rank_parts(facts, strategy))


def _build_rank_parts(facts: Facts, strategy: Strategy) -> _RankParts:
    ranks, decisions = _ranks_of(facts, strategy), strategy.decisions()
    m, constants = int(microbatches(facts, decisions)), facts.cluster.device.constants
    edge_compute, edge_communication = _edge_parts(facts, ranks)
    busy = {
        name: m * ranks.busy_seconds(name) for name in ("compute", "recompute", "tp", "cp", "ep", "offload", "host")
    }
    whole = average_rank(facts, decisions)
    sent = m * ranks.each(sent_seconds(facts, decisions, ranks.stages))
    edges = float(ep_fill_seconds(decisions, whole, layer_parts(facts, decisions)))
    alone = {name: m * seconds for name, seconds in _layers_alone(facts, decisions, ranks.layers).items()}
    exposed = busy | {
        "compute": busy["compute"] + m * edge_compute,
        "tp": busy["tp"] + m * edge_communication,
        "ep": busy["ep"] + edges,
        "host": busy["host"] + m * constants.microbatch_seconds + float(once_seconds(facts, decisions)),
        "pp": sent + _transfer_seconds(facts, decisions, whole),
    }
    alone |= {
        "tp": alone["tp"] + m * edge_communication,
        "pp": sent + _transfer_seconds(facts, {**decisions, "pp_overlap": False}, whole),
    }
    return (
        exposed | _build_ending(facts, ranks.decisions, ranks.stages),
        alone | _build_ending(facts, {**ranks.decisions, "dp_overlap": False}, ranks.stages),
    )


def _layers_alone(facts: Facts, decisions: Decisions, layers: Array) -> dict[str, Array]:
    """Seconds per micro-batch of each rank's communication inside of layers alone, by group of ranks."""
    alone = lookup(layer_seconds, facts, decisions)
    both = {
        "tp": alone.tp_forward + alone.tp_backward,
        "cp": alone.cp_forward + alone.cp_backward,
        "ep": alone.ep_forward + alone.ep_backward,
    }
    return {name: (layers * per_layer).sum(axis=-1) for name, per_layer in both.items()}


PARTS = ("compute", "recompute", "tp", "cp", "ep", "offload", "host", "pp", "bubble", "dp", "optimizer")
"""Lines of a breakdown, in the order of a step."""


MOST_SIMULATED_PASSES = 2_000_000
"""Passes up to which the waiting is simulated again, in some seconds; beyond, it is that of the search."""


def _waiting_seconds(facts: Facts, strategy: Strategy, ranks: _Ranks) -> float:
    """Seconds in which the slowest rank of the simulated pipeline waits, for unequal micro-batches too."""
    return facts.compute_once((_waiting_seconds, strategy), lambda: _simulate_waiting(facts, strategy, ranks))


def _simulate_waiting(facts: Facts, strategy: Strategy, ranks: _Ranks) -> float:
    decisions = strategy.decisions()
    order, imbalance = _order(facts, decisions), float(imbalance_seconds(facts, decisions))
    if order is None or order["pp"] == 1 or fewest_passes(**order) > MOST_SIMULATED_PASSES:
        if strategy.layout:
            return float(layout_cost(facts, strategy).bubble_seconds)
        return float(waiting_seconds(facts, decisions, ranks.stages, ranks.parts, ranks.seconds)) + imbalance
    passes = layout_passes(facts, strategy) if strategy.layout else stage_passes(facts, decisions)
    span = span_seconds(
        forward=np.asarray(passes.forward),
        backward=np.asarray(passes.backward),
        weight=np.asarray(passes.weight),
        **order,
    )
    waiting = span - float(order["num_microbatches"] * ranks.seconds.max()) + float(edge_seconds(facts, decisions))
    return waiting + imbalance


def _order(facts: Facts, decisions: Decisions) -> dict[str, Any] | None:
    return pipeline_order({**decisions, "num_microbatches": microbatches(facts, decisions)})


def _transfer_seconds(facts: Facts, decisions: Decisions, whole: Stages) -> float:
    slices = microbatches(facts, decisions) * lookup(slices_seconds, facts, decisions)
    return float(pp_seconds(facts, decisions, whole, layer_parts(facts, decisions)) + slices)


def _build_ending(facts: Facts, decisions: Decisions, stages: Stages) -> dict[str, Array]:
    """Return data-parallel communication and update of every rank, shape (pp,)."""
    return {
        name: np.broadcast_to(part(facts, decisions, stages), stages.rank.shape).ravel()
        for name, part in zip(ENDING, (dp_seconds, update_seconds), strict=True)
    }


def _edge_parts(facts: Facts, ranks: _Ranks) -> tuple[Array, Array]:
    """Return the seconds of computation and of communication that embedding, head and MTP add to each rank."""
    edge = lookup(embedding_head_seconds, facts, {**ranks.decisions})
    first, last = ranks.stages.first.ravel(), ranks.stages.last.ravel()
    return (
        first * edge.embedding + last * (edge.head + edge.mtp),
        first * edge.embedding_communication + last * (edge.head_communication + edge.mtp_communication),
    )


def device_bytes(facts: Facts, strategy: Strategy) -> float:
    """Peak bytes of the fullest rank, as in :attr:`Estimate.device_bytes`, without the times of the step."""
    return float(rank_bytes(facts, _decisions_of(strategy), stages_of(facts, strategy)).total.max())


def _estimates(facts: Facts, strategy: Strategy, ranks: _Ranks) -> tuple[RankEstimate, ...]:
    device = rank_bytes(facts, ranks.decisions, ranks.stages)
    host, port = (
        ranks.each(of_rank(facts, ranks.decisions, ranks.stages)) for of_rank in (rank_host_bytes, rank_port_bytes)
    )
    whole = whole_stages(ranks.decisions, ranks.stages).layers.reshape(strategy.pp, -1)
    part_bytes = {name: ranks.each(values) for name, values in device.part_bytes().items()}
    return tuple(
        RankEstimate(
            rank=rank,
            num_layers=round(whole[rank].sum()),
            microbatch_seconds=float(ranks.seconds[rank]),
            bytes_by_part={name: float(values[rank]) for name, values in part_bytes.items()},
            host_bytes=float(host[rank]),
            port_bytes=float(port[rank]),
        )
        for rank in range(strategy.pp)
    )
