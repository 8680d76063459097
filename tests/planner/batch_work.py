"""Stand-ins for planning, which a worker process can import: they answer at once, sleep, die or stumble by name."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from planner.batch.executors.local import Workers
from planner.batch.job_result import JobOutcome, JobStatus
from planner.batch.jobs import KEY_BYTES, BatchJob
from planner.batch.run import make_pool

PLAN = {"number": 1, "step_time_seconds": 2.0, "num_devices": 8, "strategy": {"tp": 8, "layout": None}}


def jobs(count: int, *names: str) -> Iterator[BatchJob]:
    """Jobs that say nothing but their number, and some with names of their own in front."""
    for number, name in enumerate((*names, *(f"job {number}" for number in range(count)))):
        yield BatchJob(key=f"{number:0{2 * KEY_BYTES}x}", name=name, source="tests")


def planned(job: BatchJob) -> JobOutcome:
    """An answer at once."""
    return JobOutcome(status=JobStatus.OPTIMAL, exit_code=0, plans=(PLAN,))


def act(job: BatchJob, *, marks: str, seconds: float = 0.0) -> JobOutcome:
    """Do what the name says, and leave a mark for every attempt: a file with the worker's process."""
    with (Path(marks) / job.key).open("a") as stream:
        stream.write(f"{os.getpid()}\n")
    if job.name == "poison":
        os.kill(os.getpid(), signal.SIGKILL)
    if job.name == "stumbles once" and len((Path(marks) / job.key).read_text().split()) == 1:
        os._exit(3)
    if job.name == "stuck":
        time.sleep(600)
    if job.name == "threads":
        return JobOutcome(status=JobStatus.FAILED, message=os.environ["OMP_NUM_THREADS"])
    if job.name == "raises":
        raise ValueError("this stand-in raises")
    time.sleep(seconds)
    return planned(job)


def attempts(marks: Path, job: BatchJob) -> list[int]:
    """Processes that began with a job, in order."""
    path = marks / job.key
    return [int(word) for word in path.read_text().split()] if path.exists() else []


def pool(marks: Path, *, timeout_seconds: float | None = None, seconds: float = 0.0, **options: object) -> object:
    """A pool whose workers act by name."""
    work = partial(act, marks=str(marks), seconds=seconds)
    return make_pool(partial(Workers, work, prepare=int, timeout_seconds=timeout_seconds), **options)
