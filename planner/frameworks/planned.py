"""Protocols of the plan that exporters take, so that they need not import :class:`planner.results.Plan`."""

from __future__ import annotations

from typing import Protocol

from costmodel.facts.cluster import Cluster
from costmodel.strategy import Strategy
from costmodel.tables import Facts
from planner.jobs.checkpoints import CheckpointSchedule
from planner.uncertainty.intervals import Interval


class Chosen(Protocol):
    """Strategy for a job, without its costs."""

    @property
    def facts(self) -> Facts:
        """Model, workload and cluster."""

    @property
    def cluster(self) -> Cluster:
        """Cluster that it uses."""

    @property
    def strategy(self) -> Strategy:
        """Strategy that was chosen."""


class Plan(Chosen, Protocol):
    """Strategy for a job with its predicted costs and checkpoints."""

    @property
    def schedule(self) -> CheckpointSchedule:
        """Checkpoint interval and length of the training."""

    @property
    def checkpoint_seconds(self) -> float:
        """Training time that is lost per checkpoint, in seconds."""

    @property
    def write_seconds(self) -> float:
        """Time in seconds to write a checkpoint while training goes on; 0 where training waits."""

    @property
    def kept_checkpoints(self) -> int | None:
        """Number of newest checkpoints that are kept; None: all."""

    @property
    def step_seconds(self) -> float:
        """Time of one optimizer step, in seconds."""

    @property
    def interval(self) -> Interval:
        """Interval in which the measured step time is expected."""

    @property
    def headroom_bytes(self) -> float:
        """Free memory of the fullest rank, in bytes; negative where the plan does not fit."""


def name_of_costed_release(plan: Plan) -> str:
    """Name of the release that a plan is costed with, as the job has it; empty where the job names none."""
    cluster = plan.cluster
    return cluster.unknown_release or (cluster.framework.name if cluster.framework else "")
