"""Groups of ranks, and what they take to communicate."""
