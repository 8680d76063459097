"""Why nothing fits, and what comes closest."""
