"""
JSON Schema of the job file, for editors that complete and check it.

Types and limits come from the records that read the job, descriptions from their docstrings, names from the catalog.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from costmodel import catalog
from costmodel.catalog.releases import NEWEST, release_of
from costmodel.facts import device, framework, workload
from costmodel.models.description import Description
from costmodel.quantities import COUNT, text_schema
from costmodel.strategy import DECISIONS, ENUMS, FLAGS, MODULES_OF, Strategy
from planner.jobs import entries as job
from planner.jobs.commented import descriptions
from planner.jobs.document import OUR_MODULES
from planner.jobs.strategy_file import ANY, CHOOSABLE, WITHOUT_ANY
from planner.schema.records import Schema, record_schema, whole

PATH = Path(__file__).parents[1] / "job.schema.json"


def editor_comment() -> str:
    """Return the comment by which YAML language servers find the installed schema without a network."""
    return f"# yaml-language-server: $schema={PATH.as_uri()}"


def job_schema() -> Schema:
    """Make the whole schema as plain data."""
    schema = record_schema(job.Job)
    definitions: Schema = schema["$defs"]
    for inline in (device.Device, workload.Precision, framework.Framework, Description):
        own = record_schema(inline)
        definitions.update(own.pop("$defs", {}))
        definitions[inline.__name__] = own
    schema["properties"]["model"]["anyOf"] = _model_forms(definitions["Description"])
    cluster, training = definitions["ClusterSection"]["properties"], definitions["TrainingSection"]["properties"]
    cluster["device"]["anyOf"] = _forms(
        (*catalog.devices(), *(name for name, _ in catalog.spellings())), definitions["Device"]
    )
    names = tuple(sorted(catalog.framework_names()))
    cluster["framework"]["anyOf"] = [
        *_forms(names, definitions["Framework"], {"type": "string", "pattern": _other_releases(names)}),
        {"type": "null"},
    ]
    training["precision"]["anyOf"] = [*_forms(catalog.precisions(), definitions["Precision"]), {"type": "null"}]
    of_device = definitions["Device"]["properties"]
    of_device["calibration"]["anyOf"] = _forms(catalog.calibrations(), _constants(definitions))
    of_device["calibration"].pop("$ref")
    search = definitions["SearchSection"]["properties"]
    search["pin"]["anyOf"] = [_decisions("one"), {"type": "string"}]
    search["allow"].update(_decisions("list"))
    search["forbid"]["items"] = {**_decisions("bounded"), "minProperties": 1}
    search["limits"]["items"] = {"type": "string", "pattern": f"^[^<>=!]+{_RELATION}"}
    definitions["JobSettings"] = _allow_several(definitions["Settings"])
    schema["properties"]["settings"]["anyOf"] = [{"$ref": "#/$defs/JobSettings"}, {"type": "null"}]
    schema["properties"]["settings"].pop("$ref", None)
    return whole("Pretraining job", schema)


def device_schema() -> Schema:
    """Make the schema of a device file: a device as in a job, or its differences from one of the catalog."""
    job = job_schema()
    forms: Schema = job["$defs"]["ClusterSection"]["properties"]["device"]["anyOf"][1]
    return whole("Device", {**forms, "description": job["$defs"]["Device"]["description"], "$defs": job["$defs"]})


def _allow_several(settings: Schema) -> Schema:
    """Allow lists of values, or the word for all values, in the settings that the search may choose."""
    properties = dict(settings["properties"])
    for name in CHOOSABLE:
        one = [form for form in properties[name]["anyOf"] if form != {"type": "null"}]
        several = {"type": "array", "minItems": 1, "uniqueItems": True, "items": {"anyOf": one}}
        every = [] if name in WITHOUT_ANY else [{"const": ANY}]
        properties[name] = {**properties[name], "anyOf": [*properties[name]["anyOf"], several, *every]}
    return {**settings, "properties": properties}


def _constants(definitions: Schema) -> Schema:
    """Make the schema of a job's calibration: its constants, name and sources."""
    constants: Schema = definitions["Constants"]
    beside = {name: definitions["Calibration"]["properties"][name] for name in ("name", "sources")}
    return {**constants, "properties": {**beside, **constants["properties"]}}


def _model_forms(described: Schema) -> list[Schema]:
    text = {"type": "string"}
    return [
        {"enum": list(catalog.model_names())},
        {**text, "description": "Path of a Hugging Face config.json or of its folder, or a name on its hub."},
        {"type": "object", "required": ["model_type"], "description": "The model in Hugging Face's keys."},
        {**described, "properties": {"name": text, "source": text, **described["properties"]}},
    ]


def _other_releases(names: Iterable[str]) -> str:
    """Match releases of known stacks that the catalog lacks; the nearest known one stands for each."""
    stacks = sorted({made.stack for made in map(release_of, names) if made})
    return f"^({'|'.join(stacks)})[-_ :@=]+v?([0-9]|{'|'.join(NEWEST)})"


def _forms(names: Any, record: Mapping[str, Any], other: Schema | None = None) -> list[Schema]:
    """Allow a name, another form if there is one, the whole record, or the differences from a named one."""
    known: Schema = {"enum": list(names)} if other is None else {"anyOf": [{"enum": list(names)}, other]}
    properties = {"base": {**known, "description": "Catalog entry to start from."}, **record["properties"]}
    return [
        known,
        {
            "type": "object",
            "properties": properties,
            "additionalProperties": False,
            "anyOf": [{"required": ["base"]}, {"required": [n for n in record["required"] if n != "name"]}],
        },
    ]


_RELATION = "(<=|>=|==|!=|<|>)[^<>=!]+$"
"""Relation and value of a bound."""


def _decisions(form: str) -> Schema:
    texts = descriptions(Strategy)
    values = {name: _decision(name) for name in DECISIONS}
    if form == "list":
        values = {name: {"type": "array", "minItems": 1, "items": value} for name, value in values.items()}
    if form == "bounded":
        bound = {"type": "string", "pattern": rf"^\s*{_RELATION}"}
        values = {name: {"anyOf": [value, bound]} for name, value in values.items()}
    return {
        "type": "object",
        "properties": {name: {**value, "description": texts[name]} for name, value in values.items()},
        "additionalProperties": False,
    }


def _decision(name: str) -> Schema:
    if name in ENUMS:
        members = {"enum": [member.text for member in ENUMS[name]]}
        if name not in MODULES_OF:
            return members
        module = "|".join((*MODULES_OF[name], *(OUR_MODULES if name == "recompute" else ())))
        return {"anyOf": [members, {"type": "string", "pattern": f"^({module})(\\+({module}))*$"}]}
    return {"type": "boolean"} if name in FLAGS else {"anyOf": [_DEGREE, text_schema(COUNT)]}


_DEGREE = {"type": "integer", "minimum": 1, "maximum": 10**9}
