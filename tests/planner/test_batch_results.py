"""The results file: nothing lost, nothing overwritten, whatever happens to it; and what is made of it."""

from __future__ import annotations

import csv
import errno
import json
import os
import sys
from multiprocessing import get_context
from pathlib import Path

import pytest

from costmodel.errors import SpecError
from planner import cli
from planner.batch.job_result import JobOutcome, JobStatus, result_of
from planner.batch.results import ResultsFile, read_results, require_writable, row_of, write_table
from planner.batch.top import render_top, top
from tests.planner import batch_work

ROOT = Path(__file__).parents[2]


def written(path, count=3, status=JobStatus.OPTIMAL):
    """A results file of some jobs, and the jobs."""
    jobs = list(batch_work.jobs(count))
    with ResultsFile(path) as results:
        for job in jobs:
            plans = batch_work.planned(job).plans if status == JobStatus.OPTIMAL else ()
            results.add(result_of(job, JobOutcome(status=status, plans=plans)))
    return jobs


@pytest.fixture
def out(tmp_path):
    """Where results go."""
    return tmp_path / "results.jsonl"


# --- torn, foreign, locked ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [1, 30, 100])
def test_a_line_that_was_cut_is_taken_away_and_nothing_else(kept, out):
    """Its job is planned again; what stood before stays to the byte; somebody is told."""
    jobs = written(out)
    whole = out.read_bytes().splitlines(keepends=True)
    out.write_bytes(b"".join(whole[:2]) + whole[2][:kept])
    told = []

    with ResultsFile(out, notify=told.append) as results:
        free = [results.claim(job.key) for job in jobs]

    assert free == [False, False, True]
    assert out.read_bytes() == b"".join(whole[:2])
    assert told == [f"{out}: the last line, 3, was cut short; its job counts as not planned."]


@pytest.mark.parametrize("kept", [2, 18, 23, 24, 60])
def test_a_first_line_that_was_cut_is_taken_away(kept, out):
    """What only a line of ours begins like, and no end of a line."""
    [job] = written(out, 1)
    out.write_bytes(out.read_bytes()[:kept])
    told = []

    with ResultsFile(out, notify=told.append) as results:
        assert results.claim(job.key)

    assert out.read_bytes() == b""
    assert told == [f"{out}: the last line, 1, was cut short; its job counts as not planned."]


def test_a_line_that_lacks_only_its_end_is_kept(out):
    """It is whole; the next one begins on a line of its own."""
    jobs = written(out)
    whole = out.read_bytes()
    out.write_bytes(whole[:-1])

    with ResultsFile(out) as results:
        assert not results.claim(jobs[2].key)

    assert out.read_bytes() == whole


@pytest.mark.parametrize(
    "content",
    [
        b"hello\n",
        b"{}\n",
        b"{",
        b'{"kind":"batch_x',
        b'{"kind": "batch_result"',
        b'{"kind":"batch_res\n',
        b"\0" * 10,
        b"[1, 2]\n",
        b"a,b\n1,2\n",
        b'{"kind":"plan","key":"00"}\n',
        b"\n",
        b"\xff",
    ],
)
def test_a_file_that_holds_no_results_is_not_touched(content, out):
    """It is somebody's; the message says what was expected."""
    out.write_bytes(content)

    with pytest.raises(SpecError) as refused:
        ResultsFile(out)

    assert "line 1: is no result" in str(refused.value)
    assert out.read_bytes() == content


@pytest.mark.parametrize(
    "broken",
    [
        b"oops\n",
        b"\0" * 40 + b"\n",
        b'{"kind":"batch_result","format_version":1,"key":"00","plans":[{"strategy"\n',
        b'{"kind":"batch_result","format_version":1,"key":"00","plans":3}\n',
        b'{"kind":"batch_result","format_version":1,"key":"no hex","plans":[]}\n',
        b"\xff\xfe\n",
    ],
)
@pytest.mark.parametrize("place", [0, 1])
def test_a_broken_line_is_moved_beside_and_its_job_planned_again(broken, place, out):
    """Byte for byte; the results around it stay, and a second start finds nothing to move."""
    jobs = written(out)
    lines = out.read_bytes().splitlines(keepends=True)
    whole = [*lines[:place], *lines[place + 1 :]]
    out.write_bytes(b"".join([*lines[:place], broken, *lines[place + 1 :]]))
    told = []

    left = len(list(read_results(out, notify=told.append)))
    with ResultsFile(out, notify=told.append) as results:
        free = [results.claim(job.key) for job in jobs]
    ResultsFile(out, notify=told.append).close()

    assert left == 2
    assert free == [number == place for number in range(3)]
    assert out.read_bytes() == b"".join(whole)
    assert out.with_name("results.jsonl.broken").read_bytes() == broken
    assert sum("is left out" in text for text in told) == 2
    assert told[-1] == (f"{out}: 1 line that is no result is moved to {out}.broken; their jobs are planned again.")


def test_a_result_behind_a_cut_line_is_kept(out):
    """A line that was cut without its end, and the next one behind it: only the first half is broken."""
    written(out)
    lines = out.read_bytes().splitlines(keepends=True)
    out.write_bytes(lines[0] + lines[1][:50] + lines[2])

    ResultsFile(out).close()

    assert out.read_bytes() == lines[0] + lines[2]
    assert out.with_name("results.jsonl.broken").read_bytes() == lines[1][:50] + b"\n"


def test_broken_lines_at_the_begin_are_moved_where_results_follow(out):
    """Two in a row; a line whose version cannot be read is a broken one, none of another version."""
    written(out)
    lines = out.read_bytes().splitlines(keepends=True)
    broken = [b"oops\n", b"\0\n", lines[0].replace(b'"format_version"', b'"formXt_version"')]
    out.write_bytes(b"".join([*broken, *lines[1:]]))

    ResultsFile(out).close()

    assert out.read_bytes() == b"".join(lines[1:])
    assert out.with_name("results.jsonl.broken").read_bytes() == b"".join(broken)


def test_broken_lines_that_cannot_be_moved_stay(out):
    """Where nothing can be written beside, nothing is taken away."""
    written(out)
    lines = out.read_bytes().splitlines(keepends=True)
    out.write_bytes(lines[0] + b"oops\n" + lines[2])
    before = out.read_bytes()
    out.with_name("results.jsonl.broken").mkdir()

    with pytest.raises(SpecError, match=r"broken'?: cannot be written: Is a directory"):
        ResultsFile(out)

    assert out.read_bytes() == before


def test_the_best_plans_beside_a_broken_line_are_shown(out, capsys):
    """``planner batch`` says which line it leaves out, and does not touch the file."""
    written(out)
    lines = out.read_bytes().splitlines(keepends=True)
    out.write_bytes(lines[0] + b"oops\n" + lines[2])
    before = out.read_bytes()

    code = cli.main(["batch", str(out), "--format", "csv"])
    printed = capsys.readouterr()

    assert (code, len(printed.out.splitlines())) == (0, 3)
    assert "line 2: is no result: 'oops" in printed.err
    assert "It is left out" in printed.err
    assert out.read_bytes() == before


def test_results_of_another_version_are_refused(out):
    """Their entries may mean something else."""
    written(out, 1)
    out.write_text(out.read_text().replace('"format_version":1', '"format_version":2'))

    with pytest.raises(SpecError) as refused:
        ResultsFile(out)

    assert "has format_version 2, this planner reads and writes 1" in str(refused.value)


def test_an_empty_file_is_a_new_one(out):
    """As ``touch`` makes it."""
    out.touch()

    written(out)

    assert len(list(read_results(out))) == 3


def refusal(path):
    """The message to somebody who wants to write to a file."""
    with pytest.raises(SpecError) as refused:
        ResultsFile(path)
    return str(refused.value)


def test_two_batches_do_not_write_to_one_file(out):
    """The second is refused while the first has it, in whatever process; then the lock is free."""
    with ResultsFile(out), get_context("fork").Pool(1) as other:
        told = [refusal(out), other.apply(refusal, (out,))]

    assert [f"{out}: another batch writes to it." in text for text in told] == [True, True]
    ResultsFile(out).close()


def test_a_lock_on_a_file_that_was_replaced_does_not_count(out, monkeypatch):
    """Who opened the file just before it was replaced would write to one that nobody sees."""
    written(out)
    real, replaced = os.open, []

    def open_and_replace(path, *arguments):
        file = real(path, *arguments)
        if not replaced:
            replaced.append(out.read_bytes())
            (out.parent / "draft").write_bytes(replaced[0])
            (out.parent / "draft").replace(out)
        return file

    monkeypatch.setattr("planner.batch.results.os.open", open_and_replace)
    with ResultsFile(out) as results:
        assert os.path.samestat(os.fstat(results._file), out.stat())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (".", "cannot be written: Is a directory"),
        ("nowhere/x.jsonl", "no such file or folder"),
        ("x" * 300, "too long"),
    ],
)
def test_places_where_nothing_can_be_written(name, message, tmp_path):
    """One sentence each."""
    with pytest.raises(SpecError) as refused:
        ResultsFile(tmp_path / name)

    assert message in str(refused.value)


# --- full disks -----------------------------------------------------------------------------------------------


def test_a_full_disk_leaves_whole_lines(out, monkeypatch):
    """A line of which only a part could be written is cut back; what was written before is valid."""
    written(out)
    before, real = out.read_bytes(), os.write

    def write_a_part(file, data):
        if len(data) > 40:
            return real(file, bytes(data)[:40])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    job = list(batch_work.jobs(4))[3]
    with ResultsFile(out) as results:
        monkeypatch.setattr("planner.batch.results.os.write", write_a_part)
        with pytest.raises(SpecError) as refused:
            results.add(result_of(job, batch_work.planned(job)))

    assert str(refused.value) == (
        f"{out}: cannot be written: No space left on device. Its lines are whole; the same command goes on from there."
    )
    assert out.read_bytes() == before


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_the_device_that_is_always_full():
    """The system's own stand-in for a full disk."""
    [job] = batch_work.jobs(1)

    with ResultsFile(Path("/dev/full")) as results, pytest.raises(SpecError) as refused:
        results.add(result_of(job, batch_work.planned(job)))

    assert "/dev/full: cannot be written: No space left on device." in str(refused.value)


def test_a_full_disk_while_lost_jobs_are_taken_away(out, monkeypatch):
    """The file is replaced as a whole or not at all."""
    written(out, status=JobStatus.TIMED_OUT)
    before = out.read_bytes()

    def fail(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("planner.batch.results.os.ftruncate", fail)
    with pytest.raises(SpecError, match="No space left on device"):
        ResultsFile(out, retry_lost=True)

    assert out.read_bytes() == before
    assert list(out.parent.iterdir()) == [out]


# --- again ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "again"),
    [
        ("optimal", False),
        ("infeasible", False),
        ("wrong_input", False),
        ("timed_out", True),
        ("worker_died", True),
        ("failed", True),
    ],
)
def test_what_is_planned_again_on_request(status, again, out):
    """Only what another attempt may change; without the request nothing."""
    jobs = written(out, status=JobStatus(status))
    with ResultsFile(out) as results:
        assert not any(results.claim(job.key) for job in jobs)

    with ResultsFile(out, retry_lost=True) as results:
        assert [results.claim(job.key) for job in jobs] == [again] * 3

    assert len(list(read_results(out))) == (0 if again else 3)


def test_the_same_job_twice_is_planned_once(out):
    """Whoever comes second finds it claimed, which is not the same as without a plan."""
    [job] = batch_work.jobs(1)

    with ResultsFile(out) as results:
        assert [results.claim(job.key), results.claim(job.key), results.lacks_plan(job.key)] == [True, False, False]


# --- rankings and tables --------------------------------------------------------------------------------------


def line(name, *plans, **entries):
    """A line of a results file."""
    figures = [{"number": n, "mfu": mfu, "step_time_seconds": step} for n, (mfu, step) in enumerate(plans, start=1)]
    for plan in figures:
        plan["strategy"] = {"tp": 8, "recompute": "none", "layout": None}
    return {"kind": "batch_result", "name": name, "source": "x.yaml", "overrides": {}, "plans": figures, **entries}


LINES = [
    line("a", (0.5, 10.0), (0.4, 12.0)),
    line("none", status="infeasible", message="No strategy."),
    line("b", (0.3, 5.0)),
    line("c", (0.45, 11.0), (0.6, 20.0), overrides={"search.pin": {"tp": 8}}),
]


def test_jobs_are_ranked_by_their_best_plan():
    """Shorter steps are better, higher MFU is; a job without a plan has no place, and k are kept."""
    assert [line["name"] for line, _ in top(LINES)] == ["b", "a", "c"]
    assert [(line["name"], plan["number"]) for line, plan in top(LINES, by="mfu", count=2)] == [("c", 2), ("a", 1)]


def test_rankings_as_json_and_csv():
    """For programs."""
    ranked = top(LINES, by="mfu")

    assert [entry["plan"]["mfu"] for entry in json.loads(render_top(ranked, "json"))] == [0.6, 0.5, 0.3]
    rows = list(csv.DictReader(render_top(ranked, "csv").splitlines()))
    assert [(row["rank"], row["name"], row["tp"], row["search.pin"]) for row in rows] == [
        ("1", "c", "8", '{"tp": 8}'),
        ("2", "a", "8", ""),
        ("3", "b", "8", ""),
    ]
    assert render_top([], "table") == "No job has a plan.\n"


def test_results_as_csv(tmp_path):
    """One row per plan, and one for the job that has none."""
    write_table(lambda: LINES, tmp_path / "table.csv")

    rows = list(csv.DictReader((tmp_path / "table.csv").open()))
    assert [(row["name"], row["number"], row["step_time_seconds"]) for row in rows] == [
        ("a", "1", "10.0"),
        ("a", "2", "12.0"),
        ("none", "", ""),
        ("b", "1", "5.0"),
        ("c", "1", "11.0"),
        ("c", "2", "20.0"),
    ]
    assert rows[2]["message"] == "No strategy."


def test_a_table_keeps_its_own_names_and_large_numbers():
    """An override called like one of our columns is a mistake of its job; ten to the thirtieth is a number still."""
    row = row_of(line("a", overrides={"status": "mine", "training.tokens": 10**30}, status="wrong_input"), None)

    assert (row["status"], row["training.tokens"]) == ("wrong_input", 1e30)


def test_a_system_without_locks_is_told_so(out, monkeypatch):
    """Two batches might write at the same time."""
    monkeypatch.setitem(sys.modules, "fcntl", None)

    with pytest.raises(SpecError, match="cannot be locked: this system has no POSIX locks"):
        ResultsFile(out)


def test_results_as_parquet(tmp_path, monkeypatch):
    """Numbers are numbers, whatever is missing is null, and it is written group by group."""
    parquet = pytest.importorskip("pyarrow.parquet", reason="the extra 'parquet' is not installed")
    monkeypatch.setattr("planner.batch.results.ROWS_AT_ONCE", 4)

    write_table(lambda: LINES, tmp_path / "table.parquet")

    file = parquet.ParquetFile(tmp_path / "table.parquet")
    columns = file.read().to_pydict()
    assert file.num_row_groups == 2
    assert columns["mfu"] == [0.5, 0.4, None, 0.3, 0.45, 0.6]
    assert columns["tp"] == [8, 8, None, 8, 8, 8]
    assert columns["search.pin"][-1] == '{"tp": 8}'


def test_a_table_that_cannot_be_written_is_refused_before_the_work(tmp_path, monkeypatch):
    """By its ending, or because pyarrow is missing."""
    with pytest.raises(SpecError, match=r"expected a file that ends with \.parquet or \.csv"):
        require_writable(tmp_path / "table.xlsx")

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(SpecError, match="Parquet needs pyarrow, which is not installed"):
        require_writable(tmp_path / "table.parquet")


def test_a_full_disk_leaves_no_half_table(tmp_path, monkeypatch):
    """The old one stays."""
    path = tmp_path / "table.csv"
    path.write_text("old")

    def fail(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("planner.batch.results.Path.replace", fail)
    with pytest.raises(SpecError, match="cannot be written: No space left on device"):
        write_table(lambda: LINES, path)

    assert (path.read_text(), list(tmp_path.iterdir())) == ("old", [path])


WHOLE = {
    "kind": "batch_result",
    "format_version": 1,
    "key": "00",
    "name": "one",
    "overrides": {},
    "status": "optimal",
    "plans": [{"step_time_seconds": 2.0, "days": None, "mfu": 0.4, "num_devices": 8, "strategy": {"tp": 2}}],
}


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"plans": {"a": 1}}, "expected a list of plans, got {'a': 1}"),
        ({"plans": ["fast"]}, "a plan: expected a mapping, got 'fast'"),
        ({"plans": [{"x": 1}]}, "strategy: expected a mapping, got null"),
        ({"status": "fast"}, "status: expected optimal, feasible, "),
        ({"overrides": []}, "overrides: expected a mapping, got []"),
        ({"plans": [{**WHOLE["plans"][0], "strategy": 8}]}, "strategy: expected a mapping, got 8"),
        ({"plans": [{**WHOLE["plans"][0], "gaps": ["x"]}]}, "gaps: expected a list of mappings with a sentence, got "),
        ({"plans": [{**WHOLE["plans"][0], "mfu": "high"}]}, "mfu: expected a number, got 'high'"),
        ({"plans": [{**WHOLE["plans"][0], "days": 10**400}]}, "days: expected a number, got "),
        ({"seconds": float("nan")}, "is no result: '{"),
    ],
)
def test_a_line_of_another_form_is_left_out(changes, complaint, tmp_path):
    """With its number and what is wrong, before anything is computed of it; its text is kept beside."""
    path, told = tmp_path / "results.jsonl", []
    lines = [json.dumps(WHOLE), json.dumps(WHOLE | changes)]
    path.write_text("\n".join(lines))

    left = list(read_results(path, notify=told.append))
    ResultsFile(path).close()

    assert left == [WHOLE]
    assert "results.jsonl, line 2: " in told[0]
    assert complaint in told[0]
    assert (tmp_path / "results.jsonl.broken").read_text() == lines[1] + "\n"


def test_a_line_that_lacks_figures_is_shown_with_dashes(tmp_path, capsys):
    """Lines of before lack what is new; null is what has no value."""
    path = tmp_path / "results.jsonl"
    path.write_text(json.dumps(WHOLE) + "\n")

    assert cli.main(["batch", str(path)]) == 0

    (row,) = (line for line in capsys.readouterr().out.splitlines() if line.strip().startswith("1 "))
    assert row.split() == ["1", "8", "2.000", "-", "40.0%", "-", "-", "-", "2", *["-"] * 7, "one"]
