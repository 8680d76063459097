"""Import of a file as a job: its kind, the files next to it, and values that are given with it."""

from __future__ import annotations

import gzip
import os
import re
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias

from costmodel.errors import SpecError, did_you_mean, mistakes_of, together
from costmodel.validation import require_type, shown
from planner.frameworks.imports import printed
from planner.frameworks.imports.arguments import (
    drop_empty_words,
    megatron_job,
    model_words,
    name_with_lines,
    refuse_open,
    require_known,
    understand,
)
from planner.frameworks.imports.bridge.library import recipe_named, recipe_of_file
from planner.frameworks.imports.bridge.overrides import MARKS, bridge_job, fields_of, import_nested_job, override_list
from planner.frameworks.imports.documents import (
    File,
    read_json,
    read_overrides,
    read_tagged,
    read_yaml,
    require_mapping,
)
from planner.frameworks.imports.finish import cluster_notes
from planner.frameworks.imports.launch import LONE, Devices, Launch, find_launch, slurm_variables
from planner.frameworks.imports.published import choose_launch, find_published, recipe_job, zoo_job
from planner.frameworks.imports.refused import refuse_entries, refuse_options
from planner.frameworks.imports.tools import readers
from planner.frameworks.imports.tools.keys import Meaning
from planner.frameworks.megatron.options import WHERE as ARGUMENTS
from planner.frameworks.megatron.options import options, split_options
from planner.frameworks.megatron.read import Imported
from planner.frameworks.shell.script import WHERE, Script, follow
from planner.frameworks.shell.words import refuse_unknown, restore_variables, strip_unknown, unknown, unknown_names
from planner.frameworks.whole_entries import split_sections
from planner.jobs.document import decode_file, read_text, refuse_report

MODES = {"inference": "The arguments are those of an inference: read as a training of the same model and degrees."}
"""Notes on lists of arguments that are not of a pretraining."""

Reader: TypeAlias = Callable[..., str]
"""Function from the name of a file to its text, as ``_read_beside`` of one script."""


def import_job(
    path: str | os.PathLike[str], overrides: Sequence[str] = (), given: Mapping[str, str] | None = None
) -> Imported:
    """
    Read a script, an argument list or a configuration of a training.

    Parameters
    ----------
    path
        The file. Files that it names are searched next to it.
    overrides
        Entries of the job as ``key=value``, which add to the file or replace its values.
    given
        Variables that a script takes from its environment; arguments of the script by their number.

    Raises
    ------
    SpecError
        If it is no such file, lacks a value that planning needs, or is of an unknown model.
    """
    require_type(path, (str, os.PathLike), "path", "the path of a script or a configuration")
    try:
        return _import_file(Path(path), split_sections(overrides), given)
    except SpecError as error:
        raise together([_add_place(one, Path(path), overrides) for one in mistakes_of(error)]) from None


def _add_place(error: SpecError, path: Path, overrides: Sequence[str]) -> SpecError:
    """Add the file to an error on the script, an option or a key, and the first line that has the option or key."""
    kind, _, option = error.where.partition(".")
    is_of_script = kind.partition(",")[0] in (WHERE, ARGUMENTS)
    is_key = path.suffix.lower() in CONFIGURATIONS and error.where not in read_overrides(overrides)
    if error.place or not (is_of_script or is_key):
        return error
    text = "" if printed.is_checkpoint(path) else _text_of_log(path)
    name = re.sub("[-_]", "[-_]", option.removeprefix("--").partition(" ")[0])
    searched = rf"(?<![\w-])(--)?{name}(?![\w-])" if re.fullmatch(r"[\w\[\]-]+", name) else ""
    if not is_of_script:
        searched = rf"""(?<![\w-]){re.escape(error.where.rpartition(".")[2])}["']?\s*[:=]"""
    found = re.search(searched, text) if searched else None
    if found is None and not is_of_script:
        return error
    line = f", line {text.count(chr(10), 0, found.start()) + 1}" if found else ""
    return SpecError(error.where, error.problem, error.hint, f"{path}{line}")


CONFIGURATIONS = (".toml", ".json")
"""Suffixes of files whose keys are places of errors."""


def _import_file(place: Path, overrides: Sequence[str], given: Mapping[str, str] | None) -> Imported:
    """Import a file by its kind, which its suffix and its content tell."""
    variables = dict(given or {})
    if printed.is_checkpoint(place):
        return _import_checkpoint(place, overrides, given)
    is_log = LOGS.search(place.name.lower()) is not None
    text = _text_of_log(place) if is_log else read_text(place)
    if not text.strip():
        raise _empty(place)
    match place.suffix.lower():
        case ".toml":
            return _import_toml(text, str(place), overrides)
        case ".json":
            content = read_json(text, str(place))
            refuse_report(content, place, "configuration of a training")
            if content == {}:
                raise _empty(place)
            kind = printed.kind_of(content) or "deepspeed"
            if kind != "megatron" and isinstance(content, Mapping):  # Megatron-LM prints all options of a release
                refuse_entries(content, str(place))
            return printed.KINDS[kind](content, str(place), overrides)
        case ".yaml" | ".yml":
            return _import_yaml(_read(text, place), place, overrides, variables)
        case ".py" if "Trainer.Config" in text or "from torchtitan" in text:
            return readers.torchtitan_job(readers.read_python(text, str(place)), overrides)
        case ".py":
            readers.refuse_other_program(text, str(place))
            return bridge_job({}, recipe_of_file(text, str(place)), overrides, {})
    found = printed.import_printed(text, str(place), overrides, variables.get("run", ""))
    if found is not None:
        return found
    if is_log:
        problem = "prints no configuration that is known here: arguments of Megatron-LM, a ConfigContainer, or JSON."
        raise SpecError(str(place), problem, "Give the log from its first line on, of the rank that prints them.")
    try:
        return _import_script(text, place.parent, overrides, variables)
    except SpecError as error:
        if type(error) is not SpecError or not LOG_SAYS.search(f"{error.problem} {error.hint}"):
            raise
        raise SpecError(error.where, error.problem, f"{error.hint} {LOG}".strip(), error.place) from None


def _empty(path: str | Path) -> SpecError:
    return SpecError(str(path), "is empty.", "Give a script, arguments or a configuration of a training.")


def _import_checkpoint(path: Path, overrides: Sequence[str], given: Mapping[str, str] | None) -> Imported:
    """Import text next to a checkpoint's pickles, else what is in its zip; a note names the file."""
    beside = printed.text_beside(path)
    if beside is not None:
        imported, note = import_job(beside, overrides, given), f"Read from {beside}, which lies next to the pickles."
    else:
        file, content = printed.arguments_inside(path)
        note = f"Read from {file}, which is not loaded."
        kind = "bridge" if printed.kind_of(content) == "bridge" else "megatron"
        imported = printed.KINDS[kind](content, str(file), overrides)
    return imported.add_notes(note)


LOGS = re.compile(r"\.(log|out|err)(\.gz)?$")
MOST_OF_A_LOG = 64 << 20


def _text_of_log(path: Path) -> str:
    """Read a log, with another sign for bytes that are no text."""
    with suppress(OSError, EOFError, zlib.error), gzip.open(path) if path.suffix == ".gz" else path.open("rb") as log:
        return decode_file(log, str(path), MOST_OF_A_LOG, errors="replace")
    return read_text(path)


LOG = "Or give the log of the run's first minute, which has the configuration that was printed."
LOG_SAYS = re.compile(r"leaves? open|not known|cannot do without|is not read|starts no training|--set \w+=")
"""Words of errors about scripts; the log of such a run has the missing values."""

FOREIGN = ("MODEL_ARGS", "distributed_type", *MARKS)
"""Entries of YAML files that are not job files."""


def is_foreign(path: Path) -> bool:
    """
    Tell whether a file is a framework's, and not a job file.

    Raises
    ------
    SpecError
        If it cannot be read.
    """
    if path.suffix.lower() not in (".yaml", ".yml"):
        return True
    content = _read(read_text(path), path)
    if not isinstance(content, Mapping) or _is_job(content):
        return False
    return any(name in content for name in FOREIGN) or readers.tool_of(content) is not None


def _is_job(content: Mapping[str, Any]) -> bool:
    return "model" in content and isinstance(content.get("cluster"), Mapping)


def _read(text: str, path: Path) -> Any:
    """Read a YAML document; one with custom tags, which only other tools have, is refused by the tool's name."""
    if TAG.search(text):
        content = read_tagged(text, str(path))
        if isinstance(content, Mapping):
            readers.refuse_other_tool(readers.tool_of(content), str(path))
    return read_yaml(text, str(path))


TAG = re.compile(r"(?m)(^|[\s\[{,:-])![A-Za-z]")
"""Custom tag of YAML."""


def read_variables(assignments: Sequence[str]) -> dict[str, str]:
    """
    Read variables by name from ``NAME=VALUE``.

    >>> read_variables(["TP=8", "1=/data"])
    {'TP': '8', '1': '/data'}

    Raises
    ------
    SpecError
        If one has no name, or one that is not valid in a shell.
    """
    found = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z_]\w*|[1-9]\d{0,2}", name):
            raise SpecError("--set", f"expected NAME=VALUE such as WORLD_SIZE=64, got {shown(assignment)}.")
        found[name] = value
    return found


def _import_yaml(content: Any, path: Path, overrides: Sequence[str], given: Mapping[str, str]) -> Imported:
    if content is None:
        raise _empty(path)
    content = require_mapping(content, str(path))
    tool = None if _is_job(content) else readers.tool_of(content)
    if tool is None or tool["reader"] != "primus":
        refuse_entries(content, str(path))
    readers.refuse_other_tool(tool, str(path))
    if isinstance(content.get("MODEL_ARGS"), Mapping):
        return _import_model_arguments(content, overrides, given)
    if (kind := printed.kind_of(content)) in ("megatron", "bridge"):
        return printed.KINDS[kind](content, str(path), overrides)
    if "distributed_type" in content:
        with_devices = _add_devices(_devices_of_configuration(content), overrides)[0]
        return _import_accelerate(content, Meaning(), partial(_read_beside, path.parent, {}), with_devices)
    if tool is not None:
        return readers.READERS[tool["reader"]](File(content, path, overrides, given))
    if "cluster" not in content and any(isinstance(content.get(mark), Mapping) for mark in MARKS):
        return import_nested_job(content, "", overrides)
    if _is_job(content):
        raise SpecError(str(path), "is a job file already.", "planner estimate takes it as it is.")
    names = ", ".join(shown(name) for name in list(content)[:5])
    kinds = "MODEL_ARGS of Megatron-LM, sections of NeMo or Megatron-Bridge, or keys of a tool that is known here"
    raise SpecError(str(path), f"has the entries {names}; expected {kinds}.")


def _import_toml(text: str, source: str, overrides: Sequence[str]) -> Imported:
    """Import torchtitan's TOML; the number of devices may come from a comment in it."""
    config, presets = readers.read_torchtitan(text, source), _presets(text, overrides)
    if not config:
        raise _empty(source)
    refuse_entries(config, source)
    note = [f"A comment says for how many devices it is: {presets[0]}."] if len(presets) > len(overrides) else []
    return readers.torchtitan_job(config, presets).add_notes(*note)


# --- Megatron-LM's own lists of arguments ------------------------------------------------------------------


def _import_model_arguments(content: Mapping[str, Any], overrides: Sequence[str], given: Mapping[str, str]) -> Imported:
    """Import ``MODEL_ARGS`` of Megatron-LM's functional tests, with variables as in a shell."""
    arguments, environment = content["MODEL_ARGS"], content.get("ENV_VARS")
    notes = [note for mode, note in MODES.items() if content.get("MODE") == mode]
    if not any(str(name).startswith("--") for name in arguments):
        fields = {str(name): "true" if value is True else str(value) for name, value in arguments.items()}
        return bridge_job(fields, "", overrides, dict(given)).add_notes(*notes)
    own = {str(name): str(value) for name, value in environment.items()} if isinstance(environment, Mapping) else {}
    return megatron_job(list(model_words(arguments, given)), overrides, {**own, **given}).add_notes(*notes)


# --- scripts -----------------------------------------------------------------------------------------------


def _import_script(text: str, folder: Path, overrides: Sequence[str], given: Mapping[str, str]) -> Imported:
    listed = override_list(text)
    if listed:
        refuse_options(listed)
        return bridge_job(fields_of(listed), "", overrides, given)
    script = follow(text, {**slurm_variables(text), **given}, lambda name: _other_script(name, folder))
    filled = choose_launch(script.commands, given.get("launch", ""))
    if filled is not None:
        return zoo_job(filled, folder, overrides, given)
    launch = find_launch(script, text) or _loose(script)
    refuse_options(launch.words)
    _refuse_undecided(script, launch, text, folder, given)
    read = partial(_read_beside, folder, script.files)
    zero, more = _zero_words(launch, read)
    launch = replace(launch, words=(*drop_empty_words(launch.words, launch.kind, script.variables), *zero))
    notes = [*launch.notes, *more, *_question_notes(script), *dict.fromkeys(script.notes), *_note_unused(given, script)]
    lost = [one for one in script.commands if launch.program and one.words[0].startswith("--")]
    what = "is no option of a command: a line before it ends that one"
    notes += [f"Line {one.line}: {one.words[0]} {what}." for one in lost]
    refuse_open(launch.words, launch.kind, script.variables)
    if launch.kind == "megatron" and "--yaml-cfg" not in launch.words:
        return _import_options(launch, overrides, script).add_notes(*notes)
    return LAUNCHES[launch.kind](launch, read, overrides).add_notes(*notes)


def _import_options(launch: Launch, overrides: Sequence[str], script: Script) -> Imported:
    """Import Megatron-LM's command line; errors of a degree say how many devices it takes."""
    needed = require_known(launch.words, script.variables).least_devices()
    alone = launch.devices.source == LONE and needed > 1
    with_devices, more = _add_devices(Devices() if alone else launch.devices, overrides)
    try:
        return megatron_job(launch.words, with_devices, launch.environment).add_notes(*more)
    except SpecError as error:
        if error.where not in ("cluster.num_devices", "strategy.ep") or not more or error.hint:
            raise
        hint = f"{more[0]} Its degrees take at least cluster.num_devices={needed}."
        raise SpecError(error.where, error.problem, hint) from None


ZERO_STAGE = re.compile(r'"stage"\s*:\s*(\d)')
OFFLOAD = re.compile(r'"offload_(\w+)"\s*:\s*\{[^{}]*"device"\s*:\s*"(\w+)"')


def _zero_words(launch: Launch, read: Reader) -> tuple[tuple[str, ...], list[str]]:
    """Return options for the DeepSpeed configuration of Megatron-DeepSpeed, and notes on assumptions."""
    given = dict(split_options(launch.words))
    name = next((given[one][0] for one in ("--deepspeed_config", "--deepspeed-config") if given.get(one)), None)
    if launch.kind != "megatron" or name is None:
        return (), []
    text = read(name, may_lack=True)
    offloaded = {what for what, device in OFFLOAD.findall(text) if device != "none"}
    if offloaded - {"optimizer"}:
        problem = f"offloads weights by {shown(restore_variables(name))}, which is not costed under Megatron-LM."
        raise SpecError(WHERE, problem)
    words = ["--optimizer-cpu-offload", "--use-precision-aware-optimizer"] if offloaded else []
    key = f"zero_optimization.offload_optimizer of {shown(restore_variables(name))}"
    notes = [f"{key}: costed as --optimizer-cpu-offload, whose update is the host's."] if offloaded else []
    if found := ZERO_STAGE.search(text):
        return (*words, "--zero-stage", found[1]), notes
    assumed = (
        f"{shown(restore_variables(name))} is not read: ZeRO stage 0 is assumed; strategy.sharding says another one."
    )
    return tuple(words), notes if "--zero-stage" in given else [*notes, f"DeepSpeed's configuration {assumed}"]


def _import_yaml_file(
    launch: Launch, read: Reader, overrides: Sequence[str], name: str = "", recipe: str = ""
) -> Imported:
    """Import a nested configuration; with a recipe of Megatron-Bridge, overrides of the command apply, too."""
    name = name or option_value(launch.words, ("--yaml-cfg",))
    content = require_mapping(read_yaml(read(name), name), name)
    refuse_entries(content, name)
    devices, more = _add_devices(launch.devices, overrides, may_lack=True)
    fields = fields_of(launch.words) if recipe else None
    return import_nested_job(content, recipe, devices, fields).add_notes(*more)


def _other_script(name: str, folder: Path) -> str | None:
    """Read a script that another one names, at that path under its folder or next to it; None: not found."""
    place = Path(strip_unknown(name).lstrip("/"))
    paths = () if ".." in place.parts else (folder / place, folder / place.name)
    return next((read_text(path) for path in paths if os.path.isfile(path)), None)


def _note_unused(given: Mapping[str, str], script: Script) -> Iterable[str]:
    """Yield a note for each given variable that the script does not have, which may be a typing error."""
    for name in given:
        if name not in script.variables.seen and not (name.isdecimal() and "@" in script.variables.seen):
            hint = did_you_mean(name, script.variables.seen)
            yield f"--set {name}: the script neither reads nor sets such a variable. {hint}".strip()


def _import_bridge(launch: Launch, read: Reader, overrides: Sequence[str]) -> Imported:
    """Import a recipe of Megatron-Bridge: one of its performance scripts, or any other with overrides."""
    fields = fields_of(launch.words)
    names = {name: values[0] for name, values in split_options(launch.words) if values}
    said = [names[name] for name in ("--recipe", "--recipe_name", "--factory") if name in names]
    recipe = said[0] if said else Path(launch.program).stem
    file = names.get("--config-file", names.get("--config_file"))
    if file is not None:
        return _import_yaml_file(launch, read, overrides, file, recipe.removeprefix("pretrain_"))
    if not fields and (find_published(recipe) or (not said and recipe_named(recipe) is None)):
        return recipe_job(launch.words, overrides, launch.environment, recipe)
    devices, more = _add_devices(launch.devices, overrides, may_lack=True)
    return bridge_job(fields, recipe.removeprefix("pretrain_"), devices, launch.environment).add_notes(*more)


def _import_torchtitan(launch: Launch, read: Reader, overrides: Sequence[str]) -> Imported:
    """Import a launch of torchtitan: its TOML, or the Python of its model, is searched next to the script."""
    given, presets = readers.switches_of(launch.words), list(overrides)
    if given.keys() >= {"--module", "--config"}:
        name = f"{given['--module'].rpartition('.')[2]}/config_registry.py"
        config = readers.read_python(read(name), name, given["--config"])
    else:
        name = option_value(launch.words, ("--job.config_file", "--job.config-file"))
        config, presets = readers.read_torchtitan(text := read(name), name), _presets(text, overrides)
    devices, more = _add_devices(launch.devices, presets if launch.devices.number is None else overrides)
    return readers.torchtitan_job(readers.apply_options(config, launch.words), devices).add_notes(*more)


def _import_deepspeed(launch: Launch, read: Reader, overrides: Sequence[str]) -> Imported:
    config = _read_deepspeed(option_value(launch.words, ("--deepspeed_config", "--deepspeed")), read)
    devices, more = _add_devices(launch.devices, overrides)
    return readers.deepspeed_job(config, readers.trainer_of(launch.words), devices).add_notes(*more)


def _import_accelerate_launch(launch: Launch, read: Reader, overrides: Sequence[str]) -> Imported:
    """Import a launch by Accelerate: its file next to the script, options of its line, or the Trainer's ``--fsdp``."""
    settings: Any = {}
    fsdp, has_file = dict(split_options(launch.words)).get("--fsdp"), any(map(FILE.match, launch.before))
    if fsdp is not None and not has_file:
        settings = readers.read_trainer_fsdp(" ".join(fsdp))
    elif has_file or not any(word.removeprefix("--") in readers.TYPES for word in launch.before):
        name = option_value(launch.before, ("--config_file", "--config-file"))
        settings = require_mapping(read_yaml(read(name), name), name)
    settings = readers.apply_launch_options(settings, launch.before)
    devices = launch.devices if launch.devices.number is not None else _devices_of_configuration(settings)
    with_devices, more = _add_devices(devices, overrides)
    return _import_accelerate(settings, readers.trainer_of(launch.words), read, with_devices).add_notes(*more)


FILE = re.compile(r"--config[_-]file\b")

LAUNCHES: Mapping[str, Callable[[Launch, Reader, Sequence[str]], Imported]] = {
    **{"torchtitan": _import_torchtitan, "deepspeed": _import_deepspeed, "accelerate": _import_accelerate_launch},
    **{"bridge": _import_bridge, "megatron": _import_yaml_file},
}
"""Import functions by the kind of a launch."""


def _import_accelerate(config: Mapping[str, Any], trainer: Meaning, read: Reader, overrides: Sequence[str]) -> Imported:
    """Import Accelerate's configuration; a DeepSpeed configuration that it names is searched next to it."""
    section = config.get("deepspeed_config")
    name = section.get("deepspeed_config_file") if isinstance(section, Mapping) else None
    if config.get("distributed_type") == "DEEPSPEED" and name is not None:
        if config.get("mixed_precision") in ("bf16", "fp16"):
            trainer.entries.setdefault("given.half", config["mixed_precision"])
        return readers.deepspeed_job(_read_deepspeed(str(name), read), trainer, overrides)
    return readers.accelerate_job(config, trainer, overrides)


def _read_deepspeed(name: str, read: Reader) -> dict[str, Any]:
    """Read DeepSpeed's configuration that a script or another configuration names."""
    return readers.require_deepspeed(read_json(read(name), name), name)


def option_value(words: Sequence[str], names: Sequence[str]) -> str:
    """
    Return the value of the first of some options that has one.

    Raises
    ------
    SpecError
        If none has a value.
    """
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        following = words[place + 1] if place + 1 < len(words) else ""
        if name in names and (equals or (following and not following.startswith("-"))):
            return value if equals else following
    raise SpecError(WHERE, f"has no {' or '.join(names)} that names a configuration.")


def _read_beside(folder: Path, files: Mapping[str, str], name: str, *, may_lack: bool = False) -> str:
    """
    Read a file that a script writes itself or names, at its path or next to the script.

    A file that ``may_lack`` is empty where it is not found.
    """
    if name in files:
        if not may_lack:
            refuse_unknown("".join(map(unknown, unknown_names(files[name]))), name)
        return files[name]
    for path in (folder / restore_variables(name), folder / Path(restore_variables(name)).name):
        if os.path.isfile(path):
            return read_text(path)
    if may_lack:
        return ""
    problem = f"names the configuration {shown(Path(restore_variables(name)).name)}, which is not in its folder."
    raise SpecError(WHERE, problem, "Put it there.")


def _loose(script: Script) -> Launch:
    """Return options outside any command: a list of arguments, or variables for another script."""
    bare = [word for command in script.commands if command.words[0].startswith("--") for word in command.words]
    words = bare or _variables_with_options(script)
    names = {name for name, _ in split_options(words)}
    if not names & {"--num-layers", "--hybrid-layer-pattern", "--hybrid-override-pattern", "--hidden-size"}:
        raise SpecError(WHERE, "starts no training that is known here, and has no options such as --num-layers.")
    return Launch("megatron", "", tuple(words), (), Devices(), script.variables.texts())


def _variables_with_options(script: Script) -> list[str]:
    """Return variables whose options are not repeated by another variable."""
    values = script.variables.values.values()
    texts = [[*value.values()] if isinstance(value, dict) else value.split() for value in values]
    holding = [place for place, words in enumerate(texts) if any(word.split("=")[0] in options() for word in words)]
    joined = [(" ".join(texts[place]), place) for place in holding]
    kept = [one for one in joined if not any(one[0] in other[0] for other in joined if other > one)]
    return [word for _, place in kept for word in texts[place]]


def _devices_of_configuration(config: Mapping[str, Any]) -> Devices:
    """Return the processes of all machines of Accelerate's configuration."""
    number = config.get("num_processes")
    return Devices(number, "num_processes") if type(number) is int and number > 0 else Devices()


def _presets(text: str, overrides: Sequence[str]) -> list[str]:
    """Add the number of devices from a comment of torchtitan's own files, where the command does not set it."""
    found = None if COUNT in read_overrides(overrides) else PRESET.search(text)
    return [*([] if found is None else [f"{COUNT}={int(found[1])}"]), *overrides]


PRESET = re.compile(r"^#.*preset for (\d{1,6}) \w+ GPUs", re.MULTILINE)


COUNT = "cluster.num_devices"


def _add_devices(devices: Devices, overrides: Sequence[str], *, may_lack: bool = False) -> tuple[list[str], list[str]]:
    """Add the number of devices of the launcher, unless the command sets another one."""
    number, source = devices
    if {COUNT, "cluster"} & {*read_overrides(overrides)}:
        return list(overrides), [*cluster_notes(None, number, overrides)]
    if number is not None:
        note = f"The script starts {number} processes ({source}); {COUNT}=N says otherwise."
        return [f"{COUNT}={number}", *overrides], [note]
    if may_lack:
        return list(overrides), []
    what = f"depends on {source}" if source else "is not said"
    settable = " ".join(f"--set {name}=VALUE" for name in re.findall(r"\$(\w+)", source))
    raise SpecError(COUNT, f"{what}.", f"Add {COUNT}=64{f', or {settable}' if settable else ''}.")


MOST_READINGS = 60
"""Most times that a script is followed to find the arguments that matter; the others count as such."""


def _refuse_undecided(script: Script, launch: Launch, text: str, folder: Path, given: Mapping[str, str]) -> None:
    """Refuse a script where a missing argument decides an option, or a file, a status or an output of the machine."""
    plain, readings, variables = _decisive_options(launch), count(), script.variables

    def decides(more: Mapping[str, str], opposite: Sequence[int] = ()) -> bool:
        if not opposite and next(readings) >= MOST_READINGS:
            return True
        try:
            around = {**slurm_variables(text), **given, **more}
            found = find_launch(follow(text, around, lambda one: _other_script(one, folder), opposite), text)
        except SpecError:
            return False
        return found is not None and _decisive_options(found) != plain

    compared = {name: (*sorted(texts), "*") for name, texts in variables.compared.items()}
    decisive = [name for name, texts in compared.items() if any(decides({name: value}) for value in texts)]
    if decisive:
        raise _lacking(decisive, variables.asked)
    if launch.kind != "megatron":  # other launches name their layout in a file or a recipe
        return
    for line, (condition, hint) in variables.decisions.items():
        if f"line_{line}" not in given and decides({}, [line]):
            problem = f"the machine decides by {shown(restore_variables(condition))} which options the training gets."
            raise SpecError(f"{WHERE}, line {line}", problem, f"Say it: {hint}.")


def _decisive_options(launch: Launch) -> Any:
    """Return the options of a launch that an import reads."""
    if launch.kind != "megatron":
        return launch.words
    found, known = understand(launch.words), options()
    values = {name: value for name, value in found.values.items() if known[name].in_import == "read"}
    return values, found.missing, found.strangers


def _question_notes(script: Script) -> Iterable[str]:
    """Yield a note on unset variables in conditions, which are taken as empty; refuse required ones."""
    asked = script.variables.asked
    missing = {name: lines for name, lines in script.variables.uses.items() if name in script.variables.required}
    if missing.keys() & asked.keys():
        raise _lacking(missing, missing)
    if asked:
        yield f"Taken as empty, as conditions of the script ask for them: {_names_with_lines(asked, asked)}."


def _lacking(names: Iterable[str], uses: Mapping[str, Collection[int]]) -> SpecError:
    hint = " ".join(f"--set {name}=VALUE" for name in names)
    return SpecError(WHERE, f"cannot do without {_names_with_lines(names, uses)}.", f"Add {hint}.")


def _names_with_lines(names: Iterable[str], uses: Mapping[str, Collection[int]]) -> str:
    return ", ".join(name_with_lines(name, uses) for name in names)
