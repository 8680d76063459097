"""What a pipeline rank holds."""
