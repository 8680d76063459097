"""Ratios of steps: predicted beside measured, and how far they are off."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.accuracy.metrics import APART, Errors, errors, grouped
from benchmarks.inputs import read_rows
from benchmarks.output import format_csv
from planner.measure.runs.predictions import Prediction

DATA = Path(__file__).parent / "data"

GROUPS = DATA / "groups.csv"

PAIRS = DATA / "pairs.csv"

RELEASE = "container"

RELEASE_ALONE = "release alone"

"""The fact that names a run's container; the kind of pairs that differ in nothing else."""

COMPANIONS = {
    "dtype": ("fp8_param_gather", "overlap_tp", "fp8_dot_product_attention"),
    "cuda_graph": ("paged_stash", "fused_grouped_mlp", "fp8_dot_product_attention"),
    "token_dispatcher": ("dispatcher_sms",),
}

"""Facts that recipes change along with another one; they are of its kind."""

KINDS = {
    "dtype": "precision",
    "token_dispatcher": "dispatcher",
    "cuda_graph": "graphs",
    "ep_overlap": "ep overlap",
    "overlap_param_gather": "weight gather overlap",
    "recompute": "recompute",
    "optimizer_offload": "optimizer offload",
    "layout": "tp or pp",
    "dispatcher_sms": "dispatcher",
    "mtp_layers": "mtp layers",
    "precision_aware_optimizer": "optimizer states",
    "token_drop": "token drop",
    "megatron_fsdp": "sharding",
    "paged_stash": "paged stash",
}

"""A fact of the table and the kind of change that it is, in the order in which kinds are named."""

MOST_NAMED = 3

"""Kinds of change that the name of a kind joins; what changes more is ``several``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """
    Two measured runs of one job that differ in few facts.

    Parameters
    ----------
    first, second
        Ids of both runs.
    changes
        Facts that differ in the second run: ``fact:from->to``, or a setting in its source's words.
    kind
        The kind of change.
    group
        Group of runs of which the first one is the base; empty for pairs of published tables.
    """

    first: str
    second: str
    changes: tuple[str, ...]
    kind: str
    group: str = ""

    @property
    def is_release_alone(self) -> bool:
        """True if nothing but the container's release differs."""
        return self.kind == RELEASE_ALONE

    @property
    def changes_release(self) -> bool:
        """True if the container's release differs too."""
        return any(change.startswith(f"{RELEASE}:") for change in self.changes)


def read_pairs(path: Path = PAIRS) -> list[Pair]:
    """
    Pairs of runs of published tables.

    Raises
    ------
    SpecError
        If there is no such table.
    """
    return [_pair(cells) for cells in read_rows(path, ("id_a", "id_b", "changes"))]


def read_groups(path: Path = GROUPS) -> list[Pair]:
    """
    Runs of one source that differ in one setting each, with the run that they are compared to.

    Raises
    ------
    SpecError
        If there is no such table.
    """
    return [
        Pair(
            first=cells["id_a"],
            second=cells["id_b"],
            changes=(cells["setting"],),
            kind=kind_of((cells["kind"],)),
            group=cells["group"],
        )
        for cells in read_rows(path, ("group", "id_a", "id_b", "kind", "setting"))
    ]


def kind_of(facts: tuple[str, ...]) -> str:
    """
    The kind of change that some facts are together, without the release beside others.

    >>> kind_of(("container", "dtype", "fp8_param_gather")), kind_of(("container",))
    ('precision', 'release alone')
    """
    changed = [fact for fact in facts if fact != RELEASE]
    if not changed:
        return RELEASE_ALONE
    along = {name for fact in changed for name in COMPANIONS.get(fact, ())}
    own = [fact for fact in changed if fact not in along]
    kinds = dict.fromkeys(kind for fact, kind in KINDS.items() if fact in own)
    unknown = [fact for fact in own if fact not in KINDS]
    named = [*kinds, *unknown]
    return " + ".join(named) if len(named) <= MOST_NAMED else "several"


def _pair(cells: Mapping[str, str]) -> Pair:
    changes = tuple(change for change in cells["changes"].split(";") if change)
    facts = tuple(change.split(":")[0] for change in changes)
    return Pair(first=cells["id_a"], second=cells["id_b"], changes=changes, kind=kind_of(facts))


MOST_MEDIAN = 0.04

MOST_P90 = 0.12

"""Limits of the median and the 90th percentile of the errors, without pairs that change the release alone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Effect:
    """
    Effect of a change on a step.

    Parameters
    ----------
    pair
        Both runs.
    measured_seconds, predicted_seconds
        Seconds of the first run's step, and of the second one's.
    model, device, num_devices
        Facts of both runs.
    """

    pair: Pair
    measured_seconds: tuple[float, float]
    predicted_seconds: tuple[float, float]
    model: str
    device: str
    num_devices: int

    @property
    def measured(self) -> float:
        """Measured seconds of the second run's step over those of the first one."""
        return self.measured_seconds[1] / self.measured_seconds[0]

    @property
    def predicted(self) -> float:
        """Predicted seconds of the second run's step over those of the first one."""
        return self.predicted_seconds[1] / self.predicted_seconds[0]

    @property
    def error(self) -> float:
        """The predicted ratio over the measured one, minus 1."""
        return self.predicted / self.measured - 1

    @property
    def error_without(self) -> float:
        """Error of the ratio 1, the answer without any knowledge of effects."""
        return 1 / self.measured - 1

    @property
    def is_clear(self) -> bool:
        """True if the measured steps differ by more than 5 %."""
        return abs(self.measured - 1) > APART

    @property
    def is_on_the_wrong_side(self) -> bool:
        """True if a clear effect is predicted as its opposite, or as none."""
        return self.is_clear and (self.measured - 1) * (self.predicted - 1) <= 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
    """
    Errors of the ratios of some effects.

    Parameters
    ----------
    predicted, without
        Errors of the predicted ratios; of the ratio 1.
    clear, wrong
        Effects above 5 %; those of them that come out on the wrong side.
    """

    predicted: Errors
    without: Errors
    clear: int
    wrong: int

    @property
    def hold(self) -> bool:
        """True if both goals hold."""
        return self.predicted.median <= MOST_MEDIAN and self.predicted.p90 <= MOST_P90


def effects(pairs: Iterable[Pair], predicted: Mapping[str, Prediction]) -> Iterator[Effect]:
    """
    The effects of pairs whose runs both have a measured and a predicted step.

    Parameters
    ----------
    pairs
        Pairs.
    predicted
        Predictions by id of the run.
    """
    for pair in pairs:
        first, second = predicted.get(pair.first), predicted.get(pair.second)
        if first is None or second is None or not first.run.step_seconds or not second.run.step_seconds:
            continue
        yield Effect(
            pair=pair,
            measured_seconds=(first.run.step_seconds, second.run.step_seconds),
            predicted_seconds=(first.step_seconds, second.step_seconds),
            model=second.run.model,
            device=second.run.device,
            num_devices=second.run.num_devices,
        )


def figures(found: Sequence[Effect]) -> Figures:
    """
    Summarise effects.

    Parameters
    ----------
    found
        At least one.
    """
    return Figures(
        predicted=errors([one.error for one in found]),
        without=errors([one.error_without for one in found]),
        clear=sum(one.is_clear for one in found),
        wrong=sum(one.is_on_the_wrong_side for one in found),
    )


def figures_by(found: Sequence[Effect], key: Callable[[Effect], str]) -> dict[str, Figures]:
    """Return the figures of each group, the largest first."""
    groups = sorted(grouped(found, key).items(), key=lambda item: -len(item[1]))
    return {name: figures(same) for name, same in groups}


WORST = 12

"""Pairs that the report lists one by one."""

HEAD = (
    f"{'':<44} {'pairs':>6} {'median':>7} {'p90':>7} {'max':>7} {'bias':>7}   "
    f"{'ratio 1: median':>15} {'p90':>7}   {'clear':>5} {'wrong':>5}"
)

COLUMNS = ("group", "kind", "id_a", "id_b", "model", "device", "num_devices", "measured", "predicted", "changes")


def counted(found: Sequence[Effect]) -> list[Effect]:
    """Effects that the goals are for: all but those of the release alone."""
    return [one for one in found if not one.pair.is_release_alone]


def lines(found: Mapping[str, Sequence[Effect]]) -> Iterator[str]:
    """
    Every table.

    Parameters
    ----------
    found
        Effects by the knowledge of their predictions (``shipped constants``, ``groups left out``), the first one
        shown pair by pair.
    """
    for title, effects in found.items():
        yield f"Ratios of steps, predicted over measured, {title}"
        yield HEAD
        yield from _tables(effects)
        yield ""
    first = next(iter(found.values()), ())
    yield "Groups that differ in one setting each, with shipped constants: seconds and what the setting adds, ratios"
    yield f"  {'':<66} {'measured':>18} {'predicted':>18}  {'ratio':>7} {'pred.':>7} {'error':>7}"
    yield from _group_lines([one for one in first if one.pair.group])
    yield ""
    yield "Pairs that are furthest off, with shipped constants"
    worst = sorted(counted(first), key=lambda one: -abs(one.error))[:WORST]
    yield from (_pair_line(one) for one in worst)
    yield ""
    yield "Pairs more than 5 % apart that come out on the wrong side, with shipped constants"
    yield from (_pair_line(one) for one in counted(first) if one.is_on_the_wrong_side)
    yield ""
    for title, effects in found.items():
        yield from _goal_lines(title, counted(effects))


def _tables(found: Sequence[Effect]) -> Iterator[str]:
    judged = counted(found)
    grouped_ones = [one for one in judged if one.pair.group]
    others = [one for one in judged if not one.pair.group]
    sets = {
        "all but the release alone": judged,
        "  groups of one setting (effects)": grouped_ones,
        "  pairs of published runs": others,
        "    of the same release": [one for one in others if not one.pair.changes_release],
        "    of another release too": [one for one in others if one.pair.changes_release],
        "release alone: noise, not judged": [one for one in found if one.pair.is_release_alone],
    }
    for name, some in sets.items():
        if some:
            yield _line(name, figures(some))
    yield "by kind of change"
    for name, figure in figures_by(judged, lambda one: one.pair.kind).items():
        yield _line(f"  {name}", figure)


def _line(name: str, one: Figures) -> str:
    predicted, without = one.predicted, one.without
    return (
        f"{name:<44} {predicted.rows:>6} {predicted.median:>7.1%} {predicted.p90:>7.1%} {predicted.maximum:>7.1%} "
        f"{predicted.bias:>+7.1%}   {without.median:>15.1%} {without.p90:>7.1%}   {one.clear:>5} {one.wrong:>5}"
    )


def _group_lines(found: Sequence[Effect]) -> Iterator[str]:
    for one in found:
        setting = f"{one.pair.group}: {', '.join(one.pair.changes)}"
        mark = "  wrong side" if one.is_on_the_wrong_side else ""
        seconds = " ".join(f"{_change(some):>18}" for some in (one.measured_seconds, one.predicted_seconds))
        yield f"  {setting:<66.66} {seconds}  {one.measured:>7.3f} {one.predicted:>7.3f} {one.error:>+7.1%}{mark}"


def _change(seconds: tuple[float, float]) -> str:
    first, second = seconds
    return f"{first:.3f} {second - first:+.3f} s"


def _pair_line(one: Effect) -> str:
    name = f"{one.model} on {one.num_devices:,} {one.device}, {one.pair.first} to {one.pair.second}"
    return (
        f"  {one.error:>+6.1%}  {one.measured:.3f} predicted {one.predicted:.3f}  {name}: {'; '.join(one.pair.changes)}"
    )


def _goal_lines(title: str, judged: Sequence[Effect]) -> Iterator[str]:
    if not judged:
        return
    errors = figures(judged).predicted
    for name, figure, limit in (("median", errors.median, MOST_MEDIAN), ("p90", errors.p90, MOST_P90)):
        is_met = "yes" if figure <= limit else "NO"
        yield f"{is_met:>4}  {name} of {len(judged)} pairs, {title}: {figure:.1%} (at most {limit:.0%})"


def write_pairs(path: Path, found: Sequence[Effect]) -> None:
    """Write one line for each pair (CSV)."""
    path.write_text(format_csv(COLUMNS, map(_cells, found)), encoding="utf-8")


def _cells(one: Effect) -> tuple[object, ...]:
    pair = one.pair
    of = (pair.group, pair.kind, pair.first, pair.second, one.model, one.device, one.num_devices)
    return (*of, f"{one.measured:.5f}", f"{one.predicted:.5f}", ";".join(pair.changes))
