"""Who works on the jobs of a batch."""
