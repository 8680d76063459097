"""Step time: layer, rank, overlap, optimizer, step, estimate."""
