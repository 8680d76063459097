"""Groups of ranks, and the time of their communication."""
