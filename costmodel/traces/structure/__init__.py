"""What each event of a trace is part of: iteration, phase, micro-batch, layer."""

from costmodel.traces.structure.finding import parts
from costmodel.traces.structure.records import Parts, Phase, Role, Summary

__all__ = ["Parts", "Phase", "Role", "Summary", "parts"]
