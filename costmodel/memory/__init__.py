"""Memory of a pipeline rank."""
