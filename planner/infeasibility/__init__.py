"""Reasons why no strategy fits, and the closest strategy."""
