"""Effects of single settings: ratios of measured steps beside those predicted."""
