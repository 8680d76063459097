"""The decisions of a strategy, as reports spell them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from pydantic import BeforeValidator

from costmodel.strategy import Decision
from costmodel.tables import microbatches
from planner.report.records.record import Record, entry

if TYPE_CHECKING:
    from costmodel.strategy import Strategy
    from costmodel.tables import Facts


def spelled(value: Any) -> Any:
    """The value of a decision as job files spell it."""
    return value.text if isinstance(value, Decision) else value


Spelled: TypeAlias = Annotated[str, BeforeValidator(spelled)]


class LayoutRecord(Record):
    """Stages that differ."""

    layers: list[int] = entry("Layers of each virtual stage in model order, pp * vpp of them.")
    recompute: list[Spelled] = entry("What each pipeline rank computes again.")
    full_layers: list[int] = entry("Layers of each rank that are recomputed in full, the first ones of each chunk.")
    activation_offload: list[bool] = entry("Whether each rank's activations wait in host memory.")


class StrategyRecord(Record):
    """Every decision by name, as job files spell its value."""

    tp: int = entry("Tensor-parallel degree.")
    cp: int = entry("Context-parallel degree.")
    pp: int = entry("Pipeline-parallel degree.")
    dp: int = entry("Data-parallel degree.")
    ep: int = entry("Expert-parallel degree.")
    etp: int = entry("Tensor-parallel degree inside experts.")
    vpp: int = entry("Model chunks per pipeline rank.")
    group: int = entry("Micro-batches that pass through a chunk before the next one begins.")
    mbs: int = entry("Sequences per micro-batch.")
    sequence_parallel: bool = entry("Whether norms and residuals are split over the tensor-parallel ranks.")
    schedule: Spelled = entry("In which order the pipeline ranks work.")
    vocabulary: Spelled = entry("Where the pipeline keeps embedding and head.")
    sharding: Spelled = entry("What the data-parallel ranks share.")
    recompute: Spelled = entry("What the backward pass computes again; modules are joined by +.")
    activation_offload: bool = entry("Whether activations wait in host memory.")
    optimizer_offload: bool = entry("Whether optimizer states live in host memory.")
    token_dispatcher: Spelled = entry("How tokens get to their experts and back.")
    cuda_graphs: Spelled = entry("What the host launches at once; modules are joined by +.")
    tp_overlap: bool = entry("Whether tensor-parallel communication runs behind computation.")
    cp_overlap: bool = entry("Whether context-parallel communication runs behind computation.")
    ep_overlap: bool = entry("Whether expert-parallel communication runs behind computation.")
    pp_overlap: bool = entry("Whether pipeline communication runs behind computation.")
    dp_overlap: bool = entry("Whether data-parallel communication runs behind computation.")
    layout: LayoutRecord | None = entry("The stages where they differ, else null.")
    num_microbatches: int = entry("Micro-batches per pipeline and step.")

    @classmethod
    def among(cls, facts: Facts, strategy: Strategy | None) -> StrategyRecord | None:
        """The record of a strategy that no estimate goes with, if there is one."""
        if strategy is None:
            return None
        return cls.read(strategy, num_microbatches=int(microbatches(facts, strategy.decisions())))
