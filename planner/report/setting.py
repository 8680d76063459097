"""Sections on the job with the answer in a line, and on the conventions of the figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from costmodel.facts.device import Sites
from planner.jobs.setting_choices import text_of
from planner.report.records.setting import framework_text, targets_text
from planner.report.section import Section, group_rows
from planner.report.wording import amount, count, gib, seconds, share, tflops

if TYPE_CHECKING:
    from planner.jobs.checkpoints import ModelSummary
    from planner.jobs.problem import Problem
    from planner.report.records.plan import BestRunRecord, PlanRecord, PublishedLayoutRecord
    from planner.report.records.reports import IdleDevicesRecord, PlanReportRecord, ReportRecord
    from planner.report.records.setting import SettingRecord, TrainingRecord


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


LEAST_GAIN = 0.03

"""Gain in tokens per second from which on a near-by batch belongs to the first screen."""


def nearby_rows(whole: ReportRecord) -> Iterator[tuple[str, str]]:
    """Build the row on the near-by batch that gains most, if it gains more than ``LEAST_GAIN``."""
    best = max(whole.nearby_batches, key=lambda one: one.gain_fraction, default=None)
    if best is not None and best.gain_fraction > LEAST_GAIN:
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
    rows += unused_rows(setting)
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
    links = f"{sites.count} data centres, {speed} and {1000 * sites.latency:.4g} ms between two, as no measured run has"
    if sites.local_steps == 1:
        return f"{links}; gradients are reduced over all of them in every step, inside each site first"
    streams = f" in {count(sites.streams, 'stream')} overlapped with computation" if sites.streams > 1 else ""
    return (
        f"{links}; weights are synchronized every {count(sites.local_steps, 'step')}, {sites.sent_bytes:g} bytes per "
        f"parameter{streams}. {CAVEAT}"
    )


CAVEAT = (
    "Quality is not modelled: local steps (DiLoCo) train another optimizer, whose loss per token differs. The states "
    "of its outer optimizer are taken to be in host memory and are not counted."
)
"""Caveat of local steps."""


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


def unused_rows(setting: SettingRecord) -> Iterator[tuple[str, str]]:
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
    """List the numbers of a training that its job writes with units; empty where there are none."""
    given, workload = problem.document.get("training") or {}, problem.facts.workload
    own = {"max_seqlen_per_dp_cp_rank": workload.lengths.rank_tokens} if workload.lengths else {}
    read = {name: own.get(name, getattr(workload, name, None)) for name in given if isinstance(given[name], str)}
    said = [f"{name} {given[name]} is {value:,.0f}" for name, value in read.items() if isinstance(value, int | float)]
    is_binary = "sequence_length" in read
    return "; ".join(said) + (" (k is 1,024 in sequence lengths, 1,000 elsewhere)" if said and is_binary else "")


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
    left_out = [f"not searched: {reason}"] if reason else []
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
