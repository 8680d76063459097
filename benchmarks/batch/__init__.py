"""Time of a thousand jobs as one batch."""
