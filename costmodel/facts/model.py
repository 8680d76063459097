"""A decoder-only language model as a list of layers; values that are impossible on their own are refused."""

from __future__ import annotations

from collections import Counter
from dataclasses import field
from functools import cached_property
from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, Field

from costmodel.facts.fields import Count, CountOrZero, Fraction, NotNegative, Positive
from costmodel.record import strict_record


@strict_record(frozen=True, kw_only=True, slots=True)
class Rotary:
    """
    Rotary position embedding.

    Parameters
    ----------
    base
        Base of the frequencies (``rope_theta``).
    fraction
        Share of a head's channels that are rotated.
    scaling
        Rule that changes frequencies for longer contexts, by its Hugging Face name; ``default``: none.
    parameters
        Numbers of that rule by their names there, sorted.
    """

    base: Positive | None = None
    fraction: Fraction | None = None
    scaling: str = "default"
    parameters: tuple[tuple[str, float], ...] = ()

    def parameter(self, name: str, default: float | None = None) -> float | None:
        """Return a number of the scaling; the default if it is absent."""
        return dict(self.parameters).get(name, default)


@strict_record(frozen=True, kw_only=True, slots=True)
class Routing:
    """
    Choice of a token's experts, and the weights of their results.

    Parameters
    ----------
    score_function
        Function of the router's logits.
    normalizes
        True if the weights of the chosen experts add up to one before they are scaled.
    expert_bias
        True if a bias that balances the load is added to the scores that choose.
    num_groups, group_topk
        Groups of experts, and the number of them that a token's experts are in.
    ranks_groups_by
        ``two_best``: a group counts as much as its two best experts together; ``best``: as its best one.
    scaling_factor
        Factor of all weights.
    aux_loss, aux_loss_coefficient
        Kind and weight of the loss that balances the load.
    input_jitter
        Width of the noise that multiplies tokens.
    """

    score_function: Literal["softmax", "sigmoid", "sqrtsoftplus"] | None = None
    normalizes: bool | None = None
    expert_bias: bool | None = None
    num_groups: Count | None = None
    group_topk: Count | None = None
    ranks_groups_by: Literal["two_best", "best"] = "two_best"
    scaling_factor: NotNegative | None = None
    aux_loss: Literal["aux_loss", "seq_aux_loss"] = "aux_loss"
    aux_loss_coefficient: NotNegative | None = None
    input_jitter: NotNegative = 0.0


@strict_record(frozen=True, kw_only=True, slots=True)
class Numerics:
    """
    Facts of a model besides its sizes.

    Parameters
    ----------
    norm_epsilon
        Number that norms add to the variance.
    norm_weights_from_one
        True if a norm multiplies by one plus its weight, which begins at zero.
    initializer_range
        Standard deviation of the weights at the start.
    attention_dropout, hidden_dropout, embedding_dropout
        Probabilities of dropout: of scores, of the blocks' outputs, of the embedding.
    activation
        Non-linearity of the feed-forward, by its Hugging Face name.
    activation_limit
        Bound of the activation's input (gpt-oss); None: none.
    rotary, windowed_rotary
        Rotary embedding; the one of layers with a sliding window, if it differs.
    attention_softcap, logit_softcap
        Bounds of a hyperbolic tangent around scores and logits; None: none.
    score_scale
        Factor of the scores, if it is not the inverse root of a head's width.
    routing
        Choice of the experts; None: no experts, or not known.
    """

    norm_epsilon: NotNegative | None = None
    norm_weights_from_one: bool = False
    initializer_range: NotNegative | None = None
    attention_dropout: Fraction | None = None
    hidden_dropout: Fraction | None = None
    embedding_dropout: Fraction | None = None
    activation: str | None = None
    activation_limit: Positive | None = None
    rotary: Rotary | None = None
    windowed_rotary: Rotary | None = None
    attention_softcap: Positive | None = None
    logit_softcap: Positive | None = None
    score_scale: Positive | None = None
    routing: Routing | None = None


@strict_record(frozen=True, kw_only=True, slots=True)
class Indexer:
    """
    Small heads that score all keys for each query, so that attention reads the best ones only.

    Parameters
    ----------
    num_heads, head_dim
        Heads of its queries; width of each, and of the one key that they share.
    num_keys
        Keys that a query reads at most.
    block_size
        Keys that are chosen together, by the best score among them; 1: each by itself.
    sums_heads
        True if the heads' scores are weighted by a projection and summed (DSA, DeepSeek-V3.2); otherwise each head
        chooses for a group of query heads (MiniMax-M3).
    is_shared
        True if the layer reads the choice of an earlier layer, and has no indexer of its own (GLM-5.2).
    ratio
        Tokens that each of its keys stands for (DeepSeek-V4, which compresses them).
    """

    num_heads: Count
    head_dim: Count
    num_keys: Count
    block_size: Count = 1
    sums_heads: bool = True
    is_shared: bool = False
    ratio: Count = 1


@strict_record(frozen=True, kw_only=True, slots=True)
class Attention:
    """
    Softmax attention with query, key and value heads: MHA, GQA and MQA.

    Parameters
    ----------
    num_heads, num_kv_heads
        Query heads; key-value heads (equal: MHA, one: MQA, between: GQA).
    head_dim, v_head_dim
        Width of one head of queries and keys; of its values (None: the same).
    key_is_value
        True if values are what the projection of keys puts out (Gemma 4).
    qkv_bias, output_bias
        True if the projections add a bias.
    qk_norm
        ``per_head``: one weight vector of ``head_dim`` for queries and one for keys; ``full``: over all heads.
    output_gate, head_gate
        True if a second query-sized projection gates the output (Qwen3-Next), or one number for each head (Step 3.5).
    sinks
        True if each head has a learned sink logit (gpt-oss).
    window
        Sliding window in tokens; None attends to all earlier tokens.
    chunk
        Tokens of a chunk outside of which queries do not attend (Llama 4); None attends across.
    rotary
        True if queries and keys are rotated by their position (RoPE).
    indexer
        Choice of each query's keys (MiniMax-M3); None: it reads all that window and chunk allow.
    """

    num_heads: Count
    num_kv_heads: Count
    head_dim: Count
    v_head_dim: Count | None = None
    key_is_value: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: Literal["none", "per_head", "full"] = "none"
    output_gate: bool = False
    head_gate: bool = False
    sinks: bool = False
    window: Count | None = None
    chunk: Count | None = None
    rotary: bool = True
    indexer: Indexer | None = None

    @property
    def value_width(self) -> int:
        """Width of one head of values."""
        return self.v_head_dim or self.head_dim


@strict_record(frozen=True, kw_only=True, slots=True)
class LatentAttention:
    """
    Multi-head latent attention (MLA, DeepSeek-V2, arXiv 2405.04434).

    Parameters
    ----------
    num_heads
        Number of heads.
    q_lora_rank
        Rank of the query's down-projection; None projects queries directly.
    kv_lora_rank
        Rank of the joint key-value latent.
    qk_nope_head_dim, qk_rope_head_dim, v_head_dim
        Widths per head: keys without and with rotary position, values.
    bias
        True if the down-projections and the output projection add a bias.
    indexer
        Choice of each query's keys (DSA); None: it reads all earlier ones.
    rotary
        True if the shared channels of keys, and those of queries, are rotated by their position.
    output_gate
        True if a projection as wide as the values gates the output (Kimi K3).
    """

    num_heads: Count
    q_lora_rank: Count | None
    kv_lora_rank: Count
    qk_nope_head_dim: Count
    qk_rope_head_dim: Count
    v_head_dim: Count
    bias: bool = False
    indexer: Indexer | None = None
    rotary: bool = True
    output_gate: bool = False


@strict_record(frozen=True, kw_only=True, slots=True)
class CompressedAttention:
    """
    Attention to a window and to compressed entries of all earlier tokens, with one key head (DeepSeek-V4).

    Parameters
    ----------
    num_heads, head_dim, rotary_dim
        Query heads; width of each, and of the one key that is the value, too; rotated channels of it.
    q_lora_rank
        Rank of the query's down-projection.
    num_groups, output_rank
        Groups of heads that the output projects by themselves, and the rank of each.
    window
        Sliding window in tokens.
    ratio
        Tokens that each entry stands for; 0: there are no entries.
    num_series
        Series of entries from which one is summed (CSA: 2, of which one begins a window earlier).
    indexer
        Choice of the entries of each query (CSA); None: it reads all earlier ones (HCA).
    """

    num_heads: Count
    head_dim: Count
    rotary_dim: CountOrZero
    q_lora_rank: Count
    num_groups: Count
    output_rank: Count
    window: Count
    ratio: CountOrZero = 0
    num_series: Count = 1
    indexer: Indexer | None = None


@strict_record(frozen=True, kw_only=True, slots=True)
class LinearAttention:
    """
    Attention whose cost is linear in the sequence.

    Parameters
    ----------
    variant
        ``lightning`` (MiniMax-Text-01), ``gated_delta`` (Qwen3-Next) or ``kda`` (Kimi Linear: a decay per channel).
    num_key_heads, num_value_heads, key_head_dim, value_head_dim
        Heads and their widths (lightning: all heads alike).
    conv_kernel
        Width of the short causal convolution; 0 is none.
    decay_rank, gate_rank
        Rank of the projection of the decays (KDA), and of the output gate; 0: full rank.
    """

    variant: Literal["lightning", "gated_delta", "kda"]
    num_key_heads: Count
    num_value_heads: Count
    key_head_dim: Count
    value_head_dim: Count
    conv_kernel: CountOrZero = 0
    decay_rank: CountOrZero = 0
    gate_rank: CountOrZero = 0


@strict_record(frozen=True, kw_only=True, slots=True)
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
        Groups of heads that share B and C, the counterparts of keys and queries.
    conv_kernel
        Width of the short causal convolution.
    chunk_size
        Tokens of a chunk, inside which every pair is compared; a state passes from chunk to chunk.
    bias, conv_bias
        True if the projections and the convolution add a bias.
    norm
        True if a norm follows the gate; False: the recurrence gates its own output (Falcon-H1).
    """

    num_heads: Count
    head_dim: Count
    state_size: Count
    num_groups: Count = 1
    conv_kernel: Count = 4
    chunk_size: Count = 128
    bias: bool = False
    conv_bias: bool = True
    norm: bool = True


@strict_record(frozen=True, kw_only=True, slots=True)
class SelectiveScan:
    """
    Mamba of the first generation: a recurrence per channel, token by token (Gu and Dao, arXiv 2312.00752).

    Parameters
    ----------
    channels
        Inner width d.
    state_size
        Width of the state of one channel, N.
    step_rank
        Rank of the projection of steps, one for each channel.
    conv_kernel
        Width of the short causal convolution.
    bias, conv_bias
        True if the outer projections and the convolution add a bias.
    norms
        Norms of steps, B and C: none, without weights (Falcon Mamba), or with a weight per element (Jamba).
    """

    channels: Count
    state_size: Count
    step_rank: Count
    conv_kernel: Count = 4
    bias: bool = False
    conv_bias: bool = True
    norms: Literal["none", "plain", "weighted"] = "none"


@strict_record(frozen=True, kw_only=True, slots=True)
class ShortConvolution:
    """
    A causal convolution over a few tokens between two gates (LFM2).

    Parameters
    ----------
    channels
        Width of the convolution.
    conv_kernel
        Tokens that it reads, the own one among them.
    bias
        True if projections and convolution add a bias.
    """

    channels: Count
    conv_kernel: Count
    bias: bool = False


@strict_record(frozen=True, kw_only=True, slots=True)
class Mlp:
    """
    Dense feed-forward block.

    Parameters
    ----------
    ffn_hidden_size
        Width between the two linears.
    gated
        True if the first linear is doubled by a gate (SwiGLU, GeGLU).
    bias
        True if the linears add a bias.
    squared_relu
        True if the non-linearity without a gate is the square of ReLU, which takes two kernels, instead of GELU.
    activation_weights
        Number of weights of the non-linearity (Apertus' xIELU: 2).
    """

    ffn_hidden_size: Count
    gated: bool = True
    bias: bool = False
    squared_relu: bool = False
    activation_weights: CountOrZero = 0


@strict_record(frozen=True, kw_only=True, slots=True)
class Experts:
    """
    Mixture-of-experts feed-forward block.

    Parameters
    ----------
    num_experts, top_k
        Number of routed experts; number of them that a token visits.
    ffn_hidden_size
        Width inside one routed expert.
    shared_ffn_hidden_size
        Width of all shared experts together; 0 is none.
    gated, bias, squared_relu
        Gate, biases and non-linearity of routed and shared experts, as in :class:`Mlp`.
    router_bias
        True if the router's logits have a learned bias (gpt-oss).
    router_scales
        True if the router norms its input and scales its channels, and its result by expert (Gemma 4).
    shared_gate
        True if a hidden-to-1 gate scales the shared expert (Qwen3-Next).
    latent_size
        Width to which tokens are projected before they are sent to the routed experts, and from which they are
        projected back afterwards (LatentMoE, Nemotron 3); None sends the hidden size.
    latent_norm
        True if a norm stands before the projection back (Kimi K3).
    """

    num_experts: Count
    top_k: Count
    ffn_hidden_size: Count
    shared_ffn_hidden_size: CountOrZero = 0
    gated: bool = True
    bias: bool = False
    router_bias: bool = False
    router_scales: bool = False
    shared_gate: bool = False
    latent_size: Count | None = None
    latent_norm: bool = False
    squared_relu: bool = False


Mixer: TypeAlias = (
    Attention | LatentAttention | CompressedAttention | LinearAttention | Mamba | SelectiveScan | ShortConvolution
)

"""Block that mixes information between tokens."""


@strict_record(frozen=True, kw_only=True, slots=True)
class Layer:
    """
    One layer: a token mixer, a feed-forward, norms.

    Parameters
    ----------
    attention, feed_forward
        The two blocks; None where a layer is a single block (Nemotron-H).
    beside
        A second mixer that reads the input of the first, and whose output is added to its own (Falcon-H1).
    num_norms
        Norms over the hidden size (2 before the blocks; Gemma has 4).
    norm
        ``rms``: one weight per channel; ``layer``: weight and bias; ``none``: no parameters counted.
    parallel_blocks
        True if both blocks read the same input and are summed before tensor-parallel ranks are (GPT-J, GPT-NeoX).
    streams
        Streams of the residual, which hyper-connections mix around each block (DeepSeek-V4: 4).
    snapshots
        Earlier sums of the residual that each block's input is weighted from, besides the latest; averaged over the
        layers (attention residuals, Kimi K3).
    is_wide
        True if it computes in 16 bits where a recipe's other layers do so in fewer (Megatron-LM:
        ``--first-last-layers-bf16``).
    """

    attention: Mixer | None
    feed_forward: Mlp | Experts | None
    beside: Mamba | None = None
    num_norms: CountOrZero = 2
    norm: Literal["rms", "layer", "none"] = "rms"
    parallel_blocks: bool = False
    streams: Count = 1
    snapshots: CountOrZero = 0
    is_wide: bool = False

    @property
    def residual_tensors(self) -> int:
        """Tensors of the hidden size that pass from layer to layer."""
        return self.streams + self.snapshots

    @property
    def blocks(self) -> tuple[Mixer | Mlp | Experts, ...]:
        """Blocks of the layer, in order."""
        return tuple(block for block in (self.attention, self.beside, self.feed_forward) if block is not None)


def _each_once(layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    """Replace equal layers by one object: they take long to hash, and :attr:`Model.kinds` is asked often."""
    known: dict[Layer, Layer] = {}
    kept = {key: known.setdefault(layer, layer) for key, layer in {id(layer): layer for layer in layers}.items()}
    return tuple(kept[id(layer)] for layer in layers)


@strict_record(frozen=True, kw_only=True)
class Model:
    """
    A decoder-only language model: a list of layers between an embedding and a head.

    Parameters
    ----------
    name, source
        Name of the model, and the source of its numbers.
    family
        The Hugging Face ``model_type``, or ``inline``.
    hidden_size, vocab_size
        Width of the residual stream; entries of the vocabulary.
    layers
        Every layer in order.
    tied_embeddings
        True if embedding and head share their weights.
    mtp_layers
        Layers of multi-token prediction after the last layer, counted apart.
    learned_positions
        Entries of a learned position embedding; 0 is none.
    final_norm
        Norm in front of the head, as :attr:`Layer.norm`.
    head_bias
        True if the head adds a bias.
    embedding_norm
        True if a layer norm follows the embedding (BLOOM).
    extras
        Operations that cost next to nothing and that no size describes, such as scales of residuals; empty: none.
    doubts
        Entries of its configuration that contradict each other where its class ignores one; empty: none.
    is_text_part
        True if it is the text part of a multimodal model.
    numerics
        Facts that change no cost, for exports.
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
    embedding_norm: bool = False
    extras: str = ""
    doubts: str = field(default="", compare=False)
    is_text_part: bool = False
    numerics: Numerics = field(default=Numerics(), compare=False)

    def __hash__(self) -> int:
        """Hash of what tells most models apart: the layers take long, and caches of quantities ask often."""
        return hash((self.name, self.hidden_size, self.vocab_size, len(self.layers)))

    @property
    def num_layers(self) -> int:
        """Number of layers without the multi-token prediction."""
        return len(self.layers)

    @property
    def num_experts(self) -> int:
        """Number of routed experts of a layer; 0: dense."""
        blocks = (kind.feed_forward for kind in self.kinds)
        return max((block.num_experts for block in blocks if isinstance(block, Experts)), default=0)

    @property
    def has_experts(self) -> bool:
        """True if some layer has routed experts."""
        return self.num_experts > 0

    @property
    def size(self) -> str:
        """Hidden size and number of experts, such as ``7168x256``: models of one size are costed alike."""
        return f"{self.hidden_size}x{self.num_experts}"

    @property
    def has_shared_experts(self) -> bool:
        """True if some layer has experts that every token passes."""
        blocks = (kind.feed_forward for kind in self.kinds)
        return any(isinstance(block, Experts) and block.shared_ffn_hidden_size > 0 for block in blocks)

    @property
    def streams(self) -> int:
        """Streams of the residual between its layers."""
        return max(kind.streams for kind in self.kinds)

    @property
    def indexers(self) -> tuple[Indexer, ...]:
        """The different choices of keys in its layers."""
        found = (getattr(kind.attention, "indexer", None) for kind in self.kinds)
        return tuple(dict.fromkeys(one for one in found if one is not None))

    @property
    def has_single_blocks(self) -> bool:
        """True if some layer is a single block (Nemotron-H), which is Megatron-LM's hybrid model and not its GPT."""
        return any(len(kind.blocks) == 1 for kind in self.kinds)

    @cached_property
    def kinds(self) -> tuple[Layer, ...]:
        """The different layers, in order of first appearance; MTP blocks included."""
        objects = {id(layer): layer for layer in (*self.layers, *self.mtp_layers)}
        return tuple(dict.fromkeys(objects.values()))

    @property
    def layer_counts(self) -> dict[Layer, int]:
        """Number of layers of each kind, without the multi-token prediction."""
        counts = Counter(map(id, self.layers))  # equal ones are one object
        return {layer: counts[number] for number, layer in {id(layer): layer for layer in self.layers}.items()}
