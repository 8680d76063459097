"""The rule that a calibration made of measured operators covers the shapes of a strategy."""

from __future__ import annotations

import numpy as np

from constraints.rule import Flags, Holds, Ints
from costmodel.facts.device import Cluster
from costmodel.facts.model import Model
from costmodel.facts.workload import Workload
from costmodel.step.compute import layer_seconds
from costmodel.step.embedding_head import embedding_head_seconds
from costmodel.strategy import CudaGraphs, TokenDispatcher, Vocabulary
from costmodel.tables import Facts, lookup


def profile_has_measured_the_shapes(
    model: Model,
    cluster: Cluster,
    workload: Workload,
    *,
    tp: Ints,
    cp: Ints,
    ep: Ints,
    etp: Ints,
    mbs: Ints,
    sequence_parallel: Flags,
) -> Holds:
    """The device's calibration has measured operators of these shapes, or computes their times."""
    if cluster.device.constants.times != "measured":
        return True
    facts = Facts(model=model, cluster=cluster, workload=workload)
    degrees = {"tp": tp, "cp": cp, "dp": 1, "ep": ep, "etp": etp, "mbs": mbs, "sequence_parallel": sequence_parallel}
    whole = {"pp": 1, "vocabulary": Vocabulary.ENDS, "cuda_graphs": CudaGraphs.NONE}
    layer = degrees | {"token_dispatcher": TokenDispatcher.ALLTOALL, "cuda_graphs": CudaGraphs.NONE}
    layers, edges = lookup(layer_seconds, facts, layer), lookup(embedding_head_seconds, facts, degrees | whole)
    return np.logical_and(np.isfinite(layers.forward).all(axis=-1), np.isfinite(edges.head))
