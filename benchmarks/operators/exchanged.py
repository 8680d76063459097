"""Tables of collectives and of token dispatch, and which of their limits are exceeded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from benchmarks.operators import communication, dispatch
from benchmarks.operators.baselines import Unseen, error_within, joined, line, lines
from costmodel.network.link_law import Calls
from planner.measure.fit.law import Measured

MOST_OF_COLLECTIVES = 0.10
"""Largest median of the errors of collectives."""

MOST_OF_DISPATCH = (0.05, 0.15)
"""Largest median and 90th percentile of the errors of dispatch on numbers of ranks that were left out."""

SWITCHED = "_dgx"
"""End of the names of nodes whose devices are all on one switch."""

COVERED = (0.85, 0.95)
"""Least and greatest share of all samples that a 90 % interval holds."""


def exchanged(name: str) -> Iterator[str]:
    """
    Print the tables of ``collectives``, ``small`` or ``dispatch``; sentences about limits that they exceed.

    Parameters
    ----------
    name
        Name of the published table.
    """
    if name == "collectives":
        systems = list(communication.collectives())
        yield from _of_collectives("collectives.csv, sizes left out", systems, communication.by_size)
        yield from _of_collectives("collectives.csv, numbers of ranks left out", systems, communication.by_ranks)
    elif name == "small":
        title = "small_collectives.csv.gz, numbers of ranks left out"
        yield from _of_collectives(title, communication.small_collectives(), communication.by_ranks)
    else:
        yield from _of_dispatch()


def _of_collectives(
    title: str, systems: Iterable[communication.System], fold_of: Callable[[Measured[Calls]], NDArray[np.intp]]
) -> Iterator[str]:
    parts = [communication.left_out(system, fold_of(system.samples)) for system in systems]
    unseen = joined([part for part in parts if part is not None])
    print(f"{title}:")
    print("\n".join(lines(unseen)))
    is_small, is_switched = communication.latency_bound(unseen), unseen["system"].str.contains(SWITCHED)
    if np.any(is_small):
        print(line("latency-bound", "", unseen[is_small]))
    judged = {"all": unseen}
    if np.any(is_switched):
        judged[f"*{SWITCHED}"] = unseen[is_switched]
        print(line(f"*{SWITCHED}", "", unseen[is_switched]), flush=True)
    for name, some in judged.items():
        if error_within(some, 0.5) > MOST_OF_COLLECTIVES:
            yield f"{title}, {name}: {error_within(some, 0.5):.1%} in the median, of at most {MOST_OF_COLLECTIVES:.0%}."
    yield from _coverage(title, unseen)


def _of_dispatch() -> Iterator[str]:
    samples = dispatch.exchanges()
    for title, fold_of in (
        ("numbers of ranks", dispatch.by_ranks),
        ("implementations on a device", dispatch.by_device),
    ):
        unseen = dispatch.left_out(samples, fold_of)
        print(f"dispatch.csv, {title} left out:")
        print("\n".join(lines(unseen)), flush=True)
        seen = (error_within(unseen, 0.5), error_within(unseen, 0.9))
        if fold_of is dispatch.by_ranks and any(own > most for own, most in zip(seen, MOST_OF_DISPATCH, strict=True)):
            median, most = MOST_OF_DISPATCH
            yield f"dispatch, {title}: {seen[0]:.1%} and {seen[1]:.1%}, of at most {median:.0%} and {most:.0%}."
        yield from _coverage(f"dispatch, {title}", unseen)


def _coverage(title: str, unseen: Unseen) -> Iterator[str]:
    covered = float(np.mean(unseen["covered"]))
    if not COVERED[0] <= covered <= COVERED[1]:
        yield f"{title}: 90 % intervals hold {covered:.1%}, not {COVERED[0]:.0%} to {COVERED[1]:.0%}."
