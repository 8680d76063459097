"""Random jobs for every target: each plan exports, or the job is refused before it is searched."""
