"""Profiler traces for users and the planner: contents, replays, comparisons, and samples extracted from them."""
