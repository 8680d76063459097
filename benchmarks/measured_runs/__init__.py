"""
Measured runs: a table as collected becomes one whose every column is a key of a job file.

``collected/`` is as the sources were written down, notes and ids in words; ``python -m benchmarks.measured_runs`` makes
``runs.csv`` and ``models.yaml`` of it, which the planner reads. All reading of free text is here.
"""

from benchmarks.measured_runs.conversion import Converted, convert, is_collected

__all__ = ["Converted", "convert", "is_collected"]
