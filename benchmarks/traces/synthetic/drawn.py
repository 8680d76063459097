"""Durations and jobs drawn at random, the same ones for the same seed on every machine."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

from benchmarks.traces.synthetic.machine import Lags
from benchmarks.traces.synthetic.recipe import Recipe, Work
from costmodel.pipelines.orders import ONE_CHUNK, has_order
from costmodel.strategy import V_SHAPED, Schedule

MOST_RANKS, MOST_PASSES = 16, 400
"""Size of a drawn job: ranks, and forward passes of all of them in a step."""


class Range(NamedTuple):
    """Least and most nanoseconds."""

    least: int
    most: int


@dataclass(frozen=True, kw_only=True, slots=True)
class DrawnDurations:
    """
    Every single piece of work takes its own random time.

    Parameters
    ----------
    seed
        Other seeds, other times.
    kernels, communications, calls
        Between which nanoseconds.
    """

    seed: int
    kernels: Range = Range(5_000, 90_000)
    communications: Range = Range(10_000, 60_000)
    calls: Range = Range(1_500, 6_000)

    def __call__(self, work: Work) -> int:
        """Nanoseconds of a piece of work."""
        calls = work.name.startswith("cuda")
        least, most = self.communications if work.ranks else self.calls if calls else self.kernels
        return least + _number(self.seed, work) % (most - least + 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class SteadyDurations:
    """
    A kernel of a layer takes equally long on every rank and for every micro-batch; messages take what their bytes say.

    Such a job's traces say everything about the same job with other numbers of ranks.

    Parameters
    ----------
    seed
        Other seeds, other times of kernels.
    kernels
        Between which nanoseconds.
    calls
        Nanoseconds of each call by its name; 2,000 of those that are missing.
    latency, bytes_per_nanosecond
        Of the network: of a send and a receive, and of each step of a ring.
    """

    seed: int
    kernels: Range = Range(5_000, 90_000)
    calls: Mapping[str, int]
    latency: int = 3_000
    bytes_per_nanosecond: int = 400

    def __call__(self, work: Work) -> int:
        """
        Nanoseconds of a piece of work.

        .. math:: t = 2 (n - 1) (\\alpha + V / (n \\beta))

        of an all-reduce of V bytes over a ring of n ranks; :math:`\\alpha + V / \\beta` of a send.
        """
        nbytes, number = 2 * work.elements, len(work.ranks)
        if work.ranks and work.group.startswith(("forward", "backward")):
            return self.latency + nbytes // self.bytes_per_nanosecond
        if work.ranks:
            return 2 * (number - 1) * (self.latency + nbytes // (number * self.bytes_per_nanosecond))
        if work.name.startswith("cuda"):
            return self.calls.get(work.name, 2_000)
        least, most = self.kernels
        return least + _number(self.seed, (work.name, work.layer)) % (most - least + 1)


def _number(seed: int, what: object) -> int:
    return int.from_bytes(blake2b(f"{seed} {what!r}".encode(), digest_size=8).digest(), "big")


def drawn_recipe(seed: int) -> Recipe:
    """A random job: any pipeline, with or without overlap, its devices or its hosts slower."""
    chooser = random.Random(seed)
    slow_hosts = chooser.random() < 0.4
    calls = Range(8_000, 40_000) if slow_hosts else Range(1_500, 6_000)
    pipeline = _drawn_pipeline(chooser)
    stages = pipeline["pp"] * (1 if pipeline["schedule"] in ONE_CHUNK else pipeline["vpp"])
    dp = chooser.randint(1, max(1, min(3, MOST_RANKS // pipeline["pp"])))
    return Recipe(
        duration=DrawnDurations(seed=seed, calls=calls),
        **pipeline,
        dp=dp,
        tp=2 if pipeline["pp"] * dp * 2 <= MOST_RANKS and chooser.random() < 0.3 else 1,
        num_layers=stages * chooser.randint(1, 2) + chooser.randint(0, stages - 1),
        num_steps=chooser.randint(2, 3),
        overlap_p2p=chooser.random() < 0.6,
        overlap_gradients=chooser.random() < 0.6,
        ending=chooser.choice(["barrier", "device", "stream", "none"]),
        copies_loss=chooser.random() < 0.4,
        annotations=chooser.random() < 0.5,
        operators=chooser.random() < 0.5,
        pause=chooser.randint(200, 3_000),
        lags=Lags(launch=chooser.randint(3_000, 9_000), gap=chooser.choice([0, 0, 700, 1_500])),
        clocks=tuple(chooser.randint(-5_000_000, 5_000_000) for _ in range(MOST_RANKS)),
    )


def _drawn_pipeline(chooser: random.Random) -> dict:
    while True:
        schedule = chooser.choice([Schedule.ONE_F_ONE_B] * 6 + [one for one in Schedule if one != Schedule.ONE_F_ONE_B])
        pp, microbatches = chooser.randint(1, 8), chooser.randint(1, 16)
        vpp = 2 if schedule in V_SHAPED else 1 if schedule in ONE_CHUNK else chooser.randint(1, 3)
        possible = has_order(schedule, pp=pp, vpp=vpp, num_microbatches=microbatches)
        if possible and (vpp == 1 or pp > 1) and pp * vpp * microbatches <= MOST_PASSES // 2:
            return {"schedule": schedule, "pp": pp, "vpp": vpp, "num_microbatches": microbatches}
