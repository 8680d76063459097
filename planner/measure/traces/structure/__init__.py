"""Parts of a training step to which each event of a trace belongs: iteration, phase, micro-batch, layer."""

from planner.measure.traces.structure.finding import parts
from planner.measure.traces.structure.records import Parts, Phase, Role

__all__ = ["Parts", "Phase", "Role", "parts"]
