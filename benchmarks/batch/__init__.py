"""How long a thousand jobs take as one batch."""
