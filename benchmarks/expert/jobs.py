"""Jobs with a published layout each: of the catalog's recipes, and of measured runs on devices that have no recipes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from benchmarks.accuracy.metrics import read_table
from benchmarks.inputs import job_document
from costmodel import catalog
from costmodel.catalog.releases import release_of
from planner.jobs.run_jobs import Recipe, recipes
from planner.measure.runs.predictions import Case, cases

DEVICES = ("h100-80gb-sxm", "b200", "b300", "gb200", "gb300")
"""Devices of the recipes."""

MEASURED_DEVICES = ("a100-80gb-sxm", "h200")
"""Devices without recipes, whose layouts are those of measured runs."""


MOST_MEASURED = 6

MOST_DEVICES = 1024
"""Devices of the largest jobs: a matter of time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpertJob:
    """
    A job and the layout that somebody published for it.

    Parameters
    ----------
    name
        The layout's.
    document
        The job, which names no framework.
    recipe
        The id of the recipe; empty: ``decisions`` are the layout.
    decisions
        The layout of a measured run, by the names of decisions.
    """

    name: str
    document: dict[str, Any]
    recipe: str = ""
    decisions: dict[str, Any] | None = None


def expert_jobs(number: int) -> list[ExpertJob]:
    """
    Return jobs for models, devices and precisions of recipes, and for models that were measured on other devices.

    Parameters
    ----------
    number
        Jobs, evenly spread over all; 0: all. At most ``MOST_MEASURED`` of them are of measured runs.
    """
    published, measured = list(_of_recipes()), list(_of_runs())
    if not number:
        return [*published, *measured]
    return [*spread(published, number - MOST_MEASURED), *spread(measured, MOST_MEASURED)]


def spread(jobs: Sequence[ExpertJob], number: int) -> list[ExpertJob]:
    """
    Return some of the jobs, evenly spread, those of measured runs among them.

    >>> jobs = [ExpertJob(name=str(i), document={}) for i in range(10)]
    >>> [one.name for one in spread(jobs, 3)]
    ['0', '4', '9']
    """
    if number >= len(jobs):
        return list(jobs)
    return [jobs[round(i * (len(jobs) - 1) / (number - 1))] for i in range(number)]


def _of_recipes() -> Iterator[ExpertJob]:
    """
    Yield the newest recipe for the fewest devices, of each model, device and precision.

    None of software that is newer than what is costed, and of a model that no catalog has.
    """
    newest: dict[tuple[str, str, str], Recipe] = {}
    for one in recipes():
        if one.refused or one.device not in DEVICES or min(one.scales) > MOST_DEVICES:
            continue
        if one.model not in catalog.models() or one.framework(one.releases[0]).month() > _costed_month():
            continue
        key = (one.model, one.device, one.precision)
        known = newest.get(key)
        if known is None or _age(one) > _age(known):
            newest[key] = one
    for one in newest.values():
        devices = min(one.scales)
        yield ExpertJob(
            name=one.id,
            recipe=one.id,
            document=job_document(
                one.model,
                one.device,
                devices,
                round(one.batch_per_device * devices),
                one.sequence_length or 4096,
                precision=one.precision,
            ),
        )


def _age(one: Recipe) -> tuple[Any, int]:
    """The newest release of a recipe that is no newer than what is costed, then the fewest devices."""
    months = [month for name in one.releases if (month := one.framework(name).month()) <= _costed_month()]
    return max(months), -min(one.scales)


@cache
def _costed_month() -> float:
    release = release_of(catalog.default_framework(catalog.device("b200")))
    assert release is not None, "the default framework has a release"
    return release.month()


def _of_runs() -> Iterator[ExpertJob]:
    """Yield the fastest measured run of each model and other device, run by its own framework on whole nodes."""
    best: dict[tuple[str, str], Case] = {}
    for one in cases(*read_table()):
        if (
            not isinstance(one, Case)
            or one.run.kind != "pretrain"
            or one.facts.cluster.device.name not in MEASURED_DEVICES
        ):
            continue
        cluster, model = one.facts.cluster, one.problem.document["model"]
        if not 8 <= cluster.num_devices <= MOST_DEVICES:
            continue
        key = (json.dumps(model), cluster.device.name)
        if key not in best or _rate(one) > _rate(best[key]):
            best[key] = one
    for (model, device), one in sorted(best.items()):
        work = one.facts.workload
        yield ExpertJob(
            name=one.run.id,
            decisions={
                name: getattr(one.strategy, name)
                for name in ("tp", "cp", "pp", "ep", "vpp", "mbs", "sharding", "recompute")
            },
            document=job_document(
                json.loads(model),
                device,
                one.facts.cluster.num_devices,
                work.global_batch_size,
                work.sequence_length,
                precision=work.precision.name,
            ),
        )


def _rate(one: Case) -> float:
    work, seconds = one.facts.workload, one.run.step_seconds
    return work.global_batch_size * work.sequence_length / one.facts.cluster.num_devices / seconds if seconds else 0.0
