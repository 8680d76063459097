"""Sections on the search: status, bound, gap, statistics, the recommendation, and candidates that rules forbid."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from costmodel.strategy import DEGREES
from planner.jobs.strategy_file import text_of
from planner.report.records.reports import EVEN
from planner.report.results import idle_proof_rows
from planner.report.section import Section, count, seconds

if TYPE_CHECKING:
    from planner.report.records.plan import StrategyRecord
    from planner.report.records.reports import (
        AlternativeRecord,
        PlanReportRecord,
        RecommendationRecord,
    )
    from planner.search.candidates import SearchStats
    from planner.search.certificate import Certificate


def candidates_sections(whole: PlanReportRecord) -> Iterator[Section]:
    """Build the section on the job's candidates: the number that the rules allow, and why the first are forbidden."""
    known = whole.candidates
    if known is None:
        return
    possible = known.num_rows - known.num_impossible
    more = known.num_impossible - len(known.impossible)
    yield Section(
        title=f"Candidates of {known.source}",
        rows=(
            (
                "considered",
                f"{count(known.num_rows, 'candidate')}, {possible:,} of them satisfy all rules except memory",
            ),
            *((one.place, f"forbidden: {' '.join(one.rules) or _NO_COMPLETION}") for one in known.impossible),
        ),
        notes=(f"{more:,} more are forbidden.",) if more else (),
    )


PLEASE_REPORT = "please report this fault of the planner"

_NO_COMPLETION = "no values of its open decisions satisfy all rules."


def alternatives_sections(whole: PlanReportRecord) -> Iterator[Section]:
    """Build the table of the outcome of each combination of settings."""
    if whole.alternatives:
        last = len(whole.plans)
        rows = [(text_of(one.settings), _alternative(one, whole)) for one in whole.alternatives]
        yield Section(
            title="Combinations of settings",
            rows=tuple(rows),
            notes=(f"Each combination was searched for strategies faster than strategy {last} above.",) if last else (),
        )


def _alternative(one: AlternativeRecord, whole: PlanReportRecord) -> str:
    numbers = [str(plan.number) for plan in whole.plans if plan.settings == one.settings]
    if numbers:
        return f"{'strategy' if len(numbers) == 1 else 'strategies'} {', '.join(numbers)}"
    match one.answer:
        case "unknown":
            return "time ran out before the proof"
        case "nothing fits":
            from planner.report.conflicts import shortage_text

            return ": ".join(filter(None, ("nothing fits", shortage_text(one))))
    if one.bound_seconds is not None:
        return f"not searched: by its lower bound no step is shorter than {one.bound_seconds:,.6f} s"
    return "no faster strategy fits: proven"


def search_section(whole: PlanReportRecord) -> Section:
    """Build the section on the proof: status, bound, gap, and statistics of the search."""
    return Section(title="Search", rows=tuple(_search_rows(whole)))


def _search_rows(whole: PlanReportRecord) -> Iterator[tuple[str, str]]:
    search, effort = whole.search, whole.report.outcome.effort
    yield "status", _status_text(whole)
    if not search.num_rows:
        yield "space", f"{search.num_raw_strategies:,} strategies, none of which the rules allow"
        return
    yield from _bound(whole)
    yield (
        "space",
        f"{search.num_raw_strategies:,} strategies; {search.num_strategies:,} satisfy all rules except memory, "
        f"with {search.num_rows:,} combinations of parallel degrees",
    )
    yield (
        "costed",
        f"{search.num_strategies_tabulated:,} strategies, all of {search.num_rows_tabulated:,} combinations of "
        "parallel degrees",
    )
    yield "pruned", _count_pruned(effort)
    yield "solver", _solver(whole, effort)
    num_left = search.num_strategies - search.num_strategies_tabulated - effort.num_bounded
    if num_left and whole.status in ("feasible", "unknown"):
        yield "left", f"{num_left:,} strategies, neither costed nor excluded by a bound, when time ran out"
    if search.num_pipelines:
        yield (
            "stages",
            f"{count(search.num_pipelines, 'pipeline')} that uneven stages might make faster, by their lower bound; "
            f"{search.num_pipelines_costed:,} costed rank by rank, {search.num_pipelines_solved:,} solved by CP-SAT",
        )
    if whole.certificate is not None:
        yield "certificate", _certificate(whole.certificate, uneven=bool(search.num_pipelines))
    yield from idle_proof_rows(whole)
    yield "time", f"{search.build_seconds:.2f} s for cost tables and models, {search.solve_seconds:.2f} s in CP-SAT"
    if whole.job.objective == "total_time":
        numbers = " on each number of GPUs; numbers are compared by the step" if _leaves_idle(whole) else ""
        yield "objective", f"total time, which grows with the step time{numbers}, so that the order is the same"


def _leaves_idle(whole: PlanReportRecord) -> bool:
    return whole.idle is not None and whole.idle.num_idle_devices > 0


def _certificate(certificate: Certificate[StrategyRecord], *, uneven: bool) -> str:
    """Word CP-SAT's verdict on the answer, and the question that it was asked."""
    faster = f"faster than {certificate.below_seconds:,.6f} s"
    of_even = "of even stages " if uneven else ""
    if certificate.verdict == "refuted":
        found = certificate.better
        if found is None:
            as_fast = f"as fast as {certificate.below_seconds:,.6f} s"
            return f"refuted: no strategy that rules and memory allow is {as_fast}; {PLEASE_REPORT}"
        degrees = ", ".join(f"{name} {getattr(found, name)}" for name in DEGREES)
        return f"refuted: CP-SAT found a strategy that is {faster} ({degrees}); {PLEASE_REPORT}"
    if certificate.verdict == "not certified":
        return f"not certified: {certificate.reason}; what is known is the lower bound above"
    of_stages = "; uneven stages have bounds and models of their own, by the sum over their ranks" if uneven else ""
    if not certificate.num_strategies:
        return (
            f"certified: bounds and memory leave no strategy {of_even}that is as fast as "
            f"{certificate.below_seconds:,.6f} s, so that CP-SAT has nothing to choose from{of_stages}"
        )
    left_by = "bounds" if certificate.is_thorough else "bounds and rules"
    return (
        f"certified by CP-SAT: no strategy {of_even}is {faster}, in {certificate.num_decisions} decisions, "
        f"{certificate.num_rules} rules and {certificate.seconds:.2f} s; its "
        f"tables hold what {left_by} leave: the memory of {count(certificate.num_combinations, 'combination')}, the "
        f"step time of {certificate.num_strategies:,} that fit{of_stages}"
    )


def _solver(whole: PlanReportRecord, effort: SearchStats) -> str:
    """Count the candidates that CP-SAT chose from."""
    search = whole.search
    if whole.job.variants == "all" and not search.num_solves:
        return "not needed: every strategy that fits was compared directly"
    candidates, solves = count(search.num_candidates, "candidate"), count(search.num_solves, "CP-SAT solve")
    return f"{candidates} in {solves}, {effort.num_unfit:,} of them beyond the memory"


def _count_pruned(effort: SearchStats) -> str:
    """Count the strategies that the solver never saw, by reason."""
    reasons = {
        "by the lower bound of their degrees": effort.num_bounded,
        "by the lower bound of their features": effort.num_bounded_tabulated,
        "by a rule on the step time": effort.num_untimed,
        "slower than the margin above the best so far": effort.num_cut,
        "with needless modules recomputed": effort.num_needless,
        "beyond the memory": effort.num_unfit_tabulated,
        "not reached before the time limit": effort.size - effort.num_tabulated - effort.num_bounded,
    }
    return ", ".join(f"{number:,} {reason}" for reason, number in reasons.items() if number > 0) or "nothing"


def _status_text(whole: PlanReportRecord) -> str:
    match whole.status:
        case "optimal" if whole.bound_of == EVEN:
            return "optimal: proven, no strategy with even stages that the rules allow is faster"
        case "optimal":
            return "optimal: proven, no strategy that the rules allow is faster"
        case "infeasible":
            return "infeasible: proven, no strategy satisfies all rules"
        case "feasible" if whole.gap == 0:
            return f"feasible: {_fastest(whole)} is proven fastest; time ran out before the proof for the others"
        case "feasible":
            return "feasible: time ran out before the proof"
    return "unknown: time ran out before a strategy was found"


def _fastest(whole: PlanReportRecord) -> str:
    """Name the fastest plan, by its number where the report has it."""
    number = whole.recommendation.fastest_number if whole.recommendation else 1
    return "the fastest plan" if number is None else f"strategy {number}"


def _bound(whole: PlanReportRecord) -> Iterator[tuple[str, str]]:
    if whole.lower_bound_seconds is not None:
        gap = f", gap {whole.gap:.2%}" if whole.gap is not None else ""
        rounding = f"rounding in the solver at most {whole.rounding_bound_seconds * 1e6:g} us"
        yield "lower bound", f"{whole.lower_bound_seconds:,.6f} s per step{gap}; {rounding}"
    if whole.bound_of == EVEN:
        yield (
            "custom layouts",
            "the proof covers even stages. Custom pipeline layouts are compared by the sum over their ranks; the best "
            "are improved in simulation, one layer at a time, until no move is faster. Another layout may be faster",
        )
    forms = {f"strategy {plan.number}": plan.closed_form_step_time_seconds for plan in whole.plans}
    if whole.recommendation:
        forms.setdefault(_fastest(whole), whole.recommendation.fastest_closed_form_step_time_seconds)
    if forms and abs(whole.plans[0].step_time_seconds / forms["strategy 1"] - 1) > SAME_FRACTION:
        yield "compared step", f"{_describe_forms(forms, whole)}. Step times above are simulated pass by pass."


def _describe_forms(forms: Mapping[str, float], whole: PlanReportRecord) -> str:
    """Describe the step times that the search compares; the plan of the least may simulate slower than another."""
    least = min(forms, key=lambda name: forms[name])
    first = f"{forms['strategy 1']:,.6f} s for strategy 1"
    bound = whole.lower_bound_seconds
    if bound is not None and whole.gap == 0 and forms[least] > bound + 2 * whole.rounding_bound_seconds:
        return f"{first}, as the search compares it; the lower bound belongs to a strategy that simulates slower"
    if least == "strategy 1":
        return f"{first}, as the search compares it; the proof is about this step time"
    return (
        f"{first}, {forms[least]:,.6f} s for {least}, as the search compares them; the proof is about the shorter one"
    )


SAME_FRACTION = 1e-5

"""Relative difference between the compared and the simulated step time that is not worth a line."""


def recommendation_sections(advice: RecommendationRecord | None) -> Iterator[Section]:
    """Build the section on the recommended plan and its advantages; none where the fastest plan was asked for."""
    if advice is None:
        return
    rows = [("recommended", _recommendation(advice))]
    if not advice.is_fastest:
        rows.append(("fastest", _describe_fastest(advice)))
        rows.extend(
            ("  preferred", f"{one.text} instead of {one.instead_of}: {one.reason}") for one in advice.preferred
        )
    notes = (
        ()
        if advice.complete
        else ("Time ran out before all plans that the order of preferences puts first were searched.",)
    )
    yield Section(title="Recommendation", rows=tuple(rows), notes=notes)


def _recommendation(advice: RecommendationRecord) -> str:
    within = f"within {advice.tolerance_fraction:.1%} of the fastest one"
    if advice.is_fastest:
        return f"strategy 1, the fastest plan: no plan {within} is better by the order of preferences"
    return f"strategy 1, the first in the order of preferences among all plans {within}"


def _describe_fastest(advice: RecommendationRecord) -> str:
    number = advice.fastest_number
    named = advice.fastest_strategy.line if number is None else f"strategy {number}"
    gain = f"{advice.gain_fraction:.1%} less"
    return (
        f"{named}: {seconds(advice.fastest_step_time_seconds)} s per step, {gain} (search.fastest=true puts it first)"
    )
