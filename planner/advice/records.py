"""Records of an advice: the entries of its JSON, and the rows of its CSV and of data frames."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from planner.advice.points import DAYS, ENERGY, MEGAWATTS, MONEY, assignments
from planner.report.records import Figure, Plain, Record, csv_table, finite, read_from
from planner.verbs.plan import FORMAT_VERSION

if TYPE_CHECKING:
    from planner.advice.advise import Advice
    from planner.advice.points import ClusterCell, ClusterPoint, Metrics


class CellRecord(Record):
    """
    A device, a size and a batch.

    Parameters
    ----------
    device
        Name of the device.
    num_devices
        Devices of the cluster.
    global_batch_size
        Sequences of an optimizer step.
    tokens_factor
        Tokens of the training over those of the job, as the batch was said to need.
    provider
        Provider of the cheapest offer; null: the price names none, or there is no price.
    price_per_device_hour
        Mean price of one device for an hour; null: no price is known.
    """

    _inside = ("cell",)

    device: str
    num_devices: int
    global_batch_size: int
    tokens_factor: Figure
    provider: str | None = read_from(lambda one: getattr(one.cell.offer, "provider", None) or None)
    price_per_device_hour: Figure | None = read_from(lambda one: getattr(one.cell.offer, "price", None))


class PointRecord(CellRecord):
    """
    A cell with its plan.

    Parameters
    ----------
    number
        Place among the points, from 1, the fastest.
    is_on_front
        True if no other cell is nowhere more and somewhere less in days, money and energy.
    meets_wish
        True if it is within all limits.
    is_proven
        True if the plan is proven to be the fastest of its cell.
    num_idle_devices
        Devices that the plan leaves idle, as that is faster; they are paid.
    days
        Days of the whole training.
    days_interval
        Days at both ends of the interval of measured steps, the high end with the lower end of published uptimes.
    money
        Costs of devices and electricity; null: no price is known.
    money_interval
        Costs at both ends of the interval of days and of the price; null without a price.
    energy_mwh
        Megawatt-hours of the data centre with its PUE, else of the devices; null: no power is known.
    energy_interval_mwh
        Megawatt-hours at both ends of the interval of days; null: no power is known.
    power_megawatts
        Power of the site while the job steps; null: no power is known.
    step_time_seconds
        One optimizer step.
    step_time_interval_seconds
        Bounds between which a measured step lies.
    mfu
        Model FLOPs over the peak.
    unmeasured
        Sentence that no measured run is of the device; empty where some are.
    line
        Strategy of the plan in one line.
    command
        Entries that make the job of the cell, as ``planner plan`` takes them after the job.
    """

    number: int
    is_on_front: bool
    meets_wish: bool
    is_proven: bool
    num_idle_devices: int
    days: Figure = read_from(lambda point: point.metrics[DAYS])
    days_interval: list[Figure] = read_from(lambda point: point.intervals[DAYS])
    money: Figure | None = read_from(lambda point: point.metrics[MONEY])
    money_interval: list[Figure] | None = read_from(lambda point: point.intervals.get(MONEY))
    energy_mwh: Figure | None = read_from(lambda point: point.metrics[ENERGY])
    energy_interval_mwh: list[Figure] | None = read_from(lambda point: point.intervals.get(ENERGY))
    power_megawatts: Figure | None = read_from(lambda point: point.metrics[MEGAWATTS])
    step_time_seconds: Figure
    step_time_interval_seconds: list[Figure]
    mfu: Figure
    unmeasured: str = read_from("gap_sentence")
    line: str
    command: str

    @classmethod
    def build(cls, point: ClusterPoint, number: int, advice: Advice) -> PointRecord:
        """Build the record of a point of an advice."""
        return cls.read(
            point,
            number=number,
            is_on_front=point in advice.pareto_front,
            meets_wish=advice.wish.overrun_fraction(point.metrics) <= 0,
            command=command_of(point.cell, advice),
            **{name: point.figures[name] for name in OF_FIGURES},
        )


OF_FIGURES = ("line", "step_time_seconds", "step_time_interval_seconds", "mfu")


class NearestRecord(Record):
    """
    A point near a wish that nothing meets.

    Parameters
    ----------
    number
        Number of the point.
    overrun_fraction
        Excess over each limit that it misses, as a fraction of the limit, by quantity.
    """

    number: int
    overrun_fraction: dict[str, Figure]


class CutRecord(CellRecord):
    """
    A cell that lower bounds exclude from the front.

    Parameters
    ----------
    least_days, least_money, least_energy_mwh
        Lower bounds over all of its strategies; null where the quantity is not known.
    dominated_by
        Number of a point that is nowhere more than these bounds and somewhere less.
    """

    least_days: Figure = read_from(lambda cut: cut.bounds[DAYS])
    least_money: Figure | None = read_from(lambda cut: cut.bounds[MONEY])
    least_energy_mwh: Figure | None = read_from(lambda cut: cut.bounds[ENERGY])
    dominated_by: int


class FailedRecord(CellRecord):
    """
    A cell without a plan.

    Parameters
    ----------
    status
        End of its job; ``infeasible`` and ``wrong_input`` are proven.
    message
        Reason.
    """

    status: str = read_from(lambda one: str(one.status))
    message: str


class WishRecord(Record):
    """
    The wish.

    Parameters
    ----------
    aim
        Aim that the answer is chosen by: fastest, cheapest, least-energy or fewest-devices.
    start, by
        First day, and the day to be done by; null: no date was given.
    most_days, most_money, most_power_megawatts
        Limits; null: none was given.
    """

    aim: str
    start: str | None
    by: str | None
    most_days: Figure | None
    most_money: Figure | None
    most_power_megawatts: Figure | None


class AdviceRecord(Record):
    """
    The answer of planner advise.

    Parameters
    ----------
    kind
        Kind of the report.
    format_version
        Grows when an entry changes its name, unit or meaning; new entries do not count.
    job
        Name of the job.
    model
        Name of the model.
    tokens
        Tokens of the training.
    currency
        Currency of all money.
    wish
        The wish.
    is_proven
        True if every plan is proven, and every cell without one is proven to have none.
    answer
        Number of the best point that meets the wish; null where none does.
    ties
        Numbers of points that meet the wish and cannot be told from the answer.
    fewest
        Number of the point with the fewest devices that meets the wish; null where none does.
    nearest
        Points nearest to the wish where none meets it.
    points
        Planned cells, fastest first.
    cut
        Cells that lower bounds exclude from the front.
    failed
        Cells without a plan.
    notes
        Sentences on prices, energy, batches and measured runs.
    """

    kind: Literal["advice"]
    format_version: int
    job: str
    model: str
    tokens: Figure
    currency: str
    wish: WishRecord
    is_proven: bool
    answer: int | None
    ties: list[int]
    fewest: int | None
    nearest: list[NearestRecord]
    points: list[PointRecord]
    cut: list[CutRecord]
    failed: list[FailedRecord]
    notes: list[str]

    @classmethod
    def build(cls, advice: Advice) -> AdviceRecord:
        """Build the record of an advice."""
        numbers = {id(point): number for number, point in enumerate(advice.points, start=1)}
        wish, limits, facts = advice.wish, advice.wish.limits, advice.problem.facts
        return cls(
            kind="advice",
            format_version=FORMAT_VERSION,
            job=advice.problem.name,
            model=facts.model.name,
            tokens=facts.workload.tokens,
            currency=advice.currency,
            wish=WishRecord(
                aim=advice.aim,
                start=str(wish.first_day) if wish.by else None,
                by=str(wish.by) if wish.by else None,
                most_days=limits.get(DAYS),
                most_money=limits.get(MONEY),
                most_power_megawatts=limits.get(MEGAWATTS),
            ),
            is_proven=advice.is_proven,
            answer=numbers[id(advice.answer)] if advice.answer else None,
            ties=[numbers[id(point)] for point in advice.ties],
            fewest=numbers[id(advice.fewest)] if advice.fewest else None,
            nearest=[
                NearestRecord(number=numbers[id(point)], overrun_fraction=list_overruns(point.metrics, limits))
                for point in advice.nearest
            ],
            points=[PointRecord.build(point, numbers[id(point)], advice) for point in advice.points],
            cut=[CutRecord.read(one, dominated_by=numbers[id(one.by)]) for one in advice.cut],
            failed=[FailedRecord.read(one) for one in advice.failed],
            notes=list(advice.notes),
        )


def advice_rows(advice: Advice) -> list[Plain]:
    """
    Return the planned cells as flat rows, fastest first, such as ``pandas.DataFrame`` takes them.

    An interval is two entries, ``days_low`` and ``days_high``.
    """
    whole, rows = AdviceRecord.build(advice), list[Plain]()
    for point in whole.points:
        row: Plain = {}
        for name, value in point:
            if ends := ends_of(name):
                row |= dict(zip(ends, value or (None, None), strict=True))
            else:
                row[name] = value
        rows.append({"job": whole.job, "model": whole.model, **finite(row), "currency": whole.currency})
    return rows


def ends_of(name: str) -> tuple[str, str] | None:
    """
    Return the columns of the ends of an interval; None for other entries.

    >>> ends_of("days_interval"), ends_of("days")
    (('days_low', 'days_high'), None)
    """
    is_interval = name.endswith("_interval") or "_interval_" in name
    return (name.replace("interval", "low"), name.replace("interval", "high")) if is_interval else None


def list_overruns(metrics: Metrics, limits: Metrics) -> dict[str, float]:
    """Return the excess over each limit that is missed, as a fraction of it."""
    return {name: metrics[name] / most - 1 for name, most in limits.items() if metrics[name] > most}


def command_of(cell: ClusterCell, advice: Advice) -> str:
    """Return the entries that make a cell's job from the job."""
    workload, given = advice.problem.facts.workload, cell.document["cluster"]
    entries: dict[str, Any] = {"cluster.device": cell.device, "cluster.num_devices": cell.num_devices}
    if cell.global_batch_size != workload.global_batch_size:
        entries["training.global_batch_size"] = cell.global_batch_size
    if cell.tokens_factor != 1:
        entries["training.tokens"] = f"{workload.tokens * cell.tokens_factor:g}"
    if cell.offer and cell.offer.interconnect is not None:
        entries["cluster.internode_bandwidth"] = f"{given['internode_bandwidth']:g}"
    if cell.offer:
        entries["costs.price_per_device_hour"] = f"{cell.offer.price:g}"
    words = [*(f"{name}={value}" for name, value in entries.items()), *assignments(advice.problem.document)]
    return f"{' '.join(words)} search.fastest=true"


def csv_text(advice: Advice) -> str:
    """Format the points of an advice as CSV, one row each."""
    rows = advice_rows(advice)
    return csv_table(list(rows[0]) if rows else ["job"], rows)
