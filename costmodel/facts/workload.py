"""Training work per step and in total, the bytes of its recipe, and the lengths of packed sequences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field, replace
from functools import cache, lru_cache
from math import erf, sqrt
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from costmodel.facts.device import Silicon
from costmodel.facts.fields import Count, CountOrZero, Dtype, NotNegative, Positive
from costmodel.record import record, strict_record

Floats: TypeAlias = NDArray[np.float64]
KeysOf: TypeAlias = Callable[[Floats], Floats | float]
"""Keys that a query is multiplied with, averaged over a sequence, by the sequence's length."""


@strict_record(frozen=True, kw_only=True, slots=True)
class SequenceLengths:
    """
    Distribution of the lengths of sequences that are packed whole into samples.

    Parameters
    ----------
    lengths
        Different lengths in tokens, increasing.
    counts
        Number of sequences of each length, or their shares.
    rank_tokens
        Most tokens of a sequence on one rank with dynamic context parallelism (Megatron-LM:
        ``--max-seqlen-per-dp-cp-rank``); None: all sequences are split over the cp ranks.
    made
        Results of :meth:`keys` by name.
    """

    lengths: tuple[Count, ...]
    counts: tuple[Positive, ...]
    rank_tokens: Count | None = None
    made: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def mean_length(self) -> float:
        """Mean length of a sequence."""
        lengths, counts = self._arrays
        return float(lengths @ counts / counts.sum())

    @property
    def mean_tokens(self) -> float:
        r"""
        Length of the sequence that a token is in, averaged over tokens.

        .. math:: \bar l = \frac{\sum_i l_i^2}{\sum_i l_i}
        """
        return self.keys("tokens", lambda lengths: lengths).mean

    @property
    def dynamic_ranks(self) -> KeyStatistics | None:
        """
        Number of ranks that share a sequence with dynamic context parallelism, as :meth:`keys`; None without.

        References
        ----------
        megatron-core 0.16.1, pipeline_parallel/hybrid_cp_schedule.py, ``BalancedCPScheduler.gpus_needed``.

        >>> SequenceLengths(lengths=(1024, 5000), counts=(5.0, 1.0), rank_tokens=1024).dynamic_ranks.most
        8.0
        """
        most = self.rank_tokens
        if most is None:
            return None
        return self.keys("ranks", lambda lengths: np.maximum(1.0, 2.0 ** np.ceil(np.log2(lengths / most))))

    def keys(self, name: Any, keys_of: KeysOf, sample: float = np.inf) -> KeyStatistics:
        r"""
        Return the keys of a query over packed sequences: computed once per name and sample.

        .. math::

            k = \frac{\sum_i l_i k(l_i)}{\sum_i l_i}, \qquad
            v = (1 - q) \frac{E[(l k(l) - k_r l)^2]}{E[l]} + q (1 - q) (k_s - k_r)^2 s

        Derivation: l k(l) pairs of a sequence are the reward of a renewal of l tokens. Their sum over many tokens n has
        a variance n v, the first term. A sequence as long as a sample of s tokens is alone in it. So a share q of the
        samples has k_s instead of the mean k_r of the rest (law of total variance). Sequences of one length have no
        variance. Seven histograms packed first-fit have a deviation within 5 % of it.

        References
        ----------
        Smith, "Regenerative stochastic processes", Proc. R. Soc. A 232 (1955): cumulative processes.
        """
        found: KeyStatistics | None = self.made.get((name, sample))
        if found is None:
            lengths, counts = self._arrays
            tokens, each = lengths * counts, np.asarray(keys_of(lengths), dtype=np.float64)
            mean = float(each[0]) if len(each) == 1 else float(tokens @ each / tokens.sum())
            variance = _variance(lengths, counts, each, sample)
            found = self.made[name, sample] = KeyStatistics(mean=mean, variance=variance, most=float(each.max()))
        return found

    @property
    def _arrays(self) -> tuple[Floats, Floats]:
        return np.asarray(self.lengths, dtype=np.float64), np.asarray(self.counts, dtype=np.float64)


@record(frozen=True, kw_only=True, slots=True)
class KeyStatistics:
    """
    Keys that a query is multiplied with where sequences are packed.

    Parameters
    ----------
    mean
        Mean over tokens.
    variance
        Variance of the sum over n tokens, divided by n.
    most
        Mean over the tokens of the longest sequence, which no sample exceeds.
    """

    mean: float
    variance: float
    most: float


def _variance(lengths: Floats, counts: Floats, each: Floats, sample: float) -> float:
    """Variance v of :meth:`SequenceLengths.keys`."""
    alone = lengths >= sample
    if alone.all():
        return 0.0
    tokens = lengths * counts
    share, rest = tokens[alone].sum() / tokens.sum(), ~alone
    mean = tokens[rest] @ each[rest] / tokens[rest].sum()
    within = counts[rest] @ (lengths[rest] * (each[rest] - mean)) ** 2 / tokens[rest].sum()
    between = share * (each[alone].max() - mean) ** 2 * sample if alone.any() else 0.0
    return float((1 - share) * (within + between))


@cache
def _normal_grid() -> tuple[Floats, Floats]:
    """
    Return standard normal values, and their cumulative probabilities; both tails have 1e-19.

    Made when a job packs sequences: 18,001 values take milliseconds, which every other command would wait for.
    """
    grid = np.linspace(-9.0, 9.0, 18_001)
    return grid, np.array([(1 + erf(value / sqrt(2))) / 2 for value in grid])


def largest_normal(count: NDArray[Any] | float) -> tuple[Floats, Floats]:
    r"""
    Mean and standard deviation of the largest of n standard normal values, shape of n.

    .. math:: E[x_{(n)}] = \int x \, d\Phi(x)^n

    References
    ----------
    David and Nagaraja, "Order Statistics", 3rd edition (2003), section 3.1.

    >>> mean, deviation = largest_normal(2)  # 1 / sqrt(pi), and sqrt(1 - 1 / pi)
    >>> round(float(mean), 5), round(float(deviation), 5)
    (0.56419, 0.82565)
    """
    counts, index = np.unique(np.asarray(count, dtype=np.float64), return_inverse=True)
    means, deviations = np.array([_largest(one) for one in counts.tolist()]).T
    shape = np.shape(count)
    return means[index].reshape(shape), deviations[index].reshape(shape)


@lru_cache(maxsize=2**12)
def _largest(count: float) -> tuple[float, float]:
    """Return mean and deviation for one number of values."""
    grid, normal = _normal_grid()
    middle, chances = (grid[1:] + grid[:-1]) / 2, np.diff(normal**count)
    mean = float(chances @ middle)
    return mean, sqrt(max(float(chances @ middle**2) - mean**2, 0.0))


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
        Bytes of the transposed copy, per element of ``cast_bytes`` and per parameter of ``copy_bytes``.
        Devices whose 8-bit matmuls read every layout (Blackwell) make none.
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

    def adapt_to(self, silicon: Silicon) -> Precision:
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
