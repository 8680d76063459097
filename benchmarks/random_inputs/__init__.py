"""Random inputs: whether anything that somebody may hand to the planner makes it fail, hang, or run what it was given."""
