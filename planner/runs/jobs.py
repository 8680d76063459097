"""A measured run is a job and a strategy: what its row says, and its framework's defaults where it is silent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from costmodel import catalog
from costmodel.errors import PlanningError, SpecError, did_you_mean
from costmodel.step.layouts import strategy_cost
from costmodel.strategy import Recompute, Strategy
from costmodel.tables import Facts
from planner.jobs.cluster import CATALOG, Fitted, device_path
from planner.jobs.completion import completed
from planner.jobs.framework import require_features
from planner.jobs.problem import Problem, load
from planner.jobs.strategy_file import StrategyFile, read_given
from planner.jobs.values import decision_value
from planner.runs.table import Run

TOKENS = 1e12
"""Tokens of a whole training; a step does not depend on them."""

IMPOSSIBLE_MEMORY = 1.2
"""Predicted peak over the device's memory from which on a run did something that its row does not say: the software
whose memory is predicted worst is off by 18 % in the mean."""


class Unpredictable(PlanningError):
    """The row is in order, but the cost model has no formula for what it measured."""


@dataclass(frozen=True, kw_only=True, slots=True)
class References:
    """
    What rows refer to, and what was made of it already.

    Parameters
    ----------
    models
        What a job file's ``model`` takes, by the keys of the rows; other keys are names of the catalog or paths.
    folder
        Where paths are relative to.
    fitted
        Constants instead of the catalog's.
    device
        What devices that nobody knows are taken for; empty: they are refused.
    problems, clusters
        Jobs and clusters by what they depend on.
    """

    models: Mapping[str, Any] = field(default_factory=dict)
    folder: Path = Path()
    fitted: Fitted = CATALOG
    device: str = ""
    problems: dict[str, Problem] = field(default_factory=dict)
    clusters: dict[int, Facts] = field(default_factory=dict)

    def with_fitted(self, fitted: Fitted) -> References:
        """These references with other constants: jobs stay, clusters are made anew."""
        return replace(self, fitted=fitted, clusters={})

    def facts(self, problem: Problem) -> Facts:
        """The facts of a job with these references' constants; the same for all rows of the job."""
        if self.fitted is CATALOG or problem.machine is None:
            return problem.facts
        if id(problem) not in self.clusters:
            cluster = problem.machine.cluster(self.fitted)
            made = Facts(model=problem.facts.model, cluster=cluster, workload=problem.facts.workload)
            self.clusters[id(problem)] = made
        return self.clusters[id(problem)]


def references(models: Path | None, folder: Path = Path()) -> References:
    """
    Read what rows refer to.

    Parameters
    ----------
    models
        YAML of models by key, each as a job file's ``model`` takes it; None: rows name models of the catalog, or the
        path of their ``config.json``.
    folder
        What paths in rows are relative to.

    Raises
    ------
    SpecError
        If the file cannot be read, or is no mapping.
    """
    if models is None:
        return References(folder=folder)
    try:
        entries = yaml.load(models.read_text(encoding="utf-8"), Loader=catalog.LOADER)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SpecError(str(models), f"cannot be read as YAML: {getattr(error, 'strerror', None) or error}.") from None
    if not isinstance(entries, dict):
        raise SpecError(str(models), "must be a mapping of names to models.")
    return References(models={str(name): entry for name, entry in entries.items()}, folder=folder)


def require_a_step(run: Run) -> None:
    """
    Refuse what is no training step of the whole model.

    Raises
    ------
    Unpredictable
        For single layers and for adapters.
    """
    if run.kind == "component":
        raise Unpredictable("a single layer, not a training step")
    if run.kind == "adapters":
        raise Unpredictable("fine-tuning of adapters: the cost model trains every parameter")


def job_of(run: Run, known: References) -> dict[str, Any]:
    """
    The job of a row, without its strategy: what :func:`planner.jobs.problem.load` takes.

    Raises
    ------
    SpecError
        If the row names a model that nobody knows.
    Unpredictable
        If its model is known to be of unknown sizes.
    """
    sections = {name: entry for name, entry in run.entries.items() if name not in ("model", "strategy")}
    training = {"tokens": TOKENS, **sections.get("training", {})}
    return {**sections, "cluster": _cluster(run, known), "model": _model(run, known), "training": training}


def _cluster(run: Run, known: References) -> dict[str, Any]:
    """The row's cluster; a device that nobody knows is taken for the one that is given for it."""
    entries = run.entries["cluster"]
    name = entries.get("device")
    is_unknown = isinstance(name, str) and catalog.known_name(name) is None and device_path(name, known.folder) is None
    return {**entries, "device": known.device} if known.device and is_unknown else entries


def _model(run: Run, known: References) -> Any:
    entries = run.entries["model"]
    changes = {name: value for name, value in entries.items() if name != "base"} if isinstance(entries, Mapping) else {}
    key = run.model
    entry = known.models.get(key, key)
    if isinstance(entry, Mapping) and "unknown" in entry:
        raise Unpredictable(str(entry["unknown"]))
    if isinstance(entry, str) and entry not in catalog.models() and not ("/" in entry or entry.endswith(".json")):
        hint = did_you_mean(key, known.models or catalog.models())
        raise SpecError("model", f"{key!r} is neither in the file of models nor in the catalog.", hint)
    if isinstance(entry, Mapping) and "base" in entry:
        return {**entry, **changes} if set(entry) - {"source"} != {"base"} or changes else entry["base"]
    return {"base": entry, **changes} if changes else entry


def problem_of(run: Run, known: References) -> Problem:
    """The job of a row, read on the user's road; rows of the same job share one."""
    job = job_of(run, known)
    key = json.dumps(job, sort_keys=True, default=str)
    if key not in known.problems:
        known.problems[key] = load(job, name=run.id, folder=known.folder)
    return known.problems[key]


def strategy_of(run: Run, problem: Problem) -> tuple[Strategy, bool]:
    """
    The whole strategy of a row, its framework's defaults where it is silent; and whether some of it is inferred.

    A row of a model without experts that names neither recomputation nor offload and could not run without has what
    its framework's recipes recompute then; nothing is fitted to such rows.

    Raises
    ------
    SpecError
        If a decision is unknown or impossible.
    """
    given = read_given(run.entries.get("strategy", {}))
    facts = problem.facts
    require_features(facts.cluster, given.decisions, "strategy")
    strategy = completed(facts, given)
    needed = facts.cluster.framework.recompute_if_needed if facts.cluster.framework else None
    if needed is None or facts.model.has_experts or unreported_peak_bytes(run, facts, strategy) is None:
        return strategy, False
    recompute = decision_value("recompute", needed, "recompute_if_needed")
    return completed(
        facts, StrategyFile(decisions={**given.decisions, "recompute": recompute}, layout=given.layout)
    ), True


def unreported_peak_bytes(run: Run, facts: Facts, strategy: Strategy) -> float | None:
    """The peak of a row that names neither recomputation nor offload, where it cannot have run so."""
    if not leaves_out_recompute(run, strategy):
        return None
    peak = float(strategy_cost(facts, strategy).device_bytes)
    return peak if peak > IMPOSSIBLE_MEMORY * facts.cluster.device.memory_bytes else None


def leaves_out_recompute(run: Run, strategy: Strategy) -> bool:
    """Whether a row that ran names neither recomputation nor offload, where its framework's default is none."""
    says = run.get("strategy.recompute") is not None or run.get("strategy.activation_offload") is not None
    return not says and run.kind != "oom" and strategy.recompute == Recompute.NONE
