"""Devices that stay idle, and near-by batches that keep all of them busy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planner.report.records.record import Figure, Record
from planner.report.records.strategy import StrategyRecord

if TYPE_CHECKING:
    from planner.results import Plan, PlanReport


class AllDevicesRecord(Record):
    """
    The best plan that uses all devices, where others are faster.

    Parameters
    ----------
    num_devices
        Devices that it uses.
    step_time_seconds
        Its step.
    mfu
        Its model FLOPs over the peak of the conventions.
    strategy
        Its decisions.
    """

    num_devices: int
    step_time_seconds: Figure
    mfu: Figure
    strategy: StrategyRecord

    @classmethod
    def build(cls, plan: Plan) -> AllDevicesRecord:
        """Build the record of a plan."""
        return cls.read(plan, plan.cluster, step_time_seconds=plan.step_seconds, strategy=_decisions(plan))


class IdleDevicesRecord(Record):
    """
    Whole nodes that stay idle where that is faster.

    Parameters
    ----------
    num_idle_devices
        Devices that the best plan leaves idle.
    all_devices
        The best plan that uses all devices, where some are idle; null where there is none.
    fewest_nodes_searched
        The smallest number of nodes below the job's own that was searched; on fewer no step can be as short. 0: no
        smaller number can be as fast.
    most_nodes_searched
        The largest number below the job's own; 0 where none was searched.
    is_proven
        True if no plan on any smaller number is faster than the best one: proven.
    """

    num_idle_devices: int
    all_devices: AllDevicesRecord | None
    fewest_nodes_searched: int
    most_nodes_searched: int
    is_proven: bool

    @classmethod
    def build(cls, report: PlanReport) -> IdleDevicesRecord | None:
        """Build the record of a report; None where the job wants no idle devices."""
        if report.fewer is None:
            return None
        return cls(
            num_idle_devices=report.num_idle_devices,
            all_devices=AllDevicesRecord.build(report.all_devices) if report.all_devices else None,
            fewest_nodes_searched=report.fewer.fewest_nodes,
            most_nodes_searched=report.fewer.most_nodes,
            is_proven=report.fewer.is_proven,
        )


class NearbyBatchRecord(Record):
    """
    A near-by batch with which all devices train faster.

    Parameters
    ----------
    global_batch_size
        Sequences per step.
    change_fraction
        Difference from the job's own batch, as a fraction of that.
    num_devices
        Devices that its plan uses: all.
    step_time_seconds
        One optimizer step of its plan.
    tokens_per_second
        Tokens that all devices together train per second.
    gain_fraction
        Gain in tokens per second over the job's own batch and best plan, as a fraction.
    mfu
        Model FLOPs over the peak of the conventions.
    strategy
        The decisions of its plan.
    """

    global_batch_size: int
    change_fraction: Figure
    num_devices: int
    step_time_seconds: Figure
    tokens_per_second: Figure
    gain_fraction: Figure
    mfu: Figure
    strategy: StrategyRecord

    @classmethod
    def build_from_report(cls, report: PlanReport) -> list[NearbyBatchRecord]:
        """Build the records of a report's near-by batches."""
        return [cls.build(plan, report.fastest) for plan in report.nearby if report.fastest]

    @classmethod
    def build(cls, plan: Plan, best: Plan) -> NearbyBatchRecord:
        """Build the record of one near-by batch, compared with the job's best plan."""
        own = best.facts.workload.global_batch_size
        return cls.read(
            plan,
            plan.cluster,
            plan.facts.workload,
            step_time_seconds=plan.step_seconds,
            change_fraction=plan.facts.workload.global_batch_size / own - 1,
            gain_fraction=plan.tokens_per_second / best.tokens_per_second - 1,
            strategy=_decisions(plan),
        )


def _decisions(plan: Plan) -> StrategyRecord:
    return StrategyRecord.build(plan.problem, plan.strategy)
