"""From a job to proven strategies."""

from costmodel.former_names import explain_members

explain_members(__name__)
