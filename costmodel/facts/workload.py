"""Training work per step and in total, and the bytes of its recipe."""

from __future__ import annotations

from dataclasses import replace

from costmodel.facts.device import Silicon
from costmodel.facts.fields import Count, CountOrZero, Dtype, NotNegative, Positive
from costmodel.facts.lengths import SequenceLengths
from costmodel.record import strict_record


@strict_record(frozen=True, kw_only=True, slots=True)
class Precision:
    """
    Bytes per element of a training recipe.

    Parameters
    ----------
    name
        Name of the recipe, such as ``bf16``.
    compute
        Dtype of the matmuls.
    weight_bytes, gradient_bytes, optimizer_bytes
        Bytes per parameter of weights, of gradients as accumulated and reduced, and of all optimizer states together.
    copy_bytes
        Bytes per parameter of lower-precision copies of the weights that matmuls keep for all micro-batches; not part
        of a checkpoint.
    parameter_gather_bytes
        Bytes per parameter that data-parallel ranks gather of updated weights.
    activation_bytes
        Bytes per element of an activation.
    linear_input_bytes
        Bytes per element of a linear's input kept for the backward pass; None: as ``activation_bytes``.
    cast_bytes
        Bytes read and written per element to cast a linear's input to a lower precision, amax and transposed copy
        included.
    transposed_bytes
        Bytes of the transposed copy, per element of ``cast_bytes`` and per parameter of ``copy_bytes``; see :meth:`on`.
    cast_kernels, scale_kernels
        Kernels that cast one tensor, and kernels that reorder the scales of one operand for a matmul. Each tensor of a
        grouped matmul has its own.
    quantizes_before_gather
        True if sequence-parallel ranks cast their shards before they gather them, and transpose the gathered tensor.
    gathered_input_bytes, gathered_gradient_bytes
        Bytes per element that sequence-parallel ranks gather in front of a column-parallel linear, and in the backward
        pass in front of a row-parallel one; None: as ``activation_bytes``.
    """

    name: str
    compute: Dtype
    weight_bytes: Positive
    gradient_bytes: Positive
    optimizer_bytes: Positive
    parameter_gather_bytes: Positive
    copy_bytes: NotNegative = 0.0
    activation_bytes: Positive = 2.0
    linear_input_bytes: Positive | None = None
    cast_bytes: NotNegative = 0.0
    transposed_bytes: NotNegative = 0.0
    cast_kernels: CountOrZero = 0
    scale_kernels: CountOrZero = 0
    quantizes_before_gather: bool = False
    gathered_input_bytes: Positive | None = None
    gathered_gradient_bytes: Positive | None = None

    @property
    def wide_weight_bytes(self) -> float:
        """Bytes per parameter of a layer that computes in 16 bits: those of an activation, unless weights are FP32."""
        return self.weight_bytes if self.weight_bytes >= 2 * self.activation_bytes else self.activation_bytes

    @property
    def wide_gather_bytes(self) -> float:
        """Bytes per parameter of such a layer that data-parallel ranks gather."""
        return max(self.parameter_gather_bytes, self.activation_bytes)

    @property
    def casts_per_group(self) -> tuple[int, int]:
        """
        Kernels of casts and scales of one group of a grouped matmul, forward and backward.

        Derivation: the input is cast in front of the forward pass, the output's gradient in front of the backward one.
        Each serves all matmuls of its pass: one forward, two backward, of two operands each.
        """
        return self.cast_kernels + 2 * self.scale_kernels, self.cast_kernels + 4 * self.scale_kernels

    def on(self, silicon: Silicon) -> Precision:
        """
        Return the recipe on devices of a generation: 8-bit matmuls that read every layout need no transposed copy.

        References
        ----------
        Transformer Engine, ``nvte_is_non_tn_fp8_gemm_supported`` (compute capability 10), by which
        ``Float8Quantizer`` and ``Float8CurrentScalingQuantizer`` make one copy instead of two.
        """
        if not silicon.multiplies_any_layout or not self.transposed_bytes:
            return self
        spared = self.transposed_bytes
        return replace(
            self,
            cast_bytes=self.cast_bytes - spared,
            copy_bytes=max(0.0, self.copy_bytes - spared),
            transposed_bytes=0.0,
        )


@strict_record(frozen=True, kw_only=True, slots=True)
class Workload:
    """
    Training work, per step and in total.

    Parameters
    ----------
    global_batch_size
        Number of sequences per optimizer step.
    sequence_length
        Number of tokens per sequence.
    tokens
        Number of tokens of the whole training.
    precision
        Precision recipe: dtypes and bytes.
    lengths
        Lengths of the sequences packed into each sample of ``sequence_length`` tokens; None: one of all its tokens.
    """

    global_batch_size: Count
    sequence_length: Count
    tokens: Positive
    precision: Precision
    lengths: SequenceLengths | None = None
