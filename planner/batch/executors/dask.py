"""The worker pool of an existing Dask cluster; every thread of a Dask worker has a worker process."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any
from uuid import uuid4

from costmodel.errors import SpecError, optional_library
from planner.batch.executors.local import check_processes
from planner.batch.job_result import MAX_MESSAGE, JobOutcome, JobStatus
from planner.batch.jobs import BatchJob

CONNECT_SECONDS = 5
"""Seconds for a scheduler to answer, and for a first worker to appear."""


class DaskWorkerPool:
    """
    Workers of a Dask cluster.

    Dask alone cannot stop a job that takes too long. When a job kills its worker, Dask restarts all tasks of that
    worker, other users' included. So each task hands its job to a worker process next to the Dask worker.

    Parameters
    ----------
    make_workers
        Makes the worker processes of one Dask worker; sent there.
    scheduler
        Its address, such as ``tcp://10.0.0.1:8786``.
    processes
        Jobs at once; as many as the cluster has threads by default.

    Raises
    ------
    SpecError
        If Dask is not installed, no address is given, nobody answers, or there are no workers.
    """

    def __init__(self, make_workers: Any, *, scheduler: str | None, processes: int | None = None) -> None:
        if not scheduler:
            raise SpecError("scheduler", "is missing.", "Give the address of Dask's, such as tcp://10.0.0.1:8786.")
        self._client = _connect(scheduler)
        self._scheduler = scheduler
        self._plugin = f"planner-workers-{uuid4().hex}"
        try:
            self._client.register_plugin(_plugin(make_workers), name=self._plugin)
            threads = sum(self._client.nthreads().values())
        except Exception as error:
            self.close()
            raise SpecError("scheduler", f"{scheduler} cannot run jobs: {_first_line(error)}.") from None
        self.capacity = check_processes(processes) or 2 * threads

    def submit(self, job: BatchJob) -> Future[JobOutcome]:
        """Hand a job to the cluster."""
        outcome: Future[JobOutcome] = Future()
        task = self._client.submit(_do, self._plugin, job, pure=False, key=f"planner-{uuid4().hex}")
        task.add_done_callback(lambda done: self._pass_on(done, outcome))
        return outcome

    def close(self) -> None:
        """Abandon running jobs; the cluster stays up."""
        with suppress(Exception):  # the cluster may be gone already
            self._client.unregister_worker_plugin(self._plugin)
        with suppress(Exception):
            self._client.close(timeout=CONNECT_SECONDS)

    def _pass_on(self, task: Any, outcome: Future[JobOutcome]) -> None:
        """Report a worker that died as the job's outcome; a scheduler that is gone fails the batch."""
        from distributed import KilledWorker

        if task.status == "finished":
            outcome.set_result(task.result())
            return
        error = task.exception() if task.status == "error" else None
        if isinstance(error, KilledWorker):
            outcome.set_result(JobOutcome(status=JobStatus.WORKER_DIED, message=str(error)[:MAX_MESSAGE]))
            return
        reason = _first_line(error) if error else "the connection is lost"
        outcome.set_exception(SpecError("scheduler", f"{self._scheduler} gave a job up: {reason}."))


def _connect(scheduler: str) -> Any:
    distributed = optional_library("distributed", "backend", "Dask is not installed.", extra="dask")
    logging.getLogger("distributed").setLevel(logging.ERROR)
    try:
        # First without a client: one that meets no scheduler takes its time to say goodbye, with a traceback.
        with ThreadPoolExecutor(1) as thread:
            thread.submit(lambda: asyncio.run(_greet(scheduler))).result()
        client = distributed.Client(scheduler, timeout=CONNECT_SECONDS, set_as_default=False)
    except Exception as error:
        raise SpecError("scheduler", f"{scheduler} does not answer: {_first_line(error)}.") from None
    try:
        client.wait_for_workers(1, timeout=CONNECT_SECONDS)
    except Exception:
        client.close(timeout=CONNECT_SECONDS)
        raise SpecError("scheduler", f"{scheduler} has no workers after {CONNECT_SECONDS} s.") from None
    return client


async def _greet(scheduler: str) -> None:
    """Check that a Dask scheduler answers."""
    from distributed.core import connect
    from distributed.security import Security

    connection = await connect(scheduler, timeout=CONNECT_SECONDS, **Security().get_connection_args("client"))
    await connection.close()


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [""])[0].rstrip(".") or type(error).__name__


# --- on the cluster ----------------------------------------------------------------------------------------


def _plugin(make_workers: Any) -> Any:
    """Build the plugin that starts and stops the worker processes of each Dask worker; only here Dask is imported."""
    from distributed.diagnostics.plugin import WorkerPlugin

    class WorkersOfDask(WorkerPlugin):  # type: ignore[misc]  # Dask's own types are not looked at
        """The worker processes of one Dask worker."""

        def setup(self, worker: Any) -> None:
            """Make the workers; their processes start with the first job."""
            import multiprocessing

            # A worker below a nanny is a daemonic process, which may not have children unless it says otherwise.
            if multiprocessing.current_process().daemon:
                multiprocessing.current_process().daemon = False
            self.workers = make_workers()

        def teardown(self, worker: Any) -> None:
            """Stop the worker processes."""
            self.workers.close()

    return WorkersOfDask()


def _do(plugin: str, job: BatchJob) -> JobOutcome:
    from distributed import get_worker

    outcome: JobOutcome = get_worker().plugins[plugin].workers.run(job)
    return outcome
