"""Pipelines whose stages differ: what their ranks may hold, branch and bound over them, exchanges of their layers."""
