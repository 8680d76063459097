"""Layers of each pipeline stage as Megatron-LM's options, written and read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from constraints.rules.targets import full_by_block
from costmodel.errors import SpecError
from costmodel.facts.model import Model
from costmodel.pipelines.stages import settle_layout, stage_layers
from costmodel.strategy import StageLayout, Strategy, Vocabulary
from costmodel.validation import shown
from planner.frameworks.megatron.options import WHERE

LAYOUT = "--pipeline-model-parallel-layout"
LAST = "--decoder-last-pipeline-num-layers"
FIRST = "--decoder-first-pipeline-num-layers"
CHUNKS = "--num-virtual-stages-per-pipeline-rank"
CHUNK_LAYERS = "--num-layers-per-virtual-pipeline-stage"
COUNTED = ("--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split")

MOST_STAGES = 4096
"""Most stages of a layout; a model has no more layers."""


# --- writing -----------------------------------------------------------------------------------------------


def stage_entries(strategy: Strategy, model: Model) -> dict[str, Any]:
    """
    Return the options that place the layers of a strategy on its stages.

    Megatron-LM divides layers evenly by default, with multi-token prediction on the last stage; any other placement is
    written as a custom pipeline layout.

    References
    ----------
    Megatron-LM, megatron/core/transformer/transformer_block.py, get_num_layers_to_build (of megatron-core 0.16.1).
    """
    layers, last = stage_layers(strategy, model), last_stage_layers(strategy, model)
    if len(layers) == 1:
        return {}
    if last is not None:
        return {LAST: last}
    if len(set(layers)) == 1 and strategy.vocabulary == Vocabulary.ENDS:
        return {CHUNKS: strategy.vpp} if strategy.vpp > 1 else {}
    return {LAYOUT: layout_text(layers, mtp_layers=len(model.mtp_layers))}


def uneven_stages(strategy: Strategy, model: Model) -> Iterator[str]:
    """Yield a note with the layers of each stage where they differ."""
    layers = stage_layers(strategy, model)
    if len(set(layers)) > 1:
        chunks = f", {strategy.vpp} chunks per pipeline rank in model order" if strategy.vpp > 1 else ""
        yield f"Layers on stages{chunks}: {', '.join(map(str, layers))}; strategy.layout says others."


def last_stage_layers(strategy: Strategy, model: Model) -> int | None:
    """Number of layers of the last stage where it alone determines redistributed layers; else None."""
    layers = stage_layers(strategy, model)
    is_explicit = strategy.vocabulary == Vocabulary.REDISTRIBUTED and strategy.layout is None and strategy.pp > 1
    return layers[-1] if is_explicit and layers[-1] and len(set(layers[:-1])) == 1 else None


def layout_text(layers: Sequence[int], *, mtp_layers: int) -> str:
    """
    Write stages as a ``--pipeline-model-parallel-layout``: E embedding, t layer, m multi-token prediction, L loss.

    >>> layout_text([7, 8, 8, 8, 7], mtp_layers=0), layout_text([1, 2, 0, 0], mtp_layers=1)
    ('Et*7|(t*8|)*3t*7L', 'Et|t*2|(|)*1mL')

    References
    ----------
    Megatron-LM, megatron/core/transformer/pipeline_parallel_layer_layout.py, parse_str_to_list.
    """
    first, *inner, last = (_times("t", count) for count in layers)
    runs = [(text, len(list(group))) for text, group in groupby(inner)]
    middle = "".join(f"({text}|)*{count}" if count > 1 or not text else f"{text}|" for text, count in runs)
    return f"E{first}|{middle}{last}{_times('m', mtp_layers)}L"


def _times(letter: str, count: int) -> str:
    return letter * count if count < 2 else f"{letter}*{count}"


# --- reading -----------------------------------------------------------------------------------------------


def read_stages(arguments: Mapping[str, Any], model: Model, pp: int) -> tuple[int, tuple[int, ...]]:
    """
    Return VPP, and the layers of each virtual stage in model order.

    Raises
    ------
    SpecError
        If options contradict each other or the model, as in Megatron-LM's own checks.
    """
    spellings = [name for name in (CHUNKS, CHUNK_LAYERS, LAYOUT) if name in arguments]
    if len(spellings) > 1:
        raise SpecError(f"{WHERE}.{spellings[1]}", f"is given with {spellings[0]}; one of them says the stages.")
    uneven = [name for name in (FIRST, LAST) if name in arguments]
    counted = [name for name in COUNTED if name in arguments]
    if LAYOUT in arguments:
        if uneven or counted:
            raise SpecError(f"{WHERE}.{LAYOUT}", f"is given with {(*uneven, *counted)[0]}; it says all stages.")
        layers = read_layout(arguments[LAYOUT], model)
        if len(layers) % pp:
            raise SpecError(f"{WHERE}.{LAYOUT}", f"has {len(layers)} stages, no multiple of {pp} pipeline ranks.")
        return len(layers) // pp, layers
    if uneven:
        return _uneven(arguments, model, pp)
    return _even(arguments, model, pp)


def _even(arguments: Mapping[str, Any], model: Model, pp: int) -> tuple[int, tuple[int, ...]]:
    ends = [int(name in arguments) for name in COUNTED]
    slots = model.num_layers + sum(ends)
    if slots % pp:
        raise SpecError(f"{WHERE}.--num-layers", f"{slots} layers do not divide over {pp} pipeline ranks.")
    of_rank = slots // pp
    by_layers = arguments.get(CHUNK_LAYERS, of_rank)
    if by_layers < 1 or of_rank % by_layers:
        raise SpecError(f"{WHERE}.{CHUNK_LAYERS}", f"is {by_layers}; a pipeline rank has {of_rank} layers.")
    vpp = arguments.get(CHUNKS, of_rank // by_layers)
    if vpp < 1 or of_rank % vpp:
        raise SpecError(f"{WHERE}.{CHUNKS}", f"is {vpp}; a pipeline rank has {of_rank} layers.")
    layers = [of_rank // vpp] * (pp * vpp)
    layers[0] -= ends[0]
    layers[-1] -= ends[1]
    return vpp, tuple(layers)


def _uneven(arguments: Mapping[str, Any], model: Model, pp: int) -> tuple[int, tuple[int, ...]]:
    """Return VPP and layers of stages with an uneven first or last rank; all chunks of a rank are equal."""
    if CHUNK_LAYERS in arguments:
        raise SpecError(f"{WHERE}.{CHUNK_LAYERS}", "is given with an uneven first or last stage.", f"Use {CHUNKS}.")
    if any(name in arguments for name in COUNTED):
        raise SpecError(f"{WHERE}.{COUNTED[0]}", "embedding and loss are counted with an uneven first or last stage.")
    vpp, first, last = arguments.get(CHUNKS, 1), arguments.get(FIRST), arguments.get(LAST)
    given = [count for count in (first, last) if count is not None]
    middle, ranks = model.num_layers - sum(given), pp - len(given)
    of_middle = middle // max(ranks, 1)
    ranks_layers = [
        *([first] if first is not None else []),
        *[of_middle] * ranks,
        *([last] if last is not None else []),
    ]
    if ranks < 0 or sum(ranks_layers) != model.num_layers or min(ranks_layers) < 1:
        problem = f"leaves {middle} layers, which do not divide over the other {ranks} pipeline ranks."
        raise SpecError(f"{WHERE}.{FIRST if first is not None else LAST}", problem)
    if any(count % vpp for count in ranks_layers):
        raise SpecError(f"{WHERE}.{CHUNKS}", f"is {vpp}, which does not divide {ranks_layers} layers.")
    return vpp, tuple(count // vpp for count in ranks_layers) * vpp


def read_layout(text: str, model: Model) -> tuple[int, ...]:
    """
    Read the layers of each stage of a layout.

    Raises
    ------
    SpecError
        If it breaks the grammar or does not fit the model.
    """
    stages = _expand_products(text).split("|")
    flat = "".join(stages)
    counts = {letter: flat.count(letter) for letter in "Etm"}
    wanted = {"E": 1, "t": model.num_layers, "m": len(model.mtp_layers)}
    unlike = [letter for letter, count in wanted.items() if counts[letter] != count]
    where = f"{WHERE}.{LAYOUT}"
    if unlike:
        letter = unlike[0]
        raise SpecError(
            where, f"has {counts[letter]} of '{letter}', but the model needs {wanted[letter]}: {shown(text)}."
        )
    if not flat.startswith("E") or not flat.endswith("L") or flat.count("L") != 1:
        raise SpecError(
            where, f"must begin with its only E (embedding) and end with its only L (loss), got {shown(text)}."
        )
    elsewhere = any("m" in stage for stage in stages[:-1])
    if "m" in flat and (elsewhere or not re.fullmatch(r"E?t*m+L", stages[-1])):
        problem = "has MTP layers (m) outside the stage of the loss (L), where alone they are costed"
        raise SpecError(where, f"{problem}: {shown(text)}.")
    return tuple(stage.count("t") for stage in stages)


def _expand_products(text: str) -> str:
    """Expand the products of a layout: those of parentheses, then those of letters."""
    plain = text.replace(",", "").replace(" ", "")
    for pattern in (r"\(([^)]+)\)\*(\d{1,4})", r"(.)\*(\d{1,4})"):
        plain = re.sub(pattern, lambda found: found.group(1) * int(found.group(2)), plain)
        if len(plain) > 4 * MOST_STAGES:
            raise SpecError(f"{WHERE}.{LAYOUT}", f"has more than {MOST_STAGES} stages or layers: {shown(text)}.")
    if not re.fullmatch(r"[EtmL|]+", plain):
        problem = "expected E, t, m, L, |, x*n and (...)*n"
        raise SpecError(f"{WHERE}.{LAYOUT}", f"{problem}, got {shown(text)}.")
    return plain


def place_layers(strategy: Strategy, model: Model, arguments: Mapping[str, Any], layers: tuple[int, ...]) -> Strategy:
    """Place the layers on these stages in the simplest form: even, redistributed, or a custom pipeline layout."""
    written = StageLayout(
        layers=layers,
        recompute=(strategy.recompute,) * strategy.pp,
        full_layers=full_by_block(arguments.get("--recompute-num-layers", 0), layers, strategy.pp)
        if arguments.get("--recompute-method") == "block"
        else (0,) * strategy.pp,
        activation_offload=(strategy.activation_offload,) * strategy.pp,
    )
    moved = replace(strategy, vocabulary=Vocabulary.REDISTRIBUTED)
    can_move = strategy.vpp == 1 and strategy.pp > 1 and not model.mtp_layers and not any(written.full_layers)
    is_moved = can_move and layers == stage_layers(moved, model)
    found = settle_layout(strategy, model, written)
    if is_moved and (LAST in arguments or (found.layout is not None and last_stage_layers(moved, model) is None)):
        return moved
    return found
