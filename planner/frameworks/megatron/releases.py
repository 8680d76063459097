"""Which releases of Megatron-LM take which options, and how each of them spells what exports write."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from costmodel.errors import SpecError
from planner.frameworks.megatron.model import MAMBA_STACK, PATTERN, STAGED_PATTERN, staged
from planner.frameworks.megatron.stages import LAST
from planner.frameworks.target import Entries

RELEASES = ("0.14", "0.16", "0.17", "0.19", "main")
"""Releases of Megatron Core, with which Megatron-LM is released; main is that of ``options.csv``."""

TABLE = Path(__file__).parent / "releases.csv"
"""
Options, and choices of options, that not all releases have: the first and the last one that has each.

They are those of the parsers of the tags core_v0.14.0, core_v0.16.0, core_v0.17.1 and core_v0.19.0, and of main.
"""

HYBRID_STACK = ["megatron.core.models.hybrid.hybrid_layer_specs", "hybrid_stack_spec"]
"""What ``--spec`` names for a hybrid in main (its functional tests)."""

BACKEND, IMPL, SCOPE = "--moe-flex-dispatcher-backend", "--cuda-graph-impl", "--cuda-graph-scope"


EXCHANGES = "--overlap-moe-expert-parallel-comm"

EXCHANGES_IN_ONE_GRAPH = f"{EXCHANGES} in one CUDA graph of the iteration"
"""What megatron-core 0.16.1 refuses (transformer/transformer_config.py:1898); Megatron-Bridge 26.06 does it."""

GRAPHS_WITH_EXCHANGES = "0.19"
"""The first release here that is not older than those recipes."""


def in_release(entries: Entries, release: str) -> Entries:
    """
    Entries in the words of a release.

    Raises
    ------
    SpecError
        If it lacks options or choices: all of them by name, with the first release that has each.
    """
    words = spelled(entries, release)
    missing = [*lacking(words, release)]
    if missing:
        least = least_release(entries)
        hint = f"\nThe first one that has all is {least}." if least else ""
        lines = "".join(f"\n  - {name} {since_when(name)}" for name in missing)
        raise SpecError("framework-version", f"Megatron Core {release} has not what this plan needs:{lines}{hint}")
    return words


def spelled(entries: Entries, release: str) -> Entries:
    """
    What a release calls them; what it has no word for stays as it is.

    One CUDA graph of an iteration is a scope of the local implementation up to 0.17, and an implementation of its own
    from 0.19 on, where scopes are called modules.

    >>> spelled({"--cuda-graph-impl": "local", "--cuda-graph-scope": ["full_iteration"]}, "0.19")
    {'--cuda-graph-impl': 'full_iteration'}
    >>> spelled({"--moe-flex-dispatcher-backend": "deepep"}, "0.14")
    {'--moe-enable-deepep': True}

    References
    ----------
    Megatron-LM, megatron/training/arguments.py of core_v0.14.0 and core_v0.19.0.
    """
    words = dict(entries)
    graphs = words.get(IMPL), words.get(SCOPE)
    if release == RELEASES[0]:
        if words.get(BACKEND) == "deepep":
            words.pop(BACKEND)
            words["--moe-enable-deepep"] = True
        if graphs in (("local", ["full_iteration"]), ("transformer_engine", ["attn"])):
            switch = {"local": "--enable-cuda-graph", "transformer_engine": "--external-cuda-graph"}[words.pop(IMPL)]
            words |= {switch: True, SCOPE: words[SCOPE][0]}
    if _is_from(release, "0.17") and PATTERN in words:
        pattern, pp, last = words.pop(PATTERN), words.get("--pipeline-model-parallel-size", 1), words.pop(LAST, None)
        layers = [len(pattern)] if last is None else [(len(pattern) - last) // (pp - 1)] * (pp - 1) + [last]
        words[STAGED_PATTERN] = staged(pattern, layers)
    if release == RELEASES[-1] and words.get("--spec") == MAMBA_STACK:
        words["--spec"] = HYBRID_STACK
    if _is_from(release, "0.19") and words.get(SCOPE):
        scope = words.pop(SCOPE)
        words |= {IMPL: "full_iteration"} if scope == ["full_iteration"] else {"--cuda-graph-modules": scope}
    return words


def lacking(words: Entries, release: str) -> Iterator[str]:
    """Options that a release does not have, choices of its options, and what it does not do with those that it has."""
    for name, value in words.items():
        if not _has(release, name):
            yield name
            continue
        values = value if isinstance(value, (list, tuple)) else [value]
        yield from (f"{name} {one}" for one in values if not _has(release, f"{name} {one}"))
    if release == RELEASES[0]:
        yield from _excluding(words)
    if not _is_from(release, GRAPHS_WITH_EXCHANGES) and EXCHANGES in words and "full_iteration" in words.get(SCOPE, ()):
        yield EXCHANGES_IN_ONE_GRAPH


def _excluding(words: Entries) -> Iterator[str]:
    """
    What excludes each other in core 0.14 only.

    References
    ----------
    megatron-core 0.14.0, transformer/transformer_config.py:696,1270, ssm/mamba_hybrid_layer_allocation.py:17,
    ssm/mamba_block.py.
    """
    tp, groups = words.get("--tensor-model-parallel-size", 1), words.get("--num-query-groups")
    if groups is not None and groups % tp:
        yield f"--num-query-groups {groups} beside --tensor-model-parallel-size {tp}"
    if "--enable-cuda-graph" in words and "--recompute-granularity" in words:
        yield "--enable-cuda-graph beside --recompute-granularity"
    if "E" in words.get(PATTERN, ""):
        yield f"{PATTERN} with experts (E)"
    if PATTERN in words and LAST in words:
        yield f"{LAST} beside {PATTERN}"


def least_release(entries: Entries) -> str | None:
    """The first release that takes all entries in its words; None if none does."""
    return next((release for release in RELEASES if not any(lacking(spelled(entries, release), release))), None)


def release_note(entries: Entries) -> str:
    """The first release that takes a plan, what of it needs that one, and which releases take it in other words."""
    least = least_release(entries)
    assert least is not None, f"no release takes {entries}"
    number = RELEASES.index(least)
    needing = ", ".join(lacking(spelled(entries, RELEASES[number - 1]), RELEASES[number - 1])) if number else ""
    others = [release for release in RELEASES[number:] if spelled(entries, release) != entries]
    need = f"Needs Megatron Core {least} or later" + (f": {needing}." if needing else ".")
    return need + (f" For {', '.join(others)} add --framework-version, which spells it otherwise." if others else "")


def since_when(name: str) -> str:
    """Which releases have an option or a choice that not all of them have; what excludes each other did so in one."""
    default = GRAPHS_WITH_EXCHANGES if name == EXCHANGES_IN_ONE_GRAPH else RELEASES[1]
    first, last = _spans().get(name, (default, RELEASES[-1]))
    return f"needs core {first} {'or later' if last == RELEASES[-1] else f'to {last}'}"


def _is_from(release: str, first: str) -> bool:
    return RELEASES.index(release) >= RELEASES.index(first)


def _has(release: str, name: str) -> bool:
    first, last = _spans().get(name, (RELEASES[0], RELEASES[-1]))
    return _is_from(release, first) and _is_from(last, release)


@cache
def _spans() -> dict[str, tuple[str, str]]:
    """First and last release of an option, or of an option with a choice behind it."""
    with TABLE.open(encoding="utf-8", newline="") as lines:
        rows = csv.DictReader(lines)
        return {f"{row['option']} {row['choice']}".strip(): (row["since"], row["until"]) for row in rows}
