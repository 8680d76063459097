"""Device profiles: operator and communication times learned from samples, as a device file."""
