"""Strategies as sections and as a line of text: their decisions, and uneven stages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from costmodel.strategy import DEGREES, ENUMS, OVERLAPS, default_microbatch_group
from planner.jobs.strategy_file import OFFLOAD_OF, keep_effective, value_text
from planner.report.section import NOTHING, Section

if TYPE_CHECKING:
    from costmodel.strategy import StageLayout
    from planner.report.records.plan import NumberedPlanRecord, StrategyRecord
    from planner.results import EstimateReport


def strategies_section(
    strategies: Sequence[StrategyRecord], *, variants: str = "groups", is_first_simplest: bool = False
) -> Section:
    """Build the table of decisions, one row per strategy; the first may be the simplest instead of the fastest."""
    non_default = _non_default(strategies)
    header = ("#", *DEGREES, "m", *non_default, "sp", "sharding", "recompute", "offload", "overlap")
    return Section(
        title="Strategies" if len(strategies) > 1 else "Strategy",
        header=header,
        rows=tuple((str(number), *_decisions(one, non_default)) for number, one in enumerate(strategies, start=1)),
        notes=(
            *(
                _RELATED[variants].format(which="Each but the first" if is_first_simplest else "Each")
                for _ in strategies[1:2]
            ),
            _LEGEND,
            *_lines(strategies),
            *_alike("Recomputed modules", [one.spell_recompute(one.recompute) for one in strategies], "+"),
            *_alike("CUDA graphs", [one.cuda_graphs for one in strategies], ""),
            *_alike("Token dispatcher", [one.token_dispatcher for one in strategies], "ep"),
            *_alike("EP overlap", [one.idle_overlap for one in strategies], "overlap"),
        ),
    )


_RELATED = {
    "groups": "{which} is the best strategy with its combination of tp, cp, pp, dp and ep.",
    "all": "The best strategies of the whole space; several may share tp, cp, pp, dp and ep.",
}
"""The note on the relation of the plans of a list, by the job's ``variants``."""

_LEGEND = (
    "m: micro-batches per step and data-parallel rank; sp: sequence parallelism; offload: activations (act), optimizer "
    "states (opt); overlap: communication overlapped with computation."
)


def _non_default(strategies: Sequence[StrategyRecord]) -> tuple[str, ...]:
    """Return the decisions among stages, group, schedule and vocabulary that any strategy sets off the default."""
    differs = {
        "stages": any(one.has_own_stages for one in strategies),
        "group": any(one.group != default_microbatch_group(pp=one.pp, vpp=one.vpp) for one in strategies),
        "schedule": any(one.schedule != _default("schedule") for one in strategies),
        "vocabulary": any(one.vocabulary != _default("vocabulary") for one in strategies),
    }
    return tuple(name for name, in_any in differs.items() if in_any)


def _default(name: str) -> object:
    """Return the default of a decision, which texts leave out."""
    return ENUMS[name](0).text if name in ENUMS else int(name in DEGREES)


def _decisions(strategy: StrategyRecord, non_default: Sequence[str]) -> tuple[str, ...]:
    return (
        *(str(getattr(strategy, name)) for name in DEGREES),
        str(strategy.num_microbatches),
        *(_non_default_text(strategy, name) for name in non_default),
        "yes" if strategy.sequence_parallel else "no",
        strategy.sharding,
        _recompute_text(strategy),
        _offload_text(strategy),
        _overlap_text(strategy),
    )


def _non_default_text(strategy: StrategyRecord, name: str) -> str:
    if name == "stages":
        return "uneven" if strategy.has_own_stages else "even"
    return str(getattr(strategy, name))


def _recompute_text(strategy: StrategyRecord) -> str:
    """Return one word, or the number of modules: their names would take half the width of the table."""
    names = strategy.spell_recompute(strategy.recompute).split("+")
    return names[0] if len(names) == 1 else f"{len(names)} modules"


def _lines(strategies: Sequence[StrategyRecord]) -> Iterator[str]:
    """Return each strategy in one line, where there are several."""
    for number, one in enumerate(strategies if len(strategies) > 1 else (), start=1):
        yield f"Strategy {number}: {one.line}"


def _alike(what: str, of_each: Sequence[str], needed: str) -> Iterator[str]:
    """List the values of a decision and the strategies that have them; without none, and those that lack a text."""
    for text in dict.fromkeys(text for text in of_each if needed in text and text != "none"):
        numbers = [str(number) for number, own in enumerate(of_each, start=1) if own == text]
        noun = "strategy" if len(numbers) == 1 else "strategies"
        where = f" in {noun} {', '.join(numbers)}" if len(of_each) > 1 else ""
        yield f"{what}{where}: {text.replace('+', ', ').replace('full_iteration', 'one for the whole iteration')}."


def _offload_text(strategy: StrategyRecord) -> str:
    words = {"act": strategy.activation_offload, "opt": strategy.optimizer_offload}
    return " ".join(word for word, on in words.items() if on) or "none"


def _overlap_text(strategy: StrategyRecord) -> str:
    words = [name.removesuffix("_overlap") for name in OVERLAPS if getattr(strategy, name)]
    return " ".join(words) or "none"


def settings_sections(plans: Sequence[NumberedPlanRecord]) -> Iterator[Section]:
    """Build the table of the settings that the search chose, where the job gives several values."""
    names = list(plans[0].settings) if plans else []
    if names:
        yield Section(
            title="Settings, of several that the job gives",
            header=("#", *names),
            rows=tuple((str(plan.number), *_setting_cells(plan, names)) for plan in plans),
            notes=("Settings of offload matter only to strategies that offload.",) if {*names} & {*OFFLOAD_OF} else (),
        )


def _setting_cells(plan: NumberedPlanRecord, names: Sequence[str]) -> Iterator[str]:
    strategy = plan.strategy
    of_ranks = strategy.layout.activation_offload if strategy.layout else []
    own = keep_effective(
        plan.settings,
        optimizer_offload=strategy.optimizer_offload,
        activation_offload=strategy.activation_offload or any(of_ranks),
    )
    for name in names:
        yield value_text(own[name]) if name in own else NOTHING


# --- completed decisions -----------------------------------------------------------------------------------

ORIGIN = {
    "search": "chosen by a search, as planner plan does with what was given",
    "bold": "chosen by a search that lifts preferences, headroom or evidence, since nothing else fits",
    "recipes": "as the recipes of the framework have it",
    "no_plan": "as the recipes of the framework have it, since nothing with what was given is allowed: ",
}
"""The origin of decisions that were not given, by :class:`planner.search.complete.CompletedBy`."""


def completion_rows(report: EstimateReport) -> Iterator[tuple[str, str]]:
    """Build the row on the completed decisions of a given strategy and their origin; none where all were given."""
    if report.completed_by not in ORIGIN:
        return
    origin = ORIGIN[report.completed_by]
    if report.completed_by == "no_plan":
        origin += (
            report.broken_rules[0] if report.broken_rules else "the search found no strategy within its time limit"
        )
    yield "completed", f"{report.completed or 'no decision of the line'} ({origin})"


# --- stages ------------------------------------------------------------------------------------------------


def stages_sections(strategy: StrategyRecord, of_plan: str) -> Iterator[Section]:
    """Build the table of layers, recomputation and offload by rank, equal neighbours merged; none for even stages."""
    if strategy.layout is None or not strategy.has_own_stages:
        return
    rows = [(rank, *_rank(strategy, strategy.layout, rank)) for rank in range(strategy.pp)]
    merged = [list(group) for _, group in groupby(rows, key=lambda row: row[1:])]
    yield Section(
        title=f"Stages{of_plan}",
        header=("ranks", "layers per chunk", "recompute", "full layers", "offload"),
        rows=tuple((ranks_text(group[0][0], group[-1][0]), *group[0][1:]) for group in merged),
        notes=(
            "Chunks (virtual stages) in model order; the first chunk of the model also holds the embedding, the last "
            "one the head. Full layers: layers of the rank that are recomputed in full, the first ones of each chunk.",
        ),
    )


def _rank(strategy: StrategyRecord, layout: StageLayout, rank: int) -> tuple[str, str, str, str]:
    full = layout.full_layers[rank]
    return (
        " ".join(map(str, layout.layers[rank :: strategy.pp])),
        strategy.spell_recompute(layout.recompute[rank].text),
        str(full) if full else "-",
        "act" if layout.activation_offload[rank] else "none",
    )


def ranks_text(first: int, last: int) -> str:
    """
    Write a range of ranks.

    >>> ranks_text(2, 2), ranks_text(2, 5)
    ('2', '2-5')
    """
    return str(first) if first == last else f"{first}-{last}"
