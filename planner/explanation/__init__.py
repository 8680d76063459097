"""Explanations: reasons for a plan, and against another."""
