"""A replayed iteration and the measured one: report, text and JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from costmodel.events import log_event
from costmodel.record import record
from planner.measure.traces.breakdown import (
    MOST_OFF,
    Breakdown,
    PathKind,
    PathPart,
    ProcessorUse,
    Step,
    StreamUse,
    WrongWait,
    break_down,
    critical_path,
    difference,
    is_usable,
    path_parts,
    processor_use,
    replay_without_events,
    stream_uses,
    sums_of_tasks,
    wrong_waits,
)
from planner.measure.traces.building import execution_graph
from planner.measure.traces.building.all_ranks import ranks_of
from planner.measure.traces.events import Trace, Track
from planner.measure.traces.graph import ExecutionGraph
from planner.measure.traces.iterations import choose_iteration, iterations
from planner.measure.traces.replay import Replayed, replay, take_recorded_times
from planner.report.console import sections_text
from planner.report.records import finite, names_of
from planner.report.section import NOTHING, PLAIN, Screen, Section, count, number_rows, share


@record(frozen=True, kw_only=True, slots=True)
class Side:
    """
    One rank's iteration, measured or replayed.

    Parameters
    ----------
    nanoseconds
        Length of the iteration.
    breakdown_nanoseconds
        Breakdown of the iteration.
    tracks
        Use of each stream and thread.
    processors
        Share of processors that kernels occupy; null where no kernel's blocks were recorded.
    """

    nanoseconds: int
    breakdown_nanoseconds: Breakdown
    tracks: tuple[StreamUse, ...]
    processors: ProcessorUse | None


@record(frozen=True, slots=True)
class HostIteration:
    """
    An iteration of a trace.

    Parameters
    ----------
    name
        The profiler's name of it, or its number.
    host_nanoseconds
        Its length on the host.
    found
        Source of its begin and end: steps, optimizer, repetition or whole.
    """

    name: str
    host_nanoseconds: int
    found: str


@record(frozen=True, kw_only=True, slots=True)
class RankReplay:
    """
    One rank, measured and replayed.

    Parameters
    ----------
    rank
        Its number.
    iteration
        Number of the replayed iteration, from 0.
    iterations
        All iterations of its trace.
    difference_fraction
        Replayed over measured, less 1.
    without_events_nanoseconds
        A replay in which no stream waits for another.
    sum_of_tasks_nanoseconds
        Sum of all tasks on its device.
    measured
        As it was recorded.
    replayed
        As it was replayed.
    """

    rank: int
    iteration: int
    iterations: tuple[HostIteration, ...]
    difference_fraction: float
    without_events_nanoseconds: int
    sum_of_tasks_nanoseconds: int
    measured: Side
    replayed: Side


@record(frozen=True, slots=True)
class CriticalPath:
    """
    The critical path, which determines the length of the replayed iteration.

    Parameters
    ----------
    rank
        Rank on which it ends.
    nanoseconds
        Its length: the iteration's.
    parts
        Its parts, the longest first.
    """

    rank: int
    nanoseconds: int
    parts: tuple[PathPart, ...]


@record(frozen=True, kw_only=True, slots=True)
class ReplayReport:
    """
    The answer of ``planner trace replay``.

    Parameters
    ----------
    sources
        Files of the traces.
    num_tasks
        Tasks of the graph.
    num_dependencies
        Its dependencies.
    measured_nanoseconds
        The recorded iteration.
    replayed_nanoseconds
        The replayed iteration.
    difference_fraction
        Replayed over measured, less 1.
    usable
        True if the replay of every rank is at most 5 % off; else it must not be used.
    wrong_waits
        Waits that make an unusable replay too long or too short.
    ranks
        Figures of each rank.
    critical_path
        The critical path of the iteration.
    doubts
        Sentences on missing information in the traces, and on inferred dependencies.
    """

    sources: tuple[str, ...]
    num_tasks: int
    num_dependencies: int
    measured_nanoseconds: int
    replayed_nanoseconds: int
    difference_fraction: float
    usable: bool
    wrong_waits: tuple[WrongWait, ...]
    ranks: tuple[RankReplay, ...]
    critical_path: CriticalPath
    doubts: tuple[str, ...]

    @property
    def slowest(self) -> RankReplay:
        """Rank with the longest replayed iteration, on which the critical path ends."""
        return max(self.ranks, key=lambda one: one.replayed.nanoseconds)


@record(frozen=True, kw_only=True, slots=True)
class Replay(ReplayReport):
    """
    The answer with its tasks, for pages and traces.

    Parameters
    ----------
    graph
        The replayed graph.
    measured, replayed
        Times of its tasks.
    path
        Critical path of the replay.
    """

    graph: ExecutionGraph
    measured: Replayed
    replayed: Replayed
    path: tuple[Step, ...]


def replay_report(traces: Sequence[Trace], iteration: int | None = None) -> Replay:
    """
    Replay an iteration and compare it with the measured one.

    Parameters
    ----------
    traces
        One of each rank.
    iteration
        Number of the iteration, from 0; by default the last one that is followed by another, else the last.

    Raises
    ------
    SpecError
        If a trace has no such iteration.
    """
    graph = execution_graph(traces, iteration)
    log_event(__name__, "graph built", ranks=len(graph.ranks))
    times, simulated = take_recorded_times(graph), replay(graph)
    log_event(__name__, "iteration replayed")
    path = critical_path(graph, simulated)
    slowest = max(graph.ranks, key=lambda rank: simulated.iterations[rank])
    return Replay(
        graph=graph,
        measured=times,
        replayed=simulated,
        path=path,
        sources=tuple(trace.source for trace in graph.traces),
        num_tasks=len(graph.tasks),
        num_dependencies=len(graph.edges),
        measured_nanoseconds=times.iteration,
        replayed_nanoseconds=simulated.iteration,
        difference_fraction=difference(times.iteration, simulated.iteration),
        usable=is_usable(times, simulated),
        wrong_waits=wrong_waits(graph, times, simulated),
        ranks=tuple(_rank_replays(graph, times, simulated, traces, iteration)),
        critical_path=CriticalPath(slowest, simulated.iteration, path_parts(graph, simulated, path)),
        doubts=tuple(dict.fromkeys((*(doubt for trace in traces for doubt in trace.doubts), *graph.doubts))),
    )


def _rank_replays(
    graph: ExecutionGraph, times: Replayed, simulated: Replayed, traces: Sequence[Trace], iteration: int | None
) -> Iterator[RankReplay]:
    of_rank = dict(zip(ranks_of(traces), traces, strict=True))
    sides = [_sides(graph, one) for one in (times, simulated)]
    sums, without = sums_of_tasks(graph, times), replay_without_events(graph).iterations
    for rank in graph.ranks:
        found = iterations(of_rank[rank])
        yield RankReplay(
            rank=rank,
            iteration=found.index(choose_iteration(of_rank[rank], iteration)),
            iterations=tuple(HostIteration(one.name, one.duration, one.found) for one in found),
            difference_fraction=difference(times.iterations[rank], simulated.iterations[rank]),
            without_events_nanoseconds=without[rank],
            sum_of_tasks_nanoseconds=sums[rank],
            measured=sides[0][rank],
            replayed=sides[1][rank],
        )


def _sides(graph: ExecutionGraph, times: Replayed) -> dict[int, Side]:
    parts = break_down(graph, times)
    return {
        rank: Side(
            nanoseconds=times.iterations[rank],
            breakdown_nanoseconds=parts[rank],
            tracks=stream_uses(graph, times, rank),
            processors=processor_use(graph, times, rank),
        )
        for rank in graph.ranks
    }


def replay_json(report: ReplayReport) -> str:
    """Write the answer as strict JSON."""
    entries = {name: finite(getattr(report, name)) for name in names_of(ReplayReport)}
    return json.dumps(entries, indent=2, ensure_ascii=False, allow_nan=False)


# --- text ----------------------------------------------------------------------------------------------------
LONGEST_NAME = 68
"""Characters of a kernel's name in a table: templates have thousands."""

LONGEST_WAIT = 40
"""Characters of a name where two are in one row."""

MOST_NAMES = 15
"""Parts of the critical path that are listed."""

PATH_KINDS: Mapping[PathKind, str] = {
    "host": "host",
    "computation": "computation",
    "copy": "copies between host and device",
    "communication": "communication",
    "gap": "launches and gaps",
}
"""Labels of the kinds."""


PARTS = ("computation", "communication", "overlapped", "idle")
"""Parts of a breakdown, in the order of tables."""

TOO_LONG = "In the recording these tasks ran before the task that they wait for in the replay."
TOO_SHORT = "In the recording these tasks also had another wait, which is not in the graph."


def replay_text(report: ReplayReport, screen: Screen = PLAIN) -> str:
    """Write all sections as text for a console."""
    return sections_text(sections(report), screen)


def sections(report: ReplayReport) -> Iterator[Section]:
    """Yield all sections, in reading order."""
    yield setting_section(report)
    yield from wrong_waits_sections(report)
    yield times_section(report)
    yield breakdown_section(report)
    yield from map(streams_section, report.ranks)
    yield processors_section(report)
    yield kinds_section(report)
    yield names_section(report)
    yield from iterations_sections(report)
    yield from doubts_sections(report)


def setting_section(report: ReplayReport) -> Section:
    """Return the section of the replayed iteration, with the answer."""
    first = report.ranks[0]
    which = f"number {first.iteration} of {len(first.iterations)}, from 0"
    return Section(
        title=title(report),
        rows=(
            ("answer", answer(report)),
            ("files", ", ".join(map(printable, report.sources))),
            ("ranks", ", ".join(str(one.rank) for one in report.ranks)),
            ("iteration", f"{iteration_name(report)}, {which}"),
            ("graph", f"{count(report.num_tasks, 'task')}, {count(report.num_dependencies, 'edge')} between tracks"),
        ),
    )


def title(report: ReplayReport) -> str:
    """Return the heading of the report."""
    return f"Replay of {iteration_name(report)}"


def iteration_name(report: ReplayReport) -> str:
    """Return the name of the replayed iteration on the first rank."""
    return printable(report.ranks[0].iterations[report.ranks[0].iteration].name)


def answer(report: ReplayReport) -> str:
    """Return both times and their difference, in a sentence."""
    replayed, measured = milliseconds(report.replayed_nanoseconds), milliseconds(report.measured_nanoseconds)
    verdict = "" if report.usable else f" Not usable: more than {MOST_OFF:.0%} off."
    return f"{replayed} ms replayed, {measured} ms measured: {report.difference_fraction:+.2%}.{verdict}"


def wrong_waits_sections(report: ReplayReport) -> Iterator[Section]:
    """Yield the section of the waits that cause the difference of an unusable replay."""
    if report.wrong_waits:
        is_long = report.wrong_waits[0].nanoseconds > 0
        yield Section(
            title=f"Waits that make the replay too {'long' if is_long else 'short'}",
            header=("waits", "for", "why", "number", "ms"),
            rows=tuple(
                (*ends_text(one), one.reason, f"{one.number:,}", f"{one.nanoseconds / 1e6:+,.3f}")
                for one in report.wrong_waits
            ),
            notes=(
                f"Replayed less recorded time. {TOO_LONG if is_long else TOO_SHORT}",
                "This replay is not usable; trace what-if refuses it. Replay another step with --iteration.",
            ),
        )


def ends_text(one: WrongWait, quote: str = "") -> tuple[str, str]:
    """Return the waiting and the awaited task, each with its track."""
    name, awaited = short_pair(one.name, one.awaited, LONGEST_WAIT)
    return (
        f"{quote}{name}{quote} ({printable(one.track)})",
        f"{quote}{awaited}{quote} ({printable(one.awaited_track)})",
    )


def wrong_wait_text(one: WrongWait) -> str:
    """Describe a wait: both tasks, and the difference of its replayed time."""
    waits = " waits for ".join(ends_text(one, "'"))
    longer = "longer" if one.nanoseconds > 0 else "shorter"
    return f"{waits} {milliseconds(abs(one.nanoseconds))} ms {longer} than recorded"


def times_section(report: ReplayReport) -> Section:
    """Return the section of each rank's iteration: measured, replayed, and by simpler predictions."""
    return Section(
        title="Iteration time",
        header=("rank", "measured, ms", "replayed, ms", "difference", "without events", "sum of tasks"),
        rows=tuple(
            (
                str(one.rank),
                milliseconds(one.measured.nanoseconds),
                milliseconds(one.replayed.nanoseconds),
                difference_text(one, one.replayed.nanoseconds),
                difference_text(one, one.without_events_nanoseconds),
                difference_text(one, one.sum_of_tasks_nanoseconds),
            )
            for one in report.ranks
        ),
        notes=(
            "Differences from the measured time. For comparison: a replay in which no stream waits for another, and "
            "the sum of all tasks on the device, as if nothing overlapped.",
        ),
    )


def breakdown_section(report: ReplayReport) -> Section:
    """Return the section of each rank's breakdown."""
    return Section(
        title="Breakdown, ms",
        header=("rank", "", "computation", "communication", "overlapped", "idle", "iteration"),
        rows=tuple(
            (
                str(one.rank),
                name,
                *(milliseconds(getattr(side.breakdown_nanoseconds, part)) for part in (*PARTS, "total")),
            )
            for one in report.ranks
            for name, side in sides(one)
        ),
        notes=("Computation and communication: exposed parts. Copies are computation.",),
    )


def sides(one: RankReplay) -> tuple[tuple[str, Side], tuple[str, Side]]:
    """Return both sides with their names."""
    return ("measured", one.measured), ("replayed", one.replayed)


def streams_section(one: RankReplay) -> Section:
    """Return the section of the use of each stream and thread of a rank."""
    replayed = {(use.kind, use.process, use.number): use for use in one.replayed.tracks}
    pairs = [(use, replayed[use.kind, use.process, use.number]) for use in one.measured.tracks]
    return Section(
        title=f"Streams and threads of rank {one.rank}, ms",
        header=("track", "tasks", "computation", "replayed", "communication", "replayed", "of the iteration"),
        rows=tuple(
            (
                track_text(use),
                f"{use.num_tasks:,}",
                milliseconds(use.computation_nanoseconds),
                milliseconds(other.computation_nanoseconds),
                milliseconds(use.communication_nanoseconds),
                milliseconds(other.communication_nanoseconds),
                share(use.computation_nanoseconds + use.communication_nanoseconds, one.measured.nanoseconds or 1),
            )
            for use, other in sorted(pairs, key=lambda pair: pair[0].kind)
        ),
        notes=(
            "Within the iteration's window, which begins when the device has finished earlier work. A thread's "
            "computation is that of its calls of the device's runtime, or of its operators.",
        ),
    )


def processors_section(report: ReplayReport) -> Section:
    """Return the section of the processors that kernels occupy."""
    return Section(
        title="Processors that kernels occupy, mean over the iteration",
        header=("rank", "measured", "replayed"),
        rows=tuple(
            (str(one.rank), _mean(one.measured.processors), _mean(one.replayed.processors)) for one in report.ranks
        ),
        notes=tuple(note for one in report.ranks for note in processors_notes(one)),
    )


def processors_notes(one: RankReplay) -> Iterator[str]:
    """Yield the omissions of a rank's shares of processors."""
    use = one.measured.processors
    if use is None:
        yield f"Rank {one.rank}: no kernel's blocks were recorded, so that its use of processors is not known."
    elif use.num_kernels_left_out:
        yield (
            f"Rank {one.rank}: {use.num_kernels_left_out:,} of {use.num_kernels:,} kernels, "
            f"{milliseconds(use.nanoseconds_left_out)} ms, have no recorded blocks and are left out."
        )


def _mean(use: ProcessorUse | None) -> str:
    return "not recorded" if use is None else f"{use.mean_fraction:.1%}"


def kinds_section(report: ReplayReport) -> Section:
    """Return the section of the critical path by kind of work."""
    path = report.critical_path
    sums: Counter[PathKind] = Counter()
    for part in path.parts:
        sums[part.kind] += part.nanoseconds
    return Section(
        title=f"Critical path, ending on rank {path.rank}",
        header=("kind", "ms", "of the iteration"),
        rows=tuple(
            (PATH_KINDS[kind], milliseconds(spent), share(spent, path.nanoseconds)) for kind, spent in sums.items()
        ),
        notes=("The chain of tasks that determines the replayed iteration: only changes on it shorten it.",),
    )


def names_section(report: ReplayReport, *, most_rows: int = MOST_NAMES, longest: int = LONGEST_NAME) -> Section:
    """Return the section of the critical path by name."""
    whole, parts = report.critical_path.nanoseconds, report.critical_path.parts
    rest = parts[most_rows:]
    spent = sum(part.nanoseconds for part in rest)
    notes = (f"{len(rest)} other names take {milliseconds(spent)} ms, {share(spent, whole)}.",) if rest else ()
    return Section(
        title="Critical path by name",
        header=("name", "kind", "number", "ms", "of the iteration"),
        rows=tuple(
            (
                short_name(part.name, longest),
                "gap" if part.kind == "gap" else PATH_KINDS[part.kind].split(" ")[0],
                f"{part.num_tasks:,}",
                milliseconds(part.nanoseconds),
                share(part.nanoseconds, whole),
            )
            for part in parts[:most_rows]
        ),
        notes=notes,
    )


def iterations_sections(report: ReplayReport) -> Iterator[Section]:
    """Yield the section of all iterations of each rank, where there are several."""
    for one in report.ranks:
        if len(one.iterations) > 1:
            yield Section(
                title=f"Iterations of rank {one.rank} on the host",
                header=("number", "name", "ms", ""),
                rows=tuple(
                    (
                        str(number),
                        printable(iteration.name),
                        milliseconds(iteration.host_nanoseconds),
                        "replayed" if number == one.iteration else "",
                    )
                    for number, iteration in enumerate(one.iterations)
                ),
                notes=("To replay another one, pass --iteration NUMBER.",),
            )


def doubts_sections(report: ReplayReport) -> Iterator[Section]:
    """Yield the section of missing or inferred information."""
    if report.doubts:
        yield Section(title="Missing or inferred", rows=number_rows(map(printable, report.doubts)))


# --- pieces ------------------------------------------------------------------------------------------------


def milliseconds(nanoseconds: int) -> str:
    """
    Format milliseconds to the microsecond.

    >>> milliseconds(1_234_567), milliseconds(0)
    ('1.235', '-')
    """
    return f"{nanoseconds / 1e6:,.3f}" if nanoseconds else NOTHING


def difference_text(one: RankReplay, predicted: int) -> str:
    """Format the difference of a prediction from the measured time."""
    return f"{difference(one.measured.nanoseconds, predicted):+.2%}"


def track_text(track: Track | StreamUse) -> str:
    """Format a stream or a thread."""
    return f"{track.kind} {printable(track.number)}"


def printable(text: str) -> str:
    r"""
    Replace control characters in a name of a trace, which a terminal would obey.

    >>> printable("gemm\x1b[2J")
    'gemm?[2J'
    """
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def short_name(name: str, longest: int) -> str:
    """
    Shorten a kernel's name, without the return type of its template.

    >>> short_name("void gemm<float>(float*)", 11)
    'gemm<flo...'
    """
    bare = printable(name.removeprefix("void "))
    return bare if len(bare) <= longest else f"{bare[: longest - 3]}..."


def short_pair(one: str, other: str, longest: int) -> tuple[str, str]:
    """
    Shorten two adjacent names so that they differ where the whole names do.

    >>> short_pair("flash_forward", "flash_backward", 8), short_pair("a", "b", 8)
    (('fla...fo', 'fla...ba'), ('a', 'b'))
    """
    short = short_name(one, longest), short_name(other, longest)
    if short[0] != short[1] or one == other:
        return short
    first, second = (printable(name.removeprefix("void ")) for name in (one, other))
    either = min(len(first), len(second))
    same = next((place for place in range(either) if first[place] != second[place]), either)
    head = (longest - 3) // 2 + 1
    tail = slice(same, same + longest - 3 - head)
    return f"{first[:head]}...{first[tail]}", f"{second[:head]}...{second[tail]}"
