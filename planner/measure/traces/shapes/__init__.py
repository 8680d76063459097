"""Operators and kernels of a trace, timed at other sizes."""

from planner.measure.traces.shapes.retiming import Retimed, Rule, retime_tasks
from planner.measure.traces.shapes.sizes import HIDDEN, Sizes, message_factors, sizes_of

__all__ = ["HIDDEN", "Retimed", "Rule", "Sizes", "message_factors", "retime_tasks", "sizes_of"]
