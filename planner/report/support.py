"""Support of models, devices and export targets, from the checks that jobs pass: ``planner catalog support``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from constraints.rules.physics import profile_has_measured_the_shapes
from costmodel import catalog
from costmodel.errors import SpecError
from costmodel.facts.framework import has_values
from costmodel.models.families import FAMILIES, TEXT_PARTS, UNMODELLED
from costmodel.tables import Facts
from planner.frameworks import TARGETS
from planner.jobs.cluster import read
from planner.jobs.problem import load
from planner.report.section import Section
from planner.search.runnable import require_runnable
from planner.uncertainty.counts import read_counts

COMMON_DEVICE, COMMON_MODEL = "h100-80gb-sxm", "llama3-8b"
"""Device of the table of families, and model of the table of devices, unless others are given."""

SEQUENCE_LENGTH = 4096


def support_sections(model: str | None = None, device: str | None = None) -> list[Section]:
    """
    Return tables of what is planned, exported, measured and refused.

    Parameters
    ----------
    model
        Name or path of a model, or a family, for the table of devices; None: a common one, and the table of families.
    device
        Name of a device for the table of families, or the one device of a model; None: a common one, and all devices.

    Raises
    ------
    SpecError
        If there is no such model or device.
    """
    named = None if device is None else catalog.find_device(device, "support").device
    if model is not None:
        return [_devices(model_of(model), catalog.devices() if named is None else (named,))]
    families = _families(named or COMMON_DEVICE)
    refused = Section(title="Refused families", header=("family", "reason"), rows=tuple(sorted(UNMODELLED.items())))
    return [families, refused] if named else [families, refused, _devices(COMMON_MODEL, catalog.devices())]


def refusal(model: str, device: str, target: str | None) -> str:
    """Return the reason why no plan of a model on a device can be exported to a target; empty: some can."""
    known = catalog.device(device)
    if target is not None and catalog.newest_for(target, known.architecture) is None:
        return f"no release of the catalog runs on {known.architecture}"
    training = {
        "global_batch_size": known.devices_per_node,
        "sequence_length": read(model, Path()).model.learned_positions or SEQUENCE_LENGTH,
        "tokens": 1e9,
        "precision": "bf16" if "bf16" in known.peak_flops else "fp16",
    }
    job = {
        "model": model,
        "cluster": {"device": device, "num_devices": known.devices_per_node},
        "training": training,
        "search": {"target": target},
    }
    try:
        problem = load(job)
        require_runnable(problem)
    except SpecError as error:
        return f"{error.where}: {error.problem.partition(' So no plan of the job')[0].rstrip('.')}"
    return "" if _is_measured(problem.facts) else "its calibration has no measured operators of such shapes"


def _is_measured(facts: Facts) -> bool:
    """Return True unless the device's times are measured ones, none of which is of the model at any degree."""
    degrees = 2 ** np.arange(7)
    tp, ep, mbs, is_sequence_parallel = (
        axis.ravel() for axis in np.meshgrid(degrees[:4], degrees, degrees[:3], [False, True], indexing="ij")
    )
    framework = facts.cluster.framework
    runs = has_values(framework, "tp", tp) & has_values(framework, "ep", ep)
    decisions: dict[str, Any] = {"tp": tp, "cp": 1, "ep": ep, "mbs": mbs, "sequence_parallel": is_sequence_parallel}
    found = (
        profile_has_measured_the_shapes(facts.model, facts.cluster, facts.workload, etp=etp, **decisions)
        for etp in (1, tp)
    )
    return any(bool(np.any(one & runs)) for one in found)


def model_of(word: str) -> str:
    """
    Return the model that stands for a family by its ``model_type``; another word unchanged.

    Raises
    ------
    SpecError
        If the family is refused.
    """
    if word in UNMODELLED:
        raise SpecError("support", f"the family {word!r} has {UNMODELLED[word]}, which is not modelled.")
    return _models().get(TEXT_PARTS.get(word, word), word)


def support_tables(sections: Sequence[Section]) -> list[dict[str, Any]]:
    """Return the tables for programs."""
    return [{"title": one.title, "header": [*one.header], "rows": [[*row] for row in one.rows]} for one in sections]


def _families(device: str) -> Section:
    """Return the families, each by one model of it."""
    first = _models()
    header = ("family", "by the model", "planned", "runs", *TARGETS, "reasons")
    rows = tuple(_family(family, first[family], device) for family in sorted(FAMILIES))
    return Section(title=f"Families on {device}", header=header, rows=rows)


@cache
def _models() -> dict[str, str]:
    """Return the name of the first model of each family."""
    own = ((catalog.model(name).family, name) for name in catalog.models() if not name.startswith("mofa"))
    others = ((config["model_type"], name) for name, config in catalog.family_models().items())
    return dict(reversed([*own, *others]))


def _family(family: str, model: str, device: str) -> tuple[str, ...]:
    planned = refusal(model, device, None) or "yes"
    return (family, model, planned, str(_family_runs(family)), *_targets(model, device))


def _devices(model: str, devices: Sequence[str]) -> Section:
    """Return the devices, each with its answers for one model."""
    rows = tuple(
        (device, refusal(model, device, None) or "yes", str(_device_runs(device)), *_targets(model, device))
        for device in devices
    )
    header = ("device", "planned", "runs", *TARGETS, "reasons")
    return Section(title=f"Devices with {model}", header=header, rows=rows)


def _targets(model: str, device: str) -> tuple[str, ...]:
    """Return a cell per target, and the reasons of those that are refused."""
    reasons = {target: refusal(model, device, target) for target in TARGETS}
    cells = ("no" if reason else "yes" if _has_model(target, model) else OWN for target, reason in reasons.items())
    return (*cells, "; ".join(_reason_texts(reasons)))


OWN = "own model"
"""Cell of a target that runs a plan with the user's own code of the model."""


def _has_model(target: str, model: str) -> bool:
    """Return True unless a target that builds models from recipes has none of this model."""
    has_model = getattr(import_module(TARGETS[target]), "has_model", None)
    return has_model is None or bool(has_model(read(model, Path()).model))


def _reason_texts(reasons: dict[str, str]) -> Iterator[str]:
    for reason in dict.fromkeys(filter(None, reasons.values())):
        yield f"{', '.join(target for target, own in reasons.items() if own == reason)}: {reason}"


def _family_runs(family: str) -> int:
    counts = read_counts()
    return sum(counts.runs("family", family, kind) for kind in ("dense", "moe", "hybrid"))


def _device_runs(device: str) -> int:
    return read_counts().runs("device", device)
