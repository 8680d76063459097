"""The decisions of a strategy, as reports spell them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from costmodel.pipelines.stages import stage_layout
from costmodel.tables import microbatches
from planner.jobs.line.writing import write_line
from planner.report.records.record import Record

if TYPE_CHECKING:
    from costmodel.strategy import Strategy
    from planner.jobs.problem import Problem


class LayoutRecord(Record):
    """
    The stages of a pipeline.

    Parameters
    ----------
    layers
        Layers of each virtual stage in model order, pp * vpp of them.
    recompute
        Activations that each pipeline rank recomputes.
    full_layers
        Layers of each rank that are recomputed in full, the first ones of each chunk.
    activation_offload
        By rank, true if its activations are offloaded to host memory.
    """

    layers: list[int]
    recompute: list[str]
    full_layers: list[int]
    activation_offload: list[bool]


class StrategyRecord(Record):
    """
    Every decision by name, as job files spell its value.

    Parameters
    ----------
    tp
        Tensor-parallel degree.
    cp
        Context-parallel degree.
    pp
        Pipeline-parallel degree.
    dp
        Data-parallel degree.
    ep
        Expert-parallel degree.
    etp
        Tensor-parallel degree inside experts.
    vpp
        Model chunks per pipeline rank.
    group
        Micro-batches that pass through a chunk before the next one begins.
    mbs
        Sequences per micro-batch.
    sequence_parallel
        True if norms and residuals are split over the tensor-parallel ranks.
    schedule
        Pipeline schedule.
    vocabulary
        Pipeline ranks that hold embedding and head.
    sharding
        States that are sharded over the data-parallel ranks.
    recompute
        Activations that the backward pass recomputes; modules are joined by +.
    activation_offload
        True if activations are offloaded to host memory.
    optimizer_offload
        True if optimizer states are kept in host memory.
    token_dispatcher
        Token dispatcher of the MoE layers.
    cuda_graphs
        Scope of CUDA graphs; modules are joined by +.
    tp_overlap
        True if tensor-parallel communication is overlapped with computation.
    cp_overlap
        True if context-parallel communication is overlapped with computation.
    ep_overlap
        True if expert-parallel communication is overlapped with computation.
    pp_overlap
        True if pipeline communication is overlapped with computation.
    dp_overlap
        True if data-parallel communication is overlapped with computation.
    layout
        The stages; null where there is only one.
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

    @property
    def line(self) -> str:
        """The strategy in one line, as every verb takes it, with settings that were chosen of several."""
        strategy, problem = self._sources
        return write_line(problem.facts, strategy, problem.settings)

    @property
    def has_own_stages(self) -> bool:
        """True if the stages are given, not derived from the decisions."""
        return self._sources[0].layout is not None

    @classmethod
    def build(cls, problem: Problem, strategy: Strategy) -> StrategyRecord:
        """Build the record of a strategy for a job."""
        facts = problem.facts
        is_single = strategy.layout is None and strategy.pp * strategy.vpp == 1
        return cls.read(
            strategy,
            problem,
            layout=None if is_single else stage_layout(strategy, facts.model),
            num_microbatches=int(microbatches(facts, strategy.decisions())),
        )

    @classmethod
    def build_optional(cls, problem: Problem, strategy: Strategy | None) -> StrategyRecord | None:
        """Build the record of a strategy, if there is one."""
        return None if strategy is None else cls.build(problem, strategy)
