"""Seconds of the embedding, of the head with its loss and of multi-token prediction."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from costmodel.facts.device import Cluster
from costmodel.facts.model import Model
from costmodel.facts.workload import Workload
from costmodel.lowering.embedding import (
    embedding_communications,
    embedding_operators,
    head_communications,
    head_operators,
)
from costmodel.lowering.layer import mtp_projection_communications, mtp_projection_operators
from costmodel.lowering.shape import Shape, layer_shape
from costmodel.network.collectives import call_seconds, copy_seconds, is_called
from costmodel.record import record, replace
from costmodel.step.compute import weight_gradient_seconds
from costmodel.strategy import Vocabulary
from costmodel.tables import Record
from costmodel.timing.source import OperatorTimes, operator_times
from costmodel.timing.work import Communication, KernelSize, Numbers, Operator


@record(frozen=True, kw_only=True, slots=True)
class EmbeddingHeadSeconds(Record):
    """
    Seconds of one micro-batch, forward and backward, that the first rank (embedding) and the last one (head, MTP) add.

    Parameters
    ----------
    embedding, head, mtp
        Seconds of computation; MTP without its transformer layers, which count as layers of the last rank.
    embedding_communication, head_communication, mtp_communication
        Exposed seconds of collectives.
    first_forward, last_forward
        Seconds of the forward pass in the work that the first rank adds, and that the last rank adds.
    last_weight
        Seconds of the weights' gradients in the work that the last rank adds.
    """

    embedding: NDArray[np.float64]
    head: NDArray[np.float64]
    mtp: NDArray[np.float64]
    embedding_communication: NDArray[np.float64]
    head_communication: NDArray[np.float64]
    mtp_communication: NDArray[np.float64]
    first_forward: NDArray[np.float64]
    last_forward: NDArray[np.float64]
    last_weight: NDArray[np.float64]

    @property
    def first(self) -> NDArray[np.float64]:
        """Seconds that the first rank adds."""
        return self.embedding + self.embedding_communication

    @property
    def last(self) -> NDArray[np.float64]:
        """Seconds that the last rank adds."""
        return self.head + self.mtp + self.head_communication + self.mtp_communication


def embedding_head_seconds(
    model: Model,
    cluster: Cluster,
    workload: Workload,
    *,
    tp: Numbers,
    cp: Numbers,
    ep: Numbers,
    etp: Numbers,
    mbs: Numbers,
    sequence_parallel: Numbers,
    dp: Numbers,
    pp: Numbers,
    vocabulary: Numbers,
    cuda_graphs: Numbers,
) -> EmbeddingHeadSeconds:
    """
    Seconds of the embedding, the head with its loss, and the multi-token prediction, shape (...).

    Only CUDA graphs of a whole iteration hold their kernels. With a vocabulary in slices, these are the seconds of all
    ranks together, see :func:`_slice_operators`.
    """
    shape = layer_shape(
        model,
        cluster,
        workload,
        tp=tp,
        cp=cp,
        ep=ep,
        etp=etp,
        mbs=mbs,
        sequence_parallel=sequence_parallel,
        cuda_graphs=cuda_graphs,
    )
    times = operator_times(
        cluster.device, workload.precision.compute, num_devices=np.asarray(tp) * cp * dp, cuda_graphs=cuda_graphs
    )

    slices = np.where(np.asarray(vocabulary) > Vocabulary.REDISTRIBUTED, pp, 1)
    embedding = _slice_operators(embedding_operators(model, shape), slices, rows=slices)
    ends = {
        "embedding": (embedding, embedding_communications(shape)),
        "head": (_slice_operators(head_operators(model, shape), slices), head_communications(shape)),
        "mtp": (mtp_projection_operators(model, shape), mtp_projection_communications(model, shape)),
    }
    parts, zeros = dict[str, NDArray[np.float64]](), shape.zeros
    forward, weight = dict[str, Numbers](), dict[str, Numbers]()
    for name, end in ends.items():
        compute, communication, forward[name], weight[name] = _one_end(cluster, *end, shape, times)
        parts[name], parts[f"{name}_communication"] = zeros + compute, zeros + communication
    return EmbeddingHeadSeconds(
        **parts,
        first_forward=zeros + forward["embedding"],
        last_forward=zeros + (forward["head"] + forward["mtp"]),
        last_weight=zeros + (weight["head"] + weight["mtp"]),
    )


def _slice_operators(operators: tuple[Operator, ...], slices: Numbers, *, rows: Numbers = 1) -> tuple[Operator, ...]:
    """
    Return the operators of all slices of a vocabulary together: each has its share of the logits, but every kernel.

    For the embedding every slice moves all tokens' ``rows``, with zeros for those of others, so that their sum has all
    of them (Megatron-LM, ``VocabParallelEmbedding``). Input layers scale worst by far (Yeung et al., arXiv:2411.05288,
    Table 3, recalled).
    """
    return tuple(
        replace(
            one,
            kernels=one.kernels * slices,
            bytes=one.bytes * rows,
            backward_bytes=one.backward_bytes * rows,
            size=replace(one.size, count=one.size.count * rows) if isinstance(one.size, KernelSize) else one.size,
        )
        for one in operators
    )


def _one_end(
    cluster: Cluster,
    operators: tuple[Operator, ...],
    communications: tuple[Communication, ...],
    shape: Shape,
    times: OperatorTimes,
) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """Return the seconds of computation, communication, the forward pass and the weights' gradients."""
    forward = sum((times.forward_seconds(operator) for operator in operators), start=0.0)
    backward = [times.backward_seconds(operator) for operator in operators]
    sent_forward: Numbers = 0.0
    sent_backward: Numbers = 0.0
    for one in communications:
        call, copies = (
            call_seconds(cluster, one, shape),
            copy_seconds(one, cluster.device, called=is_called(one, shape)),
        )
        sent_forward = sent_forward + one.forward * (call + copies[0])
        sent_backward = sent_backward + one.backward * (call + copies[1])
    compute, weight = forward + sum(backward, start=0.0), weight_gradient_seconds(operators, backward)
    return compute, sent_forward + sent_backward, forward + sent_forward, weight
