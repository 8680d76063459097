"""The planner's intervals: errors of rows that were left out, by what the fits that predicted them had not seen."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from math import isnan, log, nan
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.accuracy.left_out.folds import GROUP, KINDS, MODEL, SOFTWARE, SOURCE, HeldOut, is_newest, model_of
from benchmarks.accuracy.metrics import grouped, shared
from benchmarks.output import format_generated
from planner.measure.calibrate.cases import group_of
from planner.measure.runs.predictions import Case
from planner.uncertainty.intervals import (
    ANY,
    FEWEST_GROUPS,
    TABLE,
    Error,
    Kind,
    Spread,
    Unseen,
    fit_spread,
    kind_of,
    release_name,
    size_of,
    spread_of,
)

FILE = Path(__file__).parents[3] / "planner" / "uncertainty" / TABLE

ALIKE: Mapping[str, Callable[[Case], Hashable]] = {
    GROUP: group_of,
    MODEL: lambda case: model_of(case.run.model),
    SOURCE: lambda case: case.run.source,
    SOFTWARE: group_of,
}
"""
Property shared by rows whose errors are alike if they are left out together: each value counts once in an interval.
"""

UNSEEN_BY: dict[str, Unseen] = {GROUP: "nothing", MODEL: "model", SOURCE: "software", SOFTWARE: "software"}
"""Things that a fit had not seen of a row, by the kind of the rows left out together with it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LeftOutError:
    """
    The error of one row by one fit that had not seen it.

    Parameters
    ----------
    case
        The row.
    folds
        Kind of the rows left out: one of ``folds.KINDS``.
    error
        Measured over predicted.
    """

    case: Case
    folds: str
    error: Error


def left_out_errors(timed: Sequence[Case], seconds: Mapping[str, Sequence[float]]) -> list[LeftOutError]:
    """
    Errors of rows that were left out.

    Parameters
    ----------
    timed
        Rows with a step time.
    seconds
        Predicted without each row, by kind of folds; NaN where none leaves it out.
    """
    return [
        LeftOutError(
            case=case,
            folds=folds,
            error=Error(
                kind=kind_of(case.facts.model, case.facts.cluster, unseen=UNSEEN_BY[folds]),
                group=ALIKE[folds](case),
                log=log((case.run.step_seconds or 0.0) / predicted),
            ),
        )
        for folds, of in seconds.items()
        for case, predicted in zip(timed, of, strict=True)
        if not isnan(predicted)
    ]


def difference_errors(errors: Sequence[LeftOutError]) -> list[Error]:
    """Errors of the ratio of two layouts of one job, for every pair in the groups that share everything else."""
    found = []
    by_job = grouped(
        (one for one in errors if one.folds == GROUP),
        lambda one: shared(one.case.run, one.case.facts.model.num_layers),
    )
    for job, members in by_job.items():
        for one, other in combinations(members, 2):
            if one.case.strategy != other.case.strategy:
                found.append(Error(kind=one.error.kind, group=job, log=one.error.log - other.error.log))
    return found


def write_intervals(timed: Sequence[Case], held_out: Mapping[str, HeldOut]) -> None:
    """Write the planner's intervals from the stored predictions of rows that were left out."""
    FILE.write_text(interval_document(stored_errors(timed, held_out)), encoding="utf-8")


def stored_errors(timed: Sequence[Case], held_out: Mapping[str, HeldOut]) -> list[LeftOutError]:
    """Errors of rows by the stored predictions without them."""
    seconds = {kind: [held_out[case.run.id].seconds.get(kind, nan) for case in timed] for kind in KINDS}
    return left_out_errors(timed, seconds)


def interval_document(errors: Sequence[LeftOutError]) -> str:
    """The planner's file of intervals."""
    source = (
        "python -m benchmarks.accuracy --share 1 --store: errors of rows of benchmarks/measured_runs, each by "
        "fits that left out its group (source, model, device, number of devices), its model, its source, or its "
        "release and all newer ones"
    )
    document = {
        "source": source,
        "releases": _by_architecture(errors, lambda case: release_name(case.facts.cluster)),
        "models": _by_architecture(errors, lambda case: size_of(case.facts.model)),
        "steps": _plain(spreads(one.error for one in errors)),
        "differences": _plain(spreads(difference_errors(errors), symmetric=True)),
    }
    return format_generated(document)


def _by_architecture(errors: Sequence[LeftOutError], fact: Callable[[Case], Any]) -> dict[str, list[Any]]:
    """Return the distinct values of a fact of the rows, by architecture of the device."""
    cases = grouped((one.case for one in errors), lambda case: case.facts.cluster.device.architecture)
    return {architecture: sorted({fact(case) for case in same}) for architecture, same in sorted(cases.items())}


def _plain(of_kinds: Sequence[Spread]) -> list[dict[str, object]]:
    return [
        {
            "kind": {
                "device": spread.kind.device,
                "model": spread.kind.model,
                "scale": spread.kind.scale,
                "unseen": spread.kind.unseen,
            },
            "groups": spread.groups,
            "rows": spread.rows,
            "lower": spread.lower,
            "upper": spread.upper,
        }
        for spread in of_kinds
    ]


# --- coverage ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Coverage:
    """
    Share of rows in intervals made from the errors of others.

    Parameters
    ----------
    name
        Name of the rows.
    units, unit
        Number of independent draws, and their kind: rows, or models and sources, whose rows are alike.
    share
        The share inside, each unit weighing the same.
    """

    name: str
    units: int
    unit: str
    share: float


def coverages(errors: Sequence[LeftOutError]) -> list[Coverage]:
    """
    Coverage of all rows and of each family by groups left out, of unseen models and sources, and of new software.

    The interval of a row follows from the errors of rows that share neither its group, nor its model or source where it
    is left out with that; that of the newest software from those of older releases.
    """
    by = {kind: [one for one in errors if one.folds == kind] for kind in (GROUP, MODEL, SOURCE)}
    by_group, by_model, by_source = (_hits(of, lambda one: one.error.group) for of in by.values())
    by_age = _hits([one for one in errors if UNSEEN_BY[one.folds] == "software"], lambda one: is_newest(one.case))
    newest = [one for one in by_age if one[0].folds == SOFTWARE and is_newest(one[0].case)]
    return [
        *_row_coverage({"all": by_group, **_families(by_group)}),
        *_unit_coverage("unseen models", by_model, "models"),
        *_row_coverage({"unseen models": by_model}),
        *_unit_coverage("unseen sources", by_source, "sources"),
        *_row_coverage({"unseen sources": by_source}),
        *_row_coverage({"newest software": newest}),
    ]


Hits = list[tuple[LeftOutError, bool]]


def _row_coverage(of: Mapping[str, Hits]) -> Iterator[Coverage]:
    for name, hits in of.items():
        if hits:
            yield Coverage(name=name, units=len(hits), unit="rows", share=sum(is_hit for _, is_hit in hits) / len(hits))


def _unit_coverage(name: str, hits: Hits, unit: str) -> Iterator[Coverage]:
    shares = [
        np.mean([is_hit for _, is_hit in same]) for same in grouped(hits, lambda hit: hit[0].error.group).values()
    ]
    if shares:
        yield Coverage(name=name, units=len(shares), unit=unit, share=float(np.mean(shares)))


def _hits(errors: Sequence[LeftOutError], key: Callable[[LeftOutError], Hashable]) -> Hits:
    """Each error, and whether it is inside the interval that those of another key make; nothing of a single key."""
    found: Hits = []
    for name, same in grouped(errors, key).items():
        others = spreads(one.error for one in errors if key(one) != name)
        found += [(one, inside(others, one.error)) for one in same] if others else []
    return found


def _families(hits: Hits) -> dict[str, Hits]:
    return grouped(hits, lambda hit: hit[0].error.kind.model)


def band(rows: int, share: float, *, level: float = 0.9) -> tuple[float, float]:
    """
    Shares between which a sample's share lies with a probability of ``level``: of the binomial distribution.

    >>> [round(end, 3) for end in band(100, 0.8)]
    [0.73, 0.86]
    """
    counts = np.arange(rows + 1)
    logs = np.cumsum(np.log(np.maximum(counts, 1)))
    chances = np.exp(logs[-1] - logs - logs[::-1] + counts * np.log(share) + (rows - counts) * np.log1p(-share))
    below = np.cumsum(chances)
    low = int(np.searchsorted(below, (1 - level) / 2))
    high = int(np.searchsorted(below, (1 + level) / 2))
    return low / rows, high / rows


def spreads(errors: Iterable[Error], *, symmetric: bool = False) -> list[Spread]:
    """
    Return the spreads of every kind, narrow or broad; with few groups, those of a broader kind, widened.

    Parameters
    ----------
    errors
        Errors of runs that were held out of the fits that predicted them.
    symmetric
        True where only the size of an error counts.
    """
    by_kind: dict[Kind, list[Error]] = defaultdict(list)

    @cache
    def lists_of(kind: Kind) -> list[list[Error]]:
        return [by_kind[one] for one in dict.fromkeys(kind.broader())]

    for error in errors:
        for same in lists_of(error.kind):
            same.append(error)
    enough = [
        fit_spread(kind, same, symmetric=symmetric)
        for kind, same in by_kind.items()
        if kind == Kind(unseen=kind.unseen) or len({error.group for error in same}) >= FEWEST_GROUPS
    ]
    if symmetric:
        return enough
    known = {spread.kind for spread in enough}
    few = (kind for kind in by_kind if kind.scale == ANY and kind.device != ANY and kind not in known)
    return [*enough, *(_widen(kind, by_kind[kind], spread_of(enough, kind)) for kind in few)]


def _widen(kind: Kind, errors: Sequence[Error], broader: Spread) -> Spread:
    """Widen the spread of a broader kind to include the few own groups."""
    means: dict[Hashable, list[float]] = defaultdict(list)
    for error in errors:
        means[error.group].append(error.log)
    own = [float(np.mean(logs)) for logs in means.values()]
    return Spread(
        kind=kind,
        groups=len(own),
        rows=len(errors),
        lower=round(min(broader.lower, *own), 4),
        upper=round(max(broader.upper, *own), 4),
    )


def inside(known: Sequence[Spread], error: Error) -> bool:
    """Return True if an error lies in the interval that others give for its kind."""
    spread = spread_of(known, error.kind)
    return spread.lower <= error.log <= spread.upper
