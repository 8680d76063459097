"""
Published small runs projected to larger ones of the same source, with constants that saw neither.

A small run is a proxy (fewer layers) or on one node; its larger siblings share source, model, device and precision, and
have at least as many layers and devices. The planner's own figure of two layouts says how far such runs hold.

The constants that a small run moves (the table's, a factor on kernels, or both) were chosen on llm-foundry, whose
figure is therefore no result; on dgxc these variants differ by 0.1 of 3.6 %.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import yaml

from benchmarks.accuracy.fit import chosen_constants, timed_cases
from benchmarks.accuracy.jobs import share_work, source_weights
from benchmarks.accuracy.metrics import grouped, read_table
from costmodel import catalog
from costmodel.errors import SpecError
from costmodel.step.estimate import estimate
from costmodel.tables import Facts
from planner.jobs.cluster import Fitted
from planner.jobs.run_jobs import References
from planner.measure.calibrate.cases import Predictor, log_measured_seconds
from planner.measure.calibrate.constants import Constant, prior_factors, read, replace_constants
from planner.measure.calibrate.fit import Fit, fit, priors_of
from planner.measure.project.anchor import Anchor, anchor, differences, require_cut_down
from planner.measure.project.projected import deviation_of_constants, project_interval, project_parts
from planner.measure.runs.predictions import Case, find_unreported_recompute
from planner.uncertainty.intervals import Kind, kind_of, step_interval

CONSTANTS = Path(__file__).parent / "projected_constants.yaml"

SOURCES: Mapping[str, str] = {
    "NVIDIA dgxc": "looked at, no matter for the method",
    "llm-foundry": "the method was chosen on it",
    "vTrain": "not looked at before",
}
"""Sources of rows that have small runs, by how their names begin."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """
    A small run and a larger one.

    Parameters
    ----------
    source, name
        Source of the runs; model, precision and device.
    sizes
        Layers and devices of both.
    is_alike
        True if they differ in nothing but their sizes.
    measured, model, projected
        Seconds of the larger one: measured, predicted without and with the small one.
    measured_fraction
        Share of the projected step that was measured.
    is_inside
        True if the measured step lies in the projection's interval.
    """

    source: str
    name: str
    sizes: str
    is_alike: bool
    measured: float
    model: float
    projected: float
    measured_fraction: float
    is_inside: bool

    @property
    def model_error(self) -> float:
        """Absolute error without the small run."""
        return abs(self.model / self.measured - 1)

    @property
    def error(self) -> float:
        """Absolute error with it."""
        return abs(self.projected / self.measured - 1)


# --- published runs ----------------------------------------------------------------------------------------


def siblings(timed: Sequence[Case]) -> Iterator[tuple[Case, Case]]:
    """Each small run with each of its larger siblings, at most ``MOST_PAIRS`` of a kind."""
    kinds = grouped(
        timed, lambda one: (one.run.source, one.run.model, one.run.device, one.facts.workload.precision.name)
    )
    for group in kinds.values():
        small = [one for one in group if one.run.kind == "proxy" or one.facts.cluster.num_nodes == 1]
        pairs = [(one, other) for one in small for other in group if _is_larger(other, one) and _is_cut(one, other)]
        yield from pairs[:: -(-len(pairs) // MOST_PAIRS) or 1]


MOST_PAIRS = 40
"""Most pairs of one source, model, device and precision; from more (vTrain's grids of layouts) evenly spaced ones."""


def _is_cut(small: Case, large: Case) -> bool:
    """Tell whether the planner takes the small run for a cut of the larger one: some have other numbers of KV heads."""
    try:
        require_cut_down(small, large.problem)
    except SpecError:
        return False
    return True


def _is_larger(large: Case, small: Case) -> bool:
    sizes, own = _sizes(large), _sizes(small)
    return sizes != own and sizes[0] >= own[0] and sizes[1] >= own[1]


def _sizes(one: Case) -> tuple[int, int]:
    return one.facts.model.num_layers, one.run.num_devices


def published(timed: Sequence[Case], known: References) -> Iterator[Pair | SpecError]:
    """Every pair, with constants fitted without the source and without its models; or why a run is refused."""
    without = read_constants()
    for source in SOURCES:
        pairs = [pair for pair in siblings(timed) if pair[0].run.source.startswith(source)]
        theirs = known.refit(without[source])
        anchors: dict[tuple[str, Kind | None], Anchor | SpecError] = {}
        for small, large in pairs:
            differs = bool(differences(small, large.problem, large.strategy))
            key = (small.run.id, kind_of(large.facts.model, large.facts.cluster) if differs else None)
            if key not in anchors:
                anchors[key] = _anchor(small, large, theirs)
            found = anchors[key]
            yield found if isinstance(found, SpecError) else _pair(small, large, found, theirs)


def _anchor(small: Case, large: Case, known: References) -> Anchor | SpecError:
    try:
        return anchor(large.problem, [small], large.strategy, known.fitted)
    except SpecError as error:
        return error


def _pair(small: Case, large: Case, found: Anchor, known: References) -> Pair:
    facts = _anchored(large, found, known.fitted)
    before, after = (estimate(given, large.strategy) for given in (known.facts(large.problem), facts))
    parts = project_parts(found.runs_with_time, before, after, facts.model)
    of_model = step_interval(facts.model, facts.cluster, step_seconds=after.step_seconds)
    deviation = math.hypot(found.noise, deviation_of_constants(found, parts, large.problem, large.strategy))
    interval = project_interval(parts, deviation, of_model, after.step_seconds)
    measured = large.run.step_seconds or math.nan
    run = found.runs[0]
    return Pair(
        source=large.run.source,
        name=f"{large.run.model} {large.facts.workload.precision.name} {large.run.device}",
        sizes=" -> ".join("{} layers on {}".format(*_sizes(one)) for one in (small, large)),
        is_alike=not run.differences,
        measured=measured,
        model=before.step_seconds,
        projected=after.step_seconds,
        measured_fraction=sum(one.seconds * one.measured_fraction for one in parts) / after.step_seconds,
        is_inside=interval.low_seconds <= measured <= interval.high_seconds,
    )


def _anchored(large: Case, found: Anchor, fitted: Fitted) -> Facts:
    machine = large.problem.machine
    assert machine is not None, "a row's job is loaded, not made by hand"
    cluster = replace(machine, device=dict(found.device)).cluster(fitted)
    return Facts(model=large.facts.model, cluster=cluster, workload=large.facts.workload)


# --- constants that saw neither ----------------------------------------------------------------------------


def read_constants() -> dict[str, Fitted]:
    """Constants fitted without each source."""
    document = yaml.safe_load(CONSTANTS.read_text(encoding="utf-8"))
    return {source: Fitted(**entry) for source, entry in document.items()}


def write_constants() -> None:
    """Fit the constants without each source and its models, and write them; a quarter of an hour."""
    rows, known = read_table()
    timed = timed_cases(rows, known)
    fitted = {source: constants_without(source, timed, known) for source in SOURCES}
    text = yaml.safe_dump({source: _plain(one) for source, one in fitted.items()}, sort_keys=True, width=116)
    head = (
        "# Generated (benchmarks.traces.projected.write_constants): constants fitted without a source and its models.\n"
    )
    CONSTANTS.write_text(head + text, encoding="utf-8")


def constants_without(source: str, timed: Sequence[Case], known: References) -> Fitted:
    """
    Constants of calibrations and frameworks fitted to rows of other sources and other models than a source has.

    The fit begins at the catalog's constants, which saw all rows, but ends where the others put it: it goes on until it
    converges, as in :func:`planner.measure.calibrate.fit.predict_left_out`.
    """
    models = {large.run.model for _, large in siblings(timed) if large.run.source.startswith(source)}
    others = [one for one in timed if not one.run.source.startswith(source) and one.run.model not in models]
    chosen = chosen_constants(others, frameworks=True)
    before = known.refit(Fitted(factors=prior_factors()))
    predictor = Predictor(cases=others, constants=chosen, known=before, share_work=partial(share_work, num_processes=2))
    priors, measured = priors_of(chosen), log_measured_seconds(others)
    logs = np.clip(np.log([_shipped(one) for one in chosen]), priors.lower, priors.upper)
    residuals = predictor.logarithms(logs) - measured
    start = Fit(logs=logs, jacobian=predictor.jacobian(logs), residuals=residuals)
    weights = source_weights(others, without={one.run.id for one in others if find_unreported_recompute(one)})
    found = fit(
        predictor.logarithms, predictor.jacobian, measured, weights=weights, priors=priors, start=start, num_refreshes=0
    )
    return replace_constants(before, chosen, np.exp(found.logs)).fitted


def _shipped(one: Constant) -> float:
    """The catalog's value of a constant."""
    if one.framework:
        return float(catalog.framework(one.framework).factors.get(one.fields[0], 1.0))
    known = catalog.calibration(one.calibration).constants
    return next((value for field in one.fields if (value := read(known, field))), one.prior)


def _plain(fitted: Fitted) -> dict[str, object]:
    tables = {"constants": fitted.constants, "factors": fitted.factors or {}}
    return {
        name: {key: {field: float(f"{value:.6g}") for field, value in entry.items()} for key, entry in table.items()}
        for name, table in tables.items()
    }


# --- for people --------------------------------------------------------------------------------------------


def report() -> str:
    """All pairs of published runs, and mean errors by source; five minutes."""
    rows, known = read_table()
    timed = timed_cases(rows, known)
    found = list(published(timed, known))
    refused = Counter(str(one) for one in found if isinstance(one, SpecError))
    lines = [*_lines([one for one in found if isinstance(one, Pair)]), *_noise_lines(timed)]
    return "\n".join([*lines, *(f"refused, {count} pairs: {why}" for why, count in refused.items())])


def _lines(pairs: Sequence[Pair]) -> Iterator[str]:
    yield f"{'from one small run':64}{'measured':>10}{'model':>18}{'projected':>18}{'measured share':>16}"
    for one in pairs:
        mark = " " if one.is_alike else "~"
        of_model, projected = ((seconds / one.measured - 1) for seconds in (one.model, one.projected))
        yield (
            f"{one.name[:32]:32} {one.sizes:30}{mark}{one.measured:>9.3f}s{one.model:>9.3f} {of_model:>+7.1%}"
            f"{one.projected:>10.3f} {projected:>+7.1%}{one.measured_fraction:>13.0%}"
        )
    yield "~: differs in more than its size (release, sequence length, other decisions or settings)"
    yield ""
    yield f"{'mean absolute error':56}{'pairs':>6}{'model':>9}{'projected':>11}{'inside':>8}"
    for source, what in SOURCES.items():
        own = [one for one in pairs if one.source.startswith(source)]
        yield _mean_line(f"{source} ({what})", own)
        yield _mean_line("  nothing but the size differs", [one for one in own if one.is_alike])
        for name in dict.fromkeys(one.name for one in own):
            yield _mean_line(f"  {name}", [one for one in own if one.name == name])
    yield _mean_line("all", pairs)
    yield _mean_line("  nothing but the size differs", [one for one in pairs if one.is_alike])


def _mean_line(name: str, pairs: Sequence[Pair]) -> str:
    if not pairs:
        return f"{name[:56]:56}{0:>6}"
    model, projected, inside = (
        float(np.mean([getattr(one, figure) for one in pairs])) for figure in ("model_error", "error", "is_inside")
    )
    return f"{name[:56]:56}{len(pairs):>6}{model:>9.1%}{projected:>11.1%}{inside:>8.0%}"


def _noise_lines(timed: Sequence[Case]) -> Iterator[str]:
    """Return the differences of repeats of one configuration in each source: the same job in other releases."""
    yield ""
    for source in SOURCES:
        same_jobs = grouped((one for one in timed if one.run.source.startswith(source)), _configuration)
        times = [[one.run.step_seconds or math.nan for one in same] for same in same_jobs.values() if len(same) > 1]
        spreads = [max(same) / min(same) - 1 for same in times]
        if spreads:
            yield (
                f"{source}: {len(spreads)} configurations were measured in several releases; slowest over fastest "
                f"{median(spreads):.1%} in the median, {np.mean(spreads):.1%} in the mean"
            )
        else:
            yield f"{source}: no configuration was measured twice"


def _configuration(one: Case) -> tuple[object, ...]:
    """Return what repeats of a run have in common, which releases may do otherwise."""
    work, run = one.facts.workload, one.run
    sizes = (work.global_batch_size, work.sequence_length, work.precision.name, one.facts.model.num_layers)
    return run.model, run.device, run.num_devices, sizes, one.strategy
