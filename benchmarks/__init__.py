"""Checks of accuracy and speed: the paper's numbers, proofs, measured runs, batches, pages; not in the wheel."""
