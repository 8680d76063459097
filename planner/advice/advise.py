"""
The verb ``advise``: a cluster for a training, with proof.

Cells of devices, sizes and batches are planned one by one, promising ones first. A cell is cut where a planned point
is nowhere more than the cell's lower bounds, and somewhere less. Then no plan of the cell is on the front. Cells that
are left are planned as jobs of a batch, so that every point is a proven plan.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from costmodel import catalog
from costmodel.errors import SpecError, mistakes_of, together
from costmodel.events import log_progress
from costmodel.record import record
from costmodel.validation import require_type, shown
from planner.advice.points import (
    DAYS,
    DEVICES,
    ENERGY,
    FRONT,
    MEGAWATTS,
    MONEY,
    UPTIMES,
    ClusterCell,
    ClusterPoint,
    Metrics,
    assignments,
    bound,
    dominates,
    find_front,
    lower_uptime,
    make_point,
    missing_entries,
)
from planner.advice.prices import Offer, PriceList
from planner.advice.wish import AIMS, Wish
from planner.batch.job_result import JobResult, JobStatus, result_of
from planner.batch.jobs import BatchJob
from planner.batch.work import plan_job
from planner.jobs.cluster import device_of, device_path
from planner.jobs.document import read_mapping
from planner.jobs.problem import Problem, load
from planner.report.results import sites_text
from planner.report.section import share
from planner.results import Displayed

SIZES = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
"""Numbers of devices that are compared by default."""

NUM_NEAREST = 3
"""Points that are named where none meets the wish."""

MAX_CELLS = 100_000

WORDS = {DAYS: "days", MONEY: "money", ENERGY: "energy", DEVICES: "devices"}
"""Quantities in words."""

KEPT_OF_CLUSTER = ("framework", "spare_nodes", "sites")
"""Entries of a job's cluster that hold for other devices, too."""

Runner: TypeAlias = Callable[[Iterable[BatchJob]], Iterable[JobResult]]

Line: TypeAlias = Mapping[str, Any]


@record(frozen=True, kw_only=True, slots=True)
class ClusterChoices:
    """
    Devices, sizes and batches among which the answer is chosen.

    Parameters
    ----------
    devices
        Names of the catalog, or paths of device files. Default: those with a price, else every product of the catalog.
    sizes
        Numbers of devices.
    batches
        Global batch sizes, each with the factor on the tokens that a model of the same quality needs with it. Default:
        the job's batch. No effect on quality is assumed.
    prices
        Offers of devices.
    """

    devices: tuple[str, ...] = ()
    sizes: tuple[int, ...] = SIZES
    batches: tuple[tuple[int, float], ...] = ()
    prices: PriceList = PriceList()

    def __post_init__(self) -> None:
        """Refuse choices among nothing, and values of other types."""
        require_type(self.devices, (tuple, list), "devices", "a list of names")
        require_type(self.prices, PriceList, "prices", "prices, as read_prices(file) returns them")
        for name, each in (("sizes", self.sizes), ("batches", self.batches)):
            require_type(each, (tuple, list), name, "a list")
        for one in self.devices:
            require_type(one, str, "devices", "names of devices or files")
        for pair in self.batches:
            if not isinstance(pair, tuple | list) or len(pair) != 2 or not isinstance(pair[1], int | float):
                raise SpecError("batches", f"expected pairs of a batch and a factor, got {shown(pair)}.")
        for name, numbers in (("sizes", self.sizes), ("batches", [batch for batch, _ in self.batches])):
            for number in numbers:
                if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                    raise SpecError(name, f"expected whole numbers from 1, got {shown(number)}.")
        if not self.sizes:
            raise SpecError("sizes", "there are none.", "Give some, such as 64..8192.")
        for batch, factor in self.batches:
            if len({other for one, other in self.batches if one == batch}) > 1:
                raise SpecError("batches", f"{batch:,} is given twice, with other factors on tokens.", "Give one.")
            if not 0 < factor < math.inf:
                raise SpecError("batches", f"the factor on tokens of batch {batch:,} must be above 0, got {factor:g}.")


@record(frozen=True, kw_only=True, slots=True)
class CutCell:
    """
    A cell that needs no plan.

    Parameters
    ----------
    cell
        Device, size and batch.
    bounds
        Lower bounds of its quantities.
    by
        A point that is nowhere more than them and somewhere less.
    """

    cell: ClusterCell
    bounds: Metrics
    by: ClusterPoint


@record(frozen=True, kw_only=True, slots=True)
class FailedCell:
    """
    A cell without a plan.

    Parameters
    ----------
    cell
        Device, size and batch.
    status
        End of its job: ``infeasible`` is proven.
    message
        Reason.
    """

    cell: ClusterCell
    status: JobStatus
    message: str


@record(frozen=True, kw_only=True, slots=True)
class Advice(Displayed):
    """
    Answer to a wish, and the front that it is chosen from.

    Parameters
    ----------
    problem
        Job that was asked about.
    choices, wish
        Question.
    aim
        Aim that the answer is chosen by.
    points
        All planned cells, fastest first.
    pareto_front
        Points that no other one dominates in time, money and energy, among those within the wish's power.
    cut
        Cells that bounds exclude.
    failed
        Cells without a plan.
    answer
        Best point that meets the wish; None where none does.
    ties
        Points that meet the wish and cannot be told from the answer.
    fewest
        Fewest devices that meet the wish; None where none do.
    nearest
        Points nearest to the wish where none meets it, nearest first.
    """

    problem: Problem
    choices: ClusterChoices
    wish: Wish
    aim: str
    points: tuple[ClusterPoint, ...]
    pareto_front: tuple[ClusterPoint, ...]
    cut: tuple[CutCell, ...]
    failed: tuple[FailedCell, ...]
    answer: ClusterPoint | None
    ties: tuple[ClusterPoint, ...] = ()
    fewest: ClusterPoint | None = None
    nearest: tuple[ClusterPoint, ...] = ()

    @property
    def is_proven(self) -> bool:
        """True where every plan is proven, and every cell without one is proven to have none."""
        excluded = (JobStatus.INFEASIBLE, JobStatus.WRONG_INPUT)
        return all(point.is_proven for point in self.points) and all(one.status in excluded for one in self.failed)

    @property
    def rivals(self) -> tuple[ClusterPoint, ...]:
        """Points without measured runs that are predicted no worse than the answer and cannot be told from it."""
        quantity = AIMS[self.aim]
        if self.answer is None:
            return ()
        most = self.answer.metrics[quantity]
        return tuple(tie for tie in self.ties if tie.gap_sentence and tie.metrics[quantity] <= most)

    @property
    def table_points(self) -> tuple[ClusterPoint, ...]:
        """Points within the wish's limit of power; all where there is none or nothing meets it."""
        return self.wish.limit_power(self.points)

    @property
    def currency(self) -> str:
        """Currency of all money."""
        return self.choices.prices.currency or self.problem.costs.currency

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on prices, power, batches and measured runs that lack, and on cells without a plan."""
        return tuple(_notes(self))

    @property
    def num_cells(self) -> int:
        """Number of all cells."""
        return len(self.points) + len(self.cut) + len(self.failed)

    @property
    def exit_code(self) -> int:
        """0: answered with proof; 1: nothing meets the wish; 3: the time limit came before the proof."""
        if not self.is_proven:
            return 3
        return 0 if self.answer else 1


def _notes(advice: Advice) -> Iterator[str]:
    """Yield the notes of an advice."""
    planned = [(one.cell, one.metrics) for one in advice.points]
    every = [*planned, *((one.cell, one.bounds) for one in advice.cut)]
    unpriced = list(dict.fromkeys(cell.device for cell, _ in every if cell.offer is None))
    if unpriced and len(unpriced) == len({cell.device for cell, _ in every}):
        yield "No price is given: no device has costs, and the front is that of time and energy (--prices FILE)."
    elif unpriced:
        yield f"No price is given for {', '.join(unpriced)}: left out of money."
    dark = list(dict.fromkeys(cell.device for cell, metrics in every if metrics[ENERGY] == math.inf))
    if dark:
        yield f"No power is known of {', '.join(dark)}: left out of energy."
    if advice.choices.batches:
        factors = {batch: factor for batch, factor in advice.choices.batches if factor != 1}
        given = ", ".join(f"batch {batch:,} takes {factor:g} times the tokens" for batch, factor in factors.items())
        yield f"Quality by batch: {given or 'no effect is given'}; none is assumed."
    if advice.num_cells == 1:
        yield "One device and one size: nothing was chosen among."
    yield from _sites(advice)
    yield from _rental_notes(advice)
    if defaults := " ".join(assignments(advice.problem.document)):
        yield f"Assumed of the whole training: {defaults} (median start in MLPerf, default of Megatron-LM)."
    yield (
        f"Intervals of days end with the slowest of measured steps at an uptime of {lower_uptime():.0%}, the lower end "
        f"of {len(UPTIMES)} published trainings."
    )
    kept = {one.cell.device for one in advice.points}
    if gone := list(dict.fromkeys(one.cell.device for one in advice.cut if one.cell.device not in kept)):
        yield f"Cut in every size: {', '.join(gone)}."
    yield from _doubts(advice)
    yield from advice.choices.prices.notes
    reasons: dict[tuple[str, str], list[str]] = {}
    for one in advice.failed:
        reasons.setdefault((one.cell.device, one.message), []).append(f"{one.cell.num_devices:,}")
    for (device, reason), sizes in reasons.items():
        each = list(dict.fromkeys(sizes))
        yield f"Without a plan: {device} in {', '.join(each)} device{'' if each == ['1'] else 's'}. {reason}"


def _rental_notes(advice: Advice) -> Iterator[str]:
    """Yield the sizes in which nobody rents out a device, and those in which somebody does."""
    problem, choices = advice.problem, advice.choices
    offers = _offers(problem, choices)
    for device in _devices(problem, choices, offers):
        of_device = [offer for offer in offers if offer.device == device]
        sizes = [size for size in sorted(set(choices.sizes)) if not any(offer.holds(size) for offer in of_device)]
        if of_device and sizes:
            rented = "; ".join(f"{offer.provider or 'the price'} holds for {offer.sizes_text}" for offer in of_device)
            yield f"Nobody rents out {', '.join(f'{size:,}' for size in sizes)} x {device}: {rented}."


def _sites(advice: Advice) -> Iterator[str]:
    """Yield the sites of the job, the share of the answer's step that waits for their links, and the caveat."""
    sites, best = advice.problem.facts.cluster.sites, advice.answer
    if sites is None:
        return
    idle = ""
    if best is not None and (waiting := best.figures.get("site_links_seconds")):
        lost = share(waiting, best.figures["step_time_seconds"])
        idle = f"devices of the answer idle {lost} of the step for these links: "
    yield f"Every cluster has these sites: {idle}{sites_text(sites).rstrip('.')}."


def _doubts(advice: Advice) -> Iterator[str]:
    """Yield sentences on devices without measured runs among the answer and what cannot be told from it."""
    answer, quantity = advice.answer, AIMS[advice.aim]
    if answer is None:
        return
    if answer.gap_sentence:
        yield f"The answer has {answer.gap_sentence}. Its interval is that of all devices."
    for rival in advice.rivals:
        less = [name for name in (quantity, *FRONT) if rival.metrics[name] < answer.metrics[name]]
        better = f"to take less in {', '.join(dict.fromkeys(WORDS[name] for name in less))}" if less else "no worse"
        yield f"{rival.cell.name} is predicted {better}, but {rival.gap_sentence}: a measured device goes first."


def plan_here(jobs: Iterable[BatchJob]) -> Iterator[JobResult]:
    """Plan jobs one after the other in this process."""
    for index, job in enumerate(jobs):
        yield result_of(job, plan_job(job), index)


def advise(
    job: Problem | str | Mapping[str, Any],
    choices: ClusterChoices | None = None,
    wish: Wish | None = None,
    *,
    run: Runner = plan_here,
    known: Mapping[str, Line] | None = None,
    cuts: bool = True,
) -> Advice:
    """
    Choose devices and their number for a training.

    Parameters
    ----------
    job
        The job; its framework, spare nodes and sites hold for every device, other entries of its cluster and its price
        for its own device only. Its number of devices is not used.
    choices
        Devices, sizes, batches and prices.
    wish
        Aim and limits.
    run
        Function that makes results of jobs, such as :func:`planner.batch.run.plan_many`. Default: this process.
    known
        Lines of earlier results, by the keys of their jobs.
    cuts
        False to plan every cell, which finds the same front.

    Raises
    ------
    SpecError
        If the job, a device, a size or a price is wrong, or the wish needs prices and none is given.

    Examples
    --------
    >>> job = {
    ...     "model": "llama3-8b",
    ...     "cluster": {"device": "h100-80gb-sxm", "num_devices": 8},
    ...     "training": {"global_batch_size": 512, "sequence_length": 4096, "tokens": 1e11},
    ... }
    >>> choices = ClusterChoices(devices=("h100", "h200"), sizes=(8, 16))
    >>> found = advise(job, choices, Wish(days=20, aim="fewest-devices"))
    >>> found.answer.cell.num_devices
    8
    """
    problem = job if isinstance(job, Problem) else load(job)
    choices, wish = ClusterChoices() if choices is None else choices, Wish() if wish is None else wish
    require_type(choices, ClusterChoices, "choices", "ClusterChoices")
    require_type(wish, Wish, "wish", "a Wish")
    if problem.search.candidates:
        what = f"is {problem.search.candidates.source}, strategies of one cluster, but advise compares clusters."
        raise SpecError("search.candidates", what, "Take it out: search.candidates=null.")
    if (limit := problem.search.max_devices) is not None:
        what = f"is {limit}, a limit within one cluster, but advise compares sizes."
        raise SpecError("search.max_devices", what, f"Take it out (search.max_devices=null) and give --sizes {limit}.")
    offers = _offers(problem, choices)
    cells = list(_cells(problem, choices, offers))
    has_prices = any(cell.offer for cell in cells) or bool(offers and not cells)
    wish.require_prices(has_prices=has_prices)
    aim = wish.choose_aim(has_prices=has_prices)
    field = Field(cells, run, known or {})
    field.settle(field.promising(_quantities(wish, aim), cuts=cuts))
    meeting = [point for point in field.list_points() if wish.overrun_fraction(point.metrics) <= 0]
    if not meeting:
        field.settle(field.nearest(wish))
    return _answer(problem, choices, wish, aim, field)


def _answer(problem: Problem, choices: ClusterChoices, wish: Wish, aim: str, field: Field) -> Advice:
    """Choose among the points of a field."""
    points = sorted(field.list_points(), key=lambda point: point.metrics[DAYS])
    meeting = [point for point in points if wish.overrun_fraction(point.metrics) <= 0]
    overruns = [(wish.overrun_fraction(point.metrics), point) for point in points]
    near = [point for overrun, point in sorted(overruns, key=lambda pair: pair[0]) if overrun < math.inf]
    answer, ties = _best(meeting, AIMS[aim])
    return Advice(
        problem=problem,
        choices=choices,
        wish=wish,
        aim=aim,
        points=tuple(points),
        pareto_front=find_front(wish.limit_power(points)),
        cut=tuple(field.list_cuts()),
        failed=tuple(field.list_failures()),
        answer=answer,
        ties=ties,
        fewest=_best(meeting, DEVICES)[0],
        nearest=()
        if meeting
        else tuple(one for one in near if wish.overrun_fraction(one.metrics) < math.inf)[:NUM_NEAREST],
    )


def _best(points: Sequence[ClusterPoint], quantity: str) -> tuple[ClusterPoint | None, tuple[ClusterPoint, ...]]:
    """
    Return the point with the least of a quantity, and those that cannot be told from it.

    Among these a device with measured runs goes before one without any.
    """
    known = [point for point in points if point.metrics[quantity] < math.inf]
    if points and not known:
        problem = f"the {quantity.split('_')[0]} of no device that runs the job is known."
        raise SpecError("aim", problem, "Choose another aim.")

    def rank(point: ClusterPoint) -> tuple[float, ...]:
        return (point.metrics[quantity], *(point.metrics[name] for name in FRONT))

    first = min(known, key=rank, default=None)
    if first is None:
        return None, ()
    ties = sorted((point for point in known if point.ties_with(first, quantity)), key=rank)
    answer = next((point for point in ties if not point.gap_sentence), first)
    return answer, tuple(point for point in ties if point is not answer)


def _quantities(wish: Wish, aim: str) -> tuple[str, ...]:
    """Return the quantities of dominance: those of the front, the aim and the limits, so that the answer is kept."""
    fewest = (DEVICES,) if DAYS in wish.limits or aim == "fewest-devices" else ()
    return (*FRONT, *fewest, *((MEGAWATTS,) if MEGAWATTS in wish.limits else ()))


# --- cells -------------------------------------------------------------------------------------------------


def _offers(problem: Problem, choices: ClusterChoices) -> list[Offer]:
    """Return all offers: those of the prices, and the job's own price for its device."""
    offers, costs = list(choices.prices.offers), problem.costs
    own = problem.facts.cluster.device.name
    if costs.price_per_device_hour is not None and all(offer.device != own for offer in offers):
        price = costs.price_per_device_hour
        offers.append(Offer(device=own, low=price, high=price, currency=costs.currency))
    currencies = {offer.currency for offer in offers}
    if costs.electricity_price_per_kwh is not None or costs.price_per_device_hour is not None:
        currencies.add(costs.currency)
    if len(currencies) > 1:
        given = " and ".join(sorted(currencies))
        raise SpecError("costs.currency", f"prices are in {given}.", "Give all in one currency.")
    return offers


def _devices(problem: Problem, choices: ClusterChoices, offers: Sequence[Offer]) -> dict[str, Any]:
    """Return the entries of the devices by their names."""
    own = problem.facts.cluster.device.name
    names = choices.devices or tuple(dict.fromkeys(offer.device for offer in offers if choices.prices.offers))
    if not names:
        names = tuple(name for name in catalog.devices() if catalog.device(name).architecture is not None)
    entries: dict[str, Any] = {}
    for name in names:
        path = device_path(name, Path())
        if name == own:
            entries[own] = problem.document["cluster"]["device"]
        elif path is not None:
            entry = read_mapping(path)
            name = str(entry.get("name", path.stem))
            if entries.get(name, entry) != entry:
                raise SpecError(f"{path}, name", f"{shown(name)} is the name of another device.", "Rename one.")
            _require_device(entry, path)
            entries[name] = entry
        else:
            entries.setdefault(catalog.find_device(name, "devices").device, None)
    return {name: name if entry is None else entry for name, entry in entries.items()}


def _require_device(entry: Mapping[str, Any], path: Path) -> None:
    """Refuse a device file with mistakes, each with the file."""
    try:
        device_of(dict(entry))
    except SpecError as error:
        raise together([SpecError(one.where, one.problem, one.hint, str(path)) for one in mistakes_of(error)]) from None


def _cells(problem: Problem, choices: ClusterChoices, offers: Sequence[Offer]) -> Iterator[ClusterCell]:
    """Yield every device, size and batch, once for each interconnect that is offered."""
    workload = problem.facts.workload
    batches = dict(choices.batches) or {workload.global_batch_size: 1.0}
    devices, sizes = _devices(problem, choices, offers), sorted(set(choices.sizes))
    if len(devices) * len(sizes) * len(batches) > MAX_CELLS:
        raise SpecError("sizes", f"devices, sizes and batches make more than {MAX_CELLS:,} cells.", "Give fewer.")
    for device, entry in devices.items():
        of_device = [offer for offer in offers if offer.device == device]
        for size in sizes:
            cheapest: dict[float | None, Offer] = {}
            for one in (one for one in of_device if one.holds(size)):
                known = cheapest.setdefault(one.interconnect, one)
                cheapest[one.interconnect] = min(known, one, key=lambda offer: offer.price)
            if of_device and not cheapest:
                continue  # nobody rents out so many
            offered: Sequence[Offer | None] = [*cheapest.values()] or [None]
            for offer in offered:
                for batch, factor in batches.items():
                    document = _document(problem, entry, device, offer)
                    document["cluster"]["num_devices"] = size
                    document["training"] |= {"global_batch_size": batch, "tokens": workload.tokens * factor}
                    yield ClusterCell(
                        device=device,
                        num_devices=size,
                        global_batch_size=batch,
                        tokens_factor=factor,
                        offer=offer,
                        document=document,
                    )


def _document(problem: Problem, entry: Any, device: str, offer: Offer | None) -> dict[str, Any]:
    """Return the job on other devices: the fastest plan is wanted, and prices are added later."""
    job: dict[str, Any] = {**problem.document, "top": 1}
    is_own = device == problem.facts.cluster.device.name
    own = {name: value for name, value in job["cluster"].items() if is_own or name in KEPT_OF_CLUSTER}
    job["cluster"] = {**own, "device": entry}
    if offer is not None and offer.interconnect is not None:
        job["cluster"]["internode_bandwidth"] = offer.interconnect
    for section, entries in missing_entries(job).items():
        job[section] = {**(job.get(section) or {}), **entries}
    job["search"] = {**(job.get("search") or {}), "fastest": True}
    job["costs"] = {name: value for name, value in (job.get("costs") or {}).items() if name != "price_per_device_hour"}
    return job


class Field:
    """
    Cells, and the points that were found so far.

    Parameters
    ----------
    cells
        All cells; those whose job is wrong fail at once.
    run
        Function that makes results of jobs.
    known
        Lines of earlier results, by key.
    """

    def __init__(self, cells: Sequence[ClusterCell], run: Runner, known: Mapping[str, Line]) -> None:
        self.cells, self.run, self.known = cells, run, known
        self.points: dict[int, ClusterPoint] = {}
        self.failures: dict[int, FailedCell] = {}
        self.cut_by: dict[int, ClusterPoint] = {}
        self.bounds: dict[int, Metrics] = {}
        self.asked: set[int] = set()
        for number, cell in enumerate(cells):
            try:
                self.bounds[number] = bound(cell, load(cell.document))
            except SpecError as error:
                self.failures[number] = FailedCell(cell=cell, status=JobStatus.WRONG_INPUT, message=str(error))

    def list_points(self) -> list[ClusterPoint]:
        """Points in the order of their cells."""
        return [point for _, point in sorted(self.points.items())]

    def list_failures(self) -> list[FailedCell]:
        """Cells without a plan, in their order."""
        return [one for _, one in sorted(self.failures.items())]

    def list_cuts(self) -> list[CutCell]:
        """Cells that were cut and never planned, in their order."""
        return [
            CutCell(cell=self.cells[number], bounds=self.bounds[number], by=by)
            for number, by in sorted(self.cut_by.items())
            if number not in self.asked
        ]

    def promising(self, quantities: Sequence[str], *, cuts: bool = True) -> Iterator[int]:
        """Yield cells that may be on the front, those first whose bounds few others are below; cut the others."""
        numbers = list(self.bounds)
        values = np.array([[self.bounds[number][name] for name in quantities] for number in numbers])
        behind = [int((values <= row).all(axis=1).sum()) for row in values]
        for place in sorted(range(len(numbers)), key=lambda place: (behind[place], values[place].tolist())):
            number = numbers[place]
            bounds = self.bounds[number]
            by = next((one for one in self.points.values() if dominates(one.metrics, bounds, quantities)), None)
            if by is None or not cuts:
                yield number
            else:
                self.cut_by[number] = by

    def nearest(self, wish: Wish) -> Iterator[int]:
        """Yield cells that may be nearer to a wish than the nearest points known so far."""
        overruns = {number: wish.overrun_fraction(bounds) for number, bounds in self.bounds.items()}
        for number in sorted(overruns, key=overruns.__getitem__):
            known = sorted(wish.overrun_fraction(point.metrics) for point in self.points.values())
            if overruns[number] >= (known[NUM_NEAREST - 1] if len(known) >= NUM_NEAREST else math.inf):
                return
            if number not in self.asked:
                yield number

    def settle(self, numbers: Iterable[int]) -> None:
        """Plan cells, and keep their points or the reasons for which they have none."""
        order: list[int] = []

        def jobs() -> Iterator[BatchJob]:
            for number in numbers:
                self.asked.add(number)
                cell = self.cells[number]
                job = BatchJob(name=cell.name, source="advise", document=cell.document)
                line = self.known.get(job.key)
                if line is not None:
                    self._keep(number, line["status"], line["plans"], line["message"])
                    continue
                order.append(number)
                yield job

        for result in self.run(jobs()):
            self._keep(order[result.index], result.status, result.plans, result.message)
            log_progress(__name__, "cells are planned", len(self.points) + len(self.failures), len(self.cells))

    def _keep(self, number: int, status: str, plans: Sequence[Line], message: str | None) -> None:
        cell, status = self.cells[number], JobStatus(status)
        if plans:
            self.points[number] = make_point(cell, plans[0], is_proven=status is JobStatus.OPTIMAL)
        else:
            self.failures[number] = FailedCell(cell=cell, status=status, message=message or "")
