"""Why nothing fits, as sections: the rules that exclude each other, and what would leave a strategy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from constraints import FRAMEWORK_RULES, sentence
from costmodel.strategy import DEGREES, decision_text
from planner.report.section import Section
from planner.report.wording import count, gib

if TYPE_CHECKING:
    from constraints.conflict import Conflict, Size
    from costmodel.step.estimate import Estimate, RankEstimate
    from costmodel.strategy import Strategy
    from planner.jobs.problem import Problem

TELLING_PARTS = 3
"""Largest parts of the memory of a rank that a sentence names."""

OF_FRAMEWORKS = frozenset(sentence(rule) for rule in FRAMEWORK_RULES)


def conflict_sections(problem: Problem, conflict: Conflict) -> Iterator[Section]:
    """What excludes what, and what to give up."""
    if conflict.exclusive:
        yield _exclusive(conflict)
    repairs = tuple(_repairs(problem, conflict))
    if repairs or conflict.left_out:
        yield Section(
            title="What would leave a strategy, each line alone" if repairs else "What is not known",
            rows=repairs or tuple((NOTE, note) for note in conflict.left_out),
            notes=conflict.left_out if repairs else (),
        )


NOTE = "note"


def _exclusive(conflict: Conflict) -> Section:
    """One set as a numbered list; several ones one after the other."""
    if len(conflict.exclusive) == 1:
        (rules,) = conflict.exclusive
        return Section(title=TOGETHER, rows=tuple((str(n), rule) for n, rule in enumerate(rules, start=1)))
    rows = [
        (f"set {number}" if rule is rules[0] else "", rule)
        for number, rules in enumerate(conflict.exclusive, start=1)
        for rule in rules
    ]
    return Section(title=f"{TOGETHER}, in {len(conflict.exclusive)} ways", rows=tuple(rows))


TOGETHER = "No strategy satisfies all of these together"


def _repairs(problem: Problem, conflict: Conflict) -> Iterator[tuple[str, str]]:
    """What to give up, small things first."""
    device = problem.facts.cluster.device
    if conflict.headroom_bytes is not None:
        reserve = problem.search.memory_headroom_bytes
        yield "headroom", f"{gib(conflict.headroom_bytes)} GiB at most, instead of {gib(reserve)}"
    if conflict.needed_bytes is not None and conflict.shortage_bytes:
        yield (
            "device memory",
            f"{gib(conflict.needed_bytes)} GiB per GPU, {gib(conflict.shortage_bytes)} more than the "
            f"{gib(device.memory_bytes)} there are; less does not do",
        )
    if conflict.needed_host_bytes is not None:
        more = gib(conflict.needed_host_bytes - device.host_memory_bytes)
        yield (
            "host memory",
            f"{gib(conflict.needed_host_bytes)} GiB per GPU, {more} more than the {gib(device.host_memory_bytes)} "
            "there are; less does not do",
        )
    for entries in conflict.releases:
        yield "without" if len(entries) == 1 else "without all of", " ".join(entries)
    for rules in conflict.repairs:
        if set(rules) <= OF_FRAMEWORKS:
            yield "search.framework_rules", f"false, which does without: {' '.join(rules)}"
    if conflict.size:
        yield "GPUs", size_text(problem, conflict.size)
        if conflict.size.num_within is not None and problem.objective == "step_time":
            most = f"{problem.facts.cluster.num_devices}: plans may then use fewer GPUs"
            yield "search.max_devices", f"{most}; the largest number that fits is {conflict.size.num_within:,}"


def size_text(problem: Problem, size: Size) -> str:
    """How large a cluster must be, in words."""
    whole = "" if size.num_tried < problem.facts.cluster.device.devices_per_node else " in whole nodes"
    if size.num_devices is not None and size.strategy is not None:
        return f"the smallest cluster that fits has {count(size.num_devices, 'GPU')}: {strategy_text(size.strategy)}"
    none = f"no cluster of up to {count(size.num_tried, 'GPU')}{whole} fits"
    if not size.is_cut:
        return none
    enough = f"; {count(size.num_enough, 'GPU')} are enough" if size.num_enough else ""
    return f"{none}{enough}; the sizes between were not tried for want of time" if enough else f"{none}; {LATE}"


LATE = "larger ones were not tried for want of time"


def strategy_text(strategy: Strategy) -> str:
    """
    The decisions that are not 1, off, none or the usual, as a command line spells them.

    >>> from planner.search.space import strategy_of
    >>> from costmodel.strategy import DECISIONS
    >>> plain = {**dict.fromkeys(DECISIONS, 0), **dict.fromkeys(DEGREES, 1)}
    >>> strategy_text(strategy_of({**plain, "tp": 8, "recompute": 2}))
    'tp=8 recompute=full'
    """
    telling = {name: value for name, value in strategy.decisions().items() if value != (name in DEGREES)}
    return " ".join(f"{name}={decision_text(name, value)}" for name, value in telling.items()) or "one GPU, all plain"


def missing_notes(problem: Problem, closest: Estimate) -> Iterator[str]:
    """On which ranks memory is missing, and what it is full of."""
    room = problem.facts.cluster.device.memory_bytes - problem.search.memory_headroom_bytes
    short = [rank for rank in closest.ranks if rank.device_bytes > room]
    if not short:
        return
    fullest = max(short, key=lambda rank: rank.device_bytes)
    parts = sorted(fullest.bytes_by_part.items(), key=lambda part: -part[1])[:TELLING_PARTS]
    texts = ", ".join(f"{name} {gib(nbytes)}" for name, nbytes in parts if nbytes)
    where = f" Most is missing on rank {fullest.rank}, whose" if len(closest.ranks) > 1 else " Its"
    yield f"Memory is missing on {_ranks_text(short, len(closest.ranks))}.{where} largest parts are {texts} GiB."


def _ranks_text(short: list[RankEstimate], num_ranks: int) -> str:
    if len(short) == num_ranks:
        return f"all {num_ranks} pipeline ranks" if num_ranks > 1 else "the only pipeline rank"
    numbers = [rank.rank for rank in short]
    spans: list[list[int]] = []
    for number in numbers:
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return "pipeline ranks " + ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)
