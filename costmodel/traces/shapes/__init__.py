"""Operators and kernels of a trace timed at other sizes."""

from costmodel.traces.shapes.retiming import Retimed, Rule, retimed
from costmodel.traces.shapes.sizes import Sizes, sizes_of

__all__ = ["Retimed", "Rule", "Sizes", "retimed", "sizes_of"]
