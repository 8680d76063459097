"""One plan: its strategy, its step, its memory, its checkpoints, the whole training, and its money and energy."""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING, Any, Self, cast

from costmodel import catalog
from costmodel.memory import seen_bytes
from costmodel.pipelines.schedules import passes_alone
from costmodel.pipelines.stages import stage_layout
from costmodel.step.estimate import Part
from costmodel.strategy import StageLayout
from costmodel.tables import microbatches
from planner.jobs.document import decision_value
from planner.jobs.line import recompute_text, write_line
from planner.report.records import Figure, Record, itself, read_from
from planner.uncertainty.counts import Gap
from planner.uncertainty.features import Unproven
from planner.uncertainty.intervals import COVERAGE, chances_fastest
from planner.uncertainty.peaks import COVERAGE as PEAK_COVERAGE
from planner.uncertainty.peaks import Chance, allocator_interval, chance_fast, chance_to_fit, peak_interval

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from costmodel.costs import Energy
    from costmodel.facts.device import Cluster
    from costmodel.step.estimate import Estimate
    from costmodel.strategy import Strategy
    from planner.jobs.problem import Problem
    from planner.results import Plan
    from planner.search.recipes import PublishedLayout


class StrategyRecord(Record):
    """
    Every decision by name, as job files spell its value.

    Parameters
    ----------
    tp
        Tensor-parallel degree.
    cp
        Context-parallel degree.
    pp
        Pipeline-parallel degree.
    dp
        Data-parallel degree.
    ep
        Expert-parallel degree.
    etp
        Tensor-parallel degree inside experts.
    vpp
        Model chunks per pipeline rank.
    group
        Micro-batches that pass through a chunk before the next one begins.
    mbs
        Sequences per micro-batch.
    sequence_parallel
        True if norms and residuals are split over the tensor-parallel ranks.
    schedule
        Pipeline schedule.
    vocabulary
        Pipeline ranks that hold embedding and head.
    sharding
        States that are sharded over the data-parallel ranks.
    recompute
        Activations that the backward pass recomputes; modules are joined by +.
    activation_offload
        True if activations are offloaded to host memory.
    optimizer_offload
        True if optimizer states are kept in host memory.
    token_dispatcher
        Token dispatcher of the MoE layers.
    cuda_graphs
        Scope of CUDA graphs; modules are joined by +.
    tp_overlap
        True if tensor-parallel communication is overlapped with computation.
    cp_overlap
        True if context-parallel communication is overlapped with computation.
    ep_overlap
        True if expert-parallel communication is overlapped with computation.
    pp_overlap
        True if pipeline communication is overlapped with computation.
    dp_overlap
        True if data-parallel communication is overlapped with computation.
    layout
        The stages; null where there is only one.
    num_microbatches
        Micro-batches per pipeline and step.
    """

    tp: int
    cp: int
    pp: int
    dp: int
    ep: int
    etp: int
    vpp: int
    group: int
    mbs: int
    sequence_parallel: bool
    schedule: str
    vocabulary: str
    sharding: str
    recompute: str
    activation_offload: bool
    optimizer_offload: bool
    token_dispatcher: str
    cuda_graphs: str
    tp_overlap: bool
    cp_overlap: bool
    ep_overlap: bool
    pp_overlap: bool
    dp_overlap: bool
    layout: StageLayout | None
    num_microbatches: int

    @property
    def line(self) -> str:
        """The strategy in one line, as every verb takes it, with settings that were chosen of several."""
        strategy, problem = self._sources
        return write_line(problem.facts, strategy, problem.settings)

    def spell_recompute(self, modules: str) -> str:
        """Write modules to recompute by Megatron-LM's names, as the line does."""
        return recompute_text(self._sources[1].facts.model, decision_value("recompute", modules, "recompute"))

    @property
    def idle_overlap(self) -> str:
        """EP overlap in words where most passes of its pipeline run alone; empty for other strategies."""
        passes = self.num_microbatches * self.vpp
        alone = int(passes_alone(vpp=self.vpp, group=self.group, num_microbatches=self.num_microbatches))
        if not self.ep_overlap or 2 * alone <= passes:
            return ""
        more = "smaller groups of micro-batches" if self.group > self.pp else "more micro-batches"
        return (
            f"{alone} of a rank's {passes} forward passes run alone, and overlap=ep "
            f"(--overlap-moe-expert-parallel-comm) hides nothing of their all-to-alls; {more} hide more"
        )

    @property
    def has_own_stages(self) -> bool:
        """True if the stages are given, not derived from the decisions."""
        return self._sources[0].layout is not None

    @classmethod
    def build(cls, problem: Problem, strategy: Strategy) -> StrategyRecord:
        """Build the record of a strategy for a job."""
        facts = problem.facts
        is_single = strategy.layout is None and strategy.pp * strategy.vpp == 1
        return cls.read(
            strategy,
            problem,
            layout=None if is_single else stage_layout(strategy, facts.model),
            num_microbatches=int(microbatches(facts, strategy.decisions())),
        )

    @classmethod
    def build_optional(cls, problem: Problem, strategy: Strategy | None) -> StrategyRecord | None:
        """Build the record of a strategy, if there is one."""
        return None if strategy is None else cls.build(problem, strategy)


def decisions_of(one: Plan | PublishedLayout) -> StrategyRecord:
    """Build the record of the strategy of a plan, or of a layout, for its job."""
    return StrategyRecord.build(one.problem, one.strategy)


TRILLION = 1e12


class CostBasisRecord(Record):
    """
    Prices and powers that money and energy follow from.

    Parameters
    ----------
    price_per_device_hour
        Price of one device for an hour; null: the job gives none.
    currency
        Currency of all prices and costs.
    electricity_price_per_kwh
        Price of a kWh, which is added to that of the devices; null: the job gives none.
    pue
        Power usage effectiveness: energy of the data centre over that of its computers; null: not known.
    host_watts_per_device
        Watts of the rest of a node per device; null: not counted.
    power_watts
        Power limit of one device; null: its maker publishes none.
    power_source
        Source of the power limit.
    computing_fraction
        Share of its power limit that a device draws while it computes.
    waiting_fraction
        Share that it draws while it communicates or waits for others in a step.
    idle_fraction
        Share that it draws while the job saves checkpoints, recovers or starts.
    draw_sources
        Sources of these fractions.
    """

    _inside = ("costs",)

    price_per_device_hour: Figure | None
    currency: str
    electricity_price_per_kwh: Figure | None
    pue: Figure | None
    host_watts_per_device: Figure | None
    power_watts: Figure | None = read_from("facts.cluster.device.power_watts")
    power_source: str | None = read_from(lambda problem: problem.facts.cluster.device.sources.get("power_watts"))
    computing_fraction: Figure = read_from(lambda _: catalog.power_draw().computing)
    waiting_fraction: Figure = read_from(lambda _: catalog.power_draw().waiting)
    idle_fraction: Figure = read_from(lambda _: catalog.power_draw().idle)
    draw_sources: dict[str, str] = read_from(lambda _: catalog.power_draw().sources)


class CostsRecord(Record):
    """
    Costs and energy of a whole training; null where no price is given or no power is known.

    Parameters
    ----------
    device_hours
        Devices of the job, idle ones and spares included, times the hours of the whole training.
    device_hours_per_trillion_tokens
        Per trillion tokens of the training.
    computing_share
        Share of a step in which a device computes, the mean of all ranks.
    step_device_watts
        Power that one device draws while the job steps.
    mean_device_watts
        Mean power that one device draws over the whole training.
    it_power_megawatts
        Mean power of all devices, and of their hosts where that is given.
    facility_power_megawatts
        Mean power of the data centre; null without its PUE.
    stepping_power_megawatts
        Power while the job steps: of the data centre with its PUE, else of all devices and known hosts.
    it_energy_mwh
        Megawatt-hours of all devices, and of their hosts where that is given.
    it_energy_mwh_per_trillion_tokens
        Per trillion tokens of the training.
    facility_energy_mwh
        Megawatt-hours of the data centre; null without its PUE.
    facility_energy_mwh_per_trillion_tokens
        Per trillion tokens of the training.
    num_idle_devices
        Devices of the job that the plan leaves idle; they are paid and draw idle power.
    currency
        Currency of the costs.
    device_cost
        Money for the devices; null: no price is given.
    electricity_cost
        Money for energy, that of the data centre where it is known.
    total_cost
        Costs of devices and energy together, or of the one that has a price.
    total_cost_per_trillion_tokens
        Per trillion tokens of the training.
    """

    device_hours: Figure
    device_hours_per_trillion_tokens: Figure
    computing_share: Figure | None
    step_device_watts: Figure | None
    mean_device_watts: Figure | None
    it_power_megawatts: Figure | None
    facility_power_megawatts: Figure | None
    stepping_power_megawatts: Figure | None
    it_energy_mwh: Figure | None
    it_energy_mwh_per_trillion_tokens: Figure | None
    facility_energy_mwh: Figure | None
    facility_energy_mwh_per_trillion_tokens: Figure | None
    num_idle_devices: int
    currency: str
    device_cost: Figure | None
    electricity_cost: Figure | None
    total_cost: Figure | None
    total_cost_per_trillion_tokens: Figure | None

    @classmethod
    def build(cls, plan: Plan) -> CostsRecord:
        """Build the record of a plan."""
        costs, tokens = plan.costs, plan.facts.workload.tokens
        totals: dict[str, Any] = {
            "device_hours": costs.device_hours,
            "it_energy_mwh": _mwh(costs.energy.it_joules) if costs.energy else None,
            "facility_energy_mwh": _mwh(costs.energy.facility_joules) if costs.energy else None,
            "total_cost": costs.total_cost,
        }
        each = {
            f"{name}_per_trillion_tokens": None if total is None else total * TRILLION / tokens
            for name, total in totals.items()
        }
        others = totals | each | _powers(costs.energy, plan.schedule.total_seconds)
        return cls.read(costs, num_idle_devices=plan.num_idle_devices, currency=plan.problem.costs.currency, **others)


class SavedCostsRecord(Record):
    """
    Energy and money that one plan saves over another; negative where it takes more.

    Parameters
    ----------
    it_energy_mwh
        Megawatt-hours of all devices; null where no power is known.
    total_cost
        Money; null without prices, or with those in two currencies.
    """

    it_energy_mwh: Figure | None
    total_cost: Figure | None

    @classmethod
    def build(cls, given: CostsRecord, other: CostsRecord) -> SavedCostsRecord:
        """Return the savings of the other plan."""
        return cls(
            it_energy_mwh=difference(given.it_energy_mwh, other.it_energy_mwh),
            total_cost=difference(given.total_cost, other.total_cost) if given.currency == other.currency else None,
        )


def difference(one: float | None, other: float | None) -> float | None:
    """Return the first minus the second; None where one of them is not known."""
    return None if one is None or other is None else one - other


def _mwh(joules: float | None) -> float | None:
    from costmodel.costs import MWH_JOULES

    return None if joules is None else joules / MWH_JOULES


def _powers(energy: Energy | None, total_seconds: float) -> dict[str, float | None]:
    """Return the watts of one device and the megawatts of all, by entry."""
    of_facility = energy.facility_joules if energy else None
    return {
        "computing_share": energy.computing_fraction if energy else None,
        "step_device_watts": energy.step_watts if energy else None,
        "mean_device_watts": energy.mean_watts if energy else None,
        "it_power_megawatts": energy.it_joules / total_seconds / 1e6 if energy else None,
        "stepping_power_megawatts": energy.stepping_watts / 1e6 if energy else None,
        "facility_power_megawatts": None if of_facility is None else of_facility / total_seconds / 1e6,
    }


class BestRunRecord(Record):
    """
    The best published run of the job's model, device and bits, else of the nearest model, compared with the prediction.

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

    _inside = ("record",)

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
    tokens_per_second_per_gpu: Figure = read_from("record.tokens_per_second_per_device")
    notes: str
    comparable_tokens_per_second_per_gpu: Figure = read_from("comparable_rate")
    same_sequence: bool
    step_time_seconds: Figure = read_from("record_step_seconds")
    above_fraction: Figure
    is_recent: bool
    is_doubtful: bool


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
        Reason why the job's search does not try it; empty: it does.
    """

    _inside = ("layout", "layout.recipe", "report")

    title: str
    recipe: str = read_from("layout.recipe.id")
    name: str
    source: str
    release: str
    notes: list[str]
    strategy: StrategyRecord = read_from(lambda judged: decisions_of(judged.layout))
    step_time_seconds: Figure = read_from("report.plan.step_seconds")
    peak_memory_bytes: Figure = read_from("report.plan.estimate.device_bytes")
    slower_fraction: Figure
    broken_rules: list[str]
    outside: list[str]


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
    bytes: dict[str, Figure] = read_from("bytes_by_part")
    peak_memory_bytes: Figure = read_from("device_bytes")
    headroom_bytes: Figure
    host_memory_bytes: Figure = read_from("host_bytes")
    port_bytes: Figure


class FitRecord(Record):
    """
    A chance to fit, and how far measured peaks are from predicted ones.

    Parameters
    ----------
    share
        From 0 to 1.
    basis
        Runs or figures that it comes from.
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

    peak_memory_bytes: Figure = read_from("device_bytes")
    allocated_bytes: Figure
    reserved_bytes: Figure
    headroom_bytes: Figure
    chance_to_fit: FitRecord
    chance_fast: Chance
    host_memory_bytes: Figure = read_from("host_bytes")
    host_headroom_bytes: Figure
    ranks: list[RankRecord]

    @classmethod
    def build_from_estimate(cls, estimate: Estimate, cluster: Cluster) -> MemoryRecord:
        """Build the record of the device and host memory that a strategy needs."""
        device, peak_bytes = cluster.device, estimate.device_bytes
        return MemoryRecord.read(
            estimate,
            allocated_bytes=lambda: seen_bytes(device, peak_bytes, "allocated"),
            reserved_bytes=lambda: seen_bytes(device, peak_bytes, "reserved", estimate.strategy),
            headroom_bytes=device.memory_bytes - peak_bytes,
            chance_to_fit=lambda: FitRecord.read(
                chance_to_fit(cluster, device_bytes=peak_bytes),
                peak_memory_interval_bytes=list(peak_interval(cluster, device_bytes=peak_bytes)),
                reserved_interval_bytes=list(allocator_interval(cluster, estimate.strategy, device_bytes=peak_bytes)),
                interval_probability=PEAK_COVERAGE,
            ),
            chance_fast=lambda: chance_fast(cluster, estimate.strategy, device_bytes=peak_bytes),
            host_headroom_bytes=device.host_memory_bytes - estimate.host_bytes,
            ranks=lambda: [
                RankRecord.read(one, headroom_bytes=device.memory_bytes - one.device_bytes) for one in estimate.ranks
            ],
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

    _inside = ("schedule",)

    interval_steps: int
    interval_seconds: Figure
    unrounded_interval_steps: Figure | None = read_from("schedule.continuous_interval_steps")
    seconds: Figure = read_from("checkpoint_seconds")
    num_checkpoints: int
    nbytes: Figure | None = read_from("checkpoint_bytes")
    write_seconds: Figure = read_from("reliability.storage_seconds")
    write_fraction: Figure
    storage_bytes_per_second: Figure | None = read_from("storage_bandwidth")
    kept: int | None = read_from("kept_checkpoints")


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

    _inside = ("schedule",)

    num_steps: int
    effective_seconds: Figure
    interruption_seconds: Figure
    evaluation_seconds: Figure
    loading_seconds: Figure
    total_seconds: Figure
    num_failures: Figure = read_from("schedule.failures")
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
    difference_cost: Figure | None


def step_ends(plan: Plan) -> list[float]:
    """Return the bounds of a measured step."""
    return [plan.interval.low_seconds, plan.interval.high_seconds]


def _margin_fraction(plan: Plan) -> float | None:
    return plan.record.above_fraction if plan.record and plan.record.same_model else None


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
        One optimizer step as the search compares it: the slowest rank's work and its wait for other ranks.
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
    step_time_seconds: Figure = read_from("step_seconds")
    closed_form_step_time_seconds: Figure = read_from("closed_form_seconds")
    step_time_interval_seconds: list[Figure] = read_from(step_ends)
    step_time_interval_probability: Figure = read_from(lambda _: COVERAGE)
    step_time_interval_basis: str = read_from("interval.basis")
    above_record_fraction: Figure | None = read_from(_margin_fraction)
    record: BestRunRecord | None
    gaps: list[Gap]
    contested_seconds: Figure
    unproven: list[Unproven]
    site_links_seconds: Figure
    length_imbalance_seconds: Figure
    tokens_per_second_per_gpu: Figure = read_from("tokens_per_second_per_device")
    model_tflops_per_gpu: Figure = read_from(lambda plan: plan.model_flops_per_second_per_device / 1e12)
    hardware_tflops_per_gpu: Figure = read_from(lambda plan: plan.hardware_flops_per_second_per_device / 1e12)
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
    settings: dict[str, bool | int | float | str] = read_from("problem.settings")
    breakdown: list[Part]
    checkpoint: CheckpointRecord = read_from(itself)
    training_run: TrainingRunRecord = read_from(itself)
    costs: CostsRecord = read_from(CostsRecord.build)

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
            **MemoryRecord.build_from_estimate(plan.estimate, plan.cluster).entries(MemoryRecord),
            line=strategy.line,
            strategy=strategy,
            **others,
        )


class NumberedPlanRecord(PlanRecord, PlaceRecord):
    """One of several plans: its number (1 is best) and its differences from plan 1."""

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
