"""Fields that recipes set, of Megatron-Bridge's package by their names, or of a Python file; nothing is executed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache, partial
from typing import Any

from costmodel.errors import SpecError
from costmodel.record import record
from planner.frameworks.imports.bridge.python_source import Thing, public_functions, read_module, result_of
from planner.frameworks.imports.documents import UNKNOWN, read_plain, read_rows, read_words, text_of
from planner.frameworks.imports.refused import refuse_entries, refuse_program
from planner.frameworks.megatron.options import options

DATA = read_words("bridge.library")

MODULES = "megatron.bridge.recipes"


@cache
def options_by_field() -> Mapping[str, str]:
    """Return the option of Megatron-LM for each field."""
    return {field: option.name for option in options().values() for field in option.bridge or ()} | {**DATA.more_fields}


LAYERS = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}
"""Letters of a stage (megatron/core/transformer/pipeline_parallel_layer_layout.py)."""

OPEN = "?"


@record(frozen=True, slots=True)
class Recipe:
    """
    Fields that a recipe sets.

    Parameters
    ----------
    name
        Name of its function.
    source
        Source of the recipe, such as a release of Megatron-Bridge or a file.
    model
        Name of the model on the hub, or the class that describes it.
    fields
        Values of the configuration by dotted name, as overrides write them.
    """

    name: str
    source: str
    model: str
    fields: Mapping[str, str]


def recipe_named(name: str) -> Recipe | None:
    """
    Return a recipe of the newest release in the table that has it; None: there is none of that name.

    >>> recipe_named("llama3_8b_pretrain").fields["model.context_parallel_size"]
    '2'

    Raises
    ------
    SpecError
        If it is a recipe of fine-tuning.
    """
    plain = name.rsplit(".", 1)[-1].removeprefix("pretrain_")
    refuse_program(plain, "recipe")
    known = _table()
    spellings = (plain, f"{plain}_config", f"{plain}_pretrain_config", f"{plain}_pretrain")
    return next((known[spelling] for spelling in spellings if spelling in known), None)


def recipe_names() -> tuple[str, ...]:
    """Names of all known recipes."""
    return tuple(_table())


def recipe_of_file(text: str, where: str) -> Recipe:
    """
    Read the recipe of a Python file: its last function without arguments that returns a configuration.

    Raises
    ------
    SpecError
        If it has none, or if the recipe does not name its model.
    """
    names = read_module(text, where, _find_in_library)
    found: list[Recipe] = []
    for name, function in public_functions(names).items():
        config = result_of(function, where, _find_in_library)
        if isinstance(config, Thing) and "model" in config.fields:
            refuse_program(name, where)
            refuse_entries({one: getattr(value, "name", value) for one, value in config.fields.items()}, where)
            found.append(read_recipe(name, where, config))
    if not found:
        raise SpecError(where, "holds no recipe that is known here.", DATA.hint)
    return found[-1]


def read_recipe(name: str, source: str, config: Thing) -> Recipe:
    """Return the recipe that a configuration of a function describes."""
    model = config.fields.get("model")
    words = (*model.arguments, model.name.rsplit(".", 1)[-1]) if isinstance(model, Thing) else ("",)
    return Recipe(name, source, next(one for one in words if isinstance(one, str)), dict(sorted(_fields(config))))


def _fields(config: Thing) -> Iterator[tuple[str, str]]:
    """Yield the fields that planning reads."""
    meaning = {field for field, name in options_by_field().items() if options()[name].in_import == "read"}
    for section, thing in config.fields.items():
        if section == "mixed_precision":
            yield from _precision(thing)
        elif isinstance(thing, Thing):
            for name, value in thing.fields.items():
                field = f"{section}.{name}"
                if field in meaning or field in DATA.read:
                    yield field, write_override(value)


def _precision(value: Any) -> Iterator[tuple[str, str]]:
    """Yield the precision: its name, or the entries of its object."""
    if not isinstance(value, Thing):
        yield "mixed_precision", write_override(value)
        return
    if value.name.endswith("get_mixed_precision_config"):
        yield "mixed_precision", write_override(value.arguments[0]) if value.arguments else OPEN
    elif not value.name.endswith("MixedPrecisionConfig"):
        yield "mixed_precision", value.name.rsplit(".", 1)[-1]
    for name, entry in value.fields.items():
        yield f"mixed_precision.{name}", write_override(entry)


def write_override(value: Any) -> str:
    """
    Write a value as an override does.

    >>> write_override(True), write_override(None), write_override(["mlp"])
    ('true', 'null', '[mlp]')
    >>> write_override([["embedding", "decoder"], ["decoder", "loss"]])
    'Et|tL'
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return text_of(value)
    if isinstance(value, Thing) and value.name.startswith("torch.") and not value.is_called:
        return value.name
    if isinstance(value, (list, tuple)) and value:
        if all(isinstance(stage, (list, tuple)) and all(layer in LAYERS for layer in stage) for stage in value):
            return "|".join("".join(LAYERS[layer] for layer in stage) for stage in value)
        if all(isinstance(one, (str, int)) for one in value):
            return f"[{','.join(map(str, value))}]"
    return OPEN


def _find_in_library(module: str, name: str) -> Any:
    """Return a recipe of the package that another one builds on; None: unknown."""
    known = _table()
    return partial(_configuration, known[name]) if module.startswith(MODULES) and name in known else None


def _configuration(recipe: Recipe) -> Thing:
    """Return the configuration of a recipe, as far as it is known."""
    config = Thing("ConfigContainer", fields={"model": Thing("Model", (recipe.model,))})
    precision = recipe.fields.get("mixed_precision")
    if precision is not None:
        config.fields["mixed_precision"] = Thing("get_mixed_precision_config", (precision,), is_called=True)
    elif any(name.startswith("mixed_precision.") for name in recipe.fields):
        config.fields["mixed_precision"] = Thing("MixedPrecisionConfig", is_called=True)
    for name, text in recipe.fields.items():
        section, dot, entry = name.partition(".")
        if dot:
            value = Thing(text) if text.startswith("torch.") else UNKNOWN if text == OPEN else read_plain(text)
            config.get(section).fields[entry] = value
    return config


@cache
def _table() -> Mapping[str, Recipe]:
    """
    Return every recipe of the table in the newest release that has it.

    The table has fields of the recipes for pretraining as overrides; ``?`` where a value is known only at run time.
    ``python -m benchmarks.imports.library`` makes it from the wheels of PyPI.
    """
    found: dict[str, Recipe] = {}
    for row in read_rows("bridge/library.csv"):
        fields = dict(one.split("=", 1) for one in row["fields"].split(" "))
        release = row["releases"].split()[-1]
        if row["recipe"] not in found or found[row["recipe"]].source < f"Megatron-Bridge {release}":
            found[row["recipe"]] = Recipe(row["recipe"], f"Megatron-Bridge {release}", row["model"], fields)
    return found
