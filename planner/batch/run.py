"""The verbs of a batch: plan many jobs, and yield the results or append them to a file."""

from __future__ import annotations

import os
import queue
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from itertools import count
from typing import Any

from costmodel.errors import SpecError, did_you_mean
from costmodel.validation import shown
from planner.batch.choices import BACKENDS, LOCAL
from planner.batch.executors.local import WorkerPool, Workers
from planner.batch.job_result import LOST, JobOutcome, JobResult, JobStatus, result_of
from planner.batch.jobs import BatchJob, make_job
from planner.batch.results import ResultsFile
from planner.batch.work import plan_job

MAX_TIMEOUT_SECONDS = 1_000_000

"""Largest time limit of a job, as for its own ``search.time_limit_seconds``."""


@dataclass(kw_only=True, slots=True)
class Tally:
    """
    The progress of a batch.

    Parameters
    ----------
    num_jobs
        Number of jobs.
    num_before
        Jobs that an earlier run has finished.
    num_now
        Jobs that this run has finished.
    num_without_plan
        Jobs of either for which there is no plan, whatever the reason.
    num_lost
        Jobs that this run lost: they took too long, failed, or their workers died.
    first_reason
        Name and message of the first job without a plan in this run; empty if there is none.
    """

    num_jobs: int
    num_before: int = 0
    num_now: int = 0
    num_without_plan: int = 0
    num_lost: int = 0
    first_reason: str = ""

    @property
    def num_done(self) -> int:
        """Jobs that need no more work."""
        return self.num_before + self.num_now


def plan_many(
    jobs: Iterable[BatchJob | str | os.PathLike[str] | Mapping[str, Any]]
    | BatchJob
    | str
    | os.PathLike[str]
    | Mapping[str, Any],
    *,
    processes: int | None = None,
    backend: str = LOCAL,
    scheduler: str | None = None,
    timeout_seconds: float | None = None,
    full: bool = False,
) -> Generator[JobResult, None, None]:
    """
    Plan many jobs, each in a worker process, whose crash fails that job only.

    Parameters
    ----------
    jobs
        Paths of job files, jobs as mappings or :class:`planner.batch.jobs.BatchJob`, or a
        :class:`planner.batch.jobs.JobSet`; taken as workers become free. A single job is allowed too.
    processes
        Jobs at once; as many as there are cores by default.
    backend
        ``local``: joblib's processes on this machine; ``dask``, ``ray``: an existing cluster.
    scheduler
        Address of the cluster.
    timeout_seconds
        Time after which a job's worker is stopped; None: only the job's ``search.time_limit_seconds`` holds.
    full
        True if results hold the whole JSON report.

    Yields
    ------
    JobResult
        One per job, as they finish; ``index`` is the place of the job. A failure is a result too: ``wrong_input``,
        ``timed_out``, ``worker_died`` (twice, the second time in a new worker), ``failed``.

    Raises
    ------
    SpecError
        If ``jobs`` holds no jobs, an option is wrong, or the cluster does not answer.
    """
    if isinstance(jobs, (BatchJob, str, os.PathLike, Mapping)):
        jobs = (jobs,)
    if not isinstance(jobs, Iterable):
        raise SpecError("jobs", f"expected job files, or jobs as mappings, got {shown(jobs)}.")
    if timeout_seconds is not None and not 0 < timeout_seconds <= MAX_TIMEOUT_SECONDS:
        raise SpecError("timeout", f"must be above 0 and at most {MAX_TIMEOUT_SECONDS:,} s, got {timeout_seconds:g}.")
    workers = partial(Workers, partial(plan_job, full=full), prepare=_import_planner, timeout_seconds=timeout_seconds)
    pool = make_pool(workers, backend=backend, scheduler=scheduler, processes=processes)
    return run_jobs(pool, map(make_job, jobs))


def make_pool(
    make_workers: partial[Workers],
    *,
    backend: str = LOCAL,
    scheduler: str | None = None,
    processes: int | None = None,
) -> WorkerPool:
    """Make the worker pool of a backend; ``make_workers`` is called here or on the machines of the cluster."""
    if backend == LOCAL:
        if scheduler is not None:
            raise SpecError("scheduler", "local processes have none.", "Add --backend dask or --backend ray.")
        return make_workers(processes=processes)
    if backend not in BACKENDS:
        raise SpecError("backend", f"there is no '{backend}'.", did_you_mean(backend, BACKENDS))
    home = import_module(f"planner.batch.executors.{backend}")
    pool: WorkerPool = getattr(home, f"{backend.title()}WorkerPool")(
        make_workers, scheduler=scheduler, processes=processes
    )
    return pool


def run_jobs(pool: WorkerPool, jobs: Iterable[BatchJob]) -> Generator[JobResult, None, None]:
    """Yield the results of jobs as they finish; at most as many jobs as the pool's capacity are in flight."""
    waiting: dict[Future[JobOutcome], tuple[int, BatchJob]] = {}
    done: queue.SimpleQueue[Future[JobOutcome]] = queue.SimpleQueue()

    def next_done() -> JobResult:
        future = done.get()
        index, job = waiting.pop(future)
        return result_of(job, future.result(), index)

    with closing(pool):
        for index, job in enumerate(jobs):
            if job.mistake is not None:
                wrong = JobOutcome(status=JobStatus.WRONG_INPUT, exit_code=2, message=job.mistake)
                yield result_of(job, wrong, index)
                continue
            while len(waiting) >= pool.capacity:
                yield next_done()
            future = pool.submit(job)
            waiting[future] = index, job
            future.add_done_callback(done.put)
        while waiting:
            yield next_done()


def run_batch(
    jobs: Iterable[BatchJob],
    results: ResultsFile,
    *,
    tally: Tally,
    plan: Callable[[Iterable[BatchJob]], Generator[JobResult, None, None]] = plan_many,
) -> Generator[Tally, None, None]:
    """
    Plan the jobs that a results file lacks and append their lines.

    Parameters
    ----------
    jobs
        All jobs of the batch.
    results
        File of their lines.
    tally
        Counts them.
    plan
        Function that makes results of jobs.

    Yields
    ------
    Tally
        The tally, after every line.
    """
    places: dict[int, int] = {}
    numbers = count()

    def fresh() -> Iterator[BatchJob]:
        for place, job in enumerate(jobs):
            if results.claim(job.key):
                places[next(numbers)] = place
                yield job
                continue
            tally.num_before += 1
            tally.num_without_plan += results.lacks_plan(job.key)

    with closing(plan(fresh())) as stream:
        for result in stream:
            results.add(replace(result, index=places.pop(result.index)))
            tally.num_now += 1
            tally.num_without_plan += not result.plans
            tally.num_lost += result.status in LOST
            if not result.plans and not tally.first_reason:
                tally.first_reason = f"{result.name}: {result.message}"
            yield tally
    yield tally


def _import_planner() -> None:
    """Import the modules that a job needs, so that their time does not count for the first job."""
    import_module("planner.verbs.plan")
    import_module("planner.search.branch_and_bound")
    import_module("planner.report.records.reports")


def progress_text(tally: Tally, seconds: float) -> str:
    """
    Word the jobs done, their rate, and the time that the others will take.

    >>> progress_text(Tally(num_jobs=1000, num_before=100, num_now=400, num_without_plan=3), 20.0)
    '500 of 1,000 jobs, 20.0 per second, 25 s left; 3 without a plan'
    """
    text = f"{tally.num_done:,} of {tally.num_jobs:,} jobs"
    if tally.num_now and seconds > 0:
        rate = tally.num_now / seconds
        speed = f"{rate:.1f} per second" if rate >= 1 else f"{60 * rate:.1f} per minute"
        text += f", {speed}, {_duration((tally.num_jobs - tally.num_done) / rate)} left"
    return text + (f"; {tally.num_without_plan:,} without a plan" if tally.num_without_plan else "")


def summary_text(tally: Tally) -> str:
    """
    Summarize a batch at its end.

    >>> summary_text(Tally(num_jobs=1000, num_before=100, num_now=900, num_without_plan=3, num_lost=1))
    '1,000 of 1,000 jobs done, 100 of them before; 3 without a plan, 1 of them lost in this run'
    """
    text = f"{tally.num_done:,} of {tally.num_jobs:,} jobs done"
    text += f", {tally.num_before:,} of them before" if tally.num_before else ""
    text += f"; {tally.num_without_plan:,} without a plan" if tally.num_without_plan else ""
    return text + (f", {tally.num_lost:,} of them lost in this run" if tally.num_lost else "")


MOST_LETTERS = 200

"""Letters of a reason that are shown; its line in the results has the whole text."""


def reasons_text(tally: Tally, path: str) -> str:
    """
    Name the entry with the reasons, and quote the first reason.

    >>> reasons_text(Tally(num_jobs=2, first_reason="job: training.tokns: no such entry."), "results.jsonl")
    "why there is no plan is in the entry 'message' of results.jsonl; job: training.tokns: no such entry."
    """
    text = f"why there is no plan is in the entry 'message' of {path}"
    first = " ".join(tally.first_reason.split())
    short = first if len(first) <= MOST_LETTERS else f"{first[:MOST_LETTERS]} ..."
    return f"{text}; {short}" if short else f"{text}."


def _duration(seconds: float) -> str:
    """
    Write a duration in its two largest units.

    >>> _duration(25), _duration(90), _duration(7260)
    ('25 s', '1 min 30 s', '2 h 1 min')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours:,} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
