"""From a job file to facts."""
