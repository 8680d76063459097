"""
The facts: model, device, cluster, workload, reliability; validated where they enter.

Each record refuses values that are impossible on their own. Relations between records are rules (``constraints``).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import field, replace
from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field
from pydantic.dataclasses import dataclass

STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)


def _no_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError(f"expected a number, got {str(value).lower()}")
    return value


Count: TypeAlias = Annotated[int, BeforeValidator(_no_bool), Field(ge=1, le=10**9)]
CountOrZero: TypeAlias = Annotated[int, BeforeValidator(_no_bool), Field(ge=0, le=10**9)]
Positive: TypeAlias = Annotated[float, BeforeValidator(_no_bool), Field(gt=0, le=1e24)]
NotNegative: TypeAlias = Annotated[float, BeforeValidator(_no_bool), Field(ge=0, le=1e24)]
Fraction: TypeAlias = Annotated[float, BeforeValidator(_no_bool), Field(ge=0, le=1)]
Dtype: TypeAlias = Literal["bf16", "fp16", "fp8", "mxfp8", "nvfp4"]
Architecture: TypeAlias = Literal["volta", "ampere", "hopper", "blackwell"]


# --- model -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True, config=STRICT)
class Attention:
    """
    Softmax attention with query, key and value heads: MHA, GQA and MQA.

    Parameters
    ----------
    num_heads, num_kv_heads
        Query heads; key-value heads (equal: MHA, one: MQA, between: GQA).
    head_dim
        Width of one head.
    qkv_bias, output_bias
        Whether the projections add a bias.
    qk_norm
        ``per_head``: one weight vector of ``head_dim`` for queries and one for keys; ``full``: over all heads.
    output_gate
        Whether a second query-sized projection gates the output (Qwen3-Next).
    sinks
        Whether each head has a learned sink logit (gpt-oss).
    window
        Sliding window in tokens; None attends to everything before.
    rotary
        Whether queries and keys are rotated by their position (RoPE).
    """

    num_heads: Count
    num_kv_heads: Count
    head_dim: Count
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: Literal["none", "per_head", "full"] = "none"
    output_gate: bool = False
    sinks: bool = False
    window: Count | None = None
    rotary: bool = True


@dataclass(frozen=True, kw_only=True, slots=True, config=STRICT)
class LatentAttention:
    """
    Multi-head latent attention (MLA, DeepSeek-V2, arXiv 2405.04434).

    Parameters
    ----------
    num_heads
        Heads.
    q_lora_rank
        Rank of the query's down-projection; None projects queries directly.
    kv_lora_rank
        Rank of the joint key-value latent.
    qk_nope_head_dim, qk_rope_head_dim, v_head_dim
        Widths per head: keys without and with rotary position, values.
    bias
        Whether the down-projections and the output projection add a bias.
    """

    num_heads: Count
    q_lora_rank: Count | None
    kv_lora_rank: Count
    qk_nope_head_dim: Count
    qk_rope_head_dim: Count
    v_head_dim: Count
    bias: bool = False


@dataclass(frozen=True, kw_only=True, slots=True, config=STRICT)
class LinearAttention:
    """
    Attention whose cost is linear in the sequence.

    Parameters
    ----------
    variant
        ``lightning`` (MiniMax-Text-01) or ``gated_delta`` (Qwen3-Next).
    num_key_heads, num_value_heads, key_head_dim, value_head_dim
        Heads and their widths (lightning: all heads alike).
    conv_kernel
        Width of the short causal convolution; 0 is none.
    """

    variant: Literal["lightning", "gated_delta"]
    num_key_heads: Count
    num_value_heads: Count
    key_head_dim: Count
    value_head_dim: Count
    conv_kernel: CountOrZero = 0


@dataclass(frozen=True, kw_only=True, slots=True, config=STRICT)
class Mamba:
    """
    Mamba-2: a state-space layer, computed in chunks by matmuls (Dao and Gu, arXiv 2405.21060).

    Parameters
    ----------
    num_heads, head_dim
        Heads and their width; both together are the inner width d.
    state_size
        Width of the state of one channel, N.
    num_groups
        Groups of heads that share B and C, which are to the state what keys and queries are to attention.
    conv_kernel
        Width of the short causal convolution.
    chunk_size
        Tokens inside which every pair is compared; a state goes from chunk to chunk.
    bias, conv_bias
        Whether the projections and the convolution add a bias.
    """

    num_heads: Count
    head_dim: Count
    state_size: Count
    num_groups: Count = 1
    conv_kernel: Count = 4
    chunk_size: Count = 128
    bias: bool = False
    conv_bias: bool = True


@dataclass(frozen=True, kw_only=True, slots=True, config=STRICT)
class Mlp:
    """
    Dense feed-forward block.

    Parameters
    ----------
    ffn_hidden_size
        Width between the two linears.
    gated
        Whether the first linear is doubled by a gate (SwiGLU, GeGLU).
    bias
        Whether the linears add a bias.
    squared_relu
        Whether the non-linearity without a gate is the square of ReLU, which takes two kernels, instead of GELU.
    """

    ffn_hidden_size: Count
    gated: bool = True
    bias: bool = False
    squared_relu: bool = False


@dataclass(frozen=True, kw_only=True, slots=True, config=STRICT)
class Experts:
    """
    Mixture-of-experts feed-forward block.

    Parameters
    ----------
    num_experts, top_k
        Routed experts; how many of them a token visits.
    ffn_hidden_size
        Width inside one routed expert.
    shared_ffn_hidden_size
        Width of all shared experts together; 0 is none.
    gated, bias, squared_relu
        As in :class:`Mlp`, for routed and shared experts.
    router_bias
        Whether the router's logits have a learned bias (gpt-oss).
    shared_gate
        Whether a hidden-to-1 gate scales the shared expert (Qwen3-Next).
    latent_size
        Width onto which tokens are projected before they are sent to the routed experts, and back from behind them
        (LatentMoE, Nemotron 3); None sends the hidden size.
    """

    num_experts: Count
    top_k: Count
    ffn_hidden_size: Count
    shared_ffn_hidden_size: CountOrZero = 0
    gated: bool = True
    bias: bool = False
    router_bias: bool = False
    shared_gate: bool = False
    latent_size: Count | None = None
    squared_relu: bool = False


Mixer: TypeAlias = Attention | LatentAttention | LinearAttention | Mamba
"""What carries information from token to token."""


@dataclass(frozen=True, kw_only=True, slots=True, config=STRICT)
class Layer:
    """
    One layer: what mixes tokens, a feed-forward, norms.

    Parameters
    ----------
    attention, feed_forward
        The two blocks; None where a layer is a single block (Nemotron-H).
    num_norms
        Norms over the hidden size (2 before the blocks; Gemma has 4).
    norm
        ``rms``: one weight per channel; ``layer``: weight and bias; ``none``: no parameters counted.
    parallel_blocks
        Whether both blocks read the same input and are summed before tensor-parallel ranks are (GPT-J, GPT-NeoX).
    """

    attention: Mixer | None
    feed_forward: Mlp | Experts | None
    num_norms: CountOrZero = 2
    norm: Literal["rms", "layer", "none"] = "rms"
    parallel_blocks: bool = False

    @property
    def blocks(self) -> tuple[Mixer | Mlp | Experts, ...]:
        """The blocks that it has, in order."""
        return tuple(block for block in (self.attention, self.feed_forward) if block is not None)


def _each_once(layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """Equal layers as one object: they take long to hash, and :attr:`Model.kinds` is asked often."""
    known: dict[Layer, Layer] = {}
    return tuple(known.setdefault(layer, layer) for layer in layers)


@dataclass(frozen=True, kw_only=True, slots=True, config=STRICT)
class Model:
    """
    A decoder-only language model: a list of layers between an embedding and a head.

    Parameters
    ----------
    name, source
        What it is called and where its numbers come from.
    family
        The Hugging Face ``model_type``, or ``inline``.
    hidden_size, vocab_size
        Width of the residual stream; entries of the vocabulary.
    layers
        Every layer in order.
    tied_embeddings
        Whether embedding and head share their weights.
    mtp_layers
        Layers of multi-token prediction behind the last layer, counted apart.
    learned_positions
        Entries of a learned position embedding; 0 is none.
    final_norm
        As :attr:`Layer.norm`.
    head_bias
        Whether the head adds a bias.
    """

    name: str
    hidden_size: Count
    vocab_size: Count
    layers: Annotated[tuple[Layer, ...], Field(min_length=1, max_length=4096), AfterValidator(_each_once)]
    source: str = "job file"
    family: str = "inline"
    tied_embeddings: bool = False
    mtp_layers: tuple[Layer, ...] = ()
    learned_positions: CountOrZero = 0
    final_norm: Literal["rms", "layer", "none"] = "rms"
    head_bias: bool = False

    @property
    def num_layers(self) -> int:
        """Layers without the multi-token prediction."""
        return len(self.layers)

    @property
    def has_experts(self) -> bool:
        """Whether some layer has routed experts."""
        return any(isinstance(kind.feed_forward, Experts) for kind in self.kinds)

    @property
    def kinds(self) -> tuple[Layer, ...]:
        """The different layers, in order of first appearance; MTP blocks included."""
        objects = {id(layer): layer for layer in (*self.layers, *self.mtp_layers)}
        return tuple(dict.fromkeys(objects.values()))

    @property
    def layer_counts(self) -> dict[Layer, int]:
        """How many layers there are of each kind, without the multi-token prediction."""
        counts = Counter(map(id, self.layers))  # equal ones are one object
        return {layer: counts[number] for number, layer in {id(layer): layer for layer in self.layers}.items()}


# --- hardware ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True, config=STRICT)
class Network:
    """
    One level of interconnect, as seen by one device.

    Parameters
    ----------
    name
        ``nvlink``, ``node``, ``rail``, ``spine`` ...
    num_peers
        Devices reachable on this level, itself included.
    bandwidth
        Bytes per second that a device can send, one direction, measured between ``reference_peers`` devices.
    latency
        Seconds before the first byte of a message arrives, in each step of a gather.
    decay
        Factor on the bandwidth for each doubling of the ranks beyond ``reference_peers``: MoFa's gamma, equation (3).
    reference_peers
        Ranks at which ``bandwidth`` holds.
    parallel_links
        Links of this level that one group can use at once from one scale-up domain; None: one per member there.
    reduce_scatter_latency, all_reduce_latency
        The same in each step of a reduce-scatter, and of an all-reduce, which switches may sum (NVLink SHARP); None: as
        ``latency``.
    is_mesh
        Whether each device has links of its own to every peer instead of all to a switch: a group uses those between
        its members only.
    is_half_duplex
        Whether what a device sends and what it receives share the bandwidth, so that sending alone has twice as much:
        NCCL over sockets, whose bytes pass the host's memory both ways.
    """

    name: str
    num_peers: Count
    bandwidth: Positive
    latency: NotNegative
    decay: Annotated[Fraction, Field(gt=0)] = 1.0
    reference_peers: Count = 1
    parallel_links: Count | None = None
    reduce_scatter_latency: NotNegative | None = None
    all_reduce_latency: NotNegative | None = None
    is_mesh: bool = False
    is_half_duplex: bool = False


@dataclass(frozen=True, kw_only=True, slots=True, config=STRICT)
class MeasuredRate:
    """
    Measured throughput of operators, MoFa's P in equation (1), known by shape.

    Parameters
    ----------
    kinds
        Operator kinds (or, with a colon, kind and name: ``matmul:head``) that the rate is for.
    flops_per_second
        Achieved rate, forward and backward alike.
    rows, shards, groups
        The shape that it was measured at; None matches every shape.
    """

    kinds: tuple[str, ...]
    flops_per_second: Positive
    rows: Count | None = None
    shards: Count | None = None
    groups: Count | None = None


@dataclass(frozen=True, kw_only=True, slots=True, config=STRICT)
class MeasuredCollective:
    """
    Measured time of a collective, known by its shape.

    Parameters
    ----------
    group, kind
        As in :class:`costmodel.operators.work.Communication`; ``pp`` sends are of kind ``send``.
    seconds
        Of one call.
    ranks, nbytes
        The shape that it was measured at; None matches every one.
    """

    group: str
    kind: str
    seconds: Positive
    ranks: Count | None = None
    nbytes: Positive | None = None


@dataclass(frozen=True, kw_only=True, slots=True, config=STRICT)
class DpOverlap:
    """
    Measured closed form of overlapped data-parallel communication, instead of equation (24).

    ``exposed = unhidden * full + max(0, slowdown * full - window * pp * stage_seconds)``, where ``full`` is the
    communication alone and ``stage_seconds`` one micro-batch on one rank.
    """

    unhidden: NotNegative
    slowdown: NotNegative
    window: NotNegative


@dataclass(frozen=True, kw_only=True, slots=True, config=STRICT)
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


@dataclass(frozen=True, kw_only=True, slots=True, config=STRICT)
class Retention:
    """
    What the software keeps in device memory for the backward pass, where it differs from the fewest tensors.

    Parameters
    ----------
    attention_score_bytes
        Per score of an attention that is not one kernel; 0: flash attention.
    dropout_mask_bytes
        Per element that attention and feed-forward add to the residual stream; 0: no dropout.
    logit_bytes
        Alive per logit where the loss is computed: fp32 copies, softmax, gradients.
    context_output
        Whether context parallelism keeps the attention's output in two layouts (all-to-all instead of a ring).
    expert_output
        Whether the router's scores weight what experts put out, which is kept for it; else their inner activation.
    weight_gradient_bytes
        Per parameter of one weight of each shape: gradients that are held to be handed on, not to be read.
    workspace_bytes
        What matmul libraries take from the framework's allocator.
    eager
        Whether norms and gated activations are several kernels each, which keep what they hand on.
    follows_the_backward_pass
        Whether the peak is sought along the backward pass: first the loss, then the layer at work with its gradients.
        Else the loss and the recomputed layer count both, and gradients of activations do not.
    fragmentation
        Memory that the allocator holds beyond what is allocated, as a share of that.
    offloaded_fraction
        Share of the layers whose activations wait in host memory where activations are offloaded.
    """

    attention_score_bytes: NotNegative = 0.0
    dropout_mask_bytes: NotNegative = 0.0
    logit_bytes: Positive = 4.0
    context_output: bool = False
    expert_output: bool = True
    weight_gradient_bytes: NotNegative = 0.0
    workspace_bytes: NotNegative = 0.0
    eager: bool = False
    follows_the_backward_pass: bool = False
    fragmentation: NotNegative = 0.0
    offloaded_fraction: Fraction = 1.0


@dataclass(frozen=True, kw_only=True, slots=True, config=STRICT)
class Profile:
    """
    What a device achieves with its software: few constants, each physical, each with its source in the catalog.

    Parameters
    ----------
    times
        Who times operators: ``roofline``, ``modified_roofline`` or ``measured``.
    matmul_efficiency
        Achieved fraction of the dense peak of large matmuls, per dtype.
    grouped_matmul_efficiency
        The same for experts' grouped matmuls, relative to ``matmul_efficiency``.
    grouped_narrow_efficiency
        The same beside ``grouped_matmul_efficiency`` for recipes below 16 bits, which cast and pad group by group.
    grouped_half_rows
        Rows per expert at which a grouped matmul reaches half of that (m / (m + half)): its weights are read while
        little is computed with them, and its last tile is partly empty.
    attention_efficiency
        Fraction of the 16-bit dense peak that attention kernels achieve at long sequences.
    sustained_clock
        Clock under load over that of the relatives with which a device shares its efficiencies: power limits.
    device_spread
        By how much longer devices of this kind take for the same work, relative to the usual time: the mean of an
        exponential tail. The devices of a pipeline stage wait for the slowest of them.
    exposed_writes
        Share of the time of writing a matmul's results that its multiplications do not hide: a tile is written after
        it is multiplied. Grouped matmuls have ``grouped_half_rows`` instead.
    gradient_accumulation_fusion
        Whether the matmul of a weight's gradient adds it to those of earlier micro-batches, in their precision
        (Megatron-LM's argument of that name); else it writes 16 bits.
    attention_kernels
        ``native`` to the device; ``ampere``: written before warp-group instructions, which later devices run slower;
        ``triton``: the same in Triton, of FlashAttention's first generation.
    attention_half_length
        Sequence length at which attention reaches half of that (s / (s + half)).
    causal_attention
        Whether the kernel skips the masked half of the scores.
    fused_attention
        Whether scores stay inside one kernel (FlashAttention); else they pass through device memory, all of them.
    fused_kernels
        Whether norms, rotations and gated activations are one kernel each, written so or compiled.
    fused_projections
        Whether queries, keys and values are one matmul, and a feed-forward's gate and what it multiplies another.
    batch_first
        Whether sequences come before tokens in a tensor, so that sequence-parallel ranks gather and scatter slices of
        each sequence: PyTorch's functional collectives copy the whole tensor into or out of the order of ranks
        (``torch/distributed/_functional_collectives.py``: ``torch.cat(torch.chunk(...))``).
    tp_overlaps_single_matmuls
        Whether tensor-parallel communication overlaps only with the one matmul that it feeds or that feeds it
        (PyTorch, ``_inductor/fx_passes/micro_pipeline_tp.py``).
    loss_forward_bytes, loss_backward_bytes
        What the loss's kernels read and write per logit.
    recompute_stops_early
        Whether full recomputation ends with the last tensor that the backward pass needs (PyTorch's non-reentrant
        checkpoints since 2.1): a feed-forward's last matmul and what follows it are not repeated.
    tp_sums_beside_weights
        Whether the backward pass sums a column-parallel linear's input gradients over the tensor-parallel ranks while
        it computes the weight's gradients, and gathers the input again while it computes the input's gradients, where
        tensor-parallel communication does not overlap otherwise
        (Megatron-LM since 2022, ``LinearWithGradAccumulationAndAsyncCommunication``).
    waits_for_collectives
        Whether the host waits for each collective of a layer, as a profiler does that times them one by one.
    launches_block
        Whether the host waits for each kernel before it launches the next one (``CUDA_LAUNCH_BLOCKING=1``).
    pads_vocabulary
        Whether a vocabulary that no tensor-parallel ranks share is padded to what Tensor Cores take (Megatron-LM,
        ``make_vocab_size_divisible_by``); else its logits take longer.
    memory_efficiency
        Achieved fraction of the device memory's bandwidth.
    elementwise_efficiency
        The same for casts, norms of queries and keys, gates, routing and convolutions, over the fewest passes that they
        need: frameworks make more (maxima for scales, transposed copies, fp32). None: as ``memory_efficiency``.
    scan_efficiency
        The same for the kernels of state-space scans, whose tiles are too small to fill the device. None: as
        ``memory_efficiency``.
    score_efficiency
        The same for softmax, mask and dropout of scores where attention is not one kernel (a warp per row, random
        numbers for each score). None: as ``memory_efficiency``.
    kernel_seconds
        Time between the ends of two kernels that no roofline sees: launch and tail. Kernels of CUDA graphs that only
        move bytes have hardly any.
    host_kernel_seconds
        Time in which the host launches one of the counted kernels (and what eager code does around it): a pass cannot
        be shorter than its launches.
    cuda_graphs
        What CUDA graphs launch at once: ``none``, ``static`` (all but the routed experts, whose sizes change from step
        to step), ``full``.
    microbatch_seconds
        Time per micro-batch and pipeline rank that no operator explains: data loading, synchronisation.
    step_seconds
        Time per step that no operator explains: logging, gradient norm, timers.
    hop_seconds
        What each transfer between pipeline ranks takes beyond latency and bandwidth: the host waits for the device on
        both sides and launches anew (Megatron-LM, ``p2p_communication.py``, synchronises after each batch of sends).
    compute_scaling, communication_scaling
        MoFa's alpha and beta, equations (17) and (18): gains of better kernels and collectives.
    overlap_slowdown_compute, overlap_slowdown_communication
        MoFa's k and c: how much slower each gets when both run at once.
    overlap_processors
        Share of the device's processors on which a collective runs, lost to computation while it runs.
    tp_overlap_splits
        Pieces into which an overlapped tensor-parallel collective is split, n in equation (20).
    gradient_sync
        How sharded optimizer states get their gradients (ZeRO-1): ``reduce_scatter``, each rank its shard; or
        ``all_reduce``, each rank all of them.
    weight_sync
        How updated weights come back: ``all_gather``; or ``broadcast``, each owner sends its tensors to all others.
    weight_sync_overlaps
        Whether that runs behind the next forward pass where data-parallel communication overlaps.
    sharding_copies
        What a device copies where weights are shared (ZeRO-3): ``none``; ``flat``, gradients into one flat tensor per
        layer (PyTorch's first FSDP, whose weights are views of it); ``tensors``, gathered weights out of the ranks'
        order too (FSDP2: ``all_gather_copy_out``, ``reduce_scatter_copy_in``).
    sharding_ranks
        Data-parallel ranks that share states at most (ZeRO within a node); None: all.
    scatters_hops
        Whether tensor-parallel ranks without sequence parallelism send a share of a tensor each to the next pipeline
        rank, where it is gathered again (Narayanan et al., arXiv:2104.04473, section 4.1).
    rings_cross_sockets
        Whether a ring of some of a host's devices leaves by the network adapter by which it came, through the host's
        processors (NCCL before 2.12; since then it reaches the adapter over NVLink).
    expert_dispatch
        What a token sends to its experts: ``pairs``, a copy per expert (all-to-all); ``tokens``, one per device that it
        visits, and one per scale-up domain (DeepEP, HybridEP).
    tp_contention
        Computation lost to tensor-parallel collectives that do not overlap, as a fraction of their time.
    runtime_bytes
        Device memory that the driver, the communication library and the allocator take.
    working_layers
        Layers whose activations are in device memory while the others are offloaded or recomputed.
    embedding_buffers
        Extra 16-bit copies of the embedding that the framework keeps on its rank.
    retention
        What its software keeps in device memory.
    optimizer_bytes_per_parameter
        Device memory traffic of one parameter's update, the norm of its gradient and clipping included.
    parameter_pass_seconds
        Time per parameter of a device of the passes that no sharding shortens (zeroing gradients, copies).
    cpu_parameters_per_second
        Parameters that the host's CPU updates per second and device.
    head_fill_fraction
        Share of the head's time that each pipeline rank adds once per step.
    edge_fraction
        Share of the parameters of embedding and head that the times of update and data-parallel communication count.
    dp_bandwidths
        Measured bandwidths of data-parallel communication; empty computes it over the networks.
    dp_overlap
        Measured form of equation (24); None computes it.
    measured_rates, measured_collectives
        Tables of ``measured``.
    """

    times: Literal["roofline", "modified_roofline", "measured"] = "modified_roofline"
    matmul_efficiency: dict[Dtype, Annotated[Fraction, Field(gt=0)]] = field(default_factory=dict)
    grouped_matmul_efficiency: Annotated[Fraction, Field(gt=0)] = 1.0
    grouped_narrow_efficiency: Annotated[Fraction, Field(gt=0)] = 1.0
    grouped_half_rows: NotNegative = 0.0
    attention_efficiency: Annotated[Fraction, Field(gt=0)]
    sustained_clock: Positive = 1.0
    device_spread: Fraction = 0.0
    exposed_writes: Fraction = 0.0
    gradient_accumulation_fusion: bool = True
    attention_kernels: Literal["native", "ampere", "triton"] = "native"
    attention_half_length: NotNegative = 0.0
    causal_attention: bool = True
    fused_attention: bool = True
    fused_kernels: bool = True
    fused_projections: bool = True
    batch_first: bool = False
    tp_overlaps_single_matmuls: bool = False
    loss_forward_bytes: NotNegative = 38.0
    loss_backward_bytes: NotNegative = 14.0
    recompute_stops_early: bool = False
    tp_sums_beside_weights: bool = False
    waits_for_collectives: bool = False
    launches_block: bool = False
    pads_vocabulary: bool = True
    memory_efficiency: Annotated[Fraction, Field(gt=0)]
    elementwise_efficiency: Annotated[Fraction, Field(gt=0)] | None = None
    scan_efficiency: Annotated[Fraction, Field(gt=0)] | None = None
    score_efficiency: Annotated[Fraction, Field(gt=0)] | None = None
    kernel_seconds: NotNegative = 0.0
    host_kernel_seconds: NotNegative = 0.0
    cuda_graphs: Literal["none", "static", "full"] = "none"
    microbatch_seconds: NotNegative = 0.0
    step_seconds: NotNegative = 0.0
    hop_seconds: NotNegative = 0.0
    compute_scaling: Annotated[float, Field(ge=1, le=100)] = 1.0
    communication_scaling: Annotated[float, Field(ge=1, le=100)] = 1.0
    overlap_slowdown_compute: Annotated[float, Field(ge=1, le=10)] = 1.0
    overlap_slowdown_communication: Annotated[float, Field(ge=1, le=10)] = 1.0
    overlap_processors: Fraction = 0.0
    tp_overlap_splits: Count = 4
    gradient_sync: Literal["reduce_scatter", "all_reduce"] = "reduce_scatter"
    weight_sync: Literal["all_gather", "broadcast"] = "all_gather"
    weight_sync_overlaps: bool = True
    sharding_copies: Literal["none", "flat", "tensors"] = "none"
    sharding_ranks: Count | None = None
    scatters_hops: bool = False
    rings_cross_sockets: bool = False
    expert_dispatch: Literal["pairs", "tokens"] = "pairs"
    tp_contention: NotNegative = 0.0
    runtime_bytes: NotNegative
    working_layers: NotNegative = 1.0
    embedding_buffers: NotNegative = 0.0
    retention: Retention = field(default_factory=Retention)
    optimizer_bytes_per_parameter: NotNegative = 30.0
    parameter_pass_seconds: NotNegative = 0.0
    cpu_parameters_per_second: Positive
    head_fill_fraction: NotNegative = 0.0
    edge_fraction: Fraction = 1.0
    dp_bandwidths: tuple[DpBandwidth, ...] = ()
    dp_overlap: DpOverlap | None = None
    measured_rates: tuple[MeasuredRate, ...] = ()
    measured_collectives: tuple[MeasuredCollective, ...] = ()

    @property
    def slowdowns(self) -> dict[str, float]:
        """MoFa's c and k, and the processors taken, by the names under which every overlap takes them."""
        return {
            "slowdown_communication": self.overlap_slowdown_communication,
            "slowdown_compute": self.overlap_slowdown_compute,
            "processors_taken": self.overlap_processors,
        }


@dataclass(frozen=True, kw_only=True, slots=True, config=STRICT)
class Software:
    """
    One generation of training software: how it differs from what the devices' profiles were measured with.

    Parameters
    ----------
    name
        As the catalog calls it.
    description
        Which frameworks and years, and what is particular about them.
    settings
        Fields of :class:`Profile` that it decides; of its ``retention`` the entries that are not as usual.
    factors
        Fields of :class:`Profile` that it multiplies; ``field@architecture`` on devices of that architecture only.
    sources
        Field name to where its number comes from.
    """

    name: str
    description: str = ""
    settings: dict[str, bool | float | str | dict[str, bool | float] | None] = field(default_factory=dict)
    factors: dict[str, Positive] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True, config=STRICT)
class Device:
    """
    One accelerator and the share of the host that belongs to it.

    Parameters
    ----------
    name
        As the catalog calls it.
    architecture
        Generation of its kernels, whose measured runs say how far predictions for it are off; None: of none.
    peak_flops
        Dense peak per dtype, FLOP/s.
    memory_bytes, memory_bandwidth
        Device memory and its bytes per second.
    devices_per_node
        Devices that share a host.
    networks
        From the innermost level outwards; the first is the scale-up domain (NVLink).
    host_memory_bytes
        Host memory per device.
    host_to_device_bandwidth, device_to_host_bandwidth
        Bytes per second and direction.
    disk_write_bandwidth, disk_read_bandwidth
        Bytes per second per device to checkpoint storage.
    profile
        What it achieves.
    socket_bandwidth
        Bytes per second and direction between the processors of a host; None: nothing has to pass there.
    left_out_errors
        Logarithms of measured over predicted step time of runs that the profile was not fitted to; empty: of none.
    sources
        Field name to where its number comes from.
    """

    name: str
    architecture: Architecture | None = None
    peak_flops: Annotated[dict[Dtype, Positive], Field(min_length=1)]
    memory_bytes: Positive
    memory_bandwidth: Positive
    devices_per_node: Count
    networks: Annotated[tuple[Network, ...], Field(min_length=1)]
    host_memory_bytes: Positive
    host_to_device_bandwidth: Positive
    device_to_host_bandwidth: Positive
    disk_write_bandwidth: Positive
    disk_read_bandwidth: Positive
    profile: Profile
    socket_bandwidth: Positive | None = None
    left_out_errors: tuple[float, ...] = ()
    sources: dict[str, str] = field(default_factory=dict)

    @property
    def achieved_memory_bandwidth(self) -> float:
        """Bytes per second of kernels that memory limits."""
        return self.memory_bandwidth * self.profile.memory_efficiency


@dataclass(frozen=True, kw_only=True, slots=True, config=STRICT)
class Cluster:
    """
    Devices of one kind, their nodes and their network.

    Parameters
    ----------
    device
        The accelerator.
    num_devices
        How many of them the job gets.
    """

    device: Device
    num_devices: Count

    @property
    def scale_up_size(self) -> int:
        """Devices of one NVLink domain."""
        return self.device.networks[0].num_peers

    @property
    def num_nodes(self) -> int:
        """Hosts, the last one possibly in part."""
        return -(-self.num_devices // self.device.devices_per_node)


# --- the job -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True, config=STRICT)
class Precision:
    """
    Bytes per element of a training recipe.

    Parameters
    ----------
    name
        Recipe, such as ``bf16``.
    compute
        Dtype of the matmuls.
    weight_bytes, gradient_bytes, optimizer_bytes
        Per parameter: weights, gradients as accumulated and reduced, all optimizer states together.
    copy_bytes
        Per parameter: narrower copies of the weights that matmuls keep for all micro-batches; no checkpoint has them.
    parameter_gather_bytes
        Per parameter, when data-parallel ranks gather updated weights.
    activation_bytes
        Per element of an activation.
    linear_input_bytes
        Per element of a linear's input as it is kept for the backward pass; None: as ``activation_bytes``.
    cast_bytes
        Read and written per element to bring a linear's input into a narrower dtype, amax and transposed copy included.
    transposed_bytes
        Per element of that and per parameter of ``copy_bytes``: the transposed copy, see :meth:`on`.
    casts_shards
        Whether sequence-parallel ranks cast their shards of what they gather, and transpose the whole.
    gathered_input_bytes, gathered_gradient_bytes
        Per element of what sequence-parallel ranks gather in front of a linear split by columns, and in the backward
        pass in front of one split by rows; None: as ``activation_bytes``.
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
    casts_shards: bool = False
    gathered_input_bytes: Positive | None = None
    gathered_gradient_bytes: Positive | None = None

    def on(self, architecture: Architecture | None) -> Precision:
        """
        The recipe on devices of an architecture: Blackwell's 8-bit matmuls read every layout, no transposed copy.

        References
        ----------
        Transformer Engine, ``nvte_is_non_tn_fp8_gemm_supported`` (compute capability 10), by which
        ``Float8Quantizer`` and ``Float8CurrentScalingQuantizer`` make one copy instead of two.
        """
        if architecture not in ANY_LAYOUT or not self.transposed_bytes:
            return self
        spared = self.transposed_bytes
        return replace(
            self,
            cast_bytes=self.cast_bytes - spared,
            copy_bytes=max(0.0, self.copy_bytes - spared),
            transposed_bytes=0.0,
        )


ANY_LAYOUT: tuple[Architecture, ...] = ("blackwell",)
"""Architectures whose 8-bit Tensor Cores multiply rows with columns, rows with rows and columns with columns."""


@dataclass(frozen=True, kw_only=True, slots=True, config=STRICT)
class Workload:
    """
    What is trained, per step and in total.

    Parameters
    ----------
    global_batch_size
        Sequences per optimizer step.
    sequence_length
        Tokens per sequence.
    tokens
        Tokens of the whole training.
    precision
        Bytes and dtypes.
    """

    global_batch_size: Count
    sequence_length: Count
    tokens: Positive
    precision: Precision


@dataclass(frozen=True, kw_only=True, slots=True, config=STRICT)
class RecoveryLevel:
    """
    One way to recover from a failure.

    Parameters
    ----------
    name
        ``process``, ``pod``, ``job``.
    probability
        Share of the failures that this level recovers.
    seconds
        From the failure to the next step.
    """

    name: str
    probability: Fraction
    seconds: NotNegative


@dataclass(frozen=True, kw_only=True, slots=True, config=STRICT)
class Reliability:
    """
    How often the job fails, and what recovery and checkpoints cost.

    Parameters
    ----------
    failures_per_node_day
        Mean failures of one node in 86,400 s.
    mttr_seconds
        Mean time to repair: from failure to training again.
    checkpoint_seconds
        Training time lost per checkpoint.
    init_seconds
        From the start of the job to its first step.
    write_seconds
        From the start of a checkpoint until it is on storage, beside the training: the shortest interval.
    """

    failures_per_node_day: NotNegative
    mttr_seconds: NotNegative
    checkpoint_seconds: NotNegative
    init_seconds: NotNegative = 0.0
    write_seconds: NotNegative = 0.0
