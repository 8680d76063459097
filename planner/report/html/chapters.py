"""Chapters that pages on plans share: step, memory, pipeline, training, launch and inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from constraints import FRAMEWORK_RULES, PHYSICS_RULES, sentence
from planner.report.describe import describe_architecture, layer_rows, leaves
from planner.report.html.charts import days_text, interval_of, intervals_of
from planner.report.html.costs import cost_tiles
from planner.report.html.frame import Chapter, Tile, choice_html, pair, plot, section_html, side_by_side, timeline
from planner.report.memory import memory_section
from planner.report.results import breakdown_section, conventions_section, figure_text, run_section
from planner.report.section import NOTHING, Section, count, gib, number_rows, seconds, span
from planner.search.domains import problem_rules
from planner.uncertainty.intervals import COVERAGE
from planner.verbs.explain import rule_sentences

if TYPE_CHECKING:
    from costmodel.facts.device import Cluster, EquippedDevice
    from costmodel.facts.model import Model
    from planner.jobs.problem import Problem
    from planner.report.html.shown import Shown
    from planner.report.records.setting import SettingRecord

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
        "ETTR": " to ".join(f"{end:.2%}" for end in interval_of(one.plan, one.plan.schedule).ettr),
        "days": days_text(interval_of(one.plan, one.plan.schedule).days),
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
    return Chapter("training", "Training", "The whole training and its checkpoints", each(every, _training))


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


def _training(one: Shown) -> Iterator[str]:
    yield section_html(run_section(one.setting, one.record, one.of))
    yield pair(plot(f"ettr {one.number}", ETTR_CAPTION), plot(f"days {one.number}", DAYS_CAPTION))
    yield section_html(intervals_section(one))


_BAND = f"the band: with the {COVERAGE:.0%} interval of a measured step"

ETTR_CAPTION = f"Effective training time ratio; {_BAND}"

DAYS_CAPTION = f"Time of the whole training; {_BAND}"


def intervals_section(one: Shown) -> Section:
    """Build the table of some checkpoint intervals of a plan, its own among them."""
    intervals, best = intervals_of(one.plan), one.plan.schedule.interval_steps
    kept = [*intervals[:: max(1, len(intervals) // 8)], interval_of(one.plan, one.plan.schedule)]
    chosen = {own.schedule.interval_steps: own for own in kept}
    rows = [
        (
            f"{count(steps, 'step')} ({span(own.schedule.interval_seconds)})",
            f"{own.schedule.ettr:.2%}",
            f"{own.schedule.days:,.2f}",
            days_text(own.days),
            "best" if steps == best else NOTHING,
        )
        for steps, own in sorted(chosen.items())
    ]
    return Section(
        title=f"Other checkpoint intervals{one.of}",
        header=("checkpoint every", "ETTR", "days", f"days, {COVERAGE:.0%}", "choice"),
        rows=tuple(rows),
        notes=("The interval is that of the step; as many failures a day as the job says.",),
    )
