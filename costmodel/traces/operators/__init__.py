"""Operators of the cost model in a trace, with the time of each of their passes."""

from costmodel.traces.operators.records import Other, TracedOperators, TracedPass
from costmodel.traces.operators.timing import traced_operators

__all__ = ["Other", "TracedOperators", "TracedPass", "traced_operators"]
