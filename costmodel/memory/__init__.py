"""What a pipeline rank holds."""

from costmodel.former_names import explain_members

explain_members(__name__)
