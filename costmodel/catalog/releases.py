"""Releases of training frameworks, their names as people write them, and the memory of PyTorch's allocator."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache, lru_cache
from math import inf
from typing import Any, Literal, TypeAlias, cast

from costmodel.catalog.files import MOST_SPELLINGS, entry, merge_mappings, names, read, require_known
from costmodel.errors import SpecError, did_you_mean
from costmodel.facts.device import Device
from costmodel.facts.fields import Architecture, NotNegative
from costmodel.facts.framework import Framework
from costmodel.record import record, strict_record
from costmodel.validation import build, shown

Scheme: TypeAlias = Literal["year", "month", "version", "branch"]

NEWEST = ("main", "master", "dev", "latest", "nightly")
"""Names for a release that is newer than all others."""

NAME = re.compile(
    r"(?P<stack>[a-z][a-z0-9]*(?:[-_ ]+[a-z][a-z0-9]*)*?)(?:[-_ :@=]+v?|v)"
    rf"(?:(?P<number>[0-9]{{1,6}}(?:\.[0-9]{{1,6}})*)(?P<rest>(?:[-_.+]?(?:alpha|beta|rc|dev|post|a|b)[\w.+-]*|\+[\w.+-]*)?)"
    rf"|(?P<branch>{'|'.join(NEWEST)}))"
)
"""A stack and its release: ``Megatron-Bridge 26.04``, ``torchtitan==0.3.0``, ``megatron-core-v0.19.0rc1``."""


@record(frozen=True, kw_only=True, slots=True)
class Release:
    """
    A release of a stack.

    Parameters
    ----------
    stack
        Its software, such as ``megatron-bridge``.
    number
        Parts of its number without trailing zeros; infinite for a branch that is newer than all.
    is_final
        True if it is the final release of that number, neither a candidate nor a later build.
    """

    stack: str
    number: tuple[float, ...]
    is_final: bool = True

    @property
    def scheme(self) -> Scheme:
        """Numbering of the stack: by years (2023), by months (26.04), or by versions (0.17)."""
        first = self.number[0] if self.number else 0
        if first == inf:
            return "branch"
        if len(self.number) == 1 and first >= 1900:
            return "year"
        return "month" if 20 <= first < 100 and len(self.number) > 1 else "version"

    def month(self, since: str = "") -> float:
        """
        Months from 2000 to the release, from its number if its stack counts by months, otherwise from a date.

        A branch is newest.

        Parameters
        ----------
        since
            Date of the release in the catalog; empty: not known, which counts as newest.

        >>> Release(stack="nemo", number=(25, 2)).month(), Release(stack="torchtitan", number=(0, 3)).month("2025-02")
        (302.0, 302.0)
        """
        if self.scheme != "month":
            return month_of_date(since) if since and self.scheme != "branch" else inf
        year, month, *patch = self.number
        return 12 * year + month + sum(patch) / 100


def month_of_date(date: str) -> float:
    """
    Months from 2000 to a date: for a range, to its end; for a year alone, to the end of the year.

    >>> month_of_date("2025-02"), month_of_date("2024-08-12"), month_of_date("2025-11..2026-05"), month_of_date("2023")
    (302.0, 296.0, 317.0, 288.0)
    """
    year, _, month = date.rpartition(".")[2].partition("-")
    return 12.0 * (int(year) - 2000) + int(month[:2] or 12)


def release_of(name: str) -> Release | None:
    """
    Parse the name of a release; None if it has no number.

    >>> release_of("torchtitan==0.3.0")
    Release(stack='torchtitan', number=(0, 3), is_final=True)
    >>> release_of("Megatron_Bridge v26.04") == release_of("megatron-bridge-26.4")
    True
    """
    found = NAME.fullmatch(name.strip().lower())
    if found is None:
        return None
    stack = re.sub(r"[-_ ]+", "-", found["stack"])
    if found["branch"]:
        return Release(stack=stack, number=(inf,), is_final=False)
    parts = [int(part) for part in found["number"].split(".")]
    while len(parts) > 1 and parts[-1] == 0:
        parts.pop()
    return Release(stack=stack, number=tuple(parts), is_final=not found["rest"])


def find_release_spelling(name: str, known: Iterable[str]) -> str | None:
    """
    Return the known spelling of a release that is written differently; None if the release is not known.

    >>> find_release_spelling("torchtitan-0.3.0", ["torchtitan-0.1", "torchtitan-0.3"])
    'torchtitan-0.3'
    """
    names = tuple(known)
    if name in names:
        return name
    wanted = release_of(name)
    return None if wanted is None else next((one for one in names if release_of(one) == wanted), None)


def nearest_release(name: str, known: Iterable[str]) -> str | None:
    """
    Return the nearest known release of the same stack; None if the stack is not known.

    It is the newest release that is not newer, otherwise the oldest. If all are numbered differently, it is the newest.

    >>> nearest_release("nemo-25.11", ["nemo-24.07", "nemo-25.09", "nemo-26.04", "torchtitan-0.1"])
    'nemo-25.09'
    >>> nearest_release("nemo-23.01", ["nemo-24.07", "nemo-25.09"])
    'nemo-24.07'
    """
    wanted = release_of(name)
    if wanted is None:
        return None
    every = ((one, release_of(one)) for one in known)
    same = sorted((made.number, one) for one, made in every if made is not None and made.stack == wanted.stack)
    if not same:
        return None
    alike = [(number, one) for number, one in same if Release(stack="", number=number).scheme == wanted.scheme]
    older = [one for number, one in alike if number <= wanted.number]
    if not alike:  # by versions where the stack counts by months, or a branch: nothing tells which is near
        newest = {"year": 0, "version": 1, "month": 2, "branch": 3}
        return max(same, key=lambda one: (newest[Release(stack="", number=one[0]).scheme], one[0]))[1]
    return older[-1] if older else alike[0][1]


def stands_in(asked: str, known: str) -> str:
    """Return the sentence, without a full stop, on a release that the catalog does not know."""
    ours, theirs = release_of(known), release_of(asked)
    if ours is None or theirs is None or ours.stack == theirs.stack:
        return f"{asked} is not known: costed as {known}, its nearest release"
    return (
        f"{asked} is not known: costed as {known}, plain PyTorch; say what differs (cluster.framework.base, settings), "
        "and measure two layouts for planner calibrate"
    )


ALLOCATORS = ("segments", "expandable")
"""Segments of fixed sizes; ``expandable_segments:True``."""


@strict_record(frozen=True, kw_only=True, slots=True)
class Share:
    """
    Peak reserved bytes over peak tensor bytes, minus 1.

    Parameters
    ----------
    low, middle, high
        10th, 50th and 90th percentile of the simulated jobs.
    """

    low: NotNegative
    middle: NotNegative
    high: NotNegative


@strict_record(frozen=True, kw_only=True, slots=True)
class Shares:
    """
    Shares by the tensors that are allocated and freed during a step.

    Parameters
    ----------
    whole
        Without sharded weights.
    gathered, gathered_recomputed
        With sharded weights, gathered layer by layer; with full recomputation besides.
    """

    whole: Share
    gathered: Share
    gathered_recomputed: Share


@strict_record(frozen=True, kw_only=True, slots=True)
class Allocator:
    """
    One setting of the allocator.

    Parameters
    ----------
    at_the_limit
        Least share with which a step runs: before the allocator fails, it gives back free segments.
    reserved
        Share that it reserves if the device has room.
    without_retries
        Least share at which it gives nothing back in the fifth step; with less, every step waits for that.
    source
        Source of the shares.
    """

    at_the_limit: NotNegative
    reserved: Shares
    without_retries: Shares
    source: str = ""


@cache
def allocator(name: str) -> Allocator:
    """Return the entry of a setting, one of ``ALLOCATORS``."""
    return build(Allocator, read("allocators.yaml")[name], f"catalog.allocators.{name}")


OWN = (
    *("extends", "name", "description", "releases", "since", "is_default", "targets"),
    *("measured_on", "kernels_of", "factors"),
)
"""Entries that are not inherited; all others come from the extended entry unless they are given."""

REPLACED = ("architectures", "setting_values", "settings_by_precision", "strategy_by_precision")
"""Mappings and lists that replace those of the extended entry as a whole."""

Factors = Mapping[str, Mapping[str, float]]
"""Factors on constants by entry, in place of the catalog's."""


def frameworks() -> tuple[str, ...]:
    """Return the names of the releases with an entry of their own."""
    return names("frameworks")


@cache
def framework_names() -> dict[str, str]:
    """Return the entry of every name that a job may write: entries, and the other releases that they stand for."""
    others = {release: name for name in frameworks() for release in entry("frameworks", name).get("releases") or ()}
    return {**others, **{name: name for name in frameworks()}}


@cache
def framework(name: str) -> Framework:
    """
    Return a release of a training framework.

    Raises
    ------
    SpecError
        If the catalog has no such release.
    """
    require_known("framework", name, framework_names())
    return framework_with(name, None)


def framework_with(name: str, factors: Factors | None) -> Framework:
    """Build a release with other factors on constants, by their entry; None: the catalog's."""
    own = framework_names()[name]
    said = entry("frameworks", own)
    kernels = said.get("kernels_of", own)
    fitted = entry("frameworks", kernels)
    known = (fitted.get("factors") or {}) if factors is None else factors.get(kernels, {})
    sources = {key: text for key, text in (fitted.get("sources") or {}).items() if "factors" in _groups(key)}
    whole = {**_whole(own), **{key: said[key] for key in OWN if key in said and key != "extends"}}
    whole |= {"name": name, "kernels_of": kernels, "factors": known, "sources": {**_sources(own), **sources}}
    return build(Framework, whole, f"catalog.frameworks.{name}")


@cache
def _whole(name: str) -> Mapping[str, Any]:
    """Merge an entry into those that it extends, except entries that are not inherited."""
    said = entry("frameworks", name)
    base = _whole(said["extends"]) if "extends" in said else {}
    kept = {key: value for key, value in said.items() if key not in (*OWN, "sources")}
    return {**merge_mappings(base, kept), **{key: said[key] for key in REPLACED if key in said}}


def _sources(name: str) -> Mapping[str, str]:
    """Return the sources of an entry: its own, and those of the extended entry that remain valid."""
    said = entry("frameworks", name)
    base = said.get("extends")
    kept = _inherit_sources(_sources(base), _whole(base), said) if base else {}
    return {**kept, **(said.get("sources") or {})}


def _inherit_sources(sources: Mapping[str, str], before: Mapping[str, Any], said: Mapping[str, Any]) -> dict[str, str]:
    """
    Return the sources of an entry that remain valid for an entry that extends it: those of unchanged values.

    The source of a group is kept for the unchanged entries of the group. It is dropped for entries that are changed, or
    that have a source of their own.

    >>> before = {"stages": "filled", "behaviour": {"batch_first": True, "scatter_gather_p2p": True}}
    >>> sources = {"stages": "here", "behaviour": "there", "factors.p2p_seconds": "a fit"}
    >>> _inherit_sources(sources, before, {"stages": "even", "behaviour": {"batch_first": False}})
    {'behaviour.scatter_gather_p2p': 'there'}
    """
    known, changed, own = _leaves(before), _leaves(said), set(said.get("sources") or ())
    replaced = {name for name in REPLACED if name in said}
    of_key: dict[str, list[str]] = {}
    kept = set()
    for path, value in known.items():
        groups = _groups(path)
        for group in groups:
            of_key.setdefault(group, []).append(path)
        is_changed = path in changed and (changed[path] != value or not own.isdisjoint(groups))
        if not is_changed and replaced.isdisjoint(groups[1:]):
            kept.add(path)
    found: dict[str, str] = {}
    for key, source in sources.items():
        paths = of_key.get(key, [])
        left = [path for path in paths if path in kept]
        found |= {key: source} if left == paths and left else dict.fromkeys(left, source)
    return found


def _groups(path: str) -> list[str]:
    """
    Return the keys that a source of an entry may have: the entry itself, then the groups that contain it.

    >>> _groups("behaviour.kernels.batch_first")
    ['behaviour.kernels.batch_first', 'behaviour.kernels', 'behaviour']
    """
    groups = [path]
    while "." in path:
        path = path.rpartition(".")[0]
        groups.append(path)
    return groups


def _leaves(entry: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Return the values of an entry by dotted path."""
    found: dict[str, Any] = {}
    for name, value in entry.items():
        if isinstance(value, Mapping) and value:
            found |= _leaves(value, f"{path}{name}.")
        else:
            found[f"{path}{name}"] = value
    return found


def framework_of(given: object, where: str, factors: Factors | None = None) -> Framework:
    """
    Build a release from its name, or from changes to a named ``base``; accepts unknown releases of a known stack.

    The nearest release stands for an unknown one, and ``STAND_IN`` for one of a stack that resembles none;
    :func:`unknown_release` says so.

    Raises
    ------
    SpecError
        If there is no such release, or an entry is wrong.
    """
    if isinstance(given, str):
        return _find_framework(given, where, factors)
    if not isinstance(given, Mapping):
        raise SpecError(where, f"expected a name or a mapping, got {shown(given)}.")
    base = given.get("base")
    if base is not None and not isinstance(base, str):
        raise SpecError(f"{where}.base", f"expected a name, got {shown(base)}.")
    changes = {name: value for name, value in given.items() if name != "base"}
    if base is None:
        return build(Framework, {"name": "inline", **changes}, where)
    known_base = _find_framework(base, f"{where}.base", factors)
    plain = asdict(cast(Any, known_base))
    made = build(Framework, merge_mappings({**plain, "name": f"{known_base.name}, changed"}, changes), where)
    own = dict.fromkeys(_leaves({key: value for key, value in changes.items() if key != "sources"}), "job file")
    known = plain.pop("sources")
    return replace(made, sources={**_inherit_sources(known, plain, changes), **own, **(changes.get("sources") or {})})


def _find_framework(name: str, where: str, factors: Factors | None) -> Framework:
    found = _release(name)[0]
    if found is None:
        raise SpecError(where, f"{shown(name)} is not in the catalog.", did_you_mean(name, framework_names()))
    made = framework(found) if factors is None else framework_with(found, factors)
    is_strange = found == STAND_IN and name != found and _is_own_stack(name, tuple(framework_names()))
    return replace(made, features={}, setting_values={}) if is_strange else made  # nothing is known to be missing


@lru_cache(maxsize=MOST_SPELLINGS)
def _release(name: str) -> tuple[str | None, bool]:
    """Return the catalog's name of a release, or of the nearest one of its stack, and True if the release is known."""
    known = tuple(framework_names())
    own = find_release_spelling(name, known)
    nearest = own or nearest_release(name, known)
    return nearest or (STAND_IN if _is_own_stack(name, known) else None), own is not None


STAND_IN = "nanotron-0.4"
"""Release that stands for software that no entry describes: PyTorch's own kernels, nothing fused."""


def _is_own_stack(name: str, known: Sequence[str]) -> bool:
    """Return True for a release with a number whose stack resembles none of the catalog's."""
    release = release_of(name)
    stacks = {made.stack for made in map(release_of, known) if made is not None}
    return release is not None and not difflib.get_close_matches(release.stack, stacks, n=1)


def unknown_release(given: object) -> str:
    """Return the release that a job names if the catalog does not know it; otherwise an empty string."""
    name = given.get("base") if isinstance(given, Mapping) else given
    if not isinstance(name, str):
        return ""
    nearest, is_known = _release(name)
    return name if nearest and not is_known else ""


def default_framework(device: Device) -> str:
    """
    Return the release of a job that names none: the newest Megatron-LM recipe for the device, or the device's own.

    Raises
    ------
    SpecError
        If no default runs on the device.
    """
    if device.framework is not None:
        return device.framework
    running = [name for name in frameworks() if _covers(_architectures(name), device.architecture)]
    fitting = [name for name in running if entry("frameworks", name).get("is_default")]
    if not fitting:
        allowed = f"Write one that does: {', '.join(running)}." if running else ""
        raise SpecError("cluster.framework", f"is required: no default runs on {device.name}.", allowed)
    return max(fitting, key=_month_of)


def releases_for(target: str, *, own: bool = False) -> tuple[str, ...]:
    """Return releases whose configuration a target of ``planner export`` writes; on request only the target's own."""
    of_each = {name: entry("frameworks", name).get("targets", ()) for name in frameworks()}
    return tuple(name for name, targets in of_each.items() if target in (targets[:1] if own else targets))


def newest_for(target: str, architecture: Architecture | None) -> str | None:
    """Return a target's own newest release that runs on an architecture; None if there is none."""
    fitting = [name for name in releases_for(target, own=True) if _covers(_architectures(name), architecture)]
    return max(fitting, key=lambda name: (_month_of(name), name), default=None)


def runs_on(known: Framework, architecture: Architecture | None) -> bool:
    """Return True if a release runs on devices of an architecture; always True without an architecture."""
    return _covers(known.architectures, architecture)


def _covers(architectures: Collection[str], architecture: Architecture | None) -> bool:
    """Return True if a release for some architectures, or for all, runs on one of them, or on an unknown one."""
    return architecture is None or not architectures or architecture in architectures


def _month_of(name: str) -> str:
    """Return the month of a release."""
    return str(entry("frameworks", name).get("since", ""))


def _architectures(name: str) -> Collection[str]:
    """Return the architectures that a release runs on; empty: all."""
    return tuple(_whole(name).get("architectures", ()))


def releases_with_feature(decision: str, value: str) -> tuple[str, ...]:
    """Return the releases whose entries list a value of a decision."""
    return tuple(name for name in frameworks() if value in framework(name).features.get(decision, ()))
