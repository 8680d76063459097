"""Many jobs: where they come from, workers whose death costs one job only, a results file, and what ranks the jobs."""
