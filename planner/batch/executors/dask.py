"""The crew of an existing Dask cluster: every thread of its workers has a lane."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any
from uuid import uuid4

from costmodel.errors import SpecError
from planner.batch.executors.local import checked_processes
from planner.batch.job_result import MAX_MESSAGE, Answer, JobStatus
from planner.batch.jobs import BatchJob

CONNECT_SECONDS = 5
"""How long a scheduler may take to answer, and a first worker to appear."""


class DaskCrew:
    """
    Workers of a Dask cluster.

    Dask alone could not stop a job that takes too long, and would restart a worker with all of its tasks, ours and
    others', when one job kills it. So each task hands its job to a lane, a process beside the Dask worker.

    Parameters
    ----------
    make_lanes
        Makes the lanes of one Dask worker; sent there.
    scheduler
        Its address, such as ``tcp://10.0.0.1:8786``.
    processes
        Jobs at once; as many as the cluster has threads by default.

    Raises
    ------
    SpecError
        If Dask is not installed, no address is given, nobody answers, or there are no workers.
    """

    def __init__(self, make_lanes: Any, *, scheduler: str | None, processes: int | None = None) -> None:
        if not scheduler:
            raise SpecError("scheduler", "is missing.", "Give the address of Dask's, such as tcp://10.0.0.1:8786.")
        self._client = _connected(scheduler)
        self._scheduler = scheduler
        self._plugin = f"planner-lanes-{uuid4().hex}"
        try:
            self._client.register_plugin(_plugin(make_lanes), name=self._plugin)
            threads = sum(self._client.nthreads().values())
        except Exception as error:
            self.close()
            raise SpecError("scheduler", f"{scheduler} cannot run jobs: {_said(error)}.") from None
        self.capacity = checked_processes(processes) or 2 * threads

    def submit(self, job: BatchJob) -> Future[Answer]:
        """Hand a job to the cluster."""
        answer: Future[Answer] = Future()
        task = self._client.submit(_do, self._plugin, job, pure=False, key=f"planner-{uuid4().hex}")
        task.add_done_callback(lambda done: self._pass_on(done, answer))
        return answer

    def close(self) -> None:
        """Give up what runs; the cluster goes on."""
        with suppress(Exception):  # the cluster may be gone already
            self._client.unregister_worker_plugin(self._plugin)
        with suppress(Exception):
            self._client.close(timeout=CONNECT_SECONDS)

    def _pass_on(self, task: Any, answer: Future[Answer]) -> None:
        """A worker that died is the job's end; a scheduler that is gone is the end of the batch."""
        from distributed import KilledWorker

        if task.status == "finished":
            answer.set_result(task.result())
            return
        error = task.exception() if task.status == "error" else None
        if isinstance(error, KilledWorker):
            answer.set_result(Answer(status=JobStatus.WORKER_DIED, message=str(error)[:MAX_MESSAGE]))
            return
        reason = _said(error) if error else "the connection is lost"
        answer.set_exception(SpecError("scheduler", f"{self._scheduler} gave a job up: {reason}."))


def _connected(scheduler: str) -> Any:
    try:
        from distributed import Client
    except ImportError:
        raise SpecError("backend", "Dask is not installed.", "pip install 'pretraining-planner[dask]'") from None
    logging.getLogger("distributed").setLevel(logging.ERROR)
    try:
        # First without a client: one that meets no scheduler takes its time to say goodbye, with a traceback.
        with ThreadPoolExecutor(1) as thread:
            thread.submit(lambda: asyncio.run(_greet(scheduler))).result()
        client = Client(scheduler, timeout=CONNECT_SECONDS, set_as_default=False)
    except Exception as error:
        raise SpecError("scheduler", f"{scheduler} does not answer: {_said(error)}.") from None
    try:
        client.wait_for_workers(1, timeout=CONNECT_SECONDS)
    except Exception:
        client.close(timeout=CONNECT_SECONDS)
        raise SpecError("scheduler", f"{scheduler} has no workers after {CONNECT_SECONDS} s.") from None
    return client


async def _greet(scheduler: str) -> None:
    """Ask whether somebody answers as Dask's schedulers do."""
    from distributed.core import connect
    from distributed.security import Security

    connection = await connect(scheduler, timeout=CONNECT_SECONDS, **Security().get_connection_args("client"))
    await connection.close()


def _said(error: BaseException) -> str:
    return (str(error).splitlines() or [""])[0].rstrip(".") or type(error).__name__


# --- on the cluster ----------------------------------------------------------------------------------------


def _plugin(make_lanes: Any) -> Any:
    """What gives each Dask worker its lanes, and takes them away; a class of Dask's, which is imported here alone."""
    from distributed.diagnostics.plugin import WorkerPlugin

    class LanesOfWorker(WorkerPlugin):  # type: ignore[misc]  # Dask's own types are not looked at
        """The lanes of one Dask worker."""

        def setup(self, worker: Any) -> None:
            """Make them; their processes start with the first job."""
            import multiprocessing

            # A worker below a nanny is a daemonic process, which may not have children unless it says otherwise.
            if multiprocessing.current_process().daemon:
                multiprocessing.current_process().daemon = False
            self.lanes = make_lanes()

        def teardown(self, worker: Any) -> None:
            """Stop their processes."""
            self.lanes.close()

    return LanesOfWorker()


def _do(plugin: str, job: BatchJob) -> Answer:
    from distributed import get_worker

    answer: Answer = get_worker().plugins[plugin].lanes.run(job)
    return answer
