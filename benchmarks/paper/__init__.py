"""MoFa's printed numbers again: tables 5 to 9, figure 6, and its search."""
