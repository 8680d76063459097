"""The measured grid: how nanotron deals layers, and that limits are judged."""

from __future__ import annotations

import csv

import pytest

from benchmarks.grid.__main__ import COLUMNS, RUNS, main, read_runs, slow_share, stages


def rows(**wanted):
    """Rows of the shipped table with these cells."""
    with RUNS.open(newline="") as stream:
        return [row for row in csv.DictReader(stream) if all(row[name] == cell for name, cell in wanted.items())]


def written(folder, some):
    """A table of some rows."""
    path = folder / "runs.csv"
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS)
        writer.writeheader()
        writer.writerows(some)
    return path


@pytest.fixture(scope="module")
def runs():
    """All runs of the shipped table."""
    return [*read_runs()]


def test_layers_are_dealt_by_their_cost(runs):
    """
    1B: a head of 131,072 costs 4 layers of 67 million, all 20: the first of two ranks exceeds its 10 with the eleventh.

    8B: a layer costs 243 million, the head 537, all 34.2; of four ranks each has 8.55 of them.
    """
    one, eight = (next(run.problem for run in runs if run.row["model"] == name) for name in ("1B", "8B"))

    assert (stages(one, 2), stages(one, 4)) == ([11, 5], [6, 5, 5, 0])
    assert stages(eight, 4) == [9, 9, 8, 6]


def test_runs_that_filled_the_device_are_not_called_fast(runs):
    """Nine runs above 70 GiB, at least 80 % of them; of as many small ones none."""
    full = [run for run in runs if run.reserved_gib > 70]
    small = [run for run in runs if 10 < run.reserved_gib < 20][:9]

    assert len(full) == 9
    assert slow_share(full) >= 0.8
    assert slow_share(small) == 0


@pytest.mark.slow
def test_the_layout_ranked_first_is_fast(tmp_path, capsys):
    """Of the 13 layouts of 8B that ran on one node, one of which took 2.6 times as long as its kernels."""
    assert main(["--runs", str(written(tmp_path, rows(model="8B", nodes="1")))]) == 0
    assert "of the best of 13 (at least 0.7)" in capsys.readouterr().out


def test_a_missed_limit_ends_with_1(tmp_path, capsys):
    """A layout with room for its tensors, said to have filled the device; beside it one ten times as fast."""
    small = next(
        row for row in rows(model="1B", nodes="1") if row["gpu_memory_gb"] and float(row["gpu_memory_gb"]) < 30
    )

    assert main(["--runs", str(written(tmp_path, [{**small, "gpu_memory_gb": "76"}]))]) == 1
    assert "70 GiB and above     0 of    1" in capsys.readouterr().out
    faster = {**small, "mbs": "1", "tp": "8", "dp": "1", "pp": "1", "zero": "0", "tokens_per_s_per_gpu": "900000"}
    assert main(["--runs", str(written(tmp_path, [small, faster]))]) == 1
    assert capsys.readouterr().out.count("MISSED") == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "80B"}, "runs.csv:2.model: must be one of 1B, 8B, got '80B'."),
        ({"nodes": "two"}, "runs.csv:2.nodes: must be a whole number, got 'two'."),
        ({"tokens_per_s_per_gpu": "fast"}, "runs.csv:2.tokens_per_s_per_gpu: must be a number, got 'fast'."),
    ],
)
def test_a_wrong_table_ends_with_2(tmp_path, capsys, changes, message):
    """With the place, what was seen and what is allowed."""
    with pytest.raises(SystemExit) as ended:
        main(["--runs", str(written(tmp_path, [{**rows(model="1B", nodes="1")[0], **changes}]))])

    assert ended.value.code == 2
    assert message in capsys.readouterr().err
