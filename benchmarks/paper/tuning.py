"""
MoFa's step-level tuning (section 4.1, Table 6) by the project's own search.

The space is the paper's: LLaMA3-405B on GPU B without context parallelism, the (tp, mbs) pairs that the profile has
measured, one of distributed and CPU optimizer, any features. Its rules are the physical ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.paper import rows
from benchmarks.paper.checks import Basis, Check, Comparison
from costmodel.step.estimate import Estimate, estimate
from costmodel.strategy import Strategy
from planner.jobs.problem import Problem, load
from planner.search.questions import search

TOP = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """
    One cluster and batch of Table 6.

    Parameters
    ----------
    num_devices, global_batch_size
        The setting.
    paper
        Estimates of the paper's four strategies, best first.
    ours
        Estimates of the best strategies that the search finds, each with other degrees.
    """

    num_devices: int
    global_batch_size: int
    paper: tuple[Estimate, ...]
    ours: tuple[Estimate, ...]

    @property
    def label(self) -> str:
        """How the table names it."""
        return f"{self.num_devices} GPUs, GBS {self.global_batch_size}"


def settings() -> Iterator[Setting]:
    """The six settings of Table 6, searched."""
    table = rows.table(6)
    for (num_devices, batch), group in table.groupby(["n_gpu", "gbs"], sort=False):
        facts = rows.llama_facts(int(num_devices), int(batch))
        found = search(setting_problem(int(num_devices), int(batch))).strategies
        yield Setting(
            num_devices=int(num_devices),
            global_batch_size=int(batch),
            paper=tuple(estimate(facts, rows.table6_strategy(row)) for row in group.itertuples()),
            ours=tuple(estimate(facts, strategy) for strategy in found),
        )


def first_place_check(searched: list[Setting]) -> Check:
    """4.1: place of the paper's best strategy among ours, 1 in every setting."""
    return Check(
        name="4.1: the search puts the paper's best strategy first",
        unit="place",
        basis=Basis.FITTED,
        comparisons=tuple(
            Comparison(label=setting.label, printed=1, reached=place(setting, setting.paper[0]), tolerance=0)
            for setting in searched
        ),
    )


def place(setting: Setting, one: Estimate) -> int:
    """Place of a strategy among those found; one behind the last if it is not among them."""
    keys = [_key(ours.strategy) for ours in setting.ours]
    return keys.index(_key(one.strategy)) + 1 if _key(one.strategy) in keys else len(keys) + 1


def where_the_others_land(searched: list[Setting]) -> Iterator[str]:
    """The paper's four strategies of each setting beside ours, with their parts."""
    for setting in searched:
        yield f"\n{setting.label}"
        for number, ours in enumerate(setting.ours, start=1):
            yield f"  ours {number}    {_describe(ours)}"
        for number, paper in enumerate(setting.paper, start=1):
            if place(setting, paper) != number:
                yield f"  paper's {number} {_describe(paper)}"


def setting_problem(
    num_devices: int, global_batch_size: int, pins: Mapping[str, Any] | None = None, **search: Any
) -> Problem:
    """Return the job of a setting of Table 6 in the paper's space, with further pins and entries of the search."""
    exclusive = [{"optimizer_offload": True, "sharding": level} for level in ("optimizer", "gradients", "weights")]
    return load(
        {
            "model": "mofa-llama3-405b",
            "cluster": {"device": "mofa-b", "num_devices": num_devices},
            "training": {
                "global_batch_size": global_batch_size,
                "sequence_length": 8192,
                "tokens": rows.TOKENS,
                "precision": "mofa",
            },
            "search": {
                "pin": {"cp": 1, **(pins or {})},
                "forbid": exclusive,
                "framework_rules": False,
                "evidence": "any",
                **search,
            },
            "top": TOP,
        }
    )


def _key(strategy: Strategy) -> dict[str, Any]:
    """What makes a strategy the paper's; overlaps without anything to overlap do not count."""
    return {
        name: value
        for name, value in strategy.decisions().items()
        if name
        in ("tp", "pp", "dp", "mbs", "vpp", "optimizer_offload", "activation_offload", "recompute", "tp_overlap")
    }


def _describe(one: Estimate) -> str:
    s = one.strategy
    parts = ", ".join(f"{part.name} {part.exposed_seconds:.2f}" for part in one.breakdown if part.exposed_seconds)
    optimizer = "cpu" if s.optimizer_offload else "dist" if s.sharding else "none"
    flags = f"tp overlap {'on' if s.tp_overlap else 'off'}, dp overlap {'on' if s.dp_overlap else 'off'}"
    degrees = f"t {s.tp} p {s.pp} d {s.dp} mbs {s.mbs} v {s.vpp}"
    memory = one.ranks[0].device_bytes / 2**30
    return f"{one.step_seconds:6.2f} s  {degrees}, {optimizer}, {flags}, {memory:.1f} GiB  ({parts})"
