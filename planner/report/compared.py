"""The sections of a comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from planner.report.conflicts import forbidden_rules_sections, nothing_sections, preference_sections
from planner.report.memory import missing_sections
from planner.report.reasons import SAME_SECONDS, differences_section
from planner.report.results import FIGURES, doubt_rows, figure, figure_text, setting_section
from planner.report.section import NOTHING, Section, gib, group_rows, money, number_rows, part_label, seconds
from planner.report.strategies import completion_rows, strategies_section

if TYPE_CHECKING:
    from planner.report.records.explained import ComparisonRecord, MemoryDifferenceRecord, SideRecord
    from planner.report.records.plan import PlanRecord
    from planner.verbs.compare import Comparison, Gain, MeasuredSide

GIVEN, BEST = "given", "best"


def verdict(gain: Gain, other: str) -> str:
    """
    Word the gain over another strategy as a predicate, with its interval.

    Examples
    --------
    ``gains 7.4% (80%: 2.1% to 12.8%)``; ``is within the error of the first: 7.4% (80%: -3.1% to 16.9%)``.
    """
    low, high = gain.low_fraction, gain.high_fraction
    if low == high == 0:
        return f"is the same as {other}: 0.0%"
    if not gain.is_sure:
        return f"is within the error of {other}: {gain.fraction:.1%} {_interval(gain, low, high)}"
    if gain.fraction < 0:
        return f"loses {-gain.fraction:.1%} {_interval(gain, -high, -low)}"
    return f"gains {gain.fraction:.1%} {_interval(gain, low, high)}"


def _interval(gain: Gain, low: float, high: float) -> str:
    return f"({gain.probability:.0%}: {low:.1%} to {high:.1%})"


def gain_section(gain: Gain, names: tuple[str, str]) -> Section:
    """
    Build the section on the ground of a gain: errors of its interval, unproven features, measured runs.

    Parameters
    ----------
    gain
        The gain.
    names
        Names of the given strategy and of the other one.
    """
    return Section(title="Ground of the gain", rows=tuple(_rows(gain, dict(zip((GIVEN, BEST), names, strict=True)))))


def _rows(gain: Gain, names: dict[str, str]) -> Iterator[tuple[str, str]]:
    yield "interval", f"{gain.low_fraction:.1%} to {gain.high_fraction:.1%}: {gain.basis}"
    if gain.fraction > 0:
        yield "unproven", unproven_text(gain)
    yield from group_rows("measured", (run_text(one, names[one.side]) for one in gain.measured))
    if not gain.measured:
        yield "measured", "no run of either with these degrees, devices and batch is known"
    elif gain.measured_fraction is not None:
        yield (
            "",
            f"with {'these steps' if gain.measured[1:] else 'this step'} as measured: {gain.measured_fraction:.1%}",
        )


def unproven_text(gain: Gain) -> str:
    """
    Word the part of a gain that rests on features that no measured run shows, in one sentence.

    Examples
    --------
    ``3.1 of 7.4% rest on features that no measured run shows: ep_overlap=true (3.1%)``
    """
    if not gain.unproven:
        return f"nothing of the {gain.fraction:.1%} rests on features that no measured run shows"
    parts = ", ".join(
        f"{one.text} ({'the plan needs it' if one.is_needed else f'{one.fraction:.1%}'})" for one in gain.unproven
    )
    lost = f"{100 * gain.unproven_fraction:.1f} of {gain.fraction:.1%}"
    return f"{lost} rest on features that no measured run shows: {parts}"


def run_text(run: MeasuredSide, name: str) -> str:
    """Describe a measured run with the degrees of a strategy, and the model's error on it."""
    error = run.error_fraction
    off = f"{abs(error):.0%} too {'slow' if error > 0 else 'fast'}" if abs(error) >= 0.005 else "within 0.5%"
    unlike = f", with {', '.join(run.unlike)}" if run.unlike else ""
    return (
        f"{name}: {seconds(run.step_time_seconds)} s ({run.source}, {run.id}{unlike}), predicted "
        f"{seconds(run.predicted_seconds)} s: {off}"
    )


NAMES = ("first", "second")


def two_sections(whole: ComparisonRecord) -> Iterator[Section]:
    """Build the sections of two jobs that are compared, in reading order."""
    first, second = whole.given, whole.best
    assert second is not None, "both sides have a plan"
    plans = list(zip(NAMES, (first, second), strict=True))
    rows = [(label, f"the {name} is {text}") for name, plan in plans for label, text in doubt_rows(plan)]
    rows += [(f"{name} line", one.line) for name, one in plans]
    rows += [(name, _side_text(side)) for name, side in zip(NAMES, whole.apart.sides, strict=True)]
    yield Section(title="Two jobs compared", rows=(*rows, ("answer", _answer_of_two(whole))))
    if whole.apart.unlike:
        yield _unlike_section(whole)
    for name, side in zip(NAMES, whole.comparison.sides, strict=True):
        for section in forbidden_rules_sections(side.report.broken_rules):
            yield replace(section, title=f"Forbidden: the {name} strategy breaks these rules")
    table = strategies_section([first.strategy, second.strategy])
    yield replace(table, notes=("1: the first job's strategy; 2: the second's.", *table.notes[1:]))
    yield figures_section("The first against the second", first, second, NAMES)
    if whole.apart.gain:
        yield gain_section(whole.apart.gain, NAMES)
    yield parts_section(whole)
    yield memory_section(whole.apart.memory, NAMES, swapped=True)
    for name, each in zip(NAMES, whole.apart.sides, strict=True):
        if each.notes:
            yield Section(title=f"Notes on the {name}", rows=number_rows(each.notes))


def _side_text(side: SideRecord) -> str:
    cluster, training = side.setting.cluster, side.setting.training
    return (
        f"{side.name}: {side.what}; {side.setting.model.name} on {cluster.num_devices:,} x {cluster.device}, "
        f"{training.global_batch_size:,} x {training.sequence_length:,} tokens per step, {training.precision}"
    )


def _answer_of_two(whole: ComparisonRecord) -> str:
    first, second = whole.given, whole.best
    assert second is not None, "both sides have a plan"
    assert whole.apart.gain is not None, "both sides have a plan"
    if whole.comparison.same_step:
        ours, theirs = (seconds(one.step_time_seconds) for one in (first, second))
        text = f"the first takes {ours} s per step, the second {theirs} s"
    else:
        ours, theirs = (f"{one.tokens_per_second_per_gpu:,.1f}" for one in (first, second))
        text = f"the first trains {ours} tokens/s/GPU, the second {theirs}"
    return (
        f"{text}; the second {verdict(whole.apart.gain, 'the first')}{_training_text(whole.comparison, first, second)}"
    )


def _training_text(comparison: Comparison, first: PlanRecord, second: PlanRecord) -> str:
    """Describe the differences of two trainings; for trainings that are not alike, their costs per token."""
    name = "cost" if comparison.same_run else "cost per trillion tokens"
    costs = [figure(one, name) for one in (first, second)] if _is_known(name, first, second) else []
    if not comparison.same_run:
        both = [money(one, first.costs.currency) for one in costs]
        return f"; {both[0]} and {both[1]} per trillion tokens" if both else ""
    days, hours = comparison.saved_days, comparison.saved_gpu_hours
    less = [
        f"{abs(days):,.2f} days {'less' if days >= 0 else 'more'}",
        f"{abs(hours):,.0f} GPU-hours {'less' if hours >= 0 else 'more'}",
    ]
    if costs:
        cheaper = costs[0] - costs[1]
        less.append(f"{money(abs(cheaper), first.costs.currency)} {'less' if cheaper >= 0 else 'more'}")
    return f"; as predicted {', '.join(less)}"


def _unlike_section(whole: ComparisonRecord) -> Section:
    notes = []
    if not whole.comparison.same_step:
        notes.append(
            "Steps of different models or batches take different times whatever the strategy: compare tokens/s."
        )
    if not whole.comparison.same_run:
        notes.append("Days and GPU-hours are of different trainings.")
    return Section(
        title="Differences between the two jobs",
        header=("", *NAMES),
        rows=tuple((one.what, one.given, one.best) for one in whole.apart.unlike),
        notes=tuple(notes),
    )


def figures_section(title: str, first: PlanRecord, second: PlanRecord, names: tuple[str, str]) -> Section:
    """Build the table of the figures of two plans and their differences; devices only where they differ."""
    same = first.num_devices == second.num_devices
    names_shown = (name for name in FIGURES if (name != "GPUs" or not same) and _is_known(name, first, second))
    rows = tuple(_figure(name, first, second) for name in names_shown)
    return Section(title=title, header=("", *names, "difference"), rows=rows)


def _is_known(name: str, first: PlanRecord, second: PlanRecord) -> bool:
    """True if both plans have a figure, in one currency; MFU by the bf16 peak counts only where it differs from MFU."""
    path, _ = FIGURES[name]
    if path == "mfu_bf16" and (first.mfu_bf16, second.mfu_bf16) == (first.mfu, second.mfu):
        return False
    if path.startswith("costs.total_cost") and first.costs.currency != second.costs.currency:
        return False
    return None not in (figure(first, name), figure(second, name))


def _figure(name: str, first: PlanRecord, second: PlanRecord) -> tuple[str, ...]:
    more = figure(second, name) - figure(first, name)
    return (name, figure_text(first, name), figure_text(second, name), difference_text(more, FIGURES[name][1]))


def parts_section(whole: ComparisonRecord) -> Section:
    """Build the table of differences by part of the step, per token where batches, models or clusters differ."""
    alike = whole.comparison.same_step and not any(one.what == "cluster" for one in whole.apart.unlike)
    lines = (
        [(one.name, one.given_seconds, one.best_seconds) for one in whole.differences]
        if alike
        else [(one.name, one.given_device_seconds, one.best_device_seconds) for one in whole.apart.per_token]
    )
    what = "Seconds of the step" if alike else "GPU-seconds per million tokens"
    return _lines_section(
        f"{what} by part, largest difference first",
        ("part", *NAMES),
        [(part_label(name), ours, theirs) for name, ours, theirs in lines],
        seconds,
    )


def memory_section(
    lines: Sequence[MemoryDifferenceRecord], names: tuple[str, str], *, swapped: bool = False
) -> Section:
    """Compare the memory of the fullest pipeline ranks: the best plan first, or the given one where swapped."""
    rows = [
        (one.name, one.given_bytes, one.best_bytes) if swapped else (one.name, one.best_bytes, one.given_bytes)
        for one in lines
    ]
    title = "Memory of the fullest pipeline rank, GiB per GPU, largest difference first"
    return _lines_section(title, ("part", *names), rows, gib)


def _lines_section(
    title: str, header: tuple[str, ...], rows: Sequence[tuple[str, float, float]], text: Callable[[float], str]
) -> Section:
    """Build a table of lines of two plans, their differences, and the sums."""
    whole = ("all", sum(row[1] for row in rows), sum(row[2] for row in rows))
    return Section(
        title=title,
        header=(*header, "difference"),
        rows=tuple(
            (name, text(ours), text(theirs), difference_text(theirs - ours, text))
            for name, ours, theirs in (*rows, whole)
            if name == "all" or any(digit in text(ours) + text(theirs) for digit in "123456789")
        ),
    )


def difference_text(more: float, text: Callable[[float], str]) -> str:
    """
    Write a difference with its sign, or a dash where it rounds to zero.

    >>> difference_text(-0.25, seconds), difference_text(1e-6, seconds)
    ('-0.250', '-')
    """
    written = text(abs(more))
    return f"{'+' if more > 0 else '-'}{written}" if any(digit in written for digit in "123456789") else NOTHING


def comparison_sections(whole: ComparisonRecord) -> Iterator[Section]:
    """Build the sections of a comparison, in reading order."""
    comparison = whole.comparison
    if whole.apart.sides:
        yield from two_sections(whole)
        return
    given, best = whole.given, whole.best
    answer = ("answer", _answer(whole))
    lines = [
        ("line", given.line),
        *completion_rows(comparison.given),
        *([("recommended line", best.line)] if best else []),
    ]
    rows = (
        *doubt_rows(best or given),
        *([("given", whole.apart.given_name)] if whole.apart.given_name else []),
        answer,
    )
    yield setting_section(whole, *rows, best=best, lines=lines)
    yield from forbidden_rules_sections(whole.broken_rules)
    yield from preference_sections(whole.broken_preferences)
    table = strategies_section([given.strategy, *([best.strategy] if best else [])])
    notes = ("1: the given strategy; 2: the recommended plan.", *table.notes[-1:]) if best else table.notes
    yield replace(table, notes=notes)
    if best:
        yield figures_section("The given strategy against the recommended plan", given, best, ("given", "best"))
        if abs(comparison.saved_seconds) > SAME_SECONDS:
            if whole.apart.gain:
                yield gain_section(whole.apart.gain, ("given", "best"))
            yield differences_section(whole.differences, best, given, "given")
            yield memory_section(whole.apart.memory, ("best", "given"))
    else:
        yield from nothing_sections(whole, whole.conflict)
    yield from missing_sections(whole, given)


def _answer(whole: ComparisonRecord) -> str:
    comparison = whole.comparison
    takes = f"the given strategy takes {seconds(whole.given.step_time_seconds)} s per step"
    alone = ", and the search leaves it out" if whole.broken_preferences else ""
    forbidden = ", but rules forbid it" if whole.broken_rules else alone
    if whole.best is None:
        none = "no strategy fits" if comparison.exit_code == 1 else "no plan was found within the time limit"
        return f"{takes}{forbidden}; {none}"
    if abs(comparison.saved_seconds) <= SAME_SECONDS:
        return f"{takes}{forbidden}; no plan is faster"
    proof = "" if comparison.exit_code == 0 else ", not proven best,"
    word = "less" if comparison.saved_seconds > 0 else "more"
    assert whole.apart.gain is not None, "there is a plan"
    return (
        f"{takes}{forbidden}; the recommended plan{proof} takes {seconds(whole.best.step_time_seconds)} s and "
        f"{verdict(whole.apart.gain, 'the given one')}; as predicted {abs(comparison.saved_days):,.2f} days and "
        f"{abs(comparison.saved_gpu_hours):,.0f} GPU-hours{_money(whole)} {word}"
    )


def _money(whole: ComparisonRecord) -> str:
    """Return the difference in money as a clause; empty without prices."""
    saved = whole.apart.saved_costs.total_cost if whole.apart.saved_costs else None
    return "" if saved is None else f", {money(abs(saved), whole.job.costs.currency)}"
