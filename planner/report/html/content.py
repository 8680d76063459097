"""The content of the page of a plan or an estimate from top to bottom, as HTML with places for the plots."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from html import escape
from typing import TYPE_CHECKING, Any

import yaml

from constraints import FRAMEWORK_RULES, PHYSICS_RULES, sentence
from constraints.targets import find_first_refusals
from costmodel.errors import SpecError
from costmodel.step.layouts import strategy_seconds
from planner.frameworks import LAUNCHERS, TARGETS, export
from planner.frameworks.launch import launched
from planner.report.conflicts import nothing_sections
from planner.report.describe import describe_architecture, layer_rows, leaves
from planner.report.html.charts import days_text, intervals_of
from planner.report.html.costs import cost_tiles, costs_chapter
from planner.report.html.frame import (
    Chapter,
    Tile,
    body_html,
    choice_html,
    code_html,
    details_html,
    header_html,
    pair,
    plot,
    section_html,
    side_by_side,
    switch_html,
    timeline,
    transpose,
)
from planner.report.memory import memory_section
from planner.report.proof import alternatives_sections, candidates_sections, recommendation_sections, search_section
from planner.report.reasons import binding_sections
from planner.report.records.reports import PlanReportRecord
from planner.report.results import (
    breakdown_section,
    conventions_section,
    figure_text,
    loss_sections,
    nearby_sections,
    results_section,
    run_section,
)
from planner.report.section import NOTHING, Section, count, gib, number_rows, seconds, span
from planner.report.sections import decisions_section, forbidden_sections, heading_section
from planner.report.strategies import settings_sections, stages_sections
from planner.results import PlanReport
from planner.search.domains import problem_rules
from planner.uncertainty.intervals import COVERAGE
from planner.uncertainty.records import strategy_interval
from planner.verbs.explain import rule_sentences

if TYPE_CHECKING:
    from costmodel.facts.device import Cluster, EquippedDevice
    from costmodel.facts.model import Model
    from costmodel.tables import Facts
    from planner.frameworks.target import Export
    from planner.jobs.problem import Problem
    from planner.report.html.shown import Shown, ShownReport
    from planner.report.records.explained import ComparisonRecord
    from planner.report.records.reports import ReportRecord
    from planner.report.records.setting import SettingRecord
    from planner.results import Plan

HEADER = ("entry", "value", "source")

MODEL_ENTRIES = ("hidden_size", "vocab_size", "num_layers", "tied_embeddings")


def input_sections(problem: Problem, setting: SettingRecord) -> Iterator[Section]:
    """Build the sections on all inputs of a report."""
    yield _job(problem, setting)
    yield _model(problem.facts.model)
    yield _device(problem.facts.cluster)
    yield _rules(problem)


def _job(problem: Problem, setting: SettingRecord) -> Section:
    rows = [
        (f"{name}.{entry}", text)
        for name in ("job", "cluster", "training", "reliability")
        for entry, text in leaves(asdict(getattr(setting, name)) | {"document": None})
        if entry not in ("sources", "document")
    ]
    precision = asdict(problem.facts.workload.precision)
    files = [("read", str(path)) for path in problem.sources]
    return Section(
        title="The job, in base units",
        header=HEADER[:2],
        rows=(*rows, *((f"precision.{name}", text) for name, text in leaves(precision)), *files),
    )


def _model(model: Model) -> Section:
    described = describe_architecture(model)
    rows = [(name, text) for name, text in leaves({name: described[name] for name in MODEL_ENTRIES})]
    return Section(
        title=f"The model: {model.name}",
        rows=(("source", model.source), ("family", model.family), *rows, *layer_rows(described)),
    )


def _device(cluster: Cluster) -> Section:
    device = cluster.device
    entries = {name: value for name, value in asdict(device).items() if name not in APART}
    networks = {network["name"]: network for network in asdict(device)["networks"]}
    rows = (
        *_source_rows({**entries, "networks": networks}, device.sources, "", 0),
        *_calibration(device),
        *_framework(cluster),
    )
    return Section(
        title=f"The GPU: {device.name}",
        header=HEADER,
        rows=rows,
        notes=("A source next to a group of entries is the source of all of them.",),
    )


APART = ("sources", "constants", "behaviour", "calibration", "networks")

"""Entries of a device with sections of their own."""


def _calibration(device: EquippedDevice) -> Iterator[tuple[str, str, str]]:
    """Build the rows of the constants of the device's architecture, before the framework's factors."""
    known, path = device.calibration, "calibration."
    yield "calibration", known.name, known.description or NOTHING
    yield from _source_rows(asdict(known.constants), _prefix(path, known.sources), path, 0)


def _framework(cluster: Cluster) -> Iterator[tuple[str, str, str]]:
    """Build the rows of the framework's behaviour under the job's settings, and its factors on constants."""
    known, path = cluster.framework, "framework."
    if known is None:
        return
    behaviour = asdict(cluster.device.behaviour)
    sources = _prefix(path, known.sources)
    yield "framework", known.name, known.description or NOTHING
    yield from _source_rows(behaviour, sources, f"{path}behaviour.", 0)
    yield from _source_rows(known.factors, sources, f"{path}factors.", 0)


def _prefix(path: str, sources: Mapping[str, str]) -> dict[str, str]:
    return {f"{path}{name}": source for name, source in sources.items()}


def _source_rows(
    entries: Mapping[str, Any], sources: Mapping[str, str], path: str, depth: int
) -> Iterator[tuple[str, str, str]]:
    """Build the rows of entries by dotted path, in as much detail as they have sources."""
    for name, value in entries.items():
        place = f"{path}{name}"
        if isinstance(value, Mapping) and place not in sources and depth < 1:
            yield from _source_rows(value, sources, f"{place}.", depth + 1)
        elif value is not None and value != {} and name != "sources":
            yield place, _value(name, value), sources.get(place, NOTHING)


def _value(name: str, value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{inner} {_value(inner, own)}" for inner, own in value.items() if own is not None)
    if isinstance(value, float) and name.endswith("_bytes") and value >= SHOWN_IN_GIB:
        return f"{gib(value)} GiB"
    ((_, text),) = leaves(value) if not isinstance(value, (list, tuple)) else [("", ", ".join(map(str, value)))]
    return text


SHOWN_IN_GIB = 1e8

"""Bytes from which on a size is written in GiB."""


def _rules(problem: Problem) -> Section:
    """Build the section on rules of the job and of the search; rules of hardware and frameworks are counted only."""
    every, frameworks = rule_sentences(problem), problem_rules(problem).frameworks
    known = {sentence(rule) for rule in (*PHYSICS_RULES, *FRAMEWORK_RULES, *frameworks)}
    own = [text for text in every if text not in known]
    return Section(
        title="Rules of the job and of the search",
        rows=number_rows(own),
        notes=(f"In addition to {len({*every} & known)} rules of the mathematics, the hardware and the framework.",),
    )


TILES = ("step, s", "tokens/s/GPU", "MFU", "peak GiB", "ETTR", "days")

"""Figures that stand large at the top."""

ALL_ROWS = 10**6


def tiles(one: Shown) -> Iterator[Tile]:
    """Build the large figures of a plan, each with its interval."""
    record, chance = one.record, one.record.chance_to_fit
    chances = f"fits: {chance.share:.0%}, fast: {record.chance_fast.share:.0%}"
    low, high = record.step_time_interval_seconds
    tokens = record.tokens_per_second_per_gpu * record.step_time_seconds
    step = record.step_time_seconds
    ends = {
        "step, s": f"{seconds(low)} to {seconds(high)}",
        "tokens/s/GPU": f"{tokens / high:,.1f} to {tokens / low:,.1f}",
        "MFU": f"{record.mfu * step / high:.1%} to {record.mfu * step / low:.1%}",
        "peak GiB": f"{' to '.join(map(gib, chance.peak_memory_interval_bytes))}; {chances}",
        "ETTR": " to ".join(f"{end:.2%}" for end in one.plan.ettr_interval),
        "days": days_text(one.plan.schedule_ends(one.plan.schedule)),
    }
    for name in TILES:
        yield Tile(name, figure_text(record, name), f"{COVERAGE:.0%}: {ends[name]}")
    yield from cost_tiles(one)


def plan_chapters(every: Sequence[Shown]) -> Iterator[Chapter]:
    """Build the chapters on the step, the memory and the pipeline of each plan."""
    yield Chapter("step", "Step", "Time of a step by part", _step(every))
    yield Chapter("memory", "Memory", "Memory of each pipeline rank", each(every, memory_blocks))
    yield Chapter("pipeline", "Pipeline", "The pipeline, pass by pass", each(every, timeline_blocks))


def launch_chapter(blocks: Iterable[str]) -> Chapter:
    """Build the chapter on commands and files that start a plan."""
    return Chapter("run", "Run it", "Commands and files that start it", blocks)


def training_chapter(every: Sequence[Shown]) -> Chapter:
    """Build the chapter on the whole training of each plan."""
    return Chapter("training", "Training", "The whole training and its checkpoints", each(every, _training_blocks))


def inputs_chapter(jobs: Iterable[tuple[Problem, SettingRecord, str]]) -> Chapter:
    """Build the chapter on inputs, from jobs with their records and the endings of their titles."""
    blocks = []
    for problem, setting, of in jobs:
        sections = (replace(one, title=f"{one.title}{of}") for one in input_sections(problem, setting))
        read = conventions_section(setting)
        blocks += [
            section_html(replace(read, title=f"{read.title}{of}")),
            *(section_html(one, folded=True) for one in sections),
        ]
    return Chapter("inputs", "Inputs", "Inputs and sources", blocks)


def each(every: Sequence[Shown], blocks: Callable[[Shown], Iterable[str]]) -> Iterator[str]:
    """Repeat blocks for every plan; the page shows one plan at a time."""
    return (choice_html(one.number, made) for one in every if (made := "".join(blocks(one))))


# --- blocks of each plan -----------------------------------------------------------------------------------
def _step(every: Sequence[Shown]) -> Iterator[str]:
    tables = each(every, lambda one: [section_html(breakdown_section(one.record, one.of))])
    yield side_by_side(plot("steps", _STEP), "".join(tables))


_STEP = (
    "The parts that make up a step; hatched: communication hidden by computation; the line at the end: the "
    f"{COVERAGE:.0%} interval of a measured step"
)


def memory_blocks(one: Shown) -> Iterator[str]:
    """Build the blocks on the memory of each rank; a long table of all ranks is folded below a shorter one."""
    short = memory_section(one.setting, one.record, one.of)
    whole = memory_section(one.setting, one.record, one.of, most_rows=ALL_ROWS)
    chance, fast = one.record.chance_to_fit, one.record.chance_fast
    caption = (
        f"Peak memory{one.of}; the lines at the tops: the {chance.interval_probability:.0%} intervals of measured "
        f"peaks. Chance that the fullest rank fits: {chance.share:.0%}, that it is fast: {fast.share:.0%}"
    )
    yield side_by_side(plot(f"memory {one.number}", caption), section_html(short))
    if len(whole.rows) > len(short.rows):
        yield section_html(replace(whole, title=f"{whole.title}: all ranks", notes=()), folded=True)


def timeline_blocks(one: Shown) -> Iterator[str]:
    """Build the block of a plan's timeline."""
    yield timeline(one.number, f"{_TIMELINE}{one.of}", _NO_TIMELINE)


_TIMELINE = "Timeline of chunks and micro-batches on each rank"

_NO_TIMELINE = (
    "No timeline: the schedule of this strategy is not simulated, it has too many passes, or only plans before it have "
    "a timeline."
)


def _training_blocks(one: Shown) -> Iterator[str]:
    yield section_html(run_section(one.setting, one.record, one.of))
    yield pair(plot(f"ettr {one.number}", ETTR_CAPTION), plot(f"days {one.number}", DAYS_CAPTION))
    yield section_html(intervals_section(one))


_BAND = f"the band: with the {COVERAGE:.0%} interval of a measured step"

ETTR_CAPTION = f"Effective training time ratio; {_BAND}"

DAYS_CAPTION = f"Time of the whole training; {_BAND}"


def intervals_section(one: Shown) -> Section:
    """Build the table of some checkpoint intervals of a plan, its own among them."""
    intervals, best = intervals_of(one.plan), one.plan.schedule
    kept = [*intervals[:: max(1, len(intervals) // 8)], (best, one.plan.schedule_ends(best))]
    chosen = {own.interval_steps: (own, ends) for own, ends in kept}
    rows = [
        (
            f"{count(steps, 'step')} ({span(own.interval_seconds)})",
            f"{own.ettr:.2%}",
            f"{own.days:,.2f}",
            days_text(ends),
            "best" if steps == best.interval_steps else NOTHING,
        )
        for steps, (own, ends) in sorted(chosen.items())
    ]
    return Section(
        title=f"Other checkpoint intervals{one.of}",
        header=("checkpoint every", "ETTR", "days", f"days, {COVERAGE:.0%}", "choice"),
        rows=tuple(rows),
        notes=("The interval is that of the step; as many failures a day as the job says.",),
    )


LAUNCHER = "slurm"
"""The launcher that the commands name; the page has the files of the others too."""

SCRIPTS = {"slurm": "Slurm", "torchrun": "torchrun", "kubernetes": "Kubernetes"}
"""Names of the launchers."""


BESIDE_TODAY = (
    "# Compare with what you run today: write its decisions instead of these",
    "planner explain {job} strategy='TP8 PP4' --format html -o compared.html",
)
BESIDE_BEST = ("# Compare with the fastest plan", "planner explain {job}")
"""The next command, with its comment."""


def launch_blocks(one: Shown, *, searched: bool, further: Sequence[str] = ()) -> Iterator[str]:
    """
    Build the blocks of HTML with the commands and files that start a plan.

    Parameters
    ----------
    one
        The plan.
    searched
        True if a search finds the plan again; otherwise the job file holds its strategy.
    further
        A comment and a command that follow.
    """
    reasons = find_first_refusals(one.plan.facts, one.plan.strategy)
    able = [target for target in targets_in_order(one.plan) if reasons[target] is None]
    file = job_file(one.plan)
    lines = [*commands(one, file, able[0] if able else None, searched=searched)]
    lines += [line.format(job=shlex.quote(file)) for line in further]
    yield code_html("Planner commands", "\n".join(lines))
    yield details_html(f"{file}: the job that they read", code_html(file, job_text(one, searched=searched)))
    for place, target in enumerate(able):
        yield _target(one.plan, export(one.plan, target), target, is_first=place == 0)
    refused = tuple((target, reason) for target, reason in reasons.items() if reason is not None)
    if refused:
        title = "Frameworks that cannot run it"
        yield section_html(Section(title=title, header=("framework", "first reason"), rows=refused), folded=bool(able))


def targets_in_order(plan: Plan) -> list[str]:
    """List every target, those of the plan's own framework first."""
    framework = plan.cluster.framework
    own = [name for name in (framework.targets if framework else ()) if name in TARGETS]
    return list(dict.fromkeys([*own, *TARGETS]))


def job_file(plan: Plan) -> str:
    """Return the name of the job file in the commands."""
    return f"{re.sub(r'[^A-Za-z0-9._-]+', '-', plan.problem.name).strip('-.') or 'job'}.yaml"


def commands(one: Shown, file: str, target: str | None, *, searched: bool) -> Iterator[str]:
    """Write the commands that give the same answer again, and export its files."""
    number = f" --number {one.number}" if searched and one.number > 1 else ""
    yield f"# Save the job below as {file}, then: the same answer again"
    yield f"planner {'plan' if searched else 'estimate'} {shlex.quote(file)} --format json -o plan.json"
    if target is not None:
        yield f"# The files below, with a script for {SCRIPTS[LAUNCHER]} (or --launch torchrun, kubernetes)"
        yield f"planner export plan.json{number} --target {target} --launch {LAUNCHER} -o run"


def job_text(one: Shown, *, searched: bool) -> str:
    """Write the job as a file that needs no other one, with the strategy where that was given."""
    document: dict[str, Any] = {name: part for name, part in one.plan.problem.document.items() if name != "strategy"}
    if not searched:
        whole = one.record.strategy.plain()
        left_out = ("num_microbatches", *(name for name, value in whole.items() if value is None))
        document["strategy"] = {name: value for name, value in whole.items() if name not in left_out}
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=88)


def _target(plan: Plan, exported: Export, target: str, *, is_first: bool) -> str:
    """Build the block on one target: its own files, and the scripts that launch them."""
    own = [code_html(f"{target}: {name}", text) for name, text in exported.files.items()]
    if exported.environment:
        variables = "\n".join(f"export {name}={shlex.quote(value)}" for name, value in exported.environment.items())
        own.append(code_html(f"{target}: environment", variables))
    notes, scripts = list(exported.notes), []
    for launcher, word in SCRIPTS.items():
        try:
            started = launched(plan, exported, launcher)
        except SpecError as error:
            notes.append(str(error))
            break
        name = LAUNCHERS[launcher]
        block = code_html(f"{target}: {name}, for {word}", started.files[name])
        scripts.append(block if launcher == LAUNCHER else details_html(f"{name}, for {word}", block, kind="other"))
        notes += [note for note in started.notes if note not in notes]
    said = section_html(Section(title=f"Before you start {exported.target}", rows=number_rows(notes)), level=4)
    return (
        f"<details{' open' if is_first else ' class=other'}><summary><h3>{escape(exported.target)}</h3></summary>"
        f"{said if notes else ''}{pair(''.join(own), ''.join(scripts))}</details>"
    )


def body(shown: ShownReport) -> Iterator[str]:
    """Build header, navigation and chapters."""
    return body_html(_header(shown), _chapters(shown), switch_html("Strategy", [one.number for one in shown.plans]))


def _chapters(shown: ShownReport) -> Iterator[Chapter]:
    """Build every chapter that the report may have."""
    whole, every, searched = shown.whole, shown.plans, shown.whole.kind == "plan"
    forbidden = map(section_html, forbidden_sections(whole))
    yield Chapter("forbidden", "Forbidden", "Rules that forbid the strategy", forbidden)
    yield Chapter("nothing", "Infeasible", "No strategy fits", _nothing(whole))
    if every:
        title = "The strategies" if len(every) > 1 else "The strategy"
        yield Chapter("plans", "Strategies" if len(every) > 1 else "Strategy", title, _plans(shown))
        further = BESIDE_TODAY if searched else BESIDE_BEST
        yield launch_chapter(each(every, lambda one: launch_blocks(one, searched=searched, further=further)))
        yield from plan_chapters(every)
    if shown.explanation:
        yield Chapter("binds", "Constraints", "Binding constraints of the fastest strategy", _bindings(shown))
    if shown.points:
        blocks = _pareto_front(shown, whole.report.chosen.facts)
        yield Chapter("front", "Pareto front", "Step time against memory", blocks)
    if every:
        yield training_chapter(every)
        yield costs_chapter(every)
    if whole.kind == "plan":
        yield Chapter("proof", "Proof", "The proof", proof(whole))
    yield inputs_chapter([(whole.report.chosen, whole, "")])


# --- the top -----------------------------------------------------------------------------------------------
def _header(shown: ShownReport) -> str:
    setting = heading_section(shown.whole)
    facts = {row[0]: row[1] for row in setting.rows}
    answer, job = facts.pop("answer"), facts.pop("job")
    return header_html(
        subject=job,
        title=setting.title,
        answer=answer,
        verdict=_verdict(shown.whole),
        tiles=tuple(tiles(shown.plans[0])) if shown.plans else (),
        facts=facts,
    )


def _verdict(whole: ReportRecord) -> str:
    """Return the class of the page's style for the status of the report."""
    if whole.kind == "estimate":
        return "bad" if whole.broken_rules else "plain"
    return {0: "good", 1: "bad"}.get(whole.report.exit_code, "plain")


# --- chapters ----------------------------------------------------------------------------------------------
def _nothing(whole: ReportRecord) -> Iterator[str]:
    yield from map(section_html, nothing_sections(whole, whole.conflict))
    if whole.conflict and whole.conflict.closest:
        yield plot(
            "memory closest", "Memory of the closest strategy by pipeline rank, with intervals of measured peaks"
        )


def _plans(shown: ShownReport) -> Iterator[str]:
    whole, plans = shown.whole, shown.whole.plans
    decisions, results = decisions_section(whole), results_section(whole)
    if len(plans) <= MOST_TURNED:
        yield pair(
            section_html(transpose(decisions, "decision"), compare=True, across=True),
            section_html(transpose(results, "figure"), across=True),
        )
    else:
        yield section_html(decisions, compare=True)
        yield section_html(results)
    yield from map(section_html, recommendation_sections(whole.recommendation))
    yield from map(section_html, settings_sections(plans))
    yield from map(section_html, nearby_sections(whole))
    yield from map(section_html, loss_sections(plans))
    for one in shown.plans:
        made = "".join(map(section_html, stages_sections(one.record.strategy, one.of)))
        yield choice_html(one.number, made) if made else ""


MOST_TURNED = 4

"""Strategies that stand side by side, a decision in each row; more have a row each."""


def _bindings(shown: ShownReport) -> Iterator[str]:
    assert shown.explanation is not None
    explanation = shown.explanation
    blocks = list(map(section_html, binding_sections(explanation, shown.bindings)))
    if explanation.bindings:
        yield side_by_side(plot("bindings", _BINDINGS), blocks.pop(0))
    yield from blocks
    if explanation.left_out:
        yield section_html(Section(title="Not known", rows=number_rows(explanation.left_out)), folded=True)


_BINDINGS = (
    "Time that a step would save without each constraint; the line at the end: the 80% interval of the difference of "
    "measured steps, which holds zero where it begins at the left edge"
)


def _pareto_front(shown: ShownReport, facts: Facts) -> Iterator[str]:
    rows = []
    for point in shown.points:
        step = strategy_interval(facts, point.estimate)
        cells = (
            gib(point.allowed_bytes),
            gib(point.estimate.device_bytes),
            seconds(point.estimate.step_seconds),
            f"{seconds(step.low_seconds)} to {seconds(step.high_seconds)}",
            seconds(strategy_seconds(facts, point.estimate.strategy)),
            "proven" if point.is_proven else "not proven",
        )
        rows.append(cells)
    notes = [_PARETO_NOTE]
    if shown.least_bytes:
        notes.append(f"No strategy fits below {gib(shown.least_bytes)} GiB.")
    if shown.late_bytes:
        notes.append(f"Not searched before the time limit: {', '.join(map(gib, shown.late_bytes))} GiB.")
    table = Section(
        title="Pareto front of memory and step time",
        header=("limit, GiB", "used, GiB", "step, s", "80%, s", "compared step, s", "proof"),
        rows=tuple(dict.fromkeys(rows)),
        notes=tuple(notes),
    )
    yield side_by_side(plot("front", _FRONT), section_html(table))


_FRONT = (
    "The fastest strategy within each amount of memory; filled: proven; thin lines: the 80% intervals of measured "
    "steps and peaks"
)

_PARETO_NOTE = (
    "Each row is the fastest strategy with even stages within a memory limit, under the job's other rules; the proof "
    "is about the step time that the search compares, the step is simulated."
)


def proof(whole: PlanReportRecord) -> Iterator[str]:
    """Build the section on the result of the search; the details of the proof are folded."""
    search = search_section(whole)
    kept = [row for row in search.rows if row[0] in ("status", "lower bound")]
    yield section_html(Section(title="Result of the search", rows=tuple(kept)))
    sections = (*candidates_sections(whole), *alternatives_sections(whole), search)
    yield details_html("Search space and proof in detail", "".join(map(section_html, sections)))


def comparison_body(whole: ComparisonRecord, every: Sequence[Shown], sections: Sequence[Section]) -> Iterator[str]:
    """Build header, navigation and chapters from the sections of the text report, the first of which is its heading."""
    return body_html(_comparison_header(whole, every, sections[0]), _chapter_list(whole, every, sections[1:]))


def _comparison_header(whole: ComparisonRecord, every: Sequence[Shown], heading: Section) -> str:
    facts = {row[0]: row[1] for row in heading.rows}
    return header_html(
        subject=facts.pop("job", "") or whole.problem.name,
        title=heading.title,
        answer=facts.pop("answer"),
        verdict={0: "good", 1: "bad"}.get(whole.comparison.exit_code, "plain"),
        tiles=tuple(_build_tiles(every)),
        facts=facts,
    )


def _build_tiles(every: Sequence[Shown]) -> Iterator[Tile]:
    """Build the large figures of the plan, with those of the given strategy below."""
    given = {tile.name: tile.text for tile in tiles(every[0])}
    for tile in tiles(every[-1]):
        beside = f"{every[0].name.lower()}: {given.get(tile.name, 'not known')}"
        yield tile._replace(below=beside) if every[1:] else tile


def _chapter_list(whole: ComparisonRecord, every: Sequence[Shown], sections: Sequence[Section]) -> Iterator[Chapter]:
    yield Chapter("beside", "Side by side", _title(every), _table_pairs(sections))
    yield Chapter("step", "Step", "Time of a step by part", _steps(every, alike=whole.comparison.same_step))
    yield Chapter("memory", "Memory", "Memory of each pipeline rank", _together(every, memory_blocks))
    yield Chapter("pipeline", "Pipeline", "The pipeline, pass by pass", _together(every, timeline_blocks, stacked=True))
    yield Chapter("training", "Training", "The whole training and its checkpoints", _training(every))
    yield costs_chapter(every, together=True)
    yield launch_chapter(block for one in every[1:] for block in launch_blocks(one, searched=False))
    report, sides = whole.comparison.report, whole.apart.sides
    if isinstance(report, PlanReport):
        yield Chapter("proof", "Proof", "The proof", proof(PlanReportRecord.read(report)))
    jobs = [(one.plan.problem, one.setting, one.of if sides else "") for one in every]
    yield inputs_chapter(jobs if sides else jobs[:1])


def _title(every: Sequence[Shown]) -> str:
    return f"The {' and the '.join(one.name.lower() for one in every)}"


def _table_pairs(sections: Sequence[Section]) -> Iterator[str]:
    """Build the tables of decisions and figures side by side, the others below."""
    blocks = [
        section_html(transpose(section, "decision"), compare=True, across=True)
        if section.header[:1] == ("#",)
        else section_html(section)
        for section in sections
    ]
    tables = [block for section, block in zip(sections, blocks, strict=True) if section.header]
    yield from (block for section, block in zip(sections, blocks, strict=True) if not section.header)
    for place in range(0, len(tables), 2):
        yield pair(*tables[place : place + 2])


def _steps(every: Sequence[Shown], *, alike: bool) -> Iterator[str]:
    own = plot("steps", f"The parts of each step; the lines: the {COVERAGE:.0%} intervals of measured steps")
    if every[1:] and alike:
        names = " takes longer than the ".join(one.name.lower() for one in every)
        lost = f"Time that the {names}; the line: the {COVERAGE:.0%} interval of such differences"
        yield pair(own, plot("differences", lost))
    else:
        yield own


def _together(every: Sequence[Shown], blocks: Callable[[Shown], Iterable[str]], *, stacked: bool = False) -> list[str]:
    """Build the blocks of all plans, side by side where the page is wide enough."""
    made = ["".join(blocks(one)) for one in every]
    return made if stacked else [pair(*made)]


def _training(every: Sequence[Shown]) -> Iterator[str]:
    yield pair(*(section_html(run_section(one.setting, one.record, one.of)) for one in every))
    yield pair(plot("ettr", ETTR_CAPTION), plot("days", DAYS_CAPTION))
    yield pair(*(section_html(intervals_section(one), folded=True) for one in every))
