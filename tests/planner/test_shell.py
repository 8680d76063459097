"""Shell scripts that are followed, against a real Bash, which runs the same scripts with programs that only print."""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from costmodel.errors import SpecError
from planner.frameworks.shell.script import follow
from planner.frameworks.shell.words import restore_variables, strip_unknown, unknown_names, value_of
from tests.cases import in_one_case, read_table

BASH = shutil.which("bash")

SCRIPTS = read_table("shell")["scripts"]
"""What launch scripts do; ``show`` prints its words."""

SHOW = '#!/bin/bash\nprintf "%s\\0" "$@" "\n" >>"$OUT"\n'


def words_of_bash(script: str, folder: Path) -> list[list[str]]:
    """What ``show`` is called with."""
    program = folder / "show"
    program.write_text(SHOW)
    program.chmod(0o755)
    out = folder / "out"
    out.touch()
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", "OUT": str(out)}
    subprocess.run([str(BASH), "-c", script], env=environment, cwd=folder, check=False, timeout=20, capture_output=True)
    calls = out.read_text().split("\n\0")[:-1]
    return [call.split("\0")[:-1] for call in calls]


@pytest.mark.skipif(BASH is None, reason="no bash to compare with")
@pytest.mark.parametrize("name", SCRIPTS)
def test_words_are_those_of_bash(name, tmp_path):
    """Word for word, empty ones included."""
    script = SCRIPTS[name]

    ours = [list(command.words[1:]) for command in follow(script).commands if command.words[0] == "show"]

    assert ours == words_of_bash(script, tmp_path)


def test_what_is_not_set_stands_by_its_name():
    """In words and in arithmetic, with the lines that use it."""
    script = follow("A=$((NODES * 8))\nrun --nodes $A --x $(nproc) ${B}c\nrun ${B}")

    words = script.commands[0].words

    assert [restore_variables(word) for word in words] == ["run", "--nodes", "$NODES", "--x", "$(nproc)", "$Bc"]
    assert unknown_names(words[2]) == ["NODES"]
    assert strip_unknown(words[5]) == "c"
    assert [*script.variables.uses["B"]] == [2, 3]


@in_one_case(("text", "word"), [("(( N = M * 2 ))\nrun $N", "$N"), ("A=abc\nrun ${A:$(nproc):2}", "$(nproc):2")])
def test_numbers_that_are_not_known_are_none(text, word):
    """A variable that such a number is assigned to keeps no older value."""
    assert restore_variables(follow(text).commands[-1].words[1]) == word


@in_one_case("expression", ["^'a'", "^$P", "(a|b)+$", "a*a*a*a*a*$", "[[:punct:]]", f"a{'b' * 200}"])
def test_a_regular_expression_that_is_not_read_leaves_its_condition_open(expression):
    """Its parts are quoted or variables, or its matching takes exponential time: one must say how it ends."""
    script = follow(f"P=a; if [[ ab =~ {expression} ]]; then run 1; fi")

    assert script.variables.decisions[1][1] == "--set line_1=true, or --set line_1=false"


def test_what_is_not_known_stays_one_name_in_a_shell_inside():
    """Blanks and signs of a command's name mean nothing to the shell that reads the words again."""
    script = follow('A=`pwd`\nB=$(cat "a b" | head)\nbash -c "eval run $A/x $B $C"')

    words = next(command.words for command in script.commands if command.words[0] == "run")

    assert [restore_variables(word) for word in words] == ["run", "`pwd`/x", '$(cat "a b" | head)', "$C"]
    assert unknown_names(words[2]) == ['$(cat "a b" | head)']


def test_what_is_given_wins():
    """Over the script's own value, but where the script changes the variable itself."""
    script = follow("N=1\nG=${G,,}\nO=a\nO+=b\nrun $N $G $O $1", {"N": "16", "G": "H100", "O": "c", "1": "/data"})

    assert script.commands[0].words == ("run", "16", "h100", "cb", "/data")


def test_branches_that_end_the_script_are_not_taken_unless_certain():
    """A file that may be missing does not stop an import; a value that the script refuses does."""
    text = 'if [ ! -d "$D" ]; then echo no; exit 1; fi\nmkdir x || exit 1\nrun'

    assert [command.words[0] for command in follow(text).commands] == ["mkdir", "run"]
    with pytest.raises(SpecError, match=r"script, line 1: ends with an error after it says 'no such thing'\."):
        follow('A=2; if [ $A != 1 ]; then echo "no such thing"; exit 1; fi')


def test_nothing_is_executed(tmp_path):
    """Neither commands nor what stands in words."""
    target = tmp_path / "made"

    follow(
        f"touch {target}\nA=$(touch {target})\neval touch {target}\nbash -c 'touch {target}'\n[ -f `touch {target}` ]"
    )

    assert not target.exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("while true; do x; done", "has loops of more than"),
        ("f() { f; }\nf", "inside each other, too deep"),
        ('A="eval \\$A"\neval $A', "inside each other, too deep"),
        ("x" * 1_000_001, "expected 1,000,000 at most"),
        ("A=$((" + "(" * 3000 + "1" + ")" * 3000 + "))", "inside each other, too deep"),
        ("A=ab\n" + "A=$A$A$A$A\n" * 20, r"script, line 10: makes a word of more than 131,072 letters"),
        ("A=" + "a" * 100_000 + "\n" + "B=$A\n" * 300, "or 20,000,000 of all together"),
    ],
)
def test_what_never_ends_is_refused(text, message):
    """By its number of statements, its depth or its size."""
    with pytest.raises(SpecError, match=message):
        follow(text)


@in_one_case(
    "text", ["((", "A=(", "if [", "${", "$((1/0))", "a=${b[c", "\x00", "case x in", "<<EOF", "run $((9**9**9))"]
)
def test_broken_scripts_are_refused_with_their_line_or_do_no_harm(text):
    """Bash would stop there, and what it would have read before is not the script."""
    with suppress(SpecError):
        assert not [command for command in follow(text).commands if command.words[0].endswith(".py")]


def test_what_is_no_bash_is_refused_with_its_line():
    """Bash stops at such a line: what stands before it is not what somebody runs."""
    with pytest.raises(SpecError, match=r"script, line 1: is no Bash that is read here"):
        follow("if [ $A = 1 then fi )\npython train.py")


def test_a_redirection_to_the_next_line_is_no_bash():
    """Bash says "unexpected token newline"; the parser takes the next line's first word as the file."""
    with pytest.raises(SpecError, match="line 1: redirects to nothing"):
        follow("show a >\nB=2\nshow $B")


def test_a_bad_substitution_is_no_bash():
    """Bash drops the command with it; the variable's value would be another word."""
    with pytest.raises(SpecError, match=r"line 2: is no Bash that is read here: '\$\{A\|\}'"):
        follow('A=1\nshow "--x ${A|}"')


def test_a_value_that_a_script_inside_lacks_has_the_line_that_starts_it():
    """Lines of the other file would be looked for in this one."""
    script = follow("A=1\n\nbash inner.sh\nrun $X", find=lambda name: "run $X" if name == "inner.sh" else None)

    assert [*script.variables.uses["X"]] == [3, 4]


def test_other_scripts_are_found_by_their_name():
    """Variables that a sourced one sets count; those that one that runs sets or is given do not."""
    others = {"common.sh": "A=1", "run.sh": "A=2\ntrain $A $1"}

    script = follow(
        ". $(dirname $0)/common.sh\nA=3 bash ./run.sh x\nshow $A", {}, lambda name: others.get(name.rsplit("/", 1)[-1])
    )

    assert [command.words for command in script.commands if command.words[0] != "bash"] == [
        ("train", "2", "x"),
        ("show", "1"),
    ]


@in_one_case(
    ("text", "value"),
    [("08 + 1", None), ("010 + 1", 9), ("1 && 0 || 1", 1), ("!3", 0), ("1/0", None), ("2**8", 256), ("", 0)],
)
def test_arithmetic_is_that_of_whole_numbers(text, value):
    """None where it is none."""
    assert value_of(text) == value


@in_one_case(
    "loop",
    [
        "while read x; do TP=16; done < f",
        'read TP N <<< "2 4"',
        "for f in $(ls); do TP=$((TP*2)); done",
        "N=$(nproc); for ((i=0;i<N;i++)); do TP+=0; done",
        "N=`nproc`; while [ $N -gt 1 ]; do TP=4; done",
    ],
)
def test_what_a_loop_without_a_known_count_changes_is_not_known(loop):
    """It stands by its name, with the line of the loop; what is given beside the script counts behind it."""
    script = follow(f"TP=2; PP=1\n{loop}\nrun $TP $PP")

    assert [restore_variables(word) for word in script.commands[-1].words] == ["run", "$TP", "1"]
    assert [*script.variables.uses["TP"]] == [2]
    assert follow(f"TP=2\n{loop}\nrun $TP", {"TP": "8"}).commands[-1].words == ("run", "8")


def test_names_that_stand_for_others_are_refused():
    """With their line: what they set is another variable."""
    with pytest.raises(SpecError, match=r"script, line 2: declare -n is not read here\."):
        follow("TP=1\ndeclare -n other=TP\nother=2")
    with pytest.raises(SpecError, match=r"script, line 1: declare -i is not read here\."):
        follow("declare -i TP=2+2")
    with pytest.raises(SpecError, match=r"script, line 2: sets A\[i\], which is not read here\."):
        follow("A=(1 2)\n((A[i]=7))")


@pytest.mark.parametrize("case", ["a) A=1 ;& b) B=2 ;;", "a) A=1 ;;& *) B=2 ;;", "+([a-c])) A=1 ;;"])
def test_cases_that_go_on_and_extended_patterns_are_refused(case):
    """With their line: another branch than the one that is read would count."""
    with pytest.raises(SpecError, match=r"script, line 2: .* of a case is not read here\."):
        follow(f"shopt -s extglob\ncase a in {case} esac")


def test_variables_by_names_that_are_not_known_are_noted():
    """As those of a file that is not found; names that the script says are set."""
    script = follow('for k in A B; do export $k=1; done\nexport $(grep x .env)\ndeclare "$N=2"\nrun $A $B')

    assert script.commands[-1].words == ("run", "1", "1")
    assert [note.partition(":")[0] for note in script.notes] == ["Line 2", "Line 3"]
    assert script.notes[0] == "Line 2: 'export $(grep x .env)' sets what is not known."


@pytest.mark.parametrize("front", ["env A=4 B=x", "mpirun -x A=4 -x B=x", "docker run -e A=4 -e B=x image"])
def test_variables_that_a_command_hands_over_count_in_the_script_that_it_starts(front):
    """Also those of Slurm; what is given beside the script wins, and the script outside keeps its own."""
    inner = "run ${A:-1} ${B:-1}"
    text = f"A=2\n{front} bash x.sh\nsbatch --export=ALL,A=8,B=y,z x.sh\nrun $A"

    words = [command.words for command in follow(text, find=lambda _: inner).commands if command.words[0] == "run"]

    assert words == [("run", "4", "x"), ("run", "8", "y,z"), ("run", "2")]
    given = follow(text, {"A": "16"}, find=lambda _: inner)
    assert [command.words[1] for command in given.commands if command.words[0] == "run"] == ["16", "16", "16"]


def test_indirections_and_elements_without_a_place_are_asked_for():
    """A variable that another one names, and an array with a hole or of which the place is not known."""
    script = follow("A=(1 2)\nA[$I]=3\nB=A\nL=(1)\nL[4]=2\nrun ${A[@]} ${!B} ${L[@]}")

    assert [restore_variables(word) for word in script.commands[-1].words] == ["run", "A[$I]=3", "${!B}", "L[4]=2"]
    assert script.variables.holder("A[$I]=3") == "A"


def test_a_quotation_mark_that_is_not_closed_is_refused_with_its_line():
    """Bash reads no line of such a script."""
    with pytest.raises(SpecError, match=r"script, line 2: is no Bash that is read here: '\"--tp"):
        follow('TP=2\nOPTS="--tp $TP\nrun $OPTS\n')


def test_what_printf_makes_is_not_known():
    """No published script makes a value of an option by it; it is asked for by its name."""
    script = follow("printf -v A '%d' 4\nB=$(printf '%02d' 7)\nrun $A $B")

    assert [restore_variables(word) for word in script.commands[-1].words] == ["run", "$A", "$(printf '%02d' 7)"]
