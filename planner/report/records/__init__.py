"""The tree of report records: every format of a report is made from it."""
