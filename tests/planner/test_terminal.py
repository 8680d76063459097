"""What a terminal shows: any width, colour only there, a short answer, messages, completion."""

import json
import logging
import os
import pty
import re
import shlex
import subprocess
import sys
from dataclasses import replace

import pytest

from costmodel import catalog
from costmodel.events import log_event, log_progress
from costmodel.strategy import DECISIONS, DEGREES
from planner import cli
from planner.cli.output import Watch, progress
from planner.jobs.problem import load
from planner.report import record_of, render
from planner.report.console import sections_text, table_text
from planner.report.section import Asked, Screen, Section
from planner.report.sections import all_sections
from planner.report.short import short_sections
from planner.verbs.plan import estimate, plan
from tests.cases import in_one_case
from tests.planner.test_job import JOBS, a_job
from tests.planner.test_report import COPIED, planned

SMALL = str(JOBS / "llama3-8b-8xh100.yaml")
LARGE = str(JOBS / "llama3-405b-2048xh100.yaml")
ONE_LINE = ["llama3-8b", "8xh100", "--batch", "128", "--sequence", "8k", "--tokens", "1T"]

ESCAPE = re.compile(r"\x1b\[[0-9;]*m")

MOST_LINES = 38
"""Of a short answer at 100 columns: some thirty where nothing has to be said besides."""


@pytest.fixture(scope="module")
def reports():
    """Plans, an estimate that rules forbid, and a job that nothing fits."""
    found = {name: planned(name) for name in ("plans", "infeasible")}
    given = {"tp": 16, "pp": 2, "recompute": "full"}
    return {**found, "estimate": estimate(found["plans"].problem, given, searched=False)}


def run(*arguments, **environment):
    """The planner in a process of its own, without a terminal."""
    return subprocess.run(
        [sys.executable, "-m", "planner", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def on_terminal(*arguments, **environment):
    """What the planner writes to a terminal."""
    reader, writer = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "planner", *arguments],
        env={**os.environ, "TERM": "xterm-256color", **environment},
        stdout=writer,
        stderr=subprocess.DEVNULL,
    ):
        os.close(writer)
        parts = []
        try:
            while part := os.read(reader, 4096):
                parts.append(part)
        except OSError:  # how Linux says that nobody writes any more
            pass
    os.close(reader)
    return b"".join(parts).decode().replace("\r\n", "\n")


# --- width -------------------------------------------------------------------------------------------------


@pytest.mark.sampled(1)
@pytest.mark.parametrize("width", [40, 80, 140])
@pytest.mark.parametrize("kind", ["plans", "estimate", "infeasible"])
def test_no_line_is_wider_than_the_screen_and_no_word_is_lost(reports, kind, width):
    """
    Lines are folded and tables split; every word is still there, whole unless it is wider than half the screen.

    A strategy to copy stays on one line, which a terminal folds itself.
    """
    wide, text = (render(reports[kind], screen=Screen(width=one)) for one in (1000, width))
    words = {word for word in wide.split() if len(word) <= width / 2 and set(word) != {"-"}}

    assert max(len(line) for line in text.splitlines() if not COPIED.match(line)) <= width
    assert words <= set(text.split())


def test_a_table_that_is_too_wide_is_split_behind_its_first_column():
    """Ten columns of eight and gaps of two are 98 wide: two tables of 48 and 58 with the first column in both."""
    header = tuple(f"column-{number}" for number in range(10))
    row = tuple(f"{number}.5" for number in range(10))

    first, second = table_text(header, [row], Screen(width=60)).split("\n\n")

    assert [part.splitlines()[0].split() for part in (first, second)] in (
        [list(header[:5]), [header[0], *header[5:]]],
        [list(header[:6]), [header[0], *header[6:]]],
    )
    assert table_text(header, [row], Screen(width=98)).count("\n") == 2


def test_words_are_folded_before_a_table_is_split():
    """A column of numbers keeps its width, one of words gives way."""
    text = table_text(("#", "what", "s"), [("1", "a sentence of many words " * 3, "1.5")], Screen(width=40))

    assert [line[-3:] for line in text.splitlines()[:2]] == ["  s", "1.5"]
    assert max(map(len, text.splitlines())) <= 40
    assert " ".join(text.split()).count("sentence") == 3


def test_commands_to_copy_stay_on_one_line():
    """However narrow the screen: a terminal folds them itself, and copies them whole."""
    command = "planner plan " + "key=value " * 20
    text = sections_text([Section(title="Next", rows=(("a", command),), is_verbatim=True)], Screen(width=60))

    assert f"a  {command}".rstrip() in text.splitlines()


# --- colour ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["short", "table"])
@pytest.mark.slow
def test_colour_says_nothing_that_words_do_not_say(reports, form):
    """Without its escapes the coloured text is the plain one."""
    plain, colored = (render(reports["plans"], form, screen=Screen(has_color=one)) for one in (False, True))

    assert "\x1b[" not in plain
    assert "\x1b[1m" in colored
    bare = [line.rstrip() for line in ESCAPE.sub("", colored).splitlines()]
    assert bare == plain.splitlines()


@pytest.mark.slow
def test_a_terminal_has_colour_and_its_own_width():
    """``COLUMNS`` says how wide it is."""
    text = on_terminal("catalog", "models", "llama3-8b", COLUMNS="50", NO_COLOR="")

    assert "\x1b[" in text
    assert max(len(ESCAPE.sub("", line)) for line in text.splitlines()) <= 50


@pytest.mark.sampled(1)
@pytest.mark.parametrize("setting", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_a_terminal_without_colour(setting):
    """Asked for, or too simple; it still has its width."""
    text = on_terminal("catalog", "models", "llama3-8b", COLUMNS="50", **setting)

    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 50


@pytest.mark.slow
def test_a_pipe_is_plain_unless_colour_is_forced():
    """No escapes, whatever the width of the terminal around it."""
    piped, forced = (
        run("catalog", "models", "llama3-8b", COLUMNS="50", TERM="xterm", NO_COLOR="", FORCE_COLOR=force).stdout
        for force in ("", "1")
    )

    assert "\x1b" not in piped
    assert max(map(len, piped.splitlines())) > 50
    assert "\x1b[" in forced


@pytest.mark.slow
def test_another_encoding_is_no_crash():
    """What Latin-1 does not have is written as an escape."""
    found = run("catalog", "models", "llama3-8b", "--format", "json", PYTHONIOENCODING="latin-1")
    wrong = run("catalog", "models", "\u65e5\u672c", PYTHONIOENCODING="latin-1")

    assert (found.returncode, wrong.returncode) == (0, 2)
    assert "\\u65e5" in wrong.stderr
    assert "Traceback" not in wrong.stderr


# --- the short answer --------------------------------------------------------------------------------------


def test_the_short_answer_of_a_plan(capsys):
    """What people ask first, on one screen; the commands that go on from it have the words that were typed."""
    assert cli.main(["plan", *ONE_LINE, "top=2", "-q"]) == 0

    text = capsys.readouterr().out
    names = [line.split("  ")[0] for line in text.splitlines()]
    wanted = ["line", "step", "published", "memory", "training"]
    assert [name for name in names if name in wanted] == wanted
    assert "80% of measured steps: " in text
    assert "chance to fit" in text
    assert "cannot be told from plan 1" in text
    assert "Plan 1: " in text
    assert "in the cost model (model error" in " ".join(text.split())
    assert len(text.splitlines()) <= MOST_LINES
    assert f"planner plan {shlex.join(ONE_LINE)} top=2 --format table\n" in text
    assert f"planner explain {shlex.join([*ONE_LINE[:2], 'top=2', *ONE_LINE[2:]])}\n" in text
    assert f"planner plan {shlex.join(ONE_LINE)} top=2 --format json -o plan.json\n" in text
    assert not {"units", "money", "energy", "checkpoint"} & {*names}  # the same for every such job


@pytest.mark.slow
def test_the_next_commands_exist(capsys, tmp_path, monkeypatch):
    """Each is taken by the command line, and what launches the plan writes its files."""
    monkeypatch.chdir(tmp_path)
    cli.main(["plan", SMALL, "search.pin.tp=2", "search.target=megatron-lm", "-q"])
    out = capsys.readouterr().out
    found = [shlex.split(line[line.index("planner ") :])[1:] for line in out.splitlines() if "  planner " in line]

    assert len(found) == 5
    assert all(callable(cli._parse(words).run) for words in found)
    assert [word for word in found[1] if "=" in word] == ["search.pin.tp=2", "search.target=megatron-lm"]
    assert [cli.main(words) for words in found[3:]] == [0, 0]
    assert (tmp_path / "launch" / "job.sbatch").exists()


def test_options_of_the_output_are_not_repeated(capsys):
    """The next command says itself where it writes, and how."""
    cli.main(["estimate", SMALL, "-q", "tp=4", "--format=short"])

    text = capsys.readouterr().out
    assert f"planner estimate {SMALL} tp=4 --format table\n" in text
    assert f"planner explain {SMALL} tp=4\n" in text


def test_the_table_is_the_whole_report(capsys):
    """It names no next commands."""
    cli.main(["estimate", SMALL, "tp=4", "-q", "--format", "table"])

    text = capsys.readouterr().out
    assert "Conventions" in text
    assert "Next\n----" not in text


def test_the_short_answer_of_a_forbidden_strategy(reports):
    """The rules come right behind the strategy and what was completed of it; nothing is offered to launch it."""
    text = render(reports["estimate"], "short")
    names = [name for line in text.splitlines()[2:] if (name := line.split("  ")[0])]

    assert names[:5] == ["line", "completed", "forbidden", "left out", "step"]
    assert "search.preferences: false lets the search try them" in " ".join(text.split())
    assert "planner export" not in text
    assert "planner explain JOB.yaml" in text


def test_the_short_answer_where_nothing_fits(reports):
    """Why, what would help, and how to see all of it."""
    text = render(reports["infeasible"], "short", asked=Asked(command="planner plan big.yaml", job="big.yaml"))

    assert "infeasible: the closest strategy lacks" in text
    assert "No strategy satisfies all of these together" in text
    assert "Changes that would make the job feasible" in text
    assert "planner plan big.yaml --format table" in text
    assert "planner explain big.yaml" in text
    assert len(text.splitlines()) <= MOST_LINES


def test_the_short_answer_without_time(reports):
    """What was asked for took longer than it might."""
    late = replace(reports["infeasible"].outcome, conflict=None)
    text = render(replace(reports["infeasible"], outcome=late), "short")

    assert "none within the time limit" in text
    assert "--time-limit, now" in text


@pytest.mark.slow
def test_markdown_is_whole(reports):
    """It has the sections of the whole report."""
    titles = [section.title for section in all_sections(record_of(reports["plans"]))]

    assert all(f"# {title}\n" in render(reports["plans"], "markdown") for title in titles)


# --- messages ----------------------------------------------------------------------------------------------


def test_quiet_says_nothing_but_mistakes(capsys):
    """Neither progress nor notes."""
    assert cli.main(["plan", SMALL, "strategy.tp=8", "CP1", "-q", "-o", os.devnull]) == 0
    assert capsys.readouterr() == ("", "")

    assert cli.main(["plan", "nowhere.yaml", "--quiet"]) == 2
    assert "nowhere.yaml: no such file" in capsys.readouterr().err


def test_verbose_says_what_is_done_and_when(capsys):
    """In the order in which it is done, each with the seconds since the start."""
    cli.main(["plan", SMALL, "CP1", "-v", "-o", os.devnull])

    lines = re.findall(r"^planner: ([\d.]+) s: (.+)$", capsys.readouterr().err, flags=re.MULTILINE)
    events = " ".join(event for _, event in lines)
    assert re.search(r"job read .*search begins .*space built .*search ended .*CP-SAT checks the answer", events)
    assert [float(second) for second, _ in lines] == sorted(float(second) for second, _ in lines)


def test_messages_as_json(capsys):
    """One object a line, mistakes with their places; notes and what is done, too."""
    cli.main(["plan", SMALL, "strategy.tp=8", "CP1", "--log-json", "-o", os.devnull])
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]

    assert all(list(line) == ["time", "level", "event", "fields"] for line in lines)
    assert {"info", "notice"} == {line["level"] for line in lines}
    [ended] = [line["fields"] for line in lines if line["event"] == "search ended"]
    assert (ended["status"], ended["plans"]) == ("optimal", 3)

    cli.main(["plan", SMALL, "training.toks=1", "--log-json"])
    [wrong] = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert wrong["level"] == "error"
    assert wrong["fields"]["mistakes"][0]["where"] == "training.toks"


def test_the_short_answer_tells_plans_of_the_same_degrees_apart():
    """Two of three plans have all degrees in common: the decisions that differ have columns of their own."""
    report = plan(load(SMALL, ["variants=all"]))
    [section] = [one for one in short_sections(report) if one.title == "Plans"]
    degrees = [tuple(getattr(each.strategy, name) for name in DEGREES) for each in report.plans]
    own = [section.header.index(name) for name in DECISIONS if name in section.header]

    assert len({*degrees}) < len(report.plans)
    assert len({tuple(row[index] for index in own) for row in section.rows}) == len(report.plans)


@pytest.mark.parametrize("override", ["training.sequence_length=8 k", "search.pin.mbs=2 k"])
def test_what_to_write_is_a_field_of_its_own(override, capsys):
    """As for misspelt names: a program that shows it need not take sentences apart."""
    cli.main(["plan", SMALL, override, "--log-json"])

    [line] = [json.loads(line) for line in capsys.readouterr().err.splitlines() if '"error"' in line]
    [mistake] = line["fields"]["mistakes"]
    name, _, value = override.partition("=")
    assert (mistake["where"], mistake["hint"]) == (name, f"Write {value.replace(' ', '')}.")
    assert line["event"] == f"{name}: {mistake['problem']} {mistake['hint']}"


@pytest.mark.parametrize(
    ("words", "where", "hint"),
    [
        (["--format", "jsn"], "argument --format", "Did you mean 'json'?"),
        (["--fromat=json"], "arguments", "Did you mean '--format'?"),
        (["--format", "yaml"], "argument --format", ""),
    ],
)
def test_wrong_arguments_are_mistakes_too(words, where, hint, capsys):
    """Where and hint as of entries."""
    assert cli.main(["plan", SMALL, *words, "--log-json"]) == 2

    [mistake] = json.loads(capsys.readouterr().err)["fields"]["mistakes"]
    assert (mistake["where"], mistake["hint"]) == (where, hint)


def test_wrong_arguments_are_json_too(capsys):
    """Messages of argparse are like others; of quiet and verbose one is meant."""
    assert cli.main(["plan", "--log-json", "--no-such-option", SMALL]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "unrecognized arguments: --no-such-option" in json.loads(line)["event"]
    assert cli.main(["catalog", "models", "llama3-8b", "-q", "-v"]) == 2
    assert "not allowed with argument" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["catalog", "aliases"], ["trace", "read", "none.json"]], ids=" ".join)
def test_every_command_takes_them(words, capsys):
    """At any place, in commands inside a command, too."""
    codes = {cli.main([*words[:at], "--log-json", "-v", *words[at:]]) for at in range(len(words) + 1)}
    assert len(codes) == 1
    assert "unrecognized" not in capsys.readouterr().err
    assert cli.main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(option in text for option in ("--verbose", "--quiet", "--log-json"))


def test_libraries_say_nothing_by_themselves(capsys):
    """Who imports the planner hears of it only by listening."""
    before = logging.getLogger("planner").level
    cli.main(["catalog", "models", "llama3-8b", "-v", "-o", os.devnull])
    capsys.readouterr()

    plan(load(a_job(cluster__num_devices=8)))

    assert capsys.readouterr() == ("", "")
    assert logging.getLogger("planner").level == before
    assert [type(one).__name__ for one in logging.getLogger("planner").handlers] == ["NullHandler"]


# --- progress ----------------------------------------------------------------------------------------------


def watched(*records, seconds):
    """What is shown after some records, each a second after the one before."""
    clock = iter([0.0, *map(float, range(1, len(records) + 1)), seconds])
    watch = Watch("planning", clock=lambda: next(clock))
    logger = logging.getLogger("planner.test")
    logger.addHandler(watch)
    logger.setLevel(logging.DEBUG)
    for record in records:
        record("planner.test")
    logger.removeHandler(watch)
    return watch.text()


def test_progress_says_how_much_time_is_left():
    """A quarter done in the 3 s of its stage, so that 9 s are left; a search has a limit instead."""
    counted = watched(lambda name: log_progress(name, "fits", 2, 8), seconds=4.0)
    limited = watched(
        lambda name: log_event(name, "begins", time_limit_seconds=60.0),
        lambda name: log_event(name, "searching", best_seconds=37.5, gap=0.02),
        seconds=12.0,
    )
    late = watched(lambda name: log_event(name, "begins", time_limit_seconds=10.0), seconds=12.0)

    assert counted == "4 s; fits: 2 of 8, 9 s left (planning)"
    assert limited == (
        "12 s, at most 48 s left; searching: best step 37.500 s, at most 2.0% above the optimum (planning)"
    )
    assert late == "12 s; begins (planning)"


@in_one_case(
    ("doing", "fields", "words"),
    [
        ("searching", {"bound_seconds": 6.29416, "rows": 0}, "searching: nothing below 6.294 s so far"),
        ("space built", {"strategies": 12345, "rows": 678}, "space built: 12,345 strategies"),
        ("uneven stages are looked for", {"even_groups": 5}, "uneven stages are looked for"),
        ("checked", {"below_seconds": 6.29416}, "checked: is any step below 6.294 s?"),
        ("reading", {"files": 3}, "reading: files 3"),
    ],
)
def test_progress_speaks_in_words_not_in_fields(doing, fields, words):
    """What the search calls its bound, and how many rows its space has, say nothing to who waits."""
    assert watched(lambda name: log_event(name, doing, **fields), seconds=2.0) == f"2 s; {words} (planning)"


def test_progress_leaves_no_listener():
    """Whatever happens meanwhile."""
    with pytest.raises(KeyboardInterrupt), progress("planning"):
        raise KeyboardInterrupt

    assert not any(isinstance(one, Watch) for one in logging.getLogger("planner").handlers)


@pytest.mark.slow
def test_ctrl_c_after_the_solver_ran_ends_with_a_message():
    """CP-SAT's own handler would stay behind and end the process without a word."""
    program = (
        "import os, signal, sys; from planner import cli, load, plan, report; "
        "signal.signal(signal.SIGINT, signal.default_int_handler); "  # a background job has it ignored
        f"plan(load({SMALL!r})); report.render = lambda *_, **__: os.kill(os.getpid(), signal.SIGINT); "
        f"sys.exit(cli.main(['plan', {SMALL!r}, '-q']))"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert (found.returncode, found.stdout, found.stderr) == (130, "", "planner: interrupted.\n")


# --- completion --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    """The script for bash."""
    path = tmp_path_factory.mktemp("completion") / "planner"
    path.write_text(run("--completion", "bash").stdout)
    return path


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("planner pl", {"plan"}),
        ("planner trace re", {"read", "replay"}),
        ("planner plan --form", {"--format"}),
        ("planner plan --format ht", {"html"}),
        ("planner plan llama3-4", {"llama3-405b"}),
        ("planner plan llama3-8b 64x8xh20", {"64x8xh20", "64x8xh200"}),
        ("planner plan job.yaml cluster.device = h200", {"h200"}),
        ("planner export plan.json --target mega", {"megatron-lm", "megatron-bridge"}),
        ("planner export plan.json --target megatron-lm --launch s", {"slurm"}),
        ("planner catalog mixt", {"mixtral-8x7b", "mixtral-8x22b"}),
        ("planner export plan.js", {"plan.json"}),
    ],
)
def test_bash_completes(script, typed, offered, tmp_path):
    """In a real bash, as it calls the script: the words before the cursor, the last one unfinished."""
    (tmp_path / "plan.json").touch()
    words = shlex.join(typed.split(" "))
    program = (
        f"source {script}; COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _shtab_planner 2>/dev/null; "
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )

    found = subprocess.run(["bash", "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)

    assert offered <= set(found.stdout.split())
    assert all(word.startswith(typed.split(" ")[-1]) for word in found.stdout.split())


def test_completion_of_another_shell(capsys):
    """zsh has functions of the same names, and every device; an unknown shell is refused with those that there are."""
    assert cli.main(["--completion", "zsh"]) == 0

    text = capsys.readouterr().out
    assert text.startswith("#compdef planner")
    assert all(name in text for name in catalog.devices())
    assert cli.main(["--completion", "csh"]) == 2
    assert "choose from 'bash', 'zsh'" in capsys.readouterr().err
