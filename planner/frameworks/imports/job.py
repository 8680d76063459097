"""A file that somebody runs, as a job: which kind of file it is, and what is said beside it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from costmodel.errors import SpecError
from costmodel.validation import shown
from planner.frameworks.imports.arguments import by_option, megatron_job
from planner.frameworks.imports.launch import Devices, Launch, find_launch
from planner.frameworks.megatron.options import options
from planner.frameworks.megatron.read import Imported
from planner.frameworks.shell.script import WHERE, Script, follow
from planner.frameworks.shell.text import unknown, written
from planner.jobs.document import parse, read_text


def import_job(path: Path | str, overrides: Sequence[str] = (), given: Mapping[str, str] | None = None) -> Imported:
    """
    Read a script, an argument list or a configuration of a training.

    Parameters
    ----------
    path
        The file. Files that it names are looked for beside it.
    overrides
        Entries of the job as ``key=value``: what the file does not say, and what is to be otherwise.
    given
        Variables that a script leaves to its environment; arguments of the script by their number.

    Raises
    ------
    SpecError
        If it is no such file, leaves open what planning needs, or is of a model that the planner does not know.
    """
    place, variables = Path(path), dict(given or {})
    text = read_text(place)
    if place.suffix.lower() in (".yaml", ".yml"):
        return _from_yaml(parse(text, str(place), last_counts=True), place, overrides, variables)
    return _from_script(text, overrides, variables)


def read_variables(assignments: Sequence[str]) -> dict[str, str]:
    """
    Variables by name, from ``NAME=VALUE``.

    >>> read_variables(["TP=8", "1=/data"])
    {'TP': '8', '1': '/data'}

    Raises
    ------
    SpecError
        If one has no name, or one that no shell takes.
    """
    found = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z_]\w*|[1-9]\d{0,2}", name):
            raise SpecError("--set", f"expected NAME=VALUE such as WORLD_SIZE=64, got {shown(assignment)}.")
        found[name] = value
    return found


def _from_yaml(content: Any, path: Path, overrides: Sequence[str], given: Mapping[str, str]) -> Imported:
    if not isinstance(content, Mapping):
        raise SpecError(str(path), f"expected a mapping, got {shown(content)}.")
    arguments = content.get("MODEL_ARGS")
    if isinstance(arguments, Mapping):
        return _from_model_arguments(arguments, content.get("ENV_VARS"), overrides, given)
    if "model" in content and "cluster" in content:
        raise SpecError(str(path), "is a job file already.", "planner estimate takes it as it is.")
    names = ", ".join(shown(name) for name in list(content)[:5])
    raise SpecError(str(path), f"has the entries {names}; expected MODEL_ARGS of Megatron-LM.")


# --- Megatron-LM's own lists of arguments ------------------------------------------------------------------


def _from_model_arguments(
    arguments: Mapping[str, Any], environment: object, overrides: Sequence[str], given: Mapping[str, str]
) -> Imported:
    """``MODEL_ARGS`` of Megatron-LM's functional tests; variables in them are those of a shell."""
    words: list[str] = []
    for name, value in arguments.items():
        if value is not False and value is not None:
            words += [str(name), *_values(value)]
    own = {str(name): str(value) for name, value in environment.items()} if isinstance(environment, Mapping) else {}
    expanded = [_expanded(word, given) for word in words]
    return megatron_job(expanded, overrides, {**own, **given}, uses={})


def _values(value: object) -> list[str]:
    """A switch has none; lists stand in brackets as text, too."""
    if value is True:
        return []
    if isinstance(value, (list, tuple)):
        return [str(one) for one in value]
    text = str(value).strip()
    inner = re.fullmatch(r"\[([^\[\]*+]*)\]", text)
    return (inner[1].replace(",", " ") if inner else text).split()


def _expanded(word: str, given: Mapping[str, str]) -> str:
    return re.sub(r"\$\{?(\w+)\}?", lambda found: given.get(found[1], unknown(found[1])), word)


# --- scripts -----------------------------------------------------------------------------------------------


def _from_script(text: str, overrides: Sequence[str], given: Mapping[str, str]) -> Imported:
    script = follow(text, given)
    launch = find_launch(script, text) or _loose(script)
    overrides, notes = _with_devices(launch, overrides)
    imported = megatron_job(launch.words, overrides, launch.environment, uses=script.variables.uses)
    remarks = (*launch.notes, *notes, *_asked(script), *script.notes)
    return Imported(document=imported.document, notes=(*remarks, *imported.notes))


def _loose(script: Script) -> Launch:
    """Options that no command takes: a list of arguments, or what another script is to read."""
    bare = [word for command in script.commands if command.words[0].startswith("--") for word in command.words]
    words = bare or _variables_with_options(script)
    names = {name for name, _ in by_option(words)}
    if not names & {"--num-layers", "--hybrid-layer-pattern", "--hybrid-override-pattern", "--hidden-size"}:
        raise SpecError(WHERE, "starts no training that is known here, and has no options such as --num-layers.")
    return Launch("megatron", "", tuple(words), (), Devices(), script.variables.texts())


def _variables_with_options(script: Script) -> list[str]:
    """Of variables that hold options, those that no other one repeats."""
    texts = {
        name: value.split() if isinstance(value, str) else list(value) for name, value in script.variables.values.items()
    }
    known = options()
    holding = [words for words in texts.values() if any(word.split("=", 1)[0] in known for word in words)]
    joined = [" ".join(words) for words in holding]
    kept = [
        words
        for place, words in enumerate(holding)
        if not any(joined[place] in other for index, other in enumerate(joined) if (other, index) > (joined[place], place))
    ]
    return [word for words in kept for word in words]


def _with_devices(launch: Launch, overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """The number of devices that the launcher is told, unless the command says another one."""
    name = "cluster.num_devices"
    if any(entry.partition("=")[0] in (name, "cluster") for entry in overrides):
        return list(overrides), []
    number, source = launch.devices
    if number is None:
        what = f"depends on {source}" if source else "is not said"
        hint = f"Add {name}=64" + (f", or --set {source.strip('$')}=VALUE." if source.startswith("$") else ".")
        raise SpecError(name, f"{what}.", hint)
    return [f"{name}={number}", *overrides], [f"The script starts {number} processes ({source}); {name}=N says otherwise."]


def _asked(script: Script) -> Iterable[str]:
    """Variables that conditions ask for; a shell takes what is not set as empty."""
    asked = script.variables.asked
    required = {name: lines for name, lines in asked.items() if name in script.variables.required}
    if required:
        names = ", ".join(f"${name} (line {', '.join(map(str, lines))})" for name, lines in required.items())
        hint = " ".join(f"--set {name}=VALUE" for name in required)
        raise SpecError(WHERE, f"cannot do without {names}.", f"Add {hint}.")
    if asked:
        names = ", ".join(f"{written(unknown(name))} (line {', '.join(map(str, lines))})" for name, lines in asked.items())
        yield f"Taken as empty, as conditions of the script ask for them: {names}."
