"""What somebody runs, as a job: scripts, argument lists and configurations of several frameworks."""
