"""Comparison of the layers in a trace with those of a job."""

from __future__ import annotations

from collections.abc import Iterable

from costmodel.facts.model import Model
from planner.measure.traces.structure.records import Summary


def has_other_layers(found: Summary, layers: Iterable[int], num_microbatches: int, model: Model) -> bool:
    """
    Return True if no pipeline rank of a job has as many passes through layers as a trace, chunks taken together.

    Parameters
    ----------
    found
        Parts of the trace; one without layers never differs.
    layers
        Layers of each rank that the trace may belong to.
    num_microbatches
        Micro-batches of the job.
    model
        Model of the job: layers of multi-token prediction may differ from all others.
    """
    shown, mtp = found.num_layers * found.num_microbatches, len(model.mtp_layers)
    return bool(shown) and all(shown not in (one * num_microbatches, (one - mtp) * num_microbatches) for one in layers)
