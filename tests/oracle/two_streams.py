"""
A naive simulation of alternating passes: one host thread, a stream of computation and a stream of all-to-alls.

The forward pass of one micro-batch and the backward pass of another go through layers of experts, a part of either by
turns, as in Megatron-LM's combined 1F1B. Kernels of a stream run in the order of their launches. It shares no code with
the cost model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

COMPUTE, COMMUNICATE = "compute", "communicate"

FORWARD = ("attention", "dispatch", "experts", "combine")
BACKWARD = FORWARD[::-1]

TURNS = (
    ("backward", "combine"),
    ("forward", "attention"),
    ("backward", "experts"),
    ("forward", "dispatch"),
    ("backward", "dispatch"),
    ("forward", "experts"),
    ("backward", "attention"),
    ("forward", "combine"),
)
"""Order in which the host launches a layer's parts (megatron-core 0.16, ``TransformerLayerSchedulePlan.run``)."""

APART = tuple((own, part) for own, parts in (("forward", FORWARD), ("backward", BACKWARD)) for part in parts)


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """
    A part of one pass through one layer.

    Parameters
    ----------
    seconds
        Seconds on the device.
    kernels
        Number of equal kernels that the host launches for it.
    """

    seconds: float
    kernels: int


Layer = dict[tuple[str, str], Part]
"""Parts of both passes by the pass and the name of the part."""


def layer_seconds(layer: Layer, *, launch: float, alternates: bool, asks: bool = False, num_layers: int = 40) -> float:
    """
    Seconds of both passes through one of many equal layers, once the first ones have passed.

    Parameters
    ----------
    layer
        Its parts.
    launch
        Seconds in which the host launches a kernel.
    alternates
        True if both passes take turns; otherwise one follows the other on one stream.
    asks
        True if the host waits for attention, to know how many tokens it dispatches.
    num_layers
        Number of layers; the first half is not counted.
    """
    order = TURNS if alternates else APART
    half = num_layers // 2
    ends = _simulate(layer, order, launch=launch, asks=asks, num_layers=num_layers, one_stream=not alternates)
    return (ends[-1] - ends[half - 1]) / (num_layers - half)


def _simulate(
    layer: Layer,
    order: Sequence[tuple[str, str]],
    *,
    launch: float,
    asks: bool,
    num_layers: int,
    one_stream: bool,
) -> list[float]:
    """End of each layer on the device."""
    host, ends = 0.0, []
    streams = {COMPUTE: 0.0, COMMUNICATE: 0.0}
    passes = {"forward": 0.0, "backward": 0.0}  # end of the part before, which the next one needs
    for _ in range(num_layers):
        for own, name in order:
            part = layer[own, name]
            stream = COMMUNICATE if name in ("dispatch", "combine") and not one_stream else COMPUTE
            if asks and (own, name) == ("forward", "dispatch"):
                host = max(host, passes[own])
            end = max(streams[stream], passes[own])
            for _ in range(part.kernels):
                host += launch
                end = max(end, host) + part.seconds / part.kernels
            streams[stream] = passes[own] = end
        ends.append(max(streams.values()))
    return ends
