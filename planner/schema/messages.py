"""JSON Schema of the messages on stderr with ``--log-json``."""

from __future__ import annotations

from costmodel.events import LEVELS
from planner.schema.records import Schema, object_schema, whole


def log_line_schema() -> Schema:
    """Make the schema of one message; its fields are those of its event."""
    line = object_schema(
        {
            "time": {"type": "string", "format": "date-time", "description": "Time in UTC."},
            "level": {"enum": list(LEVELS.values()), "description": "Severity of the message."},
            "event": {"type": "string", "description": "Text of the message, or a fixed name of the event."},
            "fields": {
                "type": "object",
                "description": "Numbers and names of the event; mistakes are a list with where, problem, hint, place.",
            },
        }
    )
    return whole("Message", line)
