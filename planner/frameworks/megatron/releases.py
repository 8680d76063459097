"""Releases of Megatron-LM: the releases that accept a plan, and the spelling of its options in each."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from constraints import Rule, sentence
from constraints.targets import (
    MEGATRON_RELEASES,
    OWN_LOSS,
    estimate_own_loss,
    find_broken_rules,
    find_costed_release,
    name_of_release,
    release_number,
)
from costmodel import GIB_BYTES
from costmodel.catalog.releases import release_of, stands_in
from costmodel.errors import SpecError
from costmodel.facts.model import Model
from costmodel.record import record
from costmodel.step.estimate import Estimate
from planner.frameworks.megatron.model import MAMBA_STACK, PATTERN, STAGED_PATTERN, split_pattern
from planner.frameworks.megatron.numerics import YARN, facts_of, options_of, todo_lines
from planner.frameworks.megatron.stages import LAST
from planner.frameworks.target import Entries

if TYPE_CHECKING:
    from planner.results import Plan

RELEASES = MEGATRON_RELEASES
"""Releases of Megatron Core, which are those of Megatron-LM; main is that of ``options.csv``."""

TABLE = Path(__file__).parent / "releases.csv"
"""
Table of options, and choices of options, that not all releases have, with the first and last release of each.

They are those of the parsers of the tags core_v0.14.0, core_v0.16.0, core_v0.17.1, core_v0.18.2 and core_v0.19.0, and
of main. Strategies that a release refuses are rules (``constraints.MEGATRON_LM_RULES``).
"""

HYBRID_STACK = ["megatron.core.models.hybrid.hybrid_layer_specs", "hybrid_stack_spec"]
"""Value of ``--spec`` for a hybrid in main (its functional tests)."""

BACKEND, IMPL, SCOPE = "--moe-flex-dispatcher-backend", "--cuda-graph-impl", "--cuda-graph-scope"

FUSION, SQUARED_RELU = "--cross-entropy-fusion-impl", "--squared-relu"
DISTRIBUTED = "--use-distributed-optimizer"

RANK_CAPACITY = 1.5
"""
Capacity of one CUDA graph, as a share of the tokens that a rank gets with balanced routing.

A step that needs more is repeated without the graph (megatron/core/transformer/moe/paged_stash.py:1401 of core 0.18.2).
"""

CAPACITY = "--moe-expert-rank-capacity-factor"

STASHED: Entries = {CAPACITY: RANK_CAPACITY, "--moe-paged-stash": True, "--use-transformer-engine-op-fuser": True}
"""Options that experts need where a whole iteration is one CUDA graph."""

DROPOUTS = ("--attention-dropout", "--hidden-dropout")
"""Options that must be off in a CUDA graph that recomputes."""

# --- which release -----------------------------------------------------------------------------------------


@record(frozen=True, kw_only=True, slots=True)
class Written:
    """
    Plan in the options of a release.

    Parameters
    ----------
    release
        One of ``RELEASES``.
    words
        Values by option.
    todo
        Facts of the model without an option, a line each.
    reasons
        Reasons why the release refuses the plan, a sentence each; empty: it accepts the plan.
    own_loss
        Step and memory with Megatron-LM's own loss, where the release refuses the fused one of the plan; None: the plan
        is written as it is costed.
    """

    release: str
    words: Entries
    todo: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    own_loss: Estimate | None = None


@record(frozen=True)
class Releases:
    """
    Releases of Megatron-LM for a plan: the ones that accept it, and its options in each.

    Parameters
    ----------
    plan
        The plan.
    entries
        Its options as core 0.16 spells them.
    """

    plan: Plan
    entries: Entries

    def choose(self, version: str | None) -> Written:
        """
        Write the plan for the release that is asked for, else for the one that was costed.

        A plan that is costed with another stack, or with an unknown release, is written for the first release that
        accepts it, nearest first or newest first.

        Raises
        ------
        SpecError
            If the release or every release refuses the plan; names the reasons, and the releases that accept it.
        """
        costed = find_costed_release(self.plan.cluster)
        asked = version if version is not None else costed
        names = [asked] if asked is not None else self._order_releases()
        best = next((one for one in map(self.write, names) if not one.reasons), None)
        if best is not None:
            return best
        lines = "".join(f"\n  - {reason}" for reason in self.write(names[0]).reasons)
        taking = [release for release in RELEASES if not self.write(release).reasons]
        hint = f"These take it: {', '.join(taking)} (--framework-version)." if taking else "No release takes it."
        which = ", which is costed," if version is None and costed is not None else ""
        raise SpecError("framework-version", f"Megatron Core {names[0]}{which} refuses this plan:{lines}\n{hint}")

    def header(self, chosen: Written) -> Iterator[str]:
        """Yield comments on the release of the file, the release that was costed, and options that may differ."""
        name = name_of_release(self.plan.cluster)
        if chosen.release == find_costed_release(self.plan.cluster) or not name:
            yield f"Options of Megatron Core {chosen.release}."
            return
        yield f"Options of Megatron Core {chosen.release}; {describe_costed_release(self.plan)}."
        if _is_early(name):
            yield f"No parser of {name} was asked: any option may be spelled otherwise there, or be missing."
        lacked = set[str]().union(*(self._find_lacking(release, chosen.words) for release in RELEASES))
        if own := sorted(lacked & chosen.words.keys()):
            yield f"Options that not all releases have, and that {name} may have otherwise: {', '.join(own)}."

    def write(self, release: str) -> Written:
        """Write the plan for a release, or give the reasons why the release refuses it."""
        broken = self._find_broken(release)
        words = spell_options(self.entries, release)
        facts, lines = write_facts(self.plan.facts.model, words, release)
        reasons = [sentence(rule) for rule in broken if rule is not OWN_LOSS]
        reasons += [f"{name} {describe_releases(name)}." for name in lacking(words, release)]
        words = {**words, **facts}
        if OWN_LOSS not in broken:
            return Written(release=release, words=words, todo=lines, reasons=tuple(reasons))
        costed, device = self.own_loss, self.plan.cluster.device
        if costed.device_bytes > device.memory_bytes and self.plan.headroom_bytes >= 0:
            reasons.append(NO_ROOM.format(bytes=_gib(costed.device_bytes), release=release))
        return Written(release=release, words=words, todo=lines, reasons=tuple(reasons), own_loss=costed)

    def notes(self, chosen: Written) -> Iterator[str]:
        """Yield notes on the release of the file, the other releases that accept the plan, and costs that differ."""
        others = [self.write(release) for release in RELEASES if release != chosen.release]
        by_reason: dict[str, list[str]] = {}
        for one in others:
            by_reason.setdefault(one.reasons[0] if one.reasons else "", []).append(one.release)
        taking = ", ".join(by_reason.pop("", []))
        also = f"--framework-version writes it for {taking}, too." if taking else "No other release takes it."
        refusing = "".join(f" Not {', '.join(releases)}: {reason}" for reason, releases in by_reason.items())
        yield f"For Megatron Core {chosen.release}; {also}{refusing}"
        if chosen.own_loss is not None:
            own, used = chosen.own_loss, self.plan.cluster.device.memory_bytes - self.plan.headroom_bytes
            yield (
                f"Costed with Transformer Engine's fused loss, which core {chosen.release} refuses: Megatron-LM's own "
                f"one is written. With it a step takes {own.step_seconds:.3f} s instead of "
                f"{self.plan.step_seconds:.3f} s, the fullest rank {_gib(own.device_bytes)} instead of {_gib(used)}; "
                f"plan so with cluster.framework=megatron-lm-{chosen.release}."
            )
        if CAPACITY in chosen.words:
            yield (
                f"{CAPACITY} {RANK_CAPACITY:g} is room for tokens that a rank gets above its share; the plan counts "
                "balanced routing. Steps that need more are repeated without the graph."
            )

    def _find_lacking(self, release: str, names: Iterable[str]) -> set[str]:
        """Return the names of options that a release does not have for the plan, or not with their values."""
        words = spell_options(self.entries, release)
        absent = {name for name in names if (name in self.entries and name not in words) or not _has(release, name)}
        return absent | {one.split()[0] for one in lacking(words, release)}

    @cached_property
    def own_loss(self) -> Estimate:
        """Step and memory with Megatron-LM's own loss instead of Transformer Engine's fused one."""
        return estimate_own_loss(self.plan.facts, self.plan.strategy)

    def _find_broken(self, release: str) -> tuple[Rule, ...]:
        """Return the rules of a release that the plan breaks."""
        return find_broken_rules(self.plan.facts, self.plan.strategy, "megatron-lm", release)

    def _order_releases(self) -> list[str]:
        """Order the releases: nearest to the one costed, else newest; those that change the loss come last."""
        names, found = [*reversed(RELEASES)], release_of(name_of_release(self.plan.cluster))
        if found is not None and found.stack in ("megatron-lm", "megatron-core"):
            number = (0.0,) if found.scheme == "year" else found.number
            older = [one for one in names if release_number(one) <= number]
            names = older + [one for one in RELEASES if one not in older]
        return sorted(names, key=lambda one: OWN_LOSS in self._find_broken(one))


def describe_costed_release(plan: Plan) -> str:
    """Name the release that a plan is costed as: the job's own or its nearest one; empty where the job names none."""
    cluster = plan.cluster
    if cluster.framework is None:
        return ""
    if cluster.unknown_release:
        return stands_in(cluster.unknown_release, cluster.framework.name)
    return f"costed as {cluster.framework.name}"


def _is_early(name: str) -> bool:
    """Tell whether a release of Megatron-LM is older than all of ``RELEASES``."""
    found = release_of(name)
    is_core = found is not None and found.stack in ("megatron-lm", "megatron-core")
    return found is not None and is_core and (found.scheme == "year" or found.number < release_number(RELEASES[0]))


NO_ROOM = (
    "Transformer Engine's fused loss is refused, and with Megatron-LM's own one the plan takes {bytes}, more than its "
    "devices have; cluster.framework=megatron-lm-{release} plans so."
)


def _gib(nbytes: float) -> str:
    return f"{nbytes / GIB_BYTES:.1f} GiB"


# --- its words ---------------------------------------------------------------------------------------------


def spell_graphs(entries: Entries) -> Entries:
    """
    Spell CUDA graphs as core 0.18 and later, with the options that experts need in a full-iteration graph.

    >>> spell_graphs({"--cuda-graph-impl": "transformer_engine", "--cuda-graph-scope": ["attn"]})
    {'--cuda-graph-impl': 'transformer_engine', '--cuda-graph-modules': ['attn']}
    """
    words = dict(entries)
    scope = words.pop(SCOPE, None)
    if (words.get(IMPL), scope) != ("local", ["full_iteration"]):
        return words if scope is None else words | {"--cuda-graph-modules": scope}
    squared_relu = {"--use-fused-weighted-squared-relu": True} if SQUARED_RELU in words else {}
    return words | {IMPL: "full_iteration"} | ({**STASHED, **squared_relu} if "--num-experts" in words else {})


def spell_options(entries: Entries, release: str) -> Entries:
    """
    Spell options as a release does; options that it does not have stay as they are.

    A full-iteration CUDA graph is a scope of the local implementation up to 0.17, and an implementation of its own from
    0.18 on, where scopes are called modules. Up to 0.17 Muon with the distributed optimizer is ``dist_muon``.

    >>> spell_options({"--cuda-graph-impl": "local", "--cuda-graph-scope": ["full_iteration"]}, "0.18")
    {'--cuda-graph-impl': 'full_iteration'}
    >>> spell_options({"--moe-flex-dispatcher-backend": "deepep"}, "0.14")
    {'--moe-enable-deepep': True}

    References
    ----------
    Megatron-LM, megatron/training/arguments.py of core 0.14.0, 0.18.2 (1528: the loss);
    megatron/core/transformer/transformer_config.py of 0.18.2 (1140,1515: the paged stash of experts in one graph).
    """
    words = dict(entries)
    if release == RELEASES[0]:
        _spell_early(words)
    if _is_from(release, "0.17") and PATTERN in words:
        pattern, pp, last = words.pop(PATTERN), words.get("--pipeline-model-parallel-size", 1), words.pop(LAST, None)
        layers = [len(pattern)] if last is None else [(len(pattern) - last) // (pp - 1)] * (pp - 1) + [last]
        words[STAGED_PATTERN] = split_pattern(pattern, layers)
    if not _is_from(release, "0.18") and words.get("--optimizer") == "muon" and words.pop(DISTRIBUTED, None):
        words["--optimizer"] = "dist_muon"
    if _is_from(release, "0.18"):
        words = spell_graphs(words)
        if words.get(FUSION) == "te":
            words[FUSION] = "native"
    if release == RELEASES[-1] and words.get("--spec") == MAMBA_STACK:
        words["--spec"] = HYBRID_STACK
    return words


def _spell_early(words: Entries) -> None:
    """Spell options as core 0.14 does."""
    if words.get(BACKEND) == "deepep":
        words.pop(BACKEND)
        words["--moe-enable-deepep"] = True
    if (words.get(IMPL), words.get(SCOPE)) in (("local", ["full_iteration"]), ("transformer_engine", ["attn"])):
        switch = {"local": "--enable-cuda-graph", "transformer_engine": "--external-cuda-graph"}[words.pop(IMPL)]
        words |= {switch: True, SCOPE: words[SCOPE][0]}


def write_facts(model: Model, words: Entries, release: str) -> tuple[Entries, tuple[str, ...]]:
    """
    Write the facts of a model as options of a release.

    Parameters
    ----------
    model
        The model.
    words
        All other options of the plan, which may switch dropout off.
    release
        One of ``RELEASES``.

    Returns
    -------
    entries, lines
        Values by option; one line for each fact without an option.
    """
    entries, left = options_of(facts_of(model), lambda option: _has_fact(release, option, words))
    overruled = [name for name in DROPOUTS if words.get(name, entries[name]) != entries[name]]
    lines = [
        f"{name} {entries.pop(name):g}: off, as what a CUDA graph recomputes draws no random numbers"
        for name in overruled
    ]
    return entries, (*todo_lines(left, f"Megatron Core {release}"), *lines)


def _has_fact(release: str, option: str, words: Entries) -> bool:
    """
    Tell whether a release has an option for a fact.

    YaRN outside latent attention excludes multi-token prediction (megatron/training/arguments.py:1944 of main).
    """
    return _has(release, option) and not (option == YARN and "--mtp-num-layers" in words)


def lacking(words: Entries, release: str) -> Iterator[str]:
    """Find options, and choices of options, that a release does not have."""
    for name, value in words.items():
        if not _has(release, name):
            yield name
            continue
        values = value if isinstance(value, (list, tuple)) else [value]
        yield from (f"{name} {one}" for one in values if not _has(release, f"{name} {one}"))


def describe_releases(name: str) -> str:
    """Say which releases have an option or a choice that not all of them have."""
    first, last = _spans()[name]
    return f"needs core {first} {'or later' if last == RELEASES[-1] else f'to {last}'}"


def _is_from(release: str, first: str) -> bool:
    return RELEASES.index(release) >= RELEASES.index(first)


def _has(release: str, name: str) -> bool:
    span = _spans().get(name)
    return span is None or (_is_from(release, span[0]) and _is_from(span[1], release))


@cache
def _spans() -> dict[str, tuple[str, str]]:
    """First and last release of an option, or of an option with a choice after it."""
    with TABLE.open(encoding="utf-8", newline="") as lines:
        rows = csv.DictReader(lines)
        return {f"{row['option']} {row['choice']}".strip(): (row["since"], row["until"]) for row in rows}
