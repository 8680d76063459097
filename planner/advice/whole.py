"""
A whole training beyond its steps: defaults of its start and its evaluations, and the uptime of published trainings.

``planner plan`` counts what a job gives. An advice is about a whole training, so that entries that a job leaves out
have these defaults, which its notes state.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import quantiles
from typing import Any

from planner.jobs.entries import EVALUATION_INTERVAL_STEPS
from planner.uncertainty.intervals import COVERAGE

STARTUP_SECONDS = 520
"""
Median warm-up of 14 trainings of Llama 3.1 405B on 256 to 8,192 GPUs, 315 to 1,062 s.

MLPerf Training v5.0, result logs (mlcommons/training_results_v5.0), from the start of the process to that of the run.
"""

UPTIMES: Mapping[str, float] = {
    "HLAT on 4,096 Trainium, automatic restarts": 0.9881,
    "HLAT on 4,096 Trainium, manual restarts": 0.7783,
    "Llama 3.1 405B on 16,384 H100": 0.90,
    "Gemini on TPU v4, before improvements": 0.85,
    "Gemini on TPU v4": 0.97,
    "OPT-175B on 992 A100": 0.59,
}
"""
Share of the time of a training in which its job ran.

HLAT: arXiv 2404.10630; Llama 3: arXiv 2407.21783, section 3.3.4; Gemini: arXiv 2312.11805, section 4; OPT: arXiv
2205.01068. All by the table of glennklockwood.com/garden/job-reliability.
"""


def lower_uptime() -> float:
    """
    Return the lower end of the interval of published uptimes.

    >>> round(lower_uptime(), 3)
    0.684
    """
    tail = (1 - COVERAGE) / 2
    return quantiles(UPTIMES.values(), n=round(1 / tail), method="inclusive")[0]


DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "reliability": {"init_seconds": STARTUP_SECONDS},
    "training": {"evaluation_interval_steps": EVALUATION_INTERVAL_STEPS},
}
"""Entries of a whole training by section."""


def missing_entries(document: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the defaults of the entries that a job leaves out, by section."""
    return {
        section: {name: value for name, value in entries.items() if name not in (document.get(section) or {})}
        for section, entries in DEFAULTS.items()
    }


def assignments(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield the defaults of the entries that a job leaves out as ``key=value``."""
    for section, entries in missing_entries(document).items():
        yield from (f"{section}.{name}={value}" for name, value in entries.items())


def lengthening(uptime: float) -> float:
    """
    Factor on the time of a training at the lower end of published uptimes; 1 where its own uptime is lower.

    >>> round(lengthening(0.97), 2), lengthening(0.5)
    (1.42, 1.0)
    """
    return max(1.0, uptime / lower_uptime())
