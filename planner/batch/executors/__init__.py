"""Worker pools for the jobs of a batch: local, Dask, Ray."""
