"""JSON Schemas of ``planner catalog models`` and ``planner catalog``, from the records that they show."""

from __future__ import annotations

from typing import Any, get_args

from costmodel.facts.calibration import Calibration
from costmodel.facts.device import Device, Silicon
from costmodel.facts.framework import Framework
from costmodel.facts.model import Experts, Layer, Mixer, Mlp, Model
from costmodel.facts.workload import Precision
from costmodel.models.flops import AttentionConvention
from planner.report.describe import ALIAS, MODEL_COUNTS, MODEL_FACTS, RECIPE_TEXTS
from planner.schema.records import Schema, object_schema, record_schema, whole

TEXT, COUNT = {"type": "string"}, {"type": "integer", "minimum": 0}


def model_schema() -> Schema:
    """Make the schema of ``planner catalog models``: model, distinct layers, parameters and FLOPs."""
    layers = {"type": "array", "items": {"$ref": "#/$defs/LayerKind"}}
    properties = {
        **_model_facts(),
        "layers": {**layers, "description": "Its different layers, in order of first appearance."},
        "mtp_layers": {**layers, "description": "Layers of multi-token prediction."},
        **_model_counts(),
        "flops_per_token": {"type": "number", "description": "Model FLOPs of one token."},
        "flops_per_token_counts": {**TEXT, "description": "Operations that the FLOPs count."},
        "sequence_length": {**COUNT, "description": "Tokens per sequence that they hold for."},
        "attention_convention": {
            "enum": list(get_args(AttentionConvention)),
            "description": "Rule for scores that the causal mask hides: counted (full) or not (causal).",
        },
    }
    return whole("Model", {**object_schema(properties), "$defs": _layer_kinds()})


def catalog_schema() -> Schema:
    """Make the schema of ``planner catalog``: all lists, one of them, or one entry."""
    definitions: Schema = {"Model": object_schema({**_model_facts(), **_model_counts()}), "Alias": _alias()}
    definitions["Recipe"] = _recipe()
    for record in (Device, Calibration, Silicon, Framework, Precision):
        made = record_schema(record, "serialization")
        definitions.update(made.pop("$defs", {}))
        definitions[record.__name__] = object_schema(made["properties"])
    note = {"note": {**TEXT, "description": "Ambiguity of the name."}}
    entries = definitions["Device"]
    definitions["Device"] = object_schema(entries["properties"] | note, optional=("note",))
    definitions["Precision"] = object_schema(
        definitions["Precision"]["properties"] | {"source": {**TEXT, "description": "Source of the bytes."}}
    )
    lists = {
        name: {
            "type": "array",
            "items": {"$ref": f"#/$defs/{record}"},
            "description": f"The {name} of the catalog, each with its sources.",
        }
        for name, record in ENTRIES.items()
    }
    whole_catalog = {**object_schema(lists, optional=tuple(lists)), "minProperties": 1}
    one = [{"$ref": f"#/$defs/{record}"} for record in ENTRIES.values()]
    return whole("Catalog", {"anyOf": [whole_catalog, *one], "$defs": definitions})


def support_schema() -> Schema:
    """Make the schema of ``planner catalog support``: its tables."""
    texts: Schema = {"type": "array", "items": TEXT}
    table: dict[str, Schema] = {
        "title": {**TEXT, "description": "Families on a device, refused families, or devices with a model."},
        "header": {**texts, "description": "Names of the columns."},
        "rows": {"type": "array", "items": texts, "description": "Cells of each family or device."},
    }
    return whole("Support", {"type": "array", "items": object_schema(table)})


ENTRIES = {
    "devices": "Device",
    "aliases": "Alias",
    "calibrations": "Calibration",
    "architectures": "Silicon",
    "frameworks": "Framework",
    "models": "Model",
    "precisions": "Precision",
    "recipes": "Recipe",
}
"""Record of each list of the catalog."""


def _model_facts() -> Schema:
    known = _properties(Model)
    number = {"num_layers": {**COUNT, "description": "Number of layers without the multi-token prediction."}}
    return {name: (known | number)[name] for name in MODEL_FACTS}


def _model_counts() -> Schema:
    return {name: {**COUNT, "description": text} for name, text in MODEL_COUNTS.items()}


def _alias() -> Schema:
    return object_schema({name: {**TEXT, "description": text} for name, text in ALIAS.items()})


def _recipe() -> Schema:
    """Make the schema of a recipe: its own texts, and keys of a job with values as in job files."""
    lists = {
        "releases": {"type": "array", "items": TEXT, "description": "Releases that have it, oldest first."},
        "scales": {"type": "array", "items": COUNT, "description": "Numbers of devices that it is published for."},
    }
    texts = {name: {**TEXT, "description": text} for name, text in RECIPE_TEXTS.items()}
    return {**object_schema(texts | lists), "patternProperties": {r"^(cluster|training|settings|strategy)\.": {}}}


def _layer_kinds() -> Schema:
    """Make the schemas of a layer with its number, and of blocks with their kind."""
    made = record_schema(Layer, "serialization")
    definitions: Schema = made["$defs"]
    for block in (*get_args(Mixer), Mlp, Experts):
        kind = {"kind": {"const": block.__name__, "description": "Kind of the block."}}
        definitions[block.__name__] = object_schema(kind | definitions[block.__name__]["properties"])
    number = {"num_layers": {**COUNT, "description": "Number of such layers."}}
    return {**definitions, "LayerKind": object_schema(number | made["properties"], optional=("beside",))}


def _properties(record: Any) -> Schema:
    properties: Schema = record_schema(record, "serialization")["properties"]
    return properties
