"""Tests of many values in one case say which of them failed, and where."""

from __future__ import annotations

import inspect

import pytest

from tests.cases import in_one_case, require_near


def test_every_failing_value_is_named():
    """Two of three fail, one by an error of its own; the message has both, and what was compared."""

    @in_one_case("number", [1, 2, 0], ids=lambda number: f"<{number}>")
    def halves(number):
        assert 2 / number == 2

    with pytest.raises(pytest.fail.Exception) as failed:
        halves()

    first, last = str(failed.value).split("\n<0>: ")
    assert first.startswith("<2>: line ")
    assert "of halves: AssertionError" in first
    assert "ZeroDivisionError" in last


def test_failures_below_a_second_decorator_do_not_hide_others():
    """Nor does an error that did not come: pytest's own failures are no ordinary errors."""

    @in_one_case("letter", "ab")
    @in_one_case("number", [1, 2])
    def refuses(letter, number):
        with pytest.raises(ValueError, match="never"):
            pass

    with pytest.raises(pytest.fail.Exception) as failed:
        refuses()

    assert str(failed.value).count("DID NOT RAISE") == 4


def test_stored_figures_may_differ_by_their_last_digit():
    """0.1156 for 0.1157 is the rounding of another processor; two digits more, a count and a version are not."""
    stored = "| megatron-26.04 | 354 rows | 0.1157, -1.5e-05 | 12.0% |"

    require_near("| megatron-26.04 | 354 rows | 0.1156, -1.4e-05 | 11.9% |", stored)
    for old, new in (("354", "355"), ("26.04", "26.05"), ("rows", "runs")):
        with pytest.raises(AssertionError):
            require_near(stored.replace(old, new), stored)
    with pytest.raises(pytest.fail.Exception, match=r"^0\.1155 was stored as 0\.1157\n12\.2 was stored as 12\.0$"):
        require_near(stored.replace("0.1157", "0.1155").replace("12.0", "12.2"), stored)


def test_fixtures_and_several_names_are_passed():
    """What the values do not name is left to pytest; decorators may stand on one another."""
    seen = []

    @in_one_case("letter", "ab")
    @in_one_case(("left", "right"), [(1, 2), (3, 4)])
    def collects(folder, letter, left, right):
        seen.append((folder, letter, left, right))

    assert [*inspect.signature(collects).parameters] == ["folder"]
    collects(folder="f")
    assert seen == [("f", "a", 1, 2), ("f", "a", 3, 4), ("f", "b", 1, 2), ("f", "b", 3, 4)]
