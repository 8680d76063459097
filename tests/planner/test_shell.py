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
from planner.frameworks.shell.words import strip_unknown, unknown_names, value_of, write_unknowns

BASH = shutil.which("bash")

SCRIPTS = {
    "variables": "A=1\nB=$A${A}2\nshow $B ${#B} \"$A $B\" '$A'",
    "defaults": "show ${X:-8} ${X-a b} ${X:+no} ${X:-${Y:-deep}}\nX=\nshow a${X:-1}b a${X-1}b ${X:=7} $X",
    "computed defaults": 'N=2\nshow ${Y:-$((N*4))} "${Y:-$(( N * 4 ))}" ${Y:=$(( (N+1) * $N ))} $Y ${Y:-$((9))}',
    "splitting": 'A="1  2 3"\nshow $A "$A" x$A"y z"$A',
    "arrays": 'A=(--x 1 "a b")\nA+=(--y)\nB=("${A[@]}" last)\nshow ${A[@]} "${B[@]}" ${#B[@]} "${A[*]}" ${A[1]}',
    "elements": 'A=("--fp8-format hybrid" "--amax max")\nA+=("--z")\nshow ${A[@]} "${A[@]}"',
    "appending": "A=x\nA+=' y'\nA+=z\nshow $A",
    "continued": "show --a 1 \\\n  --b 2 \\\n  --c # more\nshow end",
    "arithmetic": "N=8\nM=$((N*2+$N))\n((N += 3))\n((K = M / 5))\nshow $M $N $K $((M % 7)) $((-7 / 2)) $((1 << 4))",
    "comparison": "N=72\nif ((N % 72 == 0)) && [[ $N -ge 64 ]]; then show yes; else show no; fi",
    "tests": 'A=fp8\nif [ "$A" = "bf16" ]; then show 1; elif [[ $A == fp* && -n $A ]]; then show 2; else show 3; fi',
    "patterns": "A=bf16; [ $A = bf1* ] || show text; [[ $A = bf1* ]] && show pattern; [ $A != b* ] && show other",
    "negation": 'if [ ! -z "$A" ] || ! [ 1 -eq 1 ]; then show 1; else show 2; fi',
    "unset": 'if [ -z "${A:-}" ]; then A=1; fi\nif [[ $B -eq 1 ]]; then A=2; fi\nshow $A',
    "cases": 'for a in cs mx other; do case "$a" in cs | mx) show known $a ;; *) show none ;; esac; done',
    "letters": "A=FP8_Mx\nshow ${A,,} ${A^^} ${A:0:3} ${A:4} ${A%%_*} ${A#*_} ${A/8/16} ${A%x}",
    "functions": 'f() { show "$1" $#; A=$2; }\nf a b\nf "c d" e f\nshow $A $#',
    "loops": "for i in 1 2 3; do if [ $i = 2 ]; then continue; fi; show $i; done",
    "counting": "n=0\nwhile [ $n -lt 2 ]; do n=$((n+1)); done\nshow $n",
    "breaking": "for i in 1 2 3; do show $i; if [ $i = 2 ]; then break; fi; done",
    "arguments": "while [[ $# -gt 0 ]]; do case $1 in --x) X=$2; shift 2 ;; *) shift ;; esac; done\nshow ${X:-none}",
    "lists": "[ 1 = 1 ] && A=1\n[ 1 = 2 ] && A=2\n[ 1 = 2 ] || A=${A}3\n{ [ 1 = 2 ] || [ 2 = 2 ]; } && A+=4\nshow $A",
    "subshells": "A=1\n(A=2; show $A)\nshow $A",
    "inside": 'A=1\nCMD="show $A --b; show \'2 3\'"\nbash -c "$CMD"\neval show $A',
    "documents": "A=1\nbash <<EOF\nB=2\nshow $A \\$B\nEOF\nbash <<'EOF'\nC=3\nshow \"$C\"\nEOF",
    "environment": "A=1 show x\nexport B=2 C=3\nshow $B$C",
    "quotes": 'show "a\\"b" a\\ b $\'c\\td\' "\\$x" \'\' ""',
    "commands": "A=$(echo 4)\nshow $A `echo 5` $(expr 2 \\* 3)",
    "options in commands": 'A=`echo "--tp 2 --pp 4"`\nB=$(echo "--x  1" -n)\nshow $A $B'
    ' "$(echo -n -e "a\\tb")" "$(echo -nx)"',
    "blanks that begin a word": 'show a \\ --b 1 \\\tc\nA=(x \\ y)\nshow ${#A[@]} "${A[@]}"\n'
    "show --a \\ \\\n  --b \\  c",
    "arguments above nine": 'f() { show $10 ${10} "$12" x$1; }; f a b c d e f g h i j\nset -- x; show $1$12',
    "signs without a name": 'B=1\nshow a $ b c$ e$B$ "d$ $" \\\n  --f $\nshow $',
    "texts that are read": 'read -r -d "" C <<EOF\n1 2\n3\nEOF\nshow $C "$C"\nread A <<< " a b "; show "$A"\n'
    'IFS= read E <<< " e "; show "$E"; read -r F <<< ""; show "$F" end',
    "continued before the closing mark": 'A=" \\\n  --a ${X:-1} \\\n"\nB=" \\\n    "\nshow $A $B "$A"',
    "read again": "A=\"show --x '([0]*2+[1]*3)' 'a b' &> /dev/null\"\neval $A\neval ${A%&*}",
    "ends of a text": "A=a.sh.sh\nB=(x y=1)\nshow ${A/#a/b} ${A/%.sh/.py} ${A/#.sh/c} ${A//.sh/_} ${B[@]/#/-}",
    "a last line that goes on by nothing": "show a b \\\n\n",
    "names behind a slash": "A=1\nB=$A/x/z${A}/$A/tp$A-y\nC=k/$A/e\nshow $B $C",
    "assignments in one line": "if [ 1 = 2 ]; then A=1    B=2\nelif [ 1 = 1 ]; then A=3 B=4\nelse A=5\nfi\nshow $A $B",
    "operands that vanish": 'A=\n[ $A != x ] && show 1\n[ "$A" != x ] && show 2\n[[ $A != x ]] && show 3\n'
    "[ $A -eq 0 ] && show 4\n[[ $A -eq 0 ]] && show 5",
    "words behind redirections": "show a > /dev/null b c\nshow d 2>&1 e 2>/dev/null --f\n"
    "> /dev/null show g\nshow h &> /dev/null",
    "choices": "T=4\nA=$(( ($T > 1) ? 1 : 0 ))\nshow $A $(( T > 5 ? 1 : T > 3 ? 2 : 3 ))",
    "own variables": "f() { local TP=${1:-4}; local PP=2 N; N=7; K=5; g; show $TP $PP $N; }\ng() { show $TP; TP=9; }\n"
    "TP=2; PP=1; N=x; f 8; show $TP $PP $N $K",
    "own declarations": "f() { declare A=2; typeset B=2; declare -g C=2; export D=2; local -a L=(1 2); show $L $2; }\n"
    "A=1; B=1; C=1; D=1; L=z; f x; show $A $B $C $D $L",
    "shells of pipelines": "TP=2; echo 1 | while read x; do TP=16; show $TP; done\nTP=3 | cat\n"
    "{ TP=4; } & wait\nshow $TP\nTP=5 & wait; f() { TP=7; exit; }; f | cat; show $TP",
    "let": 'TP=4; let "TP = TP / 2"; show $TP; let TP+=3 K=TP*2; show $TP $K; let TP=0 || show zero',
    "loops that count": "TP=1; for ((i=0;i<2;i++)); do TP=$((TP*2)); done; show $TP $i\n"
    "for ((i=8, j=1; i>$TP && j; i/=2)) do show $i; done; for ((;;)); do break; done\n"
    "for i in $(seq 0 2 4); do show $i; done",
    "loops inside": "for i in 1 2; do for j in 1 2; do show $i $j; continue 2; done; done\n"
    "while true; do while :; do break 2; done; done",
    "numbers": "TP=4; N=9; show $TP $N $((2**7)) $((010)) $((0x1f))\n"
    "show $((2#101)) $((-7 % 3)) $((-2 ** 2))\n"
    "show $(( 6 & 3 | 8 ^ 1 )) $(( ~5 )) $((N++ + ++N)) $((N -= 2, N << 1))\n"
    "show $(( 0 && (N=99) )) $N $[1+2] $((5 > 3 ? N=1 : 7)) $N",
    "numbers of texts": "A=B+1; B=2; L=(4 5); i=1; show $((A*2)) $((L[i]+L[0])) $((${#A}+1)); ((B == 2)) && show yes\n"
    "[ 010 -eq 10 ] && show ten; [[ 010 -eq 8 ]] && show eight; [[ A -eq 3 ]] && show A; show $(expr 010 + 1)",
    "arrays anew": "declare -A M=([a]=1); M=([b]=2); M+=([c]=3); show ${M[b]} ${M[c]} ${#M[@]}\n"
    "f() { local A=(x); A+=(y); show ${A[@]}; }; A=(1 2); f; A+=3; show ${A[@]}; B=z; B+=(w); show ${B[@]} ${B[-1]}",
    "elements by number": "A=(1 2 3); i=1; A[i+1]=8; A[$((i+2))]=9; A[0]+=x; show ${A[@]} ${A[i]}\n"
    "show ${A[$i+1]} $((A[i+1]))\n"
    "declare -A M; M[a]=1; k=b; M[$k]=2; show ${M[a]} ${M[b]} ${#M[@]}\n"
    "declare -A T=([a]=1); k=a; [[ -v T[$k] ]] && show yes; [[ -v T[c] ]] || show no; [[ -v T ]] || show none",
    "pieces": "A=abcdef; i=2; show ${A:i:2} ${A:1:-1} ${A: -2:2}; f() { show ${@:2} - ${@:2:1}; }; f a b c",
    "variables of one command": "A=1; A=2 show $A; B=$A A=3 bash -c 'show $A $B'; show $A\n"
    "env A=4 C=5,6 bash -c 'show $A $C'; show $A",
    "text": 'O=" \\\n  --a 1 \\\n  --b ${X:-2} "\nO="${O} --c"\nshow ${O}',
}
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

    assert [write_unknowns(word) for word in words] == ["run", "--nodes", "$NODES", "--x", "$(nproc)", "$Bc"]
    assert unknown_names(words[2]) == ["NODES"]
    assert strip_unknown(words[5]) == "c"
    assert [*script.variables.uses["B"]] == [2, 3]


def test_what_is_not_known_stays_one_name_in_a_shell_inside():
    """Blanks and signs of a command's name mean nothing to the shell that reads the words again."""
    script = follow('A=`pwd`\nB=$(cat "a b" | head)\nbash -c "eval run $A/x $B $C"')

    words = next(command.words for command in script.commands if command.words[0] == "run")

    assert [write_unknowns(word) for word in words] == ["run", "`pwd`/x", '$(cat "a b" | head)', "$C"]
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


@pytest.mark.parametrize(
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


@pytest.mark.parametrize(
    ("text", "value"),
    [("08 + 1", None), ("010 + 1", 9), ("1 && 0 || 1", 1), ("!3", 0), ("1/0", None), ("2**8", 256), ("", 0)],
)
def test_arithmetic_is_that_of_whole_numbers(text, value):
    """None where it is none."""
    assert value_of(text) == value


@pytest.mark.parametrize(
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

    assert [write_unknowns(word) for word in script.commands[-1].words] == ["run", "$TP", "1"]
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

    assert [write_unknowns(word) for word in script.commands[-1].words] == ["run", "A[$I]=3", "${!B}", "L[4]=2"]
    assert script.variables.holder("A[$I]=3") == "A"


def test_a_quotation_mark_that_is_not_closed_is_refused_with_its_line():
    """Bash reads no line of such a script."""
    with pytest.raises(SpecError, match=r"script, line 2: is no Bash that is read here: '\"--tp"):
        follow('TP=2\nOPTS="--tp $TP\nrun $OPTS\n')


def test_what_printf_makes_is_not_known():
    """No published script makes a value of an option by it; it is asked for by its name."""
    script = follow("printf -v A '%d' 4\nB=$(printf '%02d' 7)\nrun $A $B")

    assert [write_unknowns(word) for word in script.commands[-1].words] == ["run", "$A", "$(printf '%02d' 7)"]
