"""Parameters of a model: exact sums over its operators at degree 1."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from costmodel.facts.lengths import SequenceLengths
from costmodel.facts.model import Experts, Layer, Model
from costmodel.lowering import Shape, embedding_operators, head_operators, layer_operators, mtp_operators
from costmodel.lowering.matrices import layer_matrices
from costmodel.timing.work import Operator

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
    return _total(mtp_operators(model, whole_shape(model)))


def embedding_parameters(model: Model) -> int:
    """Number of parameters before the first layer."""
    return _total(embedding_operators(model, whole_shape(model)))


def head_parameters(model: Model) -> int:
    """Number of parameters after the last layer: final norm, and the head unless it is tied."""
    return _total(head_operators(model, whole_shape(model)))


def layer_parameters(model: Model, layer: Layer) -> int:
    """Parameters of one layer of the model."""
    return _total(layer_operators(layer, whole_shape(model)))


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
    return _total(operator for operator in layer_operators(layer, whole_shape(model)) if operator.expert)


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


def _total(operators: Iterable[Operator]) -> int:
    return sum(round(float(operator.parameters)) for operator in operators)
