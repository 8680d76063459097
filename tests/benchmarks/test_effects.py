"""Effects as ratios: which pairs there are, what differs, how far a ratio is off, and the goals."""

from __future__ import annotations

import csv
from dataclasses import replace

import pytest

from benchmarks.effects import ratios
from benchmarks.effects.__main__ import OWN_RUNS, main, predicted_runs
from benchmarks.output import CHECKS_FAILED, NOTHING_TO_READ
from tests.builders_runs import predicted, project_predictions


def an_effect(*, measured: float = 1.0, ratio: float = 1.0, kind: str = "recompute", group: str = "") -> ratios.Effect:
    """An effect of one pair."""
    pair = ratios.Pair(first="a", second="b", changes=("recompute:none->full",), kind=kind, group=group)
    seconds = {"measured_seconds": (1.0, measured), "predicted_seconds": (1.0, ratio)}
    return ratios.Effect(pair=pair, **seconds, model="gpt", device="h100", num_devices=8)


@pytest.fixture(scope="module")
def groups():
    """The runs of the groups, predicted."""
    pairs = ratios.read_groups()
    return list(ratios.effects(pairs, predicted_runs({name for pair in pairs for name in (pair.first, pair.second)})))


# --- pairs ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "kind"),
    [
        (("container",), ratios.RELEASE_ALONE),
        (("container", "dtype", "overlap_tp", "fp8_param_gather"), "precision"),
        (("fp8_param_gather", "recompute"), "recompute + fp8_param_gather"),
        (("ep_overlap", "cuda_graph", "paged_stash", "fused_grouped_mlp"), "graphs + ep overlap"),
        (("dtype", "cuda_graph", "recompute", "mtp_layers"), "several"),
        (("token_dispatcher", "dispatcher_sms"), "dispatcher"),
    ],
)
def test_companions_are_of_the_kind_that_they_come_with(facts, kind):
    """Recipes gather 8-bit weights with 8-bit precisions, and stash experts with whole graphs; alone they count."""
    assert ratios.kind_of(facts) == kind


@pytest.mark.slow
def test_the_published_pairs_are_those_of_their_table():
    """364 pairs, 186 of which differ in the container alone; ratios are those of the measured steps."""
    pairs = ratios.read_pairs()
    seconds = {one.run.id: one.run.step_seconds for one in project_predictions()}
    with ratios.PAIRS.open(newline="") as file:
        stated = {(row["id_a"], row["id_b"]): float(row["b_over_a"]) for row in csv.DictReader(file)}

    assert (len(pairs), sum(pair.is_release_alone for pair in pairs)) == (364, 186)
    for pair in pairs:
        ratio = seconds[pair.second] / seconds[pair.first]
        assert ratio == pytest.approx(stated[pair.first, pair.second], abs=6e-5)


def test_a_missing_table_is_said(tmp_path, capsys):
    """Also one without the columns."""
    wrong = tmp_path / "pairs.csv"
    wrong.write_text("a,b\n1,2\n")

    assert main(["--pairs", str(tmp_path / "none.csv")]) == NOTHING_TO_READ
    assert main(["--pairs", str(wrong)]) == NOTHING_TO_READ
    assert "has no column 'id_a'" in capsys.readouterr().err


# --- groups -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_run_of_a_group_is_predicted(groups):
    """16 pairs of seven groups; no run is in both tables."""
    own = {row["id"] for row in csv.DictReader(OWN_RUNS.open(newline=""))}

    assert len(groups) == len(ratios.read_groups()) == 16
    assert len({one.pair.group for one in groups}) == 7
    assert not own & {one.run.id for one in project_predictions()}


@pytest.mark.slow
def test_settings_of_groups_reach_the_job():
    """A quarter of the optimizer states, transfers beside the update, modules recomputed, graphs, overlaps."""
    runs = predicted_runs({row["id"] for row in csv.DictReader(OWN_RUNS.open(newline=""))})
    offload = {name: runs[f"effect-q30-offload-{name}"] for name in ("0", "25", "overlapped")}

    assert [one.strategy.optimizer_offload for one in offload.values()] == [0, 1, 1]
    assert offload["25"].facts.cluster.device.behaviour.offload.offloaded_states == 0.25
    assert offload["overlapped"].facts.cluster.device.behaviour.offload.offload_overlap
    assert runs["effect-l70-mlp-core"].strategy.recompute.text == "core_attention+mlp"
    assert runs["effect-l70-tp8"].strategy.tp == 2 * runs["effect-l70-baseline"].strategy.tp
    assert [runs[f"effect-q30-alltoall-{number}"].strategy.ep_overlap for number in (1, 2)] == [0, 1]


@pytest.mark.slow
def test_the_measured_effects_are_the_published_ones(groups):
    """41.25 to 31.31 s by overlap; 0.996 to 4.189 s by offload; 704 to 508.7 TFLOP/s with tp 8."""
    measured = {(one.pair.group, one.pair.changes[0]): one.measured for one in groups}

    assert measured["q30-alltoall-overlap", "ep overlap"] == pytest.approx(31.31 / 41.25)
    assert measured["q30-optimizer-offload", "optimizer offload 100 %"] == pytest.approx(4.189 / 0.996)
    assert measured["l70-memory", "tp 8"] == pytest.approx(704 / 508.7, rel=1e-4)


# --- figures ----------------------------------------------------------------------------------------------------


def test_a_ratio_is_off_by_predicted_over_measured(tmp_path):
    """Steps of 2 and 4 s, predicted 2 and 5 s: 2.5 / 2 - 1; whoever knows no effect is off by one half."""
    first, second = predicted(tmp_path, {"id": "a", "step_seconds": "2"}, {"id": "b", "step_seconds": "4"})
    known = {"a": replace(first, step_seconds=2.0), "b": replace(second, step_seconds=5.0)}

    (one,) = ratios.effects([an_effect().pair], known)

    assert (one.error, one.error_without) == (0.25, -0.5)
    assert list(ratios.effects([replace(an_effect().pair, second="c")], known)) == []


def test_the_wrong_side_is_that_of_clear_effects():
    """One of 6 % that is predicted as -1 % or as none; one of 4 % may be noise."""
    found = [an_effect(measured=1.06, ratio=ratio) for ratio in (0.99, 1.0, 1.01)] + [
        an_effect(measured=1.04, ratio=0.9),
        an_effect(measured=0.9, ratio=1.1),
    ]

    assert [one.is_on_the_wrong_side for one in found] == [True, True, False, False, True]
    assert (ratios.figures(found).clear, ratios.figures(found).wrong) == (4, 3)


def test_goals_are_of_the_median_and_the_tail():
    """4 and 12 %; pairs that change the release alone are not judged."""
    exact, off = [an_effect()] * 9, an_effect(ratio=1.5)
    release = an_effect(ratio=3.0, kind=ratios.RELEASE_ALONE)

    assert ratios.figures(exact).hold
    assert not ratios.figures([*exact, off, off]).hold
    assert ratios.counted([*exact, release]) == exact
    assert list(ratios.figures_by([off, *exact, release], lambda one: one.pair.kind)) == [
        "recompute",
        ratios.RELEASE_ALONE,
    ]


def test_the_report_names_what_is_off():
    """Tables for each kind, groups pair by pair, the worst by name, the goals."""
    found = [an_effect(measured=1.2, ratio=1.2, group="offload"), an_effect(measured=1.2, ratio=0.9)]
    text = "\n".join(ratios.lines({"shipped constants": found}))

    assert "offload: recompute:none->full" in text
    assert "1.000 +0.200 s" in text
    assert "-25.0%  1.200 predicted 0.900  gpt on 8 h100, a to b: recompute:none->full" in text
    assert "  NO  median of 2 pairs, shipped constants: 12.5% (at most 4%)" in text


@pytest.mark.slow
def test_a_missed_goal_is_the_exit_code(tmp_path, capsys):
    """A pair that is far off: the release of Qwen3-235B that got slower."""
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("id_a,id_b,changes\nmb-25.09-0284,mb-25.11-0258,container:25.09->25.11;dtype:fp8_current->mxfp8\n")
    groups = tmp_path / "groups.csv"
    groups.write_text("group,id_a,id_b,kind,setting\n")
    written = tmp_path / "out.csv"

    assert main(["--pairs", str(pairs), "--groups", str(groups), "--write", str(written)]) == CHECKS_FAILED
    assert "qwen3-235b-a22b on 64 b200, mb-25.09-0284 to mb-25.11-0258" in capsys.readouterr().out
    assert written.read_text().splitlines()[1].startswith(",precision,mb-25.09-0284,mb-25.11-0258")
