"""Messages on stderr, and shell completion."""
