"""Operators measured on the user's own machine: which, how, the table that they go to, and times learned from it."""
