"""Operators, and the protocol of sources that time them."""
