"""Which operators of the cost model a trace recorded, and how long each of their passes took."""

from costmodel.traces.operators.records import Other, Recorded, RecordedOperators
from costmodel.traces.operators.timing import recorded_operators

__all__ = ["Other", "Recorded", "RecordedOperators", "recorded_operators"]
