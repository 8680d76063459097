"""The inputs of a report with the source of each number: model, devices, training, failures, rules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from constraints import FRAMEWORK_RULES, PHYSICS_RULES, sentence
from planner.report.describe import describe_architecture, layer_rows, leaves
from planner.report.section import Section, number_rows
from planner.report.wording import NOTHING, gib
from planner.search.rules import problem_rules
from planner.verbs.explain import rule_sentences

if TYPE_CHECKING:
    from costmodel.facts.cluster import Cluster
    from costmodel.facts.device import EquippedDevice
    from costmodel.facts.model import Model
    from planner.jobs.problem import Problem
    from planner.report.records.setting import SettingRecord

HEADER = ("entry", "value", "source")
MODEL_ENTRIES = ("hidden_size", "vocab_size", "num_layers", "tied_embeddings")


def input_sections(problem: Problem, setting: SettingRecord) -> Iterator[Section]:
    """Build the sections on all inputs of a report."""
    yield _job(problem, setting)
    yield _model(problem.facts.model)
    yield _device(problem.facts.cluster)
    yield _rules(problem)


def _job(problem: Problem, setting: SettingRecord) -> Section:
    rows = [
        (f"{name}.{entry}", text)
        for name in ("job", "cluster", "training", "reliability")
        for entry, text in leaves(asdict(getattr(setting, name)) | {"document": None})
        if entry not in ("sources", "document")
    ]
    precision = asdict(problem.facts.workload.precision)
    files = [("read", str(path)) for path in problem.sources]
    return Section(
        title="The job, in base units",
        header=HEADER[:2],
        rows=(*rows, *((f"precision.{name}", text) for name, text in leaves(precision)), *files),
    )


def _model(model: Model) -> Section:
    described = describe_architecture(model)
    rows = [(name, text) for name, text in leaves({name: described[name] for name in MODEL_ENTRIES})]
    return Section(
        title=f"The model: {model.name}",
        rows=(("source", model.source), ("family", model.family), *rows, *layer_rows(described)),
    )


def _device(cluster: Cluster) -> Section:
    device = cluster.device
    entries = {name: value for name, value in asdict(device).items() if name not in APART}
    networks = {network["name"]: network for network in asdict(device)["networks"]}
    rows = (
        *_source_rows({**entries, "networks": networks}, device.sources, "", 0),
        *_calibration(device),
        *_framework(cluster),
    )
    return Section(
        title=f"The GPU: {device.name}",
        header=HEADER,
        rows=rows,
        notes=("A source beside a group of entries is that of all of them.",),
    )


APART = ("sources", "constants", "behaviour", "calibration", "networks")
"""Entries of a device with sections of their own."""


def _calibration(device: EquippedDevice) -> Iterator[tuple[str, str, str]]:
    """Build the rows of the constants of the device's architecture, before the framework's factors."""
    known, path = device.calibration, "calibration."
    yield "calibration", known.name, known.description or NOTHING
    yield from _source_rows(asdict(known.constants), _prefix(path, known.sources), path, 0)


def _framework(cluster: Cluster) -> Iterator[tuple[str, str, str]]:
    """Build the rows of the framework's behaviour under the job's settings, and its factors on constants."""
    known, path = cluster.framework, "framework."
    if known is None:
        return
    behaviour = asdict(cluster.device.behaviour)
    sources = _prefix(path, known.sources)
    yield "framework", known.name, known.description or NOTHING
    yield from _source_rows(behaviour, sources, f"{path}behaviour.", 0)
    yield from _source_rows(known.factors, sources, f"{path}factors.", 0)


def _prefix(path: str, sources: Mapping[str, str]) -> dict[str, str]:
    return {f"{path}{name}": source for name, source in sources.items()}


def _source_rows(
    entries: Mapping[str, Any], sources: Mapping[str, str], path: str, depth: int
) -> Iterator[tuple[str, str, str]]:
    """Build the rows of entries by dotted path, in as much detail as they have sources."""
    for name, value in entries.items():
        place = f"{path}{name}"
        if isinstance(value, Mapping) and place not in sources and depth < 1:
            yield from _source_rows(value, sources, f"{place}.", depth + 1)
        elif value is not None and value != {} and name != "sources":
            yield place, _value(name, value), sources.get(place, NOTHING)


def _value(name: str, value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{inner} {_value(inner, own)}" for inner, own in value.items() if own is not None)
    if isinstance(value, float) and name.endswith("_bytes") and value >= SHOWN_IN_GIB:
        return f"{gib(value)} GiB"
    ((_, text),) = leaves(value) if not isinstance(value, (list, tuple)) else [("", ", ".join(map(str, value)))]
    return text


SHOWN_IN_GIB = 1e8
"""Bytes from which on a size is written in GiB."""


def _rules(problem: Problem) -> Section:
    """Build the section on rules of the job and of the search; rules of hardware and frameworks are counted only."""
    every, frameworks = rule_sentences(problem), problem_rules(problem).frameworks
    known = {sentence(rule) for rule in (*PHYSICS_RULES, *FRAMEWORK_RULES, *frameworks)}
    own = [text for text in every if text not in known]
    return Section(
        title="Rules of the job and of the search",
        rows=number_rows(own),
        notes=(f"In addition to {len({*every} & known)} rules of the mathematics, the hardware and the framework.",),
    )
