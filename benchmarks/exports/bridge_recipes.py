"""
Recipes of Megatron-Bridge with overrides on top, as its training checks them before it starts.

Needs ``megatron-bridge==0.3.1``. Packages that it imports and that are not here have stand-ins, so that all of this is
done in a process of its own.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import io
import json
import multiprocessing
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from multiprocessing.pool import Pool
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks.exports.releases import Finder
from benchmarks.inputs import read_yaml

DATA = read_yaml(__file__)
RECIPES, CHECKPOINTS, MISSING, KERNELS = (DATA["recipes"], DATA["checkpoints"], DATA["missing"], DATA["kernels"])


CONFIGS = Path(__file__).parents[2] / "tests" / "data" / "hf_configs"


@dataclass(frozen=True)
class Given:
    """A recipe's model, overrides of it, those of another plan that were there before, and where it would run."""

    model: str
    overrides: Sequence[str]
    earlier: Sequence[str]
    environment: dict[str, str]
    devices: int


@dataclass(frozen=True)
class Checked:
    """Verdict of the checks on a recipe, its fields afterwards, and the fields that show which overrides existed."""

    complaint: str = ""
    fields: dict[str, Any] = field(default_factory=dict)
    left: tuple[str, ...] = ()


def checked(given: Sequence[Given]) -> list[Checked]:
    """Apply Megatron-Bridge to each recipe with its overrides, in a process of its own, and return its verdicts."""
    return _process().apply(_all_checked, (given,))


@cache
def _process() -> Pool:
    """The process, which ends with this one: to import Megatron-Bridge takes as long as to check dozens of recipes."""
    pool = multiprocessing.get_context("spawn").Pool(1)
    atexit.register(pool.terminate)
    return pool


def _all_checked(given: Sequence[Given]) -> list[Checked]:
    _import_bridge()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return [_checked(one) for one in given]


def _checked(given: Given) -> Checked:
    from megatron.bridge.training.config import runtime_config_update
    from megatron.bridge.training.utils.omegaconf_utils import process_config_with_overrides

    os.environ |= {"WORLD_SIZE": str(given.devices), "RANK": "0"}
    os.environ.pop("NVTE_CPU_OFFLOAD_V1", None)
    os.environ |= given.environment
    try:
        config = process_config_with_overrides(_recipe(given.model), cli_overrides=[*given.overrides])
        twice = process_config_with_overrides(_recipe(given.model), cli_overrides=[*given.earlier])
        twice = process_config_with_overrides(twice, cli_overrides=[*given.overrides])
        once, other = dict(_fields(config)), dict(_fields(twice))
        runtime_config_update(config)
    except Exception as error:
        return Checked(complaint=f"{type(error).__name__}: {error}")
    left = tuple(name for name in once.keys() | other.keys() if once.get(name) != other.get(name))
    return Checked(fields=dict(_fields(config)), left=left)


def _recipe(model: str) -> Any:
    module, name = RECIPES[model].split(":")
    return getattr(importlib.import_module(f"megatron.bridge.recipes.{module}"), f"{name}_pretrain_config")()


def _fields(config: Any) -> Iterator[tuple[str, Any]]:
    """Values that another process can be sent, by section and field."""
    for section, values in vars(config).items():
        for name, value in getattr(values, "__dict__", {}).items():
            plain = isinstance(value, (bool, int, float, str, type(None), list, tuple))
            yield f"{section}.{name}", value if plain and not isinstance(value, (list, tuple)) else str(value)


# --- without Transformer Engine and a GPU ----------------------------------------------------------------------


class FusedAdam:
    """Arguments of Transformer Engine's optimizer, which megatron-core looks at."""

    def __init__(self, master_weight_dtype: Any, exp_avg_dtype: Any, exp_avg_sq_dtype: Any, use_decoupled_grad: Any):
        """Nothing is optimized."""


@cache
def _import_bridge() -> None:
    """Megatron Core as it is without Transformer Engine, then the rest beside stand-ins."""
    import logging

    import torch

    logging.disable(logging.WARNING)
    for module in ("", ".optimizer", ".models.gpt.gpt_model"):
        importlib.import_module(f"megatron.core{module}")
    sys.meta_path.append(Finder(tuple(MISSING)))
    for name, kernels in KERNELS.items():
        vars(importlib.import_module(name)).update(dict.fromkeys(kernels, lambda *_: None))
    vars(importlib.import_module("transformer_engine.pytorch.optimizers"))["FusedAdam"] = FusedAdam
    overlap = importlib.import_module("megatron.bridge.training.comm_overlap")
    transformer = importlib.import_module("megatron.core.transformer.transformer_config")
    for asking in (overlap, transformer):
        vars(asking)["is_te_min_version"] = lambda *_, **__: True
    parser = importlib.import_module("hydra.core.override_parser.overrides_parser").OverridesParser
    parse = cache(lambda word, rule, parse=parser.parse_rule: parse(parser.create(), word, rule))
    parser.parse_rule = lambda _, word, rule: parse(word, rule)  # most words are those of many recipes
    torch.cuda.get_device_properties = lambda *_: SimpleNamespace(major=10, name="NVIDIA B200")
    bridge = importlib.import_module("megatron.bridge").AutoBridge
    bridge.from_hf_pretrained = lambda name, **_: _from_config(bridge, name)


def _from_config(bridge: Any, name: str) -> Any:
    from transformers import CONFIG_MAPPING

    document = json.loads((CONFIGS / f"{CHECKPOINTS[name.split('/')[-1]]}.json").read_text(encoding="utf-8"))
    return bridge.from_hf_config(CONFIG_MAPPING[document["model_type"]].from_dict(document))
