"""Why no strategy fits, and what comes closest."""
