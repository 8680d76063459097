"""The decisions of a strategy, as reports spell them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from costmodel.strategy import Decision
from costmodel.tables import microbatches
from planner.report.records.record import Record

if TYPE_CHECKING:
    from costmodel.strategy import StageLayout, Strategy
    from costmodel.tables import Facts


class LayoutRecord(Record):
    """
    Stages that differ.

    Parameters
    ----------
    layers
        Layers of each virtual stage in model order, pp * vpp of them.
    recompute
        What each pipeline rank computes again.
    full_layers
        Layers of each rank that are recomputed in full, the first ones of each chunk.
    activation_offload
        Whether each rank's activations wait in host memory.
    """

    layers: list[int]
    recompute: list[str]
    full_layers: list[int]
    activation_offload: list[bool]

    @classmethod
    def of(cls, layout: StageLayout) -> LayoutRecord:
        """The record of a layout."""
        return cls(
            layers=list(layout.layers),
            recompute=[one.text for one in layout.recompute],
            full_layers=list(layout.full_layers),
            activation_offload=list(layout.activation_offload),
        )


class StrategyRecord(Record):
    """
    Every decision by name, as job files spell its value.

    Parameters
    ----------
    tp, cp, pp, dp, ep, etp
        Tensor-, context-, pipeline-, data-, expert-parallel degree, and the tensor-parallel degree inside experts.
    vpp
        Model chunks per pipeline rank.
    group
        Micro-batches that pass through a chunk before the next one begins.
    mbs
        Sequences per micro-batch.
    sequence_parallel
        Whether norms and residuals are split over the tensor-parallel ranks.
    schedule
        In which order the pipeline ranks work.
    vocabulary
        Where the pipeline keeps embedding and head.
    sharding
        What the data-parallel ranks share.
    recompute
        What the backward pass computes again; modules are joined by +.
    activation_offload, optimizer_offload
        Whether activations wait in host memory; whether optimizer states live there.
    token_dispatcher
        How tokens get to their experts and back.
    cuda_graphs
        What the host launches at once; modules are joined by +.
    tp_overlap, cp_overlap, ep_overlap, pp_overlap, dp_overlap
        Whether communication of that dimension runs behind computation.
    layout
        The stages where they differ, else null.
    num_microbatches
        Micro-batches per pipeline and step.
    """

    tp: int
    cp: int
    pp: int
    dp: int
    ep: int
    etp: int
    vpp: int
    group: int
    mbs: int
    sequence_parallel: bool
    schedule: str
    vocabulary: str
    sharding: str
    recompute: str
    activation_offload: bool
    optimizer_offload: bool
    token_dispatcher: str
    cuda_graphs: str
    tp_overlap: bool
    cp_overlap: bool
    ep_overlap: bool
    pp_overlap: bool
    dp_overlap: bool
    layout: LayoutRecord | None
    num_microbatches: int

    @classmethod
    def of(cls, strategy: Strategy, *, num_microbatches: int) -> StrategyRecord:
        """The record of a strategy with the micro-batches that follow."""
        return cls(
            **{name: spelled(value) for name, value in strategy.decisions().items()},
            layout=LayoutRecord.of(strategy.layout) if strategy.layout else None,
            num_microbatches=num_microbatches,
        )

    @classmethod
    def among(cls, facts: Facts, strategy: Strategy | None) -> StrategyRecord | None:
        """The record of a strategy that no estimate goes with, if there is one."""
        if strategy is None:
            return None
        return cls.of(strategy, num_microbatches=int(microbatches(facts, strategy.decisions())))


def spelled(value: Any) -> Any:
    """The value of a decision as job files spell it."""
    return value.text if isinstance(value, Decision) else value
