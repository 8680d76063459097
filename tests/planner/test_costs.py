"""Money and energy of jobs: in every format, against published trainings, and where something is wrong."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from io import StringIO

import pytest

from costmodel.costs import MWH_JOULES
from costmodel.errors import SpecError
from planner.batch.top import render_top, top
from planner.batch.work import figures
from planner.cli import main
from planner.jobs.problem import load
from planner.report import render
from planner.report.records.plan import NumberedPlanRecord
from planner.report.section import money
from planner.report.short import short_sections
from planner.verbs.compare import compare
from planner.verbs.plan import plan
from tests.builders_estimate import estimate_by_recipes as estimate
from tests.cases import in_one_case, read_table

CASES = read_table("costs")

JOB = {
    "model": "llama3-8b",
    "cluster": {"device": "h100-80gb-sxm", "num_devices": 64},
    "training": {"global_batch_size": 512, "sequence_length": "8k", "tokens": "2T"},
}
PRICES = ("costs.price_per_device_hour=2.50", "costs.pue=1.2", "costs.electricity_price_per_kwh=0.1")


def estimated(*overrides: str, **decisions: object):
    """The given strategy of the small job."""
    return estimate(load(JOB, overrides), {"tp": 2, **decisions})


def told(report, title: str) -> dict[str, str]:
    """The facts of a section of the text, each in one line."""
    lines = render(report, "table").partition(f"\n{title}\n")[2].partition("\n\n")[0].splitlines()[1:]
    facts: dict[str, str] = {}
    for line in lines:
        name, text = re.split(r"\s{2,}", line, maxsplit=1)
        facts |= {name: text} if name else {next(reversed(facts)): f"{[*facts.values()][-1]} {text}"}
    return facts


# --- figures ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_format_has_the_same_money_and_energy():
    """GPU-hours at 2.50, energy of the data centre at 0.1, and half of each per trillion of the two trillion tokens."""
    report = estimated(*PRICES)
    run, costs = report.plan.schedule, json.loads(render(report, "json"))["costs"]

    assert costs["device_hours"] == run.gpu_hours
    assert costs["device_cost"] == pytest.approx(2.5 * run.gpu_hours)
    assert costs["facility_energy_mwh"] == pytest.approx(1.2 * costs["it_energy_mwh"])
    assert costs["electricity_cost"] == pytest.approx(1000 * costs["facility_energy_mwh"] * 0.1)
    assert costs["total_cost"] == pytest.approx(costs["device_cost"] + costs["electricity_cost"])
    assert costs["it_power_megawatts"] == pytest.approx(costs["it_energy_mwh"] / run.days / 24)
    assert costs["it_power_megawatts"] == pytest.approx(64 * costs["mean_device_watts"] / 1e6)
    for name in ("device_hours", "it_energy_mwh", "facility_energy_mwh", "total_cost"):
        assert costs[f"{name}_per_trillion_tokens"] == pytest.approx(costs[name] / 2)
    (row,) = csv.DictReader(StringIO(render(report, "csv")))
    assert {name: row[name] for name in costs} == {name: str(value) for name, value in costs.items()}
    facts = told(report, "Money and energy")
    assert facts["money"].startswith(f"{costs['total_cost']:,.0f} USD, {costs['total_cost'] / 2:,.0f} USD per trillion")
    assert facts["data centre"].startswith(f"{costs['facility_energy_mwh']:.4g} MWh at a PUE of 1.2")
    assert "- not counted: the rest of the nodes" in render(report, "markdown")


@pytest.mark.slow
def test_energy_lies_between_idle_and_full_power():
    """Of 64 H100 for the whole time: 105 W and 700 W each."""
    report = estimated()
    joules, seconds = report.plan.costs.energy.it_joules, report.plan.schedule.total_seconds

    assert 64 * 105 * seconds < joules < 64 * 700 * seconds


def test_without_a_price_there_is_no_money():
    """The report says how to give one; energy needs none."""
    report = estimated()
    facts, costs = told(report, "Money and energy"), json.loads(render(report, "json"))["costs"]

    assert "costs.price_per_device_hour=2.50" in facts["money"]
    assert facts["not counted"].endswith("the data centre (costs.pue)")
    assert (costs["total_cost"], costs["facility_energy_mwh"]) == (None, None)
    assert costs["it_energy_mwh"] > 0


def test_a_device_without_a_published_power():
    """No energy, and what to write for one; with it there is one, and a price of energy alone makes money."""
    unknown = estimated("cluster.device=tpu-v5p", *PRICES)
    device = {"base": "tpu-v5p", "power_watts": "0.45kW"}
    job = {**JOB, "cluster": {**JOB["cluster"], "device": device}, "costs": {"electricity_price_per_kwh": "100/MWh"}}
    known = estimate(load(job), {"tp": 2}).plan.costs

    assert "{base: tpu-v5p, power_watts: N}" in told(unknown, "Money and energy")["energy"]
    assert told(unknown, "Money and energy")["money"].startswith("not known")
    assert unknown.plan.costs.device_cost > 0
    assert known.device_cost is None
    assert known.total_cost == pytest.approx(known.energy.it_joules / MWH_JOULES * 100)


def test_spares_are_paid():
    """Eight nodes of which one is a spare: its hours and its idle power count."""
    spare = estimated("cluster.spare_nodes=1", "costs.price_per_device_hour=1", dp=28).plan

    assert spare.costs.device_hours == pytest.approx(64 / 56 * spare.schedule.gpu_hours)
    watts = spare.costs.energy.it_joules / spare.schedule.total_seconds
    assert watts == pytest.approx(56 * spare.costs.energy.mean_watts + 8 * 105)


@pytest.mark.parametrize(
    ("limit", "idle", "beyond"),
    [
        pytest.param("search.idle_devices=true", 32, 0, id="nodes that may be idle"),
        pytest.param("search.max_devices=64", 32, 0, id="any number of all"),
        pytest.param("search.max_devices=48", 16, 16, id="any number of some"),
        pytest.param("search.max_devices=32", 0, 32, id="as many as the job allows"),
    ],
)
def test_idle_devices_are_paid(limit, idle, beyond):
    """Of 64 GPUs 32 train; those of the job that are idle are paid at 1, draw 105 W, and are said to be paid."""
    report = estimated(limit, "costs.price_per_device_hour=1", "costs.pue=1.2", dp=16)
    costs, run = report.plan.costs, report.plan.schedule
    facts, record = told(report, "Money and energy"), json.loads(render(report, "json"))["costs"]

    assert report.plan.cluster.num_devices == 32
    assert record["num_idle_devices"] == idle
    assert costs.total_cost == costs.device_hours == pytest.approx((32 + idle) / 32 * run.gpu_hours)
    watts = costs.energy.it_joules / run.total_seconds
    assert watts == pytest.approx(32 * costs.energy.mean_watts + idle * 105)
    said = [facts["money"], next(report_rows(report, "money"))]
    assert [one.endswith(f"; {idle} idle GPUs are paid") for one in said] == [idle > 0] * 2
    assert (f"GPUs ({idle} idle ones included)" in facts["energy"]) == (idle > 0)
    assert (f"{beyond} GPUs beyond search.max_devices" in facts["not counted"]) == (beyond > 0)


def test_plans_that_leave_nodes_idle_pay_for_them():
    """72 GPUs and a batch of 64: 64 of them are fastest, and all 72 are rented."""
    cluster = {"device": "h100-80gb-sxm", "num_devices": 72}
    training = {"global_batch_size": 64, "sequence_length": "8k", "tokens": "2T"}
    report = plan(load({**JOB, "cluster": cluster, "training": training}, PRICES), certified=False)
    best = report.plans[0]

    assert best.cluster.num_devices == 64
    assert best.num_idle_devices == 8
    assert best.costs.device_hours == pytest.approx(72 / 64 * best.schedule.gpu_hours)
    assert next(report_rows(report, "money")).endswith("; 8 idle GPUs are paid")


def test_the_short_answer_has_money_where_there_is_a_price():
    """Without one it says nothing; energy and checkpoints stand in the whole report."""
    priced, free = estimated("costs.price_per_device_hour=2"), estimated("costs.pue=1.25")
    names = {name for name, _ in next(short_sections(priced)).rows}

    assert next(report_rows(priced, "money")).startswith(money(2 * priced.plan.costs.device_hours, "USD"))
    assert not [*report_rows(free, "money")]
    assert not names & {"energy", "checkpoint"}


def report_rows(report, name: str) -> Iterator[str]:
    """The rows of the short answer with a name."""
    return (text for row, text in next(short_sections(report)).rows if row == name)


def test_downtime_costs_money_and_little_energy():
    """With a hundred times the failures, hours grow more than energy."""
    calm, rough = (estimated(f"reliability.failures_per_node_day={rate}").plan.costs for rate in (0.004, 0.4))

    more_hours = rough.device_hours / calm.device_hours
    assert 1 < rough.energy.it_joules / calm.energy.it_joules < more_hours


@pytest.mark.parametrize(("model", "given", "strategy", "mwh"), CASES["published"].values(), ids=CASES["published"])
def test_whole_trainings_against_published_energy(model, given, strategy, mwh):
    """From the job alone 40 % too little to 12 % too much: trainings took longer than their steps and mean failures."""
    device, num_devices, batch, sequence, tokens, framework = given
    job = {
        "model": {"model_type": "llama", "vocab_size": 100352, "max_position_embeddings": sequence, **model},
        "cluster": {"device": device, "num_devices": num_devices, "framework": framework},
        "training": {"global_batch_size": batch, "sequence_length": sequence, "tokens": tokens},
    }
    energy = estimate(load(job), strategy).plan.costs.energy

    assert 0.59 < energy.it_joules / MWH_JOULES / mwh < 1.13


@pytest.mark.slow
def test_mfu_by_the_bf16_peak():
    """An 8-bit job has half its MFU by the fp8 peak, 1,979 against 989 TFLOP/s; a bf16 job has one."""
    narrow, wide = (estimated(f"training.precision={name}") for name in ("fp8", "bf16"))
    whole = json.loads(render(narrow, "json"))

    assert whole["mfu_bf16"] == pytest.approx(whole["mfu"] * 1979 / 989)
    assert whole["conventions"]["peak_bf16_tflops_per_gpu"] == 989
    assert f"MFU by the bf16 peak instead: {whole['mfu_bf16']:.1%}." in render(narrow, "table")
    assert wide.plan.mfu_bf16 == wide.plan.mfu
    assert "bf16 peak instead" not in render(wide, "table")


# --- several plans ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_plans_and_comparisons_have_differences():
    """The money of each listed plan, and by how much a given strategy is dearer than the fastest."""
    problem = load(JOB, [*PRICES, "search.pin.tp=2", "costs.currency=EUR"])
    report = plan(problem, certified=False)
    plans = json.loads(render(report, "json"))["plans"]
    text = render(report, "table")
    compared = compare(load(JOB, PRICES), {"tp": 4})
    saved = json.loads(render(compared, "json"))["apart"]["saved_costs"]

    assert len(plans) > 1
    for one in plans:
        assert one["difference_cost"] == pytest.approx(one["costs"]["total_cost"] - plans[0]["costs"]["total_cost"])
    assert "Money and energy of all strategies" in text
    assert re.search(r"^#  device-hours +MWh +MW +EUR  difference$", text, flags=re.MULTILINE)
    given, best = compared.given.plan.costs, compared.best.costs
    assert saved["total_cost"] == pytest.approx(given.total_cost - best.total_cost)
    assert saved["it_energy_mwh"] == pytest.approx((given.energy.it_joules - best.energy.it_joules) / MWH_JOULES)
    assert f", {saved['total_cost']:,.0f} USD less" in " ".join(render(compared, "table").split())


def test_batches_rank_by_money_and_energy():
    """Lines of two jobs; those in several currencies are no ranking by cost."""
    lines = [line(*PRICES), line(*PRICES, "cluster.num_devices=128"), line(*PRICES, "costs.currency=EUR")]
    ranked = top(lines[:2], by="cost")

    assert [plan["total_cost"] for _, plan in ranked] == sorted(one["plans"][0]["total_cost"] for one in lines[:2])
    assert f"{ranked[0][1]['total_cost']:,.0f} USD" in render_top(ranked, "table", "cost")
    assert "MWh" in render_top(top(lines, by="energy"), "table", "energy")
    with pytest.raises(SpecError, match="--by: 'cost' cannot rank jobs with costs in EUR and USD"):
        top(lines, by="cost")


def line(*overrides: str) -> dict:
    """A line of a results file, as far as rankings read it."""
    (record,) = NumberedPlanRecord.build_all([estimated(*overrides).plan])
    return {"name": "a job", "plans": [figures(record)]}


# --- the command line, and what is wrong ------------------------------------------------------------------------------

WORDS = ("llama3-8b", "64xh100", "--batch", "512", "--sequence", "8k", "--tokens", "1T")


@pytest.mark.slow
def test_a_price_on_the_command_line(tmp_path, capsys):
    """In one line, in the file that ``init`` writes of it, and beside that file, where it comes first."""
    file = tmp_path / "job.yaml"

    assert main(["init", *WORDS, "costs.price_per_device_hour=2.50", "-o", str(file)]) == 0
    assert "  price_per_device_hour: 2.5\n" in file.read_text()
    assert "  # pue: null\n" in file.read_text()
    for words, price in (
        ([*WORDS, "costs.price_per_device_hour=2.50"], 2.5),
        ([str(file)], 2.5),
        ([str(file), "costs.price_per_device_hour=3/h"], 3),
    ):
        assert main(["estimate", *words, "--format", "json"]) == 0
        whole = json.loads(capsys.readouterr().out)
        assert whole["job"]["costs"]["price_per_device_hour"] == price
        assert load(whole["job"]["document"]).costs.price_per_device_hour == price


@in_one_case(("entry", "message"), CASES["wrong"])
def test_what_is_wrong_is_said(entry, message):
    """The place, the value, what is allowed, and where it can be told what to write."""
    with pytest.raises(SpecError) as caught:
        load(JOB, [f"costs.{entry}"])

    assert str(caught.value).startswith(f"costs.{entry.partition('=')[0]}: ")
    assert message in str(caught.value)


def test_several_mistakes_at_once(capsys):
    """Each with its own place."""
    assert main(["plan", *WORDS, "costs.price_per_device_hour=-3", "costs.pue=0.5"]) == 2

    said = capsys.readouterr().err
    assert "costs.price_per_device_hour: must be at least 0, got -3." in said
    assert "costs.pue: must be at least 1, got 0.5." in said
