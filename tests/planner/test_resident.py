"""Resident memory: what belongs to a job dies with it, and what is kept for all jobs is bounded."""

from __future__ import annotations

import gc
import inspect
import sys
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from functools import _lru_cache_wrapper
from importlib import import_module
from pkgutil import walk_packages
from typing import Any

import pytest

from benchmarks.resident import use
from costmodel.tables import Facts
from planner import load, plan

PACKAGES = ("costmodel", "constraints", "planner")

NAMES = ("bool", "str", "int", "str | None", "Hashable")
"""Annotations of what every process has few of: names of the catalog, values of decisions, types of records."""

OF_EXTRAS = (
    "planner.agents.server",
    "planner.batch.executors.dask",
    "planner.batch.executors.ray",
    "planner.serve.app",
)
"""Modules that need packages of an extra."""

LARGEST = 2**14
"""Entries of a cache: of small ones this many take megabytes."""


def facts_alive() -> int:
    """Number of jobs whose facts somebody holds, what waits for the garbage collector included."""
    return sum(isinstance(one, Facts) for one in gc.get_objects())


def a_job(model: str, *, num_devices: int = 8, **search: Any) -> dict[str, Any]:
    """A job of few strategies."""
    return {
        "model": model,
        "cluster": {"device": "h100-80gb-sxm", "num_devices": num_devices},
        "training": {"global_batch_size": 64, "sequence_length": 4096, "tokens": 1e11},
        "search": {"time_limit_seconds": 20, **search},
    }


JOBS = {
    "explained": (
        a_job("llama3-8b", limits=["tp * cp <= 2"], forbid=[{"pp": 4, "mbs": 2}], pin={"mbs": 1, "cp": 1}),
        0,
    ),
    "certified, with idle nodes": (
        a_job("llama3-8b", num_devices=24, max_bubble_fraction=0.2, pin={"mbs": 1, "cp": 1, "tp": 2}),
        1,
    ),
    "experts": (a_job("qwen3-30b-a3b", pin={"tp": 1, "pp": 2, "cp": 1, "mbs": 1}), 2),
    "uneven": (a_job("llama3-8b", stages="free", pin={"tp": 2, "pp": 2, "cp": 1, "mbs": 1}), 2),
    "nothing fits": (a_job("llama3-405b"), 0),
}


@pytest.mark.slow
@pytest.mark.parametrize(("job", "index"), JOBS.values(), ids=JOBS)
def test_a_job_dies_with_its_plan(job, index):
    """
    Nothing holds the facts of a job that was planned, rendered, estimated and exported, explained and compared.

    Rules of a job are closures over it, and a table of their signatures held every job: 8 MB each.
    """
    gc.disable()
    try:
        before = facts_alive()

        use(job, index)

        assert facts_alive() == before
    finally:
        gc.enable()


def test_a_report_holds_no_tables():
    """Those of DeepSeek-V3 on 1,024 GPUs take 80 MB: who keeps reports need not keep them."""
    report = plan(load(a_job("llama3-8b", pin={"mbs": 1, "cp": 1})), certified=False)

    assert report.plans
    assert (report.chosen.facts.tables, report.chosen.facts.latest) == ({}, {})


def caches() -> Iterator[tuple[str, Any]]:
    """Every cached function of the packages that is imported."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in PACKAGES:
            for one in vars(module).values():
                if isinstance(one, _lru_cache_wrapper) and one.__module__ == name:
                    yield f"{name}.{one.__qualname__}", one


def test_caches_without_a_bound_are_of_names():
    """A function of models, problems, other functions or tuples may be asked for ever new ones: it has a bound."""
    for package in PACKAGES:
        for module in walk_packages(import_module(package).__path__, f"{package}."):
            if not module.name.endswith("__main__"):
                with suppress(ModuleNotFoundError) if module.name in OF_EXTRAS else nullcontext():
                    import_module(module.name)

    known = dict(caches())
    annotations = {
        name: {str(parameter.annotation) for parameter in inspect.signature(one.__wrapped__).parameters.values()}
        for name, one in known.items()
        if one.cache_parameters()["maxsize"] is None
    }

    assert len(known) > 50
    assert [name for name, own in annotations.items() if own - set(NAMES)] == []
    assert [name for name, one in known.items() if (one.cache_parameters()["maxsize"] or 0) > LARGEST] == []
