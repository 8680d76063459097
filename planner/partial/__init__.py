"""A strategy that somebody gives in part, made whole."""
