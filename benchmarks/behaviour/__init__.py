"""Whether a change of the code changed what users get."""
