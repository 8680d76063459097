"""Read facts of a ``config.json`` that do not change sizes: rotary base, epsilon, initialisation, dropout, routing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from math import isclose, isfinite
from typing import Any

from costmodel.facts.model import Attention, LatentAttention, Layer, Numerics, Rotary, Routing
from costmodel.models.config_json import Config
from costmodel.models.families import NUMERICS
from costmodel.validation import shown

SPELLINGS: dict[str, tuple[str, ...]] = {
    "norm_epsilon": (
        "rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps", "norm_eps", "norm_epsilon", "layernorm_epsilon",
    ),
    "initializer_range": ("initializer_range", "init_std"),
    "attention_dropout": ("attention_dropout", "attn_pdrop"),
    "hidden_dropout": ("hidden_dropout", "resid_pdrop", "residual_dropout", "dropout"),
    "embedding_dropout": ("embd_pdrop", "embedding_dropout"),
    "activation": ("mlp_hidden_act", "hidden_act", "hidden_activation", "activation_function", "activation"),
    "activation_limit": ("swiglu_limit",),
    "attention_softcap": ("attn_logit_softcapping",),
    "logit_softcap": ("final_logit_softcapping",),
    "base": ("rope_theta", "rotary_emb_base"),
    "windowed_base": ("rope_local_base_freq", "swa_rope_theta"),
    "fraction": ("partial_rotary_factor", "rotary_pct"),
    "num_groups": ("n_group", "num_expert_group"),
    "group_topk": ("topk_group",),
    "scaling_factor": ("routed_scaling_factor", "router_scaling_factor", "moe_router_scaling_factor", "route_scale"),
    "aux_loss_coefficient": ("router_aux_loss_coef", "aux_loss_alpha"),
    "input_jitter": ("router_jitter_noise",),
}  # fmt: skip
"""Spellings of a fact by its name in :mod:`costmodel.facts.model`; two of them in one file must agree."""

NAMES = {name: spellings[0] for name, spellings in SPELLINGS.items()}
"""Most common spelling of each fact."""

OWN_KEYS = ("rope_type", "type", "rope_theta", "partial_rotary_factor", "mrope_section", "mrope_interleaved")
"""Entries of a rotary embedding that are not numbers of its scaling."""

NUMBERS = (
    "factor",
    "original_max_position_embeddings",
    "low_freq_factor",
    "high_freq_factor",
    "beta_fast",
    "beta_slow",
    "mscale",
    "mscale_all_dim",
    "attention_factor",
)
"""Entries of a scaling that are numbers."""

UNSCALED = ("default", "mrope")
"""Types of rotary embeddings without a scaling; with mrope all axes of a text's positions are equal."""

KINDS = ("full_attention", "sliding_attention")
"""Kinds of layers that may each have a rotary embedding."""


PLAIN = Numerics(
    norm_epsilon=1e-6,
    initializer_range=0.02,
    attention_dropout=0.0,
    hidden_dropout=0.0,
    embedding_dropout=0.0,
    activation="silu",
    rotary=Rotary(base=10000.0, fraction=1.0),
)
"""Llama's defaults, which the code of most families follows."""


@cache
def find_defaults(family: str) -> Numerics:
    """Return the facts of a family's classes, constants of their code among them; nothing of a family without a row."""
    if family not in NUMERICS:
        return Numerics()
    row = dict(NUMERICS[family])
    return replace(find_defaults(row.pop("like")) if "like" in row else PLAIN, **row)


def read_numerics(config: Config, family: str, layers: Iterable[Layer]) -> Numerics:
    """
    Read the numeric facts of a configuration; absent keys have the defaults of the family's classes.

    A null key means that its fact is not known, or that there is no bound.

    Raises
    ------
    SpecError
        If a key is ill-typed or out of its range, or contradicts another spelling.
    """
    default = find_defaults(family)
    kinds = tuple(layers)
    attention = next((kind.attention for kind in kinds if isinstance(kind.attention, Attention)), None)
    hidden = _fact(config, "hidden_dropout", default.hidden_dropout, at_most=1.0)
    rotary, windowed = _rotaries(config, default, kinds, attention)
    embedding = hidden if default.embedding_dropout == default.hidden_dropout else default.embedding_dropout
    return replace(
        default,
        norm_epsilon=_fact(config, "norm_epsilon", default.norm_epsilon, at_most=1.0),
        initializer_range=_fact(config, "initializer_range", default.initializer_range),
        attention_dropout=_fact(config, "attention_dropout", default.attention_dropout, at_most=1.0),
        hidden_dropout=hidden,
        embedding_dropout=_fact(config, "embedding_dropout", embedding, at_most=1.0),
        activation=_word(config, SPELLINGS["activation"], default.activation),
        activation_limit=_fact(config, "activation_limit", default.activation_limit) or None,
        attention_softcap=_fact(config, "attention_softcap", default.attention_softcap) or None,
        logit_softcap=_fact(config, "logit_softcap", default.logit_softcap) or None,
        score_scale=_score_scale(config, default, attention),
        rotary=rotary,
        windowed_rotary=windowed,
        routing=_routing(config, default.routing) if default.routing else None,
    )


# --- single entries ------------------------------------------------------------------------------------------


def _fact(config: Config, name: str, default: float | None, *, at_most: float = 1e24) -> float | None:
    """Return the number of a fact under any of its spellings; all that are present must agree."""
    keys = [key for key in SPELLINGS[name] if key in config.mapping]
    values = [_number(config, key, at_most=at_most) for key in keys]
    said = [(key, value) for key, value in zip(keys, values, strict=True) if value is not None]
    if said and not said[0][1] and name in ("base", "windowed_base"):
        raise config.error(said[0][0], "must be above 0, got 0.")
    for key, value in said[1:]:
        if value != said[0][1]:
            problem = f"is {value:g}, but '{said[0][0]}' is {said[0][1]:g}, and they mean the same."
            raise config.error(key, problem)
    return said[0][1] if said else None if keys else default


def _number(config: Config, key: str, *, at_most: float = 1e24) -> float | None:
    value = config.mapping[key]
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise config.error(key, f"expected a number, got {shown(value)}.")
    if not isfinite(value):
        return None  # it costs nothing; exports ask for the fact as for one that is not known
    if not 0 <= value <= at_most:
        limit = "" if at_most == 1e24 else f" and at most {at_most:g}"
        raise config.error(key, f"must be at least 0{limit}, got {shown(value)}.")
    return float(value)


def _word(config: Config, keys: Iterable[str], default: str | None) -> str | None:
    key = next((key for key in keys if key in config.mapping), None)
    if key is None:
        return default
    value = config.mapping[key]
    if value is not None and not isinstance(value, str):
        raise config.error(key, f"expected text, got {shown(value)}.")
    return value


def _score_scale(config: Config, default: Numerics, attention: Attention | None) -> float | None:
    """Return the factor of the scores; None: the inverse root of a head's width."""
    if attention is None:
        return None
    scale = default.score_scale
    if config.mapping.get("query_pre_attn_scalar") is not None:
        scalar = _number(config, "query_pre_attn_scalar")
        if not scalar:
            raise config.error("query_pre_attn_scalar", "must be above 0, got 0.")
        scale = scalar**-0.5
    if config.mapping.get("attention_multiplier") is not None:
        scale = _number(config, "attention_multiplier") or None
    return None if scale is None or isclose(scale, attention.head_dim**-0.5, rel_tol=1e-9) else scale


# --- rotary embeddings ---------------------------------------------------------------------------------------


def _rotaries(
    config: Config, default: Numerics, kinds: Iterable[Layer], attention: Attention | None
) -> tuple[Rotary | None, Rotary | None]:
    mixers = [kind.attention for kind in kinds]
    rotates = any(isinstance(one, Attention | LatentAttention) and one.rotary for one in mixers)
    if not rotates:
        return None, None
    has_windows = any(isinstance(one, Attention) and one.window is not None for one in mixers)
    key = "rope_parameters" if config.mapping.get("rope_parameters") is not None else "rope_scaling"
    said = config.mapping.get(key)
    if said is not None and not isinstance(said, Mapping):
        raise config.error(key, f"expected a mapping, got {shown(said)}.")
    width = None if attention is None else attention.head_dim
    known = default.rotary or Rotary()
    if said is not None and any(isinstance(said.get(kind), Mapping) for kind in KINDS):
        for kind in KINDS:
            if not isinstance(said.get(kind) or {}, Mapping):
                raise config.error(f"{key}.{kind}", f"expected a mapping, got {shown(said[kind])}.")
        each = {kind: Config(said.get(kind) or {}, f"{config.where}.{key}.{kind}") for kind in KINDS}
        full, windowed = (_rotary(config, each[kind], known, width) for kind in KINDS)
    else:
        own = None if said is None and key not in config.mapping else Config(said or {}, f"{config.where}.{key}")
        full = _rotary(config, own, known, width)
        windowed = _window_rotary(config, default, full)
    return full, windowed if has_windows and windowed != full else None


def _window_rotary(config: Config, default: Numerics, full: Rotary) -> Rotary:
    """Return the embedding of layers with a window: their own base, without the scaling of the others."""
    usual = default.windowed_rotary.base if default.windowed_rotary else None
    if default.windowed_rotary and default.rotary and usual == default.rotary.base:
        usual = full.base  # one base for both kinds, of which a scaling changes the other
    base = _fact(config, "windowed_base", usual)
    return full if base is None else Rotary(base=base, fraction=full.fraction)


def _rotary(config: Config, own: Config | None, default: Rotary, width: int | None) -> Rotary:
    """
    Read a rotary embedding.

    Parameters
    ----------
    config
        The configuration.
    own
        Entries of this embedding; None: there are none, not even null.
    default
        Default of the family's classes.
    width
        Width of a head; None: latent attention rotates its own channels.
    """
    holds = [one for one in (own, config) if one is not None]
    base = next((found for one in holds if (found := _fact(one, "base", None)) is not None), None)
    says = any(key in one.mapping for one in holds for key in SPELLINGS["base"])
    base = base if says else default.base
    fraction = _fraction(config, own, default, width)
    if own is None:
        return replace(default, base=base, fraction=fraction)
    kind = _word(own, ("rope_type", "type"), "default") or "default"
    if kind in UNSCALED:
        return Rotary(base=base, fraction=fraction)
    numbers = {key: number for key in own.mapping if (number := _parameter(own, key)) is not None}
    if kind in ("yarn", "longrope", "dynamic") and "original_max_position_embeddings" not in numbers:
        for key in ("original_max_position_embeddings", "max_position_embeddings"):
            if config.mapping.get(key) is not None and "original_max_position_embeddings" not in numbers:
                numbers["original_max_position_embeddings"] = float(config.integer(key, at_most=10**9))
    return Rotary(base=base, fraction=fraction, scaling=kind, parameters=tuple(sorted(numbers.items())))


def _parameter(own: Config, key: str) -> float | None:
    """Return a number of a scaling; None for other entries: names, switches of the reader, factors per channel."""
    value = own.mapping[key]
    if isinstance(value, bool):
        return float(value)
    if key in NUMBERS or (key not in OWN_KEYS and isinstance(value, int | float)):
        return _number(own, key)
    return None


def _fraction(config: Config, own: Config | None, default: Rotary, width: int | None) -> float | None:
    if width is None:
        return 1.0
    if own is not None and own.mapping.get("partial_rotary_factor") is not None:
        return _fact(own, "fraction", None, at_most=1.0)
    if not any(key in config.mapping for key in SPELLINGS["fraction"]) and config.mapping.get("rotary_dim"):
        return min(1.0, config.integer("rotary_dim", at_least=1) / width)
    return _fact(config, "fraction", default.fraction, at_most=1.0)


# --- routing -------------------------------------------------------------------------------------------------


def _routing(config: Config, default: Routing) -> Routing:
    method = _word(config, ("topk_method",), None)
    groups, limit = (_count(config, name, getattr(default, name)) for name in ("num_groups", "group_topk"))
    is_limited = bool(groups and limit and limit < groups) and method != "greedy"
    bias = default.expert_bias if method is None else method == "noaux_tc"
    normalizes = default.normalizes
    return replace(
        default,
        score_function=_score_function(config, default.score_function),
        normalizes=config.flag("norm_topk_prob", normalizes) if normalizes is not None else None,
        expert_bias=config.flag("use_routing_bias", bool(bias)),
        num_groups=groups if is_limited else None,
        group_topk=limit if is_limited else None,
        ranks_groups_by="best" if method == "group_limited_greedy" else "two_best",
        scaling_factor=_fact(config, "scaling_factor", default.scaling_factor),
        aux_loss="seq_aux_loss" if config.flag("seq_aux") else "aux_loss",
        aux_loss_coefficient=_fact(config, "aux_loss_coefficient", default.aux_loss_coefficient),
        input_jitter=_fact(config, "input_jitter", default.input_jitter) or 0.0,
    )


def _count(config: Config, name: str, default: int | None) -> int | None:
    key = next((key for key in SPELLINGS[name] if key in config.mapping), None)
    if key is None:
        return default
    return None if config.mapping[key] is None else config.integer(key)


SCORE_FUNCTIONS = ("softmax", "sigmoid", "sqrtsoftplus")
"""Functions of a router's logits."""


def _score_function(config: Config, default: str | None) -> Any:
    word = _word(config, ("scoring_func", "score_function"), default)
    if word == "noaux_tc" and default == "sigmoid":
        return default  # dots.llm1 names the method of choice here, which ranks sigmoids
    if word not in (*SCORE_FUNCTIONS, None):
        raise config.error("scoring_func", f"expected {' or '.join(SCORE_FUNCTIONS)}, got {shown(word)}.")
    return word
