"""Measured operators: each makes calls of torch, on inputs of its own."""
