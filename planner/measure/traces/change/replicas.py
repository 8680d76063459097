"""Communication of data-parallel replicas: of gradients, and of sharded parameters."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from planner.measure.traces.events import UNKNOWN, Message
from planner.measure.traces.graph import ExecutionGraph, Kind
from planner.measure.traces.structure import Parts, Phase

OF_REPLICAS = re.compile(r"(?i)data_?parallel|fsdp|replicate|(?<![a-z])dp(?![a-z])")
"""Names of data-parallel groups in Megatron-LM and PyTorch's device meshes."""

OF_OTHERS = re.compile(r"(?i)model_?parallel|tensor|context|pipeline|embedding|(?<![a-z])(tp|cp|pp|ep|world)(?![a-z])")
"""Names of other groups there."""

REDUCTIONS = ("all_reduce", "reduce_scatter")
"""Operations that sum gradients over replicas."""


@dataclass(slots=True)
class _Group:
    """Operations of a group of ranks in forward passes, and elsewhere."""

    size: int = 0
    description: str = ""
    forward: set[str] = field(default_factory=set)
    elsewhere: set[str] = field(default_factory=set)

    @property
    def gathers_parameters(self) -> bool:
        """True where parameters are gathered for forward passes, and gradients reduced afterwards: FSDP, ZeRO-3."""
        return self.forward == {"all_gather"} and "reduce_scatter" in self.elsewhere

    def is_of_replicas(self, dp: int | None) -> bool:
        """Return True if its ranks are replicas, by the group's name, else by its operations."""
        named = bool(OF_REPLICAS.search(self.description)), bool(OF_OTHERS.search(self.description))
        if named[0] != named[1]:
            return named[0]
        if self.gathers_parameters:
            return dp is None or (dp > 1 and self.size in (0, dp))
        return not self.forward and any(one in self.elsewhere for one in REDUCTIONS)


class Replicas:
    """
    Groups of ranks that are replicas of each other.

    They are identified by the names that frameworks give them. Without a name, a group that only reduces, and never in
    a forward pass, counts as one. So does a group that gathers in forward passes and reduce-scatters afterwards, unless
    its size differs from that of the job.

    Parameters
    ----------
    graph, parts
        The recorded iteration, and the parts of its traces' events.
    dp
        Replicas of the recorded job; None where they are unknown.
    """

    def __init__(self, graph: ExecutionGraph, parts: Sequence[Parts], dp: int | None) -> None:
        groups: dict[object, _Group] = defaultdict(_Group)
        tasks = graph.tasks
        rows = (tasks.message != UNKNOWN) & (tasks.kind == Kind.COMMUNICATION)
        for task in rows.nonzero()[0].tolist():
            message = graph.messages[int(tasks.message[task])]
            event = int(tasks.event[task])
            if message.operation in ("send", "recv"):
                continue
            one = groups[group_of(message)]
            one.size = max(one.size, message.num_ranks, len(message.ranks))
            one.description = one.description or message.description
            phase = parts[int(tasks.trace[task])].phase[event] if event != UNKNOWN else Phase.NONE
            if message.operation != "broadcast":  # of buffers, which replicas and others do in forward passes alike
                (one.forward if phase == Phase.FORWARD else one.elsewhere).add(message.operation)
        self.groups = {key for key, one in groups.items() if one.is_of_replicas(dp)}
        self.size = max((groups[key].size for key in self.groups), default=0) or self._world(graph, len(groups))
        """Ranks of the largest of these groups; 0 where the number is unknown."""
        self.are_sharded = any(groups[key].gathers_parameters for key in self.groups)
        """
        True where each rank holds only a shard of the parameters, so that every backward pass reduces its gradients.
        """
        self.gather = any("all_gather" in groups[key].forward | groups[key].elsewhere for key in self.groups)
        """True where they gather parameters, of which each rank updates only a part."""
        self.unclear = {
            one.size for key, one in groups.items() if key not in self.groups and one.gathers_parameters and one.size
        }
        """Sizes of groups that gather in forward passes but differ in size from the job's."""

    def _world(self, graph: ExecutionGraph, number: int) -> int:
        """Return the number of all ranks, where only replicas communicate; else 0."""
        pipeline = any(message.operation in ("send", "recv") for message in graph.messages)
        alone = self.groups and len(self.groups) == number and not pipeline
        return max((trace.world_size or 0 for trace in graph.traces), default=0) if alone else 0

    def have(self, message: Message | None) -> bool:
        """Return True if a message is between replicas."""
        return message is not None and message.operation not in ("send", "recv") and group_of(message) in self.groups


def group_of(message: Message) -> object:
    """Return the key that identifies a group of ranks."""
    return message.ranks or message.group or message.description
