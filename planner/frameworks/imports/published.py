"""Import of Megatron-Bridge's performance recipes (``scripts/performance``) by the arguments of its launch scripts."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from math import log2
from pathlib import Path
from typing import Any

import yaml

from costmodel import catalog
from costmodel.catalog.files import entry
from costmodel.catalog.releases import Release, release_of
from costmodel.errors import SpecError
from costmodel.validation import shown
from planner.frameworks.imports.arguments import megatron_job, model_words
from planner.frameworks.imports.bridge.overrides import architecture_words
from planner.frameworks.imports.documents import (
    model_named,
    read_mapping,
    read_overrides,
    read_plain,
    read_words,
    require_model,
    text_of,
)
from planner.frameworks.imports.finish import cluster_notes, complete_job, newest, prepare_job
from planner.frameworks.imports.tools.keys import Meaning, meaning_of
from planner.frameworks.megatron.options import split_options
from planner.frameworks.megatron.read import Imported
from planner.frameworks.shell.script import WHERE, Command
from planner.jobs.cluster import read
from planner.jobs.document import read_text, set_entry
from planner.jobs.run_jobs import Recipe, recipes

DATA = read_words("published")

STACK, SOURCE, DGXC = "megatron-bridge", "Megatron-Bridge", "dgxc-benchmarking"
"""
Stack and sources of the catalog's recipes.

Recipes of dgxc-benchmarking have its own options, or are of commits between releases. They apply to its scripts only,
for the numbers of devices that it publishes.
"""


PRECISIONS = DATA.precisions
"""Precisions by ``--compute_dtype``: current, microscaling, subchannel and delayed scaling."""


def recipe_job(
    words: Sequence[str], overrides: Sequence[str], environment: Mapping[str, str], recipe: str = ""
) -> Imported:
    """
    Import a launch of ``setup_experiment.py`` or ``run_script.py``, or of a published recipe by its name.

    Raises
    ------
    SpecError
        If the model, device or precision is unknown, if no recipe is known for them and the command does not set the
        layout itself, or if it changes the model.
    """
    said = _read_options(words)
    given = {name.removeprefix("given."): value for name, value in said.entries.items()}
    entries = read_overrides(overrides)
    named = find_published(recipe)
    document = _document(given, environment, named)
    if entries.get("cluster.num_devices", "").isdecimal():
        document["cluster"]["num_devices"] = int(entries["cluster.num_devices"])
    variant = text_of(given.get("variant", "")).lower()
    publishers = (SOURCE, DGXC) if any("LLMB_" in word for word in words) else (SOURCE,)
    found = named or _recipe(document, entries, variant, publishers)
    document, remarks = _apply_recipe(document, found)
    if found is not None and found is not named:
        software = entries.get("cluster.framework", document["cluster"]["framework"])
        remarks += _compare_recipe(found, software, variant)
    document["model"] = _change_model(document["model"], said)
    _apply(document, said.entries)
    document = prepare_job(document, overrides)
    _require(document)
    if isinstance(given.get("max_steps"), int):
        training = document["training"]
        training.setdefault("tokens", given["max_steps"] * training["global_batch_size"] * training["sequence_length"])
    software = document["cluster"]["framework"]
    assumed = None if "FW_VERSION" in environment or named else software
    return complete_job(document, [*cluster_notes(assumed, None, overrides), *remarks])


def _compare_recipe(found: Recipe, software: str, variant: str) -> Iterator[str]:
    """Yield a note on another release, and on another variant than those that are asked for."""
    release = release_of(software)
    if release is not None and not _has_release(found, release):
        later = [name for name in found.releases if found.framework(name).number > release.number]
        nearest = f"{STACK}-{(later or found.releases[-1:])[0]}"
        yield f"{software} has no recipe of this: taken is that of {nearest}, which may have another layout."
    if variant not in ("", _variant(found)):
        yield f"No variant {variant} of it is known of this release: {found.name} is taken."


def _change_model(model: str, said: Meaning) -> str | dict[str, Any]:
    """Change the sizes of a model by the command, as for proxies of large models; a size has one of some names."""
    sizes = {name.partition(".")[2]: option for name, option in said.keys.items() if name.startswith("config.")}
    config: dict[str, Any] = dict(entry("models", model).get("config") or {}) if sizes else {}
    for option in {*sizes.values()}:
        name = next((name for name, of in sizes.items() if of == option and name in config), None)
        value = next(said.entries[f"config.{one}"] for one, of in sizes.items() if of == option)
        if name is None or not isinstance(value, int):
            problem = f"is {shown(text_of(value))}, which {model} cannot be changed to."
            raise SpecError(option, problem, "Write the job file by hand.")
        config[name] = value
    return config if sizes else model


def _require(document: Mapping[str, Any]) -> None:
    """Refuse a launch without layout, recomputation or batch where no recipe is known."""
    experts = ("ep",) if read(document["model"], Path()).has_experts else ()
    missing = [f"strategy.{name}" for name in (*DATA.settled, *experts) if name not in document["strategy"]]
    missing += [f"training.{name}" for name in DATA.work if name not in document["training"]]
    if missing:
        known, dtype = catalog.find_unique_device(document["cluster"]["device"]), document["training"]["precision"]
        if known is not None and catalog.precision(dtype).compute not in catalog.device(known.device).peak_flops:
            raise SpecError("--compute_dtype", f"says {dtype}, in which {known.device} does not compute.")
        examples = " ".join(f"{name}={'none' if name.endswith('recompute') else 'N'}" for name in missing)
        raise SpecError("recipe", _unknown(document), f"Say it: {examples}.")


def _read_options(words: Sequence[str]) -> Meaning:
    """Read the options of the command, also short ones such as ``-tp``, as entries of a job."""
    # A short option that is not known here ends the values of the one before, as any option does.
    long = [f"-{word}" if SHORT.fullmatch(word) else word for word in words]
    return meaning_of("performance", {name: read_plain(" ".join(values)) for name, values in split_options(long)})


SHORT = re.compile(r"-[a-zA-Z]{1,3}")


def find_published(name: str) -> Recipe | None:
    """Return a recipe of Megatron-Bridge's performance scripts by its name; None: there is none."""
    return next((one for one in recipes() if one.cells["source"] == SOURCE and one.name == name), None)


def _document(given: Mapping[str, Any], environment: Mapping[str, str], one: Recipe | None) -> dict[str, Any]:
    if one is not None:
        number = given.get("num_gpus", int(one.cells["cluster.num_devices"]))
        cluster = {"device": one.device, "framework": one.cells["cluster.framework"], "num_devices": number}
        return {"model": one.model, "cluster": cluster, "training": {"precision": one.precision}}
    parts = ["recipe"] if "recipe" in given else [part for part in ("name", "size") if part in given]
    model = require_model("_".join(text_of(given[part]) for part in parts), "--model_recipe_name")
    gpu, dtype = given.get("gpu", ""), given.get("dtype", "bf16")
    device = DATA.devices.get(gpu, gpu)
    if device not in catalog.devices():
        raise SpecError("--gpu", f"is {shown(gpu)}, no device of the catalog.", "Add cluster.device=NAME.")
    if dtype not in PRECISIONS:
        raise SpecError("--compute_dtype", f"expected one of {', '.join(PRECISIONS)}, got {shown(dtype)}.")
    cluster = {"device": device, "framework": _framework(environment.get("FW_VERSION", ""))}
    cluster |= {"num_devices": given["num_gpus"]} if "num_gpus" in given else {}
    return {"model": model, "cluster": cluster, "training": {"precision": PRECISIONS[dtype]}}


def _framework(release: str) -> str:
    """Return the release that the script names, else the newest."""
    with suppress(SpecError):
        return catalog.framework(re.sub(r"(\.0+)+$", "", f"{STACK}-{release}")).name
    return newest(f"{STACK}-")


def _recipe(
    document: Mapping[str, Any], entries: Mapping[str, str], variant: str, publishers: Sequence[str]
) -> Recipe | None:
    """Find the recipe of the release, else of the first after it, else of the last before, for like devices."""
    cluster, named = document["cluster"], entries.get("cluster.framework", document["cluster"]["framework"])
    number = cluster.get("num_devices", 1)
    device = entries.get("cluster.device", cluster["device"])
    of_catalog = catalog.find_unique_device(device)
    device = of_catalog.device if of_catalog else device
    wanted = document["model"], device, entries.get("training.precision", document["training"]["precision"])
    fitting = [one for one in recipes() if (one.model, one.device, one.precision) == wanted and one.stack == STACK]
    fitting = [one for one in fitting if one.cells["source"] in publishers]
    release = release_of(named)
    if release is None:
        return None

    numbers = sorted({one.framework(name).number for one in fitting for name in one.releases})
    earlier = [number for number in numbers if number <= release.number]
    preferred = [*numbers[len(earlier) :], *reversed(earlier)]

    def rank(one: Recipe) -> tuple[Any, ...]:
        """Order recipes by release, publisher, variant and number of devices."""
        frameworks = [one.framework(name) for name in one.releases]
        place = -1 if _has_release(one, release) else min(preferred.index(framework.number) for framework in frameworks)
        apart = min(abs(log2(scale / number)) for scale in one.scales)
        publisher = 1 if one.cells["source"] == SOURCE else 0 if apart == 0 else 2
        return place, release not in frameworks, publisher, _variant(one) != (variant or USUAL), apart

    found = min(fitting, key=rank, default=None)
    if found is not None and found.refused:
        raise SpecError("recipe", f"{found.id}: {found.refused}.")
    return found


USUAL = "v2"
"""Default variant of a recipe, where the command names none."""


def _variant(one: Recipe) -> str:
    """Return the variant in a recipe's name, or the default one."""
    found = re.search(r"_(v1|large_scale|\w*dev)(_config)?$", one.name.lower())
    return found[1] if found else USUAL


def _has_release(one: Recipe, release: Release) -> bool:
    """Tell whether a recipe is of a release, or of another one of its month; later numbers are patches."""
    return any(one.framework(name).number[:2] == release.number[:2] for name in one.releases)


def _apply_recipe(document: dict[str, Any], one: Recipe | None) -> tuple[dict[str, Any], list[str]]:
    """Apply a recipe's entries, and return notes; global batches scale with the devices, as in recipes."""
    whole: dict[str, Any] = {"settings": {}, "strategy": {}, **document}
    if one is None:
        return whole, []
    for path, text in one.cells.items():
        if text and path.partition(".")[0] in ("training", "settings", "strategy"):
            set_entry(whole, path, yaml.safe_load(text))
    own = int(one.cells["cluster.num_devices"])
    number = whole["cluster"].setdefault("num_devices", own)
    notes = [f"Layout and settings are those of the recipe {one.name} ({one.source})."]
    if number != own:
        batch = whole["training"]["global_batch_size"] * number / own
        whole["training"]["global_batch_size"] = int(batch)
        notes.append(f"The global batch grows with the devices, as recipes scale it: {int(batch)} on {number}.")
        whole["strategy"].pop("dp", None)
    return whole, notes


def _apply(document: dict[str, Any], said: Mapping[str, Any]) -> None:
    """Override the recipe by the options of the command."""
    strategy = document["strategy"]
    for path, value in said.items():
        if not path.startswith(("given.", "config.")):
            set_entry(document, path, value)
    if {"strategy.pp", "strategy.vpp"} & {*said}:
        strategy.pop("layout", None)
    if "strategy.cuda_graphs" in said:
        strategy["cuda_graphs"] = strategy["cuda_graphs"].replace(",", "+")


def _unknown(document: Mapping[str, Any]) -> str:
    """Word the problem of an unknown recipe, with the known recipes of the model."""
    others = {(one.device, one.precision) for one in recipes() if one.model == document["model"] and one.stack == STACK}
    listed = ", ".join(f"{device} in {precision}" for device, precision in sorted(others)) or "nothing"
    what = f"of {document['model']} on {document['cluster']['device']} in {document['training']['precision']}"
    return f"{what} is not known here, and the script leaves the layout to it; known are: {listed}."


def choose_launch(commands: Sequence[Command], number: str) -> Command | None:
    """
    Return the launch of the template among commands; None: there is none.

    Raises
    ------
    SpecError
        If there are several and the number chooses none of them.
    """
    found = [one for one in commands if any(Path(word).name == DATA.template for word in one.words[:2])]
    if number and found and not (number.isdecimal() and 0 < int(number) <= len(found)):
        raise SpecError("launch", f"is {shown(number)}; the script has {len(found)}.", "Give --set launch=N.")
    if len(found) > 1 and not number:
        lines = ", ".join(f"{place} (line {one.line})" for place, one in enumerate(found, 1))
        raise SpecError(WHERE, f"has {len(found)} launches: {lines}.", "Say which one: --set launch=1.")
    return found[int(number) - 1 if number else 0] if found else None


def zoo_job(command: Command, folder: Path, overrides: Sequence[str], given: Mapping[str, str]) -> Imported:
    """
    Import a launch of Megatron-MoE-ModelZoo; without its configuration file the catalog's model is taken.

    Raises
    ------
    SpecError
        If a required value is in neither of them, or as ``megatron_job``.
    """
    variables = _template_variables(command, folder, given)
    name = variables.get("MODEL", "")
    path = _file_named(f"model_configs/benchmarking/{name}.yaml", folder)
    if path is not None:
        config = list(model_words(read_mapping(path).get("MODEL_ARGS") or {}, variables))
        note = f"The model's arguments are those of {path.name}."
    else:
        config, note = _catalog_words(name, variables)
    place = next(place for place, word in enumerate(command.words) if Path(word).name == DATA.template)
    words = [*config, *command.words[place + 1 :]]
    own = {"chunks": bool({*DATA.chunks} & {*words}), "stages": bool({*DATA.stages} & {*words})}
    meaning = meaning_of("modelzoo", {**{name: read_plain(value) for name, value in variables.items()}, **own})
    said = [f"{name}={value}" for name, value in meaning.entries.items()]
    return megatron_job([*words, *meaning.words], [*said, *overrides], variables).add_notes(note)


def _file_named(name: str, folder: Path) -> Path | None:
    """Find a file of the repository in a folder, above it, or next to it with folders in its name; None: not found."""
    places = [above / name for above in (folder, *folder.absolute().parents[:3])]
    return next((path for path in (*places, folder / name.replace("/", "__")) if os.path.isfile(path)), None)


def _template_variables(command: Command, folder: Path, given: Mapping[str, str]) -> dict[str, str]:
    """Complete variables as the template does: given ones, those of the launch, and the model's defaults."""
    said = {**command.environment, **given}
    path = _file_named(DATA.defaults, folder)
    text = read_text(path) if path is not None else ""
    line = re.search(rf'^\s*\[{re.escape(said.get("MODEL", ""))}\]="([^"]*)"', text, re.MULTILINE)
    own = dict(zip(DATA.columns, line[1].split(), strict=False)) if line is not None else {}
    found = {**own, **said}
    numbers = {name: int(value) for name, value in found.items() if value.isdecimal()}
    layers, pp, vpp = (numbers.get(name, 0) for name in ("NUM_LAYERS", "PP", "VPP"))
    if vpp <= 1 or (pp and layers):
        found.setdefault("LAYERS_PER_VP", str(layers // pp // vpp) if vpp > 1 else "false")
    if pp and layers % pp == 0:
        found |= {"PP_FIRST": "false", "PP_LAST": "false"}
    return found


def _catalog_words(name: str, variables: Mapping[str, str]) -> tuple[list[str], str]:
    """
    Return the arguments of a catalog model with options that all configurations have, and a note.

    Raises
    ------
    SpecError
        If the model is unknown, or if a variable is missing.
    """
    model = model_named(name)
    missing = [variable for variable in DATA.degrees.values() if not variables.get(variable, "").isdecimal()]
    file = f"model_configs/benchmarking/{name}.yaml"
    if model is None or missing:
        hint = f"Put it there{', or add ' + ' '.join(f'--set {one}=N' for one in missing) if model else ''}."
        raise SpecError(WHERE, f"names the configuration {file}, which is not in its folder.", hint)
    facts = read(model, Path())
    sizes = architecture_words(facts, int(variables["SEQ_LEN"]))
    if variables.get("NUM_LAYERS") == str(facts.num_layers + len(DATA.accounted)):
        sizes += DATA.accounted
    degrees = [word for option, variable in DATA.degrees.items() for word in (option, variables[variable])]
    others = f"other options those of all of its neighbours ({DATA.shared})"
    return [*sizes, *degrees, *DATA.shared.split()], f"{file} is not at hand: sizes are those of {model}, {others}."
