"""Composition: layer, rank, overlap, optimizer, step, estimate."""
