"""
The facts: model, device, cluster, workload, reliability; validated where they enter.

Each record refuses values that are impossible on their own. Relations between records are rules (``constraints``).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import field, replace
from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, Field
from pydantic.dataclasses import dataclass

from costmodel.facts.calibration import Calibration, Constants
from costmodel.facts.fields import (
    STRICT,
    Architecture,
    Count,
    CountOrZero,
    Dtype,
    Fraction,
    NotNegative,
    Positive,
)
from costmodel.facts.framework import Behaviour, Framework, Settings

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


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Profile(Constants, Behaviour):
    """
    What a device achieves with a framework: constants of its calibration, behaviour of the framework's code.

    Made by :func:`costmodel.facts.profiles.equipped`; the catalog keeps both apart.
    """

    @property
    def slowdowns(self) -> dict[str, float]:
        """MoFa's c and k, and the processors taken, by the names under which every overlap takes them."""
        return {
            "slowdown_communication": self.overlap_slowdown_communication,
            "slowdown_compute": self.overlap_slowdown_compute,
            "processors_taken": self.overlap_processors,
        }


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Device:
    """
    One accelerator and the share of the host that belongs to it, as datasheets have them.

    Parameters
    ----------
    name
        As the catalog calls it.
    architecture
        Generation of its kernels, whose measured runs say how far predictions for it are off; None: of none.
    calibration
        What its architecture achieves.
    peak_flops
        Dense peak per dtype, FLOP/s.
    memory_bytes, memory_bandwidth
        Device memory and its bytes per second.
    devices_per_node
        Devices that share a host.
    networks
        From the innermost level outwards; the first is the scale-up domain (NVLink). Bandwidths are nominal, where the
        calibration knows what is achieved of them.
    host_memory_bytes
        Host memory per device.
    host_to_device_bandwidth, device_to_host_bandwidth
        Bytes per second and direction.
    host_link
        What copies from and to the host go through: ``pcie``, by the port at which the network adapter is reached, too;
        ``nvlink_c2c``, a link of their own.
    disk_write_bandwidth, disk_read_bandwidth
        Bytes per second per device to checkpoint storage.
    runtime_bytes
        Device memory that the driver, the communication library and the allocator take.
    cpu_parameters_per_second
        Parameters that the host's CPU updates per second and device.
    power_clock
        Clock that its power limit lets expect over that of the relative whose calibration it shares.
    num_processors
        Processors (SMs); None: not known.
    socket_bandwidth
        Bytes per second and direction between the processors of a host; None: nothing has to pass there.
    framework
        What a job without a framework gets on it; None: the newest that is a default.
    left_out_errors
        Logarithms of measured over predicted step time of runs that the profile was not fitted to; empty: of none.
    sources
        Field name to where its number comes from.
    """

    name: str
    architecture: Architecture | None = None
    calibration: Calibration
    peak_flops: Annotated[dict[Dtype, Positive], Field(min_length=1)]
    memory_bytes: Positive
    memory_bandwidth: Positive
    devices_per_node: Count
    networks: Annotated[tuple[Network, ...], Field(min_length=1)]
    host_memory_bytes: Positive
    host_to_device_bandwidth: Positive
    device_to_host_bandwidth: Positive
    host_link: Literal["pcie", "nvlink_c2c"] = "pcie"
    disk_write_bandwidth: Positive
    disk_read_bandwidth: Positive
    runtime_bytes: NotNegative
    cpu_parameters_per_second: Positive
    power_clock: Positive = 1.0
    num_processors: Count | None = None
    socket_bandwidth: Positive | None = None
    framework: str | None = None
    left_out_errors: tuple[float, ...] = ()
    sources: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class EquippedDevice(Device):
    """
    A device as a framework uses it, networks at the bandwidths that are achieved.

    Parameters
    ----------
    profile
        What it achieves with it.
    """

    profile: Profile

    @property
    def achieved_memory_bandwidth(self) -> float:
        """Bytes per second of kernels that memory limits."""
        return self.memory_bandwidth * self.profile.memory_efficiency


@dataclass(frozen=True, kw_only=True, slots=True, config=STRICT)
class Cluster:
    """
    Devices of one kind, their nodes and their network, and what runs on them.

    Parameters
    ----------
    device
        The accelerator with its framework.
    num_devices
        How many of them the job gets.
    framework
        What trains on it; None: unknown, nothing is refused for its sake.
    settings
        What the framework is told, its recipes' defaults included.
    """

    device: EquippedDevice
    num_devices: Count
    framework: Framework | None = None
    settings: Settings = field(default_factory=Settings)

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
