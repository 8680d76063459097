"""Operators of the mixture-of-experts feed-forward block: router, routed experts, shared expert."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from costmodel.facts.model import Experts, Mlp
from costmodel.lowering.collectives import tensor_parallel, tensor_parallel_collectives
from costmodel.lowering.kernels import (
    EAGER,
    attach_torch_function,
    elementwise,
    lower_shared_input,
    matmul,
    row_parallel,
)
from costmodel.lowering.shape import Shape, distinct_ranks_fraction
from costmodel.record import replace
from costmodel.strategy import CudaGraphs, deduplicates_dispatch
from costmodel.timing.work import Communication, Numbers, Operator


def mlp_operators(mlp: Mlp, shape: Shape) -> tuple[Operator, ...]:
    """Return linear, activation and linear: the last three rows of MoFa's Table 2 before the head."""
    operators = feed_forward_operators(
        shape,
        ffn_hidden_size=mlp.ffn_hidden_size,
        gated=mlp.gated,
        bias=mlp.bias,
        squared_relu=mlp.squared_relu,
        saved_input=shape.input_elements_to_keep,
    )
    own = mlp.activation_weights
    return tuple(replace(one, parameters=own) if own and one.name == "activation" else one for one in operators)


def mlp_communications(mlp: Mlp, shape: Shape) -> tuple[Communication, ...]:
    """Return the tensor-parallel collectives of the block, which do not depend on its width."""
    return tensor_parallel_collectives(shape)


def feed_forward_operators(
    shape: Shape,
    *,
    ffn_hidden_size: int,
    gated: bool,
    bias: bool,
    squared_relu: bool,
    saved_input: Numbers,
    prefix: str = "",
) -> tuple[Operator, ...]:
    """
    Return a dense feed-forward block split by columns, then rows, over the tensor-parallel ranks.

    Parameters
    ----------
    shape
        The micro-batch.
    ffn_hidden_size, gated, bias, squared_relu
        Sizes and switches of the block, as in :class:`costmodel.facts.model.Mlp`.
    saved_input
        Elements of the input kept here; 0 if another operator keeps that tensor.
    prefix
        Text in front of the operators' names.
    """
    width = ffn_hidden_size / shape.tp
    if gated and not shape.kernels.fused_projections:
        widths = {f"{prefix}gate_projection": width, f"{prefix}up_projection": width}
    else:
        widths = {f"{prefix}up": width * (2 if gated else 1)}
    return (
        *lower_shared_input(shape, widths, has_bias=bias, saved_elements=saved_input, saved_as=f"{prefix}mlp"),
        activation(
            f"{prefix}activation",
            shape,
            rows=shape.tokens,
            width=width,
            gated=gated,
            squared_relu=squared_relu,
            saved_as=f"{prefix}activation",
        ),
        row_parallel(f"{prefix}down", shape, inputs=width, bias=bias, saved_as=f"{prefix}mlp"),
    )


SQUARED_RELU_PASSES = (4, 9)

"""
Forward and backward passes of ReLU and the square after it, ``torch.pow(F.relu(x), 2)`` (Megatron-LM,
``megatron/training/activations.py``). Each reads and writes. Backward: the scaled base (3), its product with the
gradient (3), ReLU's mask (3).
"""

UNFUSED_GATE_PASSES = (5, 9)

"""
Forward and backward passes of an unfused SiLU gate: SiLU (2) and the product (3); backward two products and SiLU's
gradient (3 each).
"""


def activation(
    name: str,
    shape: Shape,
    *,
    rows: Numbers,
    width: Numbers,
    gated: bool,
    squared_relu: bool,
    saved_as: str,
    is_fused: bool = False,
) -> Operator:
    """
    Return the non-linearity, which keeps its input: both halves if gated, and the gate's activation if it is eager.

    Fused with its gate or its bias it is one kernel; ReLU and the square after it are several.

    Parameters
    ----------
    name, shape, saved_as
        As in :class:`Operator`; the micro-batch.
    rows, width
        Tokens, and elements of each in its output.
    gated
        True if a gate doubles the input.
    squared_relu
        True if the non-linearity is the square of ReLU, as in :class:`costmodel.facts.model.Mlp`.
    is_fused
        True if the square of ReLU is one kernel.
    """
    halves, elements = 2 if gated else 1, rows * width
    is_eager = gated and shape.memory.unfused_kernels
    forward_passes, backward_passes = halves + 1, 2 * halves + 1
    in_pieces = squared_relu and not is_fused
    if in_pieces:
        forward_passes, backward_passes = SQUARED_RELU_PASSES
    elif gated and not shape.kernels.fused_kernels:
        forward_passes, backward_passes = UNFUSED_GATE_PASSES
    made = elementwise(
        name,
        shape,
        elements=elements,
        forward_passes=forward_passes,
        backward_passes=backward_passes,
        all_counted=not in_pieces,
        saved_elements=(halves + is_eager) * elements,
        saved_as=f"{EAGER}{saved_as}" if is_eager else saved_as,
    )
    kernel = "squared_relu" if squared_relu else "swiglu" if gated else "gelu"
    return attach_torch_function(made, shape, kernel, rows=rows, width=width)


def experts_operators(experts: Experts, shape: Shape) -> tuple[Operator, ...]:
    """
    Return the operators of an MoE block: router, dispatch, local experts, combine, shared expert; balanced routing.

    Each tensor-parallel rank dispatches its own part of the tokens (sequence parallelism, which Megatron-LM requires
    here), so a (token, expert) pair is computed once. A device computes N k etp / tp tokens with 1 / etp of the width.
    So the work of all devices together depends neither on ``ep`` nor on ``etp``.

    CUDA graphs hold the router with the shared expert, the work before the dispatch, or, if tokens are dropped and
    padded, the whole block.

    References
    ----------
    Megatron-LM, ``megatron/core/transformer/moe/moe_layer.py`` (core 0.16.1): ``route`` (247), ``preprocess`` (258),
    ``dispatch`` (278), ``shared_experts_compute`` (288), ``routed_experts_compute`` (318), ``postprocess`` (343).
    """
    latent_down, latent_up = _latent(experts, shape)
    return (
        *_mark_graph_module("moe_router", _router(experts, shape)),
        *_mark_graph_module("moe_preprocess", latent_down),
        *_mark_graph_module("moe", latent_up),
        *_mark_graph_module(
            "moe_preprocess", [_permute("dispatch", experts, shape, elements=_elements_of_presort(experts, shape))]
        ),
        *_mark_graph_module("moe", [_permute("sort", experts, shape, elements=_elements_of_postsort(experts, shape))]),
        *_mark_graph_module("moe", _lower_routed_experts(experts, shape)),
        *_mark_graph_module("moe", [_combine(experts, shape)]),
        *_mark_graph_module("moe_router", _lower_shared_experts(experts, shape)),
    )


def _mark_graph_module(module: str, operators: Iterable[Operator]) -> tuple[Operator, ...]:
    """Mark operators with the module of CUDA graphs that holds them."""
    return tuple(replace(operator, graph_module=module) for operator in operators)


def experts_communications(experts: Experts, shape: Shape) -> tuple[Communication, ...]:
    """Return two all-to-alls per pass (``ep``), gather and scatter (``etp``), and the shared expert's collectives."""
    token_bytes = shape.activation_bytes * expert_input_width(experts, shape)
    sent = token_bytes * sent_tokens(experts, shape)
    gathered = token_bytes * received_tokens(experts, shape)
    return (
        Communication(
            group="ep",
            kind="all_to_all",
            nbytes=sent,
            forward=2,
            backward=2,
            num_experts=experts.num_experts,
            top_k=experts.top_k,
        ),
        tensor_parallel("all_gather", shape, group="etp", nbytes=gathered, forward=1, backward=1),
        tensor_parallel("reduce_scatter", shape, group="etp", nbytes=gathered, forward=1, backward=1),
        *(tensor_parallel_collectives(shape) if experts.shared_ffn_hidden_size else ()),
    )


def sent_tokens(experts: Experts, shape: Shape) -> Numbers:
    """
    Number of (token, expert) pairs that one device dispatches per micro-batch: N k / t.

    Derivation: each of the N tokens of a context-parallel rank visits k experts, and with sequence parallelism each of
    the t tensor-parallel ranks dispatches its own N / t tokens.
    """
    return shape.tokens * experts.top_k / shape.tp


def received_tokens(experts: Experts, shape: Shape) -> Numbers:
    """
    Number of tokens that the local experts of one device process per micro-batch: N' = N k e_t / t.

    Derivation: under balanced routing a device receives as many pairs as it sends, N k / t. The e_t ranks that split an
    expert gather all their pairs, and each computes 1 / e_t of the width.
    """
    return sent_tokens(experts, shape) * shape.etp


def expert_input_width(experts: Experts, shape: Shape) -> int:
    """
    Number of elements per token that routed experts read and write: the latent width, or h without one.

    Derivation: Megatron-LM projects tokens to the latent width before it dispatches them (``moe_layer.py``,
    ``fc1_latent_proj``).
    """
    return experts.latent_size or shape.hidden_size


def _latent(experts: Experts, shape: Shape) -> tuple[tuple[Operator, ...], tuple[Operator, ...]]:
    """
    Return the projections of this rank's tokens to the width of the routed experts, and back, with replicated weights.

    The router keeps the input. Megatron-LM, megatron/core/transformer/moe/moe_layer.py, ``fc1_latent_proj`` and
    ``fc2_latent_proj`` (``parallel_mode="duplicated"``).
    """
    if experts.latent_size is None:
        return (), ()
    rows = shape.tokens / shape.sequence_shards
    narrow, wide = experts.latent_size, shape.hidden_size
    up = matmul(
        "latent_up", shape, rows=rows, inputs=narrow, outputs=wide, saved_elements=rows * narrow, saved_as="experts"
    )
    normed = elementwise(
        "latent_norm",
        shape,
        elements=rows * narrow,
        forward_passes=2,
        backward_passes=3,
        saved_elements=rows * narrow,
        saved_as="experts",
        parameters=narrow,
    )
    down = matmul("latent_down", shape, rows=rows, inputs=wide, outputs=narrow)
    return (down,), (normed, up) if experts.latent_norm else (up,)


def _router(experts: Experts, shape: Shape) -> tuple[Operator, ...]:
    """Return the logits of all experts for this rank's tokens, with replicated weights, and the choice of the best."""
    rows = shape.tokens / shape.sequence_shards
    logits = rows * experts.num_experts
    chosen = elementwise(
        "top_k",
        shape,
        elements=logits,
        forward_passes=2,
        backward_passes=2,
        saved_elements=logits,
        saved_as="router",
    )
    return (
        *_scale_router_input(experts, shape, rows=rows),
        matmul(
            "router",
            shape,
            rows=rows,
            inputs=shape.hidden_size,
            outputs=experts.num_experts,
            bias=experts.num_experts if experts.router_bias else 0,
            saved_elements=rows * shape.hidden_size,
            saved_as="norm_output",
            narrow=False,
        ),
        attach_torch_function(chosen, shape, "top_k", rows=rows, experts=experts.num_experts, top_k=experts.top_k),
    )


def _scale_router_input(experts: Experts, shape: Shape, *, rows: Numbers) -> tuple[Operator, ...]:
    """Return the norm and the scales of the router's input; its result is scaled by expert, too."""
    if not experts.router_scales:
        return ()
    elements = rows * shape.hidden_size
    scaled = elementwise(
        "router_norm",
        shape,
        elements=elements,
        forward_passes=2,
        backward_passes=3,
        saved_elements=elements,
        saved_as="router",
        parameters=shape.hidden_size + experts.num_experts,
    )
    return (scaled,)


def _elements_of_presort(experts: Experts, shape: Shape) -> Numbers:
    """
    Number of elements read and written to sort tokens by destination device.

    If a token is sent once per device, nothing is sorted before: the receiver copies it for the local experts.
    """
    moved = shape.tokens / shape.sequence_shards + sent_tokens(experts, shape)
    once = deduplicates_dispatch(token_dispatcher=shape.token_dispatcher)
    elements: Numbers = np.where(once, 0.0, moved * expert_input_width(experts, shape))[()]
    return elements


def _elements_of_postsort(experts: Experts, shape: Shape) -> Numbers:
    """Number of elements read and written to sort received tokens by local expert."""
    received = received_tokens(experts, shape)
    visited = distinct_ranks_fraction(shape.ep, num_experts=experts.num_experts, top_k=experts.top_k)
    once = deduplicates_dispatch(token_dispatcher=shape.token_dispatcher)
    elements: Numbers = np.where(once, received + received * visited, 2 * received)[()] * expert_input_width(
        experts, shape
    )
    return elements


def _combine(experts: Experts, shape: Shape) -> Operator:
    """Return the operator that restores the order of tokens: both sorts, and the weighting by the router's scores."""
    elements = _elements_of_presort(experts, shape) + _elements_of_postsort(experts, shape)
    saved = _outputs_to_weight(experts, shape)
    return _permute("combine", experts, shape, elements=elements, kernels=2, saved_elements=saved)


def _permute(
    name: str, experts: Experts, shape: Shape, *, elements: Numbers, kernels: int = 1, saved_elements: Numbers = 0.0
) -> Operator:
    """Return an operator that copies tokens in another order."""
    copied = elementwise(
        name,
        shape,
        elements=elements,
        forward_passes=1,
        backward_passes=1,
        kernels=kernels,
        saved_elements=saved_elements,
        saved_as="experts",
    )
    moved = replace(copied, kind="copy", is_routed=True)
    return attach_torch_function(
        moved,
        shape,
        "permutation",
        count=_permutations(name, shape),
        is_adjoint=name == "combine",
        rows=shape.tokens / shape.sequence_shards,
        width=expert_input_width(experts, shape),
        experts=experts.num_experts,
        top_k=experts.top_k,
    )


def _permutations(name: str, shape: Shape) -> Numbers:
    """Number of permutations by PyTorch's functions: one more each way where experts are on other devices."""
    elsewhere = np.where(np.asarray(shape.ep) > 1, 1.0, 0.0)[()]
    times: dict[str, Numbers] = {"dispatch": 1.0, "sort": elsewhere, "combine": 1.0 + elsewhere}
    return times[name]


def _outputs_to_weight(experts: Experts, shape: Shape) -> Numbers:
    """
    Number of kept expert outputs that the router's scores weight; 0 where they weight the inner activation.

    References
    ----------
    Megatron-LM 0.14, ``megatron/core/fusions/fused_bias_swiglu.py``, ``WeightedSwiGLUFunction``.
    """
    return sent_tokens(experts, shape) * shape.hidden_size * shape.memory.expert_output


def _lower_routed_experts(experts: Experts, shape: Shape) -> tuple[Operator, ...]:
    """
    Return the grouped matmuls over the local experts, and the activation between them.

    If they are fused, the first one's kernel activates and casts for the second one, and vice versa in the backward
    pass; one kernel does it for all experts.
    """
    rows = received_tokens(experts, shape)
    outside = expert_input_width(experts, shape)
    groups = experts.num_experts / shape.ep
    width = experts.ffn_hidden_size / shape.etp
    fan = 2 if experts.gated else 1
    apart = np.where(_is_fused(shape), 0.0, 1.0)[()]
    up = matmul(
        "expert_up",
        shape,
        rows=rows,
        inputs=outside,
        outputs=fan * width,
        bias=fan * width if experts.bias else 0,
        saved_elements=rows * outside,
        saved_as="experts",
        groups=groups,
        expert=True,
    )
    between = activation(
        "expert_activation",
        shape,
        rows=rows,
        width=width,
        gated=experts.gated,
        squared_relu=experts.squared_relu,
        saved_as="expert_activation",
        is_fused=shape.kernels.fused_squared_relu_experts,
    )
    down = matmul(
        "expert_down",
        shape,
        rows=rows,
        inputs=width,
        outputs=outside,
        bias=outside if experts.bias else 0,
        saved_elements=rows * width,
        saved_as="expert_hidden",
        groups=groups,
        expert=True,
    )
    return (
        _group_by_group(replace(up, backward_cast_bytes=apart * up.backward_cast_bytes), apart),
        *(_scale_between(one, apart) for one in (*_clamps(experts, shape, elements=rows * width), between)),
        _group_by_group(replace(down, cast_bytes=apart * down.cast_bytes), apart),
        *_output_bias(experts, shape, elements=rows * outside, groups=groups),
    )


FUSED_DTYPE = "mxfp8"

"""Dtype to which a fused grouped matmul casts."""


def _is_fused(shape: Shape) -> NDArray[np.bool_]:
    """Return True where kernels of grouped matmuls activate and cast the tensor between them."""
    if not shape.kernels.fuses_experts_in_graphs or shape.compute_dtype != FUSED_DTYPE:
        return np.asarray(False)
    return np.asarray(np.asarray(shape.cuda_graphs) == int(CudaGraphs.FULL_ITERATION))


def _group_by_group(operator: Operator, apart: Numbers) -> Operator:
    """Scale the kernels of a grouped matmul: 1 casts expert by expert, 0 casts all experts in one kernel."""
    forward, backward = operator.group_kernels
    return replace(operator, group_kernels=(apart * forward, apart * backward))


def _scale_between(operator: Operator, apart: Numbers) -> Operator:
    """Scale an operator between grouped matmuls: 1 keeps its own kernels, 0 fuses them into the matmuls."""
    return replace(
        operator,
        bytes=apart * operator.bytes,
        backward_bytes=apart * operator.backward_bytes,
        kernels=apart * operator.kernels,
        more_launches=apart * operator.more_launches,
        is_routed=True,
    )


CLAMP_PASSES = (4, 7.5)

"""
Passes over gate and other half before gpt-oss's activation, which clamps both and joins them again.

A clamp reads and writes, as does the concatenation. In the backward pass views split the joined gradient. Each clamp
compares its input with its bounds and selects. The gate takes 4 passes: 3 bytes for a bound, 5 for a selection. The
other half takes 7: 9 bytes for two bounds and their conjunction, 5 for a selection. That is 5.5 in the mean. Joining
both gradients takes 2 more.
"""


def _clamps(experts: Experts, shape: Shape, *, elements: Numbers) -> tuple[Operator, ...]:
    """
    Return the clamps before the activation of gated experts with biases (gpt-oss), which are always eager kernels.

    References
    ----------
    Megatron-LM, ``megatron/core/fusions/fused_bias_geglu.py`` (core 0.16.1), ``weighted_bias_quick_geglu_impl``: before
    the fused function, which keeps their result as its input, besides the clamps' own.
    """
    if not (experts.bias and experts.gated):
        return ()
    forward, backward = CLAMP_PASSES
    return (
        elementwise(
            "expert_clamps",
            shape,
            elements=2 * elements,
            forward_passes=forward,
            backward_passes=backward,
            all_counted=True,
            kernels=3,
            saved_elements=2 * elements,
            saved_as="expert_hidden",
        ),
    )


def _output_bias(experts: Experts, shape: Shape, *, elements: Numbers, groups: Numbers) -> tuple[Operator, ...]:
    """
    Return the bias of the down-projections times the router's score of each token, which no kernel fuses.

    A loop over the local experts in 32 bits makes a product and a sum for each (4 and 10 bytes per element). One
    concatenation and a cast follow (8 and 6). The backward pass makes two casts (12). It makes the gradients of the
    bias and of the scores (12 each: a product and a sum over it), and concatenates the parts (4).

    References
    ----------
    Megatron-LM, ``megatron/core/transformer/moe/experts.py`` (core 0.16.1), ``TEGroupedMLP._apply_bias``; Transformer
    Engine's operation for fused experts adds it to their results, too (``GroupedLinear``, ``scale_bias``, recalled).
    """
    if not experts.bias:
        return ()
    added = elementwise("expert_bias", shape, elements=elements, forward_passes=28 / 2, backward_passes=40 / 2)
    return (replace(added, kind="copy", more_launches=2 * groups + 1),)


def _lower_shared_experts(experts: Experts, shape: Shape) -> tuple[Operator, ...]:
    """Return the operators of the shared expert: dense, split over tp; the router keeps their input."""
    if not experts.shared_ffn_hidden_size:
        return ()
    dense = feed_forward_operators(
        shape,
        ffn_hidden_size=experts.shared_ffn_hidden_size,
        gated=experts.gated,
        bias=experts.bias,
        squared_relu=experts.squared_relu,
        saved_input=0.0,
        prefix="shared_",
    )
    return (*dense, *_lower_shared_gate(experts, shape))


def _lower_shared_gate(experts: Experts, shape: Shape) -> tuple[Operator, ...]:
    """Return the gate that scales the shared expert's output, one scalar per token; keeps that output."""
    if not experts.shared_gate:
        return ()
    rows = shape.tokens / shape.sequence_shards
    kept = rows * shape.hidden_size
    return (
        matmul(
            "shared_gate",
            shape,
            rows=rows,
            inputs=shape.hidden_size,
            outputs=1,
            saved_elements=kept,
            saved_as="shared_mlp",
        ),
    )
