"""Worth of own runs on a stack left out of the fit."""
