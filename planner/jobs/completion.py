"""Complete some decisions to a whole strategy with the framework's recipes, and write a strategy as entries."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from costmodel import catalog
from costmodel.errors import SpecError
from costmodel.facts.calibration import Constants
from costmodel.facts.device import Cluster
from costmodel.facts.framework import MANY, MODULES, Framework, feature_of, lacks
from costmodel.lowering.framework import find_absent_features, framework_stages
from costmodel.strategy import (
    DECISIONS,
    ENUMS,
    FLAGS,
    MODULES_OF,
    OVERLAPS,
    V_SHAPED,
    Recompute,
    Schedule,
    Sharding,
    Strategy,
    Vocabulary,
    decision_text,
    default_microbatch_group,
)
from costmodel.tables import Facts, num_microbatches
from costmodel.validation import shown
from planner.jobs.document import MAX_DEGREE, decision_value, decision_values, entry_path, require_one_of
from planner.jobs.strategy_file import (
    ALL_THE_SAME,
    AS_DEALT,
    CHOOSABLE,
    LAYOUT,
    StrategyFile,
    apply_layout,
    layout_entries,
    plain_decisions,
    read_value,
)

UNKNOWN = Framework(name="unknown", strategy={"sequence_parallel": True, "sharding": "optimizer"}, whole_experts=True)

"""Defaults of an unknown framework."""

ALWAYS_SAID = ("dp", "mbs", "sharding", "recompute", "cuda_graphs", *OVERLAPS)

"""
Decisions that make a strategy whole; with expert parallelism also ``token_dispatcher``.

A whole strategy gets the defaults of :func:`completed` for its other decisions. If one of these decisions is missing, a
search chooses it.
"""


def is_whole(given: StrategyFile) -> bool:
    """Tell whether a strategy is whole: its missing decisions have their defaults and are not open to a search."""
    is_sent = given.decisions.get("ep", 1) > 1
    return {*ALWAYS_SAID, *(("token_dispatcher",) if is_sent else ())} <= {*given.decisions}


def complete_strategy(facts: Facts, given: StrategyFile, max_devices: int | None = None) -> Strategy:
    """
    Complete some decisions to a whole strategy.

    ``dp`` takes the devices that the other degrees leave. ``group`` is ``pp`` with interleaved stages. Other degrees
    are 1. Features follow the framework's recipes (``planner catalog FRAMEWORK``), each only where it has an effect.
    Without recipes sequence parallelism is on and optimizer states are sharded. Stages are the given ones, or those
    that the framework makes.

    Parameters
    ----------
    facts
        Model, cluster and workload of the job.
    given
        Values by name, as :func:`planner.jobs.document.decision_value` returns them, and the given stages.
    max_devices
        Devices that ``dp`` may fill; default: all of them.

    Raises
    ------
    SpecError
        If the stages do not match this pipeline and model, or the strategy cannot be costed for this job.
    """
    framework = facts.cluster.framework or UNKNOWN
    defaults = _defaults(framework if framework.strategy else UNKNOWN, facts)
    degrees = _degrees(facts, given.decisions, framework, max_devices)
    chosen = {**dict.fromkeys(ENUMS, 0), **degrees, **_features(facts, degrees, defaults, given.decisions)}
    kinds: dict[str, Callable[[int], Any]] = {**ENUMS, **dict.fromkeys(FLAGS, bool)}
    whole = {**chosen, **given.decisions}
    strategy = Strategy(**{name: kinds.get(name, int)(whole[name]) for name in DECISIONS})
    require_cost(facts, strategy)
    layout = _deal_stages(facts, framework, strategy) if given.layout is None else given.layout
    return apply_layout(layout, strategy, facts.model)


def _defaults(framework: Framework, facts: Facts) -> dict[str, int]:
    """Return the decisions of the framework's recipes for the job's precision."""
    recipe = {**framework.strategy, **framework.strategy_by_precision.get(facts.workload.precision.name, {})}
    return decision_values(recipe, "cluster.framework.strategy")


def _degrees(facts: Facts, given: Mapping[str, int], framework: Framework, max_devices: int | None) -> dict[str, int]:
    degrees = {name: int(given.get(name, 1)) for name in ("tp", "cp", "pp", "ep", "etp", "vpp", "mbs")}
    if given.get("schedule") in V_SHAPED and "vpp" not in given:
        degrees["vpp"] = 2
    devices = facts.cluster.num_devices if max_devices is None else max_devices
    dp = int(given.get("dp", devices // (degrees["tp"] * degrees["cp"] * degrees["pp"])))
    if "etp" not in given and not framework.whole_experts:
        degrees["etp"] = _expert_tp(degrees, dp)
    return {**degrees, "dp": dp, "group": int(default_microbatch_group(pp=degrees["pp"], vpp=degrees["vpp"]))}


def _expert_tp(degrees: Mapping[str, int], dp: int) -> int:
    """Megatron-LM's default: experts are split like attention where the ranks of a stage hold such groups."""
    tp, ep = degrees["tp"], degrees["ep"]
    return 1 if ep == 1 or (tp * degrees["cp"] * dp) % (ep * tp) else tp


def _features(
    facts: Facts, degrees: Mapping[str, int], defaults: Mapping[str, int], given: Mapping[str, int]
) -> dict[str, int]:
    """Return the features that recipes switch on, each only where it has an effect."""
    tp, replicas = degrees["tp"], degrees["dp"] * degrees["cp"]
    sequence_parallel = tp > 1 and bool(defaults.get("sequence_parallel", False) or facts.model.has_experts)
    in_sequence = bool(given.get("sequence_parallel", sequence_parallel))
    interleaves = degrees["pp"] > 1 and degrees["vpp"] > 1
    useful = {
        "tp_overlap": tp > 1 and in_sequence,
        "cp_overlap": degrees["cp"] > 1 and facts.cluster.settings.cp_comm_type not in ("all_gather", "a2a"),
        "ep_overlap": degrees["ep"] > 1,
        "pp_overlap": interleaves,
        "dp_overlap": replicas > 1,
    }
    flags = {name: bool(defaults.get(name, False)) and does for name, does in useful.items()}
    if given.get("schedule") in V_SHAPED:
        flags["pp_overlap"] = interleaves
    return {
        **dict.fromkeys(FLAGS, 0),
        "sequence_parallel": sequence_parallel,
        "schedule": Schedule.ONE_F_ONE_B,
        "vocabulary": Vocabulary.ENDS,
        "sharding": Sharding(defaults.get("sharding", Sharding.NONE)) if replicas > 1 else Sharding.NONE,
        "recompute": Recompute(defaults.get("recompute", Recompute.NONE)),
        **flags,
    }


def _deal_stages(facts: Facts, framework: Framework, strategy: Strategy) -> Mapping[str, tuple[int, ...]]:
    """Return the framework's own stages of a pipeline whose first and last stage hold embedding and head."""
    if strategy.pp == 1 or strategy.vocabulary != Vocabulary.ENDS or strategy.schedule != Schedule.ONE_F_ONE_B:
        return AS_DEALT
    sizes = framework_stages(framework, facts.model.num_layers, strategy.pp * strategy.vpp)
    return {"layers": sizes} if sizes else AS_DEALT


# --- and back ----------------------------------------------------------------------------------------------
def strategy_entries(facts: Facts, strategy: Strategy) -> dict[str, Any]:
    """Write a strategy as a job file has it: every decision, and stages that differ from the framework's own."""
    decisions = plain_decisions(strategy)
    if strategy.layout is None and complete_strategy(facts, StrategyFile(decisions=strategy.decisions())) == strategy:
        return decisions
    return {**decisions, LAYOUT: layout_entries(strategy, facts.model)}


def require_cost(facts: Facts, strategy: Strategy) -> None:
    """
    Refuse a strategy that no formula covers.

    The rules forbid it as well, but a report of broken rules needs a cost.
    """
    num_devices, stage_devices = strategy.num_devices, strategy.tp * strategy.cp * strategy.dp
    if strategy.dp < 1:
        raise SpecError(
            "strategy.dp",
            f"nothing is left for it: tp * cp * pp = {strategy.tp * strategy.cp * strategy.pp} of "
            f"{facts.cluster.num_devices} devices.",
        )
    if num_devices > MAX_DEGREE:
        raise SpecError("strategy", f"takes {num_devices:.4g} devices, at most {MAX_DEGREE:.0e} are estimated.")
    if num_microbatches(facts.workload, dp=strategy.dp, mbs=strategy.mbs) < 1:
        raise SpecError(
            "strategy.mbs",
            f"dp * mbs = {strategy.dp * strategy.mbs} sequences are more than the global batch of "
            f"{facts.workload.global_batch_size}.",
        )
    if strategy.pp * strategy.vpp > facts.model.num_layers + 2:
        raise SpecError(
            "strategy.pp",
            f"pp * vpp = {strategy.pp * strategy.vpp} virtual stages are more than {facts.model.num_layers} layers, "
            f"embedding and head can fill.",
        )
    if strategy.ep * strategy.etp > stage_devices:
        raise SpecError(
            "strategy.ep",
            f"ep * etp = {strategy.ep * strategy.etp} ranks share experts, a pipeline stage has only tp * cp * dp = "
            f"{stage_devices}.",
        )


MONTH = re.compile(r"\d{4}-(0[1-9]|1[0-2])")

"""Form of the month in which an entry began."""


def require_sound(framework: Framework, where: str) -> None:
    """
    Refuse an entry with a name or value that nothing reads.

    Parameters
    ----------
    framework
        A framework with correct types.
    where
        Dotted path of the entry.

    Raises
    ------
    SpecError
        For the first unknown name or value.
    """
    if framework.since and not MONTH.fullmatch(framework.since):
        raise SpecError(f"{where}.since", f"expected a month such as '2026-04', got {shown(framework.since)}.")
    if framework.kernels_of is not None:
        require_one_of(framework.kernels_of, catalog.framework_names(), f"{where}.kernels_of", "no framework")
    for name, values in framework.features.items():
        require_one_of(name, DECISIONS, entry_path(f"{where}.features", name))
        for index, value in enumerate(values):
            _require_feature(name, value, f"{where}.features.{name}.{index}")
    for name, known in framework.setting_values.items():
        require_one_of(name, CHOOSABLE, entry_path(f"{where}.setting_values", name), "no setting with several values")
        for index, one in enumerate(known):
            read_value(name, one, f"{where}.setting_values.{name}.{index}")
    _require_recipes(framework, where)
    for key in framework.factors:  # a constant, of all architectures or of the one behind an @
        name, at, architecture = key.partition("@")
        place = entry_path(f"{where}.factors", key)
        require_one_of(name, (one.name for one in fields(Constants)), place, "no constant of a calibration")
        if at:
            require_one_of(architecture, catalog.architectures(), place, "no architecture")


def _require_feature(name: str, value: str, where: str) -> None:
    """
    Refuse a value that features cannot have.

    Allowed are a name, true or false, a number or any above 1, and a set of modules or any set.
    """
    if (value == MODULES and name in MODULES_OF) or (value == MANY and name not in (*ENUMS, *FLAGS)):
        return
    if name in FLAGS:
        require_one_of(value, ("true", "false"), where, f"no value of {name}")
    elif name in ENUMS and name not in MODULES_OF:
        require_one_of(value, (member.text for member in ENUMS[name]), where, f"no value of {name}")
    else:
        decision_value(name, int(value) if value.isdecimal() else value, where)


# --- recipes -----------------------------------------------------------------------------------------------
def _require_recipes(framework: Framework, where: str) -> None:
    """Refuse unknown precisions, and unknown decisions of their recipes."""
    _require_precision(framework.precision, f"{where}.precision")
    for name in framework.settings_by_precision:
        _require_precision(name, entry_path(f"{where}.settings_by_precision", name))
    _require_strategy(framework.strategy, f"{where}.strategy")
    for name, decisions in framework.strategy_by_precision.items():
        place = entry_path(f"{where}.strategy_by_precision", name)
        _require_precision(name, place)
        _require_strategy(decisions, place)
    if framework.recompute_if_needed is not None:
        decision_value("recompute", framework.recompute_if_needed, f"{where}.recompute_if_needed")


def _require_precision(name: str, where: str) -> None:
    require_one_of(name, catalog.precisions(), where, "no precision")


def _require_strategy(decisions: Mapping[str, bool | int | str], where: str) -> None:
    for name, value in decisions.items():
        require_one_of(name, DECISIONS, entry_path(where, name))
        decision_value(name, value, f"{where}.{name}")


# --- what a job asks for -----------------------------------------------------------------------------------
def require_features(cluster: Cluster, decisions: Mapping[str, int | tuple[int, ...]], where: str) -> None:
    """
    Refuse values of decisions that the cluster's framework lacks.

    Parameters
    ----------
    cluster
        The cluster that the job runs on.
    decisions
        One value by decision, or several of which the framework must have one.
    where
        Dotted path of the entry that gives them.

    Raises
    ------
    SpecError
        With the frameworks that have the feature.
    """
    framework = cluster.framework
    if framework is None:
        return
    for name, given in decisions.items():
        values = given if isinstance(given, tuple) else (given,)
        if all(lacks(framework, name, value) for value in values):
            text = decision_text(name, values[0])
            if name in find_absent_features(cluster.device):
                device = cluster.device
                kind = "the host's own processors" if device.host_link == "none" else f"of {device.silicon.name}"
                why = "Its host_link is 'none'." if device.host_link == "none" else "Only CUDA and ROCm have graphs."
                problem = f"there is no {name} '{text}' on {device.name}, {kind}."
                raise SpecError(f"{where}.{name}", problem, f"{why} {ALL_THE_SAME}")
            having = catalog.releases_with_feature(name, feature_of(name, values[0]))
            hint = f"These have it: {', '.join(having)} (cluster.framework). {ALL_THE_SAME}" if having else ALL_THE_SAME
            raise SpecError(f"{where}.{name}", f"{framework.name} has no {name} '{text}'.", hint)
