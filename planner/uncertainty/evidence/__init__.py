"""Evidence from measured runs for features of strategies, and the number of these runs."""
