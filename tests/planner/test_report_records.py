"""Records of reports: read from results by the names of their entries, described once, written as JSON."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from costmodel.strategy import Sharding
from planner import estimate, load, render
from planner.report.records import Figure, Record, entry
from planner.schema.records import record_schema
from tests.planner.test_job import JOBS, a_job


class PartRecord(Record):
    """
    A part.

    Parameters
    ----------
    name
        Its name.
    seconds
        Its time.
    """

    name: str
    seconds: Figure


class WholeRecord(Record):
    """
    A whole.

    Parameters
    ----------
    sharding
        Its sharding.
    parts
        Its parts.
    longest
        The longest part; null without parts.
    """

    sharding: str
    parts: list[PartRecord]
    longest: PartRecord | None
    total: Figure = entry("Time of all parts.", "sums.seconds")


PARTS = (SimpleNamespace(name="tp", seconds=1.5), SimpleNamespace(name="pp", seconds=math.inf))

WHOLE = SimpleNamespace(
    sharding=Sharding.OPTIMIZER, parts=PARTS, longest=None, name="not asked for", sums=SimpleNamespace(seconds=2)
)


def test_records_are_read_from_attributes():
    """Parts become records, decisions words, and infinity null, as JSON has none."""
    record = WholeRecord.read(WHOLE)

    assert record.parts == [PartRecord(name="tp", seconds=1.5), PartRecord(name="pp", seconds=math.inf)]
    assert record.plain() == {
        "sharding": "optimizer",
        "parts": [{"name": "tp", "seconds": 1.5}, {"name": "pp", "seconds": None}],
        "longest": None,
        "total": 2,
    }


def test_the_first_object_with_an_attribute_counts():
    """Values that are passed count before all objects."""
    record = WholeRecord.read(SimpleNamespace(parts=()), WHOLE, longest=PARTS[0])

    assert (record.parts, record.longest) == ([], PartRecord(name="tp", seconds=1.5))


def test_an_entry_without_an_attribute_is_our_mistake():
    """Nothing is left out silently."""
    with pytest.raises(AssertionError, match="seconds"):
        PartRecord.read(SimpleNamespace(name="tp")).plain()


class LateRecord(Record):
    """
    A record with an entry that takes long.

    Parameters
    ----------
    seconds
        Its time.
    """

    seconds: Figure


def test_a_read_from_is_made_once_when_it_is_read():
    """A format that does not have it does not pay for it."""
    asked: list[int] = []
    record = LateRecord.read(seconds=lambda: asked.append(1) or 2.5)

    assert asked == []
    assert (record.seconds, record.plain(), asked) == (2.5, {"seconds": 2.5}, [1])


def test_a_short_answer_computes_no_energy(monkeypatch):
    """It simulates every rank again; without prices the answer has no line on it."""
    report = estimate(load(a_job()), {"tp": 8})
    monkeypatch.setattr("planner.report.records.plan.CostsRecord.build", lambda plan: pytest.fail("not asked for"))

    assert "tokens/s/GPU" in render(report, "short")


def test_the_schema_has_the_descriptions_of_the_record():
    """From its docstring, or beside an entry."""
    schema = record_schema(WholeRecord, "serialization")
    texts = {name: one["description"] for name, one in schema["properties"].items()}

    assert texts == {
        "sharding": "Its sharding.",
        "parts": "Its parts.",
        "longest": "The longest part; null without parts.",
        "total": "Time of all parts.",
    }
    assert schema["$defs"]["PartRecord"]["required"] == ["name", "seconds"]


@pytest.mark.slow
def test_a_format_loads_what_it_needs():
    """The short answer loads no page, no schema, no other verb, no other target and nothing of samples."""
    job = str(JOBS / "llama3-8b-8xh100.yaml")
    code = f"import sys; sys.argv[1:] = ['estimate', {job!r}, 'tp=2']; from planner.__main__ import run; run()"
    code += "; import os; print(*sys.modules, 'threads:' + os.environ['OPENBLAS_NUM_THREADS'])"
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    loaded = done.stdout.split()

    assert {"planner.report.short", "threads:1"} <= {*loaded}
    needless = ("html", "table_csv", "markdown", "sections", "compared", "conflicts", "reasons", "records.explained")
    assert not {f"planner.report.{name}" for name in needless} & {*loaded}
    assert not {f"planner.verbs.{name}" for name in ("compare", "explain", "repairs")} & {*loaded}
    assert not {f"planner.frameworks.{name}" for name in ("accelerate", "deepspeed", "torchtitan")} & {*loaded}
    assert not {"costmodel.network.sampled_fabric", "costmodel.timing.sampled_source", "threadpoolctl"} & {*loaded}
    assert "planner.schema" not in loaded
