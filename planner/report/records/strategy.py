"""The decisions of a strategy, as reports spell them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field

from costmodel.strategy import Decision
from costmodel.tables import microbatches
from planner.report.records.record import Record

if TYPE_CHECKING:
    from costmodel.strategy import StageLayout, Strategy
    from costmodel.tables import Facts


class LayoutRecord(Record):
    """Stages that differ."""

    layers: list[int] = Field(description="Layers of each virtual stage in model order, pp * vpp of them.")
    recompute: list[str] = Field(description="What each pipeline rank computes again.")
    full_layers: list[int] = Field(
        description="Layers of each rank that are recomputed in full, the first ones of each chunk."
    )
    activation_offload: list[bool] = Field(description="Whether each rank's activations wait in host memory.")

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
    """Every decision by name, as job files spell its value."""

    tp: int = Field(description="Tensor-parallel degree.")
    cp: int = Field(description="Context-parallel degree.")
    pp: int = Field(description="Pipeline-parallel degree.")
    dp: int = Field(description="Data-parallel degree.")
    ep: int = Field(description="Expert-parallel degree.")
    etp: int = Field(description="Tensor-parallel degree inside experts.")
    vpp: int = Field(description="Model chunks per pipeline rank.")
    group: int = Field(description="Micro-batches that pass through a chunk before the next one begins.")
    mbs: int = Field(description="Sequences per micro-batch.")
    sequence_parallel: bool = Field(description="Whether norms and residuals are split over the tensor-parallel ranks.")
    schedule: str = Field(description="In which order the pipeline ranks work.")
    vocabulary: str = Field(description="Where the pipeline keeps embedding and head.")
    sharding: str = Field(description="What the data-parallel ranks share.")
    recompute: str = Field(description="What the backward pass computes again; modules are joined by +.")
    activation_offload: bool = Field(description="Whether activations wait in host memory.")
    optimizer_offload: bool = Field(description="Whether optimizer states live in host memory.")
    token_dispatcher: str = Field(description="How tokens get to their experts and back.")
    cuda_graphs: str = Field(description="What the host launches at once; modules are joined by +.")
    tp_overlap: bool = Field(description="Whether tensor-parallel communication runs behind computation.")
    cp_overlap: bool = Field(description="Whether context-parallel communication runs behind computation.")
    ep_overlap: bool = Field(description="Whether expert-parallel communication runs behind computation.")
    pp_overlap: bool = Field(description="Whether pipeline communication runs behind computation.")
    dp_overlap: bool = Field(description="Whether data-parallel communication runs behind computation.")
    layout: LayoutRecord | None = Field(description="The stages where they differ, else null.")
    num_microbatches: int = Field(description="Micro-batches per pipeline and step.")

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
