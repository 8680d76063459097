"""Completion of an imported configuration to a whole job, with the command's entries and the framework's defaults."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from costmodel import catalog
from costmodel.errors import SpecError
from costmodel.facts.model import Model
from costmodel.pipelines.stages import stage_layers
from planner.frameworks.imports.arguments import ASSUMED_STEPS, NO_LENGTH
from planner.frameworks.imports.documents import read_overrides, read_rows, read_words, text_of
from planner.frameworks.megatron.read import CLUSTER, Imported
from planner.frameworks.megatron.stages import uneven_stages
from planner.jobs.document import apply_override
from planner.jobs.problem import load
from planner.jobs.strategy_file import apply_layout, complete_strategy, read_given, strategy_entries

DATA = read_words("finish")


def prepare_job(document: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """
    Apply the command's entries to a job, whose strategy may be incomplete.

    Raises
    ------
    SpecError
        If the command's entries are wrong, or if the devices are missing.
    """
    whole: dict[str, Any] = {"cluster": {}, "training": {}, "settings": {}, "strategy": {}, **document}
    for override in overrides:
        apply_override(whole, override)
    for name, example in CLUSTER.items():
        if not isinstance(whole["cluster"], Mapping) or name not in whole["cluster"]:
            raise SpecError(f"cluster.{name}", "is not said.", f"Add cluster.{name}={example}.")
    return whole


def assumption_notes(document: Mapping[str, Any], said: Collection[str], whose: str, model: Model) -> Iterator[str]:
    """
    Yield a note with the decisions and settings of a job that neither file nor command sets, with their values.

    ``decisions.csv`` has entries that change the cost of a step, with the options of Megatron-LM that set each. An
    entry has an effect ``when`` all of these exceed one: degrees, ranks with the same weights (``data``), experts.

    Parameters
    ----------
    document
        The whole job; settings that it does not have are left out.
    said
        Paths of the entries that the file or the command sets.
    whose
        Source of these values, for the sentence.
    model
        Model of the job.
    """
    strategy = document["strategy"]
    given = {**strategy, "data": strategy["dp"] * strategy["cp"], "experts": 2 if model.has_experts else 1}
    values = []
    for row in read_rows("decisions.csv"):
        section, _, name = row["entry"].partition(".")
        matters = all(given[one] > 1 for one in row["when"].split())
        if row["entry"] not in said and name in document.get(section, {}) and matters:
            values.append(f"{row['entry']}={text_of(document[section][name])}")
    if values:
        yield f"Assumed, as nothing says it ({whose}): {', '.join(values)}. An entry of the command says it otherwise."


def entries_set_by(options_given: Collection[str], overrides: Sequence[str]) -> set[str]:
    """Return the paths of a job's entries that options or the command set."""
    rows = [row for row in read_rows("decisions.csv") if {*row["options"].split()} & {*options_given}]
    return {*read_overrides(overrides), *(row["entry"] for row in rows)}


def cluster_notes(framework: object, stated: object, overrides: Sequence[str]) -> Iterator[str]:
    """
    Yield notes on a release that is assumed, and on devices of which the command has another number.

    Parameters
    ----------
    framework
        Framework of the job, unless the command names one; None: it is not assumed.
    stated
        Number of devices in the configuration; None: it has none.
    overrides
        Entries of the job as ``key=value``.
    """
    said = read_overrides(overrides)
    if framework is not None and not {"cluster.framework", "cluster"} & {*said}:
        yield f"Nothing says the release: {framework} is assumed; cluster.framework=NAME says another one."
    count = said.get("cluster.num_devices")
    if stated is not None and count is not None and count != str(stated):
        yield f"The configuration says {stated} devices; the command's count, cluster.num_devices={count}."


def complete_job(
    document: dict[str, Any],
    notes: Sequence[str],
    *,
    full_every: int | None = None,
    said: Collection[str] | None = None,
) -> Imported:
    """
    Complete the strategy of a job.

    Parameters
    ----------
    document
        Entries of a job; its strategy may be incomplete.
    notes
        Values that were left out or assumed, a sentence each.
    said
        Decisions that the configuration or the command sets; None: all in the document.
    full_every
        Interval of layers of a rank that are recomputed in full; None: all layers follow the strategy.

    Raises
    ------
    SpecError
        If an entry is missing or wrong, or the degrees do not fill the devices.
    """
    for path, example in DATA.needed.items():
        section, _, name = path.partition(".")
        if section not in document or (name and name not in document[section]):
            raise SpecError(path, "is not said.", f"Add {path}={example}.")
    training, remarks = document["training"], list(notes)
    if "tokens" not in training:
        training["tokens"] = ASSUMED_STEPS * training["global_batch_size"] * training["sequence_length"]
        remarks.append(NO_LENGTH)
    given = document.pop("strategy")
    known = {f"strategy.{name}" for name in given} if said is None else {*said}
    known |= {f"settings.{name}" for name in document.get("settings") or {}}
    facts = load(document).facts
    if not facts.model.has_experts:
        given.pop("etp", None)
    strategy = complete_strategy(facts, read_given(given))
    if strategy.num_devices != facts.cluster.num_devices:
        degrees = f"tp * cp * pp * dp = {strategy.num_devices}"
        raise SpecError("strategy", f"{degrees}, cluster.num_devices is {facts.cluster.num_devices}.")
    if full_every is not None:
        layers = stage_layers(strategy, facts.model)
        full = tuple(sum(layers[rank :: strategy.pp]) // full_every for rank in range(strategy.pp))
        strategy = apply_layout({"layers": layers, "full_layers": full}, strategy, facts.model)
    whole = {**document, "strategy": strategy_entries(facts, strategy)}
    order = ("model", "cluster", "training", "settings", "strategy")
    whole = {name: whole[name] for name in (*order, *whole) if whole[name] != {}}
    load(whole)
    framework = facts.cluster.framework
    whose = "what recipes of the release have" if framework is None else f"what {framework.name} has in the catalog"
    features = framework.features if framework else {}
    single = [f"strategy.{name}" for name, values in features.items() if len(values) == 1]
    remarks += assumption_notes(whole, {*known, *single}, whose, facts.model)
    remarks += uneven_stages(strategy, facts.model)
    return Imported(document=whole, notes=tuple(remarks))


def newest(prefix: str) -> str:
    """Return the newest framework of the catalog with a prefix of its name."""
    names = [name for name in catalog.frameworks() if name.startswith(prefix)]
    return max(names, key=lambda name: catalog.framework(name).since)
