"""Graphs of other configurations, built from a recorded graph."""

from costmodel.traces.change.edits import faster, without_launches, without_overlap
from costmodel.traces.change.layout import Layout, Network
from costmodel.traces.change.rebuilding import rebuilt
from costmodel.traces.change.replicas import Replicas
from costmodel.traces.change.steady import steady
from costmodel.traces.change.tensor_parallel import tensor_parallel_tasks, with_tensor_parallel, without_tasks

__all__ = [
    "Layout",
    "Network",
    "Replicas",
    "faster",
    "rebuilt",
    "steady",
    "tensor_parallel_tasks",
    "with_tensor_parallel",
    "without_launches",
    "without_overlap",
    "without_tasks",
]
