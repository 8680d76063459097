"""One strategy, estimated: its step with the breakdown, and what every pipeline rank holds."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from costmodel.compute import edge_seconds, layer_seconds
from costmodel.layer import Array, Decisions, LayerParts, layer_parts
from costmodel.rank import RankBytes, rank_bytes, rank_host_bytes, whole_stages
from costmodel.stages import Stages, every_stage
from costmodel.step import (
    dp_seconds,
    ep_edge_seconds,
    played_waiting_seconds,
    pp_seconds,
    rank_seconds,
    slices_seconds,
    step_seconds,
    update_seconds,
)
from costmodel.strategy import Strategy
from costmodel.tables import Facts, lookup, microbatches


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """
    One line of a step's breakdown.

    Parameters
    ----------
    name
        ``compute``, ``recompute``, ``tp``, ``cp``, ``ep``, ``offload``, ``pp``, ``bubble``, ``dp``, ``optimizer``.
    exposed_seconds
        Its share of the step; the parts add up to the step.
    hidden_seconds
        What runs behind computation.
    """

    name: str
    exposed_seconds: float
    hidden_seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class RankEstimate:
    """
    One pipeline rank.

    Parameters
    ----------
    rank
        Its number.
    num_layers
        Layers it holds, those of multi-token prediction included.
    microbatch_seconds
        One micro-batch, forward and backward.
    bytes_by_part
        Peak device memory by what it holds, as :class:`costmodel.rank.RankBytes` names it.
    host_bytes
        Host memory that one of its devices needs.
    """

    rank: int
    num_layers: int
    microbatch_seconds: float
    bytes_by_part: dict[str, float]
    host_bytes: float

    @property
    def device_bytes(self) -> float:
        """Peak device memory."""
        return sum(self.bytes_by_part.values())


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """
    What one strategy costs, in detail.

    Parameters
    ----------
    strategy
        The decisions.
    num_microbatches
        Micro-batches per pipeline and step.
    step_seconds
        One optimizer step, its pipeline played through stage by stage.
    closed_form_seconds
        The same by the formulas of :func:`costmodel.step.step_seconds`, which a search compares strategies by; they
        differ where stages do (:func:`costmodel.step.played_waiting_seconds` says how much).
    breakdown
        Where the step goes, on the rank that is slowest.
    ranks
        Every pipeline rank.
    """

    strategy: Strategy
    num_microbatches: int
    step_seconds: float
    closed_form_seconds: float
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


def estimate(facts: Facts, strategy: Strategy) -> Estimate:
    """Estimate one strategy, also one that a rule forbids."""
    held = every_stage(
        facts.model, pp=strategy.pp, vpp=strategy.vpp, schedule=strategy.schedule, vocabulary=strategy.vocabulary
    )
    breakdown = _breakdown(facts, strategy, held)
    return Estimate(
        strategy=strategy,
        num_microbatches=int(microbatches(facts, strategy.decisions())),
        step_seconds=sum(part.exposed_seconds for part in breakdown),
        closed_form_seconds=float(step_seconds(facts, strategy.decisions(), held)),
        breakdown=breakdown,
        ranks=_ranks(facts, strategy, held),
    )


def _breakdown(facts: Facts, strategy: Strategy, held: Stages) -> tuple[Part, ...]:
    """The terms of :func:`costmodel.step.step_seconds`, one by one, for the rank whose pace the others keep."""
    decisions = strategy.decisions()
    parts, alone = layer_parts(facts, decisions), lookup(layer_seconds, facts, decisions)
    ranks = rank_seconds(facts, decisions, held, parts.total)
    slowest, m = int(ranks.argmax()), int(microbatches(facts, decisions))
    edge, profile = _edge_parts(facts, decisions, held), facts.cluster.device.profile

    def busy(per_layer: Array) -> float:
        return m * float((held.layers[slowest] * per_layer).sum())

    edges = float(ep_edge_seconds(held, parts))
    exposed = {
        "compute": busy(parts.compute) + m * float(edge.compute[slowest]),
        "recompute": busy(parts.recompute),
        "tp": busy(parts.tp) + m * float(edge.communication[slowest]),
        "cp": busy(parts.cp),
        "ep": busy(parts.ep) + edges,
        "offload": busy(parts.offload),
        "host": busy(parts.host) + m * profile.microbatch_seconds + profile.step_seconds,
        "bubble": played_waiting_seconds(facts, decisions, held, parts, ranks),
        **_transfers(facts, decisions, held),
        **_ending(facts, decisions, held, parts),
    }
    communication = {
        "tp": busy(alone.tp_forward + alone.tp_backward) + m * float(edge.communication[slowest]),
        "cp": busy(alone.cp_forward + alone.cp_backward),
        "ep": busy(alone.ep_forward + alone.ep_backward) + edges,
        "pp": _transfers(facts, {**decisions, "pp_overlap": False}, held)["pp"],
        "dp": _ending(facts, {**decisions, "dp_overlap": False}, held, parts)["dp"],
    }
    return tuple(
        Part(
            name=name,
            exposed_seconds=exposed[name],
            hidden_seconds=max(0.0, communication.get(name, 0.0) - exposed[name]),
        )
        for name in PARTS
    )


PARTS = ("compute", "recompute", "tp", "cp", "ep", "offload", "host", "pp", "bubble", "dp", "optimizer")
"""The lines of a breakdown, in the order of a step."""


def _transfers(facts: Facts, decisions: Decisions, held: Stages) -> dict[str, float]:
    slices = microbatches(facts, decisions) * lookup(slices_seconds, facts, decisions)
    return {"pp": float(pp_seconds(facts, decisions, held) + slices)}


def _ending(facts: Facts, decisions: Decisions, held: Stages, parts: LayerParts) -> dict[str, float]:
    """Data-parallel communication and update of the rank that finishes last."""
    dp, update = dp_seconds(facts, decisions, held, parts), update_seconds(facts, decisions, held)
    last = int((dp + update).argmax())
    return {"dp": float(dp[last]), "optimizer": float(update[last])}


@dataclass(frozen=True, kw_only=True, slots=True)
class _EdgeParts:
    compute: Array
    communication: Array


def _edge_parts(facts: Facts, decisions: Decisions, held: Stages) -> _EdgeParts:
    """What embedding, head and MTP add to each rank."""
    edge = lookup(edge_seconds, facts, decisions)
    return _EdgeParts(
        compute=held.first * edge.embedding + held.last * (edge.head + edge.mtp),
        communication=held.first * edge.embedding_communication
        + held.last * (edge.head_communication + edge.mtp_communication),
    )


def _ranks(facts: Facts, strategy: Strategy, held: Stages) -> tuple[RankEstimate, ...]:
    decisions = strategy.decisions()
    device, host = rank_bytes(facts, decisions, held), rank_host_bytes(facts, decisions, held)
    whole = whole_stages(decisions, held)
    seconds = rank_seconds(facts, decisions, held, layer_parts(facts, decisions).total)
    by_part = {field.name: np.broadcast_to(getattr(device, field.name), held.rank.shape) for field in fields(RankBytes)}
    return tuple(
        RankEstimate(
            rank=rank,
            num_layers=round(whole.layers[rank].sum()),
            microbatch_seconds=float(seconds[rank]),
            bytes_by_part={name: float(values[rank]) for name, values in by_part.items()},
            host_bytes=float(np.broadcast_to(host, held.rank.shape)[rank]),
        )
        for rank in range(strategy.pp)
    )
