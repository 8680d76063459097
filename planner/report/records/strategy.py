"""The decisions of a strategy, as reports spell them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from pydantic import BeforeValidator, PrivateAttr

from costmodel.pipelines.stages import stage_layout
from costmodel.strategy import Decision
from costmodel.tables import microbatches
from planner.jobs.line.writing import write_line
from planner.report.records.record import Record, entry

if TYPE_CHECKING:
    from costmodel.strategy import Strategy
    from planner.jobs.problem import Problem


def spell(value: Any) -> Any:
    """Return the value of a decision as job files spell it."""
    return value.text if isinstance(value, Decision) else value


Spelled: TypeAlias = Annotated[str, BeforeValidator(spell)]


class LayoutRecord(Record):
    """The stages of a pipeline."""

    layers: list[int] = entry("Layers of each virtual stage in model order, pp * vpp of them.")
    recompute: list[Spelled] = entry("Activations that each pipeline rank recomputes.")
    full_layers: list[int] = entry("Layers of each rank that are recomputed in full, the first ones of each chunk.")
    activation_offload: list[bool] = entry("By rank, true if its activations are offloaded to host memory.")


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
    sequence_parallel: bool = entry("True if norms and residuals are split over the tensor-parallel ranks.")
    schedule: Spelled = entry("Pipeline schedule.")
    vocabulary: Spelled = entry("Pipeline ranks that hold embedding and head.")
    sharding: Spelled = entry("States that are sharded over the data-parallel ranks.")
    recompute: Spelled = entry("Activations that the backward pass recomputes; modules are joined by +.")
    activation_offload: bool = entry("True if activations are offloaded to host memory.")
    optimizer_offload: bool = entry("True if optimizer states are kept in host memory.")
    token_dispatcher: Spelled = entry("Token dispatcher of the MoE layers.")
    cuda_graphs: Spelled = entry("Scope of CUDA graphs; modules are joined by +.")
    tp_overlap: bool = entry("True if tensor-parallel communication is overlapped with computation.")
    cp_overlap: bool = entry("True if context-parallel communication is overlapped with computation.")
    ep_overlap: bool = entry("True if expert-parallel communication is overlapped with computation.")
    pp_overlap: bool = entry("True if pipeline communication is overlapped with computation.")
    dp_overlap: bool = entry("True if data-parallel communication is overlapped with computation.")
    layout: LayoutRecord | None = entry("The stages; null where there is only one.")
    num_microbatches: int = entry("Micro-batches per pipeline and step.")

    _line = PrivateAttr(default="")
    _is_dealt = PrivateAttr(default=True)

    @property
    def line(self) -> str:
        """Return the strategy in one line, as every verb takes it, with settings that were chosen of several."""
        return str(self._line)

    @property
    def has_own_stages(self) -> bool:
        """True if the stages are given, not derived from the decisions."""
        return not self._is_dealt

    @classmethod
    def build(cls, problem: Problem, strategy: Strategy) -> StrategyRecord:
        """Build the record of a strategy for a job."""
        facts = problem.facts
        is_single = strategy.layout is None and strategy.pp * strategy.vpp == 1
        record = cls.read(
            strategy,
            layout=None if is_single else stage_layout(strategy, facts.model),
            num_microbatches=int(microbatches(facts, strategy.decisions())),
        )
        record._line = write_line(facts, strategy, problem.settings)
        record._is_dealt = strategy.layout is None
        return record

    @classmethod
    def build_optional(cls, problem: Problem, strategy: Strategy | None) -> StrategyRecord | None:
        """Build the record of a strategy, if there is one."""
        return None if strategy is None else cls.build(problem, strategy)
