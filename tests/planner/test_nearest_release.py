"""Releases and dispatchers that no file knows: the nearest one stands for each, and all that is written says so."""

from __future__ import annotations

import json

import pytest

from costmodel import catalog
from costmodel.catalog.releases import find_release_spelling, nearest_release, release_of
from costmodel.errors import SpecError
from planner import estimate, export, load, plan, render
from planner.jobs.run_jobs import nearest_dispatcher
from planner.measure.runs.predictions import Prediction
from tests.builders_job import a_document
from tests.builders_runs import require_refused, results_of
from tests.cases import in_one_case

JOB = a_document("llama3-8b", "16xh100-80gb-sxm", batch=64, sequence=8192, tokens=1e11)
UNKNOWN = "megatron-bridge-99.01"
"""A release of a stack that the catalog knows, newer than all of them."""

KNOWN = ("a-24.07", "a-25.09", "a-26.04.01", "b-0.8", "b-0.17", "b-2021", "b-2022", "c-2023")
"""One stack that counts by months, one by versions and before that by years, one by years."""


def a_job(framework: object):
    """A job of 16 GPUs with a framework."""
    return load({**JOB, "cluster": {**JOB["cluster"], "framework": framework}})


NEAREST = {
    "a-25.11": "a-25.09",
    "a-26.04": "a-25.09",
    "a-26.08": "a-26.04.01",
    "a-23.01": "a-24.07",
    "a-main": "a-26.04.01",
    "a-1.2": "a-26.04.01",
    "b-0.17.1": "b-0.17",
    "b-0.19.0rc1": "b-0.17",
    "b-0.2": "b-0.8",
    "b-2023": "b-2022",
    "b-2019": "b-2021",
    "b-latest": "b-0.17",
    "c-0.5": "c-2023",
}


@in_one_case(("asked", "nearest"), NEAREST.items())
def test_the_nearest_release_is_the_newest_that_is_not_newer(asked, nearest):
    """Else the oldest; years are compared with years only, and a branch is newer than all."""
    assert find_release_spelling(asked, KNOWN) is None
    assert nearest_release(asked, KNOWN) == nearest


@in_one_case(
    ("written", "name"),
    [
        ("a-24.7", "a-24.07"),
        ("A 24.07", "a-24.07"),
        ("a:25.09", "a-25.09"),
        ("b-0.17.0", "b-0.17"),
        ("b==0.8", "b-0.8"),
        ("b_v0.8.0", "b-0.8"),
    ],
)
def test_versions_are_known_as_people_write_them(written, name):
    """Zeros, capitals, separators and a v make no other release."""
    assert find_release_spelling(written, KNOWN) == name


@in_one_case("odd", ["", "a", "a-", "-1", "a-x", "d-1.0", "9", "a-1" + "9" * 5000, "a-" * 999, "a-24.07;rm"])
def test_what_is_no_release_of_a_stack_has_no_relative(odd):
    """Neither other stacks nor what is no name, however long."""
    assert nearest_release(odd, KNOWN) is None


def test_every_name_of_the_catalog_is_its_own():
    """No two of them are one release in other words."""
    names = catalog.framework_names()
    numbered = [made for made in map(release_of, names) if made]

    assert all(find_release_spelling(name, names) == name and not catalog.unknown_release(name) for name in names)
    assert len(set(numbered)) == len(numbered)


# --- jobs and reports ---------------------------------------------------------------------------------------


def test_a_job_of_an_unknown_release_costs_what_its_relative_costs():
    """The same strategy, the same step; the cluster remembers what was asked for."""
    names = catalog.framework_names()
    nearest = max(
        (name for name in names if name.startswith("megatron-bridge")), key=lambda name: release_of(name).number
    )
    unknown, known = (estimate(a_job(name), {"tp": 2}, searched=False) for name in (UNKNOWN, nearest))

    assert unknown.problem.facts.cluster.unknown_release == UNKNOWN
    assert unknown.problem.facts.cluster.framework == known.problem.facts.cluster.framework
    assert unknown.plans[0].step_seconds == known.plans[0].step_seconds
    assert known.problem.facts.cluster.unknown_release == ""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("given", [UNKNOWN, {"base": UNKNOWN, "settings": {"gradient_dtype": "bf16"}}])
def test_every_format_says_for_which_release_another_stands(given):
    """Text, Markdown, page and JSON; also of a framework that a job changes."""
    report = estimate(a_job(given), {"tp": 2}, searched=False)
    sentence = f"{UNKNOWN} is not known: costed as "

    whole = json.loads(render(report, "json"))

    assert whole["cluster"]["framework_doubt"].startswith(sentence)
    assert whole["cluster"]["framework_doubt"].endswith("its nearest release")
    for name in ("table", "markdown", "html"):
        assert sentence in " ".join(render(report, name).split())
    assert whole["gaps"][0]["value"] == UNKNOWN


def test_a_release_that_is_known_has_no_doubt():
    """Nor has one that a job does not name."""
    for given in ("torchtitan==0.3.0", None):
        whole = json.loads(render(estimate(a_job(given), {"tp": 2}, searched=False), "json"))
        assert whole["cluster"]["framework_doubt"] is None
        assert "is not known" not in json.dumps(whole)


@pytest.mark.parametrize("typo", ["megatron-brdige-26.08", "nemoo-25.11", "megatron-bridge"])
def test_a_stack_that_nobody_knows_is_refused_with_what_was_meant(typo):
    """A typing error is no new release; a stack alone is none either."""
    with pytest.raises(SpecError, match=r"is not in the catalog. Did you mean '(megatron-bridge|nemo)-"):
        a_job(typo)


def test_exports_are_for_the_relative_and_say_so():
    """What is written is what the relative's plan is written as, for its release; the file says so itself."""
    asked, plain = (plan(a_job(name), certified=False).plans[0] for name in ("megatron-lm-0.99", "megatron-lm-0.19"))

    exported, known = (export(one, "megatron-lm") for one in (asked, plain))

    lines, known_lines = (one.files["megatron-args.txt"].splitlines() for one in (exported, known))
    sentence = "megatron-lm-0.99 is not known: costed as megatron-lm-0.19, its nearest release"
    assert lines[0] == f"# Options of Megatron Core 0.19; {sentence}."
    assert known_lines[0] == "# Options of Megatron Core 0.19."
    assert lines[1:] == known_lines[1:]
    assert exported.files.keys() == known.files.keys()
    assert all(text == known.files[name] for name, text in exported.files.items() if name != "megatron-args.txt")
    assert (exported.version, known.version) == ("0.19", "0.19")
    doubts = [note for note in exported.notes[1:] if note not in known.notes]
    assert doubts == [f"{sentence}; this is written for Megatron-LM 0.19."]


def test_exports_to_another_target_say_what_they_are_written_for():
    """Neither the release that nobody knows nor its relative, where both are another target's."""
    (asked,) = plan(a_job("megatron-lm-0.99"), certified=False).plans[:1]
    sentence = "megatron-lm-0.99 is not known: costed as megatron-lm-0.19, its nearest release"

    exported = export(asked, "megatron-bridge")

    assert exported.files["bridge-overrides.txt"].startswith(f"# Overrides for Megatron-Bridge 0.6; {sentence}.\n")
    assert exported.notes[-1] == f"{sentence}; this is written for Megatron-Bridge 0.6."


def test_a_target_takes_an_unknown_release_of_its_own():
    """``search.target`` beside it is no contradiction; another stack still is one."""
    report = plan(load({**JOB, "search": {"target": "megatron-bridge"}}, [f"cluster.framework={UNKNOWN}"]))

    assert report.problem.facts.cluster.unknown_release == UNKNOWN
    with pytest.raises(SpecError, match=r"torchtitan-0.3 is no release whose plans"):
        load({**JOB, "search": {"target": "megatron-bridge"}}, ["cluster.framework=torchtitan-9.9"])


# --- rows of measured runs ----------------------------------------------------------------------------------


def test_rows_of_unknown_releases_are_predicted_and_say_so(tmp_path):
    """As their relative; a stack that nobody knows is refused."""
    newest, known, typo = results_of(
        tmp_path,
        {"id": "a", "cluster.framework": "megatron-core-9.9"},
        {"id": "b", "cluster.framework": "megatron-core-0.16"},
        {"id": "c", "cluster.framework": "megatron-croe-0.16"},
    )

    assert isinstance(newest, Prediction)
    assert newest.step_seconds == known.step_seconds
    doubt = "megatron-core-9.9 is not known: costed as megatron-core-0.16, its nearest release"
    assert (newest.run.doubts, newest.missing, known.run.doubts) == ((doubt,), (doubt,), ())
    require_refused(typo)


MIXTRAL = {"model": "mixtral-8x7b", "strategy.ep": "8", "cluster.framework": "megatron-bridge-26.06"}


@pytest.mark.parametrize(
    ("asked", "same", "says"),
    [
        ("DeepEP", "deepep", ""),
        ("hybrid-ep", "hybridep", ""),
        ("deepep-v2", "deepep", "costed as deepep, its nearest relative"),
        ("hybirdep", "hybridep", "costed as hybridep, its nearest relative"),
        ("nccl-allgather", "alltoall", "costed as alltoall, its nearest relative"),
        ("mori", "", "costed as the framework's default"),
    ],
)
def test_rows_of_unknown_dispatchers_are_predicted_and_say_so(tmp_path, asked, same, says):
    """By the letters of their names, else as their framework dispatches."""
    ours, theirs = results_of(
        tmp_path,
        {"id": "a", **MIXTRAL, "strategy.token_dispatcher": asked},
        {"id": "b", **MIXTRAL, "strategy.token_dispatcher": same},
    )

    assert isinstance(ours, Prediction)
    assert (ours.strategy, ours.step_seconds) == (theirs.strategy, theirs.step_seconds)
    expected = (f"token dispatcher '{asked}' is not known: {says}",) if says else ()
    assert ours.run.doubts == expected


def test_a_relative_that_the_framework_has_not_is_its_default(tmp_path):
    """NeMo of 2024 has no Hybrid-EP: what ran under that name was its all-to-all."""
    old = {**MIXTRAL, "cluster.framework": "nemo-24.07", "cluster.device": "h100-80gb-sxm"}
    (row,) = results_of(tmp_path, {**old, "strategy.token_dispatcher": "hybridep-2"})

    assert isinstance(row, Prediction)
    assert row.strategy.token_dispatcher.text == "alltoall"
    assert row.run.doubts[0].endswith("costed as the framework's default")


def test_a_job_with_an_unknown_dispatcher_is_refused():
    """Its author can say what is allowed; nobody can ask a row."""
    with pytest.raises(SpecError, match=r"strategy.token_dispatcher"):
        estimate(load({**JOB, "model": "mixtral-8x7b"}), {"ep": 8, "token_dispatcher": "mori"}, searched=False)
    assert nearest_dispatcher("mori") is None
