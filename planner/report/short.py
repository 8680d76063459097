"""The short answer on one screen: the plan, its speed, its uncertainty, and the next commands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from textwrap import wrap
from typing import TYPE_CHECKING, TypeAlias

from constraints.rules.exports import EXPORTS
from constraints.targets import find_refusal
from costmodel import catalog
from costmodel.strategy import DECISIONS, DEGREES
from planner.report.records.reports import EstimateReportRecord, ReportRecord, report_record
from planner.report.results import (
    ambiguity_rows,
    batch_text,
    build_unused_rows,
    contention_text,
    device_rows,
    doubt_rows,
    figure_text,
    gaps_text,
    lengths_rows,
    line_rows,
    model_doubt_rows,
    money_rows,
    nearby_rows,
    proof_text,
    publication_rows,
    sites_rows,
    title_of,
    unproven_text,
)
from planner.report.section import WIDTH, Asked, Section, amount, count, gib, group_rows, seconds, share

if TYPE_CHECKING:
    from planner.report.records.plan import NumberedPlanRecord
    from planner.results import EstimateReport, PlanReport

UNKNOWN = Asked(command="planner plan JOB.yaml", job="JOB.yaml")
"""The command that is shown where the caller names none."""

LAUNCHED_BY = "slurm"
"""The launcher that the next commands name; ``planner export --help`` lists all."""

MOST_ROWS = 6
"""Rules, and changes that help, where nothing fits; ``--format table`` lists all."""


def short_sections(report: PlanReport | EstimateReport | ReportRecord, asked: Asked | None = None) -> Iterator[Section]:
    """Build the sections of the short answer."""
    whole = report_record(report)
    cluster = whole.cluster
    named = f", {cluster.framework}{' (assumed)' if cluster.framework_is_assumed else ''}" if cluster.framework else ""
    title = f"{title_of(whole)}{named}"
    target = launch_target(whole) if whole.plans else None
    if not whole.plans:
        yield Section(title=title, rows=tuple(_nothing_rows(whole)))
        if whole.conflict:
            from planner.report.conflicts import conflict_sections

            yield from map(_cut, conflict_sections(whole, whole.conflict))
    else:
        yield Section(title=title, rows=fit_rows(tuple(_rows(whole, target))))
        if whole.plans[1:]:
            yield replace(_others(whole.plans), notes=tuple(_notes(whole)))
    yield Section(title="Next", rows=tuple(_next(whole, asked or UNKNOWN, target)), is_verbatim=True)


def _cut(section: Section) -> Section:
    """Return the section with its first rows."""
    more = len(section.rows) - MOST_ROWS
    notes = (f"{count(more, 'more row')}: --format table.",) if more > 0 else ()
    return replace(section, rows=section.rows[:MOST_ROWS], notes=notes)


def _nothing_rows(whole: ReportRecord) -> Iterator[tuple[str, str]]:
    from planner.report.conflicts import none_text

    yield "answer", none_text(whole.conflict)
    if whole.conflict is None:
        if whole.kind == "plan" and whole.lower_bound_seconds is not None:
            yield "known", f"no strategy is below {whole.lower_bound_seconds:,.3f} s per step"
        yield "try", f"a longer time: --time-limit, now {whole.problem.search.time_limit_seconds:g} s"
    elif whole.conflict.closest:
        yield "closest", whole.conflict.closest.strategy.line
    yield from ambiguity_rows(whole)
    if whole.cluster.device_note:
        yield "device", whole.cluster.device_note


def _rows(whole: ReportRecord, target: str | None) -> Iterator[tuple[str, str]]:
    best = whole.plans[0]
    low, high = best.step_time_interval_seconds
    run = best.training_run
    yield from doubt_rows(best)
    yield from model_doubt_rows(whole)
    yield from line_rows(whole)
    if whole.kind == "estimate":
        yield from _forbidden(whole)
    yield from group_rows("small runs", whole.small_runs)
    yield from lengths_rows(whole, best)
    yield from sites_rows(whole, best)
    yield from device_rows(whole, best, whole.idle)
    yield (
        "step",
        f"{seconds(best.step_time_seconds)} s ({best.step_time_interval_probability:.0%} of measured steps: "
        f"{seconds(low)} to {seconds(high)} s); {best.tokens_per_second_per_gpu:,.1f} tokens/s/GPU, MFU {best.mfu:.1%}",
    )
    yield from publication_rows(whole, is_short=True)
    yield (
        "memory",
        f"{gib(best.peak_memory_bytes)} of {gib(whole.cluster.memory_bytes)} GiB at the peak, chance to fit "
        f"{best.chance_to_fit.share:.0%}, to be fast {best.chance_fast.share:.0%}",
    )
    yield from export_rows(whole, target)
    if best.unproven:
        yield "unproven", unproven_text(best)
    yield "training", f"{run.days:,.2f} days, {amount(run.gpu_hours)} GPU-hours, ETTR {run.ettr:.2%}"
    yield from money_rows(whole.job.costs, best)
    if whole.kind == "plan" and (whole.report.exit_code or not whole.plans[1:]):
        yield "proof", proof_text(whole)
    yield from nearby_rows(whole)
    if doubts := "; ".join(_doubts(whole)):
        yield "uncertain", doubts
    if said := batch_text(whole.training):
        yield "batch", said
    if idle := best.strategy.idle_overlap:
        yield "EP overlap", idle
    yield from build_unused_rows(whole)


def _forbidden(whole: EstimateReportRecord) -> Iterator[tuple[str, str]]:
    """Build the rows on rules that forbid a given strategy, and on preferences for which the search omits it."""
    if whole.allowed and not whole.broken_preferences:
        yield "answer", "no rule forbids it"
    yield from group_rows("forbidden", whole.broken_rules)
    for number, rule in enumerate(whole.broken_preferences):
        from planner.report.conflicts import lift_notes

        lifted = "" if number else " ".join(("", *lift_notes(whole.broken_preferences)))
        yield "" if number else "left out", f"{rule}{lifted}"


def _doubts(whole: ReportRecord) -> Iterator[str]:
    """Return the reasons for a wide interval of the step."""
    best, cluster = whole.plans[0], whole.cluster
    if best.gaps:
        yield f"extrapolated: {gaps_text(best.gaps)}"
    if best.contested_seconds:
        yield contention_text(best)
    if cluster.framework_is_extrapolated:
        architecture = best.plan.cluster.device.architecture
        yield f"no measured run of {cluster.framework} on {architecture} is known"
    if cluster.framework_doubt:
        yield cluster.framework_doubt


def _notes(whole: ReportRecord) -> Iterator[str]:
    """Return the notes on the proof, and on plans that predictions cannot tell from the first."""
    if whole.kind == "plan" and not whole.report.exit_code:
        yield f"Plan 1: {proof_text(whole)}."
    if alike := [str(plan.number) for plan in whole.plans[1:] if plan.within_noise_of_best]:
        plans = f"Plan {alike[0]}" if len(alike) == 1 else f"Plans {', '.join(alike)}"
        yield f"{plans} cannot be told from plan 1 (model error {whole.plans[0].plan.noise_fraction:.1%})."


def _others(plans: Sequence[NumberedPlanRecord]) -> Section:
    """Build the table of the best plans, with the features in which plans of the same degrees differ."""
    shown = [name for name in DEGREES if len({getattr(one.strategy, name) for one in plans} | {1}) > 1]
    features = _unlike(plans)
    figures = ("step, s", "peak GiB", "fits", "days")
    rows = []
    for plan in plans:
        strategy, slower = plan.strategy, share(plan.slower_fraction, 1.0)
        cells = [figure_text(plan, name) for name in figures]
        decisions = [str(getattr(strategy, name)) for name in shown] + [_features(plan)[name] for name in features]
        rows.append((str(plan.number), *decisions, *cells[:1], slower, *cells[1:], f"{plan.chance_fastest:.0%}"))
    header = ("#", *shown, *features, "step, s", "slower", *figures[1:], "is fastest")
    return Section(title="Plans", header=header, rows=tuple(rows))


def _unlike(plans: Sequence[NumberedPlanRecord]) -> list[str]:
    """Return the features that differ among plans of the same degrees."""
    alike: dict[tuple[int, ...], list[dict[str, str]]] = {}
    for plan in plans:
        degrees = tuple(getattr(plan.strategy, name) for name in DEGREES)
        alike.setdefault(degrees, []).append(_features(plan))
    return [
        name
        for name in _features(plans[0])
        if any(len({own.get(name, "") for own in same}) > 1 for same in alike.values())
    ]


def _features(plan: NumberedPlanRecord) -> dict[str, str]:
    """Return the decisions and settings of a plan besides its degrees, as its line spells them."""
    strategy = plan.strategy
    given = {name: getattr(strategy, name) for name in DECISIONS if name not in DEGREES}
    given |= {"recompute": strategy.spell_recompute(strategy.recompute)}
    values = {**given, "stages": "uneven" if strategy.has_own_stages else "even", **plan.settings}
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in values.items()}


def launch_target(whole: ReportRecord) -> str | None:
    """Choose the target that the first plan is exported to: the job's, else the first of the costed framework's."""
    if whole.job.target:
        return whole.job.target
    plan = whole.plans[0].plan
    asked = own_targets(whole) or EXPORTS
    return next((name for name in asked if find_refusal(plan.facts, plan.strategy, name) is None), None)


def own_targets(whole: ReportRecord) -> tuple[str, ...]:
    """Return the targets of the costed framework; empty where the catalog has no such framework."""
    name = whole.cluster.framework
    return catalog.framework(name).targets if name in catalog.frameworks() else ()


def export_rows(whole: ReportRecord, target: str | None) -> Iterator[tuple[str, str]]:
    """Build the row on why the first plan cannot be exported to the framework that it is costed for."""
    own = own_targets(whole)
    if own and target is None:
        plan = whole.plans[0].plan
        reason = find_refusal(plan.facts, plan.strategy, own[0])
        yield "export", f"cannot be written for {own[0]}: {reason or 'no target runs it'}"


def _next(whole: ReportRecord, asked: Asked, target: str | None) -> Iterator[tuple[str, ...]]:
    """Build the rows of the next commands, to be copied."""
    yield "the whole report", f"{asked.command} --format table"
    if whole.kind == "estimate":
        yield "against the best", f"planner explain {asked.job}"
    elif whole.plans:
        advice = whole.recommendation
        yield "why" if advice is None or advice.is_fastest else "why the fastest", f"planner explain {asked.job}"
        yield "why not another", f"planner explain {asked.job} {whole.plans[-1].strategy.line}"
    elif whole.conflict:
        yield "why nothing fits", f"planner explain {asked.job}"
    if target and not whole.broken_rules:
        yield "to launch it", f"{asked.command} --format json -o plan.json"
        yield "", f"planner export plan.json --target {target} --launch {LAUNCHED_BY} -o launch"


# --- one screen --------------------------------------------------------------------------------------------

Row: TypeAlias = tuple[str, str]

MOST_LINES = 14
"""Lines above the table of plans, at the width of a pipe."""

OF_HEADING = 2
"""Lines of the title and below it."""

GAP = 2
"""Columns between a name and its text."""

SHORTENED = ("small runs", "forbidden", "left out", "uncertain", "unproven", "uses", "near-by batch", "batch", "step")
"""Rows whose last clauses or continuations go first where there are too many lines, the longest row first."""

DROPPED = ("small runs", "batch", "proof", "near-by batch", "uses", "money")
"""Rows that go after that, in this order."""

REST = "more: --format table"


def fit_rows(rows: Sequence[Row], most: int = MOST_LINES) -> tuple[Row, ...]:
    """
    Shorten rows until they and the heading take at most so many lines.

    Parameters
    ----------
    rows
        A name and a text each; a row without a name continues the one before. Texts are clauses joined by semicolons.
    most
        Lines that they may take.

    Examples
    --------
    >>> fit_rows([("step", "1.0 s"), ("uncertain", "one; two"), ("", "three")], most=4)
    (('step', '1.0 s'), ('uncertain', 'one; two; more: --format table'))
    """
    groups = _groups(rows)
    while _num_lines(groups) > most - OF_HEADING:
        shortened = [one for one in groups if one.name in SHORTENED and one.num_clauses > 1]
        if shortened:
            max(shortened, key=lambda one: one.num_clauses).shorten()
            continue
        name = next((name for name in DROPPED if any(one.name == name for one in groups)), None)
        if name is None:
            break
        groups = [one for one in groups if one.name != name]
    return tuple(row for one in groups for row in one.rows())


class _Group:
    """A row with those that continue it."""

    def __init__(self, name: str, texts: list[str]) -> None:
        self.name, self.texts, self.is_cut = name, [text.split("; ") for text in texts], False

    @property
    def num_clauses(self) -> int:
        return sum(map(len, self.texts))

    def shorten(self) -> None:
        """Drop the last clause."""
        self.texts[-1].pop()
        if not self.texts[-1]:
            self.texts.pop()
        self.is_cut = True

    def rows(self) -> list[Row]:
        """Return the rows that are left."""
        texts = ["; ".join(clauses) for clauses in self.texts]
        if self.is_cut:
            texts[-1] = f"{texts[-1]}; {REST}"
        return [("" if number else self.name, text) for number, text in enumerate(texts)]


def _groups(rows: Sequence[Row]) -> list[_Group]:
    found: list[tuple[str, list[str]]] = []
    for name, text in rows:
        if name or not found:
            found.append((name, []))
        found[-1][1].append(text)
    return [_Group(name, texts) for name, texts in found]


def _num_lines(groups: Sequence[_Group]) -> int:
    rows = [row for one in groups for row in one.rows()]
    width = WIDTH - GAP - max((len(name) for name, _ in rows), default=0)
    return sum(max(1, len(wrap(text, width))) for _, text in rows)
