"""Facts of a model beside its sizes in a recipe of torchtitan 0.3.0, and a TODO for each without a field."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from costmodel.facts.model import Model
from costmodel.facts.numerics import Rotary, Routing
from costmodel.models.numerics import NAMES

SCALINGS: dict[str, tuple[str, dict[str, str]]] = {
    "default": ("none", {}),
    "llama3": (
        "llama",
        {
            "scaling_factor": "factor",
            "low_freq_factor": "low_freq_factor",
            "high_freq_factor": "high_freq_factor",
            "original_max_position_embeddings": "original_max_position_embeddings",
        },
    ),
    "yarn": (
        "yarn",
        {
            "rope_factor": "factor",
            "beta_fast": "beta_fast",
            "beta_slow": "beta_slow",
            "original_seq_len": "original_max_position_embeddings",
        },
    ),
}
"""Names of rotary scalings and their parameters (torchtitan/models/common/rope.py, RoPE.Config)."""

WHOLE = ("original_max_position_embeddings", "original_seq_len")

SET_FACTS = '''

def parts(config):
    """Yield a configuration and all that it consists of."""
    yield config
    for field in fields(config):
        value = getattr(config, field.name)
        for one in value if isinstance(value, (list, tuple)) else [value]:
            if is_dataclass(one) and not isinstance(one, type):
                yield from parts(one)


def set_facts(model) -> None:
    """Set what the planned model has wherever the configuration has a field of that name."""
    for part in parts(model):
        for owner, facts in FACTS.items():
            if hasattr(part, owner):
                for name, value in facts.items():
                    setattr(part, name, value)
'''
"""Functions that a recipe contains."""


def facts_of(model: Model) -> dict[str, dict[str, Any]]:
    """Return facts of rotary embeddings, norms and routers that torchtitan has fields for, by a field of each part."""
    numerics, facts = model.numerics, dict[str, dict[str, Any]]()
    rotary = numerics.rotary
    if rotary is not None and rotary.base is not None and rotary.scaling in SCALINGS:
        facts["theta"] = {"theta": rotary.base, **_scaling(rotary)}
    if numerics.norm_epsilon is not None:
        facts["normalized_shape"] = {"eps": numerics.norm_epsilon}
    if numerics.routing is not None and numerics.routing.score_function is not None:
        facts["score_func"] = _routing(numerics.routing)
    return facts


def _scaling(rotary: Rotary) -> dict[str, Any]:
    name, spelled = SCALINGS[rotary.scaling]
    numbers = {own: rotary.parameter(key) for own, key in spelled.items()}
    said = {own: int(value) if own in WHOLE else value for own, value in numbers.items() if value is not None}
    truncates = rotary.parameter("truncate", 1.0)
    return {"scaling": name, **said, **({"truncate": bool(truncates)} if name == "yarn" else {})}


def _routing(routing: Routing) -> dict[str, Any]:
    groups = {"num_expert_groups": routing.num_groups, "num_limited_groups": routing.group_topk}
    return {
        "score_func": routing.score_function,
        **({} if routing.normalizes is None else {"route_norm": routing.normalizes}),
        **({} if routing.scaling_factor is None else {"route_scale": routing.scaling_factor}),
        **groups,
    }


def todo_lines(model: Model) -> Iterator[str]:
    """Yield one line for each fact that is unknown, or that has no field."""
    numerics, rotary = model.numerics, model.numerics.rotary
    unknown = "the model's config.json does not say it, the registry's holds"
    no_field = "torchtitan 0.3.0 has no field for it"
    if numerics.norm_epsilon is None:
        yield f"{NAMES['norm_epsilon']}: {unknown}"
    if rotary is None or rotary.base is None:
        if not model.learned_positions and not model.has_single_blocks:
            yield f"{NAMES['base']}: {unknown}"
    else:
        if rotary.scaling not in SCALINGS:
            yield f"rope_scaling = {rotary.scaling}: {no_field}"
        if rotary.fraction not in (None, 1.0):
            yield f"{NAMES['fraction']} = {rotary.fraction:g}: it is the width (dim) of the registry's rotation"
    name = NAMES["initializer_range"]
    if numerics.initializer_range is None:
        yield f"{name}: {unknown}"
    else:
        yield f"{name} = {numerics.initializer_range:g}: initialisation is the registry's (param_init)"
    for name in ("attention_dropout", "hidden_dropout", "embedding_dropout", "attention_softcap", "logit_softcap"):
        if value := getattr(numerics, name):
            yield f"{NAMES[name]} = {value:g}: {no_field}"
    if model.has_experts:
        coefficient = numerics.routing and numerics.routing.aux_loss_coefficient
        text = f" = {coefficient:g}: {no_field}" if coefficient else f": {unknown}"
        if coefficient != 0:
            yield f"{NAMES['aux_loss_coefficient']}{text}"
