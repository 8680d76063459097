"""One plan: its step, its memory, its checkpoints and the whole training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from costmodel.memory.rank import seen_bytes
from planner.report.records.record import Figure, Record
from planner.report.records.strategy import StrategyRecord
from planner.uncertainty.intervals import COVERAGE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from costmodel.facts.spec import EquippedDevice
    from costmodel.step.estimate import Estimate, RankEstimate
    from planner.checkpoints import CheckpointSchedule
    from planner.plan import Plan


class PartRecord(Record):
    """
    One line of a step.

    Parameters
    ----------
    name
        compute, recompute, tp, cp, ep, offload, host, pp, bubble, dp or optimizer.
    exposed_seconds
        Its share of the step; all lines add up to the step.
    hidden_seconds
        What runs behind computation.
    """

    name: str
    exposed_seconds: Figure
    hidden_seconds: Figure


class RankRecord(Record):
    """
    One pipeline rank.

    Parameters
    ----------
    rank
        Its number.
    num_layers
        Layers that it holds, those of multi-token prediction included.
    microbatch_seconds
        One micro-batch, forward and backward.
    bytes
        Peak device memory by what it holds.
    peak_memory_bytes
        Their sum.
    headroom_bytes
        What it leaves free; negative where it does not fit.
    host_memory_bytes
        Host memory that one of its devices needs.
    """

    rank: int
    num_layers: int
    microbatch_seconds: Figure
    bytes: dict[str, Figure]
    peak_memory_bytes: Figure
    headroom_bytes: Figure
    host_memory_bytes: Figure

    @classmethod
    def of(cls, rank: RankEstimate, memory_bytes: float) -> RankRecord:
        """The record of a rank whose devices have so much memory."""
        return cls(
            rank=rank.rank,
            num_layers=rank.num_layers,
            microbatch_seconds=rank.microbatch_seconds,
            bytes=rank.bytes_by_part,
            peak_memory_bytes=rank.device_bytes,
            headroom_bytes=memory_bytes - rank.device_bytes,
            host_memory_bytes=rank.host_bytes,
        )


class MemoryRecord(Record):
    """
    Memory of one device.

    Parameters
    ----------
    peak_memory_bytes, headroom_bytes
        Peak of the fullest pipeline rank, and what it leaves free.
    allocated_bytes, reserved_bytes
        The same peak as PyTorch counts it: in tensors; in all that its allocator holds.
    host_memory_bytes, host_headroom_bytes
        Host memory of one device, and what it leaves free of its share.
    ranks
        Every pipeline rank.
    """

    peak_memory_bytes: Figure
    allocated_bytes: Figure
    reserved_bytes: Figure
    headroom_bytes: Figure
    host_memory_bytes: Figure
    host_headroom_bytes: Figure
    ranks: list[RankRecord]

    @classmethod
    def of_estimate(cls, estimate: Estimate, device: EquippedDevice) -> MemoryRecord:
        """What a strategy needs of a device and its host."""
        peak_bytes = estimate.device_bytes
        return MemoryRecord(
            peak_memory_bytes=peak_bytes,
            allocated_bytes=seen_bytes(device, peak_bytes, "allocated"),
            reserved_bytes=seen_bytes(device, peak_bytes, "reserved"),
            headroom_bytes=device.memory_bytes - peak_bytes,
            host_memory_bytes=estimate.host_bytes,
            host_headroom_bytes=device.host_memory_bytes - estimate.host_bytes,
            ranks=[RankRecord.of(rank, device.memory_bytes) for rank in estimate.ranks],
        )


class CheckpointRecord(Record):
    """
    When to save.

    Parameters
    ----------
    interval_steps, interval_seconds
        Steps from one checkpoint to the next, and their time.
    unrounded_interval_steps
        Where the continuous optimum lies.
    seconds
        Training time lost per checkpoint.
    """

    interval_steps: int
    interval_seconds: Figure
    unrounded_interval_steps: Figure | None
    seconds: Figure

    @classmethod
    def of(cls, plan: Plan) -> CheckpointRecord:
        """The checkpoints of a plan."""
        return cls(
            interval_steps=plan.schedule.interval_steps,
            interval_seconds=plan.schedule.interval_seconds,
            unrounded_interval_steps=plan.schedule.k_real,
            seconds=plan.checkpoint_seconds,
        )


class TrainingRunRecord(Record):
    """
    The whole training.

    Parameters
    ----------
    num_steps
        Optimizer steps.
    effective_seconds, interruption_seconds, total_seconds
        Steps alone; checkpoints, repeated steps and recoveries; both.
    num_failures
        Expected interruptions.
    ettr
        Effective over total time.
    days, gpu_hours
        Total time; the same times all devices.
    """

    num_steps: int
    effective_seconds: Figure
    interruption_seconds: Figure
    total_seconds: Figure
    num_failures: Figure
    ettr: Figure
    days: Figure
    gpu_hours: Figure

    @classmethod
    def of(cls, schedule: CheckpointSchedule) -> TrainingRunRecord:
        """What a checkpoint schedule makes of the training."""
        return cls(
            num_steps=schedule.num_steps,
            effective_seconds=schedule.effective_seconds,
            interruption_seconds=schedule.interruption_seconds,
            total_seconds=schedule.total_seconds,
            num_failures=schedule.failures,
            ettr=schedule.ettr,
            days=schedule.days,
            gpu_hours=schedule.gpu_hours,
        )


class PlaceRecord(Record):
    """
    Where a plan stands among several.

    Parameters
    ----------
    number
        Its place, from 1.
    slower_fraction, difference_seconds
        How much longer its step is than the first one's.
    within_noise_of_best
        Whether predictions cannot tell it from the first one.
    difference_by_part
        By which seconds each line of its step is longer than the first one's.
    """

    number: int
    slower_fraction: Figure
    within_noise_of_best: bool
    difference_seconds: Figure
    difference_by_part: dict[str, Figure]


class SpeedRecord(Record):
    """
    How fast a strategy is.

    Parameters
    ----------
    num_devices, num_nodes
        Devices and nodes that it uses.
    step_time_seconds
        One optimizer step, played through stage by stage.
    closed_form_step_time_seconds
        The same by the formulas that the search compares strategies by.
    step_time_interval_seconds, step_time_interval_probability, step_time_interval_basis
        Between which bounds a measured step lies, how often, and by which measured runs.
    tokens_per_second_per_gpu
        Tokens that one device trains per second.
    model_tflops_per_gpu, hardware_tflops_per_gpu
        Model FLOPs per second and device, and with those that are recomputed.
    mfu, hfu
        The same over the peak of the conventions.
    """

    num_devices: int
    num_nodes: int
    step_time_seconds: Figure
    closed_form_step_time_seconds: Figure
    step_time_interval_seconds: list[Figure]
    step_time_interval_probability: Figure
    step_time_interval_basis: str
    tokens_per_second_per_gpu: Figure
    model_tflops_per_gpu: Figure
    hardware_tflops_per_gpu: Figure
    mfu: Figure
    hfu: Figure

    @classmethod
    def of_plan(cls, plan: Plan) -> SpeedRecord:
        """How fast a plan is."""
        return SpeedRecord(
            num_devices=plan.cluster.num_devices,
            num_nodes=plan.cluster.num_nodes,
            step_time_seconds=plan.step_seconds,
            closed_form_step_time_seconds=plan.estimate.closed_form_seconds,
            step_time_interval_seconds=[plan.interval.low_seconds, plan.interval.high_seconds],
            step_time_interval_probability=COVERAGE,
            step_time_interval_basis=plan.interval.basis,
            tokens_per_second_per_gpu=plan.tokens_per_second_per_device,
            model_tflops_per_gpu=plan.model_flops_per_second_per_device / 1e12,
            hardware_tflops_per_gpu=plan.hardware_flops_per_second_per_device / 1e12,
            mfu=plan.mfu,
            hfu=plan.hfu,
        )


class PlanRecord(MemoryRecord, SpeedRecord):
    """
    One strategy and all that follows from it.

    Parameters
    ----------
    strategy
        The decisions.
    breakdown
        Where the step goes, on the rank whose pace the others keep.
    checkpoint
        When to save.
    training_run
        The whole training.
    """

    strategy: StrategyRecord
    breakdown: list[PartRecord]
    checkpoint: CheckpointRecord
    training_run: TrainingRunRecord

    @classmethod
    def of_plan(cls, plan: Plan) -> PlanRecord:
        """The record of a plan."""
        return PlanRecord(
            **dict(SpeedRecord.of_plan(plan)),
            **dict(MemoryRecord.of_estimate(plan.estimate, plan.cluster.device)),
            strategy=StrategyRecord.of(plan.strategy, num_microbatches=plan.estimate.num_microbatches),
            breakdown=[PartRecord.model_validate(part) for part in plan.estimate.breakdown],
            checkpoint=CheckpointRecord.of(plan),
            training_run=TrainingRunRecord.of(plan.schedule),
        )


class NumberedPlanRecord(PlanRecord, PlaceRecord):
    """One of several plans."""

    @classmethod
    def of_all(cls, plans: Sequence[Plan]) -> list[NumberedPlanRecord]:
        """The records of plans, best first."""
        return [
            cls(
                number=number,
                slower_fraction=plan.slower_fraction(plans[0]),
                within_noise_of_best=plan.is_within_noise(plans[0]),
                difference_seconds=plan.step_seconds - plans[0].step_seconds,
                difference_by_part=plan.difference(plans[0]),
                **dict(PlanRecord.of_plan(plan)),
            )
            for number, plan in enumerate(plans, start=1)
        ]

    @classmethod
    def alone(cls, plan: PlanRecord) -> NumberedPlanRecord:
        """A plan that is compared with itself."""
        return cls(
            number=1,
            slower_fraction=0.0,
            within_noise_of_best=True,
            difference_seconds=0.0,
            difference_by_part={part.name: 0.0 for part in plan.breakdown},
            **{name: getattr(plan, name) for name in PlanRecord.model_fields},
        )
