"""
Mutated files: an import reads what Bash or a parser reads, or refuses with a message; nothing is executed.

A mutation drops, doubles or swaps lines, drops or changes words, numbers, quotation marks and single characters, or
cuts the file. Files of ``expected.csv`` get what they need. Degrees and batches of YAML, JSON, TOML and logs are
compared with those that plain readers find by their keys. Scripts are compared with Bash (``--bash``), where every
program is one that notes its words and does nothing; redirections are left out. Let that run in a container; Bash has
no rights of root there.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import yaml

from benchmarks.imports import expected
from costmodel.errors import SpecError
from planner import import_job
from planner.frameworks.imports.arguments import understand
from planner.frameworks.imports.launch import find_launch, slurm_variables
from planner.frameworks.megatron.options import options
from planner.frameworks.shell.script import follow
from planner.frameworks.shell.words import strip_unknown, unknown_names

Input: TypeAlias = tuple[Path, expected.Given]
SUFFIXES = (".sh", ".slurm", ".yaml", ".yml", ".json", ".toml", ".py", ".log", ".txt")
SCRIPTS = (".sh", ".slurm")
EXECUTING = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "pickle.find_class")
"""Audit events of Python that an import must not raise."""

ENTRIES = ("cluster.device=h100-80gb-sxm", "cluster.num_devices=512")
SIGNS = (*"\"'`$(){}[]<>|&;\\#= \n\t*", "\u00e9", "\x00", "$(touch made)", "${X", "--", "9" * 20)

NOTING = r"""
ulimit -t 10 -f 20000 -v 1000000
note() { printf '%s\0' "$@" $'\n' >>"$OUT/$BASHPID"; }
command_not_found_handle() { note "$@"; }
inside() { while [ $# -gt 1 ]; do case $1 in -*c) (eval "$2"); return;; esac; shift; done; }
for one in srun mpirun sbatch bash sh; do eval "$one() { note $one \"\$@\"; inside \"\$@\"; }"; done
for one in exit exec cd pwd set umask trap kill ulimit enable command builtin; do eval "$one() { :; }"; done
"""
"""First lines of every script: programs that note their words, and a shell inside that is read in a subshell."""


def mutated(text: str, chance: random.Random) -> str:
    """Return a text with one to three random changes."""
    for _ in range(chance.randint(1, 3)):
        text = chance.choice(CHANGES)(text, chance)
    return text


def _lines(text: str, chance: random.Random) -> str:
    """Drop, double or swap a line."""
    lines = text.split("\n")
    place = chance.randrange(len(lines))
    lines[place : place + 2] = chance.choice(([], lines[place : place + 1] * 2, lines[place : place + 2][::-1]))
    return "\n".join(lines)


def _word(text: str, chance: random.Random) -> str:
    """Drop a word, or put another one of the text in its place."""
    words = list(re.finditer(r"\S+", text))
    if not words:
        return text
    word, other = chance.choice(words), chance.choice(["", *text.split()])
    return f"{text[: word.start()]}{other}{text[word.end() :]}"


def _number(text: str, chance: random.Random) -> str:
    """Change a number."""
    numbers = list(re.finditer(r"\d+", text))
    if not numbers:
        return text
    number, other = chance.choice(numbers), chance.choice(("0", "1", "3", "64", "-1", "1e3", "x", "99999999999"))
    return text[: number.start()] + other + text[number.end() :]


def _sign(text: str, chance: random.Random) -> str:
    """Drop a character, or put a sign in."""
    place = chance.randrange(len(text) + 1)
    sign: str = chance.choice((*SIGNS, "", ""))
    return text[:place] + sign + text[place + chance.randint(0, 1) :]


def _cut(text: str, chance: random.Random) -> str:
    """Cut the end off."""
    return text[: chance.randrange(len(text) // 2, len(text) + 1)]


CHANGES: tuple[Callable[[str, random.Random], str], ...] = (_lines, _word, _number, _sign, _sign, _number, _cut)


NAMES = {
    "tp": ("tensor_model_parallel_size", "tensor_parallel_degree", "model_parallel_size", "parallelism.tp"),
    "pp": ("pipeline_model_parallel_size", "pipeline_parallel_degree", "pipe_parallel_size", "parallelism.pp"),
    "cp": ("context_parallel_size", "context_parallel_degree"),
    "ep": ("expert_model_parallel_size", "expert_parallel_degree"),
    "mbs": ("micro_batch_size", "train_micro_batch_size_per_gpu", "device_train_microbatch_size"),
    "batch": ("global_batch_size", "train_batch_size", "global_train_batch_size"),
}
"""Names of keys that say a decision of the job in some tool."""


def read_decisions(text: str, suffix: str) -> dict[str, set[int]]:
    """Return the values that keys of a text say for each decision, as plain readers find them."""
    found: dict[str, set[int]] = {}
    if suffix in (".log", ".txt"):
        pairs: Iterable[tuple[str, Any]] = re.findall(r"(\w+) \.{3,} (\d+)$", text, re.MULTILINE)
    else:
        pairs = _flat(tomllib.loads(text) if suffix == ".toml" else yaml.safe_load(text), "")
    for key, value in pairs:
        name = key.strip("-").replace("-", "_")
        for decision, names in NAMES.items():
            if name.rpartition(".")[2] in names or any(name.endswith(one) for one in names if "." in one):
                is_number = isinstance(value, int | str) and not isinstance(value, bool) and str(value).isdecimal()
                found.setdefault(decision, set()).add(int(value) if is_number else 0)
    return found


def _flat(content: Any, above: str) -> Iterator[tuple[str, Any]]:
    for name, value in content.items() if isinstance(content, Mapping) else ():
        yield from _flat(value, f"{above}{name}.") if isinstance(value, Mapping) else [(f"{above}{name}", value)]


def find_misread(text: str, suffix: str, document: Mapping[str, Any]) -> str:
    """Return the decisions of a job that are not those of its file's keys; keys that contradict each other say none."""
    got = {**document["strategy"], "batch": document["training"]["global_batch_size"]}
    with suppress(yaml.YAMLError, tomllib.TOMLDecodeError, ValueError, RecursionError):
        said = {
            name: values
            for name, values in read_decisions(text, suffix).items()
            if len(values) == 1 and 0 not in values
        }
        wrong = [
            f"{name}: {values.pop()}, ours {got[name]}" for name, values in said.items() if got[name] not in values
        ]
        return "; ".join(wrong)
    return ""


REDIRECTION = re.compile(r"(&?>>?(?!\()|2>&1 *\|) *[^\s\"';&|)]+( *\$\{?\w+\}?)*")


def words_of_bash(text: str, folder: Path, given: Mapping[str, str]) -> Iterator[list[str]]:
    """Yield the commands that Bash starts; none where it does not read the text to its end."""
    out = folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    out.chmod(0o777)
    lines = (line if "((" in line else REDIRECTION.sub(" ", line) for line in text.split("\n"))
    plain = "\n".join(lines)
    named = {name: value for name, value in given.items() if name.isidentifier()}
    environment = {"PATH": "/nonexistent", "OUT": str(out), **slurm_variables(text), **named}
    places = [int(name) for name in given if name.isdecimal()]
    arguments = [given.get(str(place), "") for place in range(1, max(places, default=0) + 1)]
    shell = [str(shutil.which("bash")), "--norc", "-c", f"{NOTING}{plain}", "script", *arguments]
    quiet, user = subprocess.DEVNULL, "nobody" if os.geteuid() == 0 else None
    subprocess.run(shell, env=environment, cwd=folder, check=False, timeout=20, stdout=quiet, stderr=quiet, user=user)
    for noted in sorted(out.iterdir(), key=lambda path: int(path.name)):  # members of a pipeline note at the same time
        for call in noted.read_text(errors="replace").split("\n\0")[:-1]:
            yield call.split("\0")[:-1]


def difference(text: str, folder: Path, given: Mapping[str, str]) -> str:
    """Return what a script's launch says otherwise than in Bash; empty: nothing, or Bash starts no such program."""
    launch = find_launch(follow(text, {**slurm_variables(text), **given}), text)
    if launch is None or launch.kind != "megatron" or "\x00" in text:
        return ""
    ours = _decided([strip_unknown(word) for word in launch.words if strip_unknown(word) or not unknown_names(word)])
    theirs = [
        call[place + 1 :]
        for call in words_of_bash(text, folder, given)
        for place, word in enumerate(call)
        if word.endswith(Path(launch.program).name) and len(call) > place + 1
    ]
    if not theirs or any(_decided(one) == ours for one in theirs):
        return ""
    other = _decided(theirs[0])
    names = [name for name in {*ours, *other} if ours.get(name) != other.get(name)]
    return "; ".join(f"{name}: Bash {other.get(name)}, ours {ours.get(name)}" for name in sorted(names))


def _decided(words: Sequence[str]) -> dict[str, list[str]]:
    try:
        found = understand(words).values
    except SpecError as error:
        return {"refused": [str(error)]}
    return {name: values for name, values in found.items() if options()[name].in_import == "read"}


SHARE = 0.8
"""Share of mutations of files that are imported as they are."""


def _inputs(folder: Path) -> tuple[list[Input], list[Input]]:
    """Return the files that are imported and the others, with the entries and variables that they are given."""
    rows = {folder / row["path"]: row for row in expected.rows_of(folder)}
    found: tuple[list[Input], list[Input]] = ([], [])
    for path in sorted(folder.rglob("*")):
        if path.suffix not in SUFFIXES or path.name == expected.TABLE:
            continue
        row = expected.import_row(folder, rows[path]) if path in rows else ""
        given: expected.Given = (list(ENTRIES), {}) if isinstance(row, str) else row[1]
        found[isinstance(row, str) and _import(path, *given)[0] != "imported"].append((path, given))
    return found


def run(folder: Path, number: int, *, seed: int = 52, bash: bool = False) -> int:
    """Import mutated files, and print what became of them; 1 where one is wrong."""
    chance, events, counts, faults = random.Random(seed), list[str](), Counter[str](), list[str]()
    watching = [False]
    sys.addaudithook(lambda event, _: events.append(event) if watching[0] and event in EXECUTING else None)
    with TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        read, others = _inputs(Path(shutil.copytree(folder, Path(made) / "files")))
        for _ in range(number):
            path, (entries, given) = chance.choice(read if chance.random() < SHARE else others)
            text = mutated(path.read_text(errors="replace"), chance)
            copy = path.with_name(f"mutated{path.suffix if path.suffix not in SCRIPTS else '.sh'}")
            copy.write_text(text)
            watching[0] = True
            became, fault = _import(copy, entries, given)
            watching[0] = False
            copy.unlink()
            if events:
                fault = f"executes ({events.pop()})"
                events.clear()
            if not fault and bash and became == "imported" and path.suffix in SCRIPTS:
                fault = difference(text, Path(made), given)
                became = "otherwise than Bash" if fault else became
            if fault:
                faults.append(f"{path.name}: {fault}")
                print(f"  {faults[-1][:300]}", flush=True)
            counts[became] += 1
    print(", ".join(f"{name}: {count}" for name, count in counts.most_common()))
    return int(bool(faults))


def _import(path: Path, entries: Sequence[str], given: Mapping[str, str]) -> tuple[str, str]:
    """Import a mutated file; return what became of it, and its fault."""
    try:
        document = import_job(path, entries, given).document
    except SpecError:
        return "refused", ""
    except Exception as error:
        return "traceback", f"{type(error).__name__}: {error}"
    is_said = any(entry.startswith("strategy.") for entry in entries)
    wrong = "" if path.suffix in (".sh", ".py") or is_said else find_misread(path.read_text(), path.suffix, document)
    return ("misread", wrong) if wrong else ("imported", "")
