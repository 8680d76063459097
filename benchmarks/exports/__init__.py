"""Exports against the parsers of the frameworks that they are for."""
