"""Many jobs: their sources, workers that fail one job at a time, a results file, and a ranking."""
