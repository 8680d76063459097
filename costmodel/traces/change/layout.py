"""How a job is laid out, as far as the order of its passes and its messages depend on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, TypeAlias

from costmodel.errors import SpecError
from costmodel.pipelines.orders import BACKWARD, FORWARD, NONE, has_order, order, stages_of_rank
from costmodel.strategy import Schedule
from costmodel.traces.events import Message

Direction: TypeAlias = Literal["forward", "backward"]


class Pass(NamedTuple):
    """A pass of a virtual stage for one micro-batch."""

    direction: Direction
    stage: int
    microbatch: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """
    The pipeline and the replicas of a job.

    Parameters
    ----------
    num_layers, num_microbatches
        Of the model, and of a step on one rank.
    pp, vpp, schedule
        The pipeline; schedules whose backward pass has two halves are not changed.
    dp
        Replicas, which reduce their gradients.
    """

    num_layers: int
    num_microbatches: int
    pp: int = 1
    vpp: int = 1
    schedule: Schedule = Schedule.ONE_F_ONE_B
    dp: int = 1

    def __post_init__(self) -> None:
        """
        Refuse what cannot be.

        Raises
        ------
        SpecError
            If the schedule has no such order, or stages no layers.
        """
        if self.schedule not in (Schedule.ONE_F_ONE_B, Schedule.GPIPE):
            raise SpecError("schedule", f"is {self.schedule.text}; traces are changed to 1F1B and GPipe alone.")
        if not has_order(self.schedule, pp=self.pp, vpp=self.vpp, num_microbatches=self.num_microbatches):
            raise SpecError(
                "microbatches",
                f"{self.schedule.text} has no order of {self.num_microbatches} micro-batches on pp = {self.pp} with "
                f"vpp = {self.vpp}.",
            )
        if self.num_layers < self.pp * self.vpp:
            raise SpecError("layers", f"is {self.num_layers}, fewer than pp * vpp = {self.pp * self.vpp} stages.")

    @property
    def num_stages(self) -> int:
        """Number of virtual stages."""
        return self.pp * self.vpp

    def passes(self, rank: int) -> tuple[Pass, ...]:
        """What a pipeline rank does, in order."""
        blocks = order(self.schedule, rank, pp=self.pp, vpp=self.vpp, num_microbatches=self.num_microbatches).tolist()
        found: list[Pass] = []
        for block in blocks:
            for direction, one in (("forward", block[FORWARD]), ("backward", block[BACKWARD])):
                if one != NONE:
                    found.append(Pass(direction, *divmod(one, self.num_microbatches)))  # type: ignore[arg-type]
        return tuple(found)

    def stages(self, rank: int) -> tuple[int, ...]:
        """Virtual stages of a pipeline rank."""
        return stages_of_rank(self.schedule, rank, pp=self.pp, vpp=self.vpp)

    def layers(self) -> tuple[range, ...]:
        """Layers of each virtual stage; the first ones have one more where they do not divide."""
        each, more = divmod(self.num_layers, self.num_stages)
        firsts = [stage * each + min(stage, more) for stage in range(self.num_stages)]
        return tuple(range(first, first + each + (stage < more)) for stage, first in enumerate(firsts))

    def receives(self, one: Pass) -> bool:
        """Whether a pass needs what another rank sends."""
        last = self.num_stages - 1
        return self.pp > 1 and one.stage != (0 if one.direction == "forward" else last)

    def sends(self, one: Pass) -> bool:
        """Whether another rank needs what a pass makes."""
        last = self.num_stages - 1
        return self.pp > 1 and one.stage != (last if one.direction == "forward" else 0)


class Network(Protocol):
    """What messages take."""

    def nanoseconds(self, message: Message, *, purpose: Literal["pp", "dp"], ranks: int) -> int:
        """
        Nanoseconds of a message from when all of its ranks have come.

        Parameters
        ----------
        message
            Its operation, elements and type.
        purpose, ranks
            Between stages of a pipeline or for gradients of replicas; how many ranks take part.
        """
        ...
