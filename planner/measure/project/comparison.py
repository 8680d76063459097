"""Comparison of a small run with its job: layers, device and precision must be equal; other differences are listed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields

from costmodel.errors import SpecError
from costmodel.facts.framework import Settings
from costmodel.facts.model import Layer, Model
from costmodel.strategy import DECISIONS, FLAGS, Strategy, decision_text
from planner.jobs.problem import Problem
from planner.measure.runs.predictions import Case

SIZES = ("dp", "pp", "vpp", "group")
"""Decisions that are smaller in a small run: replicas, stages, and their order."""

NEEDED: Mapping[str, tuple[str, ...]] = {
    "sequence_parallel": ("tp",),
    "tp_overlap": ("tp",),
    "cp_overlap": ("cp",),
    "ep_overlap": ("ep",),
    "token_dispatcher": ("ep",),
    "pp_overlap": ("pp",),
    "schedule": ("pp",),
    "vocabulary": ("pp",),
    "dp_overlap": ("dp", "cp"),
    "sharding": ("dp", "cp"),
    "optimizer_group": ("dp", "cp"),
    "communication_sms": ("ep",),
    "cp_comm_type": ("cp",),
    "cp_a2a_ranks": ("cp",),
    "shared_expert_overlap": ("ep",),
    "offloaded_layers": ("activation_offload",),
    "offloaded_states": ("optimizer_offload",),
    "offloaded_masters": ("optimizer_offload",),
    "offload_overlap": ("optimizer_offload",),
    "host_threads": ("optimizer_offload",),
}
"""Decisions that another decision or setting depends on: without them it has no effect."""


def require_cut_down(small: Case, problem: Problem) -> None:
    """
    Refuse a run whose layers or device are not the job's.

    Raises
    ------
    SpecError
        If device, width, vocabulary, kinds of layers or precision differ, or if the run is larger than the job.
    """
    where, facts, whole = small.run.id, small.facts, problem.facts
    device, own = facts.cluster.device, whole.cluster.device
    if (device.name, device.peak_flops) != (own.name, own.peak_flops):
        raise SpecError(
            where,
            f"ran on {device.name}, the job on {own.name}: its times do not apply to another device.",
            "Measure the small run on the job's device.",
        )
    model, full = facts.model, whole.model
    if model.num_layers > full.num_layers:
        problem_text = f"has {model.num_layers} layers, the job {full.num_layers}: it is not a smaller run of the job."
        raise SpecError(where, problem_text, "Cut model.num_layers.")
    if facts.cluster.num_devices > whole.cluster.num_devices:
        problem_text = f"ran on {facts.cluster.num_devices} devices, the job on {whole.cluster.num_devices}"
        raise SpecError(where, f"{problem_text}: it is not a smaller run of the job.", "Cut cluster.num_devices.")
    for name in ("hidden_size", "vocab_size"):
        of_run, of_job = getattr(model, name), getattr(full, name)
        if of_run != of_job:
            raise SpecError(where, f"has {name} {of_run}, the job {of_job}: its layers differ.", KEEP)
    if others := [kind for kind in model.kinds if kind not in full.kinds]:
        text = _different_layer(others[0], full)
        raise SpecError(where, f"has layers that the job does not have: {text}.", KEEP)
    if facts.workload.precision != whole.workload.precision:
        names = f"{facts.workload.precision.name}, the job in {whole.workload.precision.name}"
        raise SpecError(where, f"computes in {names}: its kernels differ.", "Measure it in the job's precision.")


KEEP = "Reduce only the number of layers; width, experts and vocabulary stay the job's."


def _different_layer(layer: Layer, full: Model) -> str:
    """Name the entry in which a layer differs from the nearest of the model's."""
    names = [one.name for one in fields(Layer)]
    return min(
        ([name for name in names if getattr(layer, name) != getattr(kind, name)] for kind in full.kinds), key=len
    )[0].replace("_", " ")


def differences(small: Case, problem: Problem, strategy: Strategy | None) -> tuple[str, ...]:
    """
    List the differences of a run from the job beyond its size that change its layers' time; phrases for people.

    Parameters
    ----------
    small
        The run.
    problem
        The job.
    strategy
        The job's strategy; None where it is still open, and decisions are not compared. A stage, replica or schedule
        that the run lacks is no difference: its effect comes from the model.
    """
    return tuple(_differences(small, problem, strategy))


def _differences(small: Case, problem: Problem, strategy: Strategy | None) -> Iterator[str]:
    facts, whole = small.facts, problem.facts
    length, own = facts.workload.sequence_length, whole.workload.sequence_length
    if length != own:
        yield f"sequences of {length} tokens, not {own}"
    framework, job_framework = facts.cluster.framework, whole.cluster.framework
    if framework and job_framework and framework.name != job_framework.name:
        yield f"{framework.name}, not {job_framework.name}"
    yield from _different_settings(small, problem, strategy)
    if strategy is None:
        return
    for name in (one for one in DECISIONS if one not in SIZES):
        of_run, of_job = getattr(small.strategy, name), getattr(strategy, name)
        if of_run != of_job and _means(name, small.strategy) and _means(name, strategy):
            yield f"{name} = {decision_text(name, of_run)}, not {decision_text(name, of_job)}"


def _different_settings(small: Case, problem: Problem, strategy: Strategy | None) -> Iterator[str]:
    """Yield differing settings as frameworks resolve them; with an open strategy only those that always matter."""
    own, whole = small.facts.cluster.settings, problem.facts.cluster.settings
    for name in (one.name for one in fields(Settings)):
        of_run, of_job = getattr(own, name), getattr(whole, name)
        means = name not in NEEDED if strategy is None else _means(name, strategy)
        if of_run != of_job and means and _means(name, small.strategy):
            yield f"settings.{name} = {_setting_text(of_run)}, not {_setting_text(of_job)}"


def _means(name: str, strategy: Strategy) -> bool:
    """Return True if a decision or setting has an effect, given the others of a strategy."""
    needed = NEEDED.get(name, ())
    return not needed or any(getattr(strategy, one) > (0 if one in FLAGS else 1) for one in needed)


def _setting_text(value: object) -> str:
    """Format a setting as in job files."""
    if value is None:
        return "as the framework has it"
    return str(value).lower() if isinstance(value, bool) else str(value)


def covered_fraction(smalls: Sequence[Case], model: Model) -> float:
    """Return the share of a model's layers whose kind occurs in a small run."""
    known = [kind for small in smalls for kind in small.facts.model.kinds]
    return sum(layer in known for layer in model.layers) / model.num_layers
