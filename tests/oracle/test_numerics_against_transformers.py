"""Facts of a config.json against the configuration classes of transformers: defaults, spellings, rotary embeddings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from costmodel.models.families import FAMILIES, NUMERICS
from costmodel.models.huggingface import model_from_config
from costmodel.models.numerics import find_defaults
from tests.cases import read_table

transformers = pytest.importorskip("transformers")

CONFIGS = Path(__file__).parents[1] / "data" / "hf_configs"
FAMILIES_OF_CLASSES = read_table("transformers_configs")["without_a_class"]
"""Families whose configuration is that of another one."""

ATTRIBUTES = read_table("transformers_attributes")


def config_of(mapping: dict[str, Any]) -> Any:
    """The configuration that transformers makes of a mapping."""
    name = FAMILIES_OF_CLASSES.get(mapping["model_type"], mapping["model_type"])
    own = {key: value for key, value in mapping.items() if key not in ("model_type", "__source__")}
    return transformers.CONFIG_MAPPING[name](**own)


def assert_facts(numerics: Any, config: Any, family: str) -> None:
    """Each fact is the attribute of the class, where the class has one."""
    for name, attributes in ATTRIBUTES["names"].items():
        held = [getattr(config, one) for one in attributes if hasattr(config, one)]
        if held and not (name == "activation" and family in ("bloom", "opt")):
            assert getattr(numerics, name) == held[0], (family, name)
    if numerics.routing is None:
        return
    for name, attribute in ATTRIBUTES["router"].items():
        value = getattr(config, attribute, None)
        is_limit = name in ("num_groups", "group_topk")
        if value is not None and not (is_limit and numerics.routing.num_groups is None):
            assert getattr(numerics.routing, name) == value, (family, name)


@pytest.mark.parametrize("family", sorted(NUMERICS))
def test_defaults_are_those_of_the_classes(family):
    """Made without a key, a configuration has the facts that are in the table."""
    config = config_of({"model_type": family})
    numerics = find_defaults(family)

    assert_facts(numerics, config, family)
    parameters = getattr(config, "rope_parameters", None)
    if numerics.rotary is None or not parameters:
        return
    full = parameters.get("full_attention", parameters)
    assert numerics.rotary.base == full["rope_theta"]
    assert numerics.rotary.scaling == full["rope_type"]
    if "qk_rope_head_dim" not in config.to_dict():
        fraction = full.get("partial_rotary_factor", getattr(config, "partial_rotary_factor", None) or 1.0)
        assert numerics.rotary.fraction == fraction
    if numerics.windowed_rotary is not None:
        assert numerics.windowed_rotary.base == parameters["sliding_attention"]["rope_theta"]


def test_every_family_has_defaults():
    """A family without them would leave all that its files omit unknown."""
    assert NUMERICS.keys() == FAMILIES.keys()


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.json")), ids=lambda path: path.stem)
def test_facts_of_published_files_are_those_of_transformers(path):
    """The reader and the classes make the same of a file, what it leaves out included."""
    mapping = json.loads(path.read_text(encoding="utf-8"))
    model, config = model_from_config(mapping), config_of(mapping)
    numerics = model.numerics

    assert_facts(numerics, config, model.family)
    if numerics.rotary is None:
        return
    parameters = config.rope_parameters
    full = parameters.get("full_attention", parameters)
    assert (numerics.rotary.base, numerics.rotary.scaling) == (full["rope_theta"], full["rope_type"])
    for name, value in numerics.rotary.parameters:
        assert full[name] == value, name
