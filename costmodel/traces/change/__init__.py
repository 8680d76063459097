"""Graphs of other configurations, made of the graph of a recorded one."""

from costmodel.traces.change.layout import Layout
from costmodel.traces.change.rebuilding import rebuilt

__all__ = ["Layout", "rebuilt"]
