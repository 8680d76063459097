"""Jobs as mappings, of the numbers that a line of ``planner plan`` has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def a_document(
    model: Any,
    devices: str,
    *,
    batch: int,
    sequence: int,
    tokens: float = 1e12,
    cluster: Mapping[str, Any] | None = None,
    training: Mapping[str, Any] | None = None,
    **sections: Any,
) -> dict[str, Any]:
    """Return a job of so many devices, such as ``16xh100``, with other entries of its sections and other sections."""
    number, _, device = devices.partition("x")
    return {
        "model": model,
        "cluster": {"device": device, "num_devices": int(number), **(cluster or {})},
        "training": {"global_batch_size": batch, "sequence_length": sequence, "tokens": tokens, **(training or {})},
        **sections,
    }
