"""One plan: its step, its memory, its checkpoints and the whole training."""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING, Any, Self, cast

from costmodel.memory.rank import seen_bytes
from costmodel.step.estimate import Part
from planner.report.records.costs import CostsRecord, difference
from planner.report.records.record import Figure, Record, late_entry
from planner.report.records.strategy import StrategyRecord
from planner.uncertainty.evidence.features import Unproven
from planner.uncertainty.evidence.gaps import Gap
from planner.uncertainty.intervals import COVERAGE, chances_fastest
from planner.uncertainty.peaks import COVERAGE as PEAK_COVERAGE
from planner.uncertainty.peaks import Chance, allocator_interval, chance_fast, chance_to_fit, peak_interval

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from costmodel.facts.device import Cluster
    from costmodel.step.estimate import Estimate, RankEstimate
    from planner.results import Plan
    from planner.uncertainty.records import BestRun
    from planner.verbs.recipes import JudgedLayout


class BestRunRecord(Record):
    """
    The best published run of the job's model, device and bits, else of the nearest model, beside the prediction.

    Parameters
    ----------
    id
        Its id among the project's measured runs.
    label
        The project and release.
    source
        Its publisher.
    framework
        Its software, as the catalog calls it; empty where it has none.
    date
        Date of publication.
    model
        Its model, as the project's measured runs call it.
    same_model
        True if it is of the job's model; otherwise it is of the nearest model on such devices.
    device
        Its device.
    mfu
        Its model FLOP/s over the dense peak, causal attention.
    precision
        Its precision recipe.
    sequence_length
        Tokens of a sequence.
    num_devices
        Devices.
    tokens_per_second_per_gpu
        Measured tokens per second and device.
    notes
        Conditions that flatter the run; empty: none.
    comparable_tokens_per_second_per_gpu
        Its rate converted to the job's tokens by model FLOP/s; by MFU where the model is another.
    same_sequence
        True if its sequences are as long as the job's.
    step_time_seconds
        A step of the job at that rate.
    above_fraction
        Prediction over the published rate, minus 1.
    is_recent
        True if a run that compares is of a release at most a year older than the costed one.
    is_doubtful
        True if the prediction is so far above it that it is doubted.
    """

    id: str
    label: str
    source: str
    framework: str
    date: str
    model: str
    same_model: bool
    device: str
    mfu: Figure
    precision: str
    sequence_length: int
    num_devices: int
    tokens_per_second_per_gpu: Figure
    notes: str
    comparable_tokens_per_second_per_gpu: Figure
    same_sequence: bool
    step_time_seconds: Figure
    above_fraction: Figure
    is_recent: bool
    is_doubtful: bool

    @classmethod
    def build(cls, best: BestRun | None) -> BestRunRecord | None:
        """Build the record of the best run, if there is one."""
        if best is None:
            return None
        return cls.read(
            best,
            best.record,
            tokens_per_second_per_gpu=best.record.tokens_per_second_per_device,
            comparable_tokens_per_second_per_gpu=best.comparable_rate,
            step_time_seconds=best.record_step_seconds,
        )


class PublishedLayoutRecord(Record):
    """
    A published layout as a strategy of the job.

    Parameters
    ----------
    title
        The name that reports give it.
    recipe
        The id of its recipe: planner explain JOB.yaml --recipe ID.
    name
        The recipe's name where it is published.
    source
        The project, tag and file that publish it.
    release
        The one of its releases that is nearest to the job's.
    notes
        Changes that were made to it for the job.
    strategy
        The decisions.
    step_time_seconds
        Its step by the planner's own estimate.
    peak_memory_bytes
        Its peak.
    slower_fraction
        Time by which its step is longer than the first plan's, as a fraction of that.
    broken_rules
        Sentences of the rules that forbid it.
    outside
        Why the job's search does not try it; empty: it does.
    """

    title: str
    recipe: str
    name: str
    source: str
    release: str
    notes: list[str]
    strategy: StrategyRecord
    step_time_seconds: Figure
    peak_memory_bytes: Figure
    slower_fraction: Figure
    broken_rules: list[str]
    outside: list[str]

    @classmethod
    def build(cls, judged: JudgedLayout | None, step_seconds: float) -> PublishedLayoutRecord | None:
        """Build the record of a judged layout, compared with the first plan's step."""
        if judged is None:
            return None
        layout, plan = judged.layout, judged.report.plan
        return cls.read(
            layout,
            layout.recipe,
            judged,
            judged.report,
            recipe=layout.recipe.id,
            strategy=StrategyRecord.build(layout.problem, layout.strategy),
            step_time_seconds=plan.step_seconds,
            peak_memory_bytes=plan.estimate.device_bytes,
            slower_fraction=plan.step_seconds / step_seconds - 1,
        )


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
        Peak device memory by part, such as weights or activations.
    peak_memory_bytes
        Their sum.
    headroom_bytes
        Device memory that stays free; negative where the rank does not fit.
    host_memory_bytes
        Host memory that one of its devices needs.
    port_bytes
        Bytes that one of its devices copies to the host in a step, and as many back.
    """

    rank: int
    num_layers: int
    microbatch_seconds: Figure
    bytes: dict[str, Figure]
    peak_memory_bytes: Figure
    headroom_bytes: Figure
    host_memory_bytes: Figure
    port_bytes: Figure

    @classmethod
    def build(cls, rank: RankEstimate, room_bytes: float) -> RankRecord:
        """Build the record of a rank whose devices have so much memory."""
        return cls.read(
            rank,
            bytes=rank.bytes_by_part,
            peak_memory_bytes=rank.device_bytes,
            headroom_bytes=room_bytes - rank.device_bytes,
            host_memory_bytes=rank.host_bytes,
        )


class FitRecord(Record):
    """
    A chance to fit, and how far measured peaks are from predicted ones.

    Parameters
    ----------
    share
        From 0 to 1.
    basis
        Runs or figures behind it.
    peak_memory_interval_bytes
        Bounds between which a measured peak lies.
    reserved_interval_bytes
        Bounds of the memory that PyTorch's allocator reserves where it has room.
    interval_probability
        Share of the measured peaks that lie within such bounds.
    """

    share: float
    basis: str
    peak_memory_interval_bytes: list[Figure]
    reserved_interval_bytes: list[Figure]
    interval_probability: Figure


class MemoryRecord(Record):
    """
    Memory of one device.

    Parameters
    ----------
    peak_memory_bytes
        Peak of the fullest pipeline rank.
    allocated_bytes
        Peak as PyTorch counts it in tensors.
    reserved_bytes
        Memory that PyTorch's allocator reserves at that peak where it has room; near the limit it frees unused blocks,
        so that the peak that must fit may be smaller.
    headroom_bytes
        Device memory that stays free on the fullest pipeline rank; negative where it does not fit.
    chance_to_fit
        Chance that the fullest pipeline rank fits.
    chance_fast
        Chance that PyTorch's allocator never retries there; with retries a step is far slower than its kernels.
    host_memory_bytes
        Host memory that one device needs.
    host_headroom_bytes
        Host memory that stays free of one device's share.
    ranks
        Every pipeline rank.
    """

    peak_memory_bytes: Figure
    allocated_bytes: Figure
    reserved_bytes: Figure
    headroom_bytes: Figure
    chance_to_fit: FitRecord
    chance_fast: Chance
    host_memory_bytes: Figure
    host_headroom_bytes: Figure
    ranks: list[RankRecord]

    @classmethod
    def build_from_estimate(cls, estimate: Estimate, cluster: Cluster) -> MemoryRecord:
        """Build the record of the device and host memory that a strategy needs."""
        device, peak_bytes = cluster.device, estimate.device_bytes
        room_bytes, chance = device.memory_bytes, chance_to_fit(cluster, device_bytes=peak_bytes)
        return MemoryRecord.read(
            estimate,
            peak_memory_bytes=peak_bytes,
            allocated_bytes=seen_bytes(device, peak_bytes, "allocated"),
            reserved_bytes=seen_bytes(device, peak_bytes, "reserved", estimate.strategy),
            headroom_bytes=room_bytes - peak_bytes,
            chance_to_fit=FitRecord.read(
                chance,
                peak_memory_interval_bytes=list(peak_interval(cluster, device_bytes=peak_bytes)),
                reserved_interval_bytes=list(allocator_interval(cluster, estimate.strategy, device_bytes=peak_bytes)),
                interval_probability=PEAK_COVERAGE,
            ),
            chance_fast=chance_fast(cluster, estimate.strategy, device_bytes=peak_bytes),
            host_memory_bytes=estimate.host_bytes,
            host_headroom_bytes=device.host_memory_bytes - estimate.host_bytes,
            ranks=[RankRecord.build(one, room_bytes) for one in estimate.ranks],
        )


class CheckpointRecord(Record):
    """
    The checkpoint interval and its costs.

    Parameters
    ----------
    interval_steps
        Steps from one checkpoint to the next.
    interval_seconds
        Time of these steps.
    unrounded_interval_steps
        The optimal interval before rounding to whole steps.
    seconds
        Training time lost per checkpoint.
    num_checkpoints
        Checkpoints that the whole training saves.
    nbytes
        Size of each: weights and optimizer states.
    write_seconds
        Time for which each is written to storage.
    write_fraction
        Share of the time in which they are written.
    storage_bytes_per_second
        Storage bandwidth of all devices together.
    kept
        Number of the newest checkpoints that are kept.
    """

    interval_steps: int
    interval_seconds: Figure
    unrounded_interval_steps: Figure | None
    seconds: Figure
    num_checkpoints: int
    nbytes: Figure | None
    write_seconds: Figure
    write_fraction: Figure
    storage_bytes_per_second: Figure | None
    kept: int | None

    @classmethod
    def build(cls, plan: Plan) -> CheckpointRecord:
        """Build the record of a plan's checkpoints."""
        return cls.read(
            plan.schedule,
            unrounded_interval_steps=plan.schedule.continuous_interval_steps,
            seconds=plan.checkpoint_seconds,
            nbytes=plan.checkpoint_bytes,
            write_seconds=plan.reliability.storage_seconds,
            storage_bytes_per_second=plan.storage_bandwidth,
            kept=plan.kept_checkpoints,
        )


class TrainingRunRecord(Record):
    """
    The whole training.

    Parameters
    ----------
    num_steps
        Optimizer steps.
    effective_seconds
        Steps alone.
    interruption_seconds
        Checkpoints, repeated steps and recoveries; the start, evaluations and waits for data that the job gives.
    evaluation_seconds
        Evaluations, a part of the interruptions.
    loading_seconds
        Waits for data, a part of the interruptions.
    total_seconds
        Steps and interruptions.
    num_failures
        Expected interruptions.
    ettr
        Effective over total time.
    days
        Total time.
    days_interval
        Days at both ends of the interval of measured steps.
    gpu_hours
        Total time times the devices that it uses.
    """

    num_steps: int
    effective_seconds: Figure
    interruption_seconds: Figure
    evaluation_seconds: Figure
    loading_seconds: Figure
    total_seconds: Figure
    num_failures: Figure
    ettr: Figure
    days: Figure
    days_interval: list[Figure]
    gpu_hours: Figure


class PlaceRecord(Record):
    """
    The place of a plan among several.

    Parameters
    ----------
    number
        Its place, from 1.
    slower_fraction
        Time by which its step is longer than the first one's, as a fraction of that; negative where it is shorter.
    within_noise_of_best
        True if predictions cannot tell it from the first one.
    chance_fastest
        The chance that its measured step is the shortest of the listed plans', by the errors of such differences.
    difference_seconds
        Seconds by which its step is longer than the first one's.
    difference_by_part
        Seconds by which each line of its step is longer than the first one's.
    difference_cost
        Money that it costs more than the first one; null without prices.
    """

    number: int
    slower_fraction: Figure
    within_noise_of_best: bool
    chance_fastest: Figure
    difference_seconds: Figure
    difference_by_part: dict[str, Figure]
    difference_cost: Figure | None = late_entry()


class SpeedRecord(Record):
    """
    The speed of a strategy.

    Parameters
    ----------
    num_devices
        Devices that it uses.
    num_nodes
        Nodes that it uses.
    step_time_seconds
        One optimizer step, simulated pass by pass.
    closed_form_step_time_seconds
        One optimizer step by the closed form, which the search compares strategies by.
    step_time_interval_seconds
        Bounds between which a measured step lies.
    step_time_interval_probability
        Chance that a measured step lies between them.
    step_time_interval_basis
        Measured runs that the interval follows from.
    above_record_fraction
        Its tokens per second over those of the best published run that compares, minus 1; null where there is none.
    record
        The best published run that compares; null where there is none.
    gaps
        Properties that few or no measured runs have, the most important first.
    contested_seconds
        Hidden tp and cp communication that may show, since FSDP or EP overlap want other CUDA connections.
    unproven
        Features, and pairs of them, that too few measured runs have.
    site_links_seconds
        Time of the step in which devices wait for the links between sites; 0 with one site.
    length_imbalance_seconds
        Time of the step, part of its bubble, in which ranks wait for longer packed sequences; 0 with equal lengths.
    tokens_per_second_per_gpu
        Tokens that one device trains per second.
    model_tflops_per_gpu
        Model FLOPs per second and device.
    hardware_tflops_per_gpu
        Model and recomputed FLOPs per second and device.
    mfu
        Model FLOPs over the peak of the conventions.
    hfu
        Model and recomputed FLOPs over the peak of the conventions.
    mfu_bf16
        Model FLOPs over the dense bf16 peak, whatever the precision; null where the device has none.
    """

    num_devices: int
    num_nodes: int
    step_time_seconds: Figure
    closed_form_step_time_seconds: Figure
    step_time_interval_seconds: list[Figure]
    step_time_interval_probability: Figure
    step_time_interval_basis: str
    above_record_fraction: Figure | None
    record: BestRunRecord | None
    gaps: list[Gap]
    contested_seconds: Figure
    unproven: list[Unproven]
    site_links_seconds: Figure
    length_imbalance_seconds: Figure
    tokens_per_second_per_gpu: Figure
    model_tflops_per_gpu: Figure
    hardware_tflops_per_gpu: Figure
    mfu: Figure
    hfu: Figure
    mfu_bf16: Figure | None


class PlanRecord(MemoryRecord, SpeedRecord):
    """
    One strategy and all that follows from it.

    Parameters
    ----------
    line
        The plan in one line, as every verb takes it.
    strategy
        The decisions.
    settings
        The values of the settings of which the job gives several.
    breakdown
        Time of the step by line, on the pipeline rank that sets the pace.
    checkpoint
        The checkpoint interval and its costs.
    training_run
        The whole training.
    costs
        Money and energy of the whole training.
    """

    line: str
    strategy: StrategyRecord
    settings: dict[str, bool | int | float | str]
    breakdown: list[Part]
    checkpoint: CheckpointRecord
    training_run: TrainingRunRecord
    costs: CostsRecord = late_entry()

    @property
    def plan(self) -> Plan:
        """The plan itself."""
        return cast("Plan", self._sources[0])

    @classmethod
    def build_from_plan(cls, plan: Plan, **others: Any) -> Self:
        """Build the record of a plan, with entries that only some records of plans have."""
        strategy = StrategyRecord.build(plan.problem, plan.strategy)
        return cls.read(
            plan,
            plan.cluster,
            plan.estimate,
            **dict(MemoryRecord.build_from_estimate(plan.estimate, plan.cluster)),
            step_time_seconds=plan.step_seconds,
            closed_form_step_time_seconds=plan.closed_form_seconds,
            step_time_interval_basis=plan.interval.basis,
            settings=dict(plan.problem.settings),
            tokens_per_second_per_gpu=plan.tokens_per_second_per_device,
            record=BestRunRecord.build(plan.record),
            step_time_interval_seconds=[plan.interval.low_seconds, plan.interval.high_seconds],
            step_time_interval_probability=COVERAGE,
            above_record_fraction=plan.record.above_fraction if plan.record and plan.record.same_model else None,
            model_tflops_per_gpu=plan.model_flops_per_second_per_device / 1e12,
            hardware_tflops_per_gpu=plan.hardware_flops_per_second_per_device / 1e12,
            line=strategy.line,
            strategy=strategy,
            checkpoint=CheckpointRecord.build(plan),
            training_run=TrainingRunRecord.read(plan.schedule, plan, num_failures=plan.schedule.failures),
            **{"costs": partial(CostsRecord.build, plan), **others},
        )


class NumberedPlanRecord(PlanRecord, PlaceRecord):
    """One of several plans."""

    @classmethod
    def build_all(cls, plans: Sequence[Plan]) -> list[NumberedPlanRecord]:
        """Build the records of plans, best first."""
        chances = chances_fastest([plan.step_seconds for plan in plans], plans[0].noise_fraction) if plans else []
        costs = [cache(partial(CostsRecord.build, plan)) for plan in plans]
        return [
            cls.build_from_plan(
                plan,
                number=place + 1,
                slower_fraction=plan.slower_fraction(plans[0]),
                within_noise_of_best=plan.is_within_noise(plans[0]),
                chance_fastest=chances[place],
                difference_seconds=plan.step_seconds - plans[0].step_seconds,
                difference_by_part=plan.difference(plans[0]),
                costs=costs[place],
                difference_cost=partial(_cost_difference, costs[place], costs[0]),
            )
            for place, plan in enumerate(plans)
        ]


def _cost_difference(own: Callable[[], CostsRecord], first: Callable[[], CostsRecord]) -> float | None:
    """Return the money that a plan costs more than the first one."""
    return difference(own().total_cost, first().total_cost)
