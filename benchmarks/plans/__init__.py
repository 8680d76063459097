"""Check that plans are ones that people would run."""
