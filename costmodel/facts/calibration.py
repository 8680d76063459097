"""Calibration of an architecture: few constants, each physical, fitted or measured, shared by all of its devices."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Literal

from pydantic import Field

from costmodel.facts.fields import Count, Dtype, Fraction, NotNegative, Positive
from costmodel.facts.samples import Samples
from costmodel.record import strict_record


@strict_record(frozen=True, kw_only=True, slots=True)
class MeasuredRate:
    """
    Measured throughput of operators, MoFa's P in equation (1), known by shape.

    Parameters
    ----------
    kinds
        Operator kinds that the rate applies to, or kind and name separated by a colon: ``matmul:head``.
    flops_per_second
        Achieved FLOPs per second, forward and backward alike.
    rows, shards, groups
        Shape that it was measured at, as in :class:`costmodel.timing.work.Operator`; None matches every shape.
    """

    kinds: tuple[str, ...]
    flops_per_second: Positive
    rows: Count | None = None
    shards: Count | None = None
    groups: Count | None = None


@strict_record(frozen=True, kw_only=True, slots=True)
class MeasuredCollective:
    """
    Measured time of a collective, known by its shape.

    Parameters
    ----------
    group, kind
        Group and kind, as in :class:`costmodel.timing.work.Communication`; ``pp`` sends are of kind ``send``.
    seconds
        Seconds of one call.
    ranks, nbytes
        Ranks and bytes that it was measured with; None matches every number.
    """

    group: str
    kind: str
    seconds: Positive
    ranks: Count | None = None
    nbytes: Positive | None = None


@strict_record(frozen=True, kw_only=True, slots=True)
class DpOverlap:
    """
    Measured formula of overlapped data-parallel communication, instead of equation (24).

    ``exposed = unhidden * full + max(0, slowdown * full - window * pp * stage_seconds)``, where ``full`` is the
    communication alone and ``stage_seconds`` one micro-batch on one rank.
    """

    unhidden: NotNegative
    slowdown: NotNegative
    window: NotNegative


@strict_record(frozen=True, kw_only=True, slots=True)
class DpBandwidth:
    """
    Measured bandwidth of data-parallel communication in one placement of the replicas of experts on nodes.

    Parameters
    ----------
    placement
        ``inside_node``: all replicas of the attention share a node; ``more_replicas``: experts have more replicas than
        expert-parallel ranks; ``fewer_replicas``: the others.
    dense, expert
        Bytes per second of the dense parameters' and of the experts' communication.
    decay, reference_ranks
        Factor per doubling of the replicas of the attention against ``reference_ranks``: gamma of equation (3).
    """

    placement: Literal["inside_node", "more_replicas", "fewer_replicas"]
    dense: Positive
    expert: Positive
    decay: Annotated[Fraction, Field(gt=0)]
    reference_ranks: Count


@strict_record(frozen=True, kw_only=True, slots=True)
class Measured:
    """
    Measured numbers of whole layers, collectives and steps that replace computed ones; MoFa's devices have only these.

    Parameters
    ----------
    rates, collectives
        Tables of measured operator rates and collective times.
    dp_bandwidths
        Measured bandwidths of data-parallel communication; empty computes it over the networks.
    dp_overlap
        Measured form of equation (24); None computes it.
    head_pipeline_fill_fraction
        Fraction of the head's time that each pipeline rank adds once per step.
    embedding_head_fraction
        Fraction of the parameters of embedding and head that the times of update and data-parallel communication count.
    tp_contention
        Computation lost to tensor-parallel collectives that do not overlap, as a fraction of their time.
    compute_scaling, communication_scaling
        MoFa's alpha and beta, equations (17) and (18): gains of better kernels and collectives; below 1 of worse ones.
    """

    rates: tuple[MeasuredRate, ...] = ()
    collectives: tuple[MeasuredCollective, ...] = ()
    dp_bandwidths: tuple[DpBandwidth, ...] = ()
    dp_overlap: DpOverlap | None = None
    head_pipeline_fill_fraction: NotNegative = 0.0
    embedding_head_fraction: Fraction = 1.0
    tp_contention: NotNegative = 0.0
    compute_scaling: Annotated[float, Field(ge=0.01, le=100)] = 1.0
    communication_scaling: Annotated[float, Field(ge=0.01, le=100)] = 1.0


@strict_record(frozen=True, kw_only=True)
class Constants:
    """
    Fitted or measured constants; each has a prior, a range and a source (``planner/measure/calibrate/constants.yaml``).

    Parameters
    ----------
    times
        Source of operator times: ``roofline``, ``build_modified_roofline``, ``measured`` or ``sampled``.
    matmul_efficiency
        Achieved fraction of the dense peak of large matmuls, per dtype.
    grouped_matmul_efficiency
        Rate of experts' grouped matmuls, as a fraction of the rate from ``matmul_efficiency``.
    grouped_low_precision_efficiency
        Further fraction of that rate for recipes below 16 bits, which cast and pad group by group.
    grouped_half_saturation_rows
        Rows per expert at which a grouped matmul reaches half of its rate (m / (m + half)). With few rows its
        weights are read for little computation, and its last tile is partly empty.
    attention_efficiency
        Fraction of the 16-bit dense peak that attention kernels achieve at long sequences.
    throttled_clock
        Clock under load, as a fraction of the clock expected from the device's power limit (``Device.power_clock``).
    link_efficiency
        Achieved fraction of the nominal bandwidth of a level of interconnect, by its name; 1 for others.
    straggler_spread
        Straggler effect: the extra time that devices of this kind take for the same work, as a fraction of the usual
        time. It is the mean of an exponential tail; the devices of a pipeline stage wait for the slowest of them.
    epilogue_store_fraction
        Fraction of the time of writing a matmul's results that its multiplications do not hide: a tile is written after
        it is multiplied. Grouped matmuls have ``grouped_half_saturation_rows`` instead.
    attention_half_length
        Sequence length at which attention reaches half of its rate (s / (s + half)).
    memory_efficiency
        Achieved fraction of the device memory's bandwidth.
    elementwise_efficiency
        Achieved fraction of the device memory's bandwidth of casts, norms of queries and keys, gates, routing and
        convolutions. Counts the fewest passes that they need; frameworks make more (maxima for scales, transposed
        copies, fp32). None: as ``memory_efficiency``.
    scan_efficiency
        Achieved fraction of the device memory's bandwidth of state-space scans, whose tiles are too small to fill the
        device. None: as ``memory_efficiency``.
    score_efficiency
        Achieved fraction of the device memory's bandwidth of softmax, mask and dropout of scores where attention is not
        one kernel (a warp per row, random numbers for each score). None: as ``memory_efficiency``.
    kernel_gap_seconds
        Seconds between the ends of two kernels that no roofline sees: launch and tail. Kernels of CUDA graphs that only
        move bytes have hardly any.
    launch_overhead_seconds
        Seconds in which the host launches one of the counted kernels, the eager code around it included: a pass cannot
        be shorter than its launches.
    microbatch_seconds
        Seconds per micro-batch and pipeline rank that no operator explains: data loading, synchronisation.
    step_seconds
        Seconds per step of one host that no operator explains: logging, gradient norm, timers; the mean of an
        exponential tail, of which all ranks wait for the longest (:func:`costmodel.step.rank_time.once_seconds`).
    p2p_overhead_seconds
        Seconds that each transfer between pipeline ranks takes beyond latency and bandwidth. The host waits for the
        device on both sides and launches anew (Megatron-LM, ``p2p_communication.py``, synchronises after each batch of
        sends).
    overlap_slowdown_compute, overlap_slowdown_communication
        MoFa's k and c: factors by which computation and communication get slower when both run at once.
    overlap_slowdown_launches
        Factor by which launches take longer if passes of two micro-batches alternate (``ep_overlap``). The host then
        enters autograd's engine, streams and events for each of the four or five parts of a layer and pass
        (Megatron-LM, ``megatron/core/pipeline_parallel/utils.py``, ``ScheduleNode``).
    overlap_launches_most_fraction
        Largest measured fraction by which such launches lengthen a layer compared with no overlap; the prediction is
        capped at it.
    communication_sm_fraction
        Fraction of the device's processors (SMs) on which a collective runs, lost to computation while it runs.
    parameter_pass_bytes
        Bytes of device memory traffic per parameter of a device in the passes that no sharding shortens (zeroing
        gradients, copies).
    model_scales
        Factors on the time of computation and communication under Megatron-LM and Megatron-Bridge, by size of the model
        (:attr:`costmodel.facts.model.Model.size`). Measured runs of such models have them in common, and no formula
        explains them; they are shrunk towards 1 by the number of runs.
    measured
        Measured numbers of whole layers, collectives and steps.
    """

    times: Literal["roofline", "modified_roofline", "measured", "sampled"] = "modified_roofline"
    matmul_efficiency: dict[Dtype, Annotated[Fraction, Field(gt=0)]] = field(default_factory=dict)
    grouped_matmul_efficiency: Annotated[Fraction, Field(gt=0)] = 1.0
    grouped_low_precision_efficiency: Annotated[Fraction, Field(gt=0)] = 1.0
    grouped_half_saturation_rows: NotNegative = 0.0
    attention_efficiency: Annotated[Fraction, Field(gt=0)]
    throttled_clock: Positive = 1.0
    link_efficiency: dict[str, Annotated[Fraction, Field(gt=0)]] = field(default_factory=dict)
    straggler_spread: Fraction = 0.0
    epilogue_store_fraction: Fraction = 0.0
    attention_half_length: NotNegative = 0.0
    memory_efficiency: Annotated[Fraction, Field(gt=0)]
    elementwise_efficiency: Annotated[Fraction, Field(gt=0)] | None = None
    scan_efficiency: Annotated[Fraction, Field(gt=0)] | None = None
    score_efficiency: Annotated[Fraction, Field(gt=0)] | None = None
    kernel_gap_seconds: NotNegative = 0.0
    launch_overhead_seconds: NotNegative = 0.0
    microbatch_seconds: NotNegative = 0.0
    step_seconds: NotNegative = 0.0
    p2p_overhead_seconds: NotNegative = 0.0
    overlap_slowdown_compute: Annotated[float, Field(ge=1, le=10)] = 1.0
    overlap_slowdown_communication: Annotated[float, Field(ge=1, le=10)] = 1.0
    overlap_slowdown_launches: Annotated[float, Field(ge=1, le=10)] = 1.0
    overlap_launches_most_fraction: Annotated[float, Field(ge=0, le=10)] = 0.0
    communication_sm_fraction: Fraction = 0.0
    parameter_pass_bytes: NotNegative = 0.0
    model_scales: dict[str, Positive] = field(default_factory=dict)
    measured: Measured = field(default_factory=Measured)


@strict_record(frozen=True, kw_only=True)
class Calibration:
    """
    One entry of the catalog: the constants of an architecture, or of some of its devices.

    Parameters
    ----------
    name
        Name of the calibration in the catalog.
    description
        Devices that it is fitted to.
    constants
        Constants of the entry, those of the entry that it extends included.
    samples
        Constants learned from samples of the device's operators; None: it was not sampled.
    sources
        Source of each constant's number, by the constant's name.
    """

    name: str
    description: str = ""
    constants: Constants
    samples: Samples | None = None
    sources: dict[str, str] = field(default_factory=dict)
