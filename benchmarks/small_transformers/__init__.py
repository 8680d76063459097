"""Training steps of small transformers, measured on this machine beside the planner's predictions."""
