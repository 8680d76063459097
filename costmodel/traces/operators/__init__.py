"""Which operators of the cost model a trace recorded, and how long each of their passes took."""

from costmodel.traces.operators.records import Other, TracedOperators, TracedPass
from costmodel.traces.operators.timing import traced_operators

__all__ = ["Other", "TracedOperators", "TracedPass", "traced_operators"]
