"""What a profiler trace says to people and to the planner."""
