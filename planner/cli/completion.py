"""``planner --completion``: the script by which a shell completes commands, options, models and devices."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from pathlib import Path
from string import Template

from planner.frameworks import LAUNCHERS, TARGETS

COMPLETED = {
    name: {"bash": f"_planner_{name}_file", "zsh": f"_planner_{name}"}
    for name in ("job", "assignments", "device", "entry", "only", "target", "launch")
}
"""The functions below, by the argument that they complete."""

PREAMBLES = {
    "bash": Template("""\
_planner_job_file() {  # a model or a file
  compgen -W "$models" -- "$$1"
  compgen -f -- "$$1"
}
_planner_assignments_file() {  # a cluster such as 512xh100, or the device of cluster.device=
  local word=$${1#=}
  if [[ "$${COMP_WORDS[*]:COMP_CWORD-2:3}" == *"cluster.device ="* ]]; then
    compgen -W "$devices" -- "$$word"
  elif [[ "$$word" =~ ^([0-9]+x)+ ]]; then
    compgen -P "$${BASH_REMATCH[0]}" -W "$devices" -- "$${word#"$${BASH_REMATCH[0]}"}"
  else
    compgen -f -- "$$1"
  fi
}
_planner_device_file() {
  compgen -W "$devices" -- "$$1"
  compgen -f -- "$$1"
}
_planner_entry_file() { compgen -W "$lists $devices $models" -- "$$1"; }
_planner_only_file() { _planner_device_file "$$1"; compgen -W "$models" -- "$$1"; }
_planner_target_file() { compgen -W "$targets" -- "$$1"; }
_planner_launch_file() { compgen -W "$launchers" -- "$$1"; }
"""),
    "zsh": Template("""\
_planner_job() { _alternative "models:model:($models)" "files:job file:_files" }
_planner_assignments() {  # a cluster such as 512xh100
  if [[ "$$PREFIX" == <->x* ]]; then compset -P "*[0-9]x"; compadd -- $devices; else _files; fi
}
_planner_device() { _alternative "devices:device:($devices)" "files:file:_files" }
_planner_entry() { compadd -- $lists $devices $models }
_planner_only() { _alternative "models:model:($models)" "devices:device:($devices)" "files:file:_files" }
_planner_target() { compadd -- $targets }
_planner_launch() { compadd -- $launchers }
"""),
}
"""Functions of each shell, with the names of the catalog; those of bash end in 'file', as they also give file names."""


def completion_script(parser: argparse.ArgumentParser, shell: str) -> str:
    """Return the script of a shell for the parser of all commands."""
    import shtab

    for command in _leaves(parser):
        for action in command._actions:
            if action.dest in COMPLETED:
                action.complete = COMPLETED[action.dest]  # type: ignore[attr-defined]
            elif action.type is Path:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    script: str = shtab.complete(parser, shell, preamble=PREAMBLES[shell].substitute(words()))
    return script


def words() -> dict[str, str]:
    """Return the names of the catalog that a shell completes, separated by spaces, by list."""
    from costmodel import catalog
    from planner.cli.catalog import TEXTS
    from planner.report.describe import LISTS

    devices = sorted({*catalog.devices(), *(spelled for spelled, _ in catalog.spellings() if " " not in spelled)})
    lists: dict[str, Iterable[str]] = {
        "models": catalog.model_names(),
        "devices": devices,
        "targets": TARGETS,
        "launchers": LAUNCHERS,
    }
    lists["lists"] = (*LISTS, "support", *TEXTS)
    return {name: " ".join(known) for name, known in lists.items()}


def _leaves(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield the parser itself and those of all commands inside it."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from _leaves(inner)
