"""Releases of Megatron-LM: which of them take a plan, and how each of them spells what exports write."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path

from constraints import MEGATRON_LM_RULES, Rule, sentence
from constraints.rules.targets import core_release, cores_from_0_18_compute_the_loss_themselves
from constraints.verdict import violated_by_ranks
from costmodel.errors import SpecError
from costmodel.lowering.framework.settings import with_loss
from costmodel.step.estimate import Estimate, estimate
from planner.frameworks.megatron.model import MAMBA_STACK, PATTERN, STAGED_PATTERN, staged
from planner.frameworks.megatron.stages import LAST
from planner.frameworks.planned import Plan
from planner.frameworks.target import Entries

RELEASES = ("0.14", "0.16", "0.17", "0.18", "0.19", "main")
"""Releases of Megatron Core, with which Megatron-LM is released; main is that of ``options.csv``."""

TABLE = Path(__file__).parent / "releases.csv"
"""
Options, and choices of options, that not all releases have: the first and the last one that has each.

They are those of the parsers of the tags core_v0.14.0, core_v0.16.0, core_v0.17.1, core_v0.18.2 and core_v0.19.0, and
of main. What a release refuses of a strategy are rules (``constraints.MEGATRON_LM_RULES``).
"""

HYBRID_STACK = ["megatron.core.models.hybrid.hybrid_layer_specs", "hybrid_stack_spec"]
"""What ``--spec`` names for a hybrid in main (its functional tests)."""

BACKEND, IMPL, SCOPE = "--moe-flex-dispatcher-backend", "--cuda-graph-impl", "--cuda-graph-scope"

FUSION, PADDED = "--cross-entropy-fusion-impl", "--moe-pad-experts-for-cuda-graph-inference"

INFLIGHT = "--fine-grained-offloading-max-inflight-offloads"

INFLIGHT_OFFLOADS = 1
"""
Offloaded tensors of a module that the computation has not waited for yet, in one CUDA graph of the iteration.

Offloading overlaps with the computation of one module, as plans count it; with 0 each module would wait for its own
(megatron/core/transformer/transformer_config.py:1158 of core 0.18.2).
"""

# --- which release -----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Written:
    """
    A plan in the words of a release.

    Parameters
    ----------
    release
        One of ``RELEASES``.
    words
        Values by option.
    reasons
        Why the release refuses the plan, sentences; empty: it takes it.
    own_loss
        Step and memory with Megatron-LM's own loss, where the release refuses the fused one that the plan is costed
        with; None: the plan is written as it is costed.
    """

    release: str
    words: Entries
    reasons: tuple[str, ...] = ()
    own_loss: Estimate | None = None


@dataclass(frozen=True)
class Releases:
    """
    Releases of Megatron-LM for a plan: which of them take it, and in which words.

    Parameters
    ----------
    plan
        The plan.
    entries
        Its options in the words of core 0.16.
    """

    plan: Plan
    entries: Entries

    def choose(self, version: str | None) -> Written:
        """
        Write the plan for the release that is asked for, else the one that was costed, else the newest that takes it.

        Raises
        ------
        SpecError
            If the release refuses the plan, or every one does: with the reasons, and the releases that take it.
        """
        names = [version] if version is not None else self._by_preference()
        best = next((one for one in map(self.write, names) if not one.reasons), None)
        if best is not None:
            return best
        lines = "".join(f"\n  - {reason}" for reason in self.write(names[0]).reasons)
        taking = [release for release in RELEASES if not self.write(release).reasons]
        hint = f"These take it: {', '.join(taking)}." if taking else "No release takes it."
        raise SpecError("framework-version", f"Megatron Core {names[0]} refuses this plan:{lines}\n{hint}")

    def write(self, release: str) -> Written:
        """Write the plan for a release, or say why the release refuses it."""
        broken = self._broken(release)
        words = spelled(self.entries, release)
        reasons = [sentence(rule) for rule in broken if rule is not OWN_LOSS]
        reasons += [f"{name} {since_when(name)}." for name in lacking(words, release)]
        if OWN_LOSS not in broken:
            return Written(release=release, words=words, reasons=tuple(reasons))
        costed, device = self.own_loss, self.plan.cluster.device
        if costed.device_bytes > device.memory_bytes and self.plan.headroom_bytes >= 0:
            reasons.append(NO_ROOM.format(bytes=_gib(costed.device_bytes), release=release))
        return Written(release=release, words=words, reasons=tuple(reasons), own_loss=costed)

    def notes(self, chosen: Written) -> Iterator[str]:
        """Tell which release the plan is written for, which others take it, and what differs from it as costed."""
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
        if INFLIGHT in chosen.words:
            yield f"{INFLIGHT} {INFLIGHT_OFFLOADS}: offloading overlaps with the next module, as the plan counts it."
        if PADDED in chosen.words:
            yield f"{PADDED} is of inference; core {chosen.release} wants it with ep above 1 in one CUDA graph."

    @cached_property
    def own_loss(self) -> Estimate:
        """Step and memory with Megatron-LM's own loss instead of Transformer Engine's fused one."""
        facts, cluster = self.plan.facts, self.plan.cluster
        settings = replace(cluster.settings, loss="unfused")
        own = replace(cluster, device=with_loss(cluster.device, "unfused"), settings=settings)
        return estimate(replace(facts, cluster=own), self.plan.strategy)

    def _broken(self, release: str) -> tuple[Rule, ...]:
        """Return the rules of a release that the plan breaks."""
        cluster = replace(self.plan.cluster, unknown_release=f"megatron-lm-{release}")
        facts = replace(self.plan.facts, cluster=cluster)
        return violated_by_ranks(facts, self.plan.strategy, rules=MEGATRON_LM_RULES)

    def _by_preference(self) -> list[str]:
        """Order the releases: the costed one and newer ones first, behind all those for which the loss is changed."""
        number = core_release(self.plan.cluster)
        costed = None if number is None else next((one for one in RELEASES if _number(one) == number[:2]), None)
        return sorted(reversed(RELEASES), key=lambda one: (OWN_LOSS in self._broken(one), one != costed))


OWN_LOSS = cores_from_0_18_compute_the_loss_themselves

NO_ROOM = (
    "Transformer Engine's fused loss is refused, and with Megatron-LM's own one the plan takes {bytes}, more than its "
    "devices have; cluster.framework=megatron-lm-{release} plans so."
)


def _number(release: str) -> tuple[float, ...]:
    return (math.inf,) if release == RELEASES[-1] else tuple(float(part) for part in release.split("."))


def _gib(nbytes: float) -> str:
    return f"{nbytes / 2**30:.1f} GiB"


# --- its words ---------------------------------------------------------------------------------------------


def spelled(entries: Entries, release: str) -> Entries:
    """
    Respell entries as a release calls them; what it has no word for stays as it is.

    One CUDA graph of an iteration is a scope of the local implementation up to 0.17, and an implementation of its own
    from 0.18 on, where scopes are called modules.

    >>> spelled({"--cuda-graph-impl": "local", "--cuda-graph-scope": ["full_iteration"]}, "0.18")
    {'--cuda-graph-impl': 'full_iteration'}
    >>> spelled({"--moe-flex-dispatcher-backend": "deepep"}, "0.14")
    {'--moe-enable-deepep': True}

    References
    ----------
    Megatron-LM, megatron/training/arguments.py of core 0.14.0, 0.17.1 (1458: padded experts), 0.18.2 (1528: the loss);
    megatron/core/transformer/transformer_config.py of 0.18.2 (2364: offloads in flight).
    """
    words = dict(entries)
    is_one_graph = (words.get(IMPL), words.get(SCOPE)) == ("local", ["full_iteration"])
    if release == RELEASES[0]:
        _spell_early(words)
    if release in ("0.16", "0.17") and is_one_graph and words.get("--expert-model-parallel-size", 1) > 1:
        words[PADDED] = True
    if _is_from(release, "0.17") and PATTERN in words:
        pattern, pp, last = words.pop(PATTERN), words.get("--pipeline-model-parallel-size", 1), words.pop(LAST, None)
        layers = [len(pattern)] if last is None else [(len(pattern) - last) // (pp - 1)] * (pp - 1) + [last]
        words[STAGED_PATTERN] = staged(pattern, layers)
    if _is_from(release, "0.18"):
        if words.get(SCOPE):
            scope = words.pop(SCOPE)
            words |= {IMPL: "full_iteration"} if is_one_graph else {"--cuda-graph-modules": scope}
        if is_one_graph and "--fine-grained-activation-offloading" in words:
            words[INFLIGHT] = INFLIGHT_OFFLOADS
        if words.get(FUSION) == "te":
            words[FUSION] = "native"
    if release == RELEASES[-1] and words.get("--spec") == MAMBA_STACK:
        words["--spec"] = HYBRID_STACK
    return words


def _spell_early(words: Entries) -> None:
    """Respell entries as core 0.14 calls them."""
    if words.get(BACKEND) == "deepep":
        words.pop(BACKEND)
        words["--moe-enable-deepep"] = True
    if (words.get(IMPL), words.get(SCOPE)) in (("local", ["full_iteration"]), ("transformer_engine", ["attn"])):
        switch = {"local": "--enable-cuda-graph", "transformer_engine": "--external-cuda-graph"}[words.pop(IMPL)]
        words |= {switch: True, SCOPE: words[SCOPE][0]}


def lacking(words: Entries, release: str) -> Iterator[str]:
    """Find options, and choices of options, that a release does not have."""
    for name, value in words.items():
        if not _has(release, name):
            yield name
            continue
        values = value if isinstance(value, (list, tuple)) else [value]
        yield from (f"{name} {one}" for one in values if not _has(release, f"{name} {one}"))


def since_when(name: str) -> str:
    """Say which releases have an option or a choice that not all of them have."""
    first, last = _spans()[name]
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
