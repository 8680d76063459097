"""Random jobs, and what becomes of one that is planned for a target."""

from __future__ import annotations

import random
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from enum import StrEnum
from itertools import count, islice
from typing import Any

from benchmarks.inputs import job_document
from constraints import MEMORY_RULES, sentence
from constraints.rules.exports import EXPORTS
from costmodel import catalog
from costmodel.errors import PlanningError, SpecError
from planner import export, load, plan
from planner.search.runnable import require_runnable

MODELS = tuple(name for name in catalog.models() if not name.startswith("mofa"))
DEVICES = ("v100-32gb-sxm", "a100-80gb-sxm", "h100-80gb-sxm", "h200", "b200", "gb200", "gb300")
NODES = (1, 1, 2, 3, 4, 6, 8, 12, 16, 32, 64)
SEQUENCES = (1024, 2048, 4096, 8192, 32768)
BATCHES = (16, 60, 64, 256, 512, 1024, 2048)
"""Sequences per step; 60 is no multiple of most clusters."""

PRECISIONS = ("bf16", "bf16", "bf16", "bf16", "fp16", "fp8", "fp8_current", "fp8_blockwise", "mxfp8", "nvfp4")

SETTINGS: dict[str, tuple[Any, ...]] = {
    "gradient_dtype": ("fp32", "bf16", "bf16+fp32", ["fp32", "bf16"]),
    "weight_dtype": ("recipe", "fp32"),
    "moments_dtype": ("fp32", "bf16"),
    "fp8_param_gather": (True, False),
    "mtp_layers": (0, 1),
    "shared_expert_overlap": (True, False),
    "offloaded_states": (0.5, 1.0),
    "offloaded_masters": (True, False),
    "offload_overlap": (True, False),
    "offloaded_layers": (4,),
    "optimizer_group": (2, 4, 8, "all"),
    "optimizer": ("adam", "muon", "dist_muon"),
    "kernels": ("fused", "eager"),
    "attention": ("flash", "unfused"),
    "loss": ("fused", "unfused"),
    "loss_chunks": (1, 8),
    "launches": ("asynchronous", "blocking"),
}
SEARCH: dict[str, tuple[Any, ...]] = {
    "preferences": (False,),
    "stages": ("even", "free"),
    "allow": ({"schedule": ["1f1b", "gpipe", "zb_v", "dualpipev"]}, {"vocabulary": ["ends", "redistributed"]}),
    "pin": ({"pp": 2}, {"pp": 4, "vpp": 2}, {"cp": 2}, {"tp": 2}, {"recompute": "full"}, {"optimizer_offload": True}),
}
CHANGED, SEARCHED = 0.25, 0.35
"""Shares of the jobs that say something of settings and of the search."""


class Answer(StrEnum):
    """What a job for a target may become."""

    EXPORTED = "planned and exported"
    REFUSED = "refused before the search"
    NO_MEMORY = "infeasible: memory"
    NO_RULES = "infeasible: other rules"
    UNKNOWN = "no plan in time"
    WRONG = "wrong"


@dataclass(frozen=True, kw_only=True, slots=True)
class Became:
    """
    What a job for a target became.

    Parameters
    ----------
    answer
        In a word.
    text
        The refusal, or what is wrong.
    """

    answer: Answer
    text: str = ""


def random_jobs(seed: int, number: int, seconds: float) -> Iterator[dict[str, Any]]:
    """
    Jobs that the planner takes without a target.

    Parameters
    ----------
    seed
        What they are drawn from.
    number
        How many.
    seconds
        Time limit of each search.
    """
    drawn = (_drawn(random.Random(f"{seed} {at}"), seconds) for at in count())
    yield from islice((job for job in drawn if is_sound(job)), number)


def _drawn(chooser: random.Random, seconds: float) -> dict[str, Any]:
    device = chooser.choice(DEVICES)
    num_devices = chooser.choice(NODES) * catalog.device(device).devices_per_node
    batch = chooser.choice(BATCHES)
    job = job_document(
        chooser.choice(MODELS),
        device,
        num_devices,
        max(batch, num_devices // 4),
        chooser.choice(SEQUENCES),
        precision=chooser.choice(PRECISIONS),
        search={"time_limit_seconds": seconds},
        top=chooser.choice((1, 3)),
        variants=chooser.choice(("groups", "groups", "all")),
    )
    if chooser.random() < CHANGED:
        names = chooser.sample(sorted(SETTINGS), k=chooser.choice((1, 1, 2)))
        job["settings"] = {name: chooser.choice(SETTINGS[name]) for name in names}
    if chooser.random() < SEARCHED:
        name = chooser.choice(sorted(SEARCH))
        job["search"][name] = chooser.choice(SEARCH[name])
    return job


def is_sound(job: dict[str, Any]) -> bool:
    """Return True if the planner reads a job."""
    try:
        load(job)
    except PlanningError:
        return False
    return True


def became(job: dict[str, Any], target: str) -> Became:
    """What becomes of a job that is planned for a target."""
    given = deepcopy(job)
    given["search"]["target"] = target
    try:
        problem = load(given)
        require_runnable(problem)
    except SpecError as error:
        return _refused(error, target)
    report = plan(problem, certified=False)
    for one in report.plans:
        try:
            export(one, target)
        except SpecError as error:
            return Became(answer=Answer.WRONG, text=f"{one.strategy}: {error}")
    if report.plans:
        return Became(answer=Answer.EXPORTED)
    if report.exit_code != 1:
        return Became(answer=Answer.UNKNOWN)
    conflict = report.outcome.conflict
    memory = {sentence(rule) for rule in MEMORY_RULES}
    sets = conflict.exclusive if conflict else ()
    if not sets or any(memory & set(rules) for rules in sets):
        return Became(answer=Answer.NO_MEMORY)
    return Became(answer=Answer.NO_RULES, text=" ".join(sets[0]))


def _refused(error: SpecError, target: str) -> Became:
    """A refusal names the entry, and the target or one of its releases."""
    text = str(error)
    names = (target, EXPORTS[target].name, *catalog.releases_for(target))
    is_told = error.where and any(name in text for name in names)
    return Became(answer=Answer.REFUSED if is_told else Answer.WRONG, text=text)
