"""Whether it was right and fast: the paper's numbers, proofs, measured runs, batches, pages; not in the wheel."""
