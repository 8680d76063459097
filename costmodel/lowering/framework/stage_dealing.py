"""Assignment of layers to pipeline stages by frameworks, where it differs from the planner's."""

from __future__ import annotations

from costmodel.facts.framework import Framework

SLOTS_AT_ENDS = 2
"""
Slots of embedding and head if layers do not divide evenly (Megatron-LM: ``account_for_*_in_pipeline_split``).
"""


def dealt_stages(framework: Framework, num_layers: int, num_stages: int) -> tuple[int, ...] | None:
    """
    Number of layers of each stage as a framework assigns them; None: as the planner does.

    Derivation: the framework's ``stages`` names the rule. ``filled``: each stage but the last has L / p layers, rounded
    up, the last one the rest, unless p divides L or L + 2 (:func:`filled_stages`). ``modules``: equally many modules
    per stage, embedding and head among them (:func:`module_stages`). Otherwise None, and
    :func:`costmodel.pipelines.stages.layers_per_chunk` assigns the layers.
    """
    deal = {"filled": filled_stages, "modules": module_stages}.get(framework.stages)
    return deal(num_layers, num_stages) if deal else None


def filled_stages(num_layers: int, num_stages: int) -> tuple[int, ...] | None:
    """
    Number of layers of each stage in Megatron-Bridge's recipes, if Megatron-LM cannot split them evenly.

    Megatron-LM splits layers evenly with or without embedding and head as a layer each. Recipes of other models
    (DeepSeek-V3, Kimi-K2: 61 layers) print a layout that fills one stage after the other.

    References
    ----------
    Megatron-Bridge, ``recipes/deepseek/deepseek_v3.py``, ``set_deepseek_v3_pipeline_model_parallel_layout``.

    >>> filled_stages(61, 8), filled_stages(126, 16)
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
