"""Whether a trace shows as many passes through layers as a job has."""

from __future__ import annotations

from collections.abc import Iterable

from costmodel.facts.model import Model
from costmodel.traces.structure.records import Summary


def has_other_layers(found: Summary, layers: Iterable[int], num_microbatches: int, model: Model) -> bool:
    """
    Whether no pipeline rank of a job has as many passes through layers as a trace shows, chunks taken together.

    Parameters
    ----------
    found
        What the trace is made of; one that shows no layers says nothing.
    layers
        Layers of each rank that the trace may be of.
    num_microbatches
        Of the job.
    model
        Its model: layers of multi-token prediction may look like none of the others.
    """
    shown, mtp = found.num_layers * found.num_microbatches, len(model.mtp_layers)
    return bool(shown) and all(shown not in (one * num_microbatches, (one - mtp) * num_microbatches) for one in layers)
