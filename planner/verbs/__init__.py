"""Verbs: plan, estimate, explain and compare jobs, with the reasons for their answers."""
