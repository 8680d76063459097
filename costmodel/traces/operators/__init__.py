"""Which operators of the cost model a trace recorded, and how long each of their passes took."""

from costmodel.traces.operators.passes import recorded_operators
from costmodel.traces.operators.records import Other, Recorded, RecordedOperators

__all__ = ["Other", "Recorded", "RecordedOperators", "recorded_operators"]
