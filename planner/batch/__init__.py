"""Many jobs: where they come from, workers that may die, a results file that does not, and what ranks them."""
