"""Exports of Hugging Face configurations against the models that Megatron-LM's own parsers make of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isclose
from pathlib import Path
from typing import Any

from benchmarks.exports.releases import ask_parser
from benchmarks.inputs import read_rows
from costmodel.errors import PlanningError
from costmodel.models.flops import parameters
from planner import estimate, export, load
from planner.frameworks.target import Export
from planner.results import Plan

ON_ONE_NODE: Mapping[str, Any] = {
    "cluster": {"device": "h100-80gb-sxm", "num_devices": 8},
    "training": {"global_batch_size": 64, "sequence_length": 1024, "tokens": 1e10},
}
PLAIN: Mapping[str, Any] = {"tp": 1, "dp": 8, "mbs": 1, "cuda_graphs": "none"}
"""Degrees that every model can have; the facts of a model are none of theirs."""

COUNTS = "param_counts.csv"


def ask_models(folder: Path, sources: Mapping[str, Path], python: str) -> bool:
    """Print what each release makes of the models of a folder; return whether a fact or a count differs."""
    plans, refused = _plans(folder)
    counts = dict(_counts(folder))
    wrong = False
    print(f"{len(plans)} models of {folder.name}, {len(refused)} refused:", flush=True)
    for release, root in sources.items():
        exports, no_words = exports_for(plans, release)
        answers = ask_parser(root, exports, python)
        differing = [
            f"{plan.facts.model.name}: {line}"
            for (plan, made), error, model in zip(exports, answers.errors, answers.models, strict=True)
            for line in ([error] if error else _differences(plan, made, model, counts))
        ]
        left = sum(text.count("# TODO") for _, made in exports for text in made.files.values())
        print(
            f"{release}: {len(exports)} models, {len(differing)} differences, {left} facts marked as TODO, "
            f"{len(no_words)} refused by the export",
            flush=True,
        )
        for line in differing:
            print(f"  {' '.join(line.split())[:160]}")
        wrong |= bool(differing)
    for line in refused:
        print(f"  {line[:160]}")
    return wrong


def _plans(folder: Path) -> tuple[list[Plan], list[str]]:
    """Plans of the models that are planned for and exported to Megatron-LM, and why others are not."""
    found, refused = [], []
    for path in sorted(folder.glob("*.json")):
        reasons = []
        for settings in ({}, {"settings": {"mtp_layers": 0}}):  # exports write no hybrid's multi-token prediction
            try:
                plan = estimate(load({"model": str(path), **ON_ONE_NODE, **settings}), dict(PLAIN)).plan
                export(plan, "megatron-lm")
            except PlanningError as error:
                reasons.append(f"{path.stem}: {' '.join(str(error).split())}")
            else:
                found.append(plan)
                break
        else:
            refused.append(reasons[0])
    return found, refused


def exports_for(plans: Sequence[Plan], version: str | None) -> tuple[list[tuple[Plan, Export]], list[str]]:
    """Export plans to Megatron-LM for a release; and the reasons of those that are refused."""
    found, refusals = [], []
    for one in plans:
        try:
            found.append((one, export(one, "megatron-lm", version)))
        except PlanningError as refused:
            refusals.append(str(refused))
    return found, refusals


def _differences(plan: Plan, made: Export, parsed: Mapping[str, float], counts: Mapping[str, int]) -> Iterator[str]:
    """Facts of the file that the parsed model does not have; one that is not known must be marked in the export."""
    model = plan.facts.model
    numerics, text = model.numerics, next(iter(made.files.values()))
    rotary = numerics.rotary
    expected = {
        "norm_epsilon": numerics.norm_epsilon,
        "attention_dropout": numerics.attention_dropout,
        "hidden_dropout": numerics.hidden_dropout,
        "initializer_range": numerics.initializer_range,
        "rotary_base": rotary.base if rotary else parsed["rotary_base"],
        "rotary_fraction": rotary.fraction if rotary else parsed["rotary_fraction"],
        "parameters": counts.get(model.name, parameters(model)),
    }
    for name, value in expected.items():
        if value is None and "# TODO" not in text:
            yield f"{name} is not known, and no TODO says so"
        elif value is not None and not isclose(value, parsed[name], rel_tol=1e-12):
            yield f"{name} is {parsed[name]!r}, expected {value!r}"


def _counts(folder: Path) -> Iterator[tuple[str, int]]:
    """Parameters of the real model classes, by model."""
    if (folder / COUNTS).exists():
        yield from ((row["model"], int(row["total"])) for row in read_rows(folder / COUNTS) if row["total"])
