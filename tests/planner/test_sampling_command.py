"""``planner sample``: what it refuses, what it says, how it ends."""

from __future__ import annotations

import io
import json
import logging
import sys
from pathlib import Path

import pytest
import yaml

from costmodel.events import NOTICE
from planner.cli import main
from planner.cli.output import Messages
from planner.cli.sample import budget_seconds, summary_text
from planner.measure.sample.ranks import LostRankError
from planner.measure.sample.run import Counts
from planner.measure.sample.table import read_samples
from tests.builders_job import a_document
from tests.builders_samples import shorten_runs

MODEL = {
    **{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 256, "max_position_embeddings": 128},
    **{"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "num_key_value_heads": 2},
    **{"rms_norm_eps": 1e-5, "tie_word_embeddings": False, "hidden_act": "silu"},
}

JOB = a_document("config.json", "2xh100-80gb-sxm", batch=8, sequence=64, tokens=1e9)


@pytest.fixture
def table(tmp_path) -> Path:
    """Where the samples go."""
    return tmp_path / "samples.csv"


@pytest.fixture
def job(tmp_path) -> Path:
    """A small model by its ``config.json``, on two devices."""
    (tmp_path / "config.json").write_text(json.dumps(MODEL))
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(JOB))
    return tmp_path / "job.yaml"


def a_run(monkeypatch, outcome: object) -> list[dict]:
    """Instead of measuring: returns or raises the outcome; a list of what it was asked."""
    asked: list[dict] = []

    def sample_operators(path, problem, **options):
        asked.append({"path": path, "problem": problem, **options})
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    monkeypatch.setattr("planner.measure.sample.run.sample_operators", sample_operators)
    return asked


class TestRefusals:
    """Wrong input ends with 2 and a sentence, before anything is measured."""

    @pytest.mark.parametrize("text", ["", "0", "0min", "-5s", "10 days", "ten", "1e3s", "inf", "5m", "9" * 12])
    def test_a_budget_is_a_time(self, table, capsys, text):
        """With its unit, or in seconds."""
        assert main(["sample", f"--budget={text}", "-o", str(table)]) == 2
        assert "planner: --budget: expected " in capsys.readouterr().err
        assert not table.exists()

    def test_units_are_those_of_people(self):
        """Seconds, minutes, hours, nothing."""
        assert [budget_seconds(one) for one in ("90s", "2min", "1h", "45")] == [90, 120, 3600, 45]

    def test_without_torch_the_extra_is_named(self, table, capsys, monkeypatch):
        """What to install."""
        monkeypatch.setitem(sys.modules, "torch", None)

        assert main(["sample", "-o", str(table)]) == 2
        assert "pip install '.[sample]'" in capsys.readouterr().err

    def test_without_a_gpu_none_is_measured(self, table, capsys, monkeypatch):
        """Somebody who asks for one does not get the times of a CPU."""
        torch = pytest.importorskip("torch", reason="the extra 'sample' is not installed")
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

        assert main(["sample", "--device", "cuda", "-o", str(table)]) == 2
        assert "sees no GPU. Use cpu, or another torch." in capsys.readouterr().err
        assert not table.exists()

    def test_the_job_is_not_overwritten(self, job, capsys):
        """Nor anything else that it was read from."""
        assert main(["sample", "--for", str(job), "-o", str(job.parent / "config.json")]) == 2
        assert "is what this command reads" in capsys.readouterr().err

    def test_a_folder_that_is_not_there(self, tmp_path, capsys):
        """Not after ten minutes."""
        assert main(["sample", "-o", str(tmp_path / "no" / "samples.csv")]) == 2
        assert "there is no folder" in capsys.readouterr().err


class TestEnds:
    """Exit codes, and what is said."""

    def test_the_summary_counts_and_says_what_is_next(self, table, job, capsys, monkeypatch):
        """On stdout; the options reach the run."""
        skipped = {"the budget was over": 1200, "out of memory": 3}
        asked = a_run(monkeypatch, Counts(measured=312, known=24, skipped=skipped, seconds=600.4))
        words = ["--device", "cpu", "--dtype", "fp32", "--budget", "10min", "--ranks", "2"]

        assert main(["sample", "--for", str(job), *words, "-o", str(table)]) == 0

        assert capsys.readouterr().out.splitlines() == [
            f"{table}: 312 points measured in 600 s, 24 were there before.",
            "1,203 points have no time:",
            "  1,200  the budget was over",
            "      3  out of memory",
            f"Next: planner calibrate {table} -o my-cluster.yaml; the same command again measures on.",
        ]
        (one,) = asked
        assert one["problem"].facts.model.hidden_size == 64
        assert (one["device"], one["dtype"], one["budget_seconds"], one["ranks"]) == ("cpu", "fp32", 600, 2)

    def test_rare_reasons_are_counted_together(self):
        """The eight most frequent ones have a line each."""
        skipped = {f"takes {number} GiB": number for number in range(1, 12)}
        lines = summary_text(Counts(measured=1, known=0, skipped=skipped, seconds=1), "s.csv").splitlines()

        assert lines[2] == "     11  takes 11 GiB"
        assert lines[-2] == "      6  for 3 other reasons"

    def test_nothing_measured_is_no_success(self, table, capsys, monkeypatch):
        """And there is nothing to fit."""
        a_run(monkeypatch, Counts(measured=0, known=0, skipped={"out of memory": 5}, seconds=1))

        assert main(["sample", "-o", str(table)]) == 1
        assert "planner calibrate" not in capsys.readouterr().out

    @pytest.mark.parametrize(
        ("outcome", "code", "said"),
        [
            (KeyboardInterrupt(), 130, "run the same command again to go on"),
            (LostRankError(0, "Connection closed by peer"), 4, "rank 0 lost the others: Connection closed by peer."),
        ],
    )
    def test_what_was_measured_stays(self, table, capsys, monkeypatch, outcome, code, said):
        """Interrupted by a person, or by a process that was lost."""
        a_run(monkeypatch, outcome)

        assert main(["sample", "-o", str(table)]) == code
        assert said in capsys.readouterr().err

    def test_other_ranks_say_nothing(self, table, capsys, monkeypatch):
        """Of several processes the first one speaks."""
        a_run(monkeypatch, None)

        assert main(["sample", "-o", str(table)]) == 0
        assert capsys.readouterr() == ("", "")

    def test_a_real_run_for_a_job(self, table, job, capsys, monkeypatch):
        """The job's own matmuls are in the table, after a few constants of the device."""
        pytest.importorskip("torch", reason="the extra 'sample' is not installed")
        shorten_runs(monkeypatch, 12)

        assert main(["sample", "--for", str(job), "--device", "cpu", "--budget", "60s", "-o", str(table)]) == 0

        matmuls = {one.point.sizes for one in read_samples(table) if one.point.operator == "matmul"}
        assert any((one.n, one.k) in {(128, 64), (256, 64), (64, 64), (64, 128)} for one in matmuls)
        assert "points measured in" in capsys.readouterr().out


class Terminal(io.StringIO):
    """A screen."""

    def isatty(self) -> bool:
        """Yes."""
        return True


class TestMessages:
    """How far a run is."""

    def test_a_terminal_has_one_line(self):
        """Each takes the place of the one before; sentences stay."""
        screen = Terminal()
        messages = Messages(screen)

        messages.show("1/2 matmul")
        messages.emit(logging.makeLogRecord({"msg": "a row was cut short.", "levelno": NOTICE}))
        messages.show("2/2 " + "m" * 500)
        messages.clear()

        first, second, third, last, *_ = screen.getvalue().split("\r\x1b[K")[1:]
        assert first == "planner: 1/2 matmul"
        assert second == "planner: a row was cut short.\n"
        assert third.startswith("planner: 2/2 mmm")
        assert len(third) < 500
        assert last == ""

    def test_a_log_has_a_line_now_and_then(self):
        """After a second, then every half minute."""
        log, times = io.StringIO(), iter([0.0, 0.5, 2.0, 20.0, 33.0])
        messages = Messages(log, clock=lambda: next(times))

        for text in ("a", "b", "c", "d"):
            messages.show(text)

        assert log.getvalue() == "planner: b\nplanner: d\n"
