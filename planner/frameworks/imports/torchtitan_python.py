"""
Import of torchtitan from 0.3.0 on: a Python function, read and never executed, as the tables of older releases.

Classes and defaults are those of torchtitan 0.3.0 (torchtitan/config/configs.py, distributed/activation_checkpoint.py).
"""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import Any

from costmodel.errors import SpecError, did_you_mean
from costmodel.validation import shown
from planner.frameworks.imports.bridge.python_source import Function, Thing, is_known, read_module, result_of
from planner.frameworks.imports.finish import newest

CONFIG = ("parallelism", "training", "compile", "checkpoint", "comm")
"""Sections of Trainer.Config with plain values."""

SETTLED = ("parallelism", "training", "activation_checkpoint")
"""Sections that a configuration must set if it changes another one, which is not read."""

MODES = {
    "FullAC": {"mode": "full"},
    "SelectiveAC": {"mode": "selective", "selective_ac_option": "op"},
    "MemoryBudgetAC": {"mode": "memory_budget"},
}
"""Entries of recomputation by its class."""

DEFAULT = object()
"""Mark of a missing value, whose default in Trainer.Config is SelectiveAC."""

REGISTRY = "model_registry"
MODELS = "torchtitan.models."


def is_torchtitan(text: str) -> bool:
    """Tell whether a Python file is a configuration of torchtitan."""
    return "Trainer.Config" in text or "from torchtitan" in text


def read_python(text: str, where: str, name: str = "") -> dict[str, Any]:
    """
    Read a configuration as the tables of older releases.

    Parameters
    ----------
    text
        Source in Python.
    where
        Path of the file, for messages; its folder is the model where the file imports the model from beside it.
    name
        Name of the function; empty: the only one, else the last.

    Raises
    ------
    SpecError
        If there is no such function, or if a degree, a batch, the precision or recomputation is known only at run time.
    """

    def resolver(module: str, one: str) -> Any:
        of_model = module.removeprefix(MODELS) if module.startswith(MODELS) else Path(where).parent.name
        return Thing(f"{of_model.split('.')[0]}.{REGISTRY}") if one == REGISTRY else None

    functions = {
        one: value
        for one, value in read_module(text, where, resolver).items()
        if isinstance(value, Function) and value.node.name == one and not one.startswith("_")
    }
    if name and name not in functions:
        raise SpecError(where, f"has no configuration {shown(name)}.", did_you_mean(name, functions))
    for one in [name] if name else reversed(functions):
        config = result_of(functions[one], where, resolver)
        if isinstance(config, Thing) and {"model_spec", *CONFIG} & {*config.fields}:
            return _tables(config, where)
    raise SpecError(where, "holds no function that returns a Trainer.Config.")


def read_installed(module: str, name: str) -> dict[str, Any]:
    """
    Read a configuration of the installed package.

    Raises
    ------
    SpecError
        If torchtitan is not installed, or has no configuration of that name.
    """
    try:
        root = metadata.distribution("torchtitan").locate_file("torchtitan/models")
        path = Path(str(root)) / module.rsplit(".", 1)[-1] / "config_registry.py"
        text = path.read_text(encoding="utf-8")
    except (metadata.PackageNotFoundError, OSError):
        problem = f"{shown(module)} is Python of torchtitan, which is not installed beside the planner."
        raise SpecError(
            "--module", problem, "Import its config_registry.py instead, with the options as entries."
        ) from None
    return read_python(text, str(path), name)


def _tables(config: Thing, where: str) -> dict[str, Any]:
    changed = config.name.endswith("replace")
    missing = [name for name in SETTLED if name not in config.fields]
    if changed and missing:
        raise SpecError(where, f"changes a configuration that is not read, and says no {missing[0]}.")
    tables: dict[str, Any] = {
        "framework": newest("torchtitan-"),
        "activation_checkpoint": _read_recomputation(config, where),
    }
    for section in CONFIG:
        thing = config.fields.get(section)
        for name, value in thing.fields.items() if isinstance(thing, Thing) else ():
            if is_known(value):
                tables.setdefault(section, {})[name] = value
            elif section in SETTLED and not isinstance(value, Thing):
                raise SpecError(f"{where}: {section}.{name}", "is something that only running it would say.")
    return tables | _model(config.fields.get("model_spec"))


def _read_recomputation(config: Thing, where: str) -> dict[str, str]:
    given = config.fields.get("activation_checkpoint", DEFAULT)
    if given is None or given is DEFAULT:
        return {"mode": "none"} if given is None else MODES["SelectiveAC"]
    kind = given.name.removesuffix(".Config").rsplit(".", 1)[-1] if isinstance(given, Thing) else ""
    if kind not in MODES:
        raise SpecError(f"{where}: activation_checkpoint", "is something that only running it would say.")
    return MODES[kind]


def _model(spec: Any) -> dict[str, Any]:
    """Return the model's name and flavor, and the converters of its layers."""
    if not isinstance(spec, Thing) or not spec.arguments or not isinstance(spec.arguments[-1], str):
        return {}
    model: dict[str, Any] = {"name": spec.name.split(".")[0], "flavor": spec.arguments[-1]}
    tables: dict[str, Any] = {"model": model}
    for converter in spec.fields.get("converters") or []:
        kind = converter.name if isinstance(converter, Thing) else ""
        if "Float8Linear" in kind:
            model["converters"] = ["quantize.linear.float8"]
            recipe = converter.fields.get("recipe_name", "rowwise")
            tables["quantize"] = {"linear": {"float8": {"recipe_name": recipe}}}
        elif "MXFP8Linear" in kind:
            model["converters"] = ["quantize.linear.mx"]
        elif "NVFP4" in kind or not kind:
            raise SpecError(
                "model_spec.converters", f"has {shown(kind)}, whose precision torchtitan's entry does not have."
            )
    return tables
