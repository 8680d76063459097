"""Scripts put together at random from what launch scripts do, word for word against a real Bash."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from planner.frameworks.shell.script import follow
from tests.planner.test_shell import BASH, words_of_bash

NUM_SCRIPTS = 40
NAMES = ("TP", "PP", "OPTS", "ROOT", "run_cmd")
START = "TP=2; PP=; OPTS=--x; ROOT=/r; run_cmd=show; ARRAY=(1 '2 3')"
TEXTS = ("2", "a", "x/y", "--flag 3", "p q", "", "7B")


def a_word(chance: random.Random) -> str:
    """A word with or without quotation marks, text around a variable, operators."""
    name, text = chance.choice(NAMES), chance.choice(TEXTS)
    return chance.choice(
        (
            f"${name}",
            f'"${{{name}}}"',
            f"/data/${name}/tp${{{name}}}_x",
            f'"${name} {text}"',
            f"'{text}'",
            f"${{{name}:-{text or 'z'}}}",
            f"--opt=${{{name}}}",
            f"${{{name}%/*}}",
            f"{text or 'w'}".replace(" ", "_"),
            "$(( 3 > 2 ? 8 : 1 ))",
            r"a\ b",
            f"pre-${name}-post/$TP",
        )
    )


def an_assignment(chance: random.Random) -> str:
    """One variable, with the continuations of lists of options."""
    name = chance.choice(NAMES)
    first, second = a_word(chance), chance.choice(TEXTS)
    return chance.choice(
        (
            f"{name}={first}",
            f'{name}=" \\\n    --a {second} \\\n    --b ${{TP}} \\\n"',
            f'{name}="${{{name}}} \\\n  --c \\\n"',
            f"{name}+=' more'",
            f"PP=4    {name}={second or 'v'}".replace(" p q", " p"),
            f'ARRAY=(--d "{second}" ${{{name}}})',
            f"export {name}=$TP/$PP/{second or 'e'}".replace("p q", "pq"),
            f"{name}=$((1 + 2))",
        )
    ).replace("=--flag 3", "=flag")


def a_statement(chance: random.Random, depth: int = 0) -> str:
    """Assignments, calls, branches, loops, a second reading."""
    inner = a_statement(chance, depth + 1) if depth < 2 else an_assignment(chance)
    choices: tuple[Callable[[], str], ...] = (
        lambda: an_assignment(chance),
        lambda: an_assignment(chance),
        lambda: f"show {a_word(chance)} {a_word(chance)} {a_word(chance)}",
        lambda: f"show {a_word(chance)} \\\n  ${{ARRAY[@]}} {a_word(chance)}",
        lambda: (
            f'if [ "$TP" = {chance.choice(("2", "a"))} ]; then {inner}\nelif [[ $PP == 4 ]]; then {inner}\n'
            f"else {an_assignment(chance)}\nfi"
        ),
        lambda: f"case $TP in 2|a) {inner} ;; *) show other ;; esac",
        lambda: f"for one in 1 {chance.choice(TEXTS)}; do show $one; done",
        lambda: f"run_cmd=\"show {a_word(chance)} '([0]*3+[1]*5)' ${{OPTS}}\"\neval ${{run_cmd}}".replace('""', ""),
        lambda: "bash -c \"show $TP 'in one'\"",
        lambda: f"f() {{ show $1 $#; {inner}\n}}\nf {a_word(chance)} b",
        lambda: f"[ -z ${{PP}} ] && {an_assignment(chance)}",
    )
    return chance.choice(choices)()


@pytest.mark.skipif(BASH is None, reason="no bash to compare with")
def test_random_scripts_are_read_as_bash_reads_them(tmp_path):
    """A script that Bash runs to its end calls its programs with the same words."""
    chance = random.Random(52)
    compared = 0
    for number in range(NUM_SCRIPTS):
        middle = "\n".join(a_statement(chance) for _ in range(chance.randint(3, 9)))
        script = f"{START}\n{middle}\nshow end $TP ${{OPTS}}"
        folder = tmp_path / str(number)
        folder.mkdir()
        theirs = words_of_bash(script, folder)
        if theirs[-1:] and theirs[-1][:1] == ["end"]:
            compared += 1
            ours = [list(command.words[1:]) for command in follow(script).commands if command.words[0] == "show"]
            assert ours == theirs, script

    assert compared > NUM_SCRIPTS / 2
