"""Gaps between a prediction and measured runs: properties that few or no runs have, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from costmodel.record import record
from costmodel.strategy import Strategy
from costmodel.tables import Facts
from planner.uncertainty.evidence.counts import ANY, INLINE, Counts, Traits, read_counts, stack_of, traits_of

FEW_RUNS = 3

"""Runs from which on a value counts as measured: one or two may be odd, and are often of one source."""

FEWEST_RUNS = 50

"""Runs from which on the absence of a value is evidence; below, related stacks count, then all."""

MOST_TOLD = 6

"""Gaps that a text report lists; the JSON has all of them."""

NEARLY = 1.1

"""Multiple of the largest measured number from which on a number counts as larger than all."""

UNTUNED_FACTOR = 2.25

"""
Step of an untuned run over that of a tuned one.

Four jobs of Qwen3 took 1.99 to 2.92 times as long in one of NVIDIA's releases as in another, in the median 2.25. They
are 30B on 16 H100 in BF16 and FP8, and on 8 B200; 235B on 256 B300. Ordinary users publish few runs.
"""

ORDER = (
    *("software", "device", "architecture", "software on device", "kind", "family", "precision"),
    *("optimizer_offload", "activation_offload", "schedule", "vocabulary", "token_dispatcher", "cuda_graphs"),
    *("sharding", "sequence_parallel", "recompute"),
    *("tp_overlap", "cp_overlap", "ep_overlap", "pp_overlap", "dp_overlap"),
    *("launches", "tuning"),
    *("num_devices", "parameters", "sequence_length", "sequence_lengths", "cp_comm_type"),
    *("ep", "cp", "pp", "tp", "etp", "vpp", "release"),
)

"""Dimensions, those first that change a step most without measurements."""

MODEL = {"dense": "dense model", "moe": "MoE model", "hybrid": "hybrid model"}

MODELS = {"dense": "dense models", "moe": "MoE models", "hybrid": "hybrid models"}

FEATURES: Mapping[str, tuple[str, str]] = {
    "optimizer_offload": ("offloads the optimizer", "an offloaded optimizer"),
    "activation_offload": ("offloads activations", "offloaded activations"),
    "schedule": ("has schedule {value}", "schedule {value}"),
    "vocabulary": ("has vocabulary {value}", "vocabulary {value}"),
    "token_dispatcher": ("dispatches tokens by {value}", "token dispatcher {value}"),
    "cuda_graphs": ("has CUDA graphs of {value}", "cuda_graphs of {value}"),
    "sharding": ("has sharding {value}", "sharding {value}"),
    "sequence_parallel": ("has sequence parallelism", "sequence parallelism"),
    "recompute": ("recomputes {value}", "recomputation of {value}"),
    **{f"{name}_overlap": (f"overlaps {name}", f"overlap of {name}") for name in ("tp", "cp", "ep", "pp", "dp")},
}

"""Verb phrase for a run with a feature, and name of the feature."""

VALUES = {
    ("cuda_graphs", "full_iteration"): "whole iterations",
    ("recompute", "full"): "whole layers",
    ("recompute", "selective"): "attention",
}

"""Values that read better in other words."""

PLAIN = ("none", "false", "1f1b", "ends", "alltoall")

"""Values that are not features: decisions as in the simplest software."""

TIMES = {1: "once", 2: "twice"}


@record(frozen=True, kw_only=True, slots=True)
class Gap:
    """
    One property with few or no measured runs.

    Parameters
    ----------
    dimension
        Name of the property: ``software``, ``device``, a decision such as ``pp``, or a size such as ``parameters``.
    value
        Its value in the prediction.
    runs
        Number of runs with it; for a degree, runs with at least that degree. A gap has fewer than three.
    sentence
        The gap in words, without a full stop.
    beyond
        Ratio to the largest measured number, where it is larger; else 1.
    """

    dimension: str
    value: str
    runs: int
    sentence: str
    beyond: float = 1.0


def list_gaps(facts: Facts, strategy: Strategy, counts: Counts | None = None) -> list[Gap]:
    """
    List the gaps between a prediction and measured runs, the most important first.

    Parameters
    ----------
    facts
        Model, cluster and workload.
    strategy
        Strategy of the prediction.
    counts
        Counts of the measured runs; None uses the project's.
    """
    found = gaps_to_runs(traits_of(facts, strategy), read_counts() if counts is None else counts)
    return sorted([*found, *_sequences(facts, strategy)], key=_importance)


def gaps_to_runs(run: Traits, counts: Counts) -> list[Gap]:
    """List the gaps between a run and counted runs: those without any run first, then in the order of ``ORDER``."""
    parts = (_software, _device, _kind, _family, _precision, _features, _launches, _tuning, _sizes, _degrees)
    found = (gap for part in parts for gap in part(run, counts))
    return sorted(found, key=_importance)


def _importance(gap: Gap) -> tuple[bool, int]:
    return gap.runs > 0, ORDER.index(gap.dimension)


def _sequences(facts: Facts, strategy: Strategy) -> Iterator[Gap]:
    """Yield packed sequences and exchanges of context-parallel ranks, which no measured run states."""
    lengths, kind = facts.workload.lengths, facts.cluster.device.behaviour.communication.cp_comm_type
    if lengths is not None:
        sentence = "no measured run packs sequences of unequal lengths"
        yield Gap(dimension="sequence_lengths", value=str(len(lengths.lengths)), runs=0, sentence=sentence)
    if strategy.cp > 1 and kind not in (None, "p2p"):
        sentence = f"no measured run has context parallelism by {kind}"
        yield Gap(dimension="cp_comm_type", value=kind, runs=0, sentence=sentence)


# --- software, device, model --------------------------------------------------------------------------------
def _few(dimension: str, value: str, runs: int, *, none: str, what: str) -> Iterator[Gap]:
    """Yield a gap if runs are few: a sentence for none, or with their number."""
    if runs < FEW_RUNS:
        sentence = f"{what} was measured {TIMES[runs]}" if runs else none
        yield Gap(dimension=dimension, value=value, runs=runs, sentence=sentence)


def _software(run: Traits, counts: Counts) -> Iterator[Gap]:
    if not run.release:
        return
    if run.release == INLINE:
        yield Gap(dimension="software", value=INLINE, runs=0, sentence="no measured run of the job's own framework")
        return
    if not run.runs_on_device:
        sentence = f"no file knows the software of {run.architecture}, costed as {run.release}"
        yield Gap(dimension="software", value=f"{run.release} on {run.architecture}", runs=0, sentence=sentence)
    if run.unknown_release:
        sentence = f"no measured run of {run.unknown_release}, costed as {run.release}"
        yield Gap(dimension="software", value=run.unknown_release, runs=0, sentence=sentence)
    own = counts.runs("software", run.software)
    others = _count_of_stack(run, counts) - own
    beside = f" (of other releases of it: {others:,})" if others else ""
    none = f"no measured run of {run.software}{beside}"
    yield from _few("software", run.software, own, none=none, what=run.software)
    if own >= FEW_RUNS and not run.unknown_release and not counts.runs("release", run.release):
        costed = "" if run.release == run.software else f", costed as {run.software} ({own:,} runs)"
        sentence = f"no measured run of {run.release} itself{costed}"
        yield Gap(dimension="release", value=run.release, runs=0, sentence=sentence)


def _count_of_stack(run: Traits, counts: Counts) -> int:
    counter = counts.values("software")
    return sum(count for value, count in counter.items() if stack_of(str(value)) == run.stack)


def _device(run: Traits, counts: Counts) -> Iterator[Gap]:
    """Yield the gaps of a device; none if it was calibrated on its own runs."""
    if run.is_own_device:
        return
    own, alike = counts.runs("device", run.device), counts.runs("architecture", run.architecture)
    name = "the job's own device" if run.device == INLINE else run.device
    if run.architecture in (ANY, run.device):
        beside = ""
    else:
        beside = (
            f" (on others of {run.architecture}: {alike - own:,})" if alike > own else f", nor on {run.architecture}"
        )
    yield from _few("device", run.device, own, none=f"no measured run on {name}{beside}", what=name)
    if not alike and run.fitted_as not in ("", run.architecture):
        sentence = f"constants of {run.architecture} are those of {run.fitted_as} where nothing was published"
        yield Gap(dimension="architecture", value=run.architecture, runs=0, sentence=sentence)
    if own and counts.runs("software", run.software) and not counts.runs("device", run.device, run.software):
        sentence = f"no measured run of {run.software} on {run.device}"
        yield Gap(dimension="software on device", value=f"{run.software} on {run.device}", runs=0, sentence=sentence)


def _kind(run: Traits, counts: Counts) -> Iterator[Gap]:
    models = MODELS[run.kind]
    if not counts.runs("kind", run.kind):
        yield Gap(dimension="kind", value=run.kind, runs=0, sentence=f"no measured run of {models}")
        return
    if not run.is_own_device and counts.runs("architecture", run.architecture):
        runs, on = counts.runs("kind", run.kind, run.architecture), f"on {run.architecture}"
        value, none = f"{run.kind} {on}", f"no measured run of {models} {on}"
        yield from _few("kind", value, runs, none=none, what=f"a {MODEL[run.kind]} {on}")
    if _count_of_stack(run, counts):
        runs, by = counts.runs("kind", run.kind, run.stack), f"with {run.stack}"
        value, none = f"{run.kind} {by}", f"no measured run of {models} {by}"
        yield from _few("kind", value, runs, none=none, what=f"a {MODEL[run.kind]} {by}")


def _family(run: Traits, counts: Counts) -> Iterator[Gap]:
    if run.family == INLINE or not counts.runs("kind", run.kind):
        return
    known = [(name, count) for name, count in counts.most("family", run.kind, 3) if name not in (INLINE, run.family)]
    beside = ", ".join(f"{name} {count:,}" for name, count in known[:2])
    none = f"no measured run of {MODELS[run.kind]} of family {run.family}" + (f" ({beside})" if beside else "")
    runs = counts.runs("family", run.family, run.kind)
    yield from _few("family", run.family, runs, none=none, what=f"a {MODEL[run.kind]} of family {run.family}")


def _precision(run: Traits, counts: Counts) -> Iterator[Gap]:
    everywhere = counts.runs("precision", run.precision)
    if not everywhere:
        sentence = f"no measured run in {run.precision}"
        yield Gap(dimension="precision", value=run.precision, runs=0, sentence=sentence)
    elif not run.is_own_device and counts.runs("architecture", run.architecture):
        runs, on = counts.runs("precision", run.precision, run.architecture), f"{run.precision} on {run.architecture}"
        yield from _few("precision", on, runs, none=f"no measured run in {on}", what=on)


# --- decisions ----------------------------------------------------------------------------------------------
def _features(run: Traits, counts: Counts) -> Iterator[Gap]:
    """Yield features that few runs of its stack have, or of related stacks where its own has too few runs to tell."""
    known = [*run.features.items(), *(("recompute", part) for part in run.recompute)]
    for name, value in known:
        if value in PLAIN:
            continue
        stacks = next(each for each in run.related if _total(counts, name, each) >= FEWEST_RUNS or ANY in each)
        runs = sum(counts.runs(name, value, stack) for stack in stacks)
        of = "" if ANY in stacks or not counts.runs(name, value) else f" of {_stacks_text(stacks)}"
        does, called = _feature_words(name, value)
        beside = counts.runs(name, value)
        others = f" ({beside:,} of other software)" if beside > runs else ""
        what = f"{called} with {_stacks_text(stacks)}" if of else called
        few = list(_few(name, value, runs, none=f"no measured run{of} {does}{others}", what=what))
        yield from few or _feature_on(run, counts, name, value)


def _feature_on(run: Traits, counts: Counts, name: str, value: str) -> Iterator[Gap]:
    """Yield a feature that few runs on its generation of devices have, where there are enough of these."""
    if run.is_own_device or counts.total(name, run.architecture) < FEWEST_RUNS:
        return
    does, called = _feature_words(name, value)
    runs, on = counts.runs(name, value, run.architecture), f"on {run.architecture}"
    yield from _few(name, f"{value} {on}", runs, none=f"no measured run {on} {does}", what=f"{called} {on}")


def _feature_words(name: str, value: str) -> tuple[str, str]:
    """Return the verb phrase for a run with a feature, and the name of the feature."""
    does, called = FEATURES[name]
    shown = VALUES.get((name, value), value)
    return does.format(value=shown), called.format(value=shown)


def _total(counts: Counts, name: str, stacks: Sequence[str]) -> int:
    return sum(counts.total(name, stack) for stack in stacks)


def _stacks_text(stacks: Sequence[str]) -> str:
    """List stacks in words."""
    return stacks[0] if len(stacks) == 1 else f"{', '.join(stacks[:-1])} or {stacks[-1]}"


def _launches(run: Traits, _: Counts) -> Iterator[Gap]:
    """Yield CPU launches of overlapped all-to-all beyond those of measured runs, whose effect is capped."""
    if run.launches_beyond > 1:
        sentence = (
            "EP overlap with so much CPU launch overhead was never measured: costed as the largest measured, "
            f"{run.launches_beyond:.2f} times less"
        )
        yield Gap(
            dimension="launches",
            value=f"{run.launches_beyond:.2f} times",
            runs=0,
            sentence=sentence,
            beyond=run.launches_beyond,
        )


def _tuning(run: Traits, _: Counts) -> Iterator[Gap]:
    """Yield the lack of all features with which published runs of models with experts are fast."""
    if run.is_untuned and not run.is_own_device:
        sentence = (
            "all-to-all with micro-batches of one sequence and no CUDA graphs: such runs take up to "
            f"{UNTUNED_FACTOR} times as long as tuned ones"
        )
        yield Gap(dimension="tuning", value="untuned", runs=FEW_RUNS, sentence=sentence)


# --- numbers ------------------------------------------------------------------------------------------------
def _sizes(run: Traits, counts: Counts) -> Iterator[Gap]:
    """Yield numbers beyond all measured ones of its kind; for devices, those on its device where there are any."""
    if not counts.runs("kind", run.kind):
        return
    on_device = bool(counts.total("num_devices", run.kind_on_device))
    among = {"num_devices": run.kind_on_device} if on_device else {}
    where = f" on {run.device}" if on_device else ""
    model, models = MODEL[run.kind], MODELS[run.kind]
    words = {
        "num_devices": f"the largest measured number of devices of {models}{where} is {{most:,}} (this job: {{own:,}})",
        "sequence_length": f"the longest measured sequence of {models} has {{most:,}} tokens (this job: {{own:,}})",
        "parameters": f"the largest measured {model} has {{most:,}} million parameters (this job: {{own:,}})",
    }
    for name, own in run.sizes.items():
        if name == "num_devices" and run.is_own_device:
            continue
        most = counts.largest(name, among.get(name, run.kind))
        if own >= NEARLY * most:
            sentence = words[name].format(most=most, own=own)
            yield Gap(dimension=name, value=str(own), runs=0, sentence=sentence, beyond=own / most)


def _degrees(run: Traits, counts: Counts) -> Iterator[Gap]:
    """Yield degrees that few runs reach: between two measured degrees nothing is extrapolated."""
    if not counts.runs("kind", run.kind):
        return
    models = MODELS[run.kind]
    for name, degree in run.degrees.items():
        most, beyond = counts.largest(name, run.kind), counts.reaching(name, degree, run.kind)
        value = f"{name} {degree:,}" if counts.runs(name, degree, run.kind) else f"{name} of {degree:,} or more"
        known = f"the largest measured {name} of {models} is {most:,} (this job: {degree:,})"
        none = known if most else f"no measured run of a {MODEL[run.kind]} has {name} above 1"
        for gap in _few(name, str(degree), beyond, none=none, what=f"{value} of {models}"):
            yield gap if beyond else replace(gap, beyond=degree / max(most, 1))
