"""Training steps put together from sampled operators and collectives, beside those of arXiv 2509.22832."""
