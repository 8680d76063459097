"""The JSON Schema that editors use: up to date, and of one mind with the loader."""

import json
from dataclasses import fields

import jsonschema
import pytest

from costmodel.strategy import DECISIONS
from planner.jobs.document import read_mapping
from planner.jobs.entries import Job
from planner.jobs.problem import load
from planner.schema import schema_text
from planner.schema.job import PATH
from tests.cases import in_one_case, read_table
from tests.planner.test_job import JOB, JOBS, a_job, message_of

VALIDATOR = jsonschema.Draft202012Validator(json.loads(PATH.read_text(encoding="utf-8")))


def test_schema_is_up_to_date():
    """A new entry of the job file or of the catalog: run ``python -m planner.schema``."""
    assert PATH.read_text(encoding="utf-8") == schema_text("job")


@pytest.mark.slow
def test_schema_is_a_schema():
    """Editors ignore a schema that is none."""
    jsonschema.Draft202012Validator.check_schema(VALIDATOR.schema)


@in_one_case("path", sorted(JOBS.glob("*.yaml")), ids=lambda path: path.stem)
def test_example_jobs_satisfy_the_schema(path):
    """Editors have nothing to say of the examples. Their first line, which editors look for, names the schema."""
    VALIDATOR.validate(read_mapping(path))
    first_line = path.read_text(encoding="utf-8").splitlines()[0]
    relative = first_line.removeprefix("# yaml-language-server: $schema=")

    assert (path.parent / relative).resolve() == PATH.resolve()


def every_property(part):
    """The properties of a schema at every depth."""
    if isinstance(part, dict):
        yield from part.get("properties", {}).items()
        for inner in part.values():
            yield from every_property(inner)
    elif isinstance(part, list):
        for inner in part:
            yield from every_property(inner)


def test_every_entry_is_described():
    """What an editor shows beside the completion; ``name`` and ``source`` of an inline model speak for themselves."""
    silent = [name for name, entry in every_property(VALIDATOR.schema) if not entry.get("description")]

    assert set(silent) <= {"name", "source"}


def test_schema_knows_every_section_and_decision():
    """A new decision shows up by itself."""
    properties = VALIDATOR.schema["properties"]
    search = VALIDATOR.schema["$defs"]["SearchSection"]["properties"]

    assert set(properties) == {field.name for field in fields(Job)}
    assert set(search["pin"]["anyOf"][0]["properties"]) == set(search["allow"]["properties"]) == set(DECISIONS)


GOOD_ENTRIES = read_table("schema")["good_entries"]


@in_one_case(("entry", "value"), GOOD_ENTRIES)
def test_schema_and_loader_accept(entry, value):
    """What the editor completes can be loaded."""
    load(a_job(**{entry: value}))
    VALIDATOR.validate(a_job(**{entry: value}))


BAD_ENTRIES = read_table("schema")["bad_entries"]


@in_one_case(("entry", "value"), BAD_ENTRIES)
def test_schema_and_loader_refuse(entry, value):
    """What the editor underlines would have been refused."""
    job = a_job(**{entry: value})

    assert message_of(job)
    assert not VALIDATOR.is_valid(job)


def test_schema_refuses_missing_sections():
    """The three that have no defaults."""
    for section in ("model", "cluster", "training"):
        assert not VALIDATOR.is_valid({name: value for name, value in JOB.items() if name != section})
