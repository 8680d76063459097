"""What a report says to people, as sections of facts and tables; console and Markdown lay the same ones out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

from costmodel.strategy import DEGREES, OVERLAPS, decision_text, usual_group
from planner.plan import EstimateReport, PlanReport
from planner.report.conflicts import conflict_sections, missing_notes
from planner.report.framework import framework_text
from planner.report.section import Section
from planner.report.stages import stages_sections
from planner.report.wording import NOTHING, amount, count, gib, mean_count, seconds, share, span
from planner.uncertainty.intervals import COVERAGE

if TYPE_CHECKING:
    from costmodel.step.estimate import Estimate, RankEstimate
    from costmodel.strategy import Strategy
    from planner.checkpoints import CheckpointSchedule
    from planner.plan import Plan
    from planner.search.branch_and_bound import Effort

MILLISECOND = 1e-3

MOST_RANK_ROWS = 10
"""Rows of a memory table; of longer pipelines the telling ranks are shown, all of them in the JSON."""


def sections(report: PlanReport | EstimateReport) -> Iterator[Section]:
    """The sections of a report, in reading order."""
    yield setting_section(report)
    if isinstance(report, EstimateReport):
        yield from broken_sections(report)
    elif not report.plans:
        yield from nothing_sections(report)
    if report.plans:
        yield strategies_section([plan.estimate for plan in report.plans], variants=report.problem.variants)
        yield from stages_sections(report.plans[0].strategy, _of_best(report))
        yield results_section(report)
        yield from loss_sections(report)
        yield breakdown_section(report.plans[0].estimate, _of_best(report))
        yield memory_section(report, report.plans[0].estimate)
        yield run_section(report, report.plans[0], _of_best(report))
    if isinstance(report, PlanReport):
        yield from listed_sections(report)
        yield search_section(report)
    yield conventions_section(report)


# --- the question ------------------------------------------------------------------------------------------


def setting_section(report: PlanReport | EstimateReport) -> Section:
    """What was asked, and the answer in a line."""
    facts, model = report.problem.facts, report.model
    cluster, device, workload = facts.cluster, facts.cluster.device, facts.workload
    tokens_per_step = workload.global_batch_size * workload.sequence_length
    return Section(
        title=f"{model.name} on {cluster.num_devices:,} x {device.name}",
        rows=(
            ("job", report.problem.name),
            ("answer", _answer(report)),
            ("model", _model_text(report)),
            (
                "cluster",
                f"{count(cluster.num_nodes, 'node')} of {device.devices_per_node}, scale-up domains of "
                f"{cluster.scale_up_size}; {gib(device.memory_bytes)} GiB per GPU, "
                f"{report.conventions.peak_flops / 1e12:,.0f} TFLOP/s dense {report.conventions.peak_dtype}",
            ),
            ("framework", framework_text(report.problem)),
            (
                "training",
                f"{workload.global_batch_size:,} x {workload.sequence_length:,} = {amount(tokens_per_step)} tokens per "
                f"step, {amount(workload.tokens)} tokens in all; {workload.precision.name}",
            ),
            *_uses(report),
            *_assumed(report),
        ),
    )


def _uses(report: PlanReport | EstimateReport) -> Iterator[tuple[str, str]]:
    """How many devices the first plan uses, where it need not use all."""
    most = report.problem.search.max_devices
    if most is not None and report.plans:
        whole, used = report.problem.facts.cluster.num_devices, report.plans[0].cluster
        yield (
            "uses",
            f"{used.num_devices:,} of {whole:,} GPUs on {count(used.num_nodes, 'node')}; the job allows {most:,}",
        )


def _assumed(report: PlanReport | EstimateReport) -> Iterator[tuple[str, str]]:
    """What a given strategy left open: it decides the figures as much as what it says."""
    if isinstance(report, EstimateReport) and report.assumed:
        texts = (f"{name}={decision_text(name, value)}" for name, value in report.assumed.items())
        yield "assumed", f"{' '.join(texts)} (not given)"


def _answer(report: PlanReport | EstimateReport) -> str:
    if isinstance(report, EstimateReport):
        proof = "forbidden" if report.broken_rules else "no rule forbids it"
    elif report.plans:
        proof = "proven optimal" if report.exit_code == 0 else "not proven optimal"
    else:
        return _no_answer(report)
    best = report.plans[0]
    return (
        f"{seconds(best.step_seconds)} s per step, {best.tokens_per_second_per_device:,.1f} tokens/s/GPU, "
        f"MFU {best.mfu:.1%}, {best.schedule.days:,.2f} days; {proof}"
    )


def _no_answer(report: PlanReport) -> str:
    conflict = report.outcome.conflict
    if conflict is None:
        return "none within the time limit"
    if conflict.least_bubble_fraction is not None:
        return f"nothing fits; the pipeline idles for at least {conflict.least_bubble_fraction:.2%} of the step"
    lacking = {"device": conflict.shortage_bytes, "host": conflict.host_shortage_bytes}
    texts = [f"{gib(nbytes)} GiB of {name} memory" for name, nbytes in lacking.items() if nbytes]
    return f"nothing fits; the closest strategy lacks {' and '.join(texts)} per GPU" if texts else "nothing fits"


def _model_text(report: PlanReport | EstimateReport) -> str:
    model = report.model
    has_idle = model.active_parameters < model.parameters
    active = f", {amount(model.active_parameters)} active per token" if has_idle else ""
    mtp = f"; {amount(model.mtp_parameters)} more for multi-token prediction" if model.mtp_parameters else ""
    return f"{amount(model.parameters)} parameters{active}{mtp}; {count(model.num_layers, 'layer')}"


# --- the answer --------------------------------------------------------------------------------------------


def broken_sections(report: EstimateReport) -> Iterator[Section]:
    """The rules that forbid a given strategy."""
    if report.broken_rules:
        yield Section(
            title="Forbidden: this strategy breaks",
            rows=tuple((str(number), rule) for number, rule in enumerate(report.broken_rules, start=1)),
            notes=("The figures below are what it would cost regardless.",),
        )


def strategies_section(estimates: Sequence[Estimate], *, variants: str = "groups") -> Section:
    """The decisions of strategies, one row each."""
    unusual = _unusual(estimates)
    header = ("#", *DEGREES, "m", *unusual, "sp", "sharding", "recompute", "offload", "overlap")
    return Section(
        title="Strategies" if len(estimates) > 1 else "Strategy",
        header=header,
        rows=tuple((str(number), *_decisions(estimate, unusual)) for number, estimate in enumerate(estimates, start=1)),
        notes=(
            *(_RELATED[variants] for _ in estimates[1:2]),
            _LEGEND,
            *_alike("Modules", [one.strategy.recompute.text for one in estimates], "+"),
            *_alike("CUDA graphs", [one.strategy.cuda_graphs.text for one in estimates], ""),
            *_alike("Token dispatcher", [one.strategy.token_dispatcher.text for one in estimates], "ep"),
        ),
    )


_RELATED = {
    "groups": "Each is the best one of its combination of tp, cp, pp, dp and ep.",
    "all": "The best strategies whatever they have in common.",
}
"""How the plans of a list are related, by the job's ``variants``."""

_LEGEND = (
    "m: micro-batches per pipeline and step; sp: sequence parallelism; offload: of activations (act), of optimizer "
    "states (opt)."
)


def _unusual(estimates: Sequence[Estimate]) -> tuple[str, ...]:
    """Of stages, groups, schedule and vocabulary what any of the strategies has otherwise than usual."""
    strategies = [one.strategy for one in estimates]
    stages = ("stages",) if any(one.layout for one in strategies) else ()
    groups = ("group",) if any(one.group != usual_group(pp=one.pp, vpp=one.vpp) for one in strategies) else ()
    return (
        stages
        + groups
        + tuple(name for name in ("schedule", "vocabulary") if any(getattr(one, name) > 0 for one in strategies))
    )


def _decisions(estimate: Estimate, unusual: Sequence[str]) -> tuple[str, ...]:
    strategy = estimate.strategy
    return (
        *(str(getattr(strategy, name)) for name in DEGREES),
        str(estimate.num_microbatches),
        *(_unusual_text(strategy, name) for name in unusual),
        "yes" if strategy.sequence_parallel else "no",
        strategy.sharding.text,
        _recompute_text(strategy),
        _offload_text(strategy),
        _overlap_text(strategy),
    )


def _unusual_text(strategy: Strategy, name: str) -> str:
    if name == "stages":
        return "uneven" if strategy.layout else "even"
    return str(getattr(getattr(strategy, name), "text", getattr(strategy, name)))


def _recompute_text(strategy: Strategy) -> str:
    """One word, or how many modules: their names take the width of half a table."""
    names = strategy.recompute.text.split("+")
    return names[0] if len(names) == 1 else f"{len(names)} modules"


def _alike(what: str, of_each: Sequence[str], telling: str) -> Iterator[str]:
    """What a decision is, and in which strategies; not where it is none, nor where a telling part is not in it."""
    for text in dict.fromkeys(text for text in of_each if telling in text and text != "none"):
        numbers = [str(number) for number, own in enumerate(of_each, start=1) if own == text]
        where = f" in strategies {', '.join(numbers)}" if len(of_each) > 1 else ""
        yield f"{what}{where}: {text.replace('+', ', ').replace('full_iteration', 'one of the whole iteration')}."


def _offload_text(strategy: Strategy) -> str:
    words = {"act": strategy.activation_offload, "opt": strategy.optimizer_offload}
    return " ".join(word for word, on in words.items() if on) or "none"


def _overlap_text(strategy: Strategy) -> str:
    words = [name.removesuffix("_overlap") for name in OVERLAPS if getattr(strategy, name)]
    return " ".join(words) or "none"


def results_section(report: PlanReport | EstimateReport) -> Section:
    """Speed, memory and the whole training of every plan, one row each."""
    speed, memory, whole = ("tokens/s/GPU", "TFLOP/s/GPU", "MFU", "HFU"), ("peak GiB", "free GiB"), ("ETTR", "days")
    best = report.plans[0]
    counts = report.problem.search.max_devices is not None  # GPUs take the place of TFLOP/s, which follow from MFU
    return Section(
        title="What they reach" if len(report.plans) > 1 else "What it reaches",
        header=("#", "step, s", "slower", *(("GPUs", *speed[:1], *speed[2:]) if counts else speed), *memory, *whole),
        rows=tuple(_result(number, plan, best, counts=counts) for number, plan in enumerate(report.plans, start=1)),
        notes=tuple(_doubts(report)),
    )


def _doubts(report: PlanReport | EstimateReport) -> Iterator[str]:
    """How far the step times can be trusted, and which plans they cannot tell apart."""
    best, interval = report.plans[0], report.plans[0].interval
    low, high = (end / best.step_seconds - 1 for end in (interval.low_seconds, interval.high_seconds))
    yield (
        f"In {COVERAGE:.0%} of cases a measured step lies {low:+.0%} to {high:+.0%} off, here between "
        f"{seconds(interval.low_seconds)} and {seconds(interval.high_seconds)} s: by {interval.basis} that no fit had "
        "seen."
    )
    alike = [str(number) for number, plan in enumerate(report.plans[1:], start=2) if plan.is_within_noise(best)]
    if alike:
        yield (
            f"Within noise of strategy 1: {', '.join(alike)}. Differences below {best.noise_fraction:.1%} between "
            "layouts of one job are not told apart."
        )


def _result(number: int, plan: Plan, best: Plan, *, counts: bool) -> tuple[str, ...]:
    return (
        str(number),
        seconds(plan.step_seconds),
        f"{plan.slower_fraction(best):.2%}" if number > 1 else NOTHING,
        *([f"{plan.cluster.num_devices:,}"] if counts else []),
        f"{plan.tokens_per_second_per_device:,.1f}",
        *([] if counts else [f"{plan.model_flops_per_second_per_device / 1e12:,.1f}"]),
        f"{plan.mfu:.1%}",
        f"{plan.hfu:.1%}",
        gib(plan.estimate.device_bytes),
        gib(plan.headroom_bytes),
        f"{plan.schedule.ettr:.2%}",
        f"{plan.schedule.days:,.2f}",
    )


def loss_sections(report: PlanReport | EstimateReport) -> Iterator[Section]:
    """What the plans after the first lose against it, by the lines of the breakdown that make most of it."""
    best, *others = report.plans
    if others:
        yield Section(
            title="What the others lose",
            header=("#", "slower, s", "made up of"),
            rows=tuple(_loss(number, plan, best) for number, plan in enumerate(others, start=2)),
            notes=("Seconds by which lines of the step below are longer (+) or shorter (-) than those of strategy 1.",),
        )


MOST_LOSSES = 3
"""Lines of a breakdown that the table of losses names; all of them are in the JSON."""


def _loss(number: int, plan: Plan, best: Plan) -> tuple[str, ...]:
    lines = [f"{name} {value:+,.3f}" for name, value in plan.difference(best).items() if abs(value) >= MILLISECOND / 2]
    texts = lines[:MOST_LOSSES] or ["nothing that is a millisecond"]
    return (str(number), seconds(plan.step_seconds - best.step_seconds), ", ".join(texts))


def _of_best(report: PlanReport | EstimateReport) -> str:
    return " of strategy 1" if len(report.plans) > 1 else ""


def breakdown_section(estimate: Estimate, of_plan: str) -> Section:
    """Where the step of one plan goes, exposed and hidden."""
    parts = estimate.breakdown
    step = sum(part.exposed_seconds for part in parts)
    rows = [
        (
            part.name,
            seconds(part.exposed_seconds),
            share(part.exposed_seconds, step),
            seconds(part.hidden_seconds),
        )
        for part in parts
    ]
    return Section(
        title=f"Step{of_plan}, as the slowest pipeline rank sees it",
        header=("part", "exposed, s", "of step", "hidden, s"),
        rows=(*rows, ("step", seconds(step), f"{1:.1%}", seconds(sum(part.hidden_seconds for part in parts)))),
        notes=tuple(_pace_note(estimate)),
    )


def _pace_note(estimate: Estimate) -> Iterator[str]:
    if len(estimate.ranks) > 1:
        slowest = _slowest(estimate.ranks)
        mean = sum(rank.microbatch_seconds for rank in estimate.ranks) / len(estimate.ranks)
        yield (
            f"Slowest is rank {slowest.rank} with {slowest.microbatch_seconds * 1e3:,.2f} ms per micro-batch; the mean "
            f"of {len(estimate.ranks)} ranks is {mean * 1e3:,.2f} ms."
        )


def _slowest(ranks: Sequence[RankEstimate]) -> RankEstimate:
    return max(ranks, key=lambda rank: rank.microbatch_seconds)


# --- memory ------------------------------------------------------------------------------------------------


def memory_section(
    report: PlanReport | EstimateReport, estimate: Estimate, *, most_rows: int = MOST_RANK_ROWS
) -> Section:
    """What every pipeline rank of a strategy holds; of more rows than wanted the telling ones."""
    capacity = report.problem.facts.cluster.device.memory_bytes
    parts = [
        name for name in estimate.ranks[0].bytes_by_part if any(rank.bytes_by_part[name] for rank in estimate.ranks)
    ]
    shows_host = any(rank.host_bytes for rank in estimate.ranks)
    shown = list(_telling(estimate.ranks))
    header = ("ranks", "layers", *(_SHORT.get(name, name) for name in parts), "total", "free", *(["host"] * shows_host))

    def cells(rank: RankEstimate) -> tuple[str, ...]:
        return (
            str(rank.num_layers),
            *(gib(rank.bytes_by_part[name]) for name in parts),
            gib(rank.device_bytes),
            gib(capacity - rank.device_bytes),
            *([gib(rank.host_bytes)] * shows_host),
        )

    grouped = [(key, list(group)) for key, group in groupby(estimate.ranks, key=cells)]
    rows = [(_span(group), *key) for key, group in grouped]
    if len(rows) > most_rows:
        rows = [(str(rank.rank), *cells(rank)) for rank in shown]
    return Section(
        title=f"Memory{_of_best(report)} by pipeline rank, GiB per GPU",
        header=header,
        rows=tuple(rows),
        notes=tuple(_memory_notes(report, estimate, omitted=len(grouped) > most_rows)),
    )


_SHORT = {
    "gradients": "grads",
    "optimizer": "optim",
    "activations": "activ",
    "working": "work",
    "gathered": "gather",
    "buffers": "buf",
}


def _telling(ranks: Sequence[RankEstimate]) -> Iterator[RankEstimate]:
    """The first two, the middle, the last two, the fullest and the slowest."""
    last = len(ranks) - 1
    fullest = max(ranks, key=lambda rank: rank.device_bytes).rank
    chosen = {0, 1, len(ranks) // 2, last - 1, last, fullest, _slowest(ranks).rank}
    return (ranks[index] for index in sorted(chosen) if 0 <= index <= last)


def _span(group: Sequence[RankEstimate]) -> str:
    first, last = group[0].rank, group[-1].rank
    return str(first) if first == last else f"{first}-{last}"


PEAK_ERROR = 0.02
"""Of measured peaks of pipelines: 2.1 % in the mean (benchmarks/accuracy/README.md)."""


def _memory_notes(report: PlanReport | EstimateReport, estimate: Estimate, *, omitted: bool) -> Iterator[str]:
    device, reserve = report.problem.facts.cluster.device, report.problem.search.memory_headroom_bytes
    wanted = f"; the job wants {gib(reserve)} GiB left free" if reserve else ""
    yield f"A GPU has {gib(device.memory_bytes)} GiB{wanted}."
    lacking = estimate.device_bytes + reserve - device.memory_bytes
    if lacking > 0:
        yield f"{gib(lacking)} GiB are missing on the fullest rank."
    elif estimate.device_bytes > (1 - PEAK_ERROR) * device.memory_bytes:
        free = gib(device.memory_bytes - estimate.device_bytes)
        yield (
            f"The fullest rank leaves {free} GiB, and peaks are predicted to about {PEAK_ERROR:.0%}: "
            "search.memory_headroom_gib keeps more free."
        )
    if estimate.host_bytes:
        yield f"A GPU's share of the host memory is {gib(device.host_memory_bytes)} GiB."
    if estimate.host_bytes > device.host_memory_bytes:
        yield f"{gib(estimate.host_bytes - device.host_memory_bytes)} GiB of it are missing on the fullest rank."
    if omitted:
        yield f"Of {len(estimate.ranks)} ranks the ends, the middle, the fullest and the slowest; the JSON has all."


# --- the whole training ------------------------------------------------------------------------------------


def run_section(report: PlanReport | EstimateReport, plan: Plan, of_plan: str) -> Section:
    """Checkpoints, failures and the time of the whole training of one plan."""
    reliability, schedule = report.problem.reliability, plan.schedule
    num_nodes = plan.cluster.num_nodes
    per_day = reliability.failures_per_node_day * num_nodes
    return Section(
        title=f"Training{of_plan}",
        rows=(
            ("checkpoint", _interval_text(schedule, saving=plan.checkpoint_seconds)),
            (
                "failures",
                f"{mean_count(per_day)} per day on {count(num_nodes, 'node')}, {mean_count(schedule.failures)} in all; "
                f"{reliability.mttr_seconds:,.1f} s to recover from each",
            ),
            ("steps", f"{schedule.num_steps:,}, {span(schedule.effective_seconds)} without interruptions"),
            ("interruptions", f"{span(schedule.interruption_seconds)}; ETTR {schedule.ettr:.2%}"),
            ("end to end", f"{schedule.days:,.2f} days, {amount(schedule.gpu_hours)} GPU-hours"),
        ),
    )


def _interval_text(schedule: CheckpointSchedule, *, saving: float) -> str:
    every = f"every {count(schedule.interval_steps, 'step')} ({span(schedule.interval_seconds)})"
    return f"{every}; training waits {saving:,.2f} s for each"


# --- the search --------------------------------------------------------------------------------------------


def nothing_sections(report: PlanReport) -> Iterator[Section]:
    """Why nothing fits, and what comes closest."""
    conflict = report.outcome.conflict
    if conflict is None:
        return
    yield from conflict_sections(report.problem, conflict)
    yield from closest_sections(report)


def closest_sections(report: PlanReport) -> Iterator[Section]:
    """The strategy that lacks least memory."""
    if report.closest is None:
        return
    section = strategies_section([report.closest])
    yield Section(
        title="Closest: the strategy that lacks least memory",
        header=section.header,
        rows=section.rows,
        notes=section.notes,
    )
    memory = memory_section(report, report.closest)
    yield replace(memory, notes=(*memory.notes, *missing_notes(report.problem, report.closest)))


def listed_sections(report: PlanReport) -> Iterator[Section]:
    """What the rules leave of the job's candidates."""
    if report.listed is None:
        return
    known, possible = report.listed, report.listed.num_rows - report.listed.num_impossible
    more = known.num_impossible - len(known.impossible)
    yield Section(
        title=f"Candidates of {known.source}",
        rows=(
            ("considered", f"{count(known.num_rows, 'candidate')}; rules but those of memory allow {possible:,}"),
            *((place, f"forbidden: {' '.join(rules) or _NO_COMPLETION}") for place, rules in known.impossible),
        ),
        notes=(f"{more:,} more are forbidden.",) if more else (),
    )


_NO_COMPLETION = "no values of the decisions that it leaves open satisfy all rules."


def search_section(report: PlanReport) -> Section:
    """The proof: status, bound, gap, and what the search had to do."""
    outcome, effort = report.outcome, report.outcome.effort
    return Section(
        title="Search",
        rows=(
            ("status", _status_text(report)),
            *_bound(report),
            (
                "space",
                f"{effort.raw_size:,} strategies; {effort.size:,} allowed by all rules but memory, with "
                f"{effort.num_rows:,} combinations of degrees",
            ),
            (
                "looked at",
                f"{effort.num_rows_tabulated:,} combinations of degrees with all their features, "
                f"{effort.pruned.tabulated:,} strategies",
            ),
            ("left out", _left_out(effort)),
            ("solver", _solver(report)),
            *_pipelines(effort),
            ("time", f"{effort.build_seconds:.2f} s for tables and models, {effort.solve_seconds:.2f} s in CP-SAT"),
            *_total_time(report),
        )
        if outcome.effort.num_rows
        else (("status", _status_text(report)), ("space", f"{effort.raw_size:,} strategies, the rules allow none")),
    )


def _solver(report: PlanReport) -> str:
    """What the solver chose from."""
    effort = report.outcome.effort
    if report.problem.variants == "all" and not effort.num_solves:
        return "had nothing to choose: every strategy that fits was compared as it is"
    candidates, solves = count(effort.num_candidates, "candidate"), count(effort.num_solves, "CP-SAT solve")
    return f"{candidates} in {solves}, {effort.num_unfit:,} of them too large for the memory"


def _left_out(effort: Effort) -> str:
    """What was never handed to the solver, and for what reason."""
    pruned = effort.pruned
    reasons = {
        "by the bound of their degrees": effort.num_bounded,
        "by the bound without overlaps": pruned.bounded,
        "by a rule of the time": pruned.timeless,
        "by faster overlaps": pruned.folded,
        "by what was found already": pruned.cut,
        "by one that is better in time and memory": pruned.dominated,
        "by the memory": pruned.unfit,
        "not looked at": effort.size - pruned.tabulated - effort.num_bounded,
    }
    return ", ".join(f"{number:,} {reason}" for reason, number in reasons.items() if number > 0) or "nothing"


def _status_text(report: PlanReport) -> str:
    outcome = report.outcome
    match str(outcome.status):
        case "optimal":
            return "optimal: proven, the rules allow nothing faster"
        case "infeasible":
            return "infeasible: proven, nothing fits"
        case "feasible" if not outcome.gap:
            return "feasible: strategy 1 is proven fastest; time ran out before the proof for the others"
        case "feasible":
            return "feasible: time ran out before the proof"
    return "unknown: time ran out before a strategy was found"


def _bound(report: PlanReport) -> Iterator[tuple[str, str]]:
    outcome = report.outcome
    if math.isfinite(outcome.lower_bound_seconds):
        gap = f", gap {outcome.gap:.2%}" if math.isfinite(outcome.gap) else ""
        rounding = f"rounding hides at most {outcome.rounding_bound_seconds * 1e6:g} us"
        yield "lower bound", f"{outcome.lower_bound_seconds:,.6f} s per step{gap}; {rounding}"
    if report.plans and any(_differs(plan.estimate) for plan in report.plans[:1]):
        yield "closed form", f"{_closed_forms(report)}. Steps above are played through."


def _closed_forms(report: PlanReport) -> str:
    """What is proven: of the strategies that are listed one may play faster than the one whose closed form is least."""
    forms = [plan.estimate.closed_form_seconds for plan in report.plans]
    least = forms.index(min(forms))
    first = f"{forms[0]:,.6f} s for strategy 1"
    if not least:
        return f"{first}: what is compared and proven"
    return f"{first}, {forms[least]:,.6f} s for strategy {least + 1}: the least is what is compared and proven"


def _differs(estimate: Estimate) -> bool:
    return abs(estimate.step_seconds / estimate.closed_form_seconds - 1) > SAME_FRACTION


SAME_FRACTION = 1e-5
"""Difference between the closed form and the step as played that nobody would see."""


def _pipelines(effort: Effort) -> Iterator[tuple[str, str]]:
    """What the search over uneven stages had to do."""
    stages = effort.stages
    if stages.pipelines:
        yield (
            "stages",
            f"{count(stages.pipelines, 'pipeline')} within the bound of evenly shared layers; the ranks of "
            f"{stages.costed:,} costed, the layers of {stages.solved:,} shared out by CP-SAT",
        )


def _total_time(report: PlanReport) -> Iterator[tuple[str, str]]:
    if report.problem.objective == "total_time":
        yield "objective", "total time, which grows with the step time: the order is the same"


def conventions_section(report: PlanReport | EstimateReport) -> Section:
    """What must be known to compare the figures with others'."""
    conventions = report.conventions
    counted = {"causal": "the causal half of attention counted", "full": "attention counted in full, not halved"}
    mtp = ", multi-token prediction included" if report.model.mtp_parameters else ""
    origins = ", ".join(dict.fromkeys(conventions.operator_times.values()))
    return Section(
        title="How to read this",
        rows=(
            (
                "MFU",
                f"over {conventions.peak_flops / 1e12:,.0f} TFLOP/s, the dense {conventions.peak_dtype} peak; "
                f"{counted[conventions.attention]}{mtp}; HFU adds what is recomputed",
            ),
            ("operator times", origins),
        ),
    )
