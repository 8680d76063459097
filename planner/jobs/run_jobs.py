"""A measured run as a job and a strategy: its row, completed with its framework's defaults."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Any

import yaml

from costmodel import catalog
from costmodel.catalog.releases import stands_in
from costmodel.errors import PlanningError, SpecError, did_you_mean
from costmodel.facts.device import Cluster
from costmodel.facts.framework import lacks
from costmodel.record import record
from costmodel.step.layouts import strategy_cost
from costmodel.strategy import Recompute, Strategy, TokenDispatcher
from costmodel.tables import Facts
from costmodel.validation import shown
from planner.jobs.cluster import CATALOG, Fitted, device_path
from planner.jobs.completion import complete_strategy, require_features
from planner.jobs.document import decision_value
from planner.jobs.problem import Problem, load
from planner.jobs.run_table import Run
from planner.jobs.strategy_file import StrategyFile, read_given

TOKENS = 1e12

"""Tokens of a whole training; a step does not depend on them."""

IMPOSSIBLE_MEMORY = 1.2

"""
Predicted peak over the device's memory above which the row must lack a setting: the software with the worst predictions
of memory is off by 18 % in the mean.
"""


class Unpredictable(PlanningError):
    """The row is valid, but the cost model has no formula for its measurement."""


@record(frozen=True, kw_only=True, slots=True)
class References:
    """
    Models, paths and devices that rows refer to, with jobs that were already built.

    Parameters
    ----------
    models
        Values for a job file's ``model``, by the keys of the rows; other keys are names of the catalog or paths.
    folder
        Folder of relative paths.
    fitted
        Constants instead of the catalog's.
    device
        Device that replaces unknown ones; empty if they are refused.
    problems, clusters
        Jobs and clusters by their input.
    """

    models: Mapping[str, Any] = field(default_factory=dict)
    folder: Path = Path()
    fitted: Fitted = CATALOG
    device: str = ""
    problems: dict[str, Problem] = field(default_factory=dict)
    clusters: dict[int, Facts] = field(default_factory=dict)

    def refit(self, fitted: Fitted) -> References:
        """Return these references with other constants: jobs are kept, clusters are built again."""
        return replace(self, fitted=fitted, clusters={})

    def facts(self, problem: Problem) -> Facts:
        """Return the facts of a job with these references' constants, shared by all rows of the job."""
        if self.fitted is CATALOG or problem.machine is None:
            return problem.facts
        if id(problem) not in self.clusters:
            cluster = problem.machine.cluster(self.fitted)
            made = Facts(model=problem.facts.model, cluster=cluster, workload=problem.facts.workload)
            self.clusters[id(problem)] = made
        return self.clusters[id(problem)]


def references(models: Path | None, folder: Path = Path()) -> References:
    """
    Read the references of rows.

    Parameters
    ----------
    models
        YAML of models by key, each a value of a job file's ``model``; None if rows name models of the catalog, or the
        path of their ``config.json``.
    folder
        Folder of relative paths in rows.

    Raises
    ------
    SpecError
        If the file cannot be read, or is not a mapping.
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
    Refuse rows that are not a training step of the whole model.

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
    Return the job of a row, without its strategy, for :func:`planner.jobs.problem.load`.

    Raises
    ------
    SpecError
        If the row names an unknown model.
    Unpredictable
        If the sizes of its model are unknown.
    """
    sections = {name: entry for name, entry in run.entries.items() if name not in ("model", "strategy")}
    training = {"tokens": TOKENS, **sections.get("training", {})}
    return {**sections, "cluster": _cluster(run, known), "model": _model(run, known), "training": training}


def _cluster(run: Run, known: References) -> dict[str, Any]:
    """Return the row's cluster; an unknown device is replaced by the given one."""
    entries = run.entries["cluster"]
    name = entries.get("device")
    is_unknown = (
        isinstance(name, str) and catalog.find_unique_device(name) is None and device_path(name, known.folder) is None
    )
    return {**entries, "device": known.device} if known.device and is_unknown else entries


def _model(run: Run, known: References) -> Any:
    entries = run.entries["model"]
    changes = {name: value for name, value in entries.items() if name != "base"} if isinstance(entries, Mapping) else {}
    key = run.model
    entry = known.models.get(key, key)
    if isinstance(entry, Mapping) and "unknown" in entry:
        raise Unpredictable(str(entry["unknown"]))
    if isinstance(entry, str) and entry not in catalog.model_names() and not ("/" in entry or entry.endswith(".json")):
        hint = did_you_mean(key, known.models or catalog.model_names())
        raise SpecError("model", f"{key!r} is neither in the file of models nor in the catalog.", hint)
    if isinstance(entry, Mapping) and "base" in entry:
        return {**entry, **changes} if set(entry) - {"source"} != {"base"} or changes else entry["base"]
    return {"base": entry, **changes} if changes else entry


def problem_of(run: Run, known: References) -> Problem:
    """Load the job of a row as a user's job; rows of one job share it."""
    job = job_of(run, known)
    key = json.dumps(job, sort_keys=True, default=str)
    if key not in known.problems:
        known.problems[key] = load(job, name=run.id, folder=known.folder)
    return known.problems[key]


def strategy_of(run: Run, problem: Problem) -> tuple[Strategy, bool]:
    """
    Return the whole strategy of a row, with its framework's defaults; and True if some of it is inferred.

    A row of a dense model may name neither recomputation nor offload although it could not run without. It then has the
    recomputation of its framework's recipes. Such rows are not used in fits.

    Raises
    ------
    SpecError
        If a decision is unknown or impossible.
    """
    given = read_given(run.entries.get("strategy", {}))
    facts = problem.facts
    require_features(facts.cluster, given.decisions, "strategy")
    strategy = complete_strategy(facts, given)
    needed = facts.cluster.framework.recompute_if_needed if facts.cluster.framework else None
    if needed is None or facts.model.has_experts or unreported_peak_bytes(run, facts, strategy) is None:
        return strategy, False
    recompute = decision_value("recompute", needed, "recompute_if_needed")
    return complete_strategy(
        facts, StrategyFile(decisions={**given.decisions, "recompute": recompute}, layout=given.layout)
    ), True


def unreported_peak_bytes(run: Run, facts: Facts, strategy: Strategy) -> float | None:
    """Return the peak of a row without recomputation and offload if it exceeds the device's memory, else None."""
    if not leaves_out_recompute(run, strategy):
        return None
    peak = float(strategy_cost(facts, strategy).device_bytes)
    return peak if peak > IMPOSSIBLE_MEMORY * facts.cluster.device.memory_bytes else None


def leaves_out_recompute(run: Run, strategy: Strategy) -> bool:
    """Return True if a row that ran names neither recomputation nor offload, where its framework's default is none."""
    says = run.get("strategy.recompute") is not None or run.get("strategy.activation_offload") is not None
    return not says and run.kind != "oom" and strategy.recompute == Recompute.NONE


DISPATCHER = "token_dispatcher"

SPELLED: Mapping[str, TokenDispatcher] = {
    "alltoall": TokenDispatcher.ALLTOALL,
    "a2a": TokenDispatcher.ALLTOALL,
    "allgather": TokenDispatcher.ALLTOALL,
    "deepep": TokenDispatcher.DEEPEP,
    "hybridep": TokenDispatcher.HYBRIDEP,
}

"""Letters in names of dispatchers, and the dispatcher that moves tokens in the same way."""

LIKE = 0.75

"""Least share of letters that a name has in common with a dispatcher's."""


def replace_unknown_names(run: Run, cluster: Cluster) -> Run:
    """
    Return a row with known names in place of unknown ones, and its doubts.

    Parameters
    ----------
    run
        The row.
    cluster
        Its cluster, with the nearest release of its framework.
    """
    doubts: list[str] = []
    if cluster.framework is not None and cluster.unknown_release:
        doubts.append(stands_in(cluster.unknown_release, cluster.framework.name))
    strategy = dict(run.entries.get("strategy", {}))
    asked = strategy.get(DISPATCHER)
    if isinstance(asked, str) and asked not in {one.text for one in TokenDispatcher}:
        doubts += _resolve_dispatcher(strategy, asked, cluster)
    if not doubts and asked == strategy.get(DISPATCHER):
        return run
    return replace(run, entries={**run.entries, "strategy": strategy}, doubts=(*run.doubts, *doubts))


def _resolve_dispatcher(strategy: dict[str, Any], asked: str, cluster: Cluster) -> list[str]:
    """Put the nearest dispatcher of the framework into a strategy, or none for its default; return the doubt."""
    letters = "".join(one for one in asked.lower() if one.isascii() and one.isalnum())
    nearest = nearest_dispatcher(letters)
    framework = cluster.framework
    if nearest is None or (framework is not None and lacks(framework, DISPATCHER, int(nearest))):
        strategy.pop(DISPATCHER)
        return [f"token dispatcher {shown(asked)} is not known: costed as the framework's default"]
    strategy[DISPATCHER] = nearest.text
    if letters == nearest.text:
        return []
    return [f"token dispatcher {shown(asked)} is not known: costed as {nearest.text}, its nearest relative"]


def nearest_dispatcher(letters: str) -> TokenDispatcher | None:
    """
    Return the dispatcher whose letters are in a name, or nearly; None if none matches.

    >>> nearest_dispatcher("deepepv2"), nearest_dispatcher("hybirdep"), nearest_dispatcher("mori")
    (<TokenDispatcher.DEEPEP: 1>, <TokenDispatcher.HYBRIDEP: 2>, None)
    """
    spelled = next((one for part, one in SPELLED.items() if part in letters), None)
    if spelled is not None:
        return spelled
    near = difflib.get_close_matches(letters[:80], SPELLED, n=1, cutoff=LIKE)
    return SPELLED[near[0]] if near else None
