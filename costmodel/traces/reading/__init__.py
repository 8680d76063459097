"""Traces of PyTorch's profiler, read by streaming."""

from costmodel.traces.reading.files import read_trace, read_traces

__all__ = ["read_trace", "read_traces"]
