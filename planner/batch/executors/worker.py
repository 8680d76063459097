"""
A worker process that runs one job at a time and may be killed by it.

joblib's loky is asked for pools of one worker each. The death of a worker breaks its whole pool, and a pool does not
tell which of its jobs the worker had, nor can it stop one. ``joblib.Parallel`` with several workers loses what is in
flight, and its ``timeout`` lets the worker run on. With one worker per pool the culprit is known, the worker can be
stopped even where it is stuck in compiled code, and nobody else notices.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Future, wait
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeAlias

# Here and not where it is needed: threads that import joblib at the same time find halves of it.
from joblib.externals.loky import ProcessPoolExecutor

from costmodel.errors import SpecError
from planner.batch.job_result import MAX_MESSAGE, JobOutcome, JobStatus
from planner.batch.jobs import BatchJob

Work: TypeAlias = Callable[[BatchJob], JobOutcome]

MAX_ATTEMPTS = 2
"""Workers that a job may cost."""

MAX_STARTS = 5
"""Workers that die before they begin with a job, at most; no job is at fault then, but something is."""

START_SECONDS = 120.0
"""What a worker has to import what it needs, on a busy machine."""

PARENT_SECONDS = 1.0
"""How often a worker checks that its parent is still alive."""

SINGLE_THREADED = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"), "1"
)
"""There is a worker for every core: libraries that start threads of their own would only wait for each other."""


class ClosedError(Exception):
    """The batch was given up while a job waited or ran."""


class Worker:
    """
    One worker process after the other.

    Parameters
    ----------
    work
        What to do with a job; outcomes and jobs must be picklable.
    prepare
        What a worker does before its first job, such as importing what the job needs.
    """

    def __init__(self, work: Work, *, prepare: Callable[[], object] = int) -> None:
        self._work = work
        self._prepare = prepare
        self._pool: ProcessPoolExecutor | None = None
        self._is_ready = False
        self._is_closed = False
        self._lock = threading.Lock()

    def run(self, job: BatchJob, timeout_seconds: float | None = None) -> JobOutcome:
        """
        The outcome of a job, or what happened to its workers.

        Parameters
        ----------
        job
            What to do.
        timeout_seconds
            Stop the worker when it takes longer.

        Raises
        ------
        ClosedError
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
        """Stop the worker, whatever it does."""
        with self._lock:
            self._is_closed = True
        self._stop()

    def _attempt(self, job: BatchJob, timeout_seconds: float | None) -> JobOutcome | None:
        """The outcome from one worker process; None where it died."""
        pool = self._ready()
        begin = time.perf_counter()
        future = _submitted(pool, self._work, job)
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
        """A worker that waits for a job; neither the time that it takes to start nor its death meanwhile counts."""
        for _ in range(MAX_STARTS):
            pool = self._started()
            if not self._is_ready:
                hello = _submitted(pool, os.getpid)
                self._is_ready = bool(wait([hello], START_SECONDS).done) and hello.exception() is None
            if self._is_ready:
                return pool
            self._require_open()
            self._stop()
        raise SpecError("worker", f"{MAX_STARTS} processes in a row died or hung before they could begin with a job.")

    def _started(self) -> ProcessPoolExecutor:
        with self._lock:
            self._require_open()
            if self._pool is None:
                self._is_ready = False
                self._pool = ProcessPoolExecutor(
                    max_workers=1, env=SINGLE_THREADED, initializer=_begin, initargs=(os.getpid(), self._prepare)
                )
            return self._pool

    def _require_open(self) -> None:
        if self._is_closed:
            raise ClosedError

    def _stop(self) -> None:
        """
        Kill the worker, if it still lives.

        loky has ``shutdown(kill_workers=True)``, but forgets the jobs at hand before its thread has looked at them: the
        thread ends with a KeyError, and the worker stays (joblib 1.6.0, ``_ExecutorManagerThread``). A worker that is
        killed from outside is what loky is made for.
        """
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is None:
            return
        for process in list((pool._processes or {}).values()):
            if process.is_alive():
                with suppress(ProcessLookupError):
                    os.kill(process.pid, getattr(signal, "SIGKILL", signal.SIGTERM))
        pool.shutdown(wait=False)


def _submitted(pool: ProcessPoolExecutor, function: Callable[..., Any], *arguments: object) -> Future[Any]:
    """The call's future; a pool that is broken or closed already says so there, too."""
    try:
        submitted: Future[Any] = pool.submit(function, *arguments)
    except (BrokenExecutor, RuntimeError) as error:
        submitted = Future()
        submitted.set_exception(error)
    return submitted


# --- in the worker -----------------------------------------------------------------------------------------


def _begin(parent: int, prepare: Callable[[], Any]) -> None:
    """Leave Ctrl-C to the parent, end with it, and import what jobs need."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    prepare()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(PARENT_SECONDS)
    os._exit(1)
