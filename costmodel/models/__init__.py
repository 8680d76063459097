"""Models: read from their files, with their parameter and FLOP counts."""
