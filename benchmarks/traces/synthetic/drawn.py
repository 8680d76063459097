"""Durations and jobs drawn at random, the same ones for the same seed on every machine."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Literal, NamedTuple

from benchmarks.traces.synthetic.machine import Lags
from benchmarks.traces.synthetic.recipe import Recipe, Work
from costmodel.errors import SpecError
from costmodel.pipelines.orders import ONE_CHUNK, has_order
from costmodel.strategy import V_SHAPED, Schedule
from planner.measure.traces.events import Message

MOST_RANKS, MOST_LAYERS = 16, 300
"""Size of a drawn job: ranks, and layers times micro-batches of all replicas and tp ranks."""


class Range(NamedTuple):
    """Least and most nanoseconds."""

    least: int
    most: int


KERNELS, COMMUNICATIONS = Range(5_000, 90_000), Range(10_000, 60_000)
CALLS, SLOW_CALLS = Range(1_500, 6_000), Range(8_000, 40_000)
"""Nanoseconds of a call, on hosts that are ahead of their devices and on hosts that mostly are not."""

OTHER_SEEDS = 1_000_000
"""Difference between the seed of a job's other durations and its own."""


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
    kernels: Range = KERNELS
    communications: Range = COMMUNICATIONS
    calls: Range = CALLS

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
        Facts of the network, for a send and a receive and for each step of a ring.
    """

    seed: int
    kernels: Range = KERNELS
    calls: Mapping[str, int] = field(default_factory=dict)
    latency: int = 3_000
    bytes_per_nanosecond: int = 400

    def __call__(self, work: Work) -> int:
        r"""
        Nanoseconds of a piece of work.

        .. math:: t = 2 (n - 1) (\alpha + V / (n \beta))

        of an all-reduce of V bytes over a ring of n ranks, half of it of each of its halves;
        :math:`\alpha + V / \beta` of a send.
        """
        if work.ranks:
            purpose: Literal["pp", "dp"] = "pp" if work.group.startswith(("forward", "backward")) else "dp"
            operation = "all_reduce" if "AllReduce" in work.name else ""
            message = Message(operation=operation, elements_in=work.elements)
            return self.nanoseconds(message, purpose, len(work.ranks))
        if work.name.startswith("cuda"):
            return self.calls.get(work.name, 2_000)
        least, most = self.kernels
        whole = least + _number(self.seed, (work.name, work.layer)) % (most - least + 1)
        return -(-whole // MOST_SHARDS) * MOST_SHARDS // work.shards

    def nanoseconds(self, message: Message, purpose: Literal["pp", "dp"], ranks: int) -> int:
        """Nanoseconds of a send, or of a collective over a ring, of two bytes for each element."""
        nbytes = 2 * max(message.elements_in, message.elements_out)
        if purpose == "pp":
            return self.latency + nbytes // self.bytes_per_nanosecond
        halves = 2 if message.operation == "all_reduce" else 1
        return halves * (ranks - 1) * (self.latency + nbytes // (ranks * self.bytes_per_nanosecond))


MOST_SHARDS = 64
"""Replicas whose parts of a kernel take whole nanoseconds."""


def _number(seed: int, what: object) -> int:
    return int.from_bytes(blake2b(f"{seed} {what!r}".encode(), digest_size=8).digest(), "big")


def drawn_recipe(seed: int, *, most_layers: int = MOST_LAYERS) -> Recipe:
    """
    A random job: any pipeline, with or without overlap, its devices or its hosts slower.

    Parameters
    ----------
    seed
        Other seeds, other jobs.
    most_layers
        Number of layers times micro-batches, of all replicas and tp ranks, that it has at most.
    """
    chooser = random.Random(seed)
    while True:
        recipe = _draw_job(chooser, seed)
        if recipe is not None and recipe.dp * recipe.tp * recipe.num_microbatches * recipe.num_layers <= most_layers:
            return recipe


def _draw_job(chooser: random.Random, seed: int) -> Recipe | None:
    """A random job; None where its schedule has no order."""
    schedule = chooser.choice([Schedule.ONE_F_ONE_B] * 6 + [one for one in Schedule if one != Schedule.ONE_F_ONE_B])
    pp, num_microbatches = chooser.randint(1, 8), chooser.randint(1, 16)
    vpp = 2 if schedule in V_SHAPED else 1 if schedule in ONE_CHUNK or pp == 1 else chooser.randint(1, 3)
    dp, tp = chooser.randint(1, 3), chooser.choice([1, 1, 2])
    if pp * dp * tp > MOST_RANKS or not has_order(schedule, pp=pp, vpp=vpp, num_microbatches=num_microbatches):
        return None
    return Recipe(
        duration=DrawnDurations(seed=seed, calls=chooser.choice([CALLS, CALLS, SLOW_CALLS])),
        schedule=schedule,
        pp=pp,
        vpp=vpp,
        num_microbatches=num_microbatches,
        dp=dp,
        tp=tp,
        num_layers=pp * vpp * chooser.randint(1, 2) + chooser.randint(0, pp * vpp - 1),
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


def with_other_durations(recipe: Recipe) -> Recipe:
    """A drawn job whose work takes other random times, drawn between the same ones."""
    drawn = recipe.duration
    if not isinstance(drawn, DrawnDurations):
        raise SpecError("duration", "is not drawn at random.")
    return replace(recipe, duration=replace(drawn, seed=drawn.seed + OTHER_SEEDS))
