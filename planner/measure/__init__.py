"""Measuring wing: samples, fits, traces, calibration and projection of small runs."""
