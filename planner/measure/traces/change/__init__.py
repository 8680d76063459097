"""Graphs of other configurations, built from a recorded graph."""

from planner.measure.traces.change.edits import (
    add_tensor_parallel,
    faster,
    remove_launches,
    remove_overlap,
    remove_tasks,
    tensor_parallel_tasks,
)
from planner.measure.traces.change.layout import Layout, Network, Replicas
from planner.measure.traces.change.rebuilding import rebuild_graph
from planner.measure.traces.replay import steady

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
