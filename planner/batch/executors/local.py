"""The protocol of worker pools, and the pool of this machine."""

from __future__ import annotations

import os
import queue
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol, TypeAlias

from joblib.externals.loky import ProcessPoolExecutor

from costmodel.errors import SpecError
from planner.batch.job_result import MAX_MESSAGE, JobOutcome, JobStatus
from planner.batch.jobs import BatchJob

# Imported here, not where it is needed: threads that import joblib at the same time find it half loaded.


Work: TypeAlias = Callable[[Any], JobOutcome]
"""Function that runs a job of any kind."""

MAX_ATTEMPTS = 2
"""Largest number of workers that are tried for a job."""

MAX_STARTS = 5
"""Largest number of workers in a row that may die before their first job; the cause then is not a job."""

START_SECONDS = 120.0
"""Seconds for a worker to import its modules, on a busy machine."""

STOP_SECONDS = 5.0
"""Seconds that loky's threads have to end after their worker."""

PARENT_SECONDS = 1.0
"""Seconds between two checks of a worker that its parent is alive."""

ENVIRONMENT = {
    **dict.fromkeys(
        ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"),
        "1",
    ),
    "PYTHONSAFEPATH": "1",
}
"""Variables that keep libraries to one thread, since every core has a worker, and that keep files of the working
directory from being imported while a worker starts."""


CLOSED = "the batch was closed while a job waited or ran"


class Worker:
    """
    A worker process, replaced by a new one when it dies.

    Parameters
    ----------
    work
        Function that runs a job; jobs and outcomes must be picklable.
    prepare
        Function that a worker calls before its first job, such as imports.
    """

    def __init__(self, work: Work, *, prepare: Callable[[], object] = int) -> None:
        self._work = work
        self._prepare = prepare
        self._pool: ProcessPoolExecutor | None = None
        self._is_ready = False
        self._is_closed = False
        self._lock = threading.Lock()

    def run(self, job: Any, timeout_seconds: float | None = None) -> JobOutcome:
        """
        Run a job, and return its outcome, or the failure of its workers.

        Parameters
        ----------
        job
            The job.
        timeout_seconds
            Time after which the worker is stopped.

        Raises
        ------
        RuntimeError
            If the worker is closed meanwhile.
        """
        begin = time.perf_counter()
        for attempt in range(1, MAX_ATTEMPTS + 1):
            outcome = self._attempt(job, timeout_seconds)
            if outcome is not None:
                return replace(outcome, attempts=attempt)
        message = f"Its worker died, and so did a fresh one that had only this job ({MAX_ATTEMPTS} attempts)."
        return JobOutcome(
            status=JobStatus.WORKER_DIED,
            message=message,
            attempts=MAX_ATTEMPTS,
            wall_seconds=time.perf_counter() - begin,
        )

    def close(self) -> None:
        """Stop the worker, even during a job."""
        with self._lock:
            self._is_closed = True
        self._stop()

    def _attempt(self, job: Any, timeout_seconds: float | None) -> JobOutcome | None:
        """Run a job in one worker process; return None if the process died."""
        pool = self._ready()
        begin = time.perf_counter()
        future = _submit(pool, self._work, job)
        if not wait([future], timeout_seconds).done:
            self._stop()
            message = f"It was stopped after {timeout_seconds:g} s."
            return JobOutcome(status=JobStatus.TIMED_OUT, message=message, wall_seconds=time.perf_counter() - begin)
        error = future.exception()
        if error is None:
            outcome: JobOutcome = future.result()
            return outcome
        self._require_open()
        if isinstance(error, BrokenExecutor):
            self._stop()
            return None
        return JobOutcome(status=JobStatus.FAILED, message=f"{type(error).__name__}: {error}"[:MAX_MESSAGE])

    def _ready(self) -> ProcessPoolExecutor:
        """Start a worker that waits for a job; its time to start and failures to start do not count for the job."""
        for _ in range(MAX_STARTS):
            pool = self._start()
            if not self._is_ready:
                hello = _submit(pool, os.getpid)
                self._is_ready = bool(wait([hello], START_SECONDS).done) and hello.exception() is None
            if self._is_ready:
                return pool
            self._require_open()
            self._stop()
        raise SpecError("worker", f"{MAX_STARTS} processes in a row died or hung before they could begin with a job.")

    def _start(self) -> ProcessPoolExecutor:
        with self._lock:
            self._require_open()
            if self._pool is None:
                self._is_ready = False
                self._pool = ProcessPoolExecutor(
                    max_workers=1, env=ENVIRONMENT, initializer=_begin, initargs=(os.getpid(), self._prepare)
                )
            return self._pool

    def _require_open(self) -> None:
        if self._is_closed:
            raise RuntimeError(CLOSED)

    def _stop(self) -> None:
        """
        Kill the worker if it is alive.

        loky's ``shutdown(kill_workers=True)`` drops pending jobs before its thread has read them: the thread ends with
        a KeyError, and the worker stays (joblib 1.6.0, ``_ExecutorManagerThread``). A worker that is killed from
        outside is a case that loky handles. loky's threads hold the semaphores and do not end with the main thread:
        one that is cut off while it removes them leaves a warning of leaked semaphores.
        """
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is None:
            return
        for process in list((pool._processes or {}).values()):
            if process.is_alive():
                with suppress(ProcessLookupError):
                    os.kill(process.pid, getattr(signal, "SIGKILL", signal.SIGTERM))
        threads = [pool._executor_manager_thread, getattr(pool._call_queue, "_thread", None)]
        pool.shutdown(wait=False)
        for thread in filter(None, threads):
            thread.join(STOP_SECONDS)


def _submit(pool: ProcessPoolExecutor, function: Callable[..., Any], *arguments: object) -> Future[Any]:
    """Submit a call; the future also carries the error of a pool that is broken or closed."""
    try:
        submitted: Future[Any] = pool.submit(function, *arguments)
    except (BrokenExecutor, RuntimeError) as error:
        submitted = Future()
        submitted.set_exception(error)
    return submitted


# --- in the worker -----------------------------------------------------------------------------------------


def _begin(parent: int, prepare: Callable[[], Any]) -> None:
    """Ignore Ctrl-C, which the parent handles, end with the parent, and prepare for jobs."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    prepare()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(PARENT_SECONDS)
    os._exit(1)


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
    The pool of this machine: workers shared by several threads, each of which takes an idle one and gives it back.

    Parameters
    ----------
    work
        Function that runs a job.
    prepare
        Function that a worker calls before its first job.
    timeout_seconds
        Time limit of a job.
    processes
        Number of processes; by default the cores that this process may use.
    """

    def __init__(
        self,
        work: Work,
        *,
        prepare: Callable[[], object],
        timeout_seconds: float | None,
        processes: int | None = None,
    ) -> None:
        num_threads = check_processes(processes) or num_cores()
        self.capacity = 2 * num_threads
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="planner-worker")
        self._work, self._prepare, self._timeout_seconds = work, prepare, timeout_seconds
        self._idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        self._all: list[Worker] = []
        self._is_closed = False
        self._lock = threading.Lock()

    def submit(self, job: Any) -> Future[JobOutcome]:
        """Hand a job to the next thread that is free."""
        return self._threads.submit(self.run, job)

    def run(self, job: Any) -> JobOutcome:
        """Run a job in a worker process from a thread of the caller, and return its outcome."""
        worker = self._take()
        try:
            return worker.run(job, self._timeout_seconds)
        finally:
            self._idle.put(worker)

    def close(self) -> None:
        """Stop all workers, also those that are just starting; waiting jobs are abandoned."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            self._is_closed = True
            for worker in self._all:
                worker.close()
        self._threads.shutdown(wait=True)

    def _take(self) -> Worker:
        try:
            return self._idle.get_nowait()
        except queue.Empty:
            with self._lock:
                if self._is_closed:
                    raise RuntimeError(CLOSED) from None
                self._all.append(Worker(self._work, prepare=self._prepare))
                return self._all[-1]


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
