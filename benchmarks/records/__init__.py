"""The best published rates: of measured runs, those that no later one of the same kind is as fast as."""
