"""Graphs of other configurations, built from a recorded graph."""

from costmodel.traces.change.edits import faster, remove_launches, remove_overlap
from costmodel.traces.change.layout import Layout, Network
from costmodel.traces.change.rebuilding import rebuilt
from costmodel.traces.change.replicas import Replicas
from costmodel.traces.change.steady import steady
from costmodel.traces.change.tensor_parallel import add_tensor_parallel, remove_tasks, tensor_parallel_tasks

__all__ = [
    "Layout",
    "Network",
    "Replicas",
    "add_tensor_parallel",
    "faster",
    "rebuilt",
    "remove_launches",
    "remove_overlap",
    "remove_tasks",
    "steady",
    "tensor_parallel_tasks",
]
