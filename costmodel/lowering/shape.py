"""The shape of one micro-batch on one device: facts and decisions that determine the size of a layer's operators."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from costmodel.facts.device import Cluster, Silicon
from costmodel.facts.fields import NARROW, Dtype
from costmodel.facts.framework import CommunicationStyle, Kernels, MemoryModel
from costmodel.facts.model import Model
from costmodel.facts.workload import KeyStatistics, SequenceLengths, Workload
from costmodel.record import record, replace
from costmodel.strategy import CudaGraphs, TokenDispatcher
from costmodel.timing.work import Numbers


@record(frozen=True, kw_only=True)
class Shape:
    """
    Facts and decisions that determine the size of a layer's operators; every number may be an array over strategies.

    Parameters
    ----------
    hidden_size, sequence_length
        Width of the residual stream; tokens of one whole sequence.
    activation_bytes
        Bytes per element of an activation.
    linear_input_bytes
        Bytes per element of a linear's input kept for the backward pass.
    cast_bytes
        Bytes read and written per element that a recipe below 16 bits casts.
    grouped_casts
        Kernels of casts and scales of one group of a grouped matmul, forward and backward.
    gathered_bytes
        Bytes per element that sequence-parallel ranks gather of inputs, and of gradients.
    gradient_traffic_bytes
        Bytes read and written per element of a weight's gradient by the matmul that computes it.
    quantizes_before_gather
        True if sequence-parallel ranks cast their shards before they gather them.
    compute_dtype, wide_dtype
        Dtype of the recipe's matmuls, and of those that stay in 16 bits.
    kernels, communication, memory, silicon
        Launched kernels, communication and kept tensors of the framework; properties of the device's generation.
    causal
        True if attention kernels skip the masked half of the scores.
    lengths
        Lengths of the sequences in a sample, between which kernels compute no scores; None: one sequence.
    mbs
        Sequences per micro-batch.
    tp, cp, ep, etp
        Degrees that split a layer.
    sequence_parallel
        0 or 1: norms and residuals are split over the tensor-parallel ranks.
    token_dispatcher, cuda_graphs
        Dispatch of tokens to experts; scope of CUDA graphs.
    """

    hidden_size: int
    sequence_length: int
    activation_bytes: float
    causal: bool
    linear_input_bytes: float = 2.0
    cast_bytes: float = 0.0
    grouped_casts: tuple[int, int] = (0, 0)
    gathered_bytes: tuple[float, float] = (2.0, 2.0)
    gradient_traffic_bytes: float = 2.0
    quantizes_before_gather: bool = False
    compute_dtype: Dtype = "bf16"
    wide_dtype: Dtype = "bf16"
    kernels: Kernels = field(default_factory=Kernels)
    communication: CommunicationStyle = field(default_factory=CommunicationStyle)
    memory: MemoryModel = field(default_factory=MemoryModel)
    silicon: Silicon = field(default_factory=Silicon)
    lengths: SequenceLengths | None = None
    mbs: Numbers = 1
    tp: Numbers = 1
    cp: Numbers = 1
    ep: Numbers = 1
    etp: Numbers = 1
    sequence_parallel: Numbers = 0
    token_dispatcher: Numbers = TokenDispatcher.ALLTOALL
    cuda_graphs: Numbers = CudaGraphs.NONE

    @cached_property
    def tokens(self) -> Numbers:
        """Tokens of one micro-batch on one context-parallel rank, N = b s / c."""
        return self.mbs * self.sequence_length / self.cp

    @property
    def own_length(self) -> float:
        """Tokens of the sequence that a token is in, averaged over tokens."""
        return self.sequence_length if self.lengths is None else self.lengths.mean_tokens

    @property
    def sequences(self) -> Numbers:
        """Number of sequences of :attr:`own_length` in a micro-batch."""
        return self.mbs if self.lengths is None else self.mbs * self.sequence_length / self.own_length

    @cached_property
    def sequence_shards(self) -> Numbers:
        """Ways in which norms and residuals are split over tensor-parallel ranks: t with sequence parallelism."""
        return 1 + self.sequence_parallel * (self.tp - 1)

    @property
    def dynamic_ranks(self) -> KeyStatistics | None:
        """Number of ranks that share a sequence with dynamic context parallelism; None without."""
        return None if self.lengths is None else self.lengths.dynamic_ranks

    @property
    def a2a_ranks(self) -> Numbers:
        """Context-parallel ranks that exchange tokens for heads: of a2a all, of a2a+p2p the near ones, else 1."""
        return a2a_ranks(self.communication, cp=self.cp)

    @property
    def input_elements_to_keep(self) -> Numbers:
        """Input elements that a column-parallel matmul keeps: the rank's own, or all gathered ones."""
        return self.tokens * self.hidden_size / (1 if self.memory.gathered_inputs else self.sequence_shards)

    @property
    def attention_dtype(self) -> Dtype:
        """Dtype of attention's matmuls: 8 bits where the framework has them, in a layer of a recipe below 16 bits."""
        has_narrow = self.kernels.fp8_attention and self.kernels.fused_attention
        return "fp8" if has_narrow and self.compute_dtype in NARROW else self.wide_dtype

    @cached_property
    def axes(self) -> tuple[int, ...]:
        """The broadcast shape of the decisions."""
        sizes = (self.mbs, self.tp, self.cp, self.ep, self.etp, self.sequence_parallel)
        return np.broadcast(*sizes, self.token_dispatcher, self.cuda_graphs).shape

    @property
    def zeros(self) -> NDArray[np.float64]:
        """Zeros in the broadcast shape of the decisions, to add quantities of this shape to."""
        return np.zeros(self.axes)

    def widen(self) -> Shape:
        """Return the shape of a layer in 16 bits: nothing is cast, and the backward pass keeps inputs as they are."""
        return replace(
            self,
            compute_dtype=self.wide_dtype,
            linear_input_bytes=self.activation_bytes,
            cast_bytes=0.0,
            grouped_casts=(0, 0),
            gathered_bytes=(self.activation_bytes, self.activation_bytes),
            quantizes_before_gather=False,
        )

    def stack(self, values: Collection[Numbers]) -> NDArray[np.float64]:
        """Stack one value per kind of layer on a new last axis."""
        stacked = np.empty((*self.axes, len(values)))
        for index, value in enumerate(values):
            stacked[..., index] = value
        return stacked


def a2a_ranks(communication: CommunicationStyle, *, cp: Numbers) -> Numbers:
    """
    Number of context-parallel ranks that exchange tokens for heads by all-to-alls.

    >>> int(a2a_ranks(CommunicationStyle(cp_comm_type="a2a+p2p", cp_a2a_ranks=4), cp=16))
    4
    """
    if communication.cp_comm_type == "a2a":
        return cp
    return 1 if communication.cp_a2a_ranks is None else np.minimum(cp, communication.cp_a2a_ranks)[()]


def distinct_ranks_fraction(places: Numbers, *, num_experts: int, top_k: int) -> Numbers:
    r"""
    Number of different places that a token visits, as a fraction of the k experts that it visits.

    .. math:: v(G) = \frac{G}{k} \left[1 - \prod_{i=0}^{k-1} \left(1 - \frac{E/G}{E - i}\right)\right]

    Derivation: the product is the chance that none of k different ones among E experts is at one of G places with E / G
    each (balanced routing). One minus it is the chance that a place is visited; times G places, over k. It is 1 if no
    two of the token's experts share a place.

    >>> float(distinct_ranks_fraction(2, num_experts=4, top_k=2))  # 2 of 4 share one in 1 of 3 draws
    0.8333333333333333
    """
    missed: Numbers = 1.0
    for chosen in range(top_k):
        missed = missed * np.maximum(1 - num_experts / places / (num_experts - chosen), 0.0)
    return places / top_k * (1 - missed)


def layer_shape(
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
    token_dispatcher: Numbers = TokenDispatcher.ALLTOALL,
    cuda_graphs: Numbers = CudaGraphs.NONE,
) -> Shape:
    """Build the record of facts and decisions that determine the size of a layer's operators."""
    device, precision = cluster.device, workload.precision.adapt_to(cluster.device.silicon)
    kernels = device.behaviour.kernels
    fused = kernels.gradient_accumulation_fusion
    return Shape(
        hidden_size=model.hidden_size,
        sequence_length=workload.sequence_length,
        activation_bytes=precision.activation_bytes,
        linear_input_bytes=precision.linear_input_bytes or precision.activation_bytes,
        cast_bytes=precision.cast_bytes,
        grouped_casts=precision.casts_per_group,
        gathered_bytes=(
            precision.gathered_input_bytes or precision.activation_bytes,
            precision.gathered_gradient_bytes or precision.activation_bytes,
        ),
        gradient_traffic_bytes=2 * precision.gradient_bytes if fused else precision.activation_bytes,
        causal=kernels.causal_attention and kernels.fused_attention,
        quantizes_before_gather=precision.quantizes_before_gather,
        compute_dtype=precision.compute,
        wide_dtype=device.wide_dtype(precision.compute),
        kernels=kernels,
        communication=device.behaviour.communication,
        memory=device.behaviour.memory,
        silicon=device.silicon,
        lengths=workload.lengths if kernels.fused_attention else None,
        mbs=mbs,
        tp=tp,
        cp=cp,
        ep=ep,
        etp=etp,
        sequence_parallel=sequence_parallel,
        token_dispatcher=token_dispatcher,
        cuda_graphs=cuda_graphs,
    )
