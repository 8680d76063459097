"""The command line: what it parses, where it prints, how it ends."""

import argparse
import json
import re
import subprocess
import sys
from dataclasses import dataclass
from types import ModuleType

import pytest

import planner.report
from planner import cli
from planner.cli import output
from planner.cli.arguments import EXIT_BROKEN_PIPE
from planner.cli.plan import UNUSED_STRATEGY
from planner.jobs.problem import load
from tests.cases import in_one_case, read_table
from tests.planner.test_job import JOB_TEXT, JOBS

CASES = read_table("cli")

HEAVY = ("numpy", "pandas", "pydantic", "ortools", "rich", "shtab", "yaml")


@dataclass
class FakeReport:
    """What ``plan`` and ``estimate`` hand to ``render``."""

    problem: object
    decisions: object = None
    exit_code: int = 0


@pytest.fixture
def verbs(monkeypatch):
    """Replace the verbs behind the commands; the list receives what they were called with."""
    calls = []
    module = ModuleType("planner.verbs.plan")

    def run(problem, decisions=None):
        calls.append(FakeReport(problem, decisions, exit_code=3))
        return calls[-1]

    module.plan = module.estimate = run
    monkeypatch.setitem(sys.modules, "planner.verbs.plan", module)
    monkeypatch.setattr(planner.report, "render", lambda report, form, **_: f"report as {form}", raising=False)
    return calls


@pytest.fixture
def job(tmp_path):
    """A valid job file."""
    path = tmp_path / "job.yaml"
    path.write_text(JOB_TEXT)
    return path


# --- start and help -------------------------------------------------------------------------------------------


def test_help_imports_nothing_heavy():
    """Measured in modules, not in seconds: ``planner --help`` must answer within 0.3 s of CPU."""
    program = (
        "import sys; from planner.cli import main\n"
        "for words in (['--help'], ['plan', '--help'], ['--version'], ['plan']): main(words)\n"
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )

    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert result.stdout.splitlines()[-1] == "[]"


def test_help_names_every_command_and_exit_code(capsys):
    """The first thing that a newcomer reads; codes of a command's own help and of signals are among them."""
    assert cli.main(["--help"]) == 0

    shown = capsys.readouterr().out
    named = {int(code) for code in CODE.findall(shown)}
    own = {int(code) for parser in list(parsers(cli._parser()))[1:] for code in CODE.findall(parser.epilog or "")}
    assert all(word in shown for word in ("plan", "estimate", "model", "catalog", "0    a plan", "3    the time limit"))
    assert named == {*range(5), 130, 141, 143}
    assert own == named - {EXIT_BROKEN_PIPE}


CODE = re.compile(r"^  (\d+)  ", flags=re.MULTILINE)


def parsers(parser):
    """A parser and those of its commands."""
    yield parser
    for action in parser._actions:
        for inner in action.choices.values() if isinstance(action, argparse._SubParsersAction) else ():
            yield from parsers(inner)


def test_no_command_prints_the_help(capsys):
    """Nothing was asked, nothing is wrong."""
    assert cli.main([]) == 0
    assert "usage: planner" in capsys.readouterr().out


@pytest.mark.parametrize(("arguments", "message"), CASES["arguments"])
def test_wrong_arguments_end_with_2(arguments, message, verbs, capsys, job, monkeypatch):
    """Wrong input is wrong input, whoever notices."""
    monkeypatch.chdir(job.parent)

    assert cli.main(arguments) == 2
    assert message in capsys.readouterr().err


# --- commands -------------------------------------------------------------------------------------------------


def options_of(parser):
    """Options of a parser by their longest spelling, those of commands inside it included."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from options_of(inner)
        elif action.option_strings and not isinstance(action, argparse._HelpAction):
            yield max(action.option_strings, key=len)


def test_commands_and_options_are_few():
    """
    14 commands and 110 options at most: those that every command takes count once, ``-h`` does not.

    An option that several commands of ``trace`` take counts once, too; counted in each of them there are twelve more.
    """
    parser = cli._parser()
    commands = next(one.choices for one in parser._actions if isinstance(one, argparse._SubParsersAction))
    own = [max(one.option_strings, key=len) for one in parser._actions if one.option_strings]
    pairs = {(name, option) for name, command in commands.items() for option in options_of(command)}

    assert commands.keys() == cli.COMMANDS.keys()
    assert len(commands) <= 14
    assert len(pairs) + len(own) - 1 <= 110


@in_one_case(("word", "words"), [one for one in cli.OTHER_WORDS.items() if not one[0].startswith("-")])
def test_another_word_for_a_command_says_what_to_write(word, words, capsys):
    """One message, exit code 2; what to write is a command with options that exist."""
    assert cli.main([word, "job.yaml"]) == 2
    assert capsys.readouterr().err == f"planner: planner {word}: is no command. Write: planner {words}.\n"
    assert cli.main([*words.split(), "--help"]) == 0


@in_one_case(("word", "words"), [one for one in cli.OTHER_WORDS.items() if one[0].startswith("-")])
def test_an_option_for_an_entry_of_the_job_says_the_entry(word, words, capsys):
    """Another option of a similar name (``--tokens`` for ``--top``) answers another question; the entry exists."""
    assert cli.main(["plan", "job.yaml", word]) == 2
    shown = capsys.readouterr().err
    assert f"{word}. Write {words}.\n" in shown
    assert "Did you mean" not in shown
    key, _, value = words.partition("=")
    given = {"N": "3", "NAME": "megatron-lm"}.get(value, value)
    assert load(JOBS / "llama3-8b-8xh100.yaml", [f"{key}={given}"])


def test_a_plan_is_exported_once(capsys):
    """Two runs of the same name would be one row of the table and one folder."""
    arguments = ["export", "plan.json", "--target", "megatron-lm", "--number", "1,1", "--array", "-o", "out"]
    assert cli.main(arguments) == 2
    assert "--number: '1,1' names a plan twice. Name each once." in capsys.readouterr().err


@pytest.mark.parametrize("limit", ["0", "-3"])
def test_a_page_without_time_is_refused(limit, capsys):
    """A limit of 0 was silently the default, one below 0 was served."""
    pytest.importorskip("starlette", reason="pip install '.[serve]'")
    pytest.importorskip("uvicorn", reason="pip install '.[serve]'")
    assert cli.main(["serve", "--time-limit", limit, "--port", "99999"]) == 2
    assert f"--time-limit: must be more than 0, got {limit}." in capsys.readouterr().err


# --- plan and estimate ----------------------------------------------------------------------------------------


def test_plan_hands_the_job_to_the_verb(verbs, job, capsys):
    """Overrides may stand before and behind options; the report's own exit code is the command's."""
    arguments = ["plan", str(job), "top=2", "--format", "json", "search.pin.tp=8", "--time-limit", "7", "top=5"]

    assert cli.main(arguments) == 3

    [call] = verbs
    assert (call.problem.top, call.problem.search.pin, call.problem.search.time_limit_seconds) == (5, {"tp": 8}, 7)
    assert capsys.readouterr().out == "report as json\n"


@pytest.mark.parametrize("strategy", ["strategy.tp=8", "strategy={pp: 2, layout: {layers: [40, 40]}}"])
def test_plan_says_that_it_does_not_use_a_strategy(strategy, verbs, job, capsys):
    """Once, on stderr; what uses it says nothing."""
    assert cli.main(["plan", str(job), strategy]) == 3
    assert capsys.readouterr().err == f"planner: {UNUSED_STRATEGY}\n"

    cli.main(["plan", str(job), "search.pin.tp=8"])
    cli.main(["estimate", str(job), strategy])
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("words", "entry"),
    [
        ("tp=8 mbs=1", "strategy.mbs=2"),
        ("TP8 DP1 MBS1 ZeRO1 graphs=none recompute=none overlap=none", "strategy.group=2"),
    ],
)
def test_a_decision_is_given_once(words, entry, verbs, job, capsys):
    """Words and entries give decisions; a whole line gives all of them, also those that it does not write."""
    assert cli.main(["estimate", str(job), *words.split(), entry]) == 2
    assert not verbs
    assert capsys.readouterr().err.endswith(f"is given twice, by {words} and {entry}; keep one.\n")


def test_entries_fill_decisions_that_words_leave_open(verbs, job):
    """Both reach the verb, which has the words count first."""
    cli.main(["estimate", str(job), "tp=8", "strategy.mbs=2"])

    [call] = verbs
    assert (call.decisions.decisions, call.problem.given.decisions) == ({"tp": 8}, {"mbs": 2})


def test_estimate_tells_decisions_from_overrides(verbs, job):
    """``tp=8`` is a decision, ``training.sequence_length=4096`` changes the job."""
    cli.main(["estimate", str(job), "tp=8", "training.sequence_length=4096", "recompute=full"])

    [call] = verbs
    assert call.decisions.decisions == {"tp": 8, "recompute": 2}
    assert call.problem.facts.workload.sequence_length == 4096


@pytest.mark.parametrize(("arguments", "message"), CASES["mistakes"])
def test_mistakes_are_one_message_and_2(arguments, message, verbs, job, capsys, monkeypatch):
    """No traceback, nothing on stdout, no file."""
    monkeypatch.chdir(job.parent)

    assert cli.main(arguments) == 2

    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert message in err
    assert [path.name for path in job.parent.iterdir()] == ["job.yaml"]


def test_output_file_is_written_whole(verbs, job, capsys):
    """The report is in the file, stdout stays empty, no draft is left behind."""
    target = job.parent / "plan.md"
    target.write_text("an older plan")

    cli.main(["plan", str(job), "--format", "markdown", "-o", str(target)])

    assert target.read_text() == "report as markdown\n"
    assert capsys.readouterr().out == ""
    assert {path.name for path in job.parent.iterdir()} == {"job.yaml", "plan.md"}


def test_output_may_be_a_device(verbs, job):
    """``/dev/null`` stays what it is."""
    assert cli.main(["plan", str(job), "-o", "/dev/null"]) == 3


def test_config_that_was_read_is_not_overwritten(verbs, capsys):
    """The model's file is an input like the job."""
    config = JOBS / "llama-3.1-405b" / "config.json"
    before = config.read_bytes()

    assert cli.main(["plan", str(JOBS / "llama3-405b-2048xh100.yaml"), "-o", str(config)]) == 2
    assert cli.main(["catalog", "models", str(config.parent), "-o", str(config)]) == 2
    assert config.read_bytes() == before


def test_interruption_ends_without_a_traceback(verbs, job, capsys, monkeypatch):
    """Ctrl-C in the middle of a search: 128 + SIGINT."""

    def interrupt(report, form, **_):
        raise KeyboardInterrupt

    monkeypatch.setattr(planner.report, "render", interrupt, raising=False)

    assert cli.main(["plan", str(job)]) == 130
    assert capsys.readouterr().err == "planner: interrupted.\n"


@pytest.mark.slow
def test_reader_that_leaves_ends_without_a_traceback():
    """``planner catalog --format json | head -1``."""
    command = f"{sys.executable} -m planner catalog --format json | head -1"

    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)

    assert result.stdout == "{\n"
    assert "Traceback" not in result.stderr
    assert "Exception" not in result.stderr


@pytest.mark.sampled(1)
@pytest.mark.parametrize("stderr", ["2>&-", "2>/dev/full", "-q 2>&-"])
def test_a_closed_stderr_loses_no_result(stderr):
    """As a daemon has it: the result is written whole, and the exit code is that of the command."""
    command = f"{sys.executable} -m planner catalog models llama3-8b --format json {stderr}"

    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)

    assert result.returncode == 0
    assert json.loads(result.stdout)["name"] == "llama3-8b"


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("arguments", "stdout", "reason"),
    [
        ("--version", ">&-", "it is closed"),
        ("catalog models llama3-8b", ">/dev/full", "No space left on device"),
        ("catalog schemas top", "<&- >&-", "it is closed"),
        ("--help", ">/dev/full", "No space left on device"),
        ("catalog models llama3-8b", ">&-", "it is closed"),
    ],
)
def test_a_result_that_cannot_be_written_is_one_sentence_and_2(arguments, stdout, reason):
    """A closed or full stdout, and no second complaint when the interpreter ends."""
    command = f"{sys.executable} -m planner {arguments} {stdout}"

    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)

    assert result.returncode == 2
    fix = "Send it elsewhere, such as > FILE."
    said = [line for line in result.stderr.splitlines() if not line.endswith(" ...")]
    assert said == [f"planner: standard output: cannot be written: {reason}. {fix}"]


def test_long_work_is_announced_on_stderr(capsys, monkeypatch):
    """One line in a log where a command takes longer than its reader's patience."""
    from time import sleep

    for module in (output, output):
        monkeypatch.setattr(module, "PATIENCE_SECONDS", 0.01)
    with output.progress("planning job.yaml"):
        sleep(0.2)

    assert capsys.readouterr() == ("", "planner: planning job.yaml ...\n")


# --- model and catalog ----------------------------------------------------------------------------------------


def test_model_prints_what_was_read(capsys):
    """405,853,388,800 parameters as Hugging Face counts them, all of them active."""
    assert cli.main(["catalog", "models", str(JOBS / "llama-3.1-405b"), "--format", "json"]) == 0

    model = json.loads(capsys.readouterr().out)
    assert (model["parameters"], model["active_parameters"], model["mtp_parameters"]) == (405853388800, 405853388800, 0)
    assert [(layer["num_layers"], layer["attention"]["num_kv_heads"]) for layer in model["layers"]] == [(126, 8)]


def test_model_flops_state_their_convention(capsys):
    """
    Causal attention needs half the scores.

    12 layers * heads * head_dim * s = 12 * 126 * 16384 * 8192 FLOPs per token for all scores.
    """
    flops = {}
    for convention in ("full", "causal"):
        entries = ["sequence_length=8192", f"attention={convention}"]
        cli.main(["catalog", "models", "llama3-405b", "--format", "json", *entries])
        flops[convention] = json.loads(capsys.readouterr().out)["flops_per_token"]

    assert flops["full"] - flops["causal"] == pytest.approx(12 * 126 * 16384 * 8192 / 2, rel=1e-3)


def test_model_as_text_shows_kinds_of_layers(capsys):
    """DeepSeek-V3: 3 dense layers, 58 with experts, one of multi-token prediction."""
    assert cli.main(["catalog", "models", str(JOBS / "deepseek-v3")]) == 0

    shown = capsys.readouterr().out
    assert "3 x LatentAttention" in shown
    assert "58 x LatentAttention" in shown
    assert "671,026,404,352" in shown


@in_one_case(("arguments", "message"), CASES["names"])
def test_wrong_names_end_with_2(arguments, message, capsys):
    """One message with the nearest name."""
    assert cli.main(arguments) == 2
    assert message in capsys.readouterr().err


def test_catalog_lists_everything_with_sources(capsys):
    """Every device, model and recipe has a source to print."""
    assert cli.main(["catalog", "--format", "json"]) == 0

    known = json.loads(capsys.readouterr().out)
    assert all(device["sources"] for device in known["devices"])
    assert all(entry["source"] for name in ("models", "precisions") for entry in known[name])


@pytest.mark.parametrize(
    "what", ["", *["devices", "models", "precisions", "megatron-bridge-25.11.01", "h100-80gb-sxm", "llama3-8b", "bf16"]]
)
def test_catalog_prints_text(what, capsys):
    """Lists as tables, one entry as lines."""
    assert cli.main(["catalog", *what.split()]) == 0
    assert capsys.readouterr().out.strip()


@pytest.mark.slow
def test_a_file_may_be_called_as_a_word_of_a_strategy(tmp_path, monkeypatch, capsys):
    """``tp2.yaml`` is a file for every command, also beside another; a word alone is no job."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tp2.yaml").write_text((JOBS / "llama3-8b-8xh100.yaml").read_text())
    (tmp_path / "zero1.yml").write_text((JOBS / "llama3-8b-8xh100.yaml").read_text())

    assert [cli.main([command, "tp2.yaml"]) for command in ("plan", "explain")] == [0, 0]
    assert cli.main(["explain", "tp2.yaml", "zero1.yml"]) == 0
    assert cli.main(["explain", "TP2"]) == 2
    assert "TP2: is no job file." in capsys.readouterr().err
