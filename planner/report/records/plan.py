"""One plan: its step, its memory, its checkpoints and the whole training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from costmodel.memory.rank import seen_bytes
from planner.report.records.costs import CostsRecord, difference
from planner.report.records.published import BestRunRecord
from planner.report.records.record import Figure, Record, entry
from planner.report.records.strategy import StrategyRecord
from planner.uncertainty.fastest import chances_fastest
from planner.uncertainty.intervals import COVERAGE
from planner.uncertainty.peaks import COVERAGE as PEAK_COVERAGE
from planner.uncertainty.peaks import chance_to_fit, peak_interval, reserved_interval
from planner.uncertainty.retries import chance_fast

if TYPE_CHECKING:
    from collections.abc import Sequence

    from costmodel.facts.cluster import Cluster
    from costmodel.step.estimate import Estimate
    from planner.results import Plan


class PartRecord(Record):
    """One line of a step."""

    name: str = entry("compute, recompute, tp, cp, ep, offload, host, pp, bubble, dp or optimizer.")
    exposed_seconds: Figure = entry("Its share of the step; all lines add up to the step.")
    hidden_seconds: Figure = entry("Time that is overlapped with computation.")


class RankRecord(Record):
    """One pipeline rank."""

    rank: int = entry("Its number.")
    num_layers: int = entry("Layers that it holds, those of multi-token prediction included.")
    microbatch_seconds: Figure = entry("One micro-batch, forward and backward.")
    bytes: dict[str, Figure] = entry("Peak device memory by part, such as weights or activations.", "bytes_by_part")
    peak_memory_bytes: Figure = entry("Their sum.", "device_bytes")
    headroom_bytes: Figure = entry("Device memory that stays free; negative where the rank does not fit.")
    host_memory_bytes: Figure = entry("Host memory that one of its devices needs.", "host_bytes")
    port_bytes: Figure = entry("Bytes that one of its devices copies to the host in a step, and as many back.")


class ChanceRecord(Record):
    """A chance."""

    share: Figure = entry("From 0 to 1.")
    basis: str = entry("The runs or the simulation that it follows from.")


class FitRecord(ChanceRecord):
    """A chance to fit, and how far measured peaks are from predicted ones."""

    peak_memory_interval_bytes: list[Figure] = entry("Bounds between which a measured peak lies.")
    reserved_interval_bytes: list[Figure] = entry(
        "Bounds of the memory that PyTorch's allocator reserves where it has room."
    )
    interval_probability: Figure = entry("Share of the measured peaks that lie within such bounds.")


class MemoryRecord(Record):
    """Memory of one device."""

    peak_memory_bytes: Figure = entry("Peak of the fullest pipeline rank.", "device_bytes")
    allocated_bytes: Figure = entry("Peak as PyTorch counts it in tensors.")
    reserved_bytes: Figure = entry(
        "Memory that PyTorch's allocator reserves at that peak where it has room; near the limit it frees unused "
        "blocks, so that the peak that must fit may be smaller."
    )
    headroom_bytes: Figure = entry(
        "Device memory that stays free on the fullest pipeline rank; negative where it does not fit."
    )
    chance_to_fit: FitRecord = entry("Chance that the fullest pipeline rank fits.")
    chance_fast: ChanceRecord = entry(
        "Chance that PyTorch's allocator never retries there; with retries a step is far slower than its kernels."
    )
    host_memory_bytes: Figure = entry("Host memory that one device needs.", "host_bytes")
    host_headroom_bytes: Figure = entry("Host memory that stays free of one device's share.")
    ranks: list[RankRecord] = entry("Every pipeline rank.")

    @classmethod
    def build_from_estimate(cls, estimate: Estimate, cluster: Cluster) -> MemoryRecord:
        """Build the record of the device and host memory that a strategy needs."""
        device, peak_bytes = cluster.device, estimate.device_bytes
        room_bytes, chance = device.memory_bytes, chance_to_fit(cluster, device_bytes=peak_bytes)
        return MemoryRecord.read(
            estimate,
            allocated_bytes=seen_bytes(device, peak_bytes, "allocated"),
            reserved_bytes=seen_bytes(device, peak_bytes, "reserved", estimate.strategy),
            headroom_bytes=room_bytes - peak_bytes,
            chance_to_fit=FitRecord.read(
                chance,
                peak_memory_interval_bytes=list(peak_interval(cluster, device_bytes=peak_bytes)),
                reserved_interval_bytes=list(reserved_interval(cluster, estimate.strategy, device_bytes=peak_bytes)),
                interval_probability=PEAK_COVERAGE,
            ),
            chance_fast=ChanceRecord.read(chance_fast(cluster, estimate.strategy, device_bytes=peak_bytes)),
            host_headroom_bytes=device.host_memory_bytes - estimate.host_bytes,
            ranks=[RankRecord.read(one, headroom_bytes=room_bytes - one.device_bytes) for one in estimate.ranks],
        )


class CheckpointRecord(Record):
    """The checkpoint interval and its costs."""

    interval_steps: int = entry("Steps from one checkpoint to the next.", "schedule.interval_steps")
    interval_seconds: Figure = entry("Time of these steps.", "schedule.interval_seconds")
    unrounded_interval_steps: Figure | None = entry(
        "The optimal interval before rounding to whole steps.", "schedule.continuous_interval_steps"
    )
    seconds: Figure = entry("Training time lost per checkpoint.", "checkpoint_seconds")
    num_checkpoints: int = entry("Checkpoints that the whole training saves.", "schedule.num_checkpoints")
    nbytes: Figure | None = entry("Size of each: weights and optimizer states.", "checkpoint_bytes")
    write_seconds: Figure = entry("Time for which each is written to storage.", "reliability.storage_seconds")
    write_fraction: Figure = entry("Share of the time in which they are written.", "schedule.write_fraction")
    storage_bytes_per_second: Figure | None = entry("Storage bandwidth of all devices together.", "storage_bandwidth")
    kept: int | None = entry("Number of the newest checkpoints that are kept.", "kept_checkpoints")


class TrainingRunRecord(Record):
    """The whole training."""

    num_steps: int = entry("Optimizer steps.")
    effective_seconds: Figure = entry("Steps alone.")
    interruption_seconds: Figure = entry("Checkpoints, repeated steps and recoveries.")
    total_seconds: Figure = entry("Steps and interruptions.")
    num_failures: Figure = entry("Expected interruptions.", "failures")
    ettr: Figure = entry("Effective over total time.")
    days: Figure = entry("Total time.")
    gpu_hours: Figure = entry("Total time times the devices that it uses.")


class PlaceRecord(Record):
    """The place of a plan among several."""

    number: int = entry("Its place, from 1.")
    slower_fraction: Figure = entry(
        "Time by which its step is longer than the first one's, as a fraction of that; negative where it is shorter."
    )
    within_noise_of_best: bool = entry("True if predictions cannot tell it from the first one.")
    chance_fastest: Figure = entry(
        "The chance that its measured step is the shortest of the listed plans', by the errors of such differences."
    )
    difference_seconds: Figure = entry("Seconds by which its step is longer than the first one's.")
    difference_by_part: dict[str, Figure] = entry(
        "Seconds by which each line of its step is longer than the first one's."
    )
    difference_cost: Figure | None = entry("Money that it costs more than the first one; null without prices.")


class GapRecord(Record):
    """One property of a plan that few or no measured runs have, so that its figures are extrapolated."""

    dimension: str = entry("software, device, kind or family of the model, a decision, a size, or the like.")
    value: str = entry("Its value in the plan.")
    runs: int = entry("Measured runs that have it.")
    beyond: Figure = entry("A number over the largest that was measured; 1 where it is not larger.")
    sentence: str = entry("The gap in words.")


class UnprovenRecord(Record):
    """A feature, or a pair of them, that too few measured runs have."""

    names: list[str] = entry("The decisions, one or two.")
    text: str = entry("The feature in words.")
    runs: int = entry("Measured runs that have it.")
    among: int = entry("Measured runs of the same generation of devices, family of models and stack line.")
    where: str = entry("These runs in words.")


class SpeedRecord(Record):
    """The speed of a strategy."""

    num_devices: int = entry("Devices that it uses.", "cluster.num_devices")
    num_nodes: int = entry("Nodes that it uses.", "cluster.num_nodes")
    step_time_seconds: Figure = entry("One optimizer step, simulated pass by pass.", "step_seconds")
    closed_form_step_time_seconds: Figure = entry(
        "One optimizer step by the closed form, which the search compares strategies by.",
        "estimate.closed_form_seconds",
    )
    step_time_interval_seconds: list[Figure] = entry("Bounds between which a measured step lies.")
    step_time_interval_probability: Figure = entry("Chance that a measured step lies between them.")
    step_time_interval_basis: str = entry("Measured runs that the interval follows from.", "interval.basis")
    above_record_fraction: Figure | None = entry(
        "Its tokens per second over those of the best published run that compares, minus 1; null where there is none."
    )
    record: BestRunRecord | None = entry("The best published run that compares; null where there is none.")
    gaps: list[GapRecord] = entry("Properties that few or no measured runs have, the most important first.")
    contested_seconds: Figure = entry(
        "Hidden tp and cp communication that may show, since FSDP or EP overlap want other CUDA connections."
    )
    unproven: list[UnprovenRecord] = entry("Features, and pairs of them, that too few measured runs have.")
    tokens_per_second_per_gpu: Figure = entry(
        "Tokens that one device trains per second.", "tokens_per_second_per_device"
    )
    model_tflops_per_gpu: Figure = entry("Model FLOPs per second and device.")
    hardware_tflops_per_gpu: Figure = entry("Model and recomputed FLOPs per second and device.")
    mfu: Figure = entry("Model FLOPs over the peak of the conventions.")
    hfu: Figure = entry("Model and recomputed FLOPs over the peak of the conventions.")
    mfu_bf16: Figure | None = entry(
        "Model FLOPs over the dense bf16 peak, whatever the precision; null where the device has none."
    )


class PlanRecord(MemoryRecord, SpeedRecord):
    """One strategy and all that follows from it."""

    line: str = entry("The plan in one line, as every verb takes it.")
    strategy: StrategyRecord = entry("The decisions.")
    settings: dict[str, bool | int | float | str] = entry(
        "The values of the settings of which the job gives several.", "problem.settings"
    )
    breakdown: list[PartRecord] = entry(
        "Time of the step by line, on the pipeline rank that sets the pace.", "estimate.breakdown"
    )
    checkpoint: CheckpointRecord = entry("The checkpoint interval and its costs.")
    training_run: TrainingRunRecord = entry("The whole training.")
    costs: CostsRecord = entry("Money and energy of the whole training.")

    @classmethod
    def build_from_plan(cls, plan: Plan) -> PlanRecord:
        """Build the record of a plan."""
        strategy = StrategyRecord.build(plan.problem, plan.strategy)
        return PlanRecord.read(
            plan,
            **dict(MemoryRecord.build_from_estimate(plan.estimate, plan.cluster)),
            step_time_interval_seconds=[plan.interval.low_seconds, plan.interval.high_seconds],
            step_time_interval_probability=COVERAGE,
            above_record_fraction=plan.record.above_fraction if plan.record and plan.record.same_model else None,
            model_tflops_per_gpu=plan.model_flops_per_second_per_device / 1e12,
            hardware_tflops_per_gpu=plan.hardware_flops_per_second_per_device / 1e12,
            line=strategy.line,
            strategy=strategy,
            checkpoint=plan,
            training_run=TrainingRunRecord.read(plan.schedule),
            costs=CostsRecord.build(plan),
        )


class NumberedPlanRecord(PlanRecord, PlaceRecord):
    """One of several plans."""

    @classmethod
    def build_all(cls, plans: Sequence[Plan]) -> list[NumberedPlanRecord]:
        """Build the records of plans, best first."""
        chances = chances_fastest([plan.step_seconds for plan in plans], plans[0].noise_fraction) if plans else []
        records = [PlanRecord.build_from_plan(plan) for plan in plans]
        return [
            cls(
                number=number,
                slower_fraction=plan.slower_fraction(plans[0]),
                within_noise_of_best=plan.is_within_noise(plans[0]),
                chance_fastest=chances[number - 1],
                difference_seconds=plan.step_seconds - plans[0].step_seconds,
                difference_by_part=plan.difference(plans[0]),
                difference_cost=difference(record.costs.total_cost, records[0].costs.total_cost),
                **dict(record),
            )
            for number, (plan, record) in enumerate(zip(plans, records, strict=True), start=1)
        ]
