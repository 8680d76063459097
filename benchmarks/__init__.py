"""Whether it was right: the paper's numbers, the solver's proofs; in the repository, not in the wheel."""
