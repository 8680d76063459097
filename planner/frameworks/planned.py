"""What exporters ask of a plan, which :class:`planner.results.Plan` has: they stand above it, so it may ask."""

from __future__ import annotations

from typing import Protocol

from costmodel.facts.cluster import Cluster
from costmodel.strategy import Strategy
from costmodel.tables import Facts
from planner.jobs.checkpoints import CheckpointSchedule
from planner.uncertainty.intervals import Interval


class Chosen(Protocol):
    """A strategy for a job, whatever it costs."""

    @property
    def facts(self) -> Facts:
        """What is trained, and on what."""

    @property
    def cluster(self) -> Cluster:
        """The devices that it uses."""

    @property
    def strategy(self) -> Strategy:
        """The decisions."""


class Plan(Chosen, Protocol):
    """A strategy for a job and all that follows from it."""

    @property
    def schedule(self) -> CheckpointSchedule:
        """Its checkpoint interval and the whole training."""

    @property
    def checkpoint_seconds(self) -> float:
        """Training time that is lost per checkpoint."""

    @property
    def write_seconds(self) -> float:
        """From the start of a checkpoint until it is on storage, beside the training; 0 where training waits."""

    @property
    def kept_checkpoints(self) -> int | None:
        """How many of them are kept, the newest ones."""

    @property
    def step_seconds(self) -> float:
        """One optimizer step."""

    @property
    def interval(self) -> Interval:
        """Where its measured step time lies."""

    @property
    def headroom_bytes(self) -> float:
        """What the fullest rank leaves free; negative where it does not fit."""


def costed_name(plan: Plan) -> str:
    """Name of the release that a plan is costed with, as the job has it; empty: the job names none."""
    cluster = plan.cluster
    return cluster.unknown_release or (cluster.framework.name if cluster.framework else "")
