"""Questions that agents ask, with recorded calls, against the answers of the planner's own verbs."""
