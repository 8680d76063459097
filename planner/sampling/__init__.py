"""Operators measured on the user's machine, and times learned from them."""
