"""
Import of launches of Megatron-MoE-ModelZoo: environment variables for its template of a model's configuration.

Options that the template adds are those of its sbatch_benchmarking.sh (main of August 2026). Defaults of a model are
read from its runtime.conf, and the model's own arguments from model_configs/benchmarking, where these files are found.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from costmodel.errors import SpecError
from costmodel.validation import shown
from planner.frameworks.imports.arguments import megatron_job, model_words
from planner.frameworks.imports.bridge.overrides import architecture_words
from planner.frameworks.imports.documents import read_rows, read_yaml
from planner.frameworks.imports.named import model_named
from planner.frameworks.megatron.read import Imported
from planner.frameworks.shell.script import WHERE, Command
from planner.jobs.document import read_text
from planner.jobs.model import read

TEMPLATE = "sbatch_benchmarking.sh"
DEFAULTS = "runtime_configs/benchmarking/runtime.conf"

COLUMNS = (
    *("TP", "PP", "EP", "CP", "VPP", "MBS", "GBS", "NUM_LAYERS", "MOE_TOKEN_DISPATCHER", "MOE_GROUPED_GEMM", "NNODES"),
    *("RUN_TIME", "PRETRAIN", "SEQ_LEN", "DATASET", "PP_FIRST", "PP_LAST"),
)
"""Columns of a line of the defaults, in order."""

ADDED = Path(__file__).parent / "modelzoo.csv"
"""Table of options that the template adds by a variable's value, for the optimizer also by the precision."""

DEGREES = {
    "--tensor-model-parallel-size": "TP",
    "--pipeline-model-parallel-size": "PP",
    "--expert-model-parallel-size": "EP",
    "--context-parallel-size": "CP",
    "--micro-batch-size": "MBS",
    "--global-batch-size": "GBS",
    "--seq-length": "SEQ_LEN",
}
SHARED = (
    "--bf16 --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather --sequence-parallel "
    "--expert-tensor-parallel-size 1 --moe-grouped-gemm --cross-entropy-loss-fusion"
)
"""Options that all configurations of the collection have."""

ACCOUNTED = ("--account-for-embedding-in-pipeline-split", "--account-for-loss-in-pipeline-split")
"""Options of models whose default number of layers counts the embedding and the loss."""

UNSAID = {"PR": "bf16", "DISPATCHER": "deepep", "A2A_OVERLAP": "0", "OPTIMIZER_OFFLOAD": "0", "GB200_CLUSTER": "0"}
CHUNKS = ("--pipeline-model-parallel-layout", "--num-virtual-stages-per-pipeline-rank")
OLD_CHUNKS = "--num-layers-per-virtual-pipeline-stage"


def choose_launch(commands: Sequence[Command], number: str) -> Command | None:
    """
    Return the launch of the template among commands; None: there is none.

    Raises
    ------
    SpecError
        If there are several and the number chooses none of them.
    """
    found = [one for one in commands if any(Path(word).name == TEMPLATE for word in one.words[:2])]
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
    notes = [] if path is None else [f"The model's arguments are those of {path.name}."]
    if path is not None:
        content = read_yaml(read_text(path), str(path))
        config = list(model_words(content.get("MODEL_ARGS") or {}, variables))
    else:
        config, note = _catalog_words(name, variables)
        notes.append(note)
    number = _template_devices(variables)
    said = [f"cluster.num_devices={number}"] if number is not None else []
    words = list(_template_words(command, config, variables))
    imported = megatron_job(words, [*said, *overrides], variables)
    return Imported(document=imported.document, notes=(*notes, *imported.notes))


def _file_named(name: str, folder: Path) -> Path | None:
    """Find a file of the repository in a folder, above it, or beside it with folders in its name; None: not found."""
    places = [above / name for above in (folder, *folder.absolute().parents[:3])]
    return next((path for path in (*places, folder / name.replace("/", "__")) if os.path.isfile(path)), None)


def _template_variables(command: Command, folder: Path, given: Mapping[str, str]) -> dict[str, str]:
    """Complete variables as the template does: given ones, those of the launch, and the model's defaults."""
    said = {**command.environment, **given}
    path = _file_named(DEFAULTS, folder)
    text = read_text(path) if path is not None else ""
    line = re.search(rf'^\s*\[{re.escape(said.get("MODEL", ""))}\]="([^"]*)"', text, re.MULTILINE)
    own = dict(zip(COLUMNS, line[1].split(), strict=False)) if line is not None else {}
    found = {**UNSAID, **own, **said}
    layers, pp, vpp = (
        int(found[name]) if found.get(name, "").isdecimal() else 0 for name in ("NUM_LAYERS", "PP", "VPP")
    )
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
    missing = [variable for variable in DEGREES.values() if not variables.get(variable, "").isdecimal()]
    file = f"model_configs/benchmarking/{name}.yaml"
    if model is None or missing:
        hint = f"Put it there{', or add ' + ' '.join(f'--set {one}=N' for one in missing) if model else ''}."
        raise SpecError(WHERE, f"names the configuration {file}, which is not beside it.", hint)
    facts = read(model, Path()).model
    sizes = architecture_words(facts, int(variables["SEQ_LEN"]))
    if variables.get("NUM_LAYERS") == str(facts.num_layers + len(ACCOUNTED)):
        sizes += ACCOUNTED
    degrees = [word for option, variable in DEGREES.items() for word in (option, variables[variable])]
    note = (
        f"{file} is not at hand: sizes are those of {model}, other options those of all of its neighbours ({SHARED})."
    )
    return [*sizes, *degrees, *SHARED.split()], note


def _template_words(command: Command, config: Sequence[str], variables: Mapping[str, str]) -> Iterator[str]:
    """Yield the words that the template passes to Megatron-LM: the configuration's, the command's, and its own."""
    place = next(place for place, word in enumerate(command.words) if Path(word).name == TEMPLATE)
    whole = [*config, *command.words[place + 1 :]]
    yield from whole
    vpp, uneven = variables.get("VPP", "1"), variables.get("PP_FIRST", "false")
    if vpp.isdecimal() and int(vpp) > 1 and not {*CHUNKS, OLD_CHUNKS} & {*whole}:
        yield from (CHUNKS[1], vpp)
    if uneven != "false" and CHUNKS[0] not in whole and "--decoder-first-pipeline-num-layers" not in whole:
        yield from ("--decoder-first-pipeline-num-layers", uneven)
        yield from ("--decoder-last-pipeline-num-layers", variables["PP_LAST"])
    values = {*variables.items(), ("OPTIMIZER_OFFLOAD", f"{variables['OPTIMIZER_OFFLOAD']} {variables['PR']}")}
    for row in read_rows(ADDED):
        yield from row["options"].split() if (row["variable"], row["value"]) in values else ()


def _template_devices(variables: Mapping[str, str]) -> str | None:
    """Return the number of devices: nodes of four GPUs on GB200 clusters, else of eight; None: nodes are unknown."""
    nodes, per_node = variables.get("NNODES", ""), 4 if variables["GB200_CLUSTER"] == "1" else 8
    return str(int(nodes) * per_node) if nodes.isdecimal() else None
