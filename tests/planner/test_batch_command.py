"""``planner batch`` and ``planner batch`` as their users meet them."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest

from planner import cli, load, plan
from planner.batch.run import Tally, progress_text
from planner.cli.output import Messages
from tests.cases import read_table
from tests.schemas import valid

CASES = read_table("batch_command")

ROOT = Path(__file__).parents[2]

JOB = """
model: llama3-8b
cluster: {device: h100-80gb-sxm, num_devices: 8}
training: {global_batch_size: 64, sequence_length: 4096, tokens: 1e9}
search: {stages: even, pin: {cp: 1, pp: 1, recompute: none}}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Work in an empty folder with one job."""
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(JOB)
    return tmp_path


def lines(path="results.jsonl"):
    """Lines of a results file by the name of their job, each as the schema has it."""
    found = [valid("batch-line", json.loads(line)) for line in Path(path).read_text().splitlines()]
    return {line["name"]: line for line in found}


# --- batch ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_batch_from_begin_to_end(capsys):
    """
    One line per job with what ``planner plan`` finds; again, nothing is left to do; then a ranking and a table.

    A first line that was cut is no obstacle; lines say the place of their job among those of their command, and flags
    are ``true`` and ``false`` in every CSV, as docs/json.md promises.
    """
    command = ["batch", "job.yaml", "-o", "results.jsonl", "--processes", "1", "top=2"]
    Path("results.jsonl").write_text('{"kind":"batch_res')

    assert cli.main([*command, "training.global_batch_size=64,128"]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert "the last line, 1, was cut short; its job counts as not planned." in err
    assert err.endswith("planner: results.jsonl: 2 of 2 jobs done.\n")

    line = lines()["job training.global_batch_size=128"]
    report = plan(load("job.yaml", ["training.global_batch_size=128", "top=2"]))
    assert (line["kind"], line["format_version"], line["status"]) == ("batch_result", 1, "optimal")
    assert line["overrides"] == {"training.global_batch_size": 128, "top": 2}
    assert [each["step_time_seconds"] for each in line["plans"]] == [each.step_seconds for each in report.plans]
    assert [each["strategy"]["tp"] for each in line["plans"]] == [each.strategy.tp for each in report.plans]
    assert line["plans"][0]["strategy"]["layout"] is None
    assert (line["framework"], line["framework_is_assumed"]) == (report.problem.facts.cluster.framework.name, True)
    assert "report" not in line

    before = Path("results.jsonl").read_bytes()
    assert cli.main([*command, "training.global_batch_size=96,64,128", "--table", "table.csv"]) == 0
    assert "3 of 3 jobs done, 2 of them before" in capsys.readouterr().err
    assert Path("results.jsonl").read_bytes().startswith(before)
    assert [one["index"] for one in lines().values()] in ([0, 1, 0], [1, 0, 0])
    rows = list(csv.DictReader(Path("table.csv").read_text().splitlines()))
    assert [(row["framework"], row["framework_is_assumed"]) for row in rows] == [(line["framework"], "true")] * 6
    assert {row["optimizer_offload"] for row in rows} == {"false"}

    assert cli.main(["batch", "results.jsonl", "--by", "tokens_per_second", "--top", "1", "--format", "json"]) == 0
    [best] = valid("top", json.loads(capsys.readouterr().out))
    assert best["plan"] == min(line["plans"], key=lambda each: each["step_time_seconds"])
    assert cli.main(["batch", "results.jsonl", "--format", "csv"]) == 0
    ranked = [*csv.DictReader(StringIO(capsys.readouterr().out))]
    assert {(row["framework_is_assumed"], row["optimizer_offload"]) for row in ranked} == {("true", "false")}


@pytest.mark.slow
def test_wrong_jobs_are_lines_and_the_rest_goes_on(folder, capsys):
    """
    A job without a plan, one that says nonsense and one that is no YAML have their message; the exit code is 1.

    No run on an MI300X was measured: the line, the ranking as text, JSON and CSV, and the table say so. A cloud's
    machine is one device with assumptions: the ranking names the ranks that they are of.
    """
    Path("jobs").mkdir()
    Path("jobs/good.yaml").write_text(JOB)
    Path("jobs/small.yaml").write_text(JOB.replace("llama3-8b", "llama3-405b"))
    Path("jobs/typo.yaml").write_text(JOB.replace("tokens", "tokns"))
    Path("jobs/torn.yaml").write_text("model: [")
    Path("jobs/amd.yaml").write_text(JOB.replace("h100-80gb-sxm", "mi300x"))
    Path("jobs/cloud.yaml").write_text(JOB.replace("h100-80gb-sxm", "a3-mega"))
    command = ["batch", "jobs", "-o", "results.jsonl"]

    assert cli.main([*command, "--processes", "1", "--full", "--table", "table.csv"]) == 1

    found = lines()
    assert {name: (line["status"], line["exit_code"]) for name, line in found.items()} == {
        "good": ("optimal", 0),
        "amd": ("optimal", 0),
        "cloud": ("optimal", 0),
        "small": ("infeasible", 1),
        "typo": ("wrong_input", 2),
        "torn": ("wrong_input", 2),
    }
    assert found["small"]["message"].startswith("No strategy satisfies all of these together: ")
    assert found["typo"]["message"].startswith("jobs/typo.yaml, line 4, column 65: training.tokns: no such entry")
    assert "is not YAML" in found["torn"]["message"]
    assert found["good"]["report"]["kind"] == "plan"
    assert found["good"]["report"]["job"]["name"] == "good"
    err = capsys.readouterr().err
    assert "6 of 6 jobs done; 3 without a plan" in err
    assert "why there is no plan is in the entry 'message' of results.jsonl; " in err

    assert cli.main(command) == 1
    err = capsys.readouterr().err
    assert "6 of 6 jobs done, 6 of them before; 3 without a plan" in err
    assert err.endswith("why there is no plan is in the entry 'message' of results.jsonl.\n")

    unseen, note = "no measured run on mi300x, nor on cdna3", found["cloud"]["device_note"]
    gaps = found["amd"]["plans"][0]["gaps"]
    assert unseen in [gap["sentence"] for gap in gaps]
    assert found["amd"]["framework_is_extrapolated"] is True
    text, ranked, table = (
        (cli.main(["batch", "results.jsonl", "--format", form]), capsys.readouterr().out)[1]
        for form in ("table", "json", "csv")
    )
    ranks = {line.split()[-2]: line.split()[0] for line in text.splitlines() if line.endswith(" *")}
    assert note
    assert f"* {ranks['cloud']}: {note}" in text.splitlines()
    assert f"* {ranks['amd']}: extrapolated: {unseen}" in text.splitlines()
    (entry,) = (one for one in valid("top", json.loads(ranked)) if one["name"] == "amd")
    assert entry["plan"]["gaps"] == gaps
    assert (entry["framework_is_extrapolated"], entry["device_note"]) == (True, None)
    for rows in (table, Path("table.csv").read_text()):
        assert {row["name"] for row in csv.DictReader(StringIO(rows)) if unseen in row["gaps"]} == {"amd"}


@pytest.mark.slow
def test_a_time_limit_and_another_attempt(capsys):
    """A job that is stopped has a line; ``--retry-failed`` plans it again, and nothing else does."""
    command = ["batch", "job.yaml", "-o", "results.jsonl", "--processes", "1"]

    assert cli.main([*command, "--timeout", "0.001"]) == 1
    assert lines()["job"]["status"] == "timed_out"
    assert cli.main(command) == 1
    assert lines()["job"]["status"] == "timed_out"
    assert cli.main([*command, "--retry-failed"]) == 0

    assert lines()["job"]["status"] == "optimal"
    assert "results.jsonl: 1 lines of jobs that were lost are taken away" in capsys.readouterr().err


@pytest.mark.slow
def test_what_json_cannot_write_is_no_end_of_a_batch(folder):
    """Infinite overrides, and names of files that are no text, are text in their lines."""
    odd = folder / "odd\udcff.yaml"
    odd.write_text(JOB.replace("llama3-8b", "nothing"))

    assert cli.main(["batch", str(odd), "-o", "results.jsonl", "training.tokens=.inf,.nan", "top=1e40"]) == 1

    found = list(map(json.loads, Path("results.jsonl").read_bytes().splitlines()))
    assert {line["overrides"]["training.tokens"] for line in found} == {"inf", "nan"}
    assert {line["source"] for line in found} == {str(odd)}
    assert {line["status"] for line in found} == {"wrong_input"}


@pytest.mark.parametrize(("arguments", "message"), CASES["mistakes"])
def test_mistakes_are_one_message_and_2(arguments, message, capsys):
    """No traceback, nothing planned, nothing overwritten."""
    Path("foreign.jsonl").write_text("hello\n")

    assert cli.main(arguments) == 2

    out, err = capsys.readouterr()
    assert message in err
    assert "Traceback" not in err
    assert out == ""
    assert Path("foreign.jsonl").read_text() == "hello\n"
    assert Path("job.yaml").read_text() == JOB


def test_a_ranking_of_a_file_that_is_being_written(capsys):
    """The last line is not there yet; it is left out, and somebody says so."""
    line = {"kind": "batch_result", "format_version": 1, "key": "00", "name": "a", "plans": []}
    Path("results.jsonl").write_text(json.dumps(line, separators=(",", ":")) + '\n{"kind":"batch_result","for')

    assert cli.main(["batch", "results.jsonl"]) == 1

    out, err = capsys.readouterr()
    assert out == "No job has a plan.\n"
    assert "the last line, 2, was cut short" in err


@pytest.mark.slow
def test_the_library_says_nothing_on_stdout():
    """A program that imports the planner has its stdout for itself."""
    program = "from planner import plan_many; print([result.status for result in plan_many(['job.yaml'], processes=1)])"

    finished = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )

    assert (finished.stdout, finished.stderr) == ("[<JobStatus.OPTIMAL: 'optimal'>]\n", "")


# --- progress -------------------------------------------------------------------------------------------------


class Terminal(StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        """It is."""
        return True


def shown(stream, seconds):
    """What is written where jobs end at these seconds."""
    clock = iter([0.0, *seconds])
    messages = Messages(stream, clock=lambda: next(clock))
    for number, second in enumerate(seconds, start=1):
        messages.show(progress_text(Tally(num_jobs=100, num_now=10 * number, num_without_plan=1), second))
    return stream.getvalue()


def test_progress_in_a_log_is_a_line_now_and_then():
    """The first after a second, the next after another half minute: 40 jobs in 70 s leave 60 for 105 s."""
    assert shown(StringIO(), [0.5, 5.0, 30.0, 70.0]) == (
        "planner: 20 of 100 jobs, 4.0 per second, 20 s left; 1 without a plan\n"
        "planner: 40 of 100 jobs, 34.3 per minute, 1 min 45 s left; 1 without a plan\n"
    )


def test_a_terminal_that_was_closed_stops_nobody():
    """Nor does a pipe that nobody reads."""

    class Closed(Terminal):
        def write(self, text):
            raise BrokenPipeError

    assert shown(Closed(), [1.0]) == ""


def test_progress_in_a_terminal_is_one_running_line():
    """Each writes over the one before, and not more often than one can read."""
    text = shown(Terminal(), [0.1, 0.15, 0.4])

    assert text.split("\r\x1b[K")[1:] == [
        "planner: 10 of 100 jobs, 100.0 per second, 1 s left; 1 without a plan",
        "planner: 30 of 100 jobs, 75.0 per second, 1 s left; 1 without a plan",
    ]
