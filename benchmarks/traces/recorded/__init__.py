"""Traces of small transformers' steps, recorded on this machine beside the same steps without the profiler."""
