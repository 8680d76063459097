"""The job file -> Problem: names looked up, units converted, choices turned into numbers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from constraints.limits import Bound
from constraints.listing import Listing
from costmodel import catalog, config_json, description, huggingface
from costmodel import reliability as formulas
from costmodel.errors import SpecError, did_you_mean
from costmodel.parameters import mtp_parameters, parameters
from costmodel.software import equip
from costmodel.spec import Cluster, Device, Model, Precision, RecoveryLevel, Reliability, Software, Workload
from costmodel.strategy import DECISIONS, decision_text
from costmodel.tables import Facts
from costmodel.validation import build, shown
from planner.bounds import read_bound, read_condition
from planner.document import apply_override, mapping_from_python, read_mapping, split_assignment
from planner.given import Given, read_given
from planner.job import (
    MOFA_RECOVERY,
    ClusterSection,
    Job,
    Reference,
    ReliabilitySection,
    SearchSection,
    TrainingSection,
)
from planner.listing import read_listing
from planner.values import decision_value

GIB_BYTES = 2**30
MAX_ALLOWED_VALUES = 10_000
PROBABILITY_TOLERANCE = 1e-6
CHECKPOINT_ENTRIES = ("device_to_host_bandwidth", "disk_write_bandwidth", "asynchronous_checkpoints")

Record = TypeVar("Record")


class StageChoice(StrEnum):
    """
    What pipeline stages may differ in.

    ``even``: nothing, layers are dealt evenly; ``layers``: how many layers they hold; ``free``: also what each rank
    recomputes and offloads.
    """

    EVEN = "even"
    LAYERS = "layers"
    FREE = "free"


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchLimits:
    """
    What the job lets the planner choose; every value is an int (flags 0 and 1, enums their members).

    Parameters
    ----------
    pin
        Decisions with one value.
    allow
        Decisions with the values that they may have, in ascending order.
    forbid
        Combinations of values and bounds that may not occur together.
    memory_headroom_bytes
        Device memory to leave free.
    framework_rules
        Whether plans must satisfy what Megatron-LM demands beyond the mathematics.
    time_limit_seconds
        When to stop and report what there is.
    stages
        What pipeline stages may differ in.
    limits
        Bounds of decisions and of products of them.
    candidates
        The only strategies that are considered.
    max_bubble_fraction
        Share of the step that the pipeline's bubble may be.
    max_devices
        Devices that a plan may use at most; None: it uses all of them.
    """

    pin: Mapping[str, int]
    allow: Mapping[str, tuple[int, ...]]
    forbid: tuple[Mapping[str, int | Bound], ...]
    memory_headroom_bytes: float
    framework_rules: bool
    time_limit_seconds: float
    stages: StageChoice = StageChoice.EVEN
    limits: tuple[Bound, ...] = ()
    candidates: Listing | None = None
    max_bubble_fraction: float | None = None
    max_devices: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """
    A job with everything looked up: what is given, what may be chosen, what is best.

    Parameters
    ----------
    name
        The job file's name without its ending.
    facts
        Model, cluster and workload.
    reliability
        Failures, mean time to repair, checkpoints.
    recovery
        Ways to recover, whose mean is the time to repair; empty where the job gives the mean itself.
    search
        Pins, allowed values, forbidden combinations, headroom and time limit.
    objective
        What is as small as possible.
    top
        How many plans to report.
    sources
        Files that were read.
    variants
        Whether the plans differ in their groups of devices (``groups``: the best one of each combination of tp, cp, pp,
        dp and ep), or are the best whatever they have in common (``all``).
    checkpoints_follow
        Whether the cost of a checkpoint follows from the devices' bandwidths, so that fewer devices take longer.
    given
        The strategy that the job gives, to be estimated or compared.
    document
        The job as plain data that needs no other file, with all overrides: what :func:`load` reads again. Lists of
        candidates are not in it.
    """

    name: str
    facts: Facts
    reliability: Reliability
    recovery: tuple[RecoveryLevel, ...]
    search: SearchLimits
    objective: Literal["step_time", "total_time"]
    top: int
    sources: tuple[Path, ...] = ()
    variants: Literal["groups", "all"] = "groups"
    checkpoints_follow: bool = False
    given: Given = field(default_factory=Given)
    document: Mapping[str, Any] = field(default_factory=dict, compare=False)


def load(
    job: str | os.PathLike[str] | Mapping[str, Any],
    overrides: Sequence[str] = (),
    *,
    name: str = "job",
    folder: str | os.PathLike[str] = "",
) -> Problem:
    """
    Read a job.

    Parameters
    ----------
    job
        Path of a YAML file, or its content as a mapping.
    overrides
        ``key=value`` with dotted keys, such as ``training.global_batch_size=512`` or ``search.allow.pp=[4, 8]``.
    name
        What a job given as a mapping is called.
    folder
        What paths in a mapping are relative to; the working directory by default.

    Raises
    ------
    SpecError
        For the first thing that is wrong, with its dotted path.
    """
    if isinstance(job, Mapping):
        return _problem(mapping_from_python(job), overrides, Path(folder), name, ())
    path = Path(job)
    return _problem(read_mapping(path), overrides, path.parent, path.stem, (path,))


def _problem(
    document: dict[str, Any], overrides: Sequence[str], folder: Path, name: str, sources: tuple[Path, ...]
) -> Problem:
    for override in overrides:
        apply_override(document, override)
    job = build(Job, document, "")
    workload = _workload(job.training)
    device = device_path(job.cluster.device, folder)
    entry = job.cluster.device if device is None else read_mapping(device)
    cluster = _cluster(job.cluster, entry)
    _require_peak(workload.precision, cluster.device)
    _require_devices(job)
    config = None if isinstance(job.model, Mapping) else config_path(job.model, folder)
    model = job.model if config is None else dict(config_json.read_mapping(config))
    listing = folder / os.path.expanduser(job.search.candidates) if job.search.candidates is not None else None
    facts = Facts(model=_model(model, config), cluster=cluster, workload=workload)
    recovery = _recovery(job.reliability)
    return Problem(
        name=name,
        facts=facts,
        reliability=_reliability(job.reliability, recovery, facts),
        recovery=recovery,
        search=_search(job.search, listing),
        objective=job.objective,
        top=job.top,
        variants=job.variants,
        checkpoints_follow=job.reliability.checkpoint_seconds is None,
        sources=(*sources, *(path for path in (config, device, listing) if path)),
        given=read_given(job.strategy),
        document=_self_contained(document, model, entry),
    )


def _self_contained(document: Mapping[str, Any], model: Reference, device: Reference) -> dict[str, Any]:
    """A job with the contents of its files instead of their paths."""
    search = {name: value for name, value in (document.get("search") or {}).items() if name != "candidates"}
    if isinstance(model, Mapping) and isinstance(model.get("text_config"), Mapping):
        model = {**model, "model_type": model.get("model_type", model["text_config"].get("model_type"))}
    return {**document, "model": model, "cluster": {**document["cluster"], "device": device}, "search": search}


# --- model -------------------------------------------------------------------------------------------------


def read_model(name: str, folder: Path = Path()) -> Model:
    """A model by its catalog name or by the path of its ``config.json``, relative to ``folder``."""
    path = config_path(name, folder)
    return catalog.model(name) if path is None else huggingface.read_config(path)


def config_path(name: str, folder: Path) -> Path | None:
    """
    The file that a model's name means; None for a name in the catalog.

    Raises
    ------
    SpecError
        If it is neither in the catalog nor a file or folder.
    """
    if name in catalog.models():
        return None
    path = folder / os.path.expanduser(name)
    if name and exists(path):
        return path / "config.json" if path.is_dir() else path
    if "/" in name or name.endswith(".json"):
        raise SpecError("model", f"no such file: {shown(str(path))}.")
    hint = did_you_mean(name, catalog.models())
    raise SpecError("model", f"{shown(name)} is neither in the catalog nor a file.", hint)


def exists(path: Path) -> bool:
    """Whether it is there; what no path can be is not."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def _model(model: Reference, config: Path | None) -> Model:
    if isinstance(model, str):
        return catalog.model(model)
    if config is not None:
        return huggingface.model_from_config(model, "model", huggingface.model_name(config), str(config))
    if "model_type" in model:
        return huggingface.model_from_config(model, "model", "inline", "job file")
    return description.model_from_entry(model, "model", "inline")


# --- cluster -----------------------------------------------------------------------------------------------


def device_path(entry: str | Mapping[str, Any], folder: Path) -> Path | None:
    """The file that a device's name means, such as what ``planner calibrate`` wrote; None: it is no path."""
    if (
        isinstance(entry, str)
        and entry not in catalog.devices()
        and ("/" in entry or entry.endswith((".yaml", ".yml")))
    ):
        return folder / os.path.expanduser(entry)
    return None


def _cluster(section: ClusterSection, entry: Reference) -> Cluster:
    device = _device(entry)
    changes: dict[str, Any] = {
        "devices_per_node": section.devices_per_node,
        "networks": section.networks,
        "memory_bytes": _bytes(section.memory_gib),
        "host_memory_bytes": _bytes(section.host_memory_gib),
    }
    device = _changed(device, {name: value for name, value in changes.items() if value is not None})
    if section.scale_up_size is not None:
        scale_up = replace(device.networks[0], num_peers=section.scale_up_size)
        device = _changed(device, {"networks": (scale_up, *device.networks[1:])})
    _require_growing(device, _networks_entry(section))
    _require_whole_nodes(device, "cluster.device" if section.devices_per_node is None else "cluster")
    if section.software is not None:
        stacks = catalog.software_stacks()
        device = equip(device, _from_catalog(Software, section.software, catalog.software, stacks, "cluster.software"))
    return Cluster(device=device, num_devices=section.num_devices)


def _device(entry: Reference) -> Device:
    device = _from_catalog(Device, entry, catalog.device, catalog.devices(), "cluster.device")
    if isinstance(entry, str) or "sources" in entry:
        return device
    names = [
        f"{name}.{inner}" if isinstance(value, Mapping) else name
        for name, value in entry.items()
        if name != "base"
        for inner in (value if isinstance(value, Mapping) else [name])
    ]
    return replace(device, sources=_sources(device, names))


def _bytes(gib: float | None) -> float | None:
    return None if gib is None else gib * GIB_BYTES


def _changed(device: Device, changes: Mapping[str, Any]) -> Device:
    return replace(device, **changes, sources=_sources(device, changes))


def _sources(device: Device, changed: Iterable[str]) -> dict[str, str]:
    """The catalog's sources, except of what the job says itself."""
    names = tuple(changed)
    kept = {
        key: source
        for key, source in device.sources.items()
        if not any(key == name or key.startswith(f"{name}.") for name in names)
    }
    return {**kept, **dict.fromkeys(names, "job file")}


def _networks_entry(section: ClusterSection) -> str:
    """The entry of the job that decides over the levels of interconnect."""
    if section.scale_up_size is not None:
        return "cluster.scale_up_size"
    return "cluster.device.networks" if section.networks is None else "cluster.networks"


def _require_growing(device: Device, where: str) -> None:
    for inner, outer in pairwise(device.networks):
        if outer.num_peers < inner.num_peers:
            raise SpecError(
                where,
                f"level '{inner.name}' reaches {inner.num_peers} devices, level '{outer.name}' around it only "
                f"{outer.num_peers}.",
                "Levels go from the innermost outwards.",
            )


def _require_whole_nodes(device: Device, where: str) -> None:
    """Domains of the innermost level are whole nodes, or nodes whole domains."""
    domain, node = device.networks[0].num_peers, device.devices_per_node
    if domain % node and node % domain:
        raise SpecError(
            f"{where}.devices_per_node",
            f"is {node}, a domain of level '{device.networks[0].name}' holds {domain} devices; neither divides the "
            "other.",
            "Give cluster.devices_per_node and cluster.scale_up_size.",
        )


def _from_catalog(
    record_type: type[Record],
    entry: str | Mapping[str, Any],
    look_up: Callable[[str], Record],
    known: Sequence[str],
    where: str,
) -> Record:
    """A record by its name, inline, or inline on top of a named ``base``."""
    if isinstance(entry, str):
        return _named(entry, look_up, known, where)
    overrides = {name: value for name, value in entry.items() if name != "base"}
    if "base" not in entry:
        return build(record_type, {"name": "inline", **overrides}, where)
    base = entry["base"]
    if not isinstance(base, str):
        raise SpecError(f"{where}.base", f"expected a name, got {shown(base)}.")
    known_values = asdict(cast(Any, _named(base, look_up, known, f"{where}.base")))
    return build(record_type, _merged({**known_values, "name": f"{base}, changed"}, overrides), where)


def _named(name: str, look_up: Callable[[str], Record], known: Sequence[str], where: str) -> Record:
    if name not in known:
        raise SpecError(where, f"{shown(name)} is not in the catalog.", did_you_mean(name, known))
    return look_up(name)


def _merged(base: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Overrides on top of a base; mappings merge, everything else is replaced."""
    merged = dict(base)
    for name, value in overrides.items():
        known = merged.get(name)
        merged[name] = _merged(known, value) if isinstance(known, dict) and isinstance(value, dict) else value
    return merged


# --- training ----------------------------------------------------------------------------------------------


def _workload(section: TrainingSection) -> Workload:
    precision = _from_catalog(
        Precision, section.precision, catalog.precision, catalog.precisions(), "training.precision"
    )
    step_tokens = section.global_batch_size * section.sequence_length
    if section.tokens < step_tokens:
        raise SpecError(
            "training.tokens",
            f"is {section.tokens:g}, less than one step of {section.global_batch_size} x {section.sequence_length} = "
            f"{step_tokens} tokens.",
            "Write the tokens of the whole training, such as 15e12.",
        )
    return Workload(
        global_batch_size=section.global_batch_size,
        sequence_length=section.sequence_length,
        tokens=section.tokens,
        precision=precision,
    )


def _require_peak(precision: Precision, device: Device) -> None:
    if precision.compute not in device.peak_flops:
        raise SpecError(
            "training.precision",
            f"'{precision.name}' computes in {precision.compute}, which {device.name} does not.",
            f"It has: {', '.join(sorted(device.peak_flops))}.",
        )


# --- reliability -------------------------------------------------------------------------------------------


def _recovery(section: ReliabilitySection) -> tuple[RecoveryLevel, ...]:
    if section.mttr_seconds is not None:
        if section.recovery is not None:
            raise SpecError("reliability.mttr_seconds", "is given beside 'recovery', from which it follows; keep one.")
        return ()
    recovery = section.recovery or MOFA_RECOVERY
    total = sum(level.probability for level in recovery)
    if abs(total - 1) > PROBABILITY_TOLERANCE:
        raise SpecError("reliability.recovery", f"the probabilities must sum to 1, got {total:.6g}.")
    return recovery


def _reliability(section: ReliabilitySection, recovery: tuple[RecoveryLevel, ...], facts: Facts) -> Reliability:
    entries = {
        "failures_per_node_day": section.failures_per_node_day,
        "mttr_seconds": formulas.mttr_seconds(recovery) if section.mttr_seconds is None else section.mttr_seconds,
        "init_seconds": section.init_seconds,
        **_checkpoint(section, facts),
    }
    return build(Reliability, entries, "reliability")


def _checkpoint(section: ReliabilitySection, facts: Facts) -> dict[str, float]:
    """What a checkpoint costs, as the job says or from the bytes of weights and optimizer states and the bandwidths."""
    given = [name for name in CHECKPOINT_ENTRIES if getattr(section, name) is not None]
    if section.checkpoint_seconds is not None:
        if given:
            raise SpecError(
                "reliability.checkpoint_seconds", f"is given beside '{given[0]}', from which it follows; keep one."
            )
        return {"checkpoint_seconds": section.checkpoint_seconds}
    bandwidths = {name: getattr(section, name) for name in given if name.endswith("bandwidth")}
    cluster = replace(facts.cluster, device=replace(facts.cluster.device, **bandwidths))
    num_parameters = parameters(facts.model) + mtp_parameters(facts.model)
    nbytes = formulas.checkpoint_bytes(facts.workload, num_parameters=num_parameters)
    whole = formulas.checkpoint_seconds(cluster, checkpoint_bytes=nbytes, asynchronous=False)
    if not section.asynchronous_checkpoints:
        return {"checkpoint_seconds": whole}
    copy = formulas.checkpoint_seconds(cluster, checkpoint_bytes=nbytes, asynchronous=True)
    return {"checkpoint_seconds": copy, "write_seconds": whole}


# --- search ------------------------------------------------------------------------------------------------


def _require_devices(job: Job) -> None:
    most, given = job.search.max_devices, job.cluster.num_devices
    if most is not None and most > given:
        raise SpecError("search.max_devices", f"is {most}, more than the {given} of cluster.num_devices.")
    if most is not None and job.objective == "total_time":
        raise SpecError(
            "search.max_devices",
            "lets plans differ in their devices, and so in their failures: the total time then does not grow with the "
            "step time.",
            "Set objective: step_time.",
        )


def _search(section: SearchSection, listing: Path | None) -> SearchLimits:
    pin = _values(section.pin, "search.pin")
    allow = {
        _decision_name(name, "search.allow"): _allowed(name, values, f"search.allow.{name}")
        for name, values in section.allow.items()
    }
    for name in pin.keys() & allow.keys():
        if pin[name] not in allow[name]:
            raise SpecError(
                f"search.pin.{name}", f"is {decision_text(name, pin[name])}, which search.allow.{name} excludes."
            )
    return SearchLimits(
        pin=pin,
        allow=allow,
        forbid=tuple(_combination(entry, f"search.forbid.{index}") for index, entry in enumerate(section.forbid)),
        memory_headroom_bytes=section.memory_headroom_gib * GIB_BYTES,
        framework_rules=section.framework_rules,
        time_limit_seconds=section.time_limit_seconds,
        stages=StageChoice(section.stages),
        limits=tuple(read_bound(text, f"search.limits.{i}") for i, text in enumerate(section.limits)),
        candidates=read_listing(listing) if listing else None,
        max_bubble_fraction=section.max_bubble_fraction,
        max_devices=section.max_devices,
    )


def _values(entries: Mapping[str, object], where: str) -> dict[str, int]:
    return {
        _decision_name(name, where): decision_value(name, value, f"{where}.{name}") for name, value in entries.items()
    }


def _allowed(name: str, values: object, where: str) -> tuple[int, ...]:
    if not isinstance(values, list) or not 1 <= len(values) <= MAX_ALLOWED_VALUES:
        raise SpecError(where, f"expected a list of values such as [4, 8], got {shown(values)}.")
    return tuple(sorted({decision_value(name, value, f"{where}.{index}") for index, value in enumerate(values)}))


def _combination(entry: Mapping[str, object], where: str) -> dict[str, int | Bound]:
    if not entry:
        raise SpecError(where, "is empty and would forbid every plan.", "Write what to forbid, such as {pp: 8}.")
    return {name: _condition(name, value, where) for name, value in entry.items()}


def _condition(name: str, value: object, where: str) -> int | Bound:
    """What a forbidden combination says of one decision: a value, or a bound such as ``>= 16``."""
    place = f"{where}.{_decision_name(name, where)}"
    bound = read_condition(name, value, place) if isinstance(value, str) else None
    return decision_value(name, value, place) if bound is None else bound


def _decision_name(name: str, where: str) -> str:
    if name not in DECISIONS:
        raise SpecError(f"{where}.{shown(name)[1:-1]}", "no such decision.", did_you_mean(name, DECISIONS))
    return name


def split_overrides(assignments: Sequence[str]) -> tuple[list[str], list[str]]:
    """
    Tell entries of the job from decisions: the former have a dot or are a whole section.

    >>> split_overrides(["tp=8", "training.tokens=1e12", "objective=step_time"])
    (['training.tokens=1e12', 'objective=step_time'], ['tp=8'])
    """
    sections = {field.name for field in fields(Job)}
    names = [assignment.partition("=")[0].strip() for assignment in assignments]
    of_job = ["." in name or name in sections for name in names]
    return (
        [assignment for assignment, is_job in zip(assignments, of_job, strict=True) if is_job],
        [assignment for assignment, is_job in zip(assignments, of_job, strict=True) if not is_job],
    )


def read_decisions(assignments: Sequence[str]) -> dict[str, int]:
    """
    Decisions written as ``key=value``.

    >>> read_decisions(["tp=8", "recompute=selective"])
    {'tp': 8, 'recompute': <Recompute.SELECTIVE: 1>}
    """
    decisions: dict[str, int] = {}
    for assignment in assignments:
        name, value = split_assignment(assignment)
        _decision_name(name, "strategy")
        if name in decisions:
            raise SpecError(f"strategy.{name}", "is given twice; keep one.")
        decisions[name] = decision_value(name, value, f"strategy.{name}")
    return decisions
