"""Graphs of other configurations, made of the graph of a recorded one."""

from costmodel.traces.change.edits import faster, without_launches, without_overlap
from costmodel.traces.change.layout import Layout, Network
from costmodel.traces.change.rebuilding import rebuilt

__all__ = ["Layout", "Network", "faster", "rebuilt", "without_launches", "without_overlap"]
