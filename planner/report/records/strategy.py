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


def spelled(value: Any) -> Any:
    """The value of a decision as job files spell it."""
    return value.text if isinstance(value, Decision) else value


Spelled: TypeAlias = Annotated[str, BeforeValidator(spelled)]


class LayoutRecord(Record):
    """The stages of a pipeline."""

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
    layout: LayoutRecord | None = entry("The stages; null where there is one, which is as the decisions say.")
    num_microbatches: int = entry("Micro-batches per pipeline and step.")

    _line = PrivateAttr(default="")
    _is_dealt = PrivateAttr(default=True)

    @property
    def line(self) -> str:
        """The strategy in one line, as every verb takes it for its job, with settings that were chosen of several."""
        return str(self._line)

    @property
    def has_own_stages(self) -> bool:
        """True where its stages are others than its decisions mean."""
        return not self._is_dealt

    @classmethod
    def of(cls, problem: Problem, strategy: Strategy) -> StrategyRecord:
        """The record of a strategy for a job."""
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
    def among(cls, problem: Problem, strategy: Strategy | None) -> StrategyRecord | None:
        """The record of a strategy, if there is one."""
        return None if strategy is None else cls.of(problem, strategy)
