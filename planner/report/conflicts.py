"""Sections of an infeasible job: rules that exclude each other, changes that help, the closest strategy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from constraints import FRAMEWORK_RULES, PREFERENCE_RULES, TARGET_RULES, sentence
from planner.report.memory import memory_section, missing_notes
from planner.report.section import Section, count, gib, group_rows, least_gib, number_rows
from planner.report.strategies import strategies_section
from planner.uncertainty.features import LIFTED as LIFTED_EVIDENCE

if TYPE_CHECKING:
    from constraints.conflict import SmallestCluster
    from planner.report.records.plan import StrategyRecord
    from planner.report.records.reports import AlternativeRecord, ConflictRecord
    from planner.report.records.setting import ClusterRecord, SettingRecord

ENTRIES = {
    "search.framework_rules": frozenset(map(sentence, FRAMEWORK_RULES)),
    "search.preferences": frozenset(map(sentence, PREFERENCE_RULES)),
}
"""Rules by the entry of a job that drops all of them where it is false."""


def rules_by_entry(target: str | None) -> dict[str, frozenset[str]]:
    """Return the rules that each entry of a job drops: the target's rules where it has one, else the framework's."""
    if target is None:
        return ENTRIES
    return {**ENTRIES, "search.framework_rules": frozenset(), TARGET: frozenset(map(sentence, TARGET_RULES[target]))}


TARGET = "search.target"


def forbidden_rules_sections(rules: Sequence[str], *notes: str) -> Iterator[Section]:
    """Build the section on the rules that forbid a given strategy."""
    if rules:
        yield Section(title="Forbidden: this strategy breaks these rules", rows=number_rows(rules), notes=notes)


def preference_sections(preferences: Sequence[str]) -> Iterator[Section]:
    """Build the section on the preferences of the search that a given strategy does not keep."""
    if preferences:
        yield Section(title=LEFT_OUT, rows=number_rows(preferences), notes=lift_notes(preferences))


LEFT_OUT = "Not forbidden, but the search leaves such strategies out"
LIFTED = "search.preferences: false lets the search try them."


def lift_notes(preferences: Sequence[str]) -> tuple[str, ...]:
    """Return the note on the entry that lifts preferences; none if all are of evidence and name their own entry."""
    return () if all(LIFTED_EVIDENCE in one for one in preferences) else (LIFTED,)


def none_text(conflict: ConflictRecord | None) -> str:
    """Return the reason that there is no plan, in one line."""
    if conflict is None:
        return "none within the time limit"
    if conflict.least_bubble_fraction is not None:
        return f"infeasible: the pipeline idles for at least {conflict.least_bubble_fraction:.2%} of the step"
    return f"infeasible: {shortage_text(conflict) or 'nothing fits'}"


def shortage_text(lacking: ConflictRecord | AlternativeRecord) -> str:
    """Describe the memory that the closest strategy lacks; empty where that is not known."""
    parts = {"GPU": lacking.shortage_bytes, "host": lacking.host_shortage_bytes}
    texts = [f"{gib(nbytes)} GiB of {name} memory" for name, nbytes in parts.items() if nbytes]
    return f"the closest strategy lacks {' and '.join(texts)} per GPU" if texts else ""


def nothing_sections(setting: SettingRecord, conflict: ConflictRecord | None) -> Iterator[Section]:
    """Build the sections on why no strategy fits, and on the closest strategy."""
    if conflict is None:
        return
    yield from conflict_sections(setting, conflict)
    if conflict.closest:
        strategy = strategies_section([conflict.closest.strategy])
        yield replace(strategy, title="Closest strategy: the one that lacks least memory")
        yield memory_section(setting, conflict.closest, notes=missing_notes(setting, conflict.closest))


def conflict_sections(setting: SettingRecord, conflict: ConflictRecord) -> Iterator[Section]:
    """Build the sections on rules that exclude each other, and on changes that would make the job feasible."""
    if conflict.exclusive_rules:
        yield _exclusive(conflict.exclusive_rules)
    repairs = tuple(_repairs(setting, conflict))
    if repairs or conflict.left_out:
        yield Section(
            title="Changes that would make the job feasible, each alone" if repairs else "Not known",
            rows=repairs or tuple(("note", note) for note in conflict.left_out),
            notes=tuple(conflict.left_out) if repairs else (),
        )


def _exclusive(exclusive: list[list[str]]) -> Section:
    """Build the section on sets of rules that exclude each other: one numbered list, or several."""
    if len(exclusive) == 1:
        return Section(title=TOGETHER, rows=number_rows(exclusive[0]))
    rows = [row for number, rules in enumerate(exclusive, start=1) for row in group_rows(f"set {number}", rules)]
    return Section(title=f"{TOGETHER}, in {len(exclusive)} ways", rows=tuple(rows))


TOGETHER = "No strategy satisfies all of these together"


def _repairs(setting: SettingRecord, conflict: ConflictRecord) -> Iterator[tuple[str, str]]:
    """List the changes that would make the job feasible, small ones first."""
    cluster, size = setting.cluster, conflict.smallest_cluster
    if conflict.needed_headroom_bytes is not None:
        reserve = setting.job.memory_headroom_bytes
        yield "headroom", f"{gib(conflict.needed_headroom_bytes)} GiB at most, instead of {gib(reserve)}"
    if conflict.needed_memory_bytes is not None and conflict.shortage_bytes:
        yield "GPU memory", _more_than(conflict.needed_memory_bytes, cluster.memory_bytes)
    if conflict.needed_host_memory_bytes is not None:
        yield "host memory", _more_than(conflict.needed_host_memory_bytes, cluster.host_memory_bytes_per_device)
    for entries in conflict.releases:
        yield "without" if len(entries) == 1 else "without all of", " ".join(entries)
    for rules in conflict.repairs:
        if all(LIFTED_EVIDENCE in rule for rule in rules):
            yield "search.evidence", f"any, which drops: {' '.join(rules)}"
            continue
        by_entry = rules_by_entry(setting.job.target)
        dropped = [name for name, known in by_entry.items() if known & set(rules)]
        if set(rules) <= frozenset().union(*(by_entry[name] for name in dropped)):
            false = "none" if dropped == [TARGET] else "false"
            if len(dropped) > 1:
                false = "false and none" if TARGET in dropped else "both false"
            yield " and ".join(dropped), f"{false}, which drops: {' '.join(rules)}"
    if size:
        yield "GPUs", size_text(cluster, size)
        if size.num_devices_within is not None and setting.job.objective == "step_time":
            most = f"{cluster.num_devices}: plans may then use fewer GPUs"
            yield "search.max_devices", f"{most}; the largest number that fits is {size.num_devices_within:,}"


def _more_than(needed: float, present: float) -> str:
    return f"at least {least_gib(needed)} GiB per GPU, {gib(needed - present)} more than the {gib(present)} there are"


def size_text(cluster: ClusterRecord, size: SmallestCluster[StrategyRecord]) -> str:
    """Describe the size of a cluster on which the job fits."""
    tried = size.num_devices_tried
    whole = "" if tried < cluster.devices_per_node else " in whole nodes"
    if size.num_devices is not None and size.strategy is not None:
        return f"the smallest cluster that fits has {count(size.num_devices, 'GPU')}: {size.strategy.line}"
    parts = [f"no cluster of up to {count(tried, 'GPU')}{whole} fits"] if tried else []
    if size.num_devices_enough:
        parts += [f"{count(size.num_devices_enough, 'GPU')} are enough"]
    if size.time_ran_out:
        untried = "the sizes between" if size.num_devices_enough else "larger ones" if tried else "other sizes"
        parts += [f"{untried} were not tried for want of time"]
    return "; ".join(parts)
