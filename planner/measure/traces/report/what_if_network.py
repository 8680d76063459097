"""Times of unrecorded messages by the planner's network model; collectives that tensor parallelism adds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from costmodel.lowering import embedding_communications, head_communications, layer_communications
from costmodel.network.collectives import collective_seconds
from costmodel.network.groups import dense_data_group, layer_group
from costmodel.step.p2p import p2p_seconds
from costmodel.strategy import Recompute
from costmodel.timing.work import Communication
from planner.measure.traces.events import Message
from planner.measure.traces.reading.communication import element_bytes
from planner.measure.traces.structure import Phase, Role
from planner.uncertainty.operators import strategy_shape

if TYPE_CHECKING:
    from costmodel.strategy import Strategy
    from costmodel.tables import Facts

USUAL_BYTES = 2
"""Bytes of an element of a message whose type was not recorded."""

NS = 1e-9


@dataclass(frozen=True, slots=True)
class PlannedNetwork:
    """
    Times of messages by the planner's network model.

    Parameters
    ----------
    facts, strategy
        Job of the messages.
    """

    facts: Facts
    strategy: Strategy

    def nanoseconds(self, message: Message, *, purpose: Literal["pp", "dp"], ranks: int) -> int:
        """Return the time of a message; see :class:`planner.measure.traces.change.Network`."""
        one, facts = self.strategy, self.facts
        if purpose == "pp":
            hop = p2p_seconds(
                facts.model,
                facts.cluster,
                facts.workload,
                tp=one.tp,
                cp=one.cp,
                pp=max(2, one.pp),
                dp=one.dp,
                mbs=one.mbs,
                sequence_parallel=one.sequence_parallel,
            )
            return round(float(hop) / NS)
        group = dense_data_group(tp=one.tp, cp=one.cp, dp=ranks / one.cp)
        kind = message.operation or "all_reduce"
        seconds = collective_seconds(
            facts.cluster, "dp", kind, nbytes=message_bytes(message), ranks=ranks, stride=group.stride
        )
        return round(float(seconds) / NS)

    def tensor_parallel_nanoseconds(self, message: Message, *, factor: float = 1.0) -> float:
        """
        Return the nanoseconds of a tensor-parallel collective.

        Parameters
        ----------
        message
            Operation, elements and type; for experts with their own tensor parallelism also the number of ranks.
        factor
            Bytes over those of the message.
        """
        seconds = collective_seconds(
            self.facts.cluster,
            "tp",
            message.operation or "all_reduce",
            nbytes=message_bytes(message) * factor,
            ranks=message.num_ranks or self.strategy.tp,
            stride=1,
        )
        return float(seconds) / NS


def message_bytes(message: Message) -> int:
    """Bytes of the whole tensor."""
    return max(message.elements_in, message.elements_out) * (element_bytes(message.dtype) or USUAL_BYTES)


def tensor_parallel_messages(facts: Facts, strategy: Strategy) -> Mapping[tuple[Phase, Role], Sequence[Message]]:
    """
    Return the collectives of a job's tensor-parallel ranks in each layer, the embedding and the head, by pass.

    Layers of several kinds have those of the most common kind. Recomputation repeats the collectives of the forward
    pass.

    Parameters
    ----------
    facts, strategy
        The job.
    """
    shape = strategy_shape(facts, strategy)
    counts = facts.model.layer_counts
    of_role = {
        Role.LAYER: layer_communications(max(counts, key=lambda one: counts[one]), shape),
        Role.EMBEDDING: embedding_communications(facts.model, shape),
        Role.HEAD: head_communications(facts.model, shape),
    }
    found: dict[tuple[Phase, Role], list[Message]] = defaultdict(list)
    for role, several in of_role.items():
        found[Phase.FORWARD, role] = _messages(several, strategy, "forward")
        found[Phase.BACKWARD, role] = _messages(several, strategy, "backward")
        if strategy.recompute == Recompute.FULL:
            found[Phase.RECOMPUTE, role] = found[Phase.FORWARD, role]
    return found


def _messages(
    several: Iterable[Communication], strategy: Strategy, which: Literal["forward", "backward"]
) -> list[Message]:
    found = []
    for one in several:
        number = getattr(one, which)
        if one.group not in ("tp", "etp") or not number or not np.asarray(one.nbytes).max() > 0:
            continue
        group = layer_group(one.group, tp=strategy.tp, cp=strategy.cp, ep=strategy.ep, etp=strategy.etp)
        elements = round(float(np.asarray(one.nbytes).max()) / USUAL_BYTES)
        message = Message(
            operation=one.kind,
            description="tensor parallel",
            num_ranks=int(np.asarray(group.ranks).max()),
            elements_in=elements,
            elements_out=elements,
            dtype="BFloat16",
        )
        found += [message] * int(number)
    return [one for one in found if one.num_ranks > 1]
