"""The worker pool of an existing Ray cluster; each core has an actor with a worker process."""

from __future__ import annotations

import logging
import queue
import socket
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from costmodel.errors import SpecError, optional_library
from planner.batch.executors.local import Workers, check_processes
from planner.batch.job_result import MAX_MESSAGE, JobOutcome, JobStatus
from planner.batch.jobs import BatchJob

CONNECT_SECONDS = 5
"""Seconds for a head node to accept a connection."""

RUNNING = "auto"
"""The cluster that this machine belongs to."""


class RayWorkerPool:
    """
    Actors on a Ray cluster; Ray restarts them when they or their machines die.

    Parameters
    ----------
    make_workers
        Makes the workers of one actor: their class, which becomes the actor's, and its arguments.
    scheduler
        Address of the head node, such as ``ray://10.0.0.1:10001``; the cluster of this machine by default.
    processes
        Jobs at once; as many as the cluster has free cores by default.

    Raises
    ------
    SpecError
        If Ray is not installed or nobody answers.
    """

    def __init__(self, make_workers: partial[Workers], *, scheduler: str | None, processes: int | None = None) -> None:
        self._ray, self._is_ours = _connect(scheduler or RUNNING)
        free = int(self._ray.available_resources().get("CPU", 1))
        self.capacity = check_processes(processes) or max(1, free)
        actor = self._ray.remote(make_workers.func).options(num_cpus=1, max_restarts=-1, max_task_retries=1)
        self._actors = [actor.remote(*make_workers.args, **make_workers.keywords) for _ in range(self.capacity)]
        self._idle: queue.SimpleQueue[Any] = queue.SimpleQueue()
        for each in self._actors:
            self._idle.put(each)

    def submit(self, job: BatchJob) -> Future[JobOutcome]:
        """Hand a job to an idle actor."""
        outcome: Future[JobOutcome] = Future()
        actor = self._idle.get()
        task: Future[JobOutcome] = actor.run.remote(job).future()
        task.add_done_callback(lambda done: self._pass_on(done, actor, outcome))
        return outcome

    def close(self) -> None:
        """Stop the actors; the cluster stays up."""
        for actor in self._actors:
            with suppress(Exception):  # the cluster may be gone already
                self._ray.kill(actor)
        if self._is_ours:
            self._ray.shutdown()

    def _pass_on(self, task: Future[JobOutcome], actor: Any, outcome: Future[JobOutcome]) -> None:
        """Report an actor that died twice as the job's outcome; any other error fails the batch."""
        from ray.exceptions import RayActorError

        self._idle.put(actor)
        error = task.exception()
        if error is None:
            outcome.set_result(task.result())
        elif isinstance(error, RayActorError):
            message = f"Its worker died: {str(error).splitlines()[0]}"
            outcome.set_result(JobOutcome(status=JobStatus.WORKER_DIED, message=message[:MAX_MESSAGE]))
        else:
            problem = f"the cluster gave a job up: {(str(error).splitlines() or [type(error).__name__])[0]}"
            outcome.set_exception(SpecError("scheduler", problem))


def _connect(address: str) -> tuple[Any, bool]:
    """Connect to Ray; return the module, and true if the connection was opened here."""
    ray = optional_library("ray", "backend", "Ray is not installed.", extra="ray")
    if ray.is_initialized():
        return ray, False
    _require_listener(address)
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:
        said = (str(error).splitlines() or [type(error).__name__])[0]
        raise SpecError("scheduler", f"{address} is no Ray cluster that answers: {said}") from None
    return ray, True


def _require_listener(address: str) -> None:
    """Check that the port accepts a connection; Ray itself would try for half a minute."""
    if address == RUNNING:
        return
    place = urlsplit(address if "://" in address else f"//{address}")
    try:
        host, port = place.hostname, place.port
        if not host or not port:
            raise SpecError("scheduler", f"expected an address such as ray://10.0.0.1:10001, got '{address}'.")
        socket.create_connection((host, port), timeout=CONNECT_SECONDS).close()
    except (OSError, ValueError) as error:
        raise SpecError("scheduler", f"{address} does not answer: {error}.") from None
