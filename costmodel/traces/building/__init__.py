"""Traces of one or more ranks as the graph of an iteration."""

from costmodel.traces.building.all_ranks import execution_graph

__all__ = ["execution_graph"]
