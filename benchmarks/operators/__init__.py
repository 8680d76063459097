"""Operator times learned from samples, beside measurements that they have not seen."""
