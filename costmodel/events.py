"""Events of the project: records of the standard logging module with fields."""

from __future__ import annotations

import logging
from typing import Any

NOTICE = 25
"""Level of notices, shown unless ``-q`` is given: above events, below warnings."""

LEVELS = {
    logging.DEBUG: "debug",
    logging.INFO: "info",
    NOTICE: "notice",
    logging.WARNING: "warning",
    logging.ERROR: "error",
}
"""Names of levels in machine-readable output."""


def log_event(name: str, event: str, *, level: int = logging.INFO, **fields: Any) -> None:
    """
    Log an event.

    Parameters
    ----------
    name
        Name of the module.
    event
        Description of the event, with constant words.
    level
        ``INFO`` for finished work, ``DEBUG`` for progress, which comes many times.
    fields
        Numbers and names of the event. Progress follows from ``done`` and ``total``; ``time_limit_seconds`` is the most
        time that it may take.
    """
    logging.getLogger(name).log(level, event, extra={"fields": fields})


def log_progress(name: str, event: str, done: int, total: int, **fields: Any) -> None:
    """Log the progress of an event."""
    log_event(name, event, level=logging.DEBUG, done=done, total=total, **fields)
