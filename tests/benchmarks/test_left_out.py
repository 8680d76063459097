"""The accuracy: rows predicted without their groups, the goals beside them, and the page that shows both."""

from __future__ import annotations

from benchmarks.accuracy.held_out import HeldOut, as_held_out, read_held_out, write_held_out

from benchmarks.accuracy.fit import HELD_OUT
from benchmarks.accuracy.left_out import Goal, left_out, macro
from benchmarks.accuracy.page import PAGE, PLOTS, generated
from tests.builders_runs import predicted


def held_out(name: str, seconds: float, *, fold: int = 0) -> HeldOut:
    """A row predicted without its group."""
    return HeldOut(id=name, fold=fold, alone_seconds=seconds, shipped_seconds=None)


def test_the_file_of_left_out_rows_is_read_as_written(tmp_path):
    """Six digits, and nothing where factors of frameworks were not fitted."""
    rows = [held_out("a", 1.5), HeldOut(id="b", fold=3, alone_seconds=2.0, shipped_seconds=2.25)]

    write_held_out(tmp_path / "held_out.csv", rows)

    assert read_held_out(tmp_path / "held_out.csv") == {"a": rows[0], "b": rows[1]}
    assert read_held_out(tmp_path / "none.csv") == {}


def test_errors_are_those_of_the_left_out_predictions(tmp_path):
    """2.1 s measured, 2.31 s predicted without the group: +10 %, whatever the shipped constants say."""
    rows = predicted(tmp_path, {"id": "a"}, {"id": "b"})

    (one,) = as_held_out(rows, {"a": held_out("a", 2.31)}, frameworks=False)

    assert round(one.time_error or 0.0, 9) == 0.1


def test_every_source_weighs_the_same(tmp_path):
    """One row 10 % off in one source, three exact ones in another: 5 %, not 2.5 %."""
    rows = predicted(tmp_path, {"id": "a"}, *({"id": name, "source": "another paper"} for name in "bcd"))
    known = {"a": held_out("a", 2.31), **{name: held_out(name, 2.1) for name in "bcd"}}

    assert round(macro(as_held_out(rows, known, frameworks=False)), 9) == 0.05


def test_goals_are_judged_only_where_there_are_rows(tmp_path):
    """The good rows are no torchtitan; what is not predicted without its group has no accuracy."""
    rows = predicted(
        tmp_path,
        *({"id": f"{n}", "source": "NeMo docs", "training.global_batch_size": str(64 * n)} for n in range(1, 4)),
    )

    figures = left_out(rows, {one.run.id: held_out(one.run.id, 2.163, fold=n) for n, one in enumerate(rows)})

    assert figures is not None
    goals = {goal.name: goal for goal in figures.goals}
    assert round(goals["H100 dense, dgxc and NeMo, mean"].figure or 0.0, 9) == 0.03
    assert goals["torchtitan, mean"].is_met is None
    assert left_out(rows, {}) is None


def test_a_goal_is_met_from_its_side():
    """Errors from above, recalls from below."""
    assert Goal(name="error", figure=0.05, rows=1, limit=0.06).is_met
    assert not Goal(name="recall", figure=0.85, rows=1, limit=0.9, at_least=True).is_met


def test_the_page_is_in_step_with_the_figures():
    """``python -m benchmarks.accuracy.page`` writes it anew; each of its plots is there."""
    text, rows = generated()

    assert PAGE.read_text(encoding="utf-8") == text
    assert {path.stem for path in PLOTS.glob("*.svg")} == {one.run.device for one in rows}
    assert HELD_OUT.exists()
