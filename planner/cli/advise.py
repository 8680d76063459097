"""``planner advise``: which devices, how many, until when and for how much."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from costmodel.errors import SpecError
from planner.advice.render import FORMATS
from planner.cli.arguments import (
    add_job,
    add_output,
    all_overrides,
    count,
    describe,
    read_asked,
    read_job,
)
from planner.cli.output import check_output, note, progress, screen_of, write

if TYPE_CHECKING:
    from planner.advice.advise import Advice, ClusterChoices
    from planner.advice.wish import Wish
    from planner.batch.job_result import JobResult
    from planner.batch.jobs import BatchJob
    from planner.batch.results import ResultsFile
    from planner.jobs.problem import Problem

EXIT_CODES = """exit codes:
  0  answered, and proven
  1  nothing meets the wish; the nearest are named
  2  wrong input
  3  the time limit of a job came before its proof
"""


def add_advise_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    description = (
        "Compares devices and their number: the Pareto front of time, money and energy, and its best point for a wish. "
        "Each point is a proven plan; devices and numbers that lower bounds exclude are not searched. Framework, spare "
        "nodes and sites of the job's cluster hold for every device, its other entries for its own device only. Its "
        "number of devices is not used."
    )
    describe(parser, description, EXIT_CODES)
    add_job(parser)
    wish = parser.add_argument_group("the wish")
    wish.add_argument("--by", metavar="DATE", help="the training is over on this day, such as 2027-01-31")
    wish.add_argument("--start", metavar="DATE", help="the day on which it starts (default: today)")
    wish.add_argument("--days", metavar="N", help="most days of the training, instead of a date")
    wish.add_argument("--budget", metavar="N", help="most money, in the currency of the prices, such as 20M")
    wish.add_argument("--power", metavar="W", help="most power of the site while the job steps, such as 5MW")
    wish.add_argument(
        "--aim",
        metavar="AIM",
        action="append",
        default=[],
        help="fastest, cheapest, least-energy or fewest-devices (default: cheapest with prices, else fewest-devices "
        "for a date, else fastest)",
    )
    choices = parser.add_argument_group("the choices")
    choices.add_argument(
        "--devices",
        metavar="NAME,NAME",
        help="names of the catalog, and device files (default: those with a price in --prices, else the catalog)",
    )
    choices.add_argument("--sizes", metavar="N,N..N", help="numbers of devices (default: 64..8192)")
    choices.add_argument(
        "--batches",
        metavar="N,N:X",
        help="global batch sizes; 2048:1.03 takes 1.03 times the tokens for the same quality (default: the job's)",
    )
    choices.add_argument("--prices", metavar="FILE", type=Path, help="prices of devices (CSV): docs/guides/advise.md")
    _add_batch(parser)
    add_output(parser, FORMATS)


def _add_batch(parser: argparse.ArgumentParser) -> None:
    """Add the options of the batch that plans the cells."""
    group = parser.add_argument_group("the batch that plans")
    group.add_argument(
        "--results", metavar="FILE", type=Path, help="results file (JSON lines): the same command goes on from there"
    )
    group.add_argument(
        "--processes", metavar="N", type=count("--processes"), help="jobs at once (default: cores); 1: in this process"
    )


def run_advise(arguments: argparse.Namespace) -> int:
    """Advise and print."""
    with progress(f"advising on {arguments.job}"):
        from planner.advice.render import render_advice
        from planner.batch.results import ResultsFile
        from planner.jobs.problem import load, split_overrides

        document, assignments = read_job(arguments, arguments.assignments)
        overrides, words = split_overrides(assignments)
        if words:
            hint = "Pin one for every cluster with search.pin."
            raise SpecError(" ".join(words), "is a strategy, and advise plans each cluster.", hint)
        problem = load(document, all_overrides(overrides, arguments))
        sources = [*problem.sources, *filter(None, (arguments.prices, arguments.results))]
        check_output(arguments.output, sources)
        check_output(arguments.results, [*problem.sources, *filter(None, (arguments.prices,))])
        kept = ResultsFile(arguments.results, retry_lost=True, notify=note) if arguments.results else nullcontext()
        with kept as results:
            advice = _advise(problem, read_choices(arguments), read_wish(arguments), arguments, results)
        text = render_advice(
            advice, arguments.format, screen=screen_of(arguments.output), job=read_asked(arguments).job
        )
    write(text, arguments.output)
    return advice.exit_code


def read_choices(arguments: argparse.Namespace) -> ClusterChoices:
    """Read devices, sizes, batches and prices."""
    from planner.advice.advise import SIZES, ClusterChoices
    from planner.advice.prices import PriceList, read_prices
    from planner.batch.jobs import read_axis

    def numbers(option: str, text: str) -> tuple[Any, ...]:
        try:
            return read_axis(f"{option}={text}")[1]
        except SpecError as error:
            raise SpecError(f"--{option}", error.problem, "Write 512,1024 or 64..8192.") from None

    devices = tuple(filter(None, map(str.strip, (arguments.devices or "").split(","))))
    if arguments.devices is not None and not devices:
        raise SpecError("--devices", "names none.", "Write names of 'planner catalog devices', such as h100,b200.")
    sizes = SIZES if arguments.sizes is None else numbers("sizes", arguments.sizes)
    batches = [_batch(text) for text in (arguments.batches.split(",") if arguments.batches is not None else ())]
    prices = PriceList() if arguments.prices is None else read_prices(arguments.prices)
    return ClusterChoices(devices=devices, sizes=sizes, batches=tuple(batches), prices=prices)


def _batch(text: str) -> tuple[int, float]:
    """Read a batch, and the factor on its tokens."""
    from costmodel.quantities import COUNT, finite, whole

    batch, colon, factor = text.partition(":")
    return whole(batch, COUNT, "--batches"), finite(factor, COUNT, "--batches") if colon else 1.0


def read_wish(arguments: argparse.Namespace) -> Wish:
    """Read the aim and the limits."""
    from costmodel.quantities import COUNT, WATTS, finite
    from planner.advice.wish import Wish, read_date

    if len(set(arguments.aim)) > 1:
        raise SpecError("--aim", f"{' and '.join(arguments.aim)} contradict each other.", "Give one aim.")

    def number(name: str, kind: Any) -> float | None:
        text = getattr(arguments, name)
        return None if text is None else finite(text, kind, f"--{name}")

    return Wish(
        aim=arguments.aim[0] if arguments.aim else "",
        days=number("days", COUNT),
        by=None if arguments.by is None else read_date(arguments.by, "--by"),
        start=None if arguments.start is None else read_date(arguments.start, "--start"),
        budget=number("budget", COUNT),
        power_watts=number("power", WATTS),
    )


def _advise(
    problem: Problem, choices: ClusterChoices, wish: Wish, arguments: argparse.Namespace, results: ResultsFile | None
) -> Advice:
    """Advise with the workers of a batch, and append their results to a file."""
    from planner.advice.advise import advise, plan_here
    from planner.batch.results import read_results
    from planner.batch.run import plan_many

    run = plan_here if arguments.processes == 1 else partial(plan_many, processes=arguments.processes)
    if results is None:
        return advise(problem, choices, wish, run=run)
    known = {line["key"]: line for line in read_results(results.path)}

    def keep(jobs: Iterable[BatchJob]) -> Iterator[JobResult]:
        for result in run(jobs):
            results.add(result)
            yield result

    return advise(problem, choices, wish, run=keep, known=known)
