"""What own runs are worth on a stack left out of the fit."""
