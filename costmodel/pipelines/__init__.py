"""Stages, schedules and their orders, by formula and by simulation."""
