"""One plan: its step, its memory, its checkpoints and the whole training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from costmodel.memory.rank import seen_bytes
from planner.report.records.record import Figure, Record
from planner.report.records.strategy import StrategyRecord
from planner.uncertainty.intervals import COVERAGE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from costmodel.facts.device import EquippedDevice
    from costmodel.step.estimate import Estimate, RankEstimate
    from planner.checkpoints import CheckpointSchedule
    from planner.plan import Plan


class PartRecord(Record):
    """One line of a step."""

    name: str = Field(description="compute, recompute, tp, cp, ep, offload, host, pp, bubble, dp or optimizer.")
    exposed_seconds: Figure = Field(description="Its share of the step; all lines add up to the step.")
    hidden_seconds: Figure = Field(description="Time that is overlapped with computation.")


class RankRecord(Record):
    """One pipeline rank."""

    rank: int = Field(description="Its number.")
    num_layers: int = Field(description="Layers that it holds, those of multi-token prediction included.")
    microbatch_seconds: Figure = Field(description="One micro-batch, forward and backward.")
    bytes: dict[str, Figure] = Field(description="Peak device memory by what it holds.")
    peak_memory_bytes: Figure = Field(description="Their sum.")
    headroom_bytes: Figure = Field(description="What it leaves free; negative where it does not fit.")
    host_memory_bytes: Figure = Field(description="Host memory that one of its devices needs.")

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
    """Memory of one device."""

    peak_memory_bytes: Figure = Field(description="Peak of the fullest pipeline rank.")
    allocated_bytes: Figure = Field(description="The same peak as PyTorch counts it in tensors.")
    reserved_bytes: Figure = Field(description="The same peak as PyTorch counts it in all that its allocator holds.")
    headroom_bytes: Figure = Field(
        description="What the fullest pipeline rank leaves free; negative where it does not fit."
    )
    host_memory_bytes: Figure = Field(description="Host memory that one device needs.")
    host_headroom_bytes: Figure = Field(description="What one device leaves free of its share of the host memory.")
    ranks: list[RankRecord] = Field(description="Every pipeline rank.")

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
    """When to save."""

    interval_steps: int = Field(description="Steps from one checkpoint to the next.")
    interval_seconds: Figure = Field(description="Time of these steps.")
    unrounded_interval_steps: Figure | None = Field(description="Where the continuous optimum lies.")
    seconds: Figure = Field(description="Training time lost per checkpoint.")

    @classmethod
    def of(cls, plan: Plan) -> CheckpointRecord:
        """The checkpoints of a plan."""
        return cls(
            interval_steps=plan.schedule.interval_steps,
            interval_seconds=plan.schedule.interval_seconds,
            unrounded_interval_steps=plan.schedule.continuous_interval_steps,
            seconds=plan.checkpoint_seconds,
        )


class TrainingRunRecord(Record):
    """The whole training."""

    num_steps: int = Field(description="Optimizer steps.")
    effective_seconds: Figure = Field(description="Steps alone.")
    interruption_seconds: Figure = Field(description="Checkpoints, repeated steps and recoveries.")
    total_seconds: Figure = Field(description="Steps and interruptions.")
    num_failures: Figure = Field(description="Expected interruptions.")
    ettr: Figure = Field(description="Effective over total time.")
    days: Figure = Field(description="Total time.")
    gpu_hours: Figure = Field(description="Total time times all devices.")

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
    """Where a plan stands among several."""

    number: int = Field(description="Its place, from 1.")
    slower_fraction: Figure = Field(
        description="How much longer its step is than the first one's, as a fraction of that."
    )
    within_noise_of_best: bool = Field(description="Whether predictions cannot tell it from the first one.")
    difference_seconds: Figure = Field(description="How much longer its step is than the first one's.")
    difference_by_part: dict[str, Figure] = Field(
        description="By which seconds each line of its step is longer than the first one's."
    )


class SpeedRecord(Record):
    """How fast a strategy is."""

    num_devices: int = Field(description="Devices that it uses.")
    num_nodes: int = Field(description="Nodes that it uses.")
    step_time_seconds: Figure = Field(description="One optimizer step, simulated pass by pass.")
    closed_form_step_time_seconds: Figure = Field(
        description="One optimizer step by the closed form, which the search compares strategies by."
    )
    step_time_interval_seconds: list[Figure] = Field(description="Between which bounds a measured step lies.")
    step_time_interval_probability: Figure = Field(description="How often a measured step lies between them.")
    step_time_interval_basis: str = Field(description="By which measured runs that is known.")
    tokens_per_second_per_gpu: Figure = Field(description="Tokens that one device trains per second.")
    model_tflops_per_gpu: Figure = Field(description="Model FLOPs per second and device.")
    hardware_tflops_per_gpu: Figure = Field(description="The same with FLOPs that are recomputed.")
    mfu: Figure = Field(description="Model FLOPs over the peak of the conventions.")
    hfu: Figure = Field(description="The same with FLOPs that are recomputed.")

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
    """One strategy and all that follows from it."""

    strategy: StrategyRecord = Field(description="The decisions.")
    breakdown: list[PartRecord] = Field(description="Where the step goes, on the rank whose pace the others keep.")
    checkpoint: CheckpointRecord = Field(description="When to save.")
    training_run: TrainingRunRecord = Field(description="The whole training.")

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
