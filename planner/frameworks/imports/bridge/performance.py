"""Megatron-Bridge's performance recipes (``scripts/performance``), as its launch scripts ask for them."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from constraints.rules.frameworks import MEGATRON_MODULES
from costmodel import catalog
from costmodel.errors import SpecError
from costmodel.strategy import Recompute
from costmodel.validation import shown
from planner.frameworks.imports.finish import finished, newest, prepared, release_assumed
from planner.frameworks.imports.named import model_named
from planner.frameworks.megatron.options import by_option
from planner.frameworks.megatron.read import Imported
from planner.frameworks.shell.text import unknown_names
from planner.jobs.document import set_entry
from planner.jobs.model import read
from planner.jobs.values import plain_value

RECIPES = Path(__file__).parent / "performance.csv"
"""
What recipes say for a model, device, precision and release: rows of benchmarks/measured_runs/runs.csv by their ``id``,
from Megatron-Bridge's performance summaries.
"""

DEVICES = {"h100": "h100-80gb-sxm"}
"""Devices that ``--gpu`` calls otherwise than the catalog."""

PRECISIONS = {
    "bf16": "bf16",
    "fp8_cs": "fp8_current",
    "fp8_mx": "mxfp8",
    "fp8_sc": "fp8_blockwise",
    "fp8_ds": "fp8",
    "nvfp4": "nvfp4",
}
"""By ``--compute_dtype``: current, microscaling, subchannel and delayed scaling."""

DECISIONS = {
    ("-tp", "--tensor_model_parallel_size"): "tp",
    ("-pp", "--pipeline_model_parallel_size"): "pp",
    ("-cp", "--context_parallel_size"): "cp",
    ("-vp", "--virtual_pipeline_model_parallel_size"): "vpp",
    ("-ep", "--expert_model_parallel_size"): "ep",
    ("-et", "--expert_tensor_parallel_size"): "etp",
    ("-mb", "--micro_batch_size"): "mbs",
}

SETTLED = ("tp", "cp", "pp", "mbs", "recompute")
"""Decisions that the command must say where no recipe is known; of experts their parallelism, too."""

WORK = ("global_batch_size", "sequence_length")
"""Entries of the training that it must say besides."""

CHANGED = ("--hidden_size", "--num_layers", "--first_k_dense_replace", "--num_moe_experts")
"""Options that make the model another one, for which the catalog has no name."""


def recipe_job(
    words: Sequence[str], overrides: Sequence[str], environment: Mapping[str, str], notes: Sequence[str] = ()
) -> Imported:
    """
    Words of ``setup_experiment.py`` or ``run_script.py`` as a job.

    Raises
    ------
    SpecError
        If the model, device or precision is not known, no recipe is known for them and the command does not say the
        layout itself, or it changes the model.
    """
    given = _given(words)
    entries = dict(entry.partition("=")[::2] for entry in overrides)
    for option in CHANGED:
        if option in given:
            problem = f"is {given[option]}: a model of other sizes than the recipe's, which no name says."
            raise SpecError(option, problem, "Write the job file by hand.")
    document = _document(given, environment)
    row = _row(document, entries)
    document, remarks = _with_row(document, row)
    _apply(document, given)
    document = prepared(document, overrides)
    _require(document)
    if given.get("--max_steps", "").isdecimal():
        training = document["training"]
        training.setdefault(
            "tokens", int(given["--max_steps"]) * training["global_batch_size"] * training["sequence_length"]
        )
    said = [] if "FW_VERSION" in environment else release_assumed(document["cluster"]["framework"], overrides)
    return finished(document, [*notes, *said, *remarks])


def _require(document: Mapping[str, Any]) -> None:
    """Refuse what no recipe that is known says of the layout, the recomputation and the work."""
    experts = ("ep",) if read(document["model"], Path()).model.has_experts else ()
    missing = [f"strategy.{name}" for name in (*SETTLED, *experts) if name not in document["strategy"]]
    missing += [f"training.{name}" for name in WORK if name not in document["training"]]
    if missing:
        examples = " ".join(f"{name}={'none' if name.endswith('recompute') else 'N'}" for name in missing)
        raise SpecError("recipe", _unknown(document), f"Say it: {examples}.")


def _given(words: Sequence[str]) -> dict[str, str]:
    """Values by option; short ones such as ``-tp`` are options, too."""
    shorts = {short: long for short, long in DECISIONS} | {
        "-gb": "--global_batch_size",
        "-c": "--compute_dtype",
        "-g": "--gpu",
        "-m": "--model_family_name",
        "-mr": "--model_recipe_name",
        "-ng": "--num_gpus",
    }
    # A short option that is not known here ends the values of the one before, as any option does.
    long = [shorts.get(word, f"-{word}" if SHORT.fullmatch(word) else word) for word in words]
    found = {name: " ".join(values) for name, values in by_option(long)}
    for name, value in found.items():
        names = unknown_names(value)
        if names and (name in READ or name in shorts.values()):
            raise SpecError(name, f"is ${names[0]}, which the script leaves open.", f"Add --set {names[0]}=VALUE.")
    return found


SHORT = re.compile(r"-[a-zA-Z]{1,3}")

READ = (
    "--model_recipe_name",
    "--model_name",
    "--model_size",
    "--gpu",
    "--num_gpus",
    "--compute_dtype",
    "--recompute_modules",
    "--cuda_graph_impl",
    "--cuda_graph_scope",
    "--moe_a2a_overlap",
)


def _document(given: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, Any]:
    name = given.get("--model_recipe_name", "_".join(filter(None, map(given.get, ("--model_name", "--model_size")))))
    model = model_named(name)
    if model is None:
        raise SpecError("--model_recipe_name", f"is {shown(name)}, no model that is known here.", "Add model=NAME.")
    gpu, dtype = given.get("--gpu", ""), given.get("--compute_dtype", "bf16")
    device = DEVICES.get(gpu, gpu)
    if device not in catalog.devices():
        raise SpecError("--gpu", f"is {shown(gpu)}, no device of the catalog.", "Add cluster.device=NAME.")
    if dtype not in PRECISIONS:
        raise SpecError("--compute_dtype", f"expected one of {', '.join(PRECISIONS)}, got {shown(dtype)}.")
    cluster: dict[str, Any] = {"device": device, "framework": _framework(environment.get("FW_VERSION", ""))}
    if given.get("--num_gpus", "").isdecimal():
        cluster["num_devices"] = int(given["--num_gpus"])
    return {"model": model, "cluster": cluster, "training": {"precision": PRECISIONS[dtype]}}


def _framework(release: str) -> str:
    """The release that the script names; else the newest."""
    name = f"megatron-bridge-{release}"
    try:
        catalog.framework(name)
    except SpecError:
        return newest("megatron-bridge-")
    return name


def _row(document: Mapping[str, Any], entries: Mapping[str, str]) -> Mapping[str, str] | None:
    """The recipe of the release, for as many devices if there is one; recipes of other releases may be others."""
    cluster, release = document["cluster"], entries.get("cluster.framework", document["cluster"]["framework"])
    number = int(entries.get("cluster.num_devices", cluster.get("num_devices", 0)))
    wanted = {
        "model": document["model"],
        "cluster.device": _device(entries.get("cluster.device", cluster["device"])),
        "training.precision": entries.get("training.precision", document["training"]["precision"]),
    }
    fitting = [row for row in _recipes() if all(row[name] == value for name, value in wanted.items())]

    def distance(row: Mapping[str, str]) -> tuple[bool, bool, bool, str]:
        return (
            row["cluster.framework"] == release or _month(row["cluster.framework"]) == _month(release),
            row["cluster.framework"] == release,
            int(row["cluster.num_devices"]) == number,
            row["cluster.framework"],
        )

    best = max(fitting, key=distance, default=None)
    if best is not None and _month(best["cluster.framework"]) != _month(release):
        known = ", ".join(sorted({row["cluster.framework"] for row in fitting}))
        problem = f"of {wanted['model']} on {wanted['cluster.device']} in {wanted['training.precision']} is known of "
        hint = f"Add cluster.framework={best['cluster.framework']} to take that one."
        raise SpecError("recipe", f"{problem}{known}, not of {release}, which may have another layout.", hint)
    return best


def _device(name: str) -> str:
    """The catalog's name of a device."""
    try:
        return catalog.device(name).name
    except SpecError:
        return name


def _month(release: str) -> str:
    """A release without its number of a month."""
    return ".".join(release.rsplit("-", 1)[-1].split(".")[:2])


def _with_row(document: dict[str, Any], row: Mapping[str, str] | None) -> tuple[dict[str, Any], list[str]]:
    """The recipe's entries; batches grow with the devices, as recipes scale them."""
    whole: dict[str, Any] = {"settings": {}, "strategy": {}, **document}
    if row is None:
        return whole, []
    for path, text in row.items():
        if text and path.partition(".")[0] in ("training", "settings", "strategy"):
            set_entry(whole, path, yaml.safe_load(text))
    own, number = int(row["cluster.num_devices"]), whole["cluster"].get("num_devices", int(row["cluster.num_devices"]))
    notes = [f"Layout and settings are those of {row['cluster.framework']}'s recipe on {own} devices ({row['id']})."]
    if number != own:
        batch = whole["training"]["global_batch_size"] * number / own
        whole["training"]["global_batch_size"] = int(batch)
        notes.append(f"The global batch grows with the devices, as recipes scale it: {int(batch)} on {number}.")
        whole["strategy"].pop("dp", None)
    whole["cluster"].setdefault("num_devices", own)
    return whole, notes


def _apply(document: dict[str, Any], given: Mapping[str, str]) -> None:
    """What the command says instead of the recipe."""
    strategy = document["strategy"]
    for (_, option), name in DECISIONS.items():
        text = given.get(option, "")
        if text.isdecimal():
            strategy[name] = int(text)
        elif text.lower() == "none":
            strategy[name] = 1
        if text and name in ("pp", "vpp"):
            strategy.pop("layout", None)
    if given.get("--global_batch_size", "").isdecimal():
        document["training"]["global_batch_size"] = int(given["--global_batch_size"])
    modules = given.get("--recompute_modules")
    if modules:
        ours = {name: module for module, name in MEGATRON_MODULES.items()}
        unknown = [name for name in modules.split(",") if name not in ours]
        if unknown:
            raise SpecError("--recompute_modules", f"has no module {shown(unknown[0])}; it has {', '.join(ours)}.")
        chosen = Recompute.of(*(ours[name] for name in modules.split(",")))
        strategy["recompute"] = plain_value("recompute", int(chosen))
    scope = given.get("--cuda_graph_scope", "").replace(",", "+")
    if given.get("--cuda_graph_impl") == "none" or scope:
        strategy["cuda_graphs"] = scope if scope and given.get("--cuda_graph_impl") != "none" else "none"
    if given.get("--moe_a2a_overlap", "").lower() in ("false", "true"):
        strategy["ep_overlap"] = given["--moe_a2a_overlap"].lower() == "true"


def _unknown(document: Mapping[str, Any]) -> str:
    """What is known of the model instead."""
    others = {
        (row["cluster.device"], row["training.precision"]) for row in _recipes() if row["model"] == document["model"]
    }
    listed = ", ".join(f"{device} in {precision}" for device, precision in sorted(others)) or "nothing"
    return (
        f"of {document['model']} on {document['cluster']['device']} in {document['training']['precision']} is not "
        f"known here, and the script leaves the layout to it; known are: {listed}."
    )


@cache
def _recipes() -> tuple[dict[str, str], ...]:
    with RECIPES.open(encoding="utf-8", newline="") as lines:
        return tuple(csv.DictReader(lines))
