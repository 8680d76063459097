"""``python -m planner.schema``: write the schema files that editors and other programs read."""

from __future__ import annotations

from planner.schema import schema_text
from planner.schema.job import PATH as OF_JOBS
from planner.schema.reports import PATH as OF_REPORTS

for path, name in ((OF_JOBS, "job"), (OF_REPORTS, "report")):
    path.write_text(schema_text(name), encoding="utf-8")
    print(f"wrote {path}")
