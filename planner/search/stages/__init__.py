"""Uneven pipeline stages: possible contents of ranks, branch and bound over them, exchanges of their layers."""
