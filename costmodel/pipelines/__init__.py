"""Stages, schedules and their orders, in closed form and by simulation."""
