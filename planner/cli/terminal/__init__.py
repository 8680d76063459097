"""What a terminal gets besides results: messages, and completion of what is typed."""
