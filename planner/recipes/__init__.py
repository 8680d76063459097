"""Layouts that framework makers publish, and their strategies for a job."""
