"""Parameters and FLOPs of a model, independent of the strategy, and rates of a step: tokens/s, MFU, HFU."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import repeat
from typing import Literal, TypeAlias

from costmodel.facts.device import Cluster
from costmodel.facts.model import Experts, Layer, Model
from costmodel.facts.workload import SequenceLengths, Workload
from costmodel.lowering import Shape, embedding_operators, head_operators, layer_operators, mtp_operators
from costmodel.lowering.layer import find_repeated_shares, layer_matrices, recomputes
from costmodel.strategy import MODULES, Recompute
from costmodel.timing.work import BETWEEN_TOKENS, MEMORY_BOUND, Numbers, Operator

KEPT = 256
"""Number of models whose sums are cached, since many jobs use one model; affects only speed and memory."""


@lru_cache(maxsize=KEPT)
def parameters(model: Model) -> int:
    """Trainable parameters without multi-token prediction; a router's score bias is a buffer and not counted."""
    return embedding_parameters(model) + layers_parameters(model) + head_parameters(model)


def active_parameters(model: Model) -> int:
    """
    Number of parameters that one token uses: all but the routed experts that it does not visit; embeddings included.

    .. math:: P_{active} = P - P_{routed} (1 - k / n)
    """
    return parameters(model) - sum(count * idle_parameters(model, layer) for layer, count in model.layer_counts.items())


@lru_cache(maxsize=KEPT)
def mtp_parameters(model: Model) -> int:
    """Parameters of the layers of multi-token prediction; embedding and head are shared with the model."""
    return _sum_parameters(mtp_operators(model, whole_shape(model)))


def embedding_parameters(model: Model) -> int:
    """Number of parameters before the first layer."""
    return _sum_parameters(embedding_operators(model, whole_shape(model)))


def head_parameters(model: Model) -> int:
    """Number of parameters after the last layer: final norm, and the head unless it is tied."""
    return _sum_parameters(head_operators(model, whole_shape(model)))


def layer_parameters(model: Model, layer: Layer) -> int:
    """Parameters of one layer of the model."""
    return _sum_parameters(layer_operators(layer, whole_shape(model)))


def layers_parameters(model: Model) -> int:
    """Parameters of all layers between embedding and head."""
    return sum(count * layer_parameters(model, layer) for layer, count in model.layer_counts.items())


def matrix_parameters(model: Model) -> int:
    """Parameters of the weight matrices of all layers, those of multi-token prediction included."""
    shape = whole_shape(model)
    layers = (*model.layers, *model.mtp_layers)
    counts = {layer: layers.count(layer) for layer in dict.fromkeys(layers)}
    matrices = ((count, one) for layer, count in counts.items() for one in layer_matrices(layer, shape))
    return int(sum(count * float(one.count * one.parameters) for count, one in matrices))


def routed_parameters(model: Model, layer: Layer) -> int:
    """Parameters of the routed experts of one layer."""
    return _sum_parameters(operator for operator in layer_operators(layer, whole_shape(model)) if operator.expert)


def idle_parameters(model: Model, layer: Layer) -> int:
    """Parameters of the routed experts of one layer that a token does not visit."""
    if not isinstance(layer.feed_forward, Experts):
        return 0
    num_experts = layer.feed_forward.num_experts
    return routed_parameters(model, layer) // num_experts * (num_experts - layer.feed_forward.top_k)


def whole_shape(
    model: Model, *, sequence_length: int = 1, causal: bool = False, lengths: SequenceLengths | None = None
) -> Shape:
    """
    Return the shape of one sequence on one device: every degree is 1.

    Parameters
    ----------
    model
        The model.
    sequence_length
        Tokens of the sequence; parameters do not depend on it.
    causal
        True if kernels skip the masked half of the scores.
    lengths
        Lengths of the sequences that are packed into it; None: it is one.
    """
    return Shape(
        hidden_size=model.hidden_size,
        sequence_length=sequence_length,
        activation_bytes=2.0,
        causal=causal,
        lengths=lengths,
    )


def _sum_parameters(operators: Iterable[Operator]) -> int:
    return sum(round(float(operator.parameters)) for operator in operators)


AttentionConvention: TypeAlias = Literal["full", "causal"]
"""Counting of scores: ``full`` counts masked ones, too (MoFa, Megatron-LM), ``causal`` does not."""


def forward_matmul_flops(model: Model, *, tokens: int) -> int:
    """
    FLOPs of the forward pass's matmuls over ``tokens`` tokens, head and MTP included, scores excluded.

    .. math:: F = 2 P_{matmul} N

    Parameters
    ----------
    model
        The model; drop its ``mtp_layers`` to leave them out.
    tokens
        N, of any number of sequences.
    """
    return _forward_flops(model, whole_shape(model, sequence_length=tokens), kinds=("matmul", "grouped_matmul"))


def forward_attention_flops(
    model: Model, *, sequence_length: int, attention: AttentionConvention, lengths: SequenceLengths | None = None
) -> int:
    """
    FLOPs of attention scores and weighted values in the forward pass over one sequence, and of state-space scans.

    Parameters
    ----------
    model
        The model.
    sequence_length
        Tokens of the sequence.
    attention
        ``full``: every pair of tokens; ``causal``: half of them. A sliding window counts in both.
    lengths
        Lengths of the sequences that are packed into it, between which there are no pairs; None: it is one.
    """
    shape = whole_shape(model, sequence_length=sequence_length, causal=attention == "causal", lengths=lengths)
    return _forward_flops(model, shape, kinds=BETWEEN_TOKENS)


@lru_cache(maxsize=KEPT)
def model_flops_per_token(
    model: Model, sequence_length: int, attention: AttentionConvention, lengths: SequenceLengths | None = None
) -> float:
    """
    FLOPs of forward and backward pass per token: three times the forward pass; recomputation is not counted.

    .. math:: F = 6 P_{matmul} + 12 L h s

    The second term is that of full attention; causal attention needs half of it. Equation (15) of MoFa
    (arXiv 2511.09837) is this with ``full``, times the tokens of a step.

    Parameters
    ----------
    model
        The model; its layers of multi-token prediction count if it has them.
    sequence_length
        Tokens of a sequence.
    attention, lengths
        The convention, and packed sequences, as in :func:`forward_attention_flops`.
    """
    matmuls = forward_matmul_flops(model, tokens=sequence_length)
    scores = forward_attention_flops(model, sequence_length=sequence_length, attention=attention, lengths=lengths)
    return 3 * (matmuls + scores) / sequence_length


def recomputation_flops_per_token(
    model: Model,
    sequence_length: int,
    attention: AttentionConvention,
    lengths: SequenceLengths | None = None,
    *,
    recompute: Recompute,
) -> float:
    """
    FLOPs per token that the backward pass recomputes, the difference between HFU and MFU.

    Full recomputation repeats the forward pass of all layers, other values that of their modules (selective: the
    projections to Q, K and V and the attention core). The head is never recomputed.

    Parameters
    ----------
    model, sequence_length, attention, lengths
        As in :func:`model_flops_per_token`.
    recompute
        Recomputation of the strategy.

    References
    ----------
    MoFa, arXiv:2511.09837, equations (30) and (32).
    """
    if recompute == Recompute.NONE:
        return 0.0
    shape = whole_shape(model, sequence_length=sequence_length, causal=attention == "causal", lengths=lengths)
    by_kind = {
        layer: sum(
            float(operator.flops) * share
            for operator, share in _share_operators(layer_operators(layer, shape), recompute)
            if operator.kind not in MEMORY_BOUND
        )
        for layer in model.kinds
    }
    return sum(by_kind[layer] for layer in (*model.layers, *model.mtp_layers)) / sequence_length


def _share_operators(operators: Sequence[Operator], recompute: Recompute) -> Iterator[tuple[Operator, float]]:
    """Yield each operator with the share of it that recomputation repeats."""
    if recompute == Recompute.FULL:
        return zip(operators, repeat(1.0))
    chosen = [find_repeated_shares(operators, name) for name in MODULES if recomputes(name, recompute=recompute)]
    return zip(operators, map(sum, zip(*chosen, strict=True)), strict=True)


@lru_cache(maxsize=KEPT)
def head_layers(model: Model) -> float:
    r"""
    Matmul FLOPs of the head over those of the average layer, scores excluded.

    .. math:: V / 12 h

    for GPT's layers (Narayanan et al., arXiv:2104.04473, appendix).
    """
    without_mtp = replace(model, mtp_layers=())
    layers = forward_matmul_flops(without_mtp, tokens=1) - _head_flops(model)
    return _head_flops(model) * model.num_layers / layers


def _head_flops(model: Model) -> int:
    return _sum_flops(o for o in head_operators(model, whole_shape(model)) if o.kind == "matmul")


def _forward_flops(model: Model, shape: Shape, *, kinds: Container[str]) -> int:
    def sum_kinds(operators: Iterable[Operator]) -> int:
        return _sum_flops(operator for operator in operators if operator.kind in kinds)

    layers = sum(count * sum_kinds(layer_operators(layer, shape)) for layer, count in model.layer_counts.items())
    return layers + sum_kinds(head_operators(model, shape)) + sum_kinds(mtp_operators(model, shape))


def _sum_flops(operators: Iterable[Operator]) -> int:
    return sum(round(float(operator.flops)) for operator in operators)


# --- rates ------------------------------------------------------------------------------------------------


def tokens_per_second_per_device(cluster: Cluster, workload: Workload, *, step_seconds: Numbers) -> Numbers:
    """Tokens that one device trains per second."""
    tokens = workload.global_batch_size * workload.sequence_length
    return tokens / step_seconds / cluster.num_devices


def linearity_fraction(
    base: tuple[Cluster, Workload], other: tuple[Cluster, Workload], *, base_step_seconds: float, step_seconds: float
) -> float:
    r"""
    Throughput of one device on another cluster over that on the base, MoFa equation (45).

    .. math:: \frac{gbs_2}{n_2 T_2} / \frac{gbs_1}{n_1 T_1}

    With a batch in proportion to the devices this is :math:`T_1 / T_2`.
    """
    ours = tokens_per_second_per_device(*other, step_seconds=step_seconds)
    return float(ours / tokens_per_second_per_device(*base, step_seconds=base_step_seconds))


def flops_per_second_per_device(
    cluster: Cluster, workload: Workload, *, flops_per_token: Numbers, step_seconds: Numbers
) -> Numbers:
    r"""
    Model FLOP/s of one device.

    .. math:: F_{step} / (T_{step} \cdot n_{gpu})

    Parameters
    ----------
    cluster, workload
        Devices; tokens of a step.
    flops_per_token
        Forward and backward FLOPs per token; the caller chooses the attention convention and recomputation.
    step_seconds
        Time of one step.

    References
    ----------
    MoFa, arXiv:2511.09837, equation (15).
    """
    rate = tokens_per_second_per_device(cluster, workload, step_seconds=step_seconds)
    return rate * flops_per_token


def utilization_fraction(flops_per_second: Numbers, *, peak_flops: float) -> Numbers:
    """Achieved over peak FLOPs per second: MFU with the model's FLOPs, HFU with the recomputed ones added."""
    return flops_per_second / peak_flops
