"""The figures of the house only fall."""

from __future__ import annotations

import pytest

from tests import ratchet
from tests.cases import require_none
from tests.conftest import NUM_CASES

PLANNED = ("planner plan of llama3-8b on 8", "arrays of NumPy")
"""Figures for which jobs are planned."""


@pytest.mark.parametrize(
    "group", [pytest.param(one, marks=[pytest.mark.slow] * (one in PLANNED)) for one in ratchet.FIGURES]
)
def test_figures_only_fall(group):
    """``python -m tests.ratchet`` writes those that fell; its text says what to do about one that grew."""
    count, _, _ = ratchet.FIGURES[group]

    require_none(ratchet.grown(group, count()))


def test_test_cases_only_fall(request):
    """Counted where the whole suite was collected, which a run of some files did not."""
    config = request.config
    if {*config.args} != {*config.getini("testpaths")}:
        pytest.skip("only a part of the suite was collected")

    require_none(ratchet.grown(ratchet.CASES, {"collected": config.stash[NUM_CASES]}))


def test_a_figure_that_grew_is_named_with_its_limit(monkeypatch):
    """Files may be two more, or one in a hundred; what the table lacks may not be there."""
    assert ratchet.grown("files", {"costmodel": 1}) == []
    monkeypatch.setattr(ratchet.yaml, "safe_load", lambda text: {"files": {"costmodel": 300}})

    assert ratchet.grown("files", {"costmodel": 303, "planner": 1}) == ["files: planner 1, at most 0"]
    assert ratchet.grown("files", {"costmodel": 304}) == ["files: costmodel 304, at most 303"]


def test_only_asking_for_it_raises_a_figure(tmp_path, monkeypatch):
    """Without ``--grow`` the higher figure is said and the lower one kept."""
    figures = {"a": 3, "b": 3}
    monkeypatch.setattr(ratchet, "FILE", tmp_path / "house.yaml")
    monkeypatch.setattr(ratchet, "FIGURES", {"files": (lambda: figures, 0, 0.0)})
    monkeypatch.setattr(ratchet, "count_cases", lambda: {"collected": 9})
    ratchet.write(grow=True)
    figures |= {"a": 2, "b": 4}

    assert ratchet.write(grow=False) == ["files: b 4, was 3"]
    assert (ratchet.limits("files"), ratchet.limits("test cases")) == ({"a": 2, "b": 3}, {"collected": 9.09})


def test_participles_are_told_from_verbs_and_quantities():
    """A quantity ends in its unit."""
    names = ["joined", "sorted_rows", "known_names", "exposed_seconds", "feed_forward", "read_trace"]

    assert [name for name in names if ratchet.is_participle(name)] == names[:3]


def test_openers_are_whole_words():
    """The list of style: clauses without a subject."""
    texts = ["What it is.", "Of each.", "The same, by name.", "Whatever.", "Often so."]

    assert [text for text in texts if ratchet.OPENERS.match(text)] == texts[:3]
