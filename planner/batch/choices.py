"""Allowed values of options; imports nothing, so that the command line answers at once."""

from __future__ import annotations

LOCAL = "local"
BACKENDS = (LOCAL, "dask", "ray")
"""Executors of the workers of a batch."""

METRICS = {
    "step_time": ("step_time_seconds", 1),
    "tokens_per_second": ("tokens_per_second", -1),
    "tokens_per_second_per_gpu": ("tokens_per_second_per_gpu", -1),
    "mfu": ("mfu", -1),
    "hfu": ("hfu", -1),
    "ettr": ("ettr", -1),
    "total_time": ("total_seconds", 1),
    "gpu_hours": ("gpu_hours", 1),
    "cost": ("total_cost", 1),
    "energy": ("it_energy_mwh", 1),
    "num_devices": ("num_devices", 1),
    "peak_memory": ("peak_memory_bytes", 1),
}
"""Figures to rank by: an entry of a plan, and 1 if less of it is better, -1 if more."""

TOP_FORMATS = ("table", "json", "csv")
"""Output formats of a ranking."""

MAX_JOBS = 100_000
"""Largest number of jobs of a batch by default."""
