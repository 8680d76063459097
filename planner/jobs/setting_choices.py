"""Settings for which a job gives several values: read, check and combine them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from itertools import product
from math import prod
from typing import Any, TypeAlias

from costmodel import catalog
from costmodel.errors import SpecError, alternatives
from costmodel.facts.framework import Framework, Settings, lacks
from costmodel.validation import build, shown

Value: TypeAlias = bool | int | float | str
"""A value of a setting."""

ANY = "any"
"""Word for all values that the framework's release has."""

CHOOSABLE = (
    "gradient_dtype",
    "moments_dtype",
    "fp8_param_gather",
    "shared_expert_overlap",
    "offloaded_layers",
    "offloaded_states",
    "offloaded_masters",
    "offload_overlap",
    "optimizer_group",
    "muon_tp_mode",
    "cp_comm_type",
    "cp_a2a_ranks",
    "loss",
    "loss_chunks",
)
"""Settings that may have several values; the others describe the trained model or the software."""

MOST_COMBINATIONS = 32
"""Largest number of combinations of settings in one job: each has costs of its own to tabulate."""

OF_OPTIMIZER_OFFLOAD = ("offloaded_states", "offloaded_masters", "offload_overlap")
"""Settings that have an effect only with optimizer offload."""

OFFLOAD_OF = {**dict.fromkeys(OF_OPTIMIZER_OFFLOAD, "optimizer_offload"), "offloaded_layers": "activation_offload"}
"""Settings of offload, and their decision."""

ALL_THE_SAME = "To cost it nevertheless: search.framework_rules: false."


def split(settings: object) -> tuple[Any, dict[str, Any]]:
    """
    Split settings into those with one value, and those with several values or ``any``.

    >>> split({"loss": "fused", "gradient_dtype": ["fp32", "bf16"], "offloaded_states": "any"})
    ({'loss': 'fused'}, {'gradient_dtype': ['fp32', 'bf16'], 'offloaded_states': 'any'})
    """
    if not isinstance(settings, Mapping):
        return settings, {}
    known = {one.name for one in fields(Settings)}
    several = {name: value for name, value in settings.items() if name in known and _is_open(value)}
    for name, value in several.items():
        if name not in CHOOSABLE:
            problem = f"takes one value, got {shown(value)}."
            raise SpecError(f"settings.{name}", problem, f"Several may be given of {', '.join(CHOOSABLE)}.")
    return {name: value for name, value in settings.items() if name not in several}, several


def _is_open(value: object) -> bool:
    return isinstance(value, list) or value == ANY


def combine_settings(
    several: Mapping[str, Any], framework: Framework, *, framework_rules: bool
) -> tuple[dict[str, Value], ...]:
    """
    Combine settings with several values, in the order in which the job gives them.

    Parameters
    ----------
    several
        Lists of values, or ``any``, by setting.
    framework
        Framework of the job, whose entry lists values of settings.
    framework_rules
        True where values that the framework lacks are refused.

    Raises
    ------
    SpecError
        If a list is empty, names a value twice, or an unknown one. Also if the values for ``any`` are not known, or the
        combinations are too many.
    """
    values = {name: tuple(_values(name, given, framework, framework_rules)) for name, given in several.items()}
    number = prod(map(len, values.values()))
    if number > MOST_COMBINATIONS:
        product_of = " x ".join(f"{len(own)} of {name}" for name, own in values.items() if len(own) > 1)
        problem = f"{product_of} make {number:,} combinations, more than {MOST_COMBINATIONS}."
        raise SpecError("settings", problem, "Give fewer values, or plan in several jobs (planner batch).")
    every = (dict(zip(values, chosen, strict=True)) for chosen in product(*values.values()))
    return tuple(one for one in every if _matters(one, values))


def _matters(chosen: Mapping[str, Value], values: Mapping[str, tuple[Value, ...]]) -> bool:
    """Tell whether near ranks have an effect; without, only their first number is kept."""
    if not {"cp_comm_type", "cp_a2a_ranks"} <= {*chosen}:
        return True
    return chosen["cp_comm_type"] == "a2a+p2p" or chosen["cp_a2a_ranks"] == values["cp_a2a_ranks"][0]


def _values(name: str, given: Any, framework: Framework, framework_rules: bool) -> Iterator[Value]:
    where, having = f"settings.{name}", framework.setting_values.get(name)
    if framework_rules and name in OFFLOAD_OF and lacks(framework, OFFLOAD_OF[name], 1):
        problem = f"has several values, but {framework.name} has no {OFFLOAD_OF[name]}."
        raise SpecError(where, problem, f"Give one value. {ALL_THE_SAME}")
    if given == ANY:
        if having is None:
            problem = f"is any, but the catalog does not know which values {framework.name} has."
            raise SpecError(where, problem, "Give a list of values.")
        yield from having
        return
    if not given:
        raise SpecError(where, "is an empty list.", f"Give one value, a list of several, or {ANY}.")
    seen: list[Value] = []
    for index, value in enumerate(given):
        read = read_value(name, value, f"{where}.{index}")
        if read in seen:
            raise SpecError(f"{where}.{index}", f"names {shown(value)} a second time.")
        if framework_rules and len(given) > 1 and not has_value(framework, name, read):
            _refuse(framework, name, read, f"{where}.{index}")
        seen.append(read)
        yield read


def read_value(name: str, value: Any, where: str) -> Value:
    """
    Read one value of a setting.

    Raises
    ------
    SpecError
        If the setting has no such value; ``where`` is the path of the setting.
    """
    if value is None or _is_open(value):
        raise SpecError(where, f"expected a value of {name}, got {shown(value)}.")
    try:
        read: Value = getattr(build(Settings, {name: value}, "settings"), name)
    except SpecError as error:
        raise SpecError(where, error.problem, error.hint) from None
    return read


def has_value(framework: Framework, name: str, value: Value) -> bool:
    """
    Tell whether a framework's release has a value of a setting, as far as its entry lists values.

    Two listed numbers include those between them. Values of its recipes are included as well.
    """
    having = framework.setting_values.get(name)
    if having is None or value in having or value == getattr(framework.settings, name):
        return True
    return not isinstance(value, (bool, str)) and len(having) > 1


def _refuse(framework: Framework, name: str, value: Value, where: str) -> None:
    own = alternatives([value_text(one) for one in framework.setting_values[name]])
    having = [one for one in catalog.frameworks() if value in catalog.framework(one).setting_values.get(name, ())]
    others = f" These have it: {', '.join(having)} (cluster.framework)." if having else ""
    problem = f"{framework.name} has no {name} {shown(value)} (allowed: {own})."
    raise SpecError(where, problem, f"{others} {ALL_THE_SAME}".strip())


def keep_effective(
    settings: Mapping[str, Value], *, optimizer_offload: bool, activation_offload: bool
) -> dict[str, Value]:
    """Return the settings that matter to a strategy: those of offload only if something is offloaded."""
    offloads = {"optimizer_offload": optimizer_offload, "activation_offload": activation_offload}
    return {name: value for name, value in settings.items() if name not in OFFLOAD_OF or offloads[OFFLOAD_OF[name]]}


def value_text(value: Value) -> str:
    """
    Write a value of a setting as on a command line.

    >>> value_text(True), value_text("bf16"), value_text(0.5)
    ('true', 'bf16', '0.5')
    """
    return value if isinstance(value, str) else shown(value)


def text_of(settings: Mapping[str, Value]) -> str:
    """
    Write settings as on a command line.

    >>> text_of({"gradient_dtype": "bf16", "offloaded_masters": True})
    'gradient_dtype=bf16 offloaded_masters=true'
    """
    return " ".join(f"{name}={value_text(value)}" for name, value in settings.items())
