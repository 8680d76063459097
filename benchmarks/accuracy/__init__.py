"""Predicted against measured: every run of ``benchmarks/measured_runs``, or of any file with its columns."""
