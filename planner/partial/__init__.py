"""Completion of strategies that are given in part."""
