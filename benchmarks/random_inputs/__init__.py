"""Random inputs: whether anything that one may hand to the planner makes it fail, hang, or run what it was given."""
