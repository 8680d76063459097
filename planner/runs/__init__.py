"""Measured runs: a table of them read, each row as facts and a strategy, predicted."""
