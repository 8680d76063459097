"""Models: from their files, and what they count in parameters and FLOPs."""
