"""The atom of time: an operator, and the one protocol of who times it."""
