"""Read a job file into a Problem: names are looked up, units converted, options turned into numbers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from costmodel import catalog
from costmodel import reliability as formulas
from costmodel.catalog.files import require_known
from costmodel.errors import SpecError
from costmodel.events import log_event
from costmodel.facts.device import Cluster, Device
from costmodel.facts.framework import Settings
from costmodel.facts.model import Model
from costmodel.facts.reliability import USUALLY_KEPT, Checkpoint, Costs, RecoveryLevel, Reliability
from costmodel.facts.workload import Precision, SequenceLengths, Workload
from costmodel.lowering.framework import MUON, keep_wide_layers, limit_mtp_layers, moment_bytes, storage_precision
from costmodel.models.flops import matrix_parameters, mtp_parameters, parameters
from costmodel.record import record
from costmodel.tables import Facts
from costmodel.validation import build, name_overflow, require_type, shown
from planner.jobs.cluster import CATALOG, FRAMEWORK, Fitted, add_target, cluster_of, device_of, device_path, read_whole
from planner.jobs.document import (
    Document,
    add_places,
    apply_overrides,
    mapping_from_python,
    read_document,
    read_mapping,
)
from planner.jobs.entries import (
    EVALUATION_INTERVAL_STEPS,
    EVALUATION_STEPS,
    LEAST_KEPT,
    MOFA_RECOVERY,
    SECTIONS,
    ClusterSection,
    Job,
    Reference,
    ReliabilitySection,
    TrainingSection,
)
from planner.jobs.limits import SearchLimits, parts_of_search, read_search, require_devices, require_room
from planner.jobs.line import expand_lines, read_lines, read_strategy, require_parts, split_words
from planner.jobs.strategy_file import CHOOSABLE, StrategyFile, Value, combine_settings, require_features, split

PROBABILITY_TOLERANCE = 1e-6
PRECISION = "training.precision"
CHECKPOINT_ENTRIES = ("device_to_host_bandwidth", "disk_write_bandwidth", "asynchronous_checkpoints")


@record(frozen=True, kw_only=True, slots=True)
class Machine:
    """
    The cluster part of a job, from which clusters with other constants are built.

    Parameters
    ----------
    section, device, settings
        Entries of the job; the device's file is read.
    model
        Model of the job, before its settings are applied.
    precision
        Name of the precision recipe; None: the framework's own.
    """

    section: ClusterSection
    device: Reference
    settings: Settings
    model: Model
    precision: str | None

    def cluster(self, fitted: Fitted = CATALOG) -> Cluster:
        """Build the cluster, with constants that replace the catalog's."""
        return cluster_of(self.section, self.device, self.settings, self.model, self.precision, fitted)


@record(frozen=True, kw_only=True, slots=True)
class Alternative:
    """
    One combination of the settings for which a job gives several values.

    Parameters
    ----------
    settings
        One value of each setting.
    facts, reliability, machine
        Facts of a job that gives these values alone.
    """

    settings: Mapping[str, Value]
    facts: Facts
    reliability: Reliability
    machine: Machine


@record(frozen=True, kw_only=True, slots=True)
class Problem:
    """
    A job with all names looked up: facts, search space and objective.

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
        Quantity to minimize.
    top
        Number of plans to report.
    sources
        Files that were read.
    variants
        ``groups``: the best plan of each combination of tp, cp, pp, dp and ep. ``all``: the best plans, even if they
        differ little.
    costs
        Prices of devices and electricity, and known energy beyond the devices.
    given
        The strategy that the job gives, to be estimated or compared.
    document
        The job as plain data that needs no other file, with all overrides. :func:`load` can read it again. Lists of
        candidates are left out.
    machine
        Parts from which the cluster was built; None: it was built by hand.
    settings
        Values of this combination, where the original job gives several for some settings.
    alternatives
        Combinations of settings that are searched together, in the job's order. The job's own facts, reliability and
        machine are those of the first. Empty where each setting has one value.
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
    costs: Costs = field(default_factory=Costs)
    given: StrategyFile = field(default_factory=StrategyFile)
    document: Mapping[str, Any] = field(default_factory=dict, compare=False)
    machine: Machine | None = field(default=None, compare=False)
    settings: Mapping[str, Value] = field(default_factory=dict)
    alternatives: tuple[Alternative, ...] = ()

    @property
    def each(self) -> tuple[Problem, ...]:
        """One job for each combination of settings, as if it gave no others; the job itself where it has only one."""
        return tuple(self._choose(one) for one in self.alternatives) or (self,)

    def _choose(self, one: Alternative) -> Problem:
        given = {**(self.document.get("settings") or {}), **one.settings}
        return replace(
            self,
            facts=one.facts,
            reliability=one.reliability,
            machine=one.machine,
            document={**self.document, "settings": given},
            settings=one.settings,
            alternatives=(),
        )

    def change_limits(self, **changes: Any) -> Problem:
        """Return the job with changed limits of its search, by the names of :class:`SearchLimits`."""
        return replace(self, search=replace(self.search, **changes))

    def change_cluster(self, **changes: Any) -> Problem:
        """Return the job on a changed cluster, by the names of :class:`costmodel.facts.device.Cluster`."""
        others = tuple(replace(one, facts=_change_cluster(one.facts, changes)) for one in self.alternatives)
        return replace(self, facts=_change_cluster(self.facts, changes), alternatives=others)


def _change_cluster(facts: Facts, changes: Mapping[str, Any]) -> Facts:
    return replace(facts, cluster=replace(facts.cluster, **changes))


def load(
    job: str | os.PathLike[str] | Mapping[str, Any] | Document,
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
        Path of a YAML file, its content as a mapping, or a document that was read elsewhere.
    overrides
        ``key=value`` with dotted keys, such as ``training.global_batch_size=512`` or ``search.allow.pp=[4, 8]``.
    name
        Name of a job that is given as a mapping.
    folder
        Folder to which paths in a mapping are relative; default: the working directory.

    Raises
    ------
    SpecError
        For all mistakes, each with its dotted path, and its line and column in a file.
    """
    require_type(job, (str, os.PathLike, Mapping, Document), "job", "a job file's path or a mapping")
    require_type(folder, (str, os.PathLike), "folder", "a path")
    if isinstance(job, Document):
        document = job
    elif isinstance(job, Mapping):
        document = Document(entries=mapping_from_python(job), folder=Path(folder), name=name)
    else:
        document = read_document(Path(job))
    try:
        lines = read_lines(document.entries)
        expand_lines(document.entries, overrides)
        apply_overrides(document, overrides)
        lines |= read_lines(document.entries)
        expand_lines(document.entries)
        found = _problem(document.entries, document.folder, document.name, document.sources)
        for where, given in lines.items():
            require_parts(found.facts.model, given, where)
        log_event(__name__, "job read", job=found.name, devices=found.facts.cluster.num_devices)
        return found
    except ValidationError as error:
        if (named := name_overflow(error)) is None:
            raise
        raise named from None
    except SpecError as error:
        others = _other_mistakes(document.entries, document.folder)
        raise add_places([*document.mistakes, error, *others], document.places) from None


def _problem(document: dict[str, Any], folder: Path, name: str, sources: tuple[Path, ...]) -> Problem:
    job, several = _job(document)
    path, entry = _device_entry(job.cluster.device, folder)
    model, model_entry, model_file = read_whole(job.model, folder)
    machine = Machine(
        section=add_target(job.cluster, entry, job.search.target),
        device=entry,
        settings=job.settings,
        model=model,
        precision=_precision_name(job.training.precision),
    )
    recovery = _recovery(job.reliability)
    lengths, histogram, lengths_file = None, None, None
    if job.training.sequence_lengths is not None or job.training.max_seqlen_per_dp_cp_rank is not None:
        from planner.jobs.sequence_lengths import read_lengths

        lengths, histogram, lengths_file = read_lengths(job.training, folder)
    alternatives = _alternatives(job, machine, several, recovery, lengths)
    first = alternatives[0]
    require_devices(job, first.facts.cluster.num_devices)
    candidates_file = folder / os.path.expanduser(job.search.candidates) if job.search.candidates is not None else None
    given = read_strategy(job.strategy)
    search = read_search(job.search, candidates_file, first.facts)
    require_room(search, first.facts.cluster.device)
    if search.framework_rules and search.target is None:
        cluster = first.facts.cluster
        require_features(cluster, given.decisions, "strategy")
        require_features(cluster, search.pin, "search.pin")
        require_features(cluster, search.allow, "search.allow")
    return Problem(
        name=name,
        facts=first.facts,
        reliability=first.reliability,
        recovery=recovery,
        search=search,
        objective=job.objective,
        top=job.top,
        variants=job.variants,
        costs=job.costs,
        sources=(*sources, *(file for file in (model_file, path, candidates_file, lengths_file) if file)),
        given=given,
        document=_self_contained(document, model_entry, entry, histogram),
        machine=first.machine,
        settings=first.settings if len(alternatives) == 1 else {},
        alternatives=alternatives if len(alternatives) > 1 else (),
    )


def _job(document: Mapping[str, Any]) -> tuple[Job, Mapping[str, Any]]:
    """Build the record of a job, and split off its settings with several values."""
    own, several = split(document.get("settings"))
    return build(Job, {**document, "settings": own} if several else document, ""), several


def _device_entry(device: Reference, folder: Path) -> tuple[Path | None, Reference]:
    """Return the path of the device file, if there is one, and the device's entry."""
    path = device_path(device, folder)
    return path, device if path is None else read_mapping(path)


def _other_mistakes(document: Mapping[str, Any], folder: Path) -> Iterator[SpecError]:
    """Yield the mistakes of parts of a job that can be read separately."""
    parts = {name: value for name, value in document.items() if isinstance(value, Mapping)}
    cluster, search = parts.get("cluster", {}), parts.get("search", {})
    precision = parts.get("training", {}).get("precision")
    checks: list[tuple[object, Callable[[Any], object]]] = [
        (document, _job),
        (document.get("model"), lambda model: read_whole(model, folder)),
        (cluster.get("device"), lambda device: device_of(_device_entry(device, folder)[1])),
        (cluster.get("framework"), lambda framework: catalog.framework_of(framework, FRAMEWORK)),
        (precision, _require_recipe),
        (parts.get("strategy"), read_strategy),
        *((value, check) for value, check in parts_of_search(search)),
    ]
    for value, check in checks:
        try:
            if isinstance(value, str | Mapping):
                check(value)
        except SpecError as error:
            yield error


def _require_recipe(precision: Reference) -> None:
    if isinstance(precision, str):
        require_known(PRECISION, precision, catalog.precisions())


def _alternatives(
    job: Job,
    machine: Machine,
    several: Mapping[str, Any],
    recovery: tuple[RecoveryLevel, ...],
    lengths: SequenceLengths | None,
) -> tuple[Alternative, ...]:
    """Return the facts of each combination of settings; one where each setting has one value."""
    if not several:
        return (_alternative(job, machine, {}, recovery, lengths),)
    framework = machine.cluster().framework
    assert framework is not None, "a job's cluster has a framework"
    chosen = combine_settings(several, framework, framework_rules=job.search.framework_rules)
    return tuple(_alternative(job, machine, one, recovery, lengths) for one in chosen)


def _alternative(
    job: Job,
    machine: Machine,
    settings: Mapping[str, Value],
    recovery: tuple[RecoveryLevel, ...],
    lengths: SequenceLengths | None,
) -> Alternative:
    """Build the facts of a job with additional settings."""
    whole = replace(machine, settings=replace(machine.settings, **dict[str, Any](settings)))
    cluster = whole.cluster()
    workload = replace(_workload(job.training, cluster), lengths=lengths)
    model = limit_mtp_layers(machine.model, cluster.settings)
    _require_shares(model, cluster.settings)
    model = keep_wide_layers(model, cluster.settings, workload.precision)
    _require_peak(workload.precision, cluster.device)
    facts = Facts(model=model, cluster=cluster, workload=workload)
    reliability = _reliability(job, recovery, facts)
    return Alternative(settings=settings, facts=facts, reliability=reliability, machine=whole)


def _self_contained(
    document: Mapping[str, Any], model: Reference, device: Reference, histogram: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return a job with the contents of its files instead of their paths."""
    if histogram is not None:
        document = {**document, "training": {**document["training"], "sequence_lengths": dict(histogram)}}
    search = {name: value for name, value in (document.get("search") or {}).items() if name != "candidates"}
    return {**document, "model": model, "cluster": {**document["cluster"], "device": device}, "search": search}


# --- training ----------------------------------------------------------------------------------------------


def _workload(section: TrainingSection, cluster: Cluster) -> Workload:
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
        precision=_precision(section.precision, cluster),
    )


def _precision_name(entry: Reference | None) -> str | None:
    """Return the name of the recipe that a job uses or starts from."""
    name = entry.get("base") if isinstance(entry, Mapping) else entry
    return name if isinstance(name, str) else None


def _precision(entry: Reference | None, cluster: Cluster) -> Precision:
    """Return the recipe with the bytes that the framework stores and sends; bytes that the job gives itself stay."""
    default = cluster.framework.precision if cluster.framework else "bf16"
    given = default if entry is None else entry
    if isinstance(given, str):
        require_known(PRECISION, given, catalog.precisions())
        return storage_precision(catalog.precision(given), cluster.settings)
    own = {name: value for name, value in given.items() if name != "base"}
    if "base" not in given:
        return build(Precision, {"name": "inline", **own}, PRECISION)
    base = given["base"]
    if not isinstance(base, str):
        raise SpecError(f"{PRECISION}.base", f"expected a name, got {shown(base)}.")
    require_known(f"{PRECISION}.base", base, catalog.precisions())
    changed = build(Precision, {**asdict(catalog.precision(base)), "name": f"{base}, changed", **own}, PRECISION)
    said = {name: getattr(changed, name) for name in own if name != "name"}
    return replace(storage_precision(changed, cluster.settings), **said)


def _require_shares(model: Model, settings: Settings) -> None:
    """Refuse more layers in 16 bits than the model has, and 8 bits in attention that is not one kernel."""
    if settings.fp8_attention and settings.attention == "unfused":
        raise SpecError("settings.fp8_attention", "is true, but settings.attention is 'unfused': 8 bits need 'flash'.")
    for name in ("first_layers_bf16", "last_layers_bf16"):
        number = getattr(settings, name)
        if number is not None and number > model.num_layers:
            raise SpecError(f"settings.{name}", f"must be at most the model's {model.num_layers} layers, got {number}.")
    start, end = settings.first_layers_bf16 or 0, settings.last_layers_bf16 or 0
    if start + end > model.num_layers:
        raise SpecError(
            "settings.last_layers_bf16",
            f"is {end}, but with settings.first_layers_bf16 = {start} these are {start + end} of the model's "
            f"{model.num_layers} layers.",
            f"At most {model.num_layers - start} are left.",
        )


def _require_peak(precision: Precision, device: Device) -> None:
    if precision.compute not in device.peak_flops:
        raise SpecError(
            PRECISION,
            f"'{precision.name}' computes in {precision.compute}, which {device.name} does not.",
            f"It has: {', '.join(sorted(device.peak_flops))}.",
        )


# --- reliability -------------------------------------------------------------------------------------------


def _recovery(section: ReliabilitySection) -> tuple[RecoveryLevel, ...]:
    if section.mttr_seconds is not None:
        if section.recovery is not None:
            raise SpecError("reliability.mttr_seconds", "is given with 'recovery', from which it follows; keep one.")
        return ()
    recovery = section.recovery or MOFA_RECOVERY
    total = sum(level.probability for level in recovery)
    if abs(total - 1) > PROBABILITY_TOLERANCE:
        raise SpecError("reliability.recovery", f"the probabilities must sum to 1, got {total:.6g}.")
    return recovery


def _reliability(job: Job, recovery: tuple[RecoveryLevel, ...], facts: Facts) -> Reliability:
    section = job.reliability
    entries = {
        "failures_per_node_day": section.failures_per_node_day,
        "mttr_seconds": formulas.mttr_seconds(recovery) if section.mttr_seconds is None else section.mttr_seconds,
        "checkpoint_seconds": 0.0,
        "init_seconds": section.init_seconds,
        "evaluation_fraction": _evaluation_fraction(job.training),
        "loading_seconds": job.training.data_loading_seconds,
        "max_write_fraction": section.max_write_fraction,
        "checkpoint": _checkpoint(section, facts),
    }
    return formulas.scale_reliability(facts.cluster, build(Reliability, entries, "reliability"))


def _evaluation_fraction(training: TrainingSection) -> float:
    """Return the time of evaluations over that of steps; 0 without any."""
    every, steps = training.evaluation_interval_steps, training.evaluation_steps
    if every is None and steps is None:
        return 0.0
    return formulas.evaluation_fraction(
        evaluation_steps=steps or EVALUATION_STEPS, interval_steps=every or EVALUATION_INTERVAL_STEPS
    )


def _checkpoint(section: ReliabilitySection, facts: Facts) -> Checkpoint:
    """Return size and saving of a checkpoint as the job gives them; its bytes are those of weights and states."""
    given = {name: value for name in CHECKPOINT_ENTRIES if (value := getattr(section, name)) is not None}
    if section.checkpoint_seconds is not None and given:
        raise SpecError(
            "reliability.checkpoint_seconds",
            f"is given with '{next(iter(given))}', from which it follows; keep one.",
        )
    num_parameters = parameters(facts.model) + mtp_parameters(facts.model)
    missing = 0.0
    if facts.cluster.settings.optimizer in MUON:
        missing = moment_bytes(facts.workload.precision, facts.cluster.settings) * matrix_parameters(facts.model)
    nbytes = formulas.checkpoint_bytes(facts.workload, num_parameters=num_parameters, missing_bytes=missing)
    return Checkpoint(
        nbytes=nbytes,
        is_asynchronous=bool(section.asynchronous_checkpoints),
        lost_seconds=section.checkpoint_seconds,
        device_to_host_bandwidth=section.device_to_host_bandwidth,
        disk_write_bandwidth=section.disk_write_bandwidth,
        storage_bandwidth=section.storage_bandwidth,
        keep=_count_kept(section, nbytes),
    )


def _count_kept(section: ReliabilitySection, nbytes: float) -> int:
    """Return the number of checkpoints to keep: the job's own, else the usual number or as many as storage holds."""
    wanted, capacity = section.keep_checkpoints, section.storage_capacity
    if capacity is None:
        return wanted or USUALLY_KEPT
    most = int(capacity // nbytes) - 1  # beside the one that is being written
    if most < LEAST_KEPT:
        raise SpecError(
            "reliability.storage_capacity",
            f"is {capacity:.4g} bytes, too few for {LEAST_KEPT} checkpoints of {nbytes:.4g} bytes and the one that is "
            f"being written: at least {(LEAST_KEPT + 1) * nbytes:.4g}.",
        )
    if wanted is not None and wanted > most:
        raise SpecError(
            "reliability.keep_checkpoints",
            f"is {wanted}, but storage_capacity holds {most} of {nbytes:.4g} bytes in addition to the one "
            f"being written.",
        )
    return min(USUALLY_KEPT, most) if wanted is None else wanted


def require_problem(given: object) -> None:
    """Refuse an argument that is no :class:`Problem`."""
    require_type(given, Problem, "problem", "a job as load returns it")


# --- overrides ---------------------------------------------------------------------------------------------


def split_overrides(assignments: Sequence[str]) -> tuple[list[str], list[str]]:
    """
    Split overrides into entries of the job and words of a line: an entry has a dot or is a whole section.

    Words of settings are entries, too. A quoted argument is split into words where all of it is a line.

    >>> split_overrides(["TP8 overlap=tp", "training.tokens=1e12", "objective=step_time", "loss=fused"])
    (['training.tokens=1e12', 'objective=step_time', 'settings.loss=fused'], ['TP8', 'overlap=tp'])
    """
    of_job: list[str] = []
    words: list[str] = []
    for word in split_words(assignments):
        name, equals, value = (part.strip() for part in word.partition("="))
        if equals and name.lower() in CHOOSABLE:
            if any(one.startswith(f"settings.{name.lower()}=") for one in of_job):
                raise SpecError(f"settings.{name}", f"is given twice, the second time by {word}; keep one.")
            of_job.append(f"settings.{name.lower()}={value}")
        else:
            (of_job if equals and ("." in name or name in SECTIONS) else words).append(word)
    return of_job, words
