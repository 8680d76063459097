"""What the release of the framework that a job names does not have (``planner catalog frameworks``)."""

from __future__ import annotations

from constraints.rule import Holds, Ints
from costmodel.features import has_values
from costmodel.spec import Cluster


def release_has_the_token_dispatcher(cluster: Cluster, *, token_dispatcher: Ints) -> Holds:
    """The framework's release has the token dispatcher (cluster.framework)."""
    return has_values(cluster.framework, "token_dispatcher", token_dispatcher)


def release_captures_cuda_graphs(cluster: Cluster, *, cuda_graphs: Ints) -> Holds:
    """The framework's release captures CUDA graphs of that scope (cluster.framework)."""
    return has_values(cluster.framework, "cuda_graphs", cuda_graphs)
