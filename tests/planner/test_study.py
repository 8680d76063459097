"""Studies: one job changed in one thing, each point a proven plan."""

from __future__ import annotations

import csv
import io
import json
import math
from functools import cache

import pytest

from benchmarks.paper.gains import gain_checks, setting_problem
from costmodel.errors import SpecError
from planner import cli, load, plan, render_study, study
from planner.report.html.study_page import study_charts
from planner.report.records.study import FeatureRecord, StudyRecord
from planner.report.study import cost_fraction, feature_remark, features_sections, heading_rows
from planner.verbs.study_features import study_features
from planner.verbs.study_names import STUDIES
from tests.builders_job import a_document
from tests.oracle import in_step
from tests.schemas import row, valid

RELIABILITY = {"failures_per_node_day": 0.01, "mttr_seconds": 60, "checkpoint_seconds": 2}
"""MoFa 5.4.1."""


TWO_LEVELS = {
    "device": "h100-80gb-sxm",
    "num_devices": 16,
    "networks": [
        {"name": "nvlink", "num_peers": 8, "bandwidth": "450GB/s", "latency": "3us"},
        {"name": "rail", "num_peers": 1024, "bandwidth": "50GB/s", "latency": "10us"},
    ],
}

FIXED = {"pin": {"cp": 1, "tp": 2, "pp": 1, "mbs": 1, "recompute": "full"}}
"""A search with few strategies, where the plan is not looked at."""

ONE_NODE = {"cluster": {"device": "h100-80gb-sxm", "num_devices": 8}}


def a_job(**entries):
    """A dense model of two nodes."""
    return load(
        {
            "model": "llama3-8b",
            "cluster": {"device": "h100-80gb-sxm", "num_devices": 16},
            "training": {"global_batch_size": 64, "sequence_length": 4096, "tokens": 1e12},
            "search": {"pin": {"cp": 1}},
            **entries,
        }
    )


@cache
def features():
    """Every feature of the plan of that job."""
    return study(a_job(), "features")


def of(report, name):
    """The points of an entry by their values."""
    (series,) = (one for one in report.series if one.name == name)
    return {point.value: point.plan for point in series.points}


# --- reliability -------------------------------------------------------------------------------------------


def a_mofa_job():
    """MoFa's section 5.4: 32 nodes, a million steps."""
    tokens = 64 * 8192 * 10**6
    return load(
        a_document(
            "mofa-llama3-405b",
            "256xmofa-b",
            batch=64,
            sequence=8192,
            tokens=tokens,
            training={"precision": "mofa"},
            reliability=RELIABILITY,
            search={"pin": {"cp": 1}, "framework_rules": False, "evidence": "any"},
        )
    )


@pytest.mark.slow
def test_reliability_is_the_papers_equations_to_the_last_digit():
    """(36)-(40) for given intervals, (44) for the best one: K* = 37 and 99.59 % are printed in 5.4.1."""
    report = study(a_mofa_job(), "reliability", {"interval": [10, 37, 500], "mttr": [18, 60]}, step_seconds=28)

    q, steps, step = 32 * 0.01 / 86400, 10**6, 28
    for interval, found in of(report, "interval").items():
        progress = 1 - q * (60 + interval * step / 2)  # of (40)
        total = (steps * step + steps / interval * 2 + 0.0) / progress  # (38) in (39)
        lost = 0.0 + q * total * (60 + interval * step / 2) + steps / interval * 2  # (39)
        assert found.schedule.total_seconds == total
        assert found.schedule.failures == q * total  # (38)
        assert found.schedule.interruption_seconds == lost
        assert found.schedule.ettr == steps * step / (steps * step + lost)  # (36), (37)
    best = (math.sqrt(2 * 2 + 2 * 2 * (1 - q * 60) * step / (q * step)) - 2) / step  # (44)
    assert of(report, "mttr")[60].schedule.continuous_interval_steps == best
    assert of(report, "mttr")[60].schedule.interval_steps == 37
    assert math.floor(of(report, "mttr")[60].schedule.ettr * 1e4) / 100 == 99.59


@pytest.mark.slow
def test_reliability_plans_each_point_with_its_own_interval():
    """Figure 5: ETTR falls as nodes, failures, repair and checkpoints grow; 60 s of checkpoint are 97.89 %."""
    report = study(
        a_mofa_job(),
        "reliability",
        {"nodes": [8, 240], "failures": [0.0025, 0.015], "checkpoint": [2, 60]},
        step_seconds=28,
    )

    for name in ("nodes", "failures", "checkpoint"):
        first, last = of(report, name).values()
        assert first.schedule.ettr > last.schedule.ettr
    # 2 T_ckpt / K* T_step with K* = sqrt(2 * 60 / q) / 28 s: 2 * 60 / 5692 s is 2.1 %
    assert of(report, "checkpoint")[60].schedule.ettr == pytest.approx(0.9789, abs=5e-5)


def test_asynchronous_checkpoints_are_studied():
    """The copy alone takes longer: storage is written as before, and the job's own value is its own plan."""
    job = a_job(reliability={"asynchronous_checkpoints": True, "failures_per_node_day": 0.1})
    report = study(job, "reliability")
    (series,) = (one for one in report.series if one.name == "checkpoint")

    (own,) = (point.plan for point in series.points if point.value == series.own)
    assert own.schedule == report.base.schedule
    assert {point.plan.reliability.storage_seconds for point in series.points} == {own.reliability.storage_seconds}


def test_a_rate_at_which_no_training_ends_is_a_point_without_a_plan():
    """1,000 failures per node and day leave no time between two of them."""
    report = study(a_job(), "reliability", {"failures": [0.01, 1000]})

    assert of(report, "failures")[1000] is None
    assert "failures outrun progress" in render_study(report)
    assert report.exit_code == 0


# --- features ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_feature_alone_and_last_are_the_papers_gains():
    """Table 6: 24.29 s with and 25.89 s without TP overlap at MBS1 are 6.18 %, MBS2 over MBS1 5.89 %."""
    alone = setting_problem(64, 16, {"tp": 8, "pp": 8, "mbs": 1})
    best = plan(alone.change_limits(simplest=False), certified=False).plans[0]
    (overlap,) = study_features(alone, best, ("tp_overlap",))

    assert overlap.is_in_plan
    assert overlap.last.fraction == pytest.approx(1 - 24.29 / 25.89, abs=5e-4)
    assert overlap.replanned_gain.fraction == pytest.approx(overlap.last.fraction, abs=2e-3)
    assert overlap.alone.fraction > 0


@pytest.mark.slow
def test_features_of_a_plan_are_taken_away_and_others_are_added():
    """The plan has what its line says; a plan without a feature is proven to be no faster."""
    report = features()

    inside = {one.name for one in report.features if one.is_in_plan}
    whole = report.base.strategy
    assert inside == {name for name in ("sharding", "dp_overlap") if getattr(whole, name)} | (
        inside - {"sharding", "dp_overlap"}
    )
    assert inside
    for one in report.features:
        assert (getattr(whole, one.name) == getattr(one.other.plan.strategy, one.name)) is False
        assert one.replanned_gain is None or one.replanned_gain.fraction >= -1e-9
        text = one.other.plan.step_seconds
        assert one.last.fraction == pytest.approx(1 - report.base.step_seconds / text, abs=1e-9)


@pytest.mark.slow
def test_costs_are_shares_of_the_plans_step_and_gains_of_the_step_without():
    """Recomputation that makes a step of 2 s one of 2.5 s costs 25 % of the plan's step, and not 20 %."""
    whole = StudyRecord.read(features())
    base = whole.base.step_time_seconds
    cells = {row[0]: row for section in features_sections(whole) for row in section.rows}

    assert {one.is_in_plan for one in whole.features} == {True, False}
    for one in whole.features:
        other, row = one.other_step_seconds, cells[f"{one.name}={one.text}"]
        ends = sorted(float(end.strip("%")) for end in row[3].split(" to "))
        assert row[2] == (f"{1 - base / other:+.1%}" if one.is_in_plan else f"{other / base - 1:+.1%}")
        assert ends[0] < float(row[2].strip("%")) < ends[1]
        assert row[-1] == f"{one.replanned.step_time_seconds / base - 1:+.1%} over the plan"
    assert cost_fraction(1 - 2 / 2.5) == pytest.approx(0.25)


@pytest.mark.slow
def test_every_gain_of_the_papers_tables_has_its_sign_and_order():
    """18 gains of Table 6, Table 7, and Figures 4 to 6; fewer of the settings are every second or third one."""
    assert [one.name for one in gain_checks(max(1, 6 // in_step(6))) if not one.holds] == []


# --- plans -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_point_is_the_plan_of_the_changed_job():
    """A batch of 128 is planned as a job of its own would be."""
    report = study(a_job(), "batch", {"batch": [64, 128]})
    alone = plan(load(a_job().document, ["training.global_batch_size=128"]).change_limits(simplest=False))

    assert of(report, "batch")[128].step_seconds == alone.plans[0].step_seconds
    assert of(report, "batch")[64].step_seconds == report.base.step_seconds
    assert report.series[0].own == 64


def test_values_that_can_be_read_once_are_studied():
    """An iterator is read before the job is planned, and not again."""
    job = a_document("llama3-8b", "8xh100-80gb-sxm", batch=16, sequence=4096, tokens=1e9) | {"search": FIXED}
    (series,) = study(job, "batch", {"batch": iter((16, 32))}).series

    assert [point.value for point in series.points] == [16, 32]


def test_linearity_is_throughput_per_device_over_the_first():
    """(45): with the batch in proportion T_1 / T_2."""
    report = study(a_job(), "scale", {"weak": [8, 16]})
    first, last = report.series[0].points

    assert last.plan.facts.workload.global_batch_size == 2 * first.plan.facts.workload.global_batch_size
    assert last.linearity_fraction == pytest.approx(first.plan.step_seconds / last.plan.step_seconds, rel=1e-12)
    assert first.linearity_fraction == 1


@pytest.mark.slow
def test_spare_nodes_stay_spare():
    """16 of 24 devices train, at most 40 of 48; no size is the spare node alone."""
    job = a_job(cluster={"device": "h100-80gb-sxm", "num_devices": 24, "spare_nodes": 1})
    (series,) = study(job, "scale", {"strong": [24, 48]}).series

    plans = [point.plan for point in series.points]
    assert [one.cluster.num_devices + one.num_idle_devices for one in plans] == [16, 40]
    assert series.own == 24
    assert study(job, "scale").series[0].points[0].value == 24


@pytest.mark.slow
def test_devices_that_a_plan_leaves_idle_are_named():
    """A batch of 16 sequences has no work for 256 GPUs without losing time: table, page, JSON and CSV say so."""
    job = a_job(training={"global_batch_size": 16, "sequence_length": 4096, "tokens": 1e10})
    report = study(job, "scale", {"strong": [16, 256]})
    none, some = (point.plan for point in StudyRecord.read(report).series[0].points)

    assert (none.num_devices, none.num_idle_devices) == (16, 0)
    assert some.num_idle_devices == 256 - some.num_devices > 0
    for form in ("table", "markdown"):
        assert render_study(report, form).count(f"uses {some.num_devices} of 256 GPUs") == 1
    assert f"uses {some.num_devices} of 256 GPUs" in render_study(report, "html")
    heading = dict(heading_rows(StudyRecord.read(study(load(job.document, ["cluster.num_devices=256"]), "batch"))))
    assert heading["uses"] == f"{some.num_devices} of 256 GPUs"
    assert [one["num_idle_devices"] for one in csv.DictReader(io.StringIO(render_study(report, "csv")))] == [
        "0",
        str(some.num_idle_devices),
    ]


SIX_LAYERS = {"hidden_size": 1024, "num_layers": 6, "num_heads": 8, "ffn_hidden_size": 4096, "vocab_size": 32000}
PINNED = {"tp": 1, "cp": 1, "sharding": "optimizer", "recompute": "none", "cuda_graphs": "none"}


def test_a_study_without_values_chooses_them():
    """VPP up to six layers, embedding and head over PP2, PP up to four GPUs, MBS that divides 24; domains."""
    job = a_job(
        model=SIX_LAYERS,
        cluster={"device": "h100-80gb-sxm", "num_devices": 4},
        training={"global_batch_size": 24, "sequence_length": 1024, "tokens": 1e9},
        search={"pin": {**PINNED, "pp": 2}},
    )

    report = study(job, "schedule")
    domains = study(a_job(model=SIX_LAYERS, search={"pin": {**PINNED, "pp": 1}}), "nodes")

    assert [[*of(report, name)] for name in ("vpp", "pp", "mbs")] == [[1, 2, 4], [1, 2, 4], [1, 2, 4, 8]]
    assert [*of(domains, "scale_up")] == [8, 16]


SPLIT = {"tp": 8, "cp": 1, "pp": 1, "mbs": 1, "sharding": "optimizer", "recompute": "full"}
LARGE = {"model": "llama3-70b", "cluster": {"device": "h100-80gb-sxm", "num_devices": 32}}


def test_linearity_begins_at_the_first_point_with_a_plan():
    """70 billion parameters with their optimizer states do not fit on two nodes of tensor-parallel ranks."""
    (series,) = study(a_job(**LARGE, search={"pin": SPLIT}), "scale", {"strong": [16, 32]}).series

    assert [(one.plan is None, one.linearity_fraction) for one in series.points] == [(True, None), (False, 1)]


@pytest.mark.slow
def test_a_feature_without_which_nothing_fits_says_so():
    """ZeRO-1 frees 12 bytes of each parameter but a fourth; a search that found nothing in time proves nothing."""
    pinned = {name: value for name, value in SPLIT.items() if name not in ("sharding", "recompute")}
    job = a_job(**LARGE, search={"pin": {**pinned, "recompute": "full", "cuda_graphs": "none", "dp_overlap": True}})
    (best,) = plan(job, certified=False, explained=False).plans[:1]
    late = job.change_limits(time_limit_seconds=1e-6)

    remarks = [
        feature_remark(FeatureRecord.read(one))
        for given in (job, late)
        for one in study_features(given, best, ["sharding"])
    ]

    assert remarks[0].startswith("nothing fits; lacks ")
    assert remarks[1] == "time ran out"


def test_nodes_of_another_number_do_not_idle():
    """The study of nodes keeps the plan's step on each of them."""
    points = StudyRecord.read(study(a_job(), "reliability", {"nodes": [1, 2, 8]})).series[0].points

    assert [(one.plan.num_devices, one.plan.num_idle_devices) for one in points] == [(8, 0), (16, 0), (64, 0)]


def test_more_bandwidth_is_never_slower():
    """Each point is proven, so that steps fall as the network grows."""
    found = of(study(a_job(), "network", {"internode": ["10GB/s", "400Gbit/s"]}), "internode")

    assert list(found) == [10e9, 50e9]
    assert found[10e9].step_seconds >= found[50e9].step_seconds


# --- wrong input -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("featurs", {}, r"study: there is no study 'featurs'\. Did you mean 'features'\?"),
        ("schedule", {"vp": [1, 2]}, r"values\.vp: is no entry of the study 'schedule'\. Did you mean 'vpp'\?"),
        ("batch", {"batch": [64]}, r"values\.batch: has one value, 64; a study compares at least two\."),
        ("batch", {"batch": [64, 64]}, r"has one value, 64"),
        ("batch", {"batch": [0, 64]}, r"training\.global_batch_size: must be at least 1, got 0"),
        ("reliability", {"interval": [0, 5]}, r"values\.interval: expected whole numbers from 1, got 0\."),
        ("reliability", {"checkpoint": [-1, 5]}, r"values\.checkpoint: must be at least 0, got -1\."),
        ("reliability", {"mttr": [-1, 5]}, r"reliability\.mttr_seconds: must be at least 0, got -1"),
        ("network", {"internode": ["400Gbps", "1GB/s"]}, r"values\.internode: .*Write 400Gbit/s"),
        ("nodes", {"scale_up": [8, 12]}, r"a domain of level 'nvlink' holds 12 devices"),
        ("features", {"vpp": [1, 2]}, r"values\.vpp: the study 'features' takes no values"),
    ],
    ids=str,
)
def test_wrong_input_is_named(name, values, message):
    """Place, value seen and what is allowed."""
    with pytest.raises(SpecError, match=message):
        study(a_job(search=FIXED), name, values)


@pytest.mark.parametrize(
    ("entries", "name", "values", "message"),
    [
        (ONE_NODE, "network", {"internode": ["1GB/s", "2GB/s"]}, "scale-up domain of 8"),
        ({"reliability": {"failures_per_node_day": 0}}, "reliability", {"mttr": [1, 2]}, "failures_per_node_day is 0"),
        ({}, "schedule", {"vpp": [1, 2]}, r"no pipeline \(PP1\)"),
        ({"search": {"max_devices": 16}}, "scale", {}, "search.max_devices gives the devices"),
        ({"cluster": {**TWO_LEVELS}}, "network", {}, "cluster.networks gives each level its bandwidth"),
    ],
)
def test_a_study_that_does_not_apply_says_why(entries, name, values, message):
    """Nothing would change from point to point."""
    with pytest.raises(SpecError, match=f"'{name}' does not apply to this job: .*{message}"):
        study(a_job(**{"search": FIXED, **entries}), name, values)


@pytest.mark.slow
def test_a_part_that_does_not_apply_is_a_note():
    """A plan without a pipeline has micro-batches, but no VPP."""
    report = study(a_job(), "schedule", {"vpp": [1, 2], "mbs": [1, 2]})

    assert [one.name for one in report.series] == ["mbs"]
    assert report.notes == ("vpp does not apply to this job: the plan has no pipeline (PP1).",)


def test_a_measured_step_is_for_reliability_alone():
    """Other studies predict steps."""
    with pytest.raises(SpecError, match="step: the study 'batch' predicts steps"):
        study(a_job(), "batch", step_seconds=20)


def test_a_job_without_a_plan_has_nothing_to_study():
    """405 billion parameters do not fit on 16 GPUs, however long a step was measured."""
    report = study(a_job(model="llama3-405b"), "reliability", step_seconds=20)

    assert (report.base, report.exit_code) == (None, 1)
    assert "planner explain" in render_study(report)


@pytest.mark.parametrize("name", ["features", "schedule", "reliability"])
def test_a_search_that_ran_out_of_time_is_not_called_infeasible(name):
    """Llama 3 8B has a plan on 16 GPUs, but none is found in a thousandth of a second."""
    report = study(a_job(search={"time_limit_seconds": 1e-3}), name)

    assert (report.base, report.exit_code) == (None, 3)
    assert report.notes == ("time ran out before a strategy was found: raise --time-limit.",)
    assert "no strategy fits" not in render_study(report)


@pytest.mark.slow
def test_a_job_is_a_mapping_or_a_path_too(tmp_path):
    """``study`` reads its job as ``load`` does."""
    entries = dict(a_job().document)
    path = tmp_path / "job.yaml"
    path.write_text(json.dumps(entries), encoding="utf-8")

    expected = [point.text for point in study(a_job(), "batch", {"batch": [64, 128]}).series[0].points]
    for job in (entries, str(path)):
        assert [point.text for point in study(job, "batch", {"batch": [64, 128]}).series[0].points] == expected


@pytest.mark.parametrize(
    ("job", "values", "step", "message"),
    [
        (42, None, None, r"job: expected a job file's path or a mapping, got 42"),
        ("", ["vpp"], None, r"values: expected lists of values by the names of entries, got \['vpp'\]"),
        ("", {"batch": "64"}, None, r"values\.batch: expected a list of values, got '64'"),
        ("", {"batch": 64}, None, r"values\.batch: expected a list of values, got 64"),
        ("", {"batch": [64, None]}, None, r"values\.batch: expected a count"),
        ("", {}, "28s", r"step: expected a number of seconds, got '28s'"),
        ("", {}, math.nan, r"step: must be positive and finite, got nan"),
        ("", {}, 0, r"step: must be positive and finite, got 0"),
    ],
)
def test_arguments_of_another_type_are_named(job, values, step, message):
    """A script gets the place, the value seen and what is allowed."""
    name = "batch" if step is None else "reliability"
    with pytest.raises(SpecError, match=message):
        study(job or a_job(), name, values, step_seconds=step)


# --- output ------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "values"), [("features", {}), ("batch", {"batch": [32, 64]}), ("schedule", {"pp": [1, 64]})]
)
def test_json_and_csv_satisfy_their_schemas(name, values):
    """A row of CSV for each point or feature, an entry of JSON for each, a chart and a table on the page."""
    report = study(a_job(), name, values) if values else features()
    document = valid("study", json.loads(render_study(report, "json")))
    cells = list(csv.DictReader(io.StringIO(render_study(report, "csv"))))

    points = [point for series in document["series"] for point in series["points"]]
    assert len(cells) == len(points) + len(document["features"]) > 0
    assert all(valid("study-row", row(one)) for one in cells)
    page = render_study(report, "html")
    assert page.count("data-chart=") == len(document["series"]) + bool(document["features"])
    assert "<table" in page
    assert render_study(report, "markdown").startswith("# Study of ")


def test_plots_hold_their_points_and_intervals():
    """The band of ETTR on other numbers of nodes is that of these nodes; gains are drawn as gains."""
    whole = StudyRecord.read(study(a_job(), "reliability", {"nodes": [2, 512], "mttr": [60, 600]}))
    charts = study_charts(whole)

    for chart in charts.values():
        (series,) = chart["series"]
        for (_, value, _), (low, high) in zip(series["points"], series["spread"], strict=True):
            assert low <= value <= high
    assert charts["mttr"]["x"]["label"] == "MTTR, seconds"


def test_the_command_prints_a_study(capsys):
    """Words pin decisions; values are lists and ranges."""
    words = "study schedule llama3-8b 16xh100 --batch 64 --sequence 4k --tokens 1T TP1 --values mbs=1,2 --format csv"
    assert cli.main(words.split()) == 0

    cells = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [(one["series"], one["text"]) for one in cells] == [("mbs", "1"), ("mbs", "2")]


def test_an_unknown_study_is_no_command(capsys):
    """The nearest name is suggested."""
    assert cli.main(["study", "reliabilty", "job.yaml"]) == 2

    assert "Did you mean 'reliability'?" in capsys.readouterr().err
    assert set(STUDIES) >= {"features", "reliability"}
