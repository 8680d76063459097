"""Decisions of a strategy: the planner's choices, one field each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from enum import IntEnum
from functools import cache, reduce
from numbers import Integral
from operator import or_
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from costmodel.record import record


class Decision(IntEnum):
    """A non-numeric decision; ordered, so that formulas can compare it in numpy arrays."""

    @property
    def text(self) -> str:
        """Name of the decision in job files and reports."""
        return self.name.lower()

    @classmethod
    def named(cls, text: str) -> Self:
        """
        Return the decision of a name.

        Raises
        ------
        KeyError
            If no decision has the name.
        """
        return {member.text: member for member in cls}[text]

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: object) -> Any:
        """Return the schema of its text, as reports write it."""
        from pydantic_core.core_schema import str_schema

        return str_schema()


class Sharding(Decision):
    """States that data-parallel ranks shard (ZeRO 0-3); each level includes the previous one."""

    NONE = 0
    OPTIMIZER = 1
    GRADIENTS = 2
    WEIGHTS = 3


MODULES = (
    "core_attention",
    "qkv",
    "norms",
    "mlp",
    "shared_experts",
    "expert_activation",
    "experts",
    "every_other_matmul",
)
"""Modules of a layer that can be recomputed alone (``recompute.CONTENTS`` has their contents)."""

INSIDE = {"experts": ("shared_experts", "expert_activation")}
"""Modules that are parts of others."""


class ModulesDecision(Decision):
    """
    A decision with a value for every set of modules: a bit for each, above those of its members.

    A subclass names its modules.
    """

    def __reduce_ex__(self, protocol: Any) -> tuple[type, tuple[int]]:
        """Copy and pickle by value: Python before 3.11.4 asks the class for the name, which sets do not have there."""
        return type(self), (int(self),)

    @classmethod
    def modules(cls) -> tuple[str, ...]:
        """Return the names that a set may hold, in the order of their bits."""
        raise NotImplementedError

    @classmethod
    def first_bit(cls) -> int:
        """Return the bit of the first module, above those of the members."""
        return 1 << max(int(member) for member in cls).bit_length()

    @classmethod
    def of(cls, *modules: str) -> Self:
        """Return the decision for some modules."""
        return cls(sum(cls.first_bit() << cls.modules().index(module) for module in set(modules)))

    @classmethod
    def named(cls, text: str) -> Self:
        """
        Return the decision of a name, or of modules joined by ``+``.

        >>> Recompute.named("qkv+norms") == Recompute.of("norms", "qkv")
        True

        Raises
        ------
        KeyError
            If there is no such name or module.
        """
        members = {member.text: member for member in cls}
        modules = text.split("+")
        if text not in members and not set(modules) <= set(cls.modules()):
            raise KeyError(text)
        return members[text] if text in members else cls.of(*modules)

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        first, names = cls.first_bit(), cls.modules()
        number = int(value) if isinstance(value, Integral) else 0
        if number % first or not 0 < number < first << len(names):
            return None
        member = int.__new__(cls, number)
        member._name_ = "+".join(name for i, name in enumerate(names) if number & (first << i)).upper()
        member._value_ = number
        return member


class Recompute(ModulesDecision):
    """
    Activations that the backward pass recomputes instead of keeping them.

    A set of modules is ``Recompute.of("core_attention", "mlp")``.
    """

    NONE = 0
    SELECTIVE = 1
    FULL = 2

    @classmethod
    def modules(cls) -> tuple[str, ...]:
        """Return the names of :data:`MODULES`."""
        return MODULES

    @classmethod
    def of(cls, *modules: str) -> Recompute:
        """
        Return the decision to recompute some modules, and the modules inside them.

        >>> Recompute.of("mlp", "core_attention").text
        'core_attention+mlp'
        """
        return super().of(*(part for module in modules for part in (module, *INSIDE.get(module, ()))))


class TokenDispatcher(Decision):
    """
    Dispatch of tokens to their experts on other devices and back.

    ``ALLTOALL``: a copy for each expert, by an all-to-all. ``DEEPEP``, ``HYBRIDEP``: a token is sent once to each
    device that it visits, and once to each scale-up domain on the way, by specialised kernels.
    """

    ALLTOALL = 0
    DEEPEP = 1
    HYBRIDEP = 2


def deduplicates_dispatch(*, token_dispatcher: Any) -> Any:
    """
    Return True where a dispatcher sends a token once to each device that it visits, not once per expert.

    >>> bool(deduplicates_dispatch(token_dispatcher=TokenDispatcher.HYBRIDEP))
    True
    """
    return np.asarray(token_dispatcher) != int(TokenDispatcher.ALLTOALL)


def asks_host(*, token_dispatcher: Any) -> Any:
    """
    Return True where the host waits for the numbers of tokens that arrive before it launches the next kernels.

    References
    ----------
    megatron-core 0.16.1, ``transformer/moe/token_dispatcher.py``, ``_maybe_dtoh_and_synchronize``; DeepEP,
    ``deep_ep/buffer.py``, ``dispatch``: the host waits for the device's count. Hybrid-EP has the counts on the device.
    """
    return np.asarray(token_dispatcher) != int(TokenDispatcher.HYBRIDEP)


GRAPH_MODULES = ("attn", "mlp", "moe", "moe_router", "moe_preprocess", "mamba")
"""
Modules of a layer that CUDA graphs may hold, by Megatron-LM's names.

``attn`` is attention with the norm before it and its residual, ``mlp`` a dense feed-forward with both. ``moe`` is a
whole mixture of experts. ``moe_router`` is the norm before it, its router and its shared experts. ``moe_preprocess`` is
its work before tokens are sent. ``mamba`` is a Mamba layer.
"""


class CudaGraphs(ModulesDecision):
    """
    Kernels that the host launches at once, as CUDA graphs.

    A set of modules of each layer is ``CudaGraphs.of("attn", "mlp")``.
    """

    NONE = 0
    FULL_ITERATION = 1

    @classmethod
    def modules(cls) -> tuple[str, ...]:
        """Return the names of :data:`GRAPH_MODULES`."""
        return GRAPH_MODULES


@cache
def _graph_bit(module: str) -> int:
    """Return the decision for a single module as a number, cached since every operator of a layer asks for it."""
    return int(CudaGraphs.of(module))


def captures(module: str, *, cuda_graphs: Any) -> NDArray[np.bool_]:
    """
    Return True where a decision names a module; False for graphs of a whole iteration, which name none.

    >>> bool(captures("attn", cuda_graphs=CudaGraphs.of("attn", "mlp"))), bool(captures("attn", cuda_graphs=1))
    (True, False)
    """
    return np.asarray(np.asarray(cuda_graphs, dtype=np.int64) & _graph_bit(module) != 0)


MODULES_OF: dict[str, tuple[str, ...]] = {"recompute": MODULES, "cuda_graphs": GRAPH_MODULES}
"""Names that ``+`` may join in the text of a decision."""


class Schedule(Decision):
    """
    Order of a pipeline rank's passes; ``costmodel.pipelines.schedules`` has the idle time and chunks in flight.

    The zero-bubble schedules (ZB) split the backward pass in two and compute weights' gradients where a rank would
    wait. The V-shaped ones (``ZB_V``, ``V_HALF``, ``DUALPIPEV``) have two chunks per rank, the second in opposite
    order: the first rank holds both ends of the model. ``DUALPIPE`` sends half of the micro-batches from either end, so
    that a rank holds two stages, and every stage is on two ranks.
    """

    ONE_F_ONE_B = 0
    GPIPE = 1
    ZB_H1 = 2
    ZB_H2 = 3
    ZB_2P = 4
    ZB_V = 5
    V_HALF = 6
    DUALPIPE = 7
    DUALPIPEV = 8

    @property
    def text(self) -> str:
        """Name of the schedule in job files and reports; a Python name cannot begin with a digit."""
        return "1f1b" if self is Schedule.ONE_F_ONE_B else self.name.lower()


V_SHAPED = (Schedule.ZB_V, Schedule.V_HALF, Schedule.DUALPIPEV)
"""Schedules whose second chunks traverse the ranks backwards."""

BIDIRECTIONAL = (Schedule.DUALPIPE,)
"""Schedules whose ranks hold a stage for each direction: every stage is on two of them."""


def is_one_of(decision: Any, values: Iterable[Decision]) -> NDArray[np.bool_]:
    """
    Return True where decisions have one of a few values; ``np.isin`` takes many times as long.

    >>> bool(is_one_of(Schedule.ZB_V, V_SHAPED)), is_one_of(np.array([0, 1]), [Schedule.GPIPE]).tolist()
    (True, [False, True])
    """
    chosen = np.asarray(decision)
    return np.asarray(reduce(or_, (chosen == int(value) for value in values)))


class Vocabulary(Decision):
    """
    Placement of embedding and head in a pipeline.

    ``ENDS``: on the first and the last rank. ``REDISTRIBUTED``: also there, but the last rank has fewer layers, by the
    work of the head. ``VOCAB_1``, ``VOCAB_2``, ``INTERLACED``: every rank has a slice of the vocabulary. The first two
    run their slices between other passes with two barriers or one, the last runs them all together.
    """

    ENDS = 0
    REDISTRIBUTED = 1
    VOCAB_1 = 2
    VOCAB_2 = 3
    INTERLACED = 4


@record(frozen=True, kw_only=True, slots=True)
class StageLayout:
    """
    Stages of a pipeline: their layers, recomputation and offload.

    Parameters
    ----------
    layers
        Layers of each virtual stage in model order, pp * vpp of them. Embedding and head are on the first and the last
        one, which may hold no other layer. Layers of multi-token prediction are on the last one and not counted.
    recompute
        Activations that each pipeline rank recomputes.
    full_layers
        Layers of each rank that are recomputed in full instead, the first ones of each chunk.
    activation_offload
        By rank, true if its activations are offloaded to host memory.
    """

    layers: tuple[int, ...]
    recompute: tuple[Recompute, ...]
    full_layers: tuple[int, ...]
    activation_offload: tuple[bool, ...]


@record(frozen=True, kw_only=True, slots=True)
class Strategy:
    """
    One complete strategy: every decision has a value.

    Parameters
    ----------
    tp, cp, pp, dp, ep, etp
        Tensor-, context-, pipeline-, data-, expert-parallel degree, and the tensor-parallel degree inside experts.
        ``tp * cp * pp * dp`` is the number of devices; experts fold over ``tp * cp * dp``.
    vpp
        Number of model chunks per pipeline rank; 1 is the plain schedule.
    group
        Number of micro-batches that pass through a chunk before the next one begins, with interleaved chunks; else 1.
    mbs
        Number of sequences per micro-batch.
    sequence_parallel
        True if norms and residuals are split over the tensor-parallel ranks.
    schedule
        Order of the pipeline ranks' passes.
    vocabulary
        Placement of embedding and head in the pipeline.
    sharding
        States that the data-parallel ranks shard instead of replicating (ZeRO).
    recompute
        Activations that the backward pass recomputes.
    activation_offload
        True if activations are kept in host memory until their backward pass.
    optimizer_offload
        True if optimizer states live in host memory and the CPU updates the parameters.
    token_dispatcher
        Dispatch of tokens to their experts and back.
    cuda_graphs
        Kernels that the host launches at once, as CUDA graphs.
    tp_overlap, cp_overlap, ep_overlap, pp_overlap, dp_overlap
        True if communication of that dimension overlaps with computation.
    layout
        Custom pipeline layout; None if the other decisions imply it. With one, ``recompute`` and ``activation_offload``
        are those of most ranks.
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
    schedule: Schedule
    vocabulary: Vocabulary
    sharding: Sharding
    recompute: Recompute
    activation_offload: bool
    optimizer_offload: bool
    token_dispatcher: TokenDispatcher
    cuda_graphs: CudaGraphs
    tp_overlap: bool
    cp_overlap: bool
    ep_overlap: bool
    pp_overlap: bool
    dp_overlap: bool
    layout: StageLayout | None = None

    @property
    def num_devices(self) -> int:
        """Number of devices of the strategy."""
        return self.tp * self.cp * self.pp * self.dp

    def decisions(self) -> dict[str, Any]:
        """Return every decision of the whole pipeline by name, in the order of the fields."""
        return {name: getattr(self, name) for name in DECISIONS}


def default_microbatch_group(*, pp: Any, vpp: Any) -> Any:
    """
    Default number of micro-batches in a group: p with interleaved chunks, else 1.

    References
    ----------
    Megatron-LM, megatron/core/model_parallel_config.py:448 (of megatron-core 0.16.1).
    """
    return 1 + (np.asarray(vpp) > 1) * (np.asarray(pp) - 1)


DECISIONS: tuple[str, ...] = tuple(field.name for field in fields(Strategy) if field.name != "layout")

DEGREES: tuple[str, ...] = ("tp", "cp", "pp", "dp", "ep", "etp", "vpp", "mbs")

OVERLAPS: tuple[str, ...] = ("tp_overlap", "cp_overlap", "ep_overlap", "pp_overlap", "dp_overlap")

ENUMS: dict[str, type[Decision]] = {
    "schedule": Schedule,
    "vocabulary": Vocabulary,
    "sharding": Sharding,
    "recompute": Recompute,
    "token_dispatcher": TokenDispatcher,
    "cuda_graphs": CudaGraphs,
}

FLAGS: tuple[str, ...] = ("sequence_parallel", "activation_offload", "optimizer_offload", *OVERLAPS)


def decision_text(name: str, value: int) -> str:
    """
    Return a decision's value in the spelling of job files.

    >>> decision_text("sharding", 1), decision_text("tp_overlap", 1), decision_text("tp", 8)
    ('optimizer', 'true', '8')
    """
    if name in ENUMS:
        return ENUMS[name](value).text
    return str(bool(value)).lower() if name in FLAGS else str(value)
