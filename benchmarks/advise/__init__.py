"""Devices and sizes for a wish, against planning every cell; whole trainings, against published ones."""
