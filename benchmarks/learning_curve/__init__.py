"""What own runs are worth on a stack that no fit has seen."""
