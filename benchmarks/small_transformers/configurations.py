"""Small transformers and their steps as data, and each as a job of the planner."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any, Literal

import yaml

from costmodel.errors import SpecError
from costmodel.facts.fields import Count, CountOrZero
from costmodel.record import strict_record
from costmodel.validation import build

FILE = Path(__file__).parent / "configurations.yaml"

TOKENS = 1e9
"""Tokens of the whole training, which a job must state and no step depends on."""

FRAMEWORK: Mapping[str, Any] = {
    "base": "torchtitan-0.3",
    "behaviour": {"kernels": {"fused_projections": True}},
}
"""
Plain PyTorch as a release of the catalog: torchtitan is it, with queries, keys and values as one linear, gate and up as
another, and eager kernels (``SETTINGS``) in place of compiled ones.
"""

SETTINGS: Mapping[str, Any] = {"kernels": "eager"}

PLAIN: Mapping[str, Any] = {"sharding": "none", "dp_overlap": False, "sequence_parallel": False}
"""Gradients are whole, and reduced when the last micro-batch is done."""


@strict_record(frozen=True, kw_only=True, slots=True)
class Configuration:
    """
    A decoder-only transformer and one training step of it; names are those of the planner's jobs.

    Parameters
    ----------
    name
        Name in tables.
    num_layers, hidden_size, num_heads, num_kv_heads, ffn_hidden_size, vocab_size
        The model: RMSNorm, rotary position, gated feed-forward of SiLU, embedding and head apart. With experts
        ``ffn_hidden_size`` is the width of each.
    num_experts, top_k
        Experts of each layer and how many a token visits; 0: a dense model.
    sequence_length, mbs, num_microbatches
        Tokens of a sequence, sequences of a micro-batch, micro-batches of a step and rank.
    recompute
        True if the backward pass recomputes layers.
    dp
        Data-parallel ranks, a process each.
    """

    name: str
    num_layers: Count
    hidden_size: Count
    num_heads: Count
    num_kv_heads: Count
    ffn_hidden_size: Count
    vocab_size: Count
    num_experts: CountOrZero = 0
    top_k: CountOrZero = 0
    sequence_length: Count
    mbs: Count
    num_microbatches: Count = 1
    recompute: Literal["none", "full"] = "none"
    dp: Count = 1

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        return self.hidden_size // self.num_heads

    @property
    def rows(self) -> int:
        """Tokens of a micro-batch."""
        return self.mbs * self.sequence_length

    @property
    def global_batch_size(self) -> int:
        """Sequences of a step."""
        return self.mbs * self.num_microbatches * self.dp

    @property
    def num_parameters(self) -> int:
        """Number of parameters of the whole model."""
        return sum(prod(shape) for shape in weight_shapes(self).values())


def configurations(part: str = "measured", path: Path = FILE) -> tuple[Configuration, ...]:
    """
    The configurations of a part of the file: ``measured`` or ``sampled``.

    Raises
    ------
    SpecError
        If the file has no such part, or one of them is wrong or appears twice.
    """
    parts = yaml.safe_load(path.read_text(encoding="utf-8"))
    if part not in parts:
        raise SpecError(part, f"no such part; {path.name} has {', '.join(parts)}.")
    found = tuple(build(Configuration, one, f"{part}.{number}") for number, one in enumerate(parts[part]))
    for one in found:
        _require_whole(one)
    twice = [name for name, number in Counter(one.name for one in found).items() if number > 1]
    if twice:
        raise SpecError(part, f"has {', '.join(twice)} twice.")
    return found


def _require_whole(one: Configuration) -> None:
    if one.hidden_size % one.num_heads or one.head_dim % 2 or one.num_heads % one.num_kv_heads:
        raise SpecError(f"{one.name}.num_heads", "heads must divide the width, key-value heads the heads.")
    if not one.num_experts >= one.top_k or bool(one.num_experts) != bool(one.top_k):
        raise SpecError(f"{one.name}.top_k", "experts come with how many of them a token visits.")


def weight_shapes(one: Configuration) -> dict[str, tuple[int, ...]]:
    """
    Name and shape of every weight: outputs, then inputs; those of experts behind one another.

    >>> sum(name.startswith("layers.1.") for name in weight_shapes(configurations()[0]))
    6
    """
    width, heads = one.hidden_size, one.num_heads + 2 * one.num_kv_heads
    experts = (one.num_experts,) if one.num_experts else ()
    layer = {
        "attention_norm": (width,),
        "qkv": (heads * one.head_dim, width),
        "output_projection": (width, one.num_heads * one.head_dim),
        "feed_forward_norm": (width,),
        **({"router": (one.num_experts, width)} if experts else {}),
        "up": (*experts, 2 * one.ffn_hidden_size, width),
        "down": (*experts, width, one.ffn_hidden_size),
    }
    layers = {f"layers.{index}.{name}": shape for index in range(one.num_layers) for name, shape in layer.items()}
    ends = (one.vocab_size, width)
    return {"embedding": ends, **layers, "final_norm": (width,), "head": ends}


def job_of(one: Configuration, device: str, *, precision: str | Mapping[str, Any] = "bf16") -> dict[str, Any]:
    """
    The job whose step ``planner estimate`` costs.

    Parameters
    ----------
    one
        The configuration.
    device
        Name of the catalog or path of a device file: what one rank has, a core or a GPU.
    precision
        Precision of the step, as a job's ``training.precision``.
    """
    strategy = {
        "dp": one.dp,
        "tp": 1,
        "cp": 1,
        "pp": 1,
        "ep": 1,
        "etp": 1,
        "mbs": one.mbs,
        "recompute": one.recompute,
        **PLAIN,
    }
    return {
        "model": _description(one),
        "cluster": {"device": device, "num_devices": one.dp, "framework": dict(FRAMEWORK)},
        "training": {
            "global_batch_size": one.global_batch_size,
            "sequence_length": one.sequence_length,
            "tokens": TOKENS,
            "precision": precision,
        },
        "settings": dict(SETTINGS),
        "search": {"pin": {name: strategy[name] for name in ("tp", "ep", "etp", "mbs")}},
        "strategy": strategy,
    }


def _description(one: Configuration) -> dict[str, Any]:
    names = ("num_layers", "hidden_size", "num_heads", "num_kv_heads", "vocab_size")
    experts = {
        "num_experts": one.num_experts,
        "top_k": one.top_k,
        "expert_ffn_hidden_size": one.ffn_hidden_size,
    }
    own = experts if one.num_experts else {"ffn_hidden_size": one.ffn_hidden_size}
    return {"name": one.name, **{name: getattr(one, name) for name in names}, **own}
