"""Assignment of layers to pipeline stages by frameworks, where it differs from the planner's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from costmodel.facts.framework import Framework

SLOTS_AT_ENDS = 2
"""
Slots of embedding and head if layers do not divide evenly (Megatron-LM: ``account_for_*_in_pipeline_split``).
"""


def framework_stages(framework: Framework, num_layers: int, num_stages: int) -> tuple[int, ...] | None:
    """
    Number of layers of each stage as a framework assigns them; None: as the planner does.

    Derivation: the framework's ``stages`` names the rule. ``filled``: each stage but the last has L / p layers, rounded
    up, the last one the rest, unless p divides L or L + 2 (:func:`recipe_stages`). ``modules``: equally many modules
    per stage, embedding and head among them (:func:`module_stages`). Otherwise None, and
    :func:`costmodel.pipelines.stages.layers_per_chunk` assigns the layers.
    """
    deal = {"filled": recipe_stages, "modules": module_stages}.get(framework.stages)
    return deal(num_layers, num_stages) if deal else None


def recipe_stages(num_layers: int, num_stages: int) -> tuple[int, ...] | None:
    """
    Number of layers of each stage in Megatron-Bridge's recipes, if Megatron-LM cannot split them evenly.

    Megatron-LM splits layers evenly with or without embedding and head as a layer each. Recipes of other models
    (DeepSeek-V3, Kimi-K2: 61 layers) print a layout that fills one stage after the other.

    References
    ----------
    Megatron-Bridge, ``recipes/deepseek/deepseek_v3.py``, ``set_deepseek_v3_pipeline_model_parallel_layout``.

    >>> recipe_stages(61, 8), recipe_stages(126, 16)
    ((8, 8, 8, 8, 8, 8, 8, 5), None)
    """
    if num_layers % num_stages == 0 or (num_layers + SLOTS_AT_ENDS) % num_stages == 0:
        return None
    full = -(-num_layers // num_stages)
    rest = num_layers - full * (num_stages - 1)
    return (*(full,) * (num_stages - 1), rest) if rest >= 0 else None


MODULES_AT_ENDS = (1, 3)
"""
Number of layers that GPT-NeoX's list of modules counts before its layers, and after them.

With 44, 40 and 32 layers the first, the middle and the last of four stages have 11/12/9, 10/11/8 and 8/9/6 (the tables
of arXiv 2509.22832's predictor).
"""


def module_stages(num_layers: int, num_stages: int) -> tuple[int, ...] | None:
    """
    Number of layers of each stage if DeepSpeed splits modules evenly, with the remainder on later stages.

    None if a stage is too short for its end of the model.

    References
    ----------
    DeepSpeed, ``runtime/utils.py``, ``partition_uniform``.

    >>> module_stages(44, 4), module_stages(7, 8)
    ((11, 12, 12, 9), None)
    """
    ahead, behind = MODULES_AT_ENDS
    base, remainder = divmod(num_layers + ahead + behind, num_stages)
    sizes = [base] * (num_stages - remainder) + [base + 1] * remainder
    sizes[0] -= ahead
    sizes[-1] -= behind
    return tuple(sizes) if min(sizes) >= 0 else None


def balance_stages(weights: Sequence[int], num_stages: int) -> tuple[int, ...]:
    """
    First module of each stage, and the end, if the heaviest and the lightest stage differ least.

    Parameters
    ----------
    weights
        Weight of each module: 1 for those that DeepSpeed's ``type:`` names, and 0 for others.
    num_stages
        Stages of the pipeline.

    References
    ----------
    DeepSpeed since 0.12 at the latest, ``runtime/utils.py``, ``partition_balanced``: of equal cuts the last one. Before
    it filled one stage after the other up to the least bottleneck (:data:`MODULES_AT_ENDS`).

    >>> balance_stages([0, 1, 1, 1, 1, 1, 0], 2)
    (0, 4, 7)
    """
    count = len(weights)
    if count <= num_stages:
        return tuple(min(stage, count) for stage in range(num_stages + 1))
    sums = np.concatenate([[0], np.cumsum(weights)])
    most, least = np.full(count + 1, np.inf), np.full(count + 1, np.inf)
    most[0] = 0
    cuts = []
    for _ in range(num_stages):
        before, other = most, least
        most, least, cut = np.full(count + 1, np.inf), np.full(count + 1, np.inf), np.zeros(count + 1, dtype=int)
        for end in range(1, count + 1):
            own = sums[end] - sums[:end]
            high, low = np.maximum(before[:end], own), np.minimum(other[:end], own)
            cut[end] = end - 1 - int(np.argmin((high - low)[::-1]))
            most[end], least[end] = high[cut[end]], low[cut[end]]
        cuts.append(cut)
    bounds = [count]
    for cut in reversed(cuts):
        bounds.append(int(cut[bounds[-1]]))
    return tuple(reversed(bounds))
