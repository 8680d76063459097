"""The decisions: what the planner may choose, one field each."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any


class Decision(IntEnum):
    """A non-numeric decision; ordered, so that formulas can compare it in numpy arrays."""

    @property
    def text(self) -> str:
        """The name as job files and reports spell it."""
        return self.name.lower()


class Sharding(Decision):
    """What each data-parallel rank keeps only a shard of (ZeRO 0-3); each level includes the one before."""

    NONE = 0
    OPTIMIZER = 1
    GRADIENTS = 2
    WEIGHTS = 3


class Recompute(Decision):
    """What the backward pass computes again instead of keeping it."""

    NONE = 0
    SELECTIVE = 1
    FULL = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Strategy:
    """
    One complete strategy: every decision has a value.

    Parameters
    ----------
    tp, cp, pp, dp, ep, etp
        Tensor-, context-, pipeline-, data-, expert-parallel degree, and the tensor-parallel degree inside experts.
        ``tp * cp * pp * dp`` is the number of devices; experts fold over ``tp * cp * dp``.
    vpp
        Model chunks per pipeline rank; 1 is the plain schedule.
    mbs
        Sequences per micro-batch.
    sequence_parallel
        Norms and residuals are split over the tensor-parallel ranks.
    sharding
        What the data-parallel ranks share instead of replicating.
    recompute
        What the backward pass computes again.
    activation_offload
        Activations wait for their backward pass in host memory.
    optimizer_offload
        Optimizer states live in host memory and the CPU updates the parameters.
    tp_overlap, cp_overlap, ep_overlap, pp_overlap, dp_overlap
        Communication of that dimension runs behind computation.
    """

    tp: int
    cp: int
    pp: int
    dp: int
    ep: int
    etp: int
    vpp: int
    mbs: int
    sequence_parallel: bool
    sharding: Sharding
    recompute: Recompute
    activation_offload: bool
    optimizer_offload: bool
    tp_overlap: bool
    cp_overlap: bool
    ep_overlap: bool
    pp_overlap: bool
    dp_overlap: bool

    def decisions(self) -> dict[str, Any]:
        """Every decision by name, in the order of the fields."""
        return {name: getattr(self, name) for name in DECISIONS}


DECISIONS: tuple[str, ...] = tuple(field.name for field in fields(Strategy))

DEGREES: tuple[str, ...] = ("tp", "cp", "pp", "dp", "ep", "etp", "vpp", "mbs")

OVERLAPS: tuple[str, ...] = ("tp_overlap", "cp_overlap", "ep_overlap", "pp_overlap", "dp_overlap")

ENUMS: dict[str, type[Decision]] = {"sharding": Sharding, "recompute": Recompute}

FLAGS: tuple[str, ...] = ("sequence_parallel", "activation_offload", "optimizer_offload", *OVERLAPS)
