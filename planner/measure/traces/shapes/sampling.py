"""Ratio of an operator's sampled times in two jobs."""

from __future__ import annotations

from collections.abc import Mapping

from costmodel.timing.sampled_source import SampledPasses
from planner.measure.traces.shapes.kinds import Alike

DTYPES: Mapping[str, str] = {"c10::BFloat16": "bf16", "c10::Half": "fp16", "float": "fp32"}
"""Names of types in samples."""


def find_sampled_ratio(one: Alike, samples: SampledPasses) -> float | None:
    """
    Return the sampled time of an operator in the other job over that in the recorded one; None where none is sampled.

    Each matmul of a trace counts as a forward matmul of its sizes, and attention as causal.

    Parameters
    ----------
    one
        The operator.
    samples
        Samples of the same machine.
    """
    shape = one.shape
    if shape is None or shape.kind not in ("matmul", "attention") or shape.dtype not in DTYPES:
        return None
    is_backward = shape.kind == "attention" and "backward" in one.operator
    is_batched = shape.expected == "batched matmul"
    name = "batched_matmul" if is_batched else shape.kind
    known = samples.get(name, "backward" if is_backward else "forward", DTYPES[shape.dtype])
    if known is None:
        return None
    (before,), (after,) = shape.sizes, one.explained
    columns = _attention if shape.kind == "attention" else _matmul
    seconds = [float(known.seconds(columns(sizes))) for sizes in (before, after.after)]
    return seconds[1] / seconds[0]


def _matmul(sizes: tuple[float, ...]) -> dict[str, float]:
    m, n, k, *batch = sizes
    return {"m": m, "n": n, "k": k} | ({"batch": batch[0]} if batch else {})


def _attention(sizes: tuple[float, ...]) -> dict[str, float]:
    """Name the sizes of PyTorch's queries: sequences, heads, tokens, width; keys are assumed to have as many heads."""
    *_, heads, queries, width, keys = (1.0, *sizes)
    sequences = sizes[0] if len(sizes) > 4 else 1.0
    return {
        "sequences": sequences,
        "queries": queries,
        "keys": keys,
        "heads": heads,
        "kv_heads": heads,
        "qk_head_dim": width,
        "v_head_dim": width,
        "causal": 1.0,
    }
