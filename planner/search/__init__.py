"""From a job to proven strategies."""
