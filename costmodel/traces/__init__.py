"""Profiler traces: read, as a graph, replayed, changed."""
