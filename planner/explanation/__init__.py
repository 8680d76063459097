"""Why this plan, and why not another."""

from costmodel.former_names import explain_members

explain_members(__name__)
