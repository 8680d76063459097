"""Profiler traces: read, built into graphs, replayed, and changed."""
