"""Whether a run is a job cut down, and in what it differs from the job beyond that."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields

from costmodel.errors import SpecError
from costmodel.facts.framework import Settings
from costmodel.facts.model import Layer, Model
from costmodel.strategy import DECISIONS, FLAGS, Strategy, decision_text
from planner.jobs.problem import Problem
from planner.runs.predictions import Case

SIZES = ("dp", "pp", "vpp", "group")
"""Decisions of which a small run has less: how many replicas and stages there are, and how they take turns."""

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
    "shared_expert_overlap": ("ep",),
    "offloaded_layers": ("activation_offload",),
    "offloaded_states": ("optimizer_offload",),
    "offloaded_masters": ("optimizer_offload",),
    "offload_overlap": ("optimizer_offload",),
    "host_threads": ("optimizer_offload",),
}
"""What decisions and settings are about: without ranks that share it, or without offloading, they mean nothing."""


def require_cut_down(small: Case, problem: Problem) -> None:
    """
    Refuse a run whose layers are not the job's, on the job's device.

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
            f"ran on {device.name}, the job on {own.name}: its times say nothing of another device.",
            "Measure the small run on the job's device.",
        )
    model, full = facts.model, whole.model
    if model.num_layers > full.num_layers:
        problem_text = f"has {model.num_layers} layers, the job {full.num_layers}: it is no job cut down."
        raise SpecError(where, problem_text, "Cut model.num_layers.")
    if facts.cluster.num_devices > whole.cluster.num_devices:
        problem_text = f"ran on {facts.cluster.num_devices} devices, the job on {whole.cluster.num_devices}"
        raise SpecError(where, f"{problem_text}: it is no job cut down.", "Cut cluster.num_devices.")
    for name, of_run, of_job in _sizes(model, full):
        if of_run != of_job:
            raise SpecError(where, f"has {name} {of_run}, the job {of_job}: its layers are others.", KEEP)
    if others := [kind for kind in model.kinds if kind not in full.kinds]:
        text = _different_layer(others[0], full)
        raise SpecError(where, f"has layers that the job has not: {text}.", KEEP)
    if facts.workload.precision != whole.workload.precision:
        names = f"{facts.workload.precision.name}, the job in {whole.workload.precision.name}"
        raise SpecError(where, f"computes in {names}: its kernels are others.", "Measure it in the job's precision.")


KEEP = "Cut the number of layers alone; width, experts and vocabulary stay the job's."


def _sizes(model: Model, full: Model) -> Iterator[tuple[str, int, int]]:
    for name in ("hidden_size", "vocab_size"):
        yield name, getattr(model, name), getattr(full, name)


def _different_layer(layer: Layer, full: Model) -> str:
    """In which of a layer's entries it differs from the nearest of the model's."""
    names = [one.name for one in fields(Layer)]
    return min(
        ([name for name in names if getattr(layer, name) != getattr(kind, name)] for kind in full.kinds), key=len
    )[0].replace("_", " ")


def differences(small: Case, problem: Problem, strategy: Strategy | None) -> tuple[str, ...]:
    """
    In what a run differs from the job beyond its size, so that its layers take another time; phrases for people.

    Parameters
    ----------
    small
        The run.
    problem
        The job.
    strategy
        The job's; None: it is still open, and decisions are not compared. A stage, replica or schedule that the run has
        not says nothing, and is no difference: what follows from it is the model's.
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
    """Settings as frameworks resolve them; while the strategy is open, those that mean something in any."""
    own, whole = small.facts.cluster.settings, problem.facts.cluster.settings
    for name in (one.name for one in fields(Settings)):
        of_run, of_job = getattr(own, name), getattr(whole, name)
        means = name not in NEEDED if strategy is None else _means(name, strategy)
        if of_run != of_job and means and _means(name, small.strategy):
            yield f"settings.{name} = {_setting_text(of_run)}, not {_setting_text(of_job)}"


def _means(name: str, strategy: Strategy) -> bool:
    """Whether a decision or setting has an effect beside the others of a strategy."""
    needed = NEEDED.get(name, ())
    return not needed or any(getattr(strategy, one) > (0 if one in FLAGS else 1) for one in needed)


def _setting_text(value: object) -> str:
    """As job files spell it."""
    if value is None:
        return "as the framework has it"
    return str(value).lower() if isinstance(value, bool) else str(value)


def covered_fraction(smalls: Sequence[Case], model: Model) -> float:
    """Share of a model's layers of which a small run has some of the same kind."""
    known = [kind for small in smalls for kind in small.facts.model.kinds]
    return sum(layer in known for layer in model.layers) / model.num_layers
