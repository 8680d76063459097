"""Errors of predictions against measurements."""
