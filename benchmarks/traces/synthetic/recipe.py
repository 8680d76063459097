"""The job whose traces are made: its pipeline, its ranks, and the kernels of a layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from benchmarks.traces.synthetic.machine import Lags
from costmodel.errors import SpecError
from costmodel.pipelines.orders import has_order, stages_of_rank
from costmodel.strategy import BIDIRECTIONAL, Schedule


class Work(NamedTuple):
    """
    Work that takes time: a kernel, a copy, a fill, a communication, a call of the runtime.

    Parameters
    ----------
    name, rank, layer
        Its name and rank, of a communication the least one; the layer of the model, -1 where it belongs to none.
    number
        Correlation of the call; of a communication, how many its group had before.
    group, ranks, elements
        Group of a communication (a pair of ranks and a direction for sends and receives), its members, and the elements
        that each sends.
    shards
        Replicas that update a part of the optimizer's states each.
    """

    name: str
    rank: int
    layer: int
    number: int
    group: str = ""
    ranks: tuple[int, ...] = ()
    elements: int = 0
    shards: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """
    A job whose traces are made.

    Parameters
    ----------
    duration
        Nanoseconds of each piece of work.
    schedule, pp, vpp, num_microbatches
        The pipeline.
    dp, tp
        Replicas, and ranks that a layer is split over: they all-reduce around attention and MLP. Ranks of tp are next
        to each other, then those of dp, then stages, as Megatron-LM orders them.
    num_layers, hidden_size, sequence_length
        The model; shapes are only recorded. Earlier stages have one layer more where they do not divide.
    num_steps
        Iterations.
    overlap_p2p
        True if receives are posted before the pass that is before the one that needs them.
    overlap_gradients
        True if a layer's gradients are reduced as soon as they are complete; else behind all passes.
    sharded
        Sharding over replicas: none; of the optimizer's states, so that they gather each layer's weights
        behind it; or of all states, so that they do so before each pass, and reduce and scatter gradients behind each
        backward pass.
    ending
        End of a step: all ranks meet and wait for their devices (``barrier``), each waits for its device or its
        compute stream, or nobody waits.
    copies_loss
        True if the last stage copies the loss to the host, and waits for it.
    annotations, operators
        True if passes are annotated; True if operators are recorded with their operands.
    pause
        Nanoseconds that a thread works between two calls.
    lags
        Delays of the machine.
    clocks
        Nanoseconds by which the clock of each rank's host is ahead, one after the other; missing ones are right.
    """

    duration: Callable[[Work], int]
    schedule: Schedule = Schedule.ONE_F_ONE_B
    pp: int = 1
    vpp: int = 1
    num_microbatches: int = 1
    dp: int = 1
    tp: int = 1
    num_layers: int = 4
    hidden_size: int = 1024
    sequence_length: int = 2048
    num_steps: int = 2
    overlap_p2p: bool = True
    overlap_gradients: bool = True
    sharded: Literal["nothing", "optimizer", "all"] = "nothing"
    ending: Literal["barrier", "device", "stream", "none"] = "device"
    copies_loss: bool = False
    annotations: bool = False
    operators: bool = False
    pause: int = 1_000
    lags: Lags = field(default_factory=Lags)
    clocks: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not has_order(self.schedule, pp=self.pp, vpp=self.vpp, num_microbatches=self.num_microbatches):
            raise SpecError(
                "schedule",
                f"{self.schedule.text} has no order of {self.num_microbatches} micro-batches on pp = {self.pp} ranks "
                f"with vpp = {self.vpp}.",
            )
        if self.num_layers < self.num_stages:
            raise SpecError("num_layers", f"is {self.num_layers}, fewer than the {self.num_stages} stages.")

    @property
    def num_stages(self) -> int:
        """Number of virtual stages; both directions of DualPipe have the same ones."""
        return self.pp if self.schedule in BIDIRECTIONAL else self.pp * self.vpp

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.pp * self.dp * self.tp

    def layers_of(self, stage: int) -> range:
        """Layers of a virtual stage."""
        each, more = divmod(self.num_layers, self.num_stages)
        first = stage * each + min(stage, more)
        return range(first, first + each + (stage < more))


# --- what a layer is ---------------------------------------------------------------------------------------


class Part(NamedTuple):
    """
    A kernel of the forward pass, or an all-reduce over tp ranks.

    Parameters
    ----------
    name, kind
        Name of the kernel; name of its operator.
    outputs, inputs
        Columns of its result and of its input, in hidden sizes.
    reduces_inputs
        True if the gradient of its input is a sum over tp ranks.
    """

    name: str
    kind: Literal["matmul", "norm", "attention", "activation", "embedding", "loss", "all_reduce"]
    outputs: int = 1
    inputs: int = 1
    reduces_inputs: bool = False


LAYER = (
    Part("attention_norm", "norm"),
    Part("qkv", "matmul", outputs=3, reduces_inputs=True),
    Part("core", "attention"),
    Part("projection", "matmul"),
    Part("attention", "all_reduce"),
    Part("mlp_norm", "norm"),
    Part("up", "matmul", outputs=4, reduces_inputs=True),
    Part("gelu", "activation"),
    Part("down", "matmul", inputs=4),
    Part("mlp", "all_reduce"),
)
"""A transformer layer; its tensor-parallel all-reduces are left out where tp is 1."""

EMBEDDING = (Part("embedding", "embedding"),)
HEAD = (Part("final_norm", "norm"), Part("head", "matmul", outputs=32), Part("cross_entropy", "loss"))

OPERATORS = {
    "matmul": ("aten::mm", "MmBackward0"),
    "norm": ("aten::native_layer_norm", "NativeLayerNormBackward0"),
    "attention": ("aten::_flash_attention_forward", "FlashAttentionBackward0"),
    "activation": ("aten::gelu", "GeluBackward0"),
    "embedding": ("aten::embedding", "EmbeddingBackward0"),
    "loss": ("aten::nll_loss_forward", "NllLossBackward0"),
    "all_reduce": ("c10d::allreduce_", "AllReduceBackward0"),
}
"""Operator of each kind in the forward pass, and what autograd calls its backward pass."""

OPTIMIZER = "multi_tensor_apply_kernel_adam"
"""Kernel of the optimizer, one for each layer of a rank."""


def parts_of(recipe: Recipe, stage: int) -> list[tuple[int, Part]]:
    """Parts of a virtual stage's forward pass with their layers, in order; -1 is no layer."""
    layers = [(layer, part) for layer in recipe.layers_of(stage) for part in LAYER]
    kept = [(layer, part) for layer, part in layers if recipe.tp > 1 or part.kind != "all_reduce"]
    first = [(-1, part) for part in EMBEDDING if stage == 0]
    last = [(-1, part) for part in HEAD if stage == recipe.num_stages - 1]
    return first + kept + last


# --- where ranks are ---------------------------------------------------------------------------------------


class Position(NamedTuple):
    """Place of a rank in the job."""

    pipeline: int
    replica: int
    split: int


def position(recipe: Recipe, rank: int) -> Position:
    """Place of a rank."""
    rest, split = divmod(rank, recipe.tp)
    pipeline, replica = divmod(rest, recipe.dp)
    return Position(pipeline, replica, split)


def rank_at(recipe: Recipe, at: Position) -> int:
    """The rank at a place."""
    return (at.pipeline * recipe.dp + at.replica) * recipe.tp + at.split


def holders(recipe: Recipe, at: Position, stage: int) -> tuple[int, ...]:
    """Ranks that hold the same weights: of all replicas, and of both directions where a stage runs in both."""
    pipelines = [at.pipeline]
    if recipe.schedule in BIDIRECTIONAL:
        pipelines = sorted({stage, recipe.pp - 1 - stage})
    return tuple(
        rank_at(recipe, Position(pipeline, replica, at.split)) for pipeline in pipelines for replica in range(recipe.dp)
    )


def neighbours(recipe: Recipe, at: Position, stage: int) -> tuple[int | None, int | None]:
    """Ranks that hold the stages before and behind one of a rank's own; None at the ends, and where it is the same."""
    pp = recipe.pp

    def holder(other: int) -> int | None:
        if not 0 <= other < recipe.num_stages:
            return None
        if recipe.schedule in BIDIRECTIONAL:
            pipeline = other if stage == at.pipeline else pp - 1 - other
        else:
            pipeline = next(
                one for one in range(pp) if other in stages_of_rank(recipe.schedule, one, pp=pp, vpp=recipe.vpp)
            )
        return None if pipeline == at.pipeline else rank_at(recipe, at._replace(pipeline=pipeline))

    return holder(stage - 1), holder(stage + 1)
