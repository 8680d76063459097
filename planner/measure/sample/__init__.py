"""Measurement of operators on the user's machine: points to measure, timing, and the table of samples."""
