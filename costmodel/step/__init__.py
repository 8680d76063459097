"""Step time: layer, rank, overlap, optimizer, step, estimate."""

from costmodel.former_names import explain_members

explain_members(__name__)
