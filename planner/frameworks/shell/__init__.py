"""Shell scripts read, never run: what their commands would be."""
