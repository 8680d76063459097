"""Traces of PyTorch's profiler, read by streaming."""

from planner.measure.traces.reading.files import read_recordings, read_trace, read_traces, runs_of

__all__ = ["read_recordings", "read_trace", "read_traces", "runs_of"]
