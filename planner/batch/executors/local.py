"""The protocol of worker pools, and the pool of this machine."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

from costmodel.errors import SpecError
from planner.batch.executors.worker import CLOSED, Work, Worker
from planner.batch.job_result import JobOutcome
from planner.batch.jobs import BatchJob

MAX_PROCESSES = 1024


class WorkerPool(Protocol):
    """
    An executor of jobs, each in a worker process of its own that may be stopped.

    Parameters
    ----------
    capacity
        Jobs to submit at once so that no worker idles; more would only cost memory.
    """

    capacity: int

    def submit(self, job: BatchJob) -> Future[JobOutcome]:
        """Hand a job over; its future fails only if the pool itself is lost."""

    def close(self) -> None:
        """Stop all workers, running jobs included."""


class Workers:
    """
    Workers shared by several threads: each takes an idle one and gives it back.

    Parameters
    ----------
    work
        Function that runs a job.
    prepare
        Function that a worker calls before its first job.
    timeout_seconds
        Time limit of a job.
    """

    def __init__(self, work: Work, *, prepare: Callable[[], object], timeout_seconds: float | None) -> None:
        self._work, self._prepare, self._timeout_seconds = work, prepare, timeout_seconds
        self._idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        self._all: list[Worker] = []
        self._is_closed = False
        self._lock = threading.Lock()

    def run(self, job: Any) -> JobOutcome:
        """Run a job in a worker process, and return its outcome."""
        worker = self._take()
        try:
            return worker.run(job, self._timeout_seconds)
        finally:
            self._idle.put(worker)

    def close(self) -> None:
        """Stop all workers, also those that are just starting."""
        with self._lock:
            self._is_closed = True
            for worker in self._all:
                worker.close()

    def _take(self) -> Worker:
        try:
            return self._idle.get_nowait()
        except queue.Empty:
            with self._lock:
                if self._is_closed:
                    raise RuntimeError(CLOSED) from None
                self._all.append(Worker(self._work, prepare=self._prepare))
                return self._all[-1]


class LocalWorkerPool:
    """
    Processes on this machine.

    Parameters
    ----------
    workers
        Workers of the pool.
    processes
        Number of processes; by default the cores that this process may use.
    """

    def __init__(self, workers: Workers, *, processes: int | None = None) -> None:
        num_threads = check_processes(processes) or num_cores()
        self._workers = workers
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="planner-worker")
        self.capacity = 2 * num_threads

    def submit(self, job: Any) -> Future[JobOutcome]:
        """Hand a job to the next thread that is free."""
        return self._threads.submit(self._workers.run, job)

    def close(self) -> None:
        """Stop all workers; waiting jobs are abandoned."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._workers.close()
        self._threads.shutdown(wait=True)


def check_processes(processes: int | None) -> int | None:
    """Return the number of processes if it is allowed."""
    if processes is not None and not 1 <= processes <= MAX_PROCESSES:
        raise SpecError("processes", f"must be from 1 to {MAX_PROCESSES}, got {processes}.")
    return processes


def num_cores() -> int:
    """Count the cores that this process may use, which a batch system may limit."""
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1
