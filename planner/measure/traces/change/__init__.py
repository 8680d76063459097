"""Graphs of other configurations, built from a recorded graph."""

from planner.measure.traces.change.edits import faster, remove_launches, remove_overlap
from planner.measure.traces.change.layout import Layout, Network
from planner.measure.traces.change.rebuilding import rebuild_graph
from planner.measure.traces.change.replicas import Replicas
from planner.measure.traces.change.steady import steady
from planner.measure.traces.change.tensor_parallel import add_tensor_parallel, remove_tasks, tensor_parallel_tasks

__all__ = [
    "Layout",
    "Network",
    "Replicas",
    "add_tensor_parallel",
    "faster",
    "rebuild_graph",
    "remove_launches",
    "remove_overlap",
    "remove_tasks",
    "steady",
    "tensor_parallel_tasks",
]
