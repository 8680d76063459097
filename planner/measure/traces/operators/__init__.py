"""Operators of the cost model in a trace, with the time of each of their passes."""

from planner.measure.traces.operators.passes import Other, TracedOperators, TracedPass
from planner.measure.traces.operators.timing import find_operators

__all__ = ["Other", "TracedOperators", "TracedPass", "find_operators"]
