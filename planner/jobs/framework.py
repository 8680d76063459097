"""Check a framework's entry, and the features that a job needs from its framework."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields

from costmodel import catalog
from costmodel.errors import SpecError
from costmodel.facts.calibration import Constants
from costmodel.facts.cluster import Cluster
from costmodel.facts.features import MANY, MODULES, feature_of, lacks
from costmodel.facts.framework import Framework
from costmodel.strategy import DECISIONS, ENUMS, FLAGS, MODULES_OF, decision_text
from costmodel.validation import shown
from planner.jobs.setting_choices import ALL_THE_SAME, CHOOSABLE, read_value
from planner.jobs.values import decision_value, entry_path, require_one_of

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
            having = catalog.releases_with_feature(name, feature_of(name, values[0]))
            hint = f"These have it: {', '.join(having)} (cluster.framework). {ALL_THE_SAME}" if having else ALL_THE_SAME
            raise SpecError(f"{where}.{name}", f"{framework.name} has no {name} '{text}'.", hint)
