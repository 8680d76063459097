"""Predictions of the measured runs beside the paper's: parts, steps, and their mean errors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.accuracy.left_out.folds import GROUP, HELD_OUT, read_held_out
from benchmarks.paper_chain.chain import HOST_SECONDS, composed, from_components
from benchmarks.paper_chain.operators import sampled_network, sampled_operators
from benchmarks.paper_chain.runs import STEP, MeasuredRun
from planner.jobs.run_jobs import References
from planner.measure.runs.predictions import predict

ENCODERS = ("encoder_fwd", "encoder_bwd")

CHECKED = {"encoders": ENCODERS, "steps": (STEP,)}
"""Components that must be closer than the paper's, in the mean over the runs of a machine."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Predicted:
    """
    One run with its predictions in seconds.

    Parameters
    ----------
    run
        As measured, and as the paper predicts it.
    components
        Predicted from samples, by the paper's names.
    step_without_host
        The step, nothing assumed of the host.
    step_of_measured
        The step put together from the measured parts.
    planner, left_out
        The step by the planner's cost model: with its constants of today; with constants fitted without the run's
        group. None: the run is not in the table of measured runs.
    """

    run: MeasuredRun
    components: Mapping[str, float]
    step_without_host: float
    step_of_measured: float
    planner: float
    left_out: float | None

    def error(self, component: str) -> float:
        """Predicted over measured, less 1."""
        return self.components[component] / self.run.measured[component] - 1

    def paper_error(self, component: str) -> float:
        """Error of the paper's prediction of a component."""
        return self.run.paper[component] / self.run.measured[component] - 1


def predicted(runs: Sequence[MeasuredRun], known: References) -> Iterator[Predicted]:
    """Predict each run from samples of its machine, those of the runs' hidden sizes left out."""
    left_out, hidden_sizes = read_held_out(HELD_OUT), frozenset(run.hidden_size for run in runs)
    for run in runs:
        facts, strategy = run.case.facts, run.case.strategy
        operators = sampled_operators(facts.cluster.device, run.gpu, without=hidden_sizes)
        parts = [
            composed(
                facts,
                strategy,
                operators,
                sampled_network(run.machine),
                partitions_activations=run.partitions_activations,
                host_seconds=host_seconds,
            )
            for host_seconds in (HOST_SECONDS, 0.0)
        ]
        alone = left_out.get(run.case.run.id)
        measured = from_components(run.measured, pp=int(strategy.pp), num_microbatches=parts[0].num_microbatches)
        yield Predicted(
            run=run,
            components=parts[0].components(),
            step_without_host=parts[1].step,
            step_of_measured=measured.step,
            planner=predict(run.case, known).step_seconds,
            left_out=alone.seconds[GROUP] if alone else None,
        )


def component_lines(found: Sequence[Predicted]) -> Iterator[str]:
    """Every measured part of every run, and errors by part; milliseconds."""
    for one in found:
        yield f"{one.run.label} ({one.run.folder})"
        yield f"  {'':26}{'measured':>12}{'predicted':>12}{'error':>12}{'paper':>10}"
        for name, seconds in one.run.measured.items():
            errors = f"{one.error(name):>+12.1%}{one.paper_error(name):>+10.1%}"
            yield f"  {name:26}{1e3 * seconds:>12.2f}{1e3 * one.components[name]:>12.2f}{errors}"
    yield ""
    yield f"{'absolute errors over runs':28}{'median':>8}{'paper':>8}{'mean':>8}{'paper':>8}"
    for name in found[0].run.measured if found else ():
        own, paper = _absolute(found, (name,))
        figures = (np.median(own), np.median(paper), np.mean(own), np.mean(paper))
        yield f"  {name:26}" + "".join(f"{figure:>8.1%}" for figure in figures)


def step_lines(found: Sequence[Predicted]) -> Iterator[str]:
    """Every step with its predictions, and mean absolute errors of each machine."""
    heads = ("seconds", "predicted", "error", "paper", "no host", "measured parts", "planner", "left out")
    yield f"{'steps':38}" + "".join(f"{head:>{len(head) + 3}}" for head in heads)
    for one in found:
        measured = one.run.measured[STEP]
        errors = [None if error is None else f"{error:+.1%}" for error in _step_errors(one)]
        cells = (f"{measured:.2f}", f"{one.components[STEP]:.2f}", *errors)
        repeats = ", ".join(f"{seconds:.2f}" for seconds in one.run.repeats)
        row = "".join(f"{cell or '':>{len(head) + 3}}" for head, cell in zip(heads, cells, strict=True))
        yield f"{one.run.label:38}{row}" + (f"   again: {repeats}" if repeats else "")
    for machine in dict.fromkeys(one.run.machine for one in found):
        columns = zip(*(_step_errors(one) for one in found if one.run.machine == machine), strict=True)
        means = [np.mean([abs(error) for error in column if error is not None]) for column in columns]
        cells = ("", "", *(f"{mean:.1%}" for mean in means))
        row = "".join(f"{cell:>{len(head) + 3}}" for head, cell in zip(heads, cells, strict=True))
        yield f"{'mean of ' + machine:38}{row}"


def worse_than_paper(found: Sequence[Predicted]) -> Iterator[str]:
    """Sentences about what is not closer than the paper's on a machine, in the mean."""
    for machine in dict.fromkeys(one.run.machine for one in found):
        of_machine = [one for one in found if one.run.machine == machine]
        for what, names in CHECKED.items():
            own, paper = (float(np.mean(errors)) for errors in _absolute(of_machine, names))
            if own >= paper:
                yield f"{what} on {machine}: {own:.1%} in the mean, the paper {paper:.1%}."


def _absolute(found: Sequence[Predicted], names: Iterable[str]) -> tuple[list[float], list[float]]:
    pairs = [(abs(one.error(name)), abs(one.paper_error(name))) for name in names for one in found]
    return [own for own, _ in pairs], [paper for _, paper in pairs]


def _step_errors(one: Predicted) -> tuple[float | None, ...]:
    """Errors of the step: from samples, the paper's, without the host, of measured parts, the planner's two."""
    predictions = (
        one.components[STEP],
        one.run.paper[STEP],
        one.step_without_host,
        one.step_of_measured,
        one.planner,
        one.left_out,
    )
    return tuple(None if seconds is None else seconds / one.run.measured[STEP] - 1 for seconds in predictions)
