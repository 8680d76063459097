"""Graph of an iteration, built from the traces of one or more ranks."""

from planner.measure.traces.building.all_ranks import execution_graph

__all__ = ["execution_graph"]
