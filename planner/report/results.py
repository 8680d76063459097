"""Sections on the job, the conventions of the figures, throughput, the parts of a step, and the whole training."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from costmodel.catalog.aliases import find_unique_device
from costmodel.facts.device import Sites
from planner.jobs.strategy_file import text_of
from planner.report.records.reports import EVEN
from planner.report.records.setting import framework_text, targets_text
from planner.report.section import (
    NOTHING,
    Section,
    amount,
    amount_of_bytes,
    count,
    energy,
    gib,
    group_rows,
    mean_count,
    megawatt_hours,
    money,
    part_label,
    power,
    seconds,
    share,
    span,
    tflops,
)
from planner.results import LOCAL_STEPS_CAVEAT
from planner.uncertainty.counts import MOST_TOLD

if TYPE_CHECKING:
    from planner.jobs.checkpoints import ModelSummary
    from planner.jobs.problem import Problem
    from planner.report.records.plan import (
        BestRunRecord,
        CheckpointRecord,
        CostBasisRecord,
        CostsRecord,
        NumberedPlanRecord,
        PlanRecord,
        PublishedLayoutRecord,
        TrainingRunRecord,
    )
    from planner.report.records.reports import IdleDevicesRecord, PlanReportRecord, ReportRecord
    from planner.report.records.setting import SettingRecord, TrainingRecord
    from planner.uncertainty.counts import Gap
    from planner.uncertainty.intervals import TimedOperator


def device_rows(
    setting: SettingRecord, best: PlanRecord | None, idle: IdleDevicesRecord | None
) -> Iterator[tuple[str, str]]:
    """Build the row on the devices that the best plan uses, and why others idle; none where it uses all."""
    all_devices, most = setting.cluster.num_devices, setting.job.max_devices
    if best is None or (most is None and best.num_devices >= all_devices):
        return
    used = f"{best.num_devices:,} of {all_devices:,} GPUs on {count(best.num_nodes, 'node')}"
    if most is not None:
        used += f"; the job allows {most:,}"
    elif idle is not None and idle.num_idle_devices:
        used += f"; {count(setting.cluster.num_nodes - best.num_nodes, 'node')} left idle: {_why_idle(best, idle)}"
    yield "uses", used


def _why_idle(best: PlanRecord, idle: IdleDevicesRecord) -> str:
    if idle.all_devices is None:
        return "no strategy for all GPUs satisfies the rules"
    step = idle.all_devices.step_time_seconds
    return (
        f"with all {idle.all_devices.num_devices:,} GPUs a step takes {seconds(step)} s, "
        f"{step / best.step_time_seconds - 1:.1%} longer ({idle.all_devices.strategy.line})"
    )


def device_notes(plans: Sequence[PlanRecord], num_devices: int) -> Iterator[str]:
    """Return the note that figures per GPU count only GPUs in use; none where all are in use."""
    if any(plan.num_devices < num_devices for plan in plans):
        yield "Tokens/s/GPU, MFU, HFU, GPU-hours and failures count the GPUs that a strategy uses, not those left idle."


def proof_text(whole: PlanReportRecord) -> str:
    """Word the proof for a report's first plan, with the model error of differences between layouts."""
    advice, best = whole.recommendation, whole.plans[0]
    preferred = ""
    if advice is not None and not advice.is_fastest:
        preferred = f"preferred to the fastest plan, {seconds(advice.fastest_step_time_seconds)} s"
    if whole.report.exit_code:
        return f"{preferred}, not proven optimal" if preferred else "not proven optimal"
    noise = f"in the cost model (model error {best.plan.noise_fraction:.1%})"
    if whole.idle is not None and not whole.idle.is_proven:
        noise += ", among plans that use all GPUs"
    is_uneven = whole.bound_of == EVEN and (advice.fastest_strategy if advice else best.strategy).has_own_stages
    proof = f"proven {'faster than any even stages' if is_uneven else 'optimal'} {noise}"
    return f"{preferred}: {proof}" if preferred else proof


def idle_proof_rows(whole: PlanReportRecord) -> Iterator[tuple[str, str]]:
    """Build the row on the smaller numbers of nodes that were searched, and on the proof for them."""
    idle = whole.idle
    if idle is None or not whole.plans:
        return
    nodes = f"{idle.fewest_nodes_searched:,} to {count(idle.most_nodes_searched, 'node')}"
    if not idle.is_proven:
        yield "fewer GPUs", "time ran out before it was proven that no plan on fewer whole nodes is faster"
    elif not idle.most_nodes_searched:
        yield "fewer GPUs", "proven: on fewer whole nodes the layers alone take longer than this step"
    elif idle.num_idle_devices:
        yield (
            "fewer GPUs",
            f"searched, too: {nodes}; on fewer the layers alone take longer. The proof covers all of these",
        )
    else:
        yield "fewer GPUs", f"proven: no plan on {nodes} is faster; on fewer nodes the layers alone take longer"


LEAST_SHOWN_GAIN = 0.03

"""Gain in tokens per second from which on a near-by batch belongs to the first screen."""


def nearby_rows(whole: ReportRecord) -> Iterator[tuple[str, str]]:
    """Build the row on the near-by batch that gains most, if it gains more than ``LEAST_SHOWN_GAIN``."""
    best = max(whole.nearby_batches, key=lambda one: one.gain_fraction, default=None)
    if best is not None and best.gain_fraction > LEAST_SHOWN_GAIN:
        yield (
            "near-by batch",
            f"{best.global_batch_size:,} sequences ({best.change_fraction:+.1%}) on all {best.num_devices:,} GPUs: "
            f"{seconds(best.step_time_seconds)} s, {best.gain_fraction:+.1%} tokens/s",
        )


def nearby_sections(whole: ReportRecord) -> Iterator[Section]:
    """Build the section on near-by batches with which all devices train faster."""
    nearby = whole.nearby_batches
    if not nearby:
        return
    rows = [
        (
            f"{one.global_batch_size:,}",
            f"{one.change_fraction:+.1%}",
            f"{one.num_devices:,}",
            seconds(one.step_time_seconds),
            f"{one.tokens_per_second:,.0f}",
            f"{one.gain_fraction:+.1%}",
            f"{one.mfu:.1%}",
        )
        for one in nearby
    ]
    yield Section(
        title="Near-by batch sizes",
        header=("sequences", "change", "GPUs", "step, s", "tokens/s", "gain", "MFU"),
        rows=tuple(rows),
        notes=(
            f"Instead of training.global_batch_size={whole.training.global_batch_size}, with all GPUs; gain: more "
            "tokens per second than the fastest plan trains. The few sizes within 5% that share most with the number "
            "of GPUs were searched.",
        ),
    )


def setting_section(
    setting: SettingRecord,
    *answer: tuple[str, str],
    best: PlanRecord | None,
    lines: Sequence[tuple[str, str]] = (),
    idle: IdleDevicesRecord | None = None,
) -> Section:
    """
    Build the section on the job, with the answer in a line.

    Parameters
    ----------
    setting
        The first entries of its report.
    answer
        Rows that stand below the name of the job.
    best
        The best plan.
    lines
        Rows that come first: each strategy in one line, and the completed decisions of a given one.
    idle
        The search for plans that leave devices idle.
    """
    rows = [*lines, ("job", setting.job.name), *answer, *_job_rows(setting)]
    rows += [*lengths_rows(setting, best), *sites_rows(setting, best), *device_rows(setting, best, idle)]
    rows += build_unused_rows(setting)
    if best and best.settings:
        rows.append(
            (
                "settings",
                f"{text_of(best.settings)} (of several that the job gives; where a plan has no use for one, the first)",
            )
        )
    return Section(title=title_of(setting), rows=tuple(rows))


def line_rows(whole: ReportRecord) -> list[tuple[str, str]]:
    """Build the rows with the first plan in one line, and with the completed decisions of a given one."""
    rows = [("line", plan.line) for plan in whole.plans[:1]]
    if whole.kind == "estimate":
        from planner.report.strategies import completion_rows

        rows += completion_rows(whole.report)
    return rows


def title_of(setting: SettingRecord) -> str:
    """Return the title: the model, and the devices that train it."""
    return f"{setting.model.name} on {setting.cluster.num_devices:,} x {setting.cluster.device}"


def _job_rows(setting: SettingRecord) -> Iterator[tuple[str, str]]:
    """Build the rows on model, cluster, framework and training."""
    cluster, training, conventions = setting.cluster, setting.training, setting.conventions
    yield "model", _model_text(setting.model)
    spares = f", {count(cluster.num_spare_nodes, 'more node')} kept as spares" if cluster.num_spare_nodes else ""
    yield (
        "cluster",
        f"{count(cluster.num_nodes, 'node')} of {count(cluster.devices_per_node, 'GPU')}{spares}, scale-up "
        f"({cluster.scale_up_network}) domains of {cluster.scale_up_size}; {gib(cluster.memory_bytes)} GiB per GPU, "
        f"{tflops(conventions.peak_tflops_per_gpu)} TFLOP/s dense {conventions.peak_dtype}",
    )
    if cluster.device_note:
        yield "device", cluster.device_note
    yield "framework", framework_text(setting.problem)
    if setting.job.target is None and setting.targets:
        yield "targets", targets_text(setting.targets)
    yield (
        "training",
        f"{training.global_batch_size:,} x {training.sequence_length:,} = {amount(training.tokens_per_step)} "
        f"tokens per step, {amount(training.tokens)} tokens in all; {training.precision}",
    )
    yield from ambiguity_rows(setting)


def lengths_rows(setting: SettingRecord, best: PlanRecord | None) -> Iterator[tuple[str, str]]:
    """Build the row on packed sequences, with the share of the step in which ranks wait for longer ones."""
    training = setting.training
    if training.packed_lengths is None or training.mean_packed_length is None:
        return
    first, last = training.packed_lengths
    waiting = ""
    if best is not None and best.length_imbalance_seconds:
        lost = share(best.length_imbalance_seconds, best.step_time_seconds)
        waiting = (
            f"; ranks wait {lost} of the step, {seconds(best.length_imbalance_seconds)} s, for longer ones (bubble)"
        )
    yield (
        "packed",
        f"sequences of {first:,} to {last:,} tokens, {training.mean_packed_length:,.0f} in the mean and "
        f"{training.own_sequence_length:,.0f} in the mean over tokens, within which attention is costed{waiting}",
    )


def sites_rows(setting: SettingRecord, best: PlanRecord | None) -> Iterator[tuple[str, str]]:
    """Build the row on several sites, with the share of the step in which devices wait for their links."""
    sites = setting.cluster.sites
    if sites is None:
        return
    waiting = ""
    if best is not None and best.site_links_seconds:
        lost = share(best.site_links_seconds, best.step_time_seconds)
        waiting = f"devices idle {lost} of the step, {seconds(best.site_links_seconds)} s, for these links: "
    yield "sites", f"{waiting}{sites_text(sites)}"


def sites_text(sites: Sites) -> str:
    """Describe the sites of a job, what crosses their links, and the caveat of local steps."""
    speed = "no limit" if sites.bandwidth is None else f"{sites.bandwidth / 1e9:.4g} GB/s"
    links = (
        f"{sites.count} data centres, {speed} and {1000 * sites.latency:.4g} ms between two (no run was measured so)"
    )
    if sites.local_steps == 1:
        return f"{links}; gradients are reduced over all of them in every step, inside each site first"
    streams = f" in {count(sites.streams, 'stream')} overlapped with computation" if sites.streams > 1 else ""
    return (
        f"{links}; weights are synchronized every {count(sites.local_steps, 'step')}, {sites.sent_bytes:g} bytes per "
        f"parameter{streams}. {LOCAL_STEPS_CAVEAT} The states of its outer optimizer are taken to be in host memory "
        "and are not counted."
    )


def ambiguity_rows(setting: SettingRecord) -> Iterator[tuple[str, str]]:
    """Build the rows on numbers of the job, and entries of its model, that could be read in another way."""
    yield from model_doubt_rows(setting)
    if said := _units_text(setting.problem):
        yield "units", said
    if said := batch_text(setting.training):
        yield "batch", said


def model_doubt_rows(setting: SettingRecord) -> Iterator[tuple[str, str]]:
    """Build the row on entries of the model that contradict each other."""
    if setting.model.doubts:
        yield "model doubt", setting.model.doubts


def build_unused_rows(setting: SettingRecord) -> Iterator[tuple[str, str]]:
    """Build the row on entries of the job that the best plan has no use for."""
    if setting.job.unused_entries:
        yield "no effect", f"{', '.join(setting.job.unused_entries)}: nothing in this plan depends on them"


def batch_text(training: TrainingRecord) -> str:
    """Return the warning about a batch that is probably given in tokens; empty for others."""
    if training.tokens_per_step <= 2 * LARGEST_BATCH_TOKENS:
        return ""
    sequences = max(1, round(training.global_batch_size / training.sequence_length))
    return (
        f"{amount(training.tokens_per_step)} tokens per step are more than published trainings have, at most some "
        f"{amount(LARGEST_BATCH_TOKENS)}; the global batch size counts sequences: "
        f"{training.global_batch_size:,} tokens were {sequences:,}"
    )


LARGEST_BATCH_TOKENS = 15_360 * 4_096

"""Tokens of the largest batch that is published: DeepSeek-V3, arXiv 2412.19437, section 4.2."""


def _units_text(problem: Problem) -> str:
    """List the numbers that the job writes with units, machines among them; empty where there are none."""
    given, workload = problem.document.get("training") or {}, problem.facts.workload
    own = {"max_seqlen_per_dp_cp_rank": workload.lengths.rank_tokens} if workload.lengths else {}
    read = {name: own.get(name, getattr(workload, name, None)) for name in given if isinstance(given[name], str)}
    said = [f"{name} {given[name]} is {value:,.0f}" for name, value in read.items() if isinstance(value, int | float)]
    binary = " (k is 1,024 in sequence lengths, 1,000 elsewhere)" if said and "sequence_length" in read else ""
    return "; ".join([*_machines_text(problem), *said]) + binary


def _machines_text(problem: Problem) -> Iterator[str]:
    """Say the devices of machines that a job names, such as racks."""
    device, total = problem.document.get("cluster", {}).get("device"), problem.facts.cluster.num_devices
    machine = find_unique_device(device) if isinstance(device, str) else None
    if machine and machine.num_devices > 1 and total % machine.num_devices == 0:
        each = f"{machine.num_devices} {machine.device}"
        yield f"{total // machine.num_devices:,} x {device} of {each} each are {total:,}"


def _model_text(model: ModelSummary) -> str:
    has_idle = model.active_parameters < model.parameters
    active = f", {amount(model.active_parameters)} active per token" if has_idle else ""
    mtp = f"; {amount(model.mtp_parameters)} more for multi-token prediction" if model.mtp_parameters else ""
    part = "; the text part of a multimodal model, other parts are not counted" if model.is_text_part else ""
    return f"{amount(model.parameters)} parameters{active}{mtp}; {count(model.num_layers, 'layer')}{part}"


def conventions_section(setting: SettingRecord) -> Section:
    """Build the section on conventions: peak, attention FLOPs, and the source of operator times."""
    conventions = setting.conventions
    counted = {"causal": "attention FLOPs of the causal half only", "full": "all attention FLOPs, masked ones included"}
    mtp = ", those of multi-token prediction included" if setting.model.mtp_parameters else ""
    origins = ", ".join(dict.fromkeys(conventions.operator_times.values()))
    return Section(
        title="Conventions",
        rows=(
            (
                "MFU",
                f"model FLOPs over {tflops(conventions.peak_tflops_per_gpu)} TFLOP/s, the dense "
                f"{conventions.peak_dtype} "
                f"peak; {counted[conventions.attention]}{mtp}; HFU adds recomputed FLOPs",
            ),
            ("ETTR", "effective training time ratio: time of productive steps over total time"),
            ("operator times", origins),
        ),
    )


def doubt_rows(plan: PlanRecord | None) -> Iterator[tuple[str, str]]:
    """Build the row that doubts a plan predicted far above every published run; it comes first in a report."""
    if plan is not None and plan.record is not None and plan.record.is_doubtful:
        record, step = plan.record, f"{seconds(plan.record.step_time_seconds)} s per step of this job"
        yield "doubt", f"predicted {record.above_fraction:.0%} above the {_run_text(record)}, {step}"


def publication_rows(whole: ReportRecord, *, is_short: bool = False) -> Iterator[tuple[str, str]]:
    """Build the rows on the nearest published layout and the best run; a short answer omits forbidden layouts."""
    layout = None if whole.published and is_short and whole.published.broken_rules else whole.published
    rows = [layout_text(layout, is_short=is_short)] if layout else []
    if whole.plans and (record := whole.plans[0].record) is not None and not record.is_doubtful:
        side = "above" if record.above_fraction >= 0 else "below"
        rows.append(f"{_run_text(record)}; this plan is predicted {abs(record.above_fraction):.0%} {side}")
    yield from group_rows("published", rows)


def layout_text(layout: PublishedLayoutRecord, *, is_short: bool = False) -> str:
    """
    Compare a published layout with the first plan.

    The long form lists all changes made to the layout, and the reason that the search does not try it.
    """
    figures = f"{layout.title}: {seconds(layout.step_time_seconds)} s, {layout.slower_fraction:+.1%}"
    forbidden = [f"forbidden: {layout.broken_rules[0]}"] if layout.broken_rules else []
    if forbidden:
        figures = layout.title  # what no run can have is no step to compare with
    is_told = not is_short or layout.slower_fraction < 0  # a faster layout wants a reason
    reason = layout.outside[0].partition(" (search.")[0] if layout.outside and is_told and not forbidden else ""
    left_out = [f"not searched: {reason.replace('The search', 'the search', 1)}"] if reason else []
    notes = layout.notes[:1] if is_short else layout.notes
    return "; ".join((figures, *notes, *(text.rstrip(".") for text in (*forbidden, *left_out))))


def _run_text(record: BestRunRecord) -> str:
    """
    Describe a published run: its rate, its release and devices, and its precision recipe unless that is bf16.

    A run of another model is given by its MFU, since its tokens cost other FLOPs.
    """
    precision = [] if record.precision == "bf16" else [record.precision]
    notes = [record.notes] if record.notes else []
    if not record.same_model:
        where = ", ".join([record.label, *precision, f"{record.num_devices:,} {record.device}", *notes])
        return f"nearest published run: {record.model}, {record.mfu:.1%} MFU ({where})"
    at = [] if record.same_sequence else [f"sequences of {record.sequence_length:,} tokens"]
    where = ", ".join([record.label, *precision, f"{record.num_devices:,} GPUs", *at, *notes])
    return f"best published run: {record.tokens_per_second_per_gpu:,.0f} tokens/s/GPU ({where})"


MILLISECOND = 1e-3

FIGURES: dict[str, tuple[str, Callable[[float], str]]] = {
    "step, s": ("step_time_seconds", seconds),
    "GPUs": ("num_devices", "{:,}".format),
    "tokens/s/GPU": ("tokens_per_second_per_gpu", "{:,.1f}".format),
    "TFLOP/s/GPU": ("model_tflops_per_gpu", "{:,.1f}".format),
    "MFU": ("mfu", "{:.1%}".format),
    "HFU": ("hfu", "{:.1%}".format),
    "MFU by the bf16 peak": ("mfu_bf16", "{:.1%}".format),
    "peak GiB": ("peak_memory_bytes", gib),
    "free GiB": ("headroom_bytes", gib),
    "fits": ("chance_to_fit.share", "{:.0%}".format),
    "fast": ("chance_fast.share", "{:.0%}".format),
    "host memory GiB": ("host_memory_bytes", gib),
    "steps per checkpoint": ("checkpoint.interval_steps", "{:,.0f}".format),
    "ETTR": ("training_run.ettr", "{:.2%}".format),
    "days": ("training_run.days", "{:,.2f}".format),
    "GPU-hours": ("training_run.gpu_hours", "{:,.0f}".format),
    "MWh": ("costs.it_energy_mwh", megawatt_hours),
    "cost": ("costs.total_cost", "{:,.0f}".format),
    "cost per trillion tokens": ("costs.total_cost_per_trillion_tokens", "{:,.0f}".format),
}
"""Figures that plans are compared by: for each heading the entry of a plan's record, and its format."""


def figure(plan: PlanRecord, name: str) -> Any:
    """Return one of the figures that plans are compared by; None where it is not known."""
    return attrgetter(FIGURES[name][0])(plan)


def figure_text(plan: PlanRecord, name: str) -> str:
    """Write one of these figures."""
    return FIGURES[name][1](figure(plan, name))


HEADINGS = {"free GiB": "free"}
"""Shorter headings of a table whose rows are plans, so that it fits into 100 columns."""


def results_section(whole: ReportRecord) -> Section:
    """Build the table of speed, memory and training time, one row per plan."""
    plans, num_devices = whole.plans, whole.cluster.num_devices
    differ = any(plan.num_devices != num_devices for plan in plans)
    counts = differ or whole.job.max_devices is not None  # GPUs replace TFLOP/s, which follow from MFU
    speed = ("GPUs", "tokens/s/GPU") if counts else ("tokens/s/GPU", "TFLOP/s/GPU")
    names = (*speed, "MFU", "HFU", "peak GiB", "free GiB", "fits", "ETTR", "days")
    return Section(
        title="Throughput, memory and training time",
        header=("#", "step, s", "slower", *(HEADINGS.get(name, name) for name in names)),
        rows=tuple(_result(plan, names) for plan in plans),
        notes=(
            *_bf16_note(plans),
            *_doubts(plans),
            *device_notes(plans, num_devices),
            *_idleness(whole),
        ),
    )


def _bf16_note(plans: Sequence[NumberedPlanRecord]) -> Iterator[str]:
    """Return MFU by the bf16 peak where it differs: published figures of 8-bit trainings often refer to it."""
    best = plans[0]
    if best.mfu_bf16 is not None and best.mfu_bf16 != best.mfu:
        figures = (f"{plan.number}: {plan.mfu_bf16:.1%}" for plan in plans)
        yield f"MFU by the bf16 peak instead: {', '.join(figures) if plans[1:] else f'{best.mfu_bf16:.1%}'}."


LOW_MFU = 0.1
"""Share of the peak below which training more sequences per step, or on fewer devices, is worth a thought."""


def _idleness(whole: ReportRecord) -> Iterator[str]:
    """Return the note on a low MFU where a batch has fewer sequences than there are devices."""
    best, batch = whole.plans[0], whole.training.global_batch_size
    if best.mfu < LOW_MFU and batch < best.num_devices:
        tried = whole.job.max_devices is not None or not whole.job.idle_devices
        fewer = "" if tried else ", though no fewer make the step shorter"
        yield (
            f"MFU {best.mfu:.1%}: {count(batch, 'sequence')} per step are few for {best.num_devices:,} GPUs. A larger "
            f"training.global_batch_size, or fewer of them (search.max_devices), uses each better{fewer}."
        )


def _doubts(plans: Sequence[NumberedPlanRecord]) -> Iterator[str]:
    """Return the notes on the error of the step times, and on plans that they cannot tell apart."""
    best = plans[0]
    of_best = " of strategy 1" if plans[1:] else ""
    ends = best.step_time_interval_seconds
    low, high = (end / best.step_time_seconds - 1 for end in ends)
    yield (
        f"{best.step_time_interval_probability:.0%} interval: a measured step{of_best} takes between "
        f"{seconds(ends[0])} and {seconds(ends[1])} s ({low:+.0%} to {high:+.0%}), by the errors on "
        f"{best.step_time_interval_basis} left out of the fits."
    )
    if best.gaps:
        yield f"Extrapolated{of_best}: {gaps_text(best.gaps)}."
    for plan in plans:
        if plan.contested_seconds:
            yield f"Strategy {plan.number}: {contention_text(plan)}."
        if plan.unproven:
            yield f"Unproven of strategy {plan.number}: {unproven_text(plan)}."
    for gaps, numbers in _other_gaps(plans).items():
        yield f"Extrapolated of {'strategies' if len(numbers) > 1 else 'strategy'} {', '.join(numbers)}, too: {gaps}."
    alike = [str(plan.number) for plan in plans[1:] if plan.within_noise_of_best]
    if alike:
        yield (
            f"Cannot be told from strategy 1: {', '.join(alike)}. The model error of differences between layouts of "
            f"one job is {best.plan.noise_fraction:.1%}."
        )
    if plans[1:]:
        others = ", ".join(f"{plan.number}: {plan.chance_fastest:.0%}" for plan in plans[1:])
        yield f"Chance to be the fastest of these when measured: strategy 1 {best.chance_fastest:.0%}; {others}."


def _other_gaps(plans: Sequence[NumberedPlanRecord]) -> dict[str, list[str]]:
    """Return the gaps that the first plan does not have, in words, with the numbers of the plans that have them."""
    known = {gap.sentence for gap in plans[0].gaps}
    found: dict[str, list[str]] = {}
    for plan in plans[1:]:
        if gaps := [gap for gap in plan.gaps if gap.sentence not in known]:
            found.setdefault(gaps_text(gaps), []).append(str(plan.number))
    return found


def contention_text(plan: PlanRecord) -> str:
    """Word the time that tp and cp communication may add under FSDP or EP overlap."""
    return (
        "tp or cp with FSDP or EP overlap before Blackwell, of which Megatron-LM warns (CUDA_DEVICE_MAX_CONNECTIONS): "
        f"up to {seconds(plan.contested_seconds)} s more"
    )


def unproven_text(plan: PlanRecord) -> str:
    """Word the features of a plan that too few measured runs have."""
    first = plan.unproven[0]
    if not first.among:
        return f"{', '.join(one.text for one in plan.unproven)}: no run of {first.where} was measured"
    counts = ", ".join(f"{one.text} ({one.runs or 'none'})" for one in plan.unproven)
    return f"{counts} of {first.among:,} measured runs of {first.where}"


def gaps_text(gaps: Sequence[Gap]) -> str:
    """Word the first few gaps of a plan, and count the others."""
    more = len(gaps) - MOST_TOLD
    return "; ".join([*(gap.sentence for gap in gaps[:MOST_TOLD]), *([f"and {more} more"] if more > 0 else [])])


def _result(plan: NumberedPlanRecord, names: Sequence[str]) -> tuple[str, ...]:
    slower = f"{plan.slower_fraction:.2%}" if plan.number > 1 else NOTHING
    return (str(plan.number), seconds(plan.step_time_seconds), slower, *(figure_text(plan, name) for name in names))


MOST_OPERATORS = 6
"""Operators that the table of their times names; all of them are in the JSON."""


def operator_sections(operators: Sequence[TimedOperator], of_best: str) -> Iterator[Section]:
    """Build the table of the least certain operator times; none where no samples time operators."""
    if not operators:
        return
    sampled = sum(one.share for one in operators if one.is_sampled)
    outside = [one.name for one in operators if one.is_outside]
    beyond = f" Outside of the sampled range: {', '.join(outside)}." if outside else ""
    yield Section(
        title=f"Least certain operator times{of_best}",
        header=("operator", "of the step", "+-", "timed by"),
        rows=tuple(
            (one.name, f"{one.share:.1%}", f"{one.relative_deviation:.1%}", one.origin)
            for one in operators[:MOST_OPERATORS]
        ),
        notes=(
            f"Samples time {sampled:.0%} of it, rooflines with sampled rates and stated networks the rest; +- is a "
            f"standard deviation.{beyond} 'planner sample --for JOB.yaml' measures where that hurts most.",
        ),
    )


def loss_sections(plans: Sequence[NumberedPlanRecord]) -> Iterator[Section]:
    """Build the table of the time that other plans lose to the first, by the parts that differ most."""
    if plans[1:]:
        yield Section(
            title="Time lost by the other plans",
            header=("#", "slower, s", "by part of the step, s"),
            rows=tuple(map(_loss, plans[1:])),
            notes=("Seconds by which a part of the step is longer (+) or shorter (-) than in strategy 1.",),
        )


MOST_LOSSES = 3
"""Lines of a breakdown that the table of losses names; all of them are in the JSON."""


def _loss(plan: NumberedPlanRecord) -> tuple[str, ...]:
    lines = [
        f"{part_label(name)} {value:+,.3f}"
        for name, value in plan.difference_by_part.items()
        if abs(value) >= MILLISECOND / 2
    ]
    texts = lines[:MOST_LOSSES] or ["no part differs by a millisecond"]
    return (str(plan.number), seconds(plan.difference_seconds), ", ".join(texts))


def breakdown_section(plan: PlanRecord, of_plan: str) -> Section:
    """Build the table of the parts of one plan's step, exposed and hidden."""
    step = sum(part.exposed_seconds for part in plan.breakdown)

    def row(label: str, exposed: float, hidden: float) -> tuple[str, ...]:
        return (label, seconds(exposed), share(exposed, step), seconds(hidden))

    rows = [row(part_label(part.name), part.exposed_seconds, part.hidden_seconds) for part in plan.breakdown]
    rows.append(row("step", step, sum(part.hidden_seconds for part in plan.breakdown)))
    return Section(
        title=f"Step time{of_plan} on the slowest pipeline rank",
        header=("part", "exposed, s", "of step", "hidden, s"),
        rows=tuple(rows),
        notes=(STEP_LEGEND, *_pace_note(plan)),
    )


STEP_LEGEND = (
    "Exposed times add up to the step, hidden ones overlap with computation; tp, cp, ep, pp, dp: communication of that "
    "parallelism."
)


def _pace_note(plan: PlanRecord) -> Iterator[str]:
    if len(plan.ranks) > 1:
        slowest = max(plan.ranks, key=lambda rank: rank.microbatch_seconds)
        mean = sum(rank.microbatch_seconds for rank in plan.ranks) / len(plan.ranks)
        yield (
            f"The slowest pipeline rank is {slowest.rank}, with {slowest.microbatch_seconds * 1e3:,.2f} ms per "
            f"micro-batch (forward and backward); the mean of {len(plan.ranks)} ranks is {mean * 1e3:,.2f} ms."
        )


def _storage(checkpoint: CheckpointRecord) -> Iterator[tuple[str, str]]:
    """Build the row on the checkpoints that storage has to hold."""
    if checkpoint.nbytes is None or checkpoint.kept is None:
        return
    speed = checkpoint.storage_bytes_per_second
    written = f"{amount_of_bytes(checkpoint.nbytes)} each, written in {span(checkpoint.write_seconds)}"
    yield (
        "storage",
        written
        + (f" at {amount_of_bytes(speed)}/s" if speed else "")
        + f", {checkpoint.write_fraction:.1%} of the time; {count(checkpoint.num_checkpoints, 'checkpoint')}, of which "
        f"the last {checkpoint.kept} take {amount_of_bytes(checkpoint.kept * checkpoint.nbytes)}",
    )


def _causes(setting: SettingRecord, run: TrainingRunRecord) -> Iterator[str]:
    """Yield the causes of interruptions, with the time of those that the job gives."""
    yield "checkpoints and failures"
    given = {
        "the start": setting.reliability.init_seconds,
        "evaluations": run.evaluation_seconds,
        "waits for data": run.loading_seconds,
    }
    yield from (f"{name} ({span(value)})" for name, value in given.items() if value)


def run_section(setting: SettingRecord, plan: PlanRecord, of_plan: str) -> Section:
    """Build the section on checkpoints, failures and the time of the whole training of one plan."""
    reliability, checkpoint, run = setting.reliability, plan.checkpoint, plan.training_run
    per_day = reliability.failures_per_node_day * plan.num_nodes
    causes = " and ".join(_causes(setting, run))
    return Section(
        title=f"Training{of_plan}",
        rows=(
            (
                "checkpoint",
                f"every {count(checkpoint.interval_steps, 'step')} ({span(checkpoint.interval_seconds)}); each stops "
                f"training for {checkpoint.seconds:,.2f} s",
            ),
            *_storage(checkpoint),
            (
                "failures",
                f"{mean_count(per_day)} per day on {count(plan.num_nodes, 'node')}, {mean_count(run.num_failures)} in "
                f"the whole training; {reliability.mttr_seconds:,.1f} s to recover from each",
            ),
            ("steps", f"{run.num_steps:,}, {span(run.effective_seconds)} without interruptions"),
            ("interruptions", f"{span(run.interruption_seconds)} for {causes}; ETTR {run.ettr:.2%}"),
            ("end to end", f"{run.days:,.2f} days, {amount(run.gpu_hours)} GPU-hours"),
        ),
    )


# --- money and energy ----------------------------------------------------------------------------------------

NO_PRICE = "no price is given: costs.price_per_device_hour=2.50"
"""The note where no price is given: the entry that gives one."""

TRILLION_TOKENS = "per trillion tokens"


def costs_sections(whole: SettingRecord, plans: Sequence[NumberedPlanRecord], of_best: str) -> Iterator[Section]:
    """Build the section on money and energy of the first plan, and the table of all plans."""
    yield costs_section(whole, plans[0], of_best)
    if plans[1:]:
        yield costs_table(plans, whole.job.costs.currency)


def costs_section(whole: SettingRecord, plan: PlanRecord, of_plan: str) -> Section:
    """Build the section on money and energy of one plan."""
    basis = whole.job.costs
    return Section(
        title=f"Money and energy{of_plan}",
        rows=(
            *_money_rows(basis, plan.costs),
            *_energy_rows(whole, plan),
            *_draw_rows(basis, plan.costs),
            *_omission_rows(whole, plan),
        ),
    )


def money_rows(basis: CostBasisRecord, plan: PlanRecord) -> Iterator[tuple[str, str]]:
    """Build the row on the money of a training; none where no price is given."""
    if basis.price_per_device_hour is not None or basis.electricity_price_per_kwh is not None:
        yield next(_money_rows(basis, plan.costs))


def _money_rows(basis: CostBasisRecord, costs: CostsRecord) -> Iterator[tuple[str, str]]:
    """Build the rows on the cost of the training and its prices, or on the option that gives a price."""
    if costs.total_cost is not None and costs.total_cost_per_trillion_tokens is not None:
        each = money(costs.total_cost_per_trillion_tokens, basis.currency)
        idle = costs.num_idle_devices
        paid = f"; {count(idle, 'idle GPU')} {'is' if idle == 1 else 'are'} paid" if idle else ""
        yield "money", f"{money(costs.total_cost, basis.currency)}, {each} {TRILLION_TOKENS}{paid}"
    elif basis.price_per_device_hour is None and basis.electricity_price_per_kwh is None:
        yield "money", NO_PRICE
    else:
        yield "money", "not known: electricity has a price, but the energy is not known"
    if costs.device_cost is not None and basis.price_per_device_hour is not None:
        yield (
            "devices",
            f"{money(costs.device_cost, basis.currency)}: {amount(costs.device_hours)} device-hours at "
            f"{basis.price_per_device_hour:,.2f} {basis.currency}",
        )
    if costs.electricity_cost is not None and basis.electricity_price_per_kwh is not None:
        yield (
            "electricity",
            f"{money(costs.electricity_cost, basis.currency)}: {basis.electricity_price_per_kwh:g} {basis.currency} "
            f"per kWh of the {'computers' if basis.pue is None else 'data centre'}",
        )


def _energy_rows(whole: SettingRecord, plan: PlanRecord) -> Iterator[tuple[str, str]]:
    """Build the rows on energy and power, or on why they are not known."""
    basis, costs = whole.job.costs, plan.costs
    joined, each = costs.it_energy_mwh, costs.it_energy_mwh_per_trillion_tokens
    if joined is None or each is None or costs.it_power_megawatts is None:
        device = f"cluster.device: {{base: {whole.cluster.device}, power_watts: N}}"
        yield "energy", f"not known: no power limit of the device is published; give it: {device}"
        return
    yield "energy", f"{energy(joined)} of the {_drawing(basis, costs)}, {energy(each)} {TRILLION_TOKENS}"
    if costs.facility_energy_mwh is not None and costs.facility_energy_mwh_per_trillion_tokens is not None:
        yield (
            "data centre",
            f"{energy(costs.facility_energy_mwh)} at a PUE of {basis.pue:g}, "
            f"{energy(costs.facility_energy_mwh_per_trillion_tokens)} {TRILLION_TOKENS}",
        )
    yield (
        "power",
        f"{power(costs.it_power_megawatts)} in the mean of {plan.training_run.days:,.2f} days{_facility(costs)}",
    )


def _drawing(basis: CostBasisRecord, costs: CostsRecord) -> str:
    """Name the parts of the computers whose energy is counted."""
    idle = f" ({count(costs.num_idle_devices, 'idle one')} included)" if costs.num_idle_devices else ""
    return f"GPUs{idle}" if basis.host_watts_per_device is None else f"GPUs{idle} and the rest of their nodes"


def _facility(costs: CostsRecord) -> str:
    megawatts = costs.facility_power_megawatts
    return "" if megawatts is None else f"; {power(megawatts)} of the data centre"


def _draw_rows(basis: CostBasisRecord, costs: CostsRecord) -> Iterator[tuple[str, str]]:
    """Build the row on the power of one GPU."""
    watts, share = costs.step_device_watts, costs.computing_share
    if watts is not None and share is not None and basis.power_watts is not None:
        yield (
            "one GPU",
            f"{watts:,.0f} of {basis.power_watts:,.0f} W in a step, of which it computes {share:.0%}; "
            f"{basis.idle_fraction * basis.power_watts:,.0f} W while it is down",
        )


def _omission_rows(whole: SettingRecord, plan: PlanRecord) -> Iterator[tuple[str, str]]:
    """Build the row on parts that no figure counts: entries that the job lacks, and GPUs beyond its limit."""
    basis, most = whole.job.costs, whole.job.max_devices
    beyond = 0 if most is None else whole.cluster.num_devices - most
    left_out = [f"{count(beyond, 'GPU')} beyond search.max_devices"] if beyond else []
    if plan.costs.it_energy_mwh is not None:
        if basis.host_watts_per_device is None:
            left_out.append("the rest of the nodes (costs.host_watts_per_device)")
        if basis.pue is None:
            left_out.append("the data centre (costs.pue)")
    if left_out:
        yield "not counted", "; ".join(left_out)


def costs_table(plans: Sequence[NumberedPlanRecord], currency: str) -> Section:
    """Build the table of money and energy of all plans; money where it is known."""
    has_money = plans[0].costs.total_cost is not None
    return Section(
        title="Money and energy of all strategies",
        header=("#", "device-hours", "MWh", "MW", *((currency, "difference") if has_money else ())),
        rows=tuple(_row(plan, has_money=has_money) for plan in plans),
    )


def _row(plan: NumberedPlanRecord, *, has_money: bool) -> tuple[str, ...]:
    costs = plan.costs
    cells = [
        str(plan.number),
        f"{costs.device_hours:,.0f}",
        NOTHING if costs.it_energy_mwh is None else megawatt_hours(costs.it_energy_mwh),
        _cell(costs.it_power_megawatts, ",.3f"),
    ]
    if has_money:
        cells += [_cell(costs.total_cost, ",.0f"), _cell(plan.difference_cost or None, "+,.0f")]
    return tuple(cells)


def _cell(value: float | None, form: str) -> str:
    return NOTHING if value is None else f"{value:{form}}"
