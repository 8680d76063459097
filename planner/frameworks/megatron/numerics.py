"""Facts of a model besides its sizes, as options of Megatron-LM and fields of Megatron-Bridge, or as a TODO."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from costmodel.facts.model import Attention, LatentAttention, Model, Rotary, Routing
from costmodel.models.numerics import NAMES
from costmodel.record import record

MULTIPLE = 128
"""Multiple to which each tensor-parallel rank's share of the vocabulary is padded: the parser's default."""

POSITIONS = "--position-embedding-type"

YARN_POSITIONS = 4096
"""Positions before scaling in latent attention (MLATransformerConfig, original_max_position_embeddings)."""

FUSED_GELUS = ("gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh")
"""Names of GELU; its fused kernel with a bias is the tanh approximation (megatron/core/fusions/fused_bias_gelu.py)."""

YARN = "--yarn-beta-fast"
"""Option that a release has if it reads the options of YaRN."""

ROUNDS = "--yarn-correction-range-round-to-int"

YARN_OPTIONS = (
    "--rotary-scaling-factor",
    "--yarn-original-max-position-embeddings",
    YARN,
    "--yarn-beta-slow",
    "--mscale",
    "--mscale-all-dim",
    ROUNDS,
    f"--no-{ROUNDS[2:]}",
)
"""Options of YaRN's parameters."""


@record(frozen=True, slots=True)
class Fact:
    """
    Fact of a model.

    Parameters
    ----------
    name
        Its name in a ``config.json``.
    value
        Its value; None: unknown.
    option
        Option of Megatron-LM for it; empty: there is none.
    field
        Field of Megatron-Bridge, where there is no option.
    implied
        Default of both.
    others
        Further options that it needs.
    """

    name: str
    value: Any
    option: str = ""
    field: str = ""
    implied: Any = None
    others: Mapping[str, Any] | None = None


def facts_of(model: Model) -> Iterator[Fact]:
    """Yield the facts of a model in the order in which they are written."""
    numerics = model.numerics
    yield Fact(NAMES["norm_epsilon"], numerics.norm_epsilon, "--norm-epsilon")
    yield Fact("norm weights from one", numerics.norm_weights_from_one, "--apply-layernorm-1p", implied=False)
    yield Fact(NAMES["initializer_range"], numerics.initializer_range, "--init-method-std")
    yield from _dropouts(model)
    yield from _rotary(model)
    yield from _scores(model)
    yield from _activation(model)
    if model.has_experts:
        yield from _routing(numerics.routing)
    yield Fact("vocabulary padding", MULTIPLE, "--make-vocab-size-divisible-by")


def _dropouts(model: Model) -> Iterator[Fact]:
    """Yield dropout rates; they are 0 where the model has none, as plans are costed without dropout."""
    numerics = model.numerics
    attention, hidden = numerics.attention_dropout or 0.0, numerics.hidden_dropout or 0.0
    yield Fact(NAMES["attention_dropout"], attention, "--attention-dropout")
    yield Fact(NAMES["hidden_dropout"], hidden, "--hidden-dropout")
    embedding = numerics.embedding_dropout
    yield Fact(NAMES["embedding_dropout"], hidden if embedding is None else embedding, implied=hidden)


# --- rotary embeddings -------------------------------------------------------------------------------------


def _rotary(model: Model) -> Iterator[Fact]:
    mixers = [kind.attention for kind in model.kinds]
    is_latent = any(isinstance(one, LatentAttention) for one in mixers)
    if not is_latent and not any(isinstance(one, Attention) and one.rotary for one in mixers):
        return
    rotary = model.numerics.rotary or Rotary()
    base = rotary.base
    is_whole = base is not None and base == int(base)
    option = "--rotary-base" if base is None or is_whole else ""
    yield Fact(NAMES["base"], int(base) if base and is_whole else base, option)
    if not is_latent:
        fraction = 1.0 if rotary.fraction is None and base is not None else rotary.fraction
        yield Fact(NAMES["fraction"], fraction, "--rotary-percent")
    yield from _latent_scaling(rotary) if is_latent else _scaling(rotary)
    windowed = model.numerics.windowed_rotary
    if windowed is not None:
        yield Fact(f"{NAMES['windowed_base']} (layers with a window)", windowed.base)
        if windowed.scaling != "default":
            yield Fact("rope_parameters.sliding_attention", scaling_text(windowed))


def scaling_text(rotary: Rotary) -> str:
    """
    Describe a scaling in a line.

    >>> scaling_text(Rotary(scaling="linear", parameters=(("factor", 8.0),)))
    'linear (factor 8)'
    """
    return f"{rotary.scaling} ({', '.join(f'{name} {value:g}' for name, value in rotary.parameters)})"


def _latent_scaling(rotary: Rotary) -> Iterator[Fact]:
    """
    Yield the scaling of latent attention.

    It always uses YaRN, where a factor of 1 changes nothing; other rotary embeddings are not fused.

    References
    ----------
    megatron/core/transformer/transformer_config.py:2598,2637 of core 0.18.2.
    """
    is_yarn = rotary.scaling == "yarn"
    factor = rotary.parameter("factor") if is_yarn else 1.0
    yield Fact("rope_scaling.factor", factor, "--rotary-scaling-factor", others={"--rope-type": "yarn"})
    for name, usual in (("mscale", 1.0), ("mscale_all_dim", 0.0)):
        value = rotary.parameter(name, usual) if is_yarn else usual
        yield Fact(f"rope_scaling.{name}", value, f"--{name.replace('_', '-')}")
    fields = {"original_max_position_embeddings": YARN_POSITIONS, "beta_fast": 32, "beta_slow": 1}
    for name, default in fields.items():
        value = _plain(rotary.parameter(name, float(default)) if is_yarn else float(default))
        yield Fact(f"rope_scaling.{name}", value, field=f"model.{name}", implied=default)
    if not is_yarn and rotary.scaling != "default":
        yield Fact("rope_scaling", scaling_text(rotary))


def _plain(number: float | None) -> float | int | None:
    return int(number) if number is not None and number == int(number) else number


def _scaling(rotary: Rotary) -> Iterator[Fact]:
    """Yield a scaling; that of Llama 3, linear ones and, from core 0.19 on, YaRN have options."""
    llama = rotary.scaling == "llama3"
    yield Fact("rope_scaling", llama, "--use-rope-scaling", implied=False)
    factor = rotary.parameter("factor")
    match rotary.scaling:
        case "default":
            return
        case "llama3":
            yield Fact("rope_scaling.factor", factor, "--rope-scaling-factor")
            # megatron/core/models/common/embeddings/rotary_pos_embedding.py, _apply_scaling
            fixed_factors = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
            for name, fixed in {**fixed_factors, "original_max_position_embeddings": 8192.0}.items():
                yield Fact(f"rope_scaling.{name}", rotary.parameter(name, fixed), implied=fixed)
        case "linear" if factor is not None:
            whole = factor == int(factor)
            yield Fact(
                "rope_scaling.factor (linear)", _plain(factor), "--rotary-seq-len-interpolation-factor" if whole else ""
            )
        case "yarn" if factor is not None:
            yield Fact("rope_scaling", scaling_text(rotary), YARN, others=_yarn(rotary, factor))
        case _:
            yield Fact("rope_scaling", scaling_text(rotary))


def _yarn(rotary: Rotary, factor: float) -> dict[str, Any]:
    """
    Return the options of YaRN outside latent attention, which core 0.19 and later read.

    References
    ----------
    megatron/training/argument_utils.py:384, _apply_yarn_config_from_args (core 0.19.0); transformers,
    modeling_rope_utils.py: without mscale both scales are one of the factor.
    """
    return {
        POSITIONS: "yarn",
        "--rotary-scaling-factor": factor,
        "--yarn-original-max-position-embeddings": int(rotary.parameter("original_max_position_embeddings") or 0),
        YARN: rotary.parameter("beta_fast", 32.0),
        "--yarn-beta-slow": rotary.parameter("beta_slow", 1.0),
        "--mscale": rotary.parameter("mscale", 1.0),
        "--mscale-all-dim": rotary.parameter("mscale_all_dim", 0.0),
        (ROUNDS if rotary.parameter("truncate", 1.0) else f"--no-{ROUNDS[2:]}"): True,
    }


# --- attention, feed-forward and router --------------------------------------------------------------------


def _scores(model: Model) -> Iterator[Fact]:
    """Yield softcap and factor of scores; Megatron-LM has neither, Megatron-Bridge a field for the factor."""
    numerics = model.numerics
    for name in ("attention_softcap", "logit_softcap"):
        value = getattr(numerics, name)
        if value is not None:
            yield Fact(NAMES[name], value)
    if numerics.score_scale is not None:
        yield Fact("factor of the scores", numerics.score_scale, field="model.softmax_scale")


def _activation(model: Model) -> Iterator[Fact]:
    """Yield an activation that options of :mod:`planner.frameworks.megatron.model` do not express."""
    numerics, blocks = model.numerics, [kind.feed_forward for kind in model.kinds if kind.feed_forward is not None]
    if not blocks or any(block.squared_relu for block in blocks):
        return
    written = ("silu", "swish") if blocks[0].gated else FUSED_GELUS
    known = numerics.activation
    if known is None or known not in written:
        yield Fact("hidden_act", known)
    if numerics.activation_limit is not None and model.family != "gpt_oss":
        yield Fact(NAMES["activation_limit"], numerics.activation_limit)


def _routing(routing: Routing | None) -> Iterator[Fact]:
    """
    Yield the facts of a router.

    A softmax over the chosen experts equals one over all experts with normalized weights. Weights of sigmoids are
    always normalized (topk_routing_with_score_function, megatron/core/transformer/moe/moe_utils.py).
    """
    known = routing or Routing()
    score = known.score_function
    yield Fact("scoring_func", score, "--moe-router-score-function")
    if score == "softmax":
        yield Fact(
            "norm_topk_prob",
            None if known.normalizes is None else not known.normalizes,
            "--moe-router-pre-softmax",
            implied=False,
        )
    elif score == "sigmoid":
        yield Fact("norm_topk_prob", known.normalizes, implied=True)
    yield from _balance(known)
    yield from _groups(known)
    if known.scaling_factor != 1.0:
        yield Fact(NAMES["scaling_factor"], known.scaling_factor, "--moe-router-topk-scaling-factor")


def _balance(routing: Routing) -> Iterator[Fact]:
    """Yield load balancing; biases need sigmoids (megatron/core/transformer/transformer_config.py:2060 of 0.18.2)."""
    takes_bias = routing.score_function != "softmax" or not routing.expert_bias
    yield Fact(
        "bias of experts", routing.expert_bias, "--moe-router-enable-expert-bias" if takes_bias else "", implied=False
    )
    coefficient = routing.aux_loss_coefficient
    yield Fact(
        NAMES["aux_loss_coefficient"],
        coefficient,
        "--moe-aux-loss-coeff",
        others={"--moe-router-load-balancing-type": routing.aux_loss if coefficient else "none"},
    )
    if routing.input_jitter:
        yield Fact(NAMES["input_jitter"], routing.input_jitter, "--moe-input-jitter-eps")


def _groups(routing: Routing) -> Iterator[Fact]:
    if routing.num_groups is None:
        return
    yield Fact(NAMES["num_groups"], routing.num_groups, "--moe-router-num-groups")
    yield Fact(NAMES["group_topk"], routing.group_topk, "--moe-router-group-topk")
    if routing.ranks_groups_by == "best":
        # group_limited_topk sums the best topk / group_topk experts of each group
        yield Fact("topk_method", "group_limited_greedy")


# --- what is written ---------------------------------------------------------------------------------------


def options_of(facts: Iterable[Fact], has: Callable[[str], bool]) -> tuple[dict[str, Any], list[Fact]]:
    """
    Write facts as options.

    Parameters
    ----------
    facts
        The facts.
    has
        Tells whether a release has an option.

    Returns
    -------
    entries, left
        Values by option; facts that are unknown, or that have no option.
    """
    entries: dict[str, Any] = {}
    left = []
    for fact in facts:
        others = fact.others or {}
        if fact.value is None:
            left.append(fact)
        elif fact.option and has(fact.option):
            own = {} if fact.option in others or fact.value is False else {fact.option: fact.value}
            entries |= {**own, **others}
        elif fact.value != fact.implied:
            left.append(fact)
    return entries, left


def todo_lines(facts: Iterable[Fact], target: str) -> Iterator[str]:
    """Yield one line for each fact that is not written: unknown, or without an option of the target."""
    for fact in facts:
        words = f" ({fact.option})" if fact.option else ""
        if fact.value is None:
            yield f"{fact.name}{words}: the model's config.json does not say it, {target}'s default holds"
        else:
            yield f"{fact.name} = {value_text(fact.value)}: {target} has no option for it"


def value_text(value: Any) -> str:
    """Spell a value as files do."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
