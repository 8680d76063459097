"""Measured runs: a table of them is read, each row as facts and a strategy, and predicted."""
