"""Layouts that framework makers publish: which there are, and what each is for a job."""
