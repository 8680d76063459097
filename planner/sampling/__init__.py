"""Operators measured on the user's own machine: which, how, and the table that they go to."""
