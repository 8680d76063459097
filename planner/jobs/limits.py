"""The section ``search`` -> SearchLimits, with bounds as text: ``tp <= 8``, ``tp * cp <= 16``, ``pp != 4``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

from constraints.limits import RELATIONS, Bound, CandidateList
from costmodel import GIB_BYTES
from costmodel.errors import SpecError
from costmodel.facts.device import Device
from costmodel.record import record
from costmodel.strategy import DECISIONS, ENUMS, FLAGS, Strategy, decision_text
from costmodel.tables import Facts
from costmodel.validation import shown
from planner.jobs.document import decision_value, parse, parse_count, require_entry, require_one_of
from planner.jobs.entries import Job, SearchSection
from planner.jobs.line import PIN, read_words
from planner.jobs.strategy_file import ALWAYS_SAID, LAYOUT, StrategyFile, complete_strategy, is_whole, read_given
from planner.uncertainty.peaks import usual_headroom_bytes

MAX_ALLOWED_VALUES = 10_000


StageChoice: TypeAlias = Literal["even", "layers", "free"]
"""
Allowed differences between pipeline stages.

``even``: none, layers are divided evenly. ``layers``: the number of layers. ``free``: also recomputation and offloading
of each rank.
"""


@record(frozen=True, kw_only=True, slots=True)
class SearchLimits:
    """
    Search space of a job; every value is an int (flags 0 and 1, enums their members).

    Parameters
    ----------
    pin
        Decisions with one value.
    allow
        Decisions with their allowed values, in ascending order.
    forbid
        Combinations of values and bounds that may not occur together.
    memory_headroom_bytes
        Device memory to leave free.
    asks_headroom
        True where the job gives the headroom itself; else a given strategy may use all of the memory.
    simplest
        True where the simplest plan within ``tolerance`` of the fastest one is recommended.
    framework_rules
        True where plans must satisfy Megatron-LM's own checks, beyond the mathematics.
    preferences
        True where plans keep the search's preferences (``PREFERENCE_RULES``).
    target
        Framework that plans are exported to (``TARGET_RULES``); None: any.
    tolerance
        Largest difference between the recommended and the fastest plan, as a fraction of the step.
    asks_stages
        True where the job chooses ``stages`` itself; else published layouts are tried unchanged.
    is_bold
        True where plans may have features, and pairs of features, that too few measured runs have.
    time_limit_seconds
        Time limit of the search, in seconds.
    stages
        Allowed differences between pipeline stages.
    limits
        Bounds of decisions and of products of them.
    candidates
        List of the only strategies that are considered.
    max_bubble_fraction
        Largest share of the step that the pipeline's bubble may be.
    max_devices
        Largest number of devices of a plan; None: a plan uses all of them.
    idle_devices
        True where whole nodes may stay idle if that is faster.
    num_nodes, faster_than_seconds
        For a search of plans with idle nodes: the allowed numbers of nodes, and the step time to undercut.
    """

    pin: Mapping[str, int]
    allow: Mapping[str, tuple[int, ...]]
    forbid: tuple[Mapping[str, int | Bound], ...]
    memory_headroom_bytes: float
    framework_rules: bool
    time_limit_seconds: float
    stages: StageChoice = "even"
    limits: tuple[Bound, ...] = ()
    candidates: CandidateList | None = None
    max_bubble_fraction: float | None = None
    max_devices: int | None = None
    idle_devices: bool = True
    num_nodes: range | None = None
    faster_than_seconds: float | None = None
    preferences: bool = True
    asks_headroom: bool = True
    simplest: bool = False
    target: str | None = None
    is_bold: bool = True
    asks_stages: bool = True
    tolerance: float = 0.01

    @property
    def needs_evidence(self) -> bool:
        """
        True where plans may have only features that enough measured runs have.

        A list of candidates is exempt: it names its features itself.
        """
        return not self.is_bold and self.candidates is None


# --- the section -------------------------------------------------------------------------------------------


def require_room(search: SearchLimits, device: Device) -> None:
    """Refuse a headroom that leaves no memory of the device."""
    headroom, room = search.memory_headroom_bytes / GIB_BYTES, device.memory_bytes / GIB_BYTES
    if headroom >= room:
        raise SpecError(
            "search.memory_headroom_gib", f"is {headroom:g}, of devices with {room:.1f} GiB: nothing would be left."
        )


def require_devices(job: Job, given: int) -> None:
    """Refuse more devices for a plan than there are, and ``max_devices`` together with ``objective: total_time``."""
    most, but = job.search.max_devices, " but for cluster.spare_nodes" if job.cluster.spare_nodes else ""
    if most is not None and most > given:
        raise SpecError("search.max_devices", f"is {most}, more than the {given} of cluster.num_devices{but}.")
    if most is not None and job.objective == "total_time":
        raise SpecError(
            "search.max_devices",
            "lets plans differ in their devices, and so in their failures: the total time then does not grow with the "
            "step time.",
            "Set objective: step_time.",
        )


def read_search(section: SearchSection, candidates_file: Path | None, facts: Facts) -> SearchLimits:
    """
    Read the section ``search`` of a job.

    Parameters
    ----------
    section
        Section ``search`` of the job.
    candidates_file
        File of the only strategies that are considered; None: all.
    facts
        Facts of the job; software and memory decide the headroom where the section does not give it.

    Raises
    ------
    SpecError
        If a decision, a value or a bound is wrong.
    """
    pinned, allow = _read_pins(section.pin), _read_allow(section.allow)
    only = _read_pinned_strategy(pinned, section, facts)
    pin = pinned.decisions if only is None else only.decisions()
    for name in pin.keys() & allow.keys():
        if pin[name] not in allow[name]:
            raise SpecError(
                f"search.pin.{name}", f"is {decision_text(name, pin[name])}, which search.allow.{name} excludes."
            )

    def complete(given: StrategyFile) -> Strategy:
        return complete_strategy(facts, given.override(StrategyFile(decisions=pin)), section.max_devices)

    listed = _list_of(only)
    if candidates_file:
        from planner.jobs.candidate_list import read_candidate_list

        listed = read_candidate_list(candidates_file, complete)
    headroom, usual = section.memory_headroom_gib, usual_headroom_bytes(facts.cluster, facts.model)
    return SearchLimits(
        pin=pin,
        allow=allow,
        forbid=tuple(_combination(entry, f"search.forbid.{index}") for index, entry in enumerate(section.forbid)),
        memory_headroom_bytes=usual if headroom is None else headroom * GIB_BYTES,
        asks_headroom=headroom is not None,
        framework_rules=section.framework_rules,
        target=section.target,
        preferences=section.preferences,
        time_limit_seconds=section.time_limit_seconds,
        stages=section.stages or ("layers" if section.evidence == "any" else "even"),
        limits=tuple(read_bound(text, f"search.limits.{i}") for i, text in enumerate(section.limits)),
        candidates=listed,
        max_bubble_fraction=section.max_bubble_fraction,
        max_devices=section.max_devices,
        simplest=not section.fastest,
        idle_devices=section.idle_devices,
        is_bold=section.evidence == "any",
        asks_stages=section.stages is not None,
        tolerance=section.tolerance,
    )


def parts_of_search(entries: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], Callable[[Any], object]]]:
    """
    Yield each pinned or allowed decision by itself, with its reader.

    One mistake then does not hide another.
    """
    for section, read in (("pin", _read_pins), ("allow", _read_allow)):
        given = entries.get(section)
        for name, value in given.items() if isinstance(given, Mapping) else ():
            yield {name: value}, read


def _read_pins(entries: Mapping[str, Any] | str) -> StrategyFile:
    """Read the pins of a section: values by decision, or a line."""
    if isinstance(entries, str):
        return read_words(entries.split(), PIN)
    for name in entries:
        require_entry(name, (*DECISIONS, LAYOUT), PIN)
    return read_given(entries, PIN)


def _read_pinned_strategy(pinned: StrategyFile, section: SearchSection, facts: Facts) -> Strategy | None:
    """Return the one strategy of a pinned line or layout; None where only decisions are pinned."""
    if pinned.layout is None and not (isinstance(section.pin, str) and is_whole(pinned)):
        return None
    if section.candidates is not None:
        raise SpecError(PIN, "is a whole strategy, and search.candidates a list of such; keep one.")
    if not is_whole(pinned):
        missing = ", ".join(name for name in ALWAYS_SAID if name not in pinned.decisions)
        problem = f"is pinned with stages of its own, which only a whole strategy can have; {missing} are not given."
        raise SpecError(f"{PIN}.{LAYOUT}", problem, "planner estimate and explain complete such a strategy.")
    return complete_strategy(facts, pinned, section.max_devices)


def _list_of(strategy: Strategy | None) -> CandidateList | None:
    """Return the list whose only entry is a pinned strategy."""
    if strategy is None:
        return None
    return CandidateList(source=PIN, rows=(), places=(), whole=(strategy,), whole_places=("the pinned line",))


def _read_allow(entries: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    return {
        decision_name(name, "search.allow"): _read_values(name, values, f"search.allow.{name}")
        for name, values in entries.items()
    }


def _read_values(name: str, values: object, where: str) -> tuple[int, ...]:
    if not isinstance(values, list) or not 1 <= len(values) <= MAX_ALLOWED_VALUES:
        raise SpecError(where, f"expected a list of values such as [4, 8], got {shown(values)}.")
    return tuple(sorted({decision_value(name, value, f"{where}.{index}") for index, value in enumerate(values)}))


def _combination(entry: Mapping[str, object], where: str) -> dict[str, int | Bound]:
    if not entry:
        raise SpecError(where, "is empty and would forbid every plan.", "Write what to forbid, such as {pp: 8}.")
    return {name: _condition(name, value, where) for name, value in entry.items()}


def _condition(name: str, value: object, where: str) -> int | Bound:
    """Read one condition of a forbidden combination: a value, or a bound such as ``>= 16``."""
    place = f"{where}.{decision_name(name, where)}"
    bound = read_condition(name, value, place) if isinstance(value, str) else None
    return decision_value(name, value, place) if bound is None else bound


def decision_name(name: str, where: str) -> str:
    """Return a name after checking that it is a decision."""
    require_entry(name, DECISIONS, where)
    return name


# --- bounds ------------------------------------------------------------------------------------------------

BOUNDED = (*DECISIONS, "num_microbatches")
"""Allowed names in a bound: the decisions, and the number of micro-batches, which follows from them."""

MAX_NUMBER = 10**9
"""Largest number in a bound."""

WHOLE = re.compile(r"([^<>=!]*)(<=|>=|==|!=|<|>)([^<>=!]+)")

EXAMPLES = "such as 'tp <= 8', 'tp * cp <= 16', 'num_microbatches >= 16' or 'recompute != full'"


def read_bound(text: str, where: str) -> Bound:
    """
    Read one entry of ``search.limits``.

    Parameters
    ----------
    text
        Decisions joined by ``*``, a relation, a value.
    where
        Dotted path of the entry, the start of every message.

    Raises
    ------
    SpecError
        If the text is no bound, or names no decision.
    """
    match = WHOLE.fullmatch(text.strip())
    if match is None or not match[1].strip():
        hint = "Equality is written ==." if re.fullmatch(r"[^<>=!]+=[^<>=!]+", text) else ""
        raise SpecError(where, f"expected a bound {EXAMPLES}, got {shown(text)}.", hint)
    left, relation, right = match.groups()
    names = tuple(name.strip() for name in left.split("*"))
    return _bound(names, relation, right, where)


def read_condition(name: str, value: str, where: str) -> Bound | None:
    """Read a bound of ``search.forbid`` such as ``>= 16``; None for a plain value."""
    match = WHOLE.fullmatch(value.strip())
    if match is None or match[1].strip():
        return None
    return _bound((name,), match[2], match[3], where)


def _bound(names: tuple[str, ...], relation: str, right: str, where: str) -> Bound:
    for name in names:
        require_one_of(name, BOUNDED, where)
        if len(names) > 1 and name in (*ENUMS, *FLAGS):
            raise SpecError(where, f"'{name}' is no number that could be multiplied.")
    value = parse(right, where)
    if names[0] in (*ENUMS, *FLAGS):
        if relation not in ("==", "!="):
            raise SpecError(where, f"'{names[0]}' has no order; it can be compared by == or != only, got {relation}.")
        number = decision_value(names[0], value, where)
    else:
        number = _number(value, where)
    assert relation in RELATIONS
    return Bound(names=names, relation=relation, number=number)


def _number(given: object, where: str) -> int:
    value = parse_count(given, where)
    whole = int(value) if isinstance(value, float) and value.is_integer() else value
    if isinstance(whole, bool) or not isinstance(whole, int) or not 0 <= whole <= MAX_NUMBER:
        raise SpecError(where, f"expected a whole number from 0 to {MAX_NUMBER} on the right, got {shown(given)}.")
    return whole
