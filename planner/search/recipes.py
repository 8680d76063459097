"""Fit a published recipe to a job: the whole strategy, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf, log2
from typing import TYPE_CHECKING, Any

from constraints import find_violations, violated_by_ranks
from constraints.rule import Rule
from constraints.rules.physics import virtual_stages_hold_equally_much
from costmodel.catalog.releases import release_of
from costmodel.errors import PlanningError, SpecError
from costmodel.models.patterns import shape_of
from costmodel.record import record
from costmodel.step.estimate import estimate
from costmodel.strategy import Strategy
from costmodel.tables import Facts
from planner.jobs.problem import Problem, load
from planner.jobs.run_jobs import PUBLISHER, Recipe, References, Run, problem_of, read_run, recipes, strategy_of
from planner.jobs.strategy_file import require_cost
from planner.search.domains import problem_rules, resources_of
from planner.uncertainty.intervals import release_name
from planner.uncertainty.peaks import usual_headroom_bytes

if TYPE_CHECKING:
    from planner.search.alternatives import JointOutcome

FURTHEST_LAYOUT = 2.0

"""Largest ratio of two sequence lengths at which a layout for one is tried for the other."""

MEGATRON = ("megatron-bridge", "nemo", "megatron-lm", "megatron-core")

"""Stacks on Megatron Core; they can run each other's layouts."""

WHILE_ALONE = ("sharding", "dp_overlap")

"""Decisions without effect in a recipe with one data-parallel rank; a table writes them as off."""

OF_OFFLOAD = "offloaded_layers"

"""Setting that belongs to activation offload; without it the layout differs."""


@record(frozen=True, kw_only=True, slots=True)
class PublishedLayout:
    """
    A published recipe for a job.

    Parameters
    ----------
    recipe
        The recipe.
    release
        Release of the recipe that is nearest to the job's.
    problem
        The job; it gets the recipe's number of offloaded layers if it gives none and the recipe offloads.
    strategy
        Strategy with every decision and the stages.
    notes
        Changes of the recipe for the job, as sentences without a full stop.
    """

    recipe: Recipe
    release: str
    problem: Problem
    strategy: Strategy
    notes: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """Name in reports."""
        software = "" if self.recipe.stack == "megatron-bridge" else f"{SOFTWARE.get(self.recipe.stack, '')} "
        return f"{PUBLISHER}'s {software}{self.release} layout"


SOFTWARE = {"nemo": "NeMo"}

"""Names of stacks in reports."""


def recipes_for(problem: Problem) -> tuple[PublishedLayout, ...]:
    """
    Return the published layouts of a job's model, device and precision, the nearest first.

    Nearest is the job's own release, then the newest older one, then the oldest newer one; among these the nearest
    number of devices, sequence length and batch per device. A layout for another number of devices has another dp.

    >>> job = {"model": "llama3-70b", "cluster": {"device": "h100", "num_devices": 128}}
    >>> work = {"global_batch_size": 256, "sequence_length": 8192, "tokens": 1e12, "precision": "bf16"}
    >>> found = recipes_for(load({**job, "training": work}))[0]
    >>> found.strategy.num_devices, found.notes
    (128, ('published for 64 GPUs, scaled by dp to 128',))

    Parameters
    ----------
    problem
        Job with one value of each setting.
    """
    chosen = sort_recipes(problem)
    known = _references(problem, chosen)
    return tuple(found for one in chosen for found in _layouts(one, problem, known))


def nearest_layouts(problem: Problem) -> tuple[PublishedLayout, ...]:
    """Return the layouts of the release and number of devices nearest to a job; empty where none is for it."""
    chosen, nearest = sort_recipes(problem), list[PublishedLayout]()
    known, first = _references(problem, chosen), tuple[float, ...]()
    for one in chosen:
        if nearest and _distance(one, problem)[:4] != first:
            break
        nearest += _layouts(one, problem, known)
        first = _distance(one, problem)[:4]
    return tuple(nearest)


def recipe_candidates(problem: Problem) -> list[Strategy]:
    """Return the distinct strategies of published layouts for an unchanged job; rules and memory may forbid some."""
    found = (one.strategy for one in recipes_for(problem) if one.problem is problem)
    return list(dict.fromkeys(found))


def list_refused_recipes(problem: Problem) -> Iterator[tuple[Recipe, str]]:
    """Yield each recipe of a job's model, device and precision that does not fit it, with the reason."""
    chosen = sort_recipes(problem)
    known = _references(problem, chosen)
    for one in chosen:
        try:
            fit_recipe(one, problem, known)
        except PlanningError as error:
            yield one, str(error)


def sort_recipes(problem: Problem) -> list[Recipe]:
    """Return the recipes of a job's model, device and precision, nearest first; none unless it runs Megatron Core."""
    facts = problem.facts
    line = release_of(release_name(facts.cluster))
    if not problem.document or (line is not None and line.stack not in MEGATRON):
        return []
    named = (facts.cluster.device.name, facts.workload.precision.name)
    alike = [one for one in recipes() if (one.device, one.precision) == named and _is_of_model(one, facts)]
    return sorted(alike, key=lambda one: (*_distance(one, problem), one.id))


def _is_of_model(one: Recipe, facts: Facts) -> bool:
    shape = one.shape
    return shape is not None and shape.is_like(shape_of(facts.model))


def _layouts(one: Recipe, problem: Problem, known: References) -> Iterator[PublishedLayout]:
    try:
        yield fit_recipe(one, problem, known)
    except PlanningError:
        return


# --- nearness ----------------------------------------------------------------------------------------------
def _distance(one: Recipe, problem: Problem) -> tuple[float, ...]:
    """Return distances by weight: release (kind, months), devices, sequence, batch."""
    workload, devices = problem.facts.workload, problem.facts.cluster.num_devices
    sequence = one.sequence_length or workload.sequence_length
    return (
        *_release_distance(one, _nearest_release(one, problem), problem),
        min(abs(log2(devices / scale)) for scale in one.scales),
        abs(log2(workload.sequence_length / sequence)),
        abs(log2(workload.global_batch_size / devices / one.batch_per_device)),
    )


def _nearest_release(one: Recipe, problem: Problem) -> str:
    return min(one.releases, key=lambda release: _release_distance(one, release, problem))


def _release_distance(one: Recipe, release: str, problem: Problem) -> tuple[float, float]:
    """Return 0 for the job's own release, 1 for an older, 2 for a newer one; and the months between."""
    asked, own = release_of(release_name(problem.facts.cluster)), one.framework(release)
    if asked == own:
        return 0, 0.0
    framework = problem.facts.cluster.framework
    costed = inf if asked is None else asked.month(framework.since if framework else "")
    months = 0.0 if costed == own.month() else costed - own.month()
    return (1, months) if months >= 0 else (2, -months)


# --- one recipe --------------------------------------------------------------------------------------------
def fit_recipe(one: Recipe, problem: Problem, known: References | None = None) -> PublishedLayout:
    """
    Fit a recipe to a job.

    Parameters
    ----------
    one, problem
        The recipe, and the job with one value of each setting.
    known
        Jobs of other recipes that were already read.

    Raises
    ------
    SpecError
        If it is for another model, device or precision, if its degrees do not divide the devices, or if it cannot run.
    """
    facts = problem.facts
    _require_of_the_job(one, facts)
    release = _nearest_release(one, problem)
    run = _run_for(one, release, facts)
    own = problem_of(run, known or _references(problem, [one]))
    strategy, _ = strategy_of(run, own)
    require_cost(facts, strategy)
    job, others = _add_settings(problem, run, strategy)
    notes = (*_changes(one, facts), *others)
    return PublishedLayout(recipe=one, release=release, problem=job, strategy=strategy, notes=notes)


def _require_of_the_job(one: Recipe, facts: Facts) -> None:
    where = f"recipe {one.id}"
    if one.refused:
        raise SpecError(where, one.refused)
    given = {"device": facts.cluster.device.name, "precision": facts.workload.precision.name}
    if not _is_of_model(one, facts):
        raise SpecError(where, f"is for {one.model}, the job trains {facts.model.name}.")
    for what, name in given.items():
        if getattr(one, what) != name:
            raise SpecError(where, f"is for {what} {getattr(one, what)}, the job has {name}.")
    degrees = {name: int(one.cells.get(f"strategy.{name}") or 1) for name in ("tp", "cp", "pp")}
    replica = degrees["tp"] * degrees["cp"] * degrees["pp"]
    devices, sequence = facts.cluster.num_devices, facts.workload.sequence_length
    if devices % replica:
        problem = f"tp x cp x pp = {replica} does not divide {devices:,} GPUs, so that no dp scales it to them."
        raise SpecError(where, problem)
    if one.sequence_length and not 1 / FURTHEST_LAYOUT <= sequence / one.sequence_length <= FURTHEST_LAYOUT:
        raise SpecError(where, f"is for sequences of {one.sequence_length:,} tokens, the job has {sequence:,}.")


def _changes(one: Recipe, facts: Facts) -> Iterator[str]:
    """Yield differences between a recipe and a job, a sentence each."""
    devices, workload = facts.cluster.num_devices, facts.workload
    if devices not in one.scales:
        yield f"published for {_counts(one.scales)} GPUs, scaled by dp to {devices:,}"
    batch = round(one.batch_per_device * devices)
    if batch != workload.global_batch_size:
        yield f"published for a batch of {batch:,} on as many GPUs"
    if one.sequence_length is None:
        yield "its sequence length is not published"
    elif one.sequence_length != workload.sequence_length:
        yield f"published for sequences of {one.sequence_length:,} tokens"


def _counts(scales: Sequence[int]) -> str:
    return f"{scales[0]:,}" if len(scales) == 1 else f"{scales[0]:,} to {scales[-1]:,}"


def _run_for(one: Recipe, release: str, facts: Facts) -> Run:
    """Return the recipe as a run of the job's size."""
    workload, devices = facts.workload, facts.cluster.num_devices
    cells = {
        **one.cells,
        "cluster.num_devices": str(devices),
        "cluster.framework": f"{one.stack}-{release}",
        "training.global_batch_size": str(workload.global_batch_size),
        "training.sequence_length": str(workload.sequence_length),
    }
    degrees = [int(one.cells.get(f"strategy.{name}") or 1) for name in ("tp", "pp")]
    if degrees[0] * degrees[1] == int(one.cells["cluster.num_devices"]) != devices:
        cells |= {f"strategy.{name}": "" for name in WHILE_ALONE}
    return read_run(cells)


def _references(problem: Problem, chosen: Iterable[Recipe]) -> References:
    """Return the job's own model under the names of the models of recipes."""
    return References(models=dict.fromkeys((one.model for one in chosen), problem.document.get("model")))


def _add_settings(problem: Problem, run: Run, strategy: Strategy) -> tuple[Problem, Iterator[str]]:
    """Add the recipe's number of offloaded layers to a job that gives none; also note other differing settings."""
    given = problem.document.get("settings") or {}
    theirs: Mapping[str, Any] = run.entries.get("settings", {})
    wanted = theirs.get(OF_OFFLOAD)
    if strategy.activation_offload and wanted is not None and OF_OFFLOAD not in given:
        document = {**problem.document, "settings": {**given, OF_OFFLOAD: wanted}}
        job = load(document, name=problem.name)
        return replace(job, top=problem.top), iter((f"{OF_OFFLOAD}={wanted} is the recipe's",))
    unlike = [f"{name}={value}" for name, value in theirs.items() if name in given and given[name] != value]
    return problem, iter((f"the recipe sets {', '.join(unlike)}",) if unlike else ())


def published_headroom_bytes(problem: Problem) -> float:
    """Return the device memory to leave free for a published layout: the job's own, else enough for both chances."""
    own = problem.search.memory_headroom_bytes
    return own if problem.search.asks_headroom else min(own, usual_headroom_bytes(problem.facts.cluster))


def add_published(
    published: Sequence[tuple[Problem, Strategy, float]], joint: JointOutcome
) -> list[tuple[Problem, Strategy, float]]:
    """Return the strategies of a search, after the fastest published layout if that is faster than all of them."""
    found = [(*one, seconds) for one, seconds in zip(joint.ranked, joint.outcome.step_seconds, strict=True)]
    fastest = min(published, key=lambda one: one[2], default=None)
    return found if fastest is None or fastest[2] >= found[0][2] else [fastest, *found]


def is_set_by_layout(strategy: Strategy, rule: Rule) -> bool:
    """Tell whether a rule is about even stages and the strategy's layout sets its stages: the rule is then skipped."""
    return rule is virtual_stages_hold_equally_much and strategy.layout is not None


def find_published(problem: Problem) -> Iterator[tuple[Problem, Strategy, float]]:
    """
    Yield the published layouts that are plans for a job: its settings, the strategy, and its step in seconds.

    Parameters
    ----------
    problem
        The job; the layout keeps its rules, limits and preferences. Uneven stages are allowed although the search does
        not try them, unless the job sets ``stages`` itself.
    """
    if problem.search.candidates is not None or problem.search.num_nodes is not None:
        return
    for job in problem.each:
        for layout in recipes_for(job):
            own, strategy = layout.problem, layout.strategy
            if own is not job:  # with a setting that is the recipe's, not the job's
                continue
            if strategy.layout is not None and job.search.stages == "even" and job.search.asks_stages:
                continue
            rules = problem_rules(own)
            needed = [one for one in (*rules.rows, *rules.mixed) if not is_set_by_layout(strategy, one)]
            if next(violated_by_ranks(own.facts, strategy, rules=needed), None):
                continue
            found = estimate(own.facts, strategy)
            resources = resources_of(found, published_headroom_bytes(job))
            if not find_violations(own.facts, strategy.decisions() | resources, rules=(*rules.memory, *rules.timed)):
                yield own, strategy, found.step_seconds
