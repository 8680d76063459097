"""Support of models, devices and export targets, from the checks that jobs pass: ``planner catalog support``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from importlib import import_module
from itertools import product
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from constraints.rules.physics import profile_has_measured_the_shapes
from costmodel import catalog
from costmodel.errors import SpecError
from costmodel.facts.framework import has_values
from costmodel.facts.model import Model
from costmodel.models.families import FAMILIES, TEXT_PARTS, UNMODELLED
from costmodel.models.flops import parameters
from costmodel.record import record
from costmodel.strategy import Recompute, Sharding, Strategy
from costmodel.tables import Facts, tabulate
from planner.frameworks import TARGETS
from planner.jobs.cluster import read
from planner.jobs.problem import Problem, load
from planner.report.section import Section, gib
from planner.search.candidates import fits, memory_only
from planner.search.domains import MAX_MICRO_BATCH_SIZE, Rules, default_domains, problem_rules
from planner.search.runnable import plainest, require_target
from planner.search.solver import Clock, OutOfTimeError
from planner.search.space import build_space
from planner.uncertainty.counts import read_counts
from planner.verbs.memory_gap import closest

ENOUGH = 2**12 * 45
"""Devices on which sharded states vanish; usual nodes and degrees divide it."""

MOST_SECONDS = 10.0
"""Longest time of the search for the closest strategy."""


def missing_bytes(problem: Problem) -> float:
    """
    Return the memory per device, with its share of the host, that the closest strategy lacks.

    It is 0 where a strategy fits, and infinite where none satisfies the other rules. A few plain strategies are tried
    first, for speed.

    Parameters
    ----------
    problem
        The job, on :data:`ENOUGH` devices.

    Raises
    ------
    OutOfTimeError
        If time runs out before a strategy is found.
    """
    if _has_plan(problem, problem_rules(problem), [*_plain_strategies(problem)]):
        return 0.0
    space = build_space(problem).keep_largest_sets()
    gap = closest(problem, space, memory_only, Clock(seconds=MOST_SECONDS))
    return gap.device_bytes + gap.host_bytes if gap else inf


def _has_plan(problem: Problem, rules: Rules, strategies: Sequence[Strategy]) -> bool:
    """Tell whether one of several strategies satisfies all rules, memory last."""
    facts, every = problem.facts, [one.decisions() for one in strategies]
    decisions = {name: np.array([one[name] for one in every]) for name in every[0]}
    for rule in (*rules.rows, *rules.mixed):
        kept = np.broadcast_to(tabulate(rule, facts, decisions), len(decisions["tp"]))
        if not kept.any():
            return False
        if not kept.all():
            decisions = {name: values[kept] for name, values in decisions.items()}
    device, host = fits(facts, rules, memory_only(facts, decisions), problem.search.memory_headroom_bytes)
    return bool((device & host).any())


def _plain_strategies(problem: Problem) -> Iterator[Strategy]:
    """Yield strategies that recompute all and shard optimizer states or weights, with few degrees."""
    facts = problem.facts
    most_tp = min(facts.cluster.device.devices_per_node, 8)
    few_ep = sorted({max(value for value in default_domains(facts)["ep"] if value <= most) for most in (1, 8, 64)})
    shardings = ((Sharding.WEIGHTS, True), (Sharding.OPTIMIZER, False))
    for pp, tp, ep, (sharding, overlap) in product((1, 4, 16), (1, most_tp), few_ep, shardings):
        yield replace(
            plainest(),
            tp=tp,
            pp=pp,
            dp=ENOUGH // (tp * pp),
            ep=ep,
            sequence_parallel=tp > 1,
            sharding=sharding,
            recompute=Recompute.FULL,
            dp_overlap=overlap,
        )


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
        return [_devices(model_of(model), catalog.devices() if named is None else (named,), is_exact=named is not None)]
    families = _families(named or COMMON_DEVICE)
    refused = Section(title="Refused families", header=("family", "reason"), rows=tuple(sorted(UNMODELLED.items())))
    return (
        [families, refused] if named else [families, refused, _devices(COMMON_MODEL, catalog.devices(), is_exact=False)]
    )


@record(frozen=True, slots=True)
class Support:
    """
    Support for a model, a device and a target.

    Parameters
    ----------
    reason
        The reason why no plan can be exported; empty: some can, with enough devices.
    conditions
        Entries that such a plan needs beside the usual ones, in few words.
    has_model
        True unless the target builds models from recipes and has none of this model.
    """

    reason: str
    conditions: tuple[str, ...] = ()
    has_model: bool = True

    @property
    def cell(self) -> str:
        """Cell of a table."""
        if self.reason:
            return "unknown" if self.reason == OUT_OF_TIME else "no"
        return ", ".join(("yes" if self.has_model else OWN, *self.conditions))


def ask(model: str, device: str, target: str | None, *, is_exact: bool = True) -> Support:
    """
    Ask whether some plan of a model on a device can be exported to a target, with enough devices for its memory.

    Parameters
    ----------
    model, device, target
        Names or a path; None: any plan, exported or not.
    is_exact
        False: for speed, the memory of a model with small layers is not asked.
    """
    known = catalog.device(device)
    if target is not None and catalog.newest_for(target, known.architecture) is None:
        return Support(f"no release of the catalog runs on {known.architecture}")
    precision = "bf16" if "bf16" in known.peak_flops else "fp16"
    training = {
        "global_batch_size": MAX_MICRO_BATCH_SIZE * ENOUGH,
        "sequence_length": read(model, Path()).learned_positions or SEQUENCE_LENGTH,
        "tokens": 1e12,
        "precision": precision,
    }
    job = {"model": model, "cluster": {"device": device, "num_devices": ENOUGH}, "training": training}
    try:
        problem = load({**job, "search": {"target": target}})
        require_target(problem)
        lacks_memory = bool((is_exact or _may_lack_memory(problem.facts)) and missing_bytes(problem))
        bold = load({**job, "search": {"target": target, "evidence": "any"}}) if lacks_memory else problem
        if lacks_memory and (missing := missing_bytes(bold)):
            return Support(_missing_text(bold.facts, missing))
    except SpecError as error:
        return Support(f"{error.where}: {error.problem.partition(' So no plan of the job')[0].rstrip('.')}")
    except OutOfTimeError:
        return Support(OUT_OF_TIME)
    conditions = (*(() if precision == "bf16" else (precision,)), *((ANY_EVIDENCE,) if lacks_memory else ()))
    return Support("", conditions, target is None or _has_model(target, problem.facts.model))


LARGE_LAYER = 0.25
"""Share of a device's memory above which a mean layer's states may exclude every plan; affects only tables' speed."""

STATE_BYTES = 18
"""Bytes per weight in 16 bits, with gradient, master weight and Adam's moments in FP32."""


def _may_lack_memory(facts: Facts) -> bool:
    """Return True for a model of large layers, or a device whose few measured shapes may exclude plans that fit."""
    layer_bytes = STATE_BYTES * parameters(facts.model) / facts.model.num_layers
    return layer_bytes > LARGE_LAYER * facts.cluster.device.memory_bytes or not _is_measured(facts)


def _missing_text(facts: Facts, missing: float) -> str:
    """Describe the lack of memory, or the rules that leave no strategy."""
    if missing < inf:
        room = gib(facts.cluster.device.memory_bytes)
        return f"memory: the closest plan needs {gib(missing)} GiB more than the {room} GiB of each of {ENOUGH:,} GPUs"
    if not _is_measured(facts):
        return "its calibration has no measured operators of such shapes"
    return f"no strategy on {ENOUGH:,} GPUs satisfies the rules"


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
    planned, *targets = _cells(model, device, is_exact=False)
    return (family, model, planned, str(_family_runs(family)), *targets)


def _devices(model: str, devices: Sequence[str], *, is_exact: bool) -> Section:
    """Return the devices, each with its answers for one model."""
    rows = tuple(_device(model, one, is_exact=is_exact) for one in devices)
    header = ("device", "planned", "runs", *TARGETS, "reasons")
    return Section(title=f"Devices with {model}", header=header, rows=rows)


def _device(model: str, device: str, *, is_exact: bool) -> tuple[str, ...]:
    planned, *targets = _cells(model, device, is_exact=is_exact)
    return (device, planned, str(_device_runs(device)), *targets)


def _cells(model: str, device: str, *, is_exact: bool) -> tuple[str, ...]:
    """Return the cell of plans, one per target, and the reasons of those that are refused."""
    answers = {target: ask(model, device, target, is_exact=is_exact) for target in TARGETS}
    exported = [one for one in answers.values() if not one.reason and ANY_EVIDENCE not in one.conditions]
    planned = replace(exported[0], has_model=True) if exported else ask(model, device, None, is_exact=is_exact)
    cells = (one.cell for one in answers.values())
    return (planned.reason or planned.cell, *cells, "; ".join(_reason_texts(answers)))


OUT_OF_TIME = f"memory: the search for a plan that fits ran out of its {MOST_SECONDS:g} s"
"""Reason of a cell that has no answer."""

ANY_EVIDENCE = "any evidence"
"""Condition of a plan that needs ``search.evidence=any``."""

OWN = "own model"
"""Cell of a target that runs a plan with the user's own code of the model."""


def _has_model(target: str, model: Model) -> bool:
    """Return True unless a target that builds models from recipes has none of this model."""
    has_model = getattr(import_module(TARGETS[target]), "has_model", None)
    return has_model is None or bool(has_model(model))


def _reason_texts(answers: dict[str, Support]) -> Iterator[str]:
    for reason in dict.fromkeys(one.reason for one in answers.values() if one.reason):
        yield f"{', '.join(target for target, one in answers.items() if one.reason == reason)}: {reason}"


def _family_runs(family: str) -> int:
    counts = read_counts()
    return sum(counts.runs("family", family, kind) for kind in ("dense", "moe", "hybrid"))


def _device_runs(device: str) -> int:
    return read_counts().runs("device", device)
