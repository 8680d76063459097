"""Import of configurations that runs print and save."""
