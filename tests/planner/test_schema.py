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
from tests.planner.test_job import JOB, JOBS, a_job, message_of

VALIDATOR = jsonschema.Draft202012Validator(json.loads(PATH.read_text(encoding="utf-8")))


def test_schema_is_up_to_date():
    """A new entry of the job file or of the catalog: run ``python -m planner.schema``."""
    assert PATH.read_text(encoding="utf-8") == schema_text("job")


def test_schema_is_a_schema():
    """Editors ignore a schema that is none."""
    jsonschema.Draft202012Validator.check_schema(VALIDATOR.schema)


@pytest.mark.parametrize("path", sorted(JOBS.glob("*.yaml")), ids=lambda path: path.stem)
def test_example_jobs_satisfy_the_schema(path):
    """What an editor says of the examples: nothing."""
    VALIDATOR.validate(read_mapping(path))


@pytest.mark.parametrize("path", sorted(JOBS.glob("*.yaml")), ids=lambda path: path.stem)
def test_example_jobs_name_the_schema(path):
    """The first line is what editors look for."""
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


GOOD_ENTRIES = [
    ("cluster__device", {"base": "h100-80gb-sxm", "memory_bytes": 9.4e10}),
    ("training__precision", {"base": "bf16", "optimizer_bytes": 8}),
    ("search__pin", {"recompute": "none", "sequence_parallel": True}),
    ("search__allow", {"pp": [4, 8]}),
    ("search__forbid", [{"recompute": "full", "pp": 8}]),
    ("search__forbid", [{"recompute": "full", "pp": ">= 16"}]),
    ("search__limits", ["tp <= 4", "tp * cp <= 16", "recompute != full"]),
    ("reliability__mttr_seconds", 60),
    ("reliability__mttr_seconds", "4min"),
    ("reliability__storage_capacity", "50TB"),
    ("cluster__num_devices", "1k"),
    ("cluster__memory_gib", "80GiB"),
    ("cluster__internode_bandwidth", "400Gbit/s"),
    ("cluster__device", {"base": "h100-80gb-sxm", "memory_bytes": "94GB"}),
    ("training__sequence_length", "8k"),
    ("training__tokens", "1.5T"),
    ("search__pin", {"tp": 8, "mbs": "1k"}),
    (
        "model",
        {
            "hidden_size": 64,
            "num_layers": 2,
            "num_heads": 4,
            "ffn_hidden_size": 256,
            "vocab_size": 1000,
            "name": "tiny",
        },
    ),
]


@pytest.mark.parametrize(("entry", "value"), GOOD_ENTRIES)
def test_schema_and_loader_accept(entry, value):
    """What the editor completes can be loaded."""
    load(a_job(**{entry: value}))
    VALIDATOR.validate(a_job(**{entry: value}))


BAD_ENTRIES = [
    ("modl", "llama3-8b"),
    ("model", 5),
    ("model", {"hidden_size": 64}),
    ("cluster__num_devices", 0),
    ("cluster__num_devices", "many"),
    ("cluster__device", "h1000"),
    ("cluster__device", {"memory_bytes": 1e9}),
    ("training__tokens", -1),
    ("training__tokens", "15GB"),
    ("training__tokens", "1e3k"),
    ("training__global_batch_size", "1,000"),
    ("training__sequence_length", "8 k"),
    ("training__sequence_length", "8T"),
    ("cluster__memory_gib", "80gb"),
    ("search__time_limit_seconds", "5m"),
    ("search__pin", {"tpp": 8}),
    ("search__pin", {"recompute": "ful"}),
    ("search__allow", {"pp": 4}),
    ("search__forbid", [{}]),
    ("search__forbid", [{"pp": "16"}]),
    ("search__limits", ["tp = 4"]),
    ("objective", "speed"),
    ("top", 1001),
    ("variants", "both"),
]


@pytest.mark.parametrize(("entry", "value"), BAD_ENTRIES)
def test_schema_and_loader_refuse(entry, value):
    """What the editor underlines would have been refused."""
    job = a_job(**{entry: value})

    assert message_of(job)
    assert not VALIDATOR.is_valid(job)


def test_schema_refuses_missing_sections():
    """The three that have no defaults."""
    for section in ("model", "cluster", "training"):
        assert not VALIDATOR.is_valid({name: value for name, value in JOB.items() if name != section})
