"""Changes of answers that a change of the code brings."""
