"""What is done, told to whoever listens: records of the standard logging module that carry fields."""

from __future__ import annotations

import logging
from typing import Any

NOTICE = 25
"""Level of what is said unless ``-q`` is given: more than what is done, less than a warning."""

LEVELS = {
    logging.DEBUG: "debug",
    logging.INFO: "info",
    NOTICE: "notice",
    logging.WARNING: "warning",
    logging.ERROR: "error",
}
"""What levels are called where a program reads them."""


def log_event(name: str, event: str, *, level: int = logging.INFO, **fields: Any) -> None:
    """
    Log an event.

    Parameters
    ----------
    name
        Of the module.
    event
        What is done, in words that are the same each time.
    level
        ``INFO`` for what was done, ``DEBUG`` for how far something is: what comes many times.
    fields
        Numbers and names of it. Of ``done`` and ``total`` follows how far it is, ``time_limit_seconds`` is what it may
        take at most.
    """
    logging.getLogger(name).log(level, event, extra={"fields": fields})


def log_progress(name: str, event: str, done: int, total: int, **fields: Any) -> None:
    """Log how far something is."""
    log_event(name, event, level=logging.DEBUG, done=done, total=total, **fields)
