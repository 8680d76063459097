"""The JSON Schema of what is said on stderr with ``--log-json``."""

from __future__ import annotations

from costmodel.events import LEVELS
from planner.schema.records import Schema, closed, whole


def log_line_schema() -> Schema:
    """One message; its fields are those of its event."""
    line = closed(
        {
            "time": {"type": "string", "format": "date-time", "description": "When, in UTC."},
            "level": {"enum": list(LEVELS.values()), "description": "How much it matters."},
            "event": {"type": "string", "description": "What is said, or what is done in words that stay the same."},
            "fields": {
                "type": "object",
                "description": "Numbers and names of it; of mistakes a list with where, problem, hint and place.",
            },
        }
    )
    return whole("Message", line)
