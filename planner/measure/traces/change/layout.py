"""Layout of a job, as far as it determines the order of its passes and its messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, TypeAlias

from costmodel.errors import SpecError
from costmodel.pipelines.orders import BACKWARD, FORWARD, NONE, has_order, order, stages_of_rank
from costmodel.strategy import Schedule
from planner.measure.traces.events import Message

Direction: TypeAlias = Literal["forward", "backward"]


class Pass(NamedTuple):
    """A pass of a virtual stage for one micro-batch."""

    direction: Direction
    stage: int
    microbatch: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """
    Pipeline and data parallelism of a job.

    Parameters
    ----------
    num_layers, num_microbatches
        Layers of the model, and micro-batches of a step on one rank.
    pp, vpp, schedule
        Pipeline parallelism; zero-bubble schedules, whose backward pass has two halves, are not supported.
    dp
        Data-parallel size: replicas that reduce their gradients.
    """

    num_layers: int
    num_microbatches: int
    pp: int = 1
    vpp: int = 1
    schedule: Schedule = Schedule.ONE_F_ONE_B
    dp: int = 1

    def __post_init__(self) -> None:
        """
        Refuse impossible layouts.

        Raises
        ------
        SpecError
            If the schedule has no such order, or a stage has no layers.
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
        """Return the passes of a pipeline rank, in order."""
        blocks = order(self.schedule, rank, pp=self.pp, vpp=self.vpp, num_microbatches=self.num_microbatches).tolist()
        found: list[Pass] = []
        for block in blocks:
            for direction, one in (("forward", block[FORWARD]), ("backward", block[BACKWARD])):
                if one != NONE:
                    found.append(Pass(direction, *divmod(one, self.num_microbatches)))  # type: ignore[arg-type]
        return tuple(found)

    def stages(self, rank: int) -> tuple[int, ...]:
        """Return the virtual stages of a pipeline rank."""
        return stages_of_rank(self.schedule, rank, pp=self.pp, vpp=self.vpp)

    def layers(self) -> tuple[range, ...]:
        """Return the layers of each virtual stage; the first stages have one more where the layers do not divide."""
        each, more = divmod(self.num_layers, self.num_stages)
        firsts = [stage * each + min(stage, more) for stage in range(self.num_stages)]
        return tuple(range(first, first + each + (stage < more)) for stage, first in enumerate(firsts))

    def receives(self, one: Pass) -> bool:
        """Return True if a pass needs a message from another rank."""
        last = self.num_stages - 1
        return self.pp > 1 and one.stage != (0 if one.direction == "forward" else last)

    def sends(self, one: Pass) -> bool:
        """Return True if another rank needs the result of a pass."""
        last = self.num_stages - 1
        return self.pp > 1 and one.stage != (last if one.direction == "forward" else 0)


class Network(Protocol):
    """Times of messages."""

    def nanoseconds(self, message: Message, *, purpose: Literal["pp", "dp"], ranks: int) -> int:
        """
        Return the nanoseconds of a message, from the moment when all of its ranks have arrived.

        Parameters
        ----------
        message
            Operation, elements and type of the message.
        purpose, ranks
            Purpose, pipeline stages or gradients of replicas, and the number of ranks that take part.
        """
        ...
