"""What a configuration says, made a whole job: entries of the command, the framework's own habits, checked as a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from costmodel import catalog
from costmodel.errors import SpecError
from costmodel.facts.model import Model
from costmodel.pipelines.stages import layers_per_chunk
from costmodel.strategy import StageLayout, Strategy
from planner.frameworks.imports.arguments import ASSUMED_STEPS
from planner.frameworks.megatron.read import CLUSTER, Imported, plain_decisions
from planner.jobs.completion import completed
from planner.jobs.document import apply_override
from planner.jobs.problem import load
from planner.jobs.strategy_file import read_given, stage_layout

NEEDED = {
    "model": "llama3-8b",
    "training.sequence_length": 4096,
    "training.global_batch_size": 1024,
    "strategy.mbs": 1,
}
"""Entries of a job that a configuration may leave open, with what they look like."""


def prepared(document: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """
    A job's entries with those of the command, all there but the strategy's.

    Raises
    ------
    SpecError
        If the command's entries are wrong, or the devices are not said.
    """
    whole: dict[str, Any] = {"cluster": {}, "training": {}, "settings": {}, "strategy": {}, **document}
    for override in overrides:
        apply_override(whole, override)
    for name, example in CLUSTER.items():
        if not isinstance(whole["cluster"], Mapping) or name not in whole["cluster"]:
            raise SpecError(f"cluster.{name}", "is not said.", f"Add cluster.{name}={example}.")
    return whole


def finished(document: dict[str, Any], notes: Sequence[str], *, full_every: int | None = None) -> Imported:
    """
    A job whose strategy is whole.

    Parameters
    ----------
    document
        Entries of a job; of its strategy those that the configuration says.
    notes
        What was left out or assumed, a sentence each.
    full_every
        Of so many layers of a rank one is recomputed in full; None: as the strategy says of all.

    Raises
    ------
    SpecError
        If an entry is missing or wrong, or the degrees do not fill the devices.
    """
    for path, example in NEEDED.items():
        section, _, name = path.partition(".")
        if section not in document or (name and name not in document[section]):
            raise SpecError(path, "is not said.", f"Add {path}={example}.")
    training, remarks = document["training"], list(notes)
    if "tokens" not in training:
        training["tokens"] = ASSUMED_STEPS * training["global_batch_size"] * training["sequence_length"]
        remarks.append(
            f"Nothing says how long the training is: {ASSUMED_STEPS:,} steps are assumed; training.tokens=N says it."
        )
    given = document.pop("strategy")
    facts = load(document).facts
    if not facts.model.has_experts:
        given.pop("etp", None)
    strategy = completed(facts, read_given(given))
    if strategy.num_devices != facts.cluster.num_devices:
        raise SpecError(
            "strategy",
            f"tp * cp * pp * dp = {strategy.num_devices}, cluster.num_devices is {facts.cluster.num_devices}.",
        )
    if full_every is not None:
        strategy = replace(strategy, layout=_with_full_layers(strategy, facts.model, full_every))
    whole = {**document, "strategy": plain_decisions(strategy)}
    order = ("model", "cluster", "training", "settings", "strategy")
    whole = {name: whole[name] for name in (*order, *whole) if whole[name] != {}}
    load(whole)
    return Imported(document=whole, notes=tuple(remarks))


def _with_full_layers(strategy: Strategy, model: Model, interval: int) -> StageLayout:
    """The stages with every n-th layer of a rank recomputed in full."""
    layers = (
        strategy.layout.layers
        if strategy.layout is not None
        else layers_per_chunk(model.num_layers, num_chunks=strategy.pp * strategy.vpp, mtp_layers=len(model.mtp_layers))
    )
    full = tuple(sum(layers[rank :: strategy.pp]) // interval for rank in range(strategy.pp))
    return stage_layout({"layers": layers, "full_layers": full}, strategy, model)


def newest(prefix: str) -> str:
    """The newest framework of the catalog whose name begins so."""
    names = [name for name in catalog.frameworks() if name.startswith(prefix)]
    return max(names, key=lambda name: catalog.framework(name).since)


def degree(value: object, where: str) -> int:
    """
    A whole number of at least 1.

    Raises
    ------
    SpecError
        If it is another one, or none.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise SpecError(where, f"expected a whole number of at least 1, got {value!r}.")
    return value
