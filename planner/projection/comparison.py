"""Whether a run is a job cut down, and in what it differs from the job beyond that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields

from costmodel.errors import SpecError
from costmodel.facts.model import Layer, Model
from costmodel.strategy import Strategy, decision_text
from planner.jobs.problem import Problem
from planner.runs.predictions import Case

SAME_DECISIONS = ("tp", "cp", "ep", "mbs", "recompute")
"""Decisions on which the time of a layer depends; pipeline and replicas are what a small run has less of."""


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
        The job's; None: it is still open, and decisions are not compared.
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
    if strategy is None:
        return
    for name in SAME_DECISIONS:
        of_run, of_job = getattr(small.strategy, name), getattr(strategy, name)
        if of_run != of_job:
            yield f"{name} = {decision_text(name, of_run)}, not {decision_text(name, of_job)}"


def covered_fraction(smalls: Sequence[Case], model: Model) -> float:
    """Share of a model's layers of which a small run has some of the same kind."""
    known = [kind for small in smalls for kind in small.facts.model.kinds]
    return sum(layer in known for layer in model.layers) / model.num_layers
