"""Many searches."""
