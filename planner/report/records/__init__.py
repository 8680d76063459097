"""The tree of report records: every format of a report is made from it."""

from costmodel.former_names import explain_members

explain_members(__name__)
