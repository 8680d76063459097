"""Traces replayed, changed and predicted, beside what was measured."""
