"""Releases of training frameworks: one entry each, which may extend another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import cache, lru_cache
from typing import Any, cast

from costmodel.catalog.files import MOST_SPELLINGS, chain, entry, merge_mappings, names, require_known
from costmodel.catalog.releases import find_release_spelling, nearest_release
from costmodel.errors import SpecError, did_you_mean
from costmodel.facts.device import Device
from costmodel.facts.fields import Architecture
from costmodel.facts.framework import Framework
from costmodel.validation import build, shown

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
    whole: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for part in chain("frameworks", own):
        said = entry("frameworks", part)
        sources = {**_inherit_sources(sources, whole, said), **(said.get("sources") or {})}
        kept = {key: value for key, value in said.items() if key not in (*OWN, "sources")}
        whole = {**merge_mappings(whole, kept), **{key: said[key] for key in REPLACED if key in said}}
    said = entry("frameworks", own)
    whole |= {key: said[key] for key in OWN if key in said and key != "extends"}
    kernels = said.get("kernels_of", own)
    fitted = entry("frameworks", kernels)
    known = (fitted.get("factors") or {}) if factors is None else factors.get(kernels, {})
    sources |= {key: text for key, text in (fitted.get("sources") or {}).items() if _is_of("factors", key)}
    whole |= {"name": name, "kernels_of": kernels, "factors": known, "sources": sources}
    return build(Framework, whole, f"catalog.frameworks.{name}")


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
    known, changed, own = _leaves(before), _leaves(said), tuple(said.get("sources") or ())
    kept = {
        path
        for path, value in known.items()
        if not (path in changed and (changed[path] != value or any(_is_of(key, path) for key in own)))
        and not any(path.startswith(f"{name}.") for name in REPLACED if name in said)
    }
    found: dict[str, str] = {}
    for key, source in sources.items():
        of_key = [path for path in known if _is_of(key, path)]
        left = [path for path in of_key if path in kept]
        found |= {key: source} if left == of_key and left else dict.fromkeys(left, source)
    return found


def _is_of(key: str, path: str) -> bool:
    """Return True if a source's key names an entry, or a group that contains it."""
    return f"{path}.".startswith(f"{key}.")


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

    The nearest release stands for an unknown one, and :func:`unknown_release` says so.

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
    return framework(found) if factors is None else framework_with(found, factors)


@lru_cache(maxsize=MOST_SPELLINGS)
def _release(name: str) -> tuple[str | None, bool]:
    """Return the catalog's name of a release, or of the nearest one of its stack, and True if the release is known."""
    known = tuple(framework_names())
    own = find_release_spelling(name, known)
    return own or nearest_release(name, known), own is not None


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
    fitting = [name for name in frameworks() if _is_default_on(framework(name), device.architecture)]
    if not fitting:
        raise SpecError("cluster.framework", f"is required: no default runs on {device.name}.")
    return max(fitting, key=lambda name: framework(name).since)


def releases_for(target: str, *, own: bool = False) -> tuple[str, ...]:
    """Return releases whose configuration a target of ``planner export`` writes; on request only the target's own."""
    of_each = {name: framework(name).targets for name in frameworks()}
    return tuple(name for name, targets in of_each.items() if target in (targets[:1] if own else targets))


def newest_for(target: str, architecture: Architecture | None) -> str | None:
    """Return a target's own newest release that runs on an architecture; None if there is none."""
    fitting = [name for name in releases_for(target, own=True) if runs_on(framework(name), architecture)]
    return max(fitting, key=lambda name: (framework(name).since, name), default=None)


def _is_default_on(known: Framework, architecture: Architecture | None) -> bool:
    return known.is_default and runs_on(known, architecture)


def runs_on(known: Framework, architecture: Architecture | None) -> bool:
    """Return True if a release runs on devices of an architecture; always True without an architecture."""
    return architecture is None or not known.architectures or architecture in known.architectures


def releases_with_feature(decision: str, value: str) -> tuple[str, ...]:
    """Return the releases whose entries list a value of a decision."""
    return tuple(name for name in frameworks() if value in framework(name).features.get(decision, ()))
