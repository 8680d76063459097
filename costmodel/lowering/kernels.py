"""Kernels of layers: matmuls, attention cores, element-wise passes, and the residual around a block."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from math import ceil

import numpy as np

from costmodel.facts.fields import Dtype
from costmodel.facts.workload import KeyStatistics
from costmodel.lowering.shape import Shape
from costmodel.record import replace
from costmodel.timing.work import FLASH_BACKWARD, AttentionSize, KernelSize, MatmulSize, Numbers, Operator

FULL_BACKWARD = 2.0
"""
Backward over forward FLOPs of attention by the convention of MoFa's Table 2 (arXiv 2511.09837), which recomputes no
scores.
"""


KEPT_NARROW = frozenset({"attention_input", "norm_output", "latent", "mlp", "shared_mlp", "experts", "expert_hidden"})
"""
Inputs of linears that no other operator keeps: an 8-bit recipe keeps only their 8-bit copy. Router, head and embedding
stay in 16 bits.
"""

KEPT_TWICE = frozenset({"output_projection"})
"""
Modules whose output an 8-bit recipe keeps twice: for the attention core in its own bits, and for the linear after it in
8 bits.
"""


NARROW_BYTES = 1.0
"""Bytes per element that a matmul of an 8-bit recipe reads. (Grouped matmuls have a law of few rows instead.)"""


def matmul(
    name: str,
    shape: Shape,
    *,
    rows: Numbers,
    inputs: Numbers,
    outputs: Numbers,
    bias: Numbers = 0,
    saved_elements: Numbers = 0.0,
    saved_as: str = "",
    groups: Numbers = 1,
    expert: bool = False,
    narrow: bool = True,
    casts_input: bool = True,
    gathered: str = "",
    dtype: Dtype | None = None,
) -> Operator:
    """
    Return the operator of a linear projection on one device: 2 m n k FLOPs forward, twice that backward.

    Parameters
    ----------
    name, shape
        Name of the operator; the micro-batch.
    rows, inputs, outputs
        m, k and n of the device's matmul; each of the ``groups`` has a weight of ``inputs * outputs``.
    bias
        Additional parameters of each group.
    saved_elements, saved_as
        Elements kept for the backward pass, and their module.
    groups
        Local experts, among which the rows are divided.
    expert
        True if the weights belong to routed experts.
    narrow
        True if an 8-bit recipe covers this matmul.
    casts_input
        True if its input is cast for it; False if another matmul's cast serves it.
    gathered
        Tensor that sequence-parallel ranks gather: ``input`` or ``gradient``; empty: neither.
    dtype
        Dtype in which it is costed; None: the recipe's.
    """
    weight = groups * inputs * outputs
    flops = 2 * rows * inputs * outputs
    casts, backward_casts = (groups * number if expert else 0 for number in shape.grouped_casts)
    read = shape.activation_bytes if expert or not (narrow and shape.cast_bytes) else NARROW_BYTES
    written = shape.activation_bytes * rows * outputs
    nbytes = read * (rows * inputs + weight) + written
    return Operator(
        name=name,
        kind="grouped_matmul" if expert else "matmul",
        size=MatmulSize(m=rows, n=outputs, k=inputs, batch=groups),
        dtype=dtype or shape.compute_dtype,
        flops=flops,
        backward_flops=2 * flops,
        bytes=nbytes,
        backward_bytes=2 * nbytes,
        cast_bytes=_cast_bytes(shape, gathered=gathered == "input") * rows * inputs if casts_input else 0.0,
        backward_cast_bytes=_cast_bytes(shape, gathered=gathered == "gradient") * rows * outputs,
        written_bytes=written,
        backward_written_bytes=shape.activation_bytes * rows * inputs + shape.gradient_traffic_bytes * weight,
        saved_bytes=_kept_element_bytes(shape, saved_as, narrow) * saved_elements,
        saved_as=saved_as,
        parameters=weight + groups * bias,
        expert=expert,
        group_kernels=(casts, backward_casts),
        more_launches=LOOPED_LAUNCH * (groups - 1) + SMALL_LAUNCH * casts if expert else 0,
        is_routed=expert,
        rows=rows if expert else shape.tokens,
        shards=shape.etp if expert else shape.tp,
        groups=groups,
    )


def row_parallel(name: str, shape: Shape, *, inputs: Numbers, bias: bool, saved_as: str) -> Operator:
    """
    Return the linear at a block's end, from ``inputs`` per device to the hidden size, summed over TP ranks.

    Sequence-parallel ranks gather its gradient; it keeps its input.
    """
    return matmul(
        name,
        shape,
        gathered="gradient",
        rows=shape.tokens,
        inputs=inputs,
        outputs=shape.hidden_size,
        bias=shape.hidden_size if bias else 0,
        saved_elements=shape.tokens * inputs,
        saved_as=saved_as,
    )


def output_projection(shape: Shape, *, inputs: Numbers, bias: bool = False) -> Operator:
    """Return the linear after any kind of attention."""
    return row_parallel("output_projection", shape, inputs=inputs, bias=bias, saved_as="output_projection")


def _cast_bytes(shape: Shape, *, gathered: bool) -> Numbers:
    """Bytes read and written to cast one element; ranks that gather 8-bit shards cast a share and transpose all."""
    if not (gathered and shape.quantizes_before_gather):
        return shape.cast_bytes
    shared = (shape.cast_bytes - NARROW_BYTES) / shape.sequence_shards + 2 * NARROW_BYTES
    return np.where(np.asarray(shape.sequence_shards) > 1, shared, shape.cast_bytes)[()]


def _kept_element_bytes(shape: Shape, saved_as: str, narrow: bool) -> float:
    narrow = narrow and shape.linear_input_bytes < shape.activation_bytes
    if narrow and saved_as in KEPT_NARROW:
        return shape.linear_input_bytes
    if not (narrow and saved_as in KEPT_TWICE):
        return shape.activation_bytes
    of_core = shape.activation_bytes if shape.attention_dtype == shape.wide_dtype else NARROW_BYTES
    return of_core + shape.linear_input_bytes


LOOPED_LAUNCH = 0.2
"""
Launch time of a matmul from a library's loop, as a fraction of a launch from eager code. It is 10 us against PyTorch's
50 (Transformer Engine, ``general_grouped_gemm``; the constant ``launch_overhead_seconds`` of the devices).
"""


SMALL_LAUNCH = 0.08
"""
As above for a kernel with little to do: 4 us. Kernels launched one after the other take 3.8 us each (Gray, "Getting
Started with CUDA Graphs", NVIDIA developer blog, 2019).
"""


def lower_shared_input(
    shape: Shape, widths: Mapping[str, Numbers], *, has_bias: bool, saved_elements: Numbers, saved_as: str
) -> tuple[Operator, ...]:
    """
    Return column-parallel linears of one input of the hidden size, and the sum of its gradients if there are several.

    Parameters
    ----------
    shape
        The micro-batch.
    widths
        Name of each linear, and its outputs on this device.
    has_bias
        True if they have biases.
    saved_elements, saved_as
        As in :func:`matmul`, for the input, which is kept once. It is also cast once, which counts with the second
        linear: the one that torchtitan recomputes.
    """
    linears = tuple(
        matmul(
            name,
            shape,
            rows=shape.tokens,
            inputs=shape.hidden_size,
            outputs=width,
            bias=width if has_bias else 0,
            saved_elements=0.0 if index else saved_elements,
            saved_as=saved_as,
            casts_input=index == min(1, len(widths) - 1),
            gathered="input",
        )
        for index, (name, width) in enumerate(widths.items())
    )
    if len(linears) == 1:
        return linears
    return (*linears, input_gradients(f"{saved_as}_gradients", shape, count=len(linears)))


def input_gradients(name: str, shape: Shape, *, count: int) -> Operator:
    """
    Return the sum of the input gradients of ``count`` matmuls of one input; without TP the norm's kernel does it.

    Compiled, the norm's backward pass reads ``count`` tensors instead of one. Tensor-parallel ranks sum all of them
    into one (in the order of ranks) before they scatter it.
    """
    passes: Numbers = count - 1 + np.where(np.asarray(shape.tp) > 1, 2.0, 0.0)[()]
    nbytes = shape.activation_bytes * shape.tokens * shape.hidden_size * passes
    return Operator(name=name, kind="copy", kernels=0, backward_bytes=nbytes, rows=shape.tokens, shards=shape.tp)


def elementwise(
    name: str,
    shape: Shape,
    *,
    elements: Numbers,
    forward_passes: float,
    backward_passes: float,
    all_counted: bool = False,
    kernels: int = 1,
    saved_elements: Numbers = 0.0,
    saved_as: str = "",
    parameters: Numbers = 0.0,
    flops: Numbers = 0.0,
) -> Operator:
    """
    Return an operator that passes over device memory.

    Parameters
    ----------
    name, shape
        Name of the operator; the micro-batch.
    elements
        Elements of the tensor that it works on.
    forward_passes, backward_passes
        Number of times that those elements are read or written.
    all_counted
        True if software makes no more passes than these, so that they run at the memory's rate.
    kernels, parameters, flops, saved_as
        As in :class:`Operator`; the backward pass takes twice the FLOPs.
    saved_elements
        Elements kept for the backward pass.
    """
    return Operator(
        name=name,
        kind="copy" if all_counted else "elementwise",
        flops=flops,
        backward_flops=2 * flops,
        bytes=shape.activation_bytes * elements * forward_passes,
        backward_bytes=shape.activation_bytes * elements * backward_passes,
        kernels=kernels,
        saved_bytes=shape.activation_bytes * saved_elements,
        saved_as=saved_as,
        parameters=parameters,
        rows=shape.tokens,
        shards=shape.tp,
    )


def attach_kernel(
    operator: Operator,
    shape: Shape,
    kernel: str,
    *,
    count: Numbers = 1,
    is_adjoint: bool = False,
    **sizes: Numbers,
) -> Operator:
    """
    Return an operator as one of PyTorch's functions, which samples identify by name and sizes.

    Parameters
    ----------
    operator, shape
        Operator that only moves bytes; the micro-batch.
    kernel, count, is_adjoint
        As in :class:`costmodel.timing.work.KernelSize`.
    sizes
        Sizes by the names of the samples' columns.
    """
    size = KernelSize(kernel=kernel, sizes=sizes, dtype=shape.wide_dtype, count=count, is_adjoint=is_adjoint)
    return replace(operator, size=size)


def attach_torch_function(
    operator: Operator,
    shape: Shape,
    kernel: str,
    *,
    count: Numbers = 1,
    is_adjoint: bool = False,
    **sizes: Numbers,
) -> Operator:
    """Apply :func:`attach_kernel` if the framework calls PyTorch's functions; otherwise change nothing."""
    if not shape.kernels.torch_functions:
        return operator
    return attach_kernel(operator, shape, kernel, count=count, is_adjoint=is_adjoint, **sizes)


def core_attention(
    shape: Shape,
    *,
    heads: Numbers,
    kv_heads: Numbers,
    qk_head_dim: int,
    v_head_dim: int,
    window: int | None,
    chunk: int | None = None,
    entries: float = 0.0,
    sinks: Numbers = 0.0,
) -> tuple[Operator, ...]:
    """
    Return the operators of scores and weighted values; they keep Q, K and V.

    Context parallelism splits the queries and passes all keys by in a ring: c pieces, and c - 1 merges of their
    results. All-to-alls give each rank a share of the heads instead, and the tokens of all their ranks; gathered keys
    are read by the two pieces of a rank's sequence. Nothing is kept for Table 2's softmax row; flash attention really
    keeps 4 more bytes per query and head (the log of the sum of exponentials). If scores are not fused,
    :func:`_softmax` works on them in between. In 8 bits :func:`_attention_casts` are added.

    Parameters
    ----------
    shape
        The micro-batch.
    heads, kv_heads
        Query heads and key-value heads of this device.
    qk_head_dim, v_head_dim
        Widths of a head.
    window
        Sliding window in tokens; None: the whole sequence.
    chunk
        Tokens of chunks that do not attend to each other; None: the whole sequence.
    entries
        Keys besides those tokens that a query is multiplied with, averaged over the sequence.
    sinks
        Learned sink logits of this device.
    """
    keys = readable_keys(shape, window or chunk)
    flops = 2 * shape.tokens * (mean_keys(shape, window, chunk) + entries) * heads * (qk_head_dim + v_head_dim)
    queries_and_outputs = shape.tokens * heads * (qk_head_dim + v_head_dim)
    keys_and_values = shape.tokens * kv_heads * (qk_head_dim + v_head_dim)
    is_narrow = shape.attention_dtype != shape.wide_dtype
    element_bytes = NARROW_BYTES if is_narrow else shape.activation_bytes
    near, (ranks, pieces) = shape.a2a_ranks, _context_pieces(shape)
    nbytes = element_bytes * (queries_and_outputs + keys_and_values * ranks)
    fused = Operator(
        name="core_attention",
        kind="attention",
        flops=flops,
        backward_flops=flops * (FLASH_BACKWARD if shape.causal else FULL_BACKWARD),
        size=AttentionSize(
            sequences=shape.sequences,
            queries=shape.tokens / shape.sequences * near,
            keys=keys + ceil(entries),
            heads=heads / near,
            kv_heads=kv_heads / near,
            qk_head_dim=qk_head_dim,
            v_head_dim=v_head_dim,
            causal=shape.causal,
            is_window=keys < shape.own_length,
            packed=key_statistics(shape, window, chunk),
        ),
        dtype=shape.attention_dtype,
        bytes=nbytes,
        backward_bytes=2 * nbytes,
        kernels=pieces,
        saved_bytes=element_bytes * (shape.tokens * heads * qk_head_dim + keys_and_values),
        saved_as="qkv",
        parameters=sinks,
        rows=shape.tokens,
        shards=shape.tp,
    )
    if is_narrow:
        return (fused, _attention_casts(shape, elements=queries_and_outputs + keys_and_values))
    return (fused,) if shape.kernels.fused_attention else _lower_unfused_attention(fused, shape)


def _context_pieces(shape: Shape) -> tuple[Numbers, Numbers]:
    """Return the number of ranks in a context-parallel ring, and that of its kernels: pieces and merges."""
    ranks: Numbers = shape.cp / shape.a2a_ranks if shape.dynamic_ranks is None else shape.dynamic_ranks.mean
    return ranks, np.minimum(shape.cp, 2) if shape.communication.cp_comm_type == "all_gather" else 2 * ranks - 1


def _attention_casts(shape: Shape, *, elements: Numbers) -> Operator:
    """
    Return the casts around attention in 8 bits: Q, K, V and the output; backward the same and their gradients.

    References
    ----------
    Transformer Engine, ``attention/dot_product_attention/backends.py``, ``FusedAttnFunc`` with ``fp8_dpa`` (recalled):
    queries, keys and values are quantized in front of the kernel, its output and the gradients after it go back to 16
    bits.
    """
    passes = (shape.activation_bytes + NARROW_BYTES) / shape.activation_bytes
    return elementwise(
        "attention_casts", shape, elements=elements, forward_passes=passes, backward_passes=passes, kernels=2
    )


def _lower_unfused_attention(fused: Operator, shape: Shape) -> tuple[Operator, ...]:
    """Return unfused attention: scores, their operations in device memory, and weighted values."""
    size = fused.size
    assert isinstance(size, AttentionSize), "an attention has an attention's size"
    scores, width = shape.tokens * shape.sequence_length * size.heads, size.head_dim
    score_bytes = shape.activation_bytes * scores
    aligned = _alignment_fraction(size.qk_head_dim, size.v_head_dim, otherwise=shape.silicon.unaligned_fraction)
    matmuls = replace(
        fused,
        kind="batched_matmul",
        size=MatmulSize(m=size.queries, n=size.keys, k=width, batch=2 * size.sequences * size.heads),
        bytes=fused.bytes + 2 * score_bytes,
        backward_bytes=fused.backward_bytes + 4 * score_bytes,
        kernels=2,
        flops_fraction=aligned * width / (width + HALF_WIDTH),
    )
    return (matmuls, _softmax(shape, heads=size.heads, scores=scores))


def _softmax(shape: Shape, *, heads: Numbers, scores: Numbers) -> Operator:
    """
    Return scale, mask, softmax and dropout of scores in device memory, with the bytes that the software keeps.

    With dropout and 16 bits these are 5 a s^2 b / t bytes: softmax's output, dropout's mask and output. Megatron-LM's
    fused kernel reads and writes 16 bits, and for dropout also a byte of mask. It requires a multiple of 4 heads and
    sequences (``megatron/fused_kernels``, ``fused_softmax.py``, ``is_kernel_available``). Otherwise PyTorch works in
    fp32, kernel by kernel: cast, scale, mask, softmax, cast back.

    References
    ----------
    Korthikanti et al., arXiv:2205.05198, section 4.1: 5 b a s^2 bytes kept per layer.
    """
    has_kernel = (np.asarray(shape.mbs * heads) % SOFTMAX_HEADS == 0) & (shape.sequence_length % SOFTMAX_HEADS == 0)
    dropout = DROPOUT_BYTES * (shape.memory.dropout_mask_bytes > 0)
    forward = np.where(has_kernel, FUSED_SOFTMAX_BYTES[0], UNFUSED_SOFTMAX_BYTES[0]) + dropout
    backward = np.where(has_kernel, FUSED_SOFTMAX_BYTES[1], UNFUSED_SOFTMAX_BYTES[1]) + dropout
    return Operator(
        name="softmax",
        kind="scores",
        bytes=scores * forward,
        backward_bytes=scores * backward,
        kernels=np.where(has_kernel, 1, UNFUSED_SOFTMAX_KERNELS) + 1,
        saved_bytes=shape.memory.attention_score_bytes * scores,
        saved_as="core_attention",
        rows=shape.tokens,
        shards=shape.tp,
    )


HALF_WIDTH = 64
"""
Width of a head at which batched matmuls reach half of the rate of large ones.

Filling and draining a tile of the result take as long as two steps of 32 of its inner loop, of which a head has few.
"""

SOFTMAX_HEADS = 4

DROPOUT_BYTES = 5
"""Bytes per score of dropout, in either pass: 2 read, 2 written, 1 of mask."""

FUSED_SOFTMAX_BYTES = (4, 6)
"""
Bytes per score and pass of the fused softmax: 2 read and 2 written forward; backward two tensors of 2 read, one
written.
"""

UNFUSED_SOFTMAX_KERNELS = 5
UNFUSED_SOFTMAX_BYTES = (6 + 8 + 9 + 8 + 6, 6 + 12 + 9 + 8 + 6)
"""
Bytes per score and pass of the unfused softmax: cast to fp32, scale, mask (a byte more), softmax, cast back; each reads
and writes, softmax's backward reads two tensors.
"""


def _alignment_fraction(*sizes: int, otherwise: float) -> float:
    """
    Share of the matmul rate that these sizes reach: Tensor Cores require 16 contiguous bytes, 8 elements.

    References
    ----------
    NVIDIA, Matrix Multiplication Background User's Guide, section "Tensor Core Requirements".
    """
    return 1.0 if all(size % 8 == 0 for size in sizes) else otherwise


def logits_fraction(shape: Shape, vocab_size: int) -> Numbers:
    """
    Fraction of the matmul rate that the head reaches with a vocabulary of this size, shape of ``tp``.

    Derivation: Tensor Cores require 16 contiguous bytes (NVIDIA, Matrix Multiplication Background User's Guide), hence
    a vocabulary that is a multiple of 8. It is one with frameworks that pad it, and with several tensor-parallel ranks:
    1. Otherwise the head reaches the ``unaligned_logits_fraction`` of the device's generation.
    """
    if shape.kernels.pads_vocabulary:
        return 1.0
    return np.where(
        np.asarray(shape.tp) == 1,
        _alignment_fraction(vocab_size, otherwise=shape.silicon.unaligned_logits_fraction),
        1.0,
    )[()]


def context_output(shape: Shape, *, width: Numbers) -> tuple[Operator, ...]:
    """
    Return the attention output by heads, which context-parallel all-to-alls keep besides the output by tokens.

    Parameters
    ----------
    shape
        The micro-batch.
    width
        Elements per token of this device.

    References
    ----------
    Transformer Engine 2.11, ``context_parallel.py``, ``AttnFuncWithCPAndQKVOA2A``: saves q, k, v and ``out_part``.
    """
    if not shape.memory.context_output:
        return ()
    nbytes = np.asarray(shape.activation_bytes * shape.tokens * width * (np.asarray(shape.cp) > 1), dtype=np.float64)
    return (Operator(name="context_output", kind="copy", kernels=0, saved_bytes=nbytes, saved_as="core_attention"),)


def readable_keys(shape: Shape, window: int | None) -> float:
    """
    Number of keys that a query may read before the causal mask: its sequence s, or the window w.

    Derivation: min(w, s), as a window that is longer than the sequence masks nothing.
    """
    return shape.own_length if window is None else min(window, shape.own_length)


def mean_keys(shape: Shape, window: int | None, chunk: int | None) -> float:
    """
    Number of keys that a query is multiplied with, averaged over the tokens of a sample.

    In chunks of c tokens it is c / 2, or c without a causal mask, as in a sequence of c.

    Without a mask it is s (MoFa, Table 2), in a window of w tokens at most w. Derivation: a kernel that skips the
    masked part multiplies query i with min(i, w) keys. Their mean over s queries is w - w^2 / (2 s), which is s / 2
    without a window. For packed sequences it is the mean over their tokens
    (:meth:`costmodel.facts.workload.SequenceLengths.keys`).

    >>> mean_keys(Shape(hidden_size=1, sequence_length=4096, activation_bytes=2, causal=True), None, None)
    2048.0
    """
    packed = key_statistics(shape, window, chunk)
    if packed is not None:
        return packed.mean
    return float(_sequence_keys(shape.sequence_length, causal=shape.causal, window=window, chunk=chunk))


def key_statistics(shape: Shape, window: int | None, chunk: int | None) -> KeyStatistics | None:
    """Return :func:`mean_keys` of packed sequences with its spread; None if a sample is one sequence."""
    if shape.lengths is None:
        return None
    name = ("keys", shape.causal, window, chunk)
    keys_of = partial(_sequence_keys, causal=shape.causal, window=window, chunk=chunk)
    return shape.lengths.keys(name, keys_of, sample=shape.sequence_length)


def _sequence_keys(length: Numbers, *, causal: bool, window: int | None, chunk: int | None) -> Numbers:
    """Number of keys of :func:`mean_keys` in sequences of some lengths."""
    keys: Numbers = length if window is None else np.minimum(window, length)
    whole = keys * (1 - keys / (2 * length)) if causal else keys
    if chunk is None:
        return whole
    return np.where(np.less(chunk, length), chunk / 2 if causal else chunk, whole)


def mean_entries(shape: Shape, ratio: int, most: int | None = None) -> float:
    """
    Number of compressed entries that a query is multiplied with, averaged over the tokens of a sample.

    Derivation: of n = s / r entries query t sees (t + 1) / r. As in :func:`mean_keys` at most m of them average
    m - m^2 / (2 n), and all of them n / 2; without a causal mask m and n. A ratio r of 0 has none.

    >>> shape = Shape(hidden_size=1, sequence_length=4096, activation_bytes=2, causal=True)
    >>> mean_entries(shape, 128), mean_entries(shape, 4, 512)
    (16.0, 384.0)
    """
    if shape.lengths is None:
        return float(_sequence_entries(shape.sequence_length, causal=shape.causal, ratio=ratio, most=most))
    name = ("entries", shape.causal, ratio, most)
    return shape.lengths.keys(name, partial(_sequence_entries, causal=shape.causal, ratio=ratio, most=most)).mean


def _sequence_entries(length: Numbers, *, causal: bool, ratio: int, most: int | None) -> Numbers:
    """Number of entries of :func:`mean_entries` in sequences of some lengths."""
    entries: Numbers = np.floor_divide(length, ratio) if ratio else 0.0 * length
    chosen: Numbers = entries if most is None else np.minimum(most, entries)
    return chosen * (1 - chosen / (2 * np.maximum(entries, 1))) if causal else chosen


UNFUSED_NORM_PASSES = (18, 25)
"""
Forward and backward passes of 2 bytes of an RMS norm kernel by kernel. Forward: cast to fp32 (6 bytes), square (8),
mean (4), product (8), cast (6), weight (4). Backward: twice the products, both reductions and the casts.
"""

UNFUSED_NORM_KERNELS = 6

UNFUSED_NORM_BYTES = 4
"""
Bytes per element that unfused norms keep beyond their 16-bit input: 4 of an fp32 copy instead of 2, and 2 of the
normalised input before the weight.
"""


EAGER = "eager_"
"""Prefix of saved tensors that several kernels make, which recomputation may drop in part."""


def fuses_norms(shape: Shape) -> bool:
    """Return True if norms and rotations are one kernel each."""
    return shape.kernels.fused_kernels or shape.kernels.fused_norms


def norms(name: str, shape: Shape, *, count: int, norm: str) -> Operator:
    """
    Return norms over the hidden size; each keeps its input.

    Each is one kernel, which runs at the memory's rate. Sequence parallelism among 8 ranks saves 0.5 ms of a layer's
    forward pass in Megatron's model of 22 billion (Korthikanti et al., arXiv:2205.05198, Table 4). That is seven
    eighths of the passes of norms and residuals at 0.97 of the datasheet's bandwidth. A norm of several kernels keeps
    an fp32 copy of its input instead, and the normalised input before the weight.

    Parameters
    ----------
    name, shape
        Name of the operator; the micro-batch.
    count
        Number of norms.
    norm
        ``rms``, ``layer`` or ``none``, as in :class:`costmodel.facts.model.Layer`; layer norms are one kernel.
    """
    weights = {"rms": 1, "layer": 2, "none": 0}[norm]
    elements = count * shape.tokens * shape.hidden_size / shape.sequence_shards
    is_one_kernel = fuses_norms(shape) or norm == "layer"
    keeps_steps = shape.memory.unfused_kernels and not shape.kernels.fused_norms
    kept = elements * (1 + UNFUSED_NORM_BYTES / shape.activation_bytes if keeps_steps else 1)
    forward_passes, backward_passes = (2, 3) if is_one_kernel else UNFUSED_NORM_PASSES
    normed = elementwise(
        name,
        shape,
        elements=elements,
        forward_passes=forward_passes,
        backward_passes=backward_passes,
        all_counted=True,
        kernels=count if is_one_kernel else UNFUSED_NORM_KERNELS * count,
        saved_elements=kept,
        saved_as=f"{EAGER}norm" if keeps_steps else "norm",
        parameters=count * weights * shape.hidden_size,
    )
    if norm == "none" or not (is_one_kernel or shape.kernels.torch_functions):
        return normed
    rows = shape.tokens / shape.sequence_shards
    return attach_kernel(normed, shape, f"{norm}_norm", count=count, rows=rows, width=shape.hidden_size)


MIXED_PASSES = ((2, 3), (3, 5))
"""
Forward and backward passes of hyper-connections over one stream, and over all streams.

Over one stream the block's input is written and its output read. All streams are read for the weights and
their sum, read to be mixed, and written. The backward pass reads and writes their gradients besides.
"""


def residual_operators(shape: Shape, *, streams: int, snapshots: int) -> tuple[Operator, ...]:
    """
    Return the addition after a block, with the weighted sum before it, or the hyper-connections around it.

    One stream: two reads and a write, in both passes; keeps the dropout mask. Several: the concatenated streams give
    weights to sum them into the block's input, to spread its output, and to mix the streams, in one kernel each way.
    The streams and the block's output are kept. Snapshots: a softmax of their scores weights them and the latest sum,
    which is kept; a score has a norm and a vector of the hidden size.

    Parameters
    ----------
    shape
        The micro-batch.
    streams
        Streams of the residual, n: a projection from n h to (2 + n) n, a bias for each result and three scales.
    snapshots
        Earlier sums of the residual.

    References
    ----------
    Xie et al., mHC (manifold-constrained hyper-connections, 2026); transformers 5.24,
    ``models/deepseek_v4/modeling_deepseek_v4.py``: ``DeepseekV4HyperConnection``; Megatron-Bridge,
    ``src/megatron/bridge/models/kimi/kimi_k3_ops.py``: ``attn_res_aggregate``.
    """
    rows = shape.tokens / shape.sequence_shards
    elements = rows * shape.hidden_size
    if streams == 1:
        added = elementwise(
            "residuals", shape, elements=elements, forward_passes=3, backward_passes=3, all_counted=True, kernels=1
        )
        added = attach_kernel(added, shape, "residual", rows=rows, width=shape.hidden_size)
        added = replace(added, saved_bytes=shape.memory.dropout_mask_bytes * elements, saved_as="dropout")
        return (*_weight_snapshots(shape, elements=elements, snapshots=snapshots), added)
    weights = _stream_weights_operator(shape, streams=streams, outputs=(2 + streams) * streams, scales=3)
    (one, of_one), (all_, of_all) = MIXED_PASSES
    mixed = elementwise(
        "residuals",
        shape,
        elements=elements,
        forward_passes=one + streams * all_,
        backward_passes=of_one + streams * of_all,
        all_counted=True,
        kernels=2,
        saved_elements=(1 + streams) * elements,
        saved_as="streams",
    )
    return weights, mixed


def _weight_snapshots(shape: Shape, *, elements: Numbers, snapshots: int) -> tuple[Operator, ...]:
    """
    Return the weighted sum of snapshots and the latest sum: a read of each and a write.

    The backward pass reads each again, and adds to its gradient.
    """
    if not snapshots:
        return ()
    summed = elementwise(
        "snapshots",
        shape,
        elements=elements,
        forward_passes=snapshots + 2,
        backward_passes=3 * (snapshots + 1) + 1,
        all_counted=True,
        saved_elements=elements,
        saved_as="streams",
        parameters=2 * shape.hidden_size,
    )
    return (summed,)


def collapse_operators(shape: Shape, *, streams: int) -> tuple[Operator, ...]:
    """Return the weighted sum of all streams in front of the head; nothing for a single stream."""
    if streams == 1:
        return ()
    elements = shape.tokens * shape.hidden_size / shape.sequence_shards
    collapsed = elementwise(
        "streams",
        shape,
        elements=elements,
        forward_passes=1 + 2 * streams,
        backward_passes=1 + 3 * streams,
        all_counted=True,
        saved_elements=streams * elements,
        saved_as="streams",
    )
    return _stream_weights_operator(shape, streams=streams, outputs=streams, scales=1), collapsed


def _stream_weights_operator(shape: Shape, *, streams: int, outputs: int, scales: int) -> Operator:
    """Return the matmul that computes the weights of streams from their concatenation, with biases and scales."""
    return matmul(
        "stream_weights",
        shape,
        rows=shape.tokens / shape.sequence_shards,
        inputs=streams * shape.hidden_size,
        outputs=outputs,
        bias=outputs + scales,
        narrow=False,
        dtype=shape.wide_dtype,
    )
