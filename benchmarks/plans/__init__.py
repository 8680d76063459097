"""Whether plans are ones that people would run."""
