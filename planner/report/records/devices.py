"""Devices that stay idle, and near-by batches that keep all of them busy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planner.report.records.record import Figure, Record, entry
from planner.report.records.strategy import StrategyRecord

if TYPE_CHECKING:
    from planner.results import Plan, PlanReport


class AllDevicesRecord(Record):
    """The best plan that uses all devices, where others are faster."""

    num_devices: int = entry("Devices that it uses.", "cluster.num_devices")
    step_time_seconds: Figure = entry("Its step.", "step_seconds")
    mfu: Figure = entry("Its model FLOPs over the peak of the conventions.")
    strategy: StrategyRecord = entry("Its decisions.")

    @classmethod
    def build(cls, plan: Plan) -> AllDevicesRecord:
        """Build the record of a plan."""
        return cls.read(plan, strategy=_decisions(plan))


class IdleDevicesRecord(Record):
    """Whole nodes that stay idle where that is faster."""

    num_idle_devices: int = entry("Devices that the best plan leaves idle.")
    all_devices: AllDevicesRecord | None = entry(
        "The best plan that uses all devices, where some are idle; null where there is none."
    )
    fewest_nodes_searched: int = entry(
        "The smallest number of nodes below the job's own that was searched; on fewer no step can be as short. 0: no "
        "smaller number can be as fast."
    )
    most_nodes_searched: int = entry("The largest number below the job's own; 0 where none was searched.")
    is_proven: bool = entry("True if no plan on any smaller number is faster than the best one: proven.")

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
    """A near-by batch with which all devices train faster."""

    global_batch_size: int = entry("Sequences per step.", "facts.workload.global_batch_size")
    change_fraction: Figure = entry("Difference from the job's own batch, as a fraction of that.")
    num_devices: int = entry("Devices that its plan uses: all.", "cluster.num_devices")
    step_time_seconds: Figure = entry("One optimizer step of its plan.", "step_seconds")
    tokens_per_second: Figure = entry("Tokens that all devices together train per second.")
    gain_fraction: Figure = entry("Gain in tokens per second over the job's own batch and best plan, as a fraction.")
    mfu: Figure = entry("Model FLOPs over the peak of the conventions.")
    strategy: StrategyRecord = entry("The decisions of its plan.")

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
            change_fraction=plan.facts.workload.global_batch_size / own - 1,
            tokens_per_second=plan.tokens_per_second,
            gain_fraction=plan.tokens_per_second / best.tokens_per_second - 1,
            strategy=_decisions(plan),
        )


def _decisions(plan: Plan) -> StrategyRecord:
    return StrategyRecord.build(plan.problem, plan.strategy)
