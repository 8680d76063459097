"""
Mutated files: an import reads what Bash reads, or refuses with a message; nothing is executed.

A mutation drops, doubles or swaps lines, drops or changes words, numbers, quotation marks and single characters, or
cuts the file. Scripts are compared with Bash (``--bash``), where every program is one that notes its words and does
nothing; redirections are left out. Let that run in a container, as somebody without rights.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from costmodel.errors import SpecError
from planner import import_job
from planner.frameworks.imports.arguments import understand
from planner.frameworks.imports.launch import find_launch, slurm_variables
from planner.frameworks.megatron.options import options
from planner.frameworks.shell.script import follow
from planner.frameworks.shell.text import strip_unknown, unknown_names

SUFFIXES = (".sh", ".slurm", ".yaml", ".yml", ".json", ".toml", ".py", ".log", ".txt")
SCRIPTS = (".sh", ".slurm")
EXECUTING = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "pickle.find_class")
"""Audit events of Python that an import must not raise."""

ENTRIES = ("cluster.device=h100-80gb-sxm", "cluster.num_devices=512")
SIGNS = (*"\"'`$(){}[]<>|&;\\#= \n\t*", "\u00e9", "\x00", "$(touch made)", "${X", "--", "9" * 20)

NOTING = r"""
note() { printf '%s\0' "$@" >>"$OUT"; printf '\n\0' >>"$OUT"; }
command_not_found_handle() { note "$@"; }
inside() { while [ $# -gt 1 ]; do case $1 in -*c) (eval "$2"); return;; esac; shift; done; }
for one in srun mpirun sbatch bash sh; do eval "$one() { note $one \"\$@\"; inside \"\$@\"; }"; done
for one in exit exec cd pwd set umask trap kill ulimit enable command builtin; do eval "$one() { :; }"; done
"""
"""What every script begins with: programs that note their words, and a shell inside that is read in a subshell."""


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


def words_of_bash(text: str, folder: Path) -> Iterator[list[str]]:
    """Yield the commands that Bash starts; none where it does not read the text to its end."""
    out = folder / "out"
    out.unlink(missing_ok=True)
    plain = re.sub(r"(&?>>?(?!\()|2>&1 *\|) *[^\s\"';&|)]+( *\$\{?\w+\}?)*", " ", text)
    environment = {"PATH": "/nonexistent", "OUT": str(out), **slurm_variables(text)}
    shell = [str(shutil.which("bash")), "--norc", "-c", f"{NOTING}{plain}"]
    subprocess.run(shell, env=environment, cwd=folder, check=False, timeout=20, capture_output=True)
    for call in out.read_text(errors="replace").split("\n\0")[:-1] if out.exists() else []:
        yield call.split("\0")[:-1]


def difference(text: str, folder: Path) -> str:
    """Return what a script's launch says otherwise than in Bash; empty: nothing, or Bash starts no such program."""
    launch = find_launch(follow(text, slurm_variables(text)), text)
    if launch is None or launch.kind != "megatron" or "\x00" in text:
        return ""
    ours = _decided([strip_unknown(word) for word in launch.words if strip_unknown(word) or not unknown_names(word)])
    theirs = [
        call[place + 1 :]
        for call in words_of_bash(text, folder)
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


def run(folder: Path, number: int, *, seed: int = 52, bash: bool = False) -> int:
    """Import mutated files, and print what became of them; 1 where one is wrong."""
    files = [path for path in sorted(folder.rglob("*")) if path.suffix in SUFFIXES and path.name != "expected.csv"]
    chance, events, counts, faults = random.Random(seed), list[str](), Counter[str](), list[str]()
    watching = [False]
    sys.addaudithook(lambda event, _: events.append(event) if watching[0] and event in EXECUTING else None)
    with TemporaryDirectory() as made:
        for _ in range(number):
            path = chance.choice(files)
            text = mutated(path.read_text(errors="replace"), chance)
            copy = Path(made) / f"input{path.suffix if path.suffix not in SCRIPTS else '.sh'}"
            copy.write_text(text)
            watching[0] = True
            try:
                import_job(copy, ENTRIES)
                became = "imported"
            except SpecError:
                became = "refused"
            except Exception as error:
                became = "traceback"
                faults.append(f"{path.name}: {type(error).__name__}: {error}")
            finally:
                watching[0] = False
            if events:
                faults.append(f"{path.name}: executes ({events.pop()})")
                events.clear()
            if bash and became == "imported" and path.suffix in SCRIPTS and (found := difference(text, Path(made))):
                became = "otherwise than Bash"
                faults.append(f"{path.name}: {found}")
                keep = os.environ.get("KEEP_MUTATIONS")
                if keep:
                    (Path(keep) / f"{len(faults)}.sh").write_text(text)
            counts[became] += 1
    print(", ".join(f"{name}: {count}" for name, count in counts.most_common()))
    for fault in faults[:50]:
        print(f"  {fault[:300]}")
    return int(bool(faults))
