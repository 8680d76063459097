"""Memory of a pipeline rank."""

from costmodel.former_names import explain_members

explain_members(__name__)
