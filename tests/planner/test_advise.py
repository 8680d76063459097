"""``planner advise``: devices and sizes for a wish, with lower bounds that cut, prices, and what is nearest."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from dataclasses import replace
from datetime import date, datetime, timedelta
from itertools import product

import pytest

from costmodel import catalog
from costmodel.errors import SpecError
from planner import ClusterChoices, Wish, advice_rows, advise, cli, load, plan, read_prices, render_advice
from planner.advice.advise import plan_here
from planner.advice.page import date_blocks
from planner.advice.points import DAYS, DEVICES, ENERGY, MEGAWATTS, MONEY, bound, dominates
from planner.advice.prices import Offer, PriceList
from planner.advice.records import command_of
from planner.advice.sections import answer_text, front_section, wish_text
from tests.cases import in_one_case, read_table
from tests.schemas import row, valid

CASES = read_table("advise")

DEVICES_OF = ("a100-80gb-sxm", "h100-80gb-sxm", "h200", "b200")
PRICES = PriceList(
    offers=tuple(
        Offer(device=name, low=low, high=high)
        for name, low, high in (
            ("a100-80gb-sxm", 1.0, 1.5),
            ("h100-80gb-sxm", 2.5, 2.5),
            ("b200", 5.0, 6.0),
        )
    )
)
"""H200 has none."""


PLANNED = {}
"""Results of this module's cells by key: most tests ask about the same ones."""


def remember(jobs):
    """Plan in this process, each job once."""
    for index, job in enumerate(jobs):
        if job.key not in PLANNED:
            (PLANNED[job.key],) = plan_here([job])
        yield replace(PLANNED[job.key], index=index)


def ask(*words, **options):
    """An advice whose cells are planned once."""
    return advise(*words, **{"run": remember, **options})


def a_job(**costs):
    """Llama 3 8B on 400 billion tokens."""
    return {
        "model": "llama3-8b",
        "cluster": {"device": "h100-80gb-sxm", "num_devices": 8},
        "training": {"global_batch_size": 256, "sequence_length": 4096, "tokens": 4e11},
        **({"costs": costs} if costs else {}),
    }


def choices(**changes):
    """Four devices in two sizes, three of them with prices."""
    return ClusterChoices(**{"devices": DEVICES_OF, "sizes": (8, 128), "prices": PRICES, **changes})


@pytest.fixture(scope="module")
def everything():
    """Every cell planned."""
    return ask(a_job(), choices(), cuts=False)


def names(points):
    """Devices and sizes."""
    return [(point.cell.device, point.cell.num_devices) for point in points]


@pytest.mark.slow
def test_the_front_with_cuts_is_that_of_every_cell(everything):
    """Bounds cut some cells and no point of the front; both count every cell."""
    found = ask(a_job(), choices())

    assert len(found.cut) > 0 == len(everything.cut)
    assert ["Cut by lower bounds" in render_advice(one, "html") for one in (found, everything)] == [True, False]
    assert found.num_cells == everything.num_cells == 8
    assert names(found.pareto_front) == names(everything.pareto_front)
    assert [point.metrics for point in found.pareto_front] == [point.metrics for point in everything.pareto_front]
    assert names([found.answer]) == names([everything.answer])


@pytest.mark.slow
def test_no_point_of_the_front_is_dominated(everything):
    """By the definition: nowhere more and somewhere less in days, money and energy."""
    front, measures = set(names(everything.pareto_front)), (DAYS, MONEY, ENERGY)

    for one in everything.points:
        others = [
            all(other.metrics[name] <= one.metrics[name] for name in measures)
            and any(other.metrics[name] < one.metrics[name] for name in measures)
            for other in everything.points
        ]
        assert any(others) == (names([one])[0] not in front)


def test_no_plan_is_below_its_bounds(everything):
    """Time, money, energy and power of each plan are at least what its cell takes without a plan."""
    for point in everything.points:
        bounds = bound(point.cell, load(point.cell.document))

        assert all(bounds[name] <= point.metrics[name] for name in (DAYS, MONEY, ENERGY, DEVICES, MEGAWATTS))


def test_no_training_is_faster_than_its_flops(everything):
    """6 FLOPs for each of 6.98e9 weights and each token, over the dense bf16 peaks of all devices."""
    peaks = {"a100-80gb-sxm": 312e12, "h100-80gb-sxm": 989.4e12, "h200": 989.4e12, "b200": 2.25e15}

    for point in everything.points:
        least = 6 * 6.98e9 * 4e11 / peaks[point.cell.device] / point.cell.num_devices / 86_400
        assert point.metrics[DAYS] > least


def test_money_is_that_of_the_offer(everything):
    """Device-hours at the mean price; the interval has the ends of price and step."""
    (point,) = [one for one in everything.points if names([one]) == [("a100-80gb-sxm", 128)]]
    hours = point.metrics[DAYS] * 24 * 128

    assert point.metrics[MONEY] == pytest.approx(1.25 * hours)
    low, high = point.intervals[DAYS]
    assert point.intervals[MONEY] == pytest.approx((1.0 * low * 24 * 128, 1.5 * high * 24 * 128))


def test_electricity_is_added():
    """0.10 for a kWh of 1.2 times the energy of the devices."""
    here = choices(devices=("h100",), sizes=(8,))
    (free,), (paid,) = (
        ask(a_job(pue=1.2, **more), here, cuts=False).points for more in ({}, {"electricity_price_per_kwh": 0.1})
    )

    assert paid.metrics[MONEY] - free.metrics[MONEY] == pytest.approx(free.metrics[ENERGY] * 1e3 * 0.1)


def test_a_device_without_a_price_is_left_out_of_money(everything):
    """It has no costs, never is the cheapest, and the notes name it."""
    (point, *_) = [one for one in everything.points if one.cell.device == "h200"]

    assert point.metrics[MONEY] == math.inf
    assert everything.answer.cell.device != "h200"
    assert any("h200" in note and "money" in note for note in everything.notes)


@pytest.mark.parametrize("limits", [{"days": 60, "budget": 500_000}, {"power_watts": 30_000}, {}])
@pytest.mark.parametrize("aim", ["fastest", "cheapest", "least-energy", "fewest-devices"])
def test_the_answer_is_the_best_of_every_cell(everything, aim, limits):
    """With cuts, too: the least of the aim among all that are within the limits, or what cannot be told from it."""
    wish = Wish(aim=aim, **limits)
    quantity = {"fastest": DAYS, "cheapest": MONEY, "least-energy": ENERGY, "fewest-devices": DEVICES}[aim]
    within = [one for one in everything.points if wish.overrun_fraction(one.metrics) <= 0]
    best = min(within, key=lambda one: one.metrics[quantity], default=None)

    found = ask(a_job(), choices(), wish)

    assert (found.answer is None) == (best is None)
    if best is not None:
        assert min(one.metrics[quantity] for one in (found.answer, *found.ties)) == best.metrics[quantity]


@pytest.mark.parametrize("limits", [{"days": 2}, {"budget": 20_000}, {"days": 3, "budget": 2e4}, {"power_watts": 900}])
def test_the_nearest_three_of_every_cell(everything, limits):
    """Cells that bounds had cut are planned after all where they may be nearer to a wish that nothing meets."""
    wish = Wish(**limits)
    finite = [one for one in everything.points if wish.overrun_fraction(one.metrics) < math.inf]
    expected = sorted(wish.overrun_fraction(one.metrics) for one in finite)[:3]

    found = ask(a_job(), choices(), wish)

    assert found.answer is None
    assert found.exit_code == 1
    assert [wish.overrun_fraction(one.metrics) for one in found.nearest] == expected


def test_the_front_is_of_cells_within_the_power():
    """One B200 node beats one H100 node in all but power: within 9 kW H100 is on the front and cheapest for a date."""
    costs = {"pue": 1.5, "electricity_price_per_kwh": 1}
    named = choices(devices=("h100", "b200"), sizes=(8,))
    free, limited = (ask(a_job(**costs), named, wish, cuts=False) for wish in (Wish(), Wish(power_watts=9e3)))

    assert ("b200", 8) in names(free.pareto_front)
    assert names(limited.pareto_front) == names([limited.answer]) == [("h100-80gb-sxm", 8)]
    assert "Cells within 9 kW only: 1 cell left out." in render_advice(limited, "table")
    dates = "".join(date_blocks(limited))
    assert ("h100" in dates, "b200" in dates) == (True, False)


def test_a_wish_that_nothing_meets_says_what_would():
    """The limit that each of the nearest needs, and the tokens with which it would meet the wish."""
    found = ask(a_job(), choices(sizes=(8,)), Wish(days=1))
    text, page = render_advice(found), render_advice(found, "html")
    overruns = [one["overrun_fraction"] for one in json.loads(render_advice(found, "json"))["nearest"]]

    assert "Nearest to the wish" in page
    assert [one["days"] for one in overruns] == [point.metrics[DAYS] - 1 for point in found.nearest]
    assert text.count("instead of 1 day (+") == 3
    assert text.count("fewer tokens") == 3


def test_results_of_an_interrupted_run_are_kept():
    """The second run plans nothing, and answers the same."""
    lines = {}

    def keep(jobs):
        for result in remember(jobs):
            lines[result.key] = {"status": result.status, "plans": result.plans, "message": result.message}
            yield result

    def refuse(jobs):
        assert not list(jobs)
        return ()

    first = ask(a_job(), choices(), Wish(days=60), run=keep)
    again = ask(a_job(), choices(), Wish(days=60), run=refuse, known=lines)

    assert again == first


def test_batches_state_their_quality():
    """Twice the batch with a tenth more tokens: a factor of 1.1 on the tokens of the job, nothing by itself."""
    found = ask(a_job(), choices(devices=("h100",), sizes=(8,), batches=((256, 1.0), (512, 1.1))), cuts=False)
    tokens = {one.cell.global_batch_size: one.cell.document["training"]["tokens"] for one in found.points}

    assert tokens == {256: 4e11, 512: pytest.approx(4.4e11)}
    assert any("batch 512 takes 1.1 times the tokens" in note for note in found.notes)


@pytest.mark.parametrize("format", ["table", "markdown", "json", "html"])
def test_several_sites_are_named_with_their_caveat(format):
    """Sites hold for every device; every answer names them, the wait for their links, and that quality is unknown."""
    job = a_job()
    job["cluster"] |= {"num_devices": 16, "sites": {"count": 2, "bandwidth": "10Gbit/s", "local_steps": 10}}
    found = ask(job, choices(devices=("h100", "h200"), sizes=(16,), prices=PriceList()), cuts=False)
    text = " ".join(render_advice(found, format).split())

    assert [one.cell.document["cluster"]["sites"]["count"] for one in found.points] == [2, 2]
    for said in ("2 data centres", "every 10 steps", "of the step for these links", "Quality is not modelled"):
        assert said in text


def test_idle_devices_are_named():
    """16 sequences divide over 16 of 24 devices at most: whole nodes idle, in words, table and JSON."""
    job = a_job()
    job["training"] |= {"global_batch_size": 16, "tokens": 1e10}
    found = ask(job, choices(devices=("h100",), sizes=(24,), prices=PriceList()), cuts=False)
    (point,) = json.loads(render_advice(found, "json"))["points"]

    assert point["num_idle_devices"] == 24 - 16
    assert "8 of its 24 devices idle" in " ".join(render_advice(found, "table").split())
    assert "idle" in front_section(found).header


def test_an_unknown_power_is_no_near_one():
    """No published power: nothing is listed as near, and the answer says why."""
    name = next(one for one in catalog.devices() if catalog.device(one).power_watts is None and "vr200" in one)
    found = ask(a_job(), choices(devices=(name,), sizes=(8,), prices=PriceList()), Wish(power_watts=50e3))

    assert (found.nearest, found.exit_code) == ((), 1)
    assert "no planned cell has a known power" in render_advice(found, "table")


def test_a_device_that_cannot_run_the_job_is_named():
    """V100 has no bf16; the others answer."""
    found = ask(
        a_job() | {"training": a_job()["training"] | {"precision": "bf16"}},
        choices(devices=("v100-32gb-sxm", "h100"), sizes=(8,), prices=PriceList()),
    )

    assert names(found.points) == [("h100-80gb-sxm", 8)]
    assert found.failed[0].cell.device == "v100-32gb-sxm"
    assert any("v100-32gb-sxm in 8 devices" in note for note in found.notes)
    assert "Without a plan" in render_advice(found, "html")
    assert found.exit_code == 0


def test_cells_that_had_no_time_are_not_called_impossible():
    """No time is no proof; a device that the job itself has a price for needs no table of prices."""
    late = a_job(price_per_device_hour=2) | {"search": {"time_limit_seconds": 1e-6}}
    found = ask(late, choices(devices=("h100",), sizes=(8,), prices=PriceList()))
    priced = ask(a_job(price_per_device_hour=2), choices(devices=("h100",), sizes=(8,), prices=PriceList()))

    assert (found.exit_code, found.rivals) == (3, ())
    assert "no cell has a plan" in render_advice(found)
    assert priced.answer.metrics[MONEY] == pytest.approx(2 * 8 * 24 * priced.answer.metrics[DAYS])
    with pytest.raises(SpecError, match=r"format: there is no format 'htm'\. Did you mean 'html'\?"):
        render_advice(found, "htm")


def test_no_more_cells_are_asked_for_than_a_table_can_hold():
    """Four devices in 30,000 sizes."""
    with pytest.raises(SpecError, match="sizes: devices, sizes and batches make more than 100,000 cells"):
        ask(a_job(), choices(sizes=[*range(1, 30_001)]))


def test_the_page_has_what_the_table_has():
    """Fewest devices and ties stand on the page; days that suffice are rounded up, with the provider."""
    offers = (Offer(device="h100-80gb-sxm", provider="cloud A", low=2.0, high=2.0),)
    found = ask(
        a_job(), choices(devices=("h100",), sizes=(8, 32), prices=PriceList(offers=offers)), Wish(aim="fastest")
    )
    page, dates = render_advice(found, "html"), "".join(date_blocks(found))
    least = [float(days) for days in re.findall(r"([\d.]+) days or more", dates)]

    assert found.fewest is not found.answer
    assert "fewest" in page
    assert "x h100-80gb-sxm at cloud A" in dates
    assert min(least) >= min(point.metrics[DAYS] for point in found.points)


def test_numbers_of_one_are_words_of_one():
    """One day is no days, and an excess of a thousand times is told in times."""
    found = ask(a_job(), choices(devices=("h100",), sizes=(8,), prices=PriceList()), Wish(days=1))
    tight = ask(a_job(), choices(devices=("h100",), sizes=(8,), prices=PriceList()), Wish(power_watts=5))

    assert "at most 1 day" in wish_text(found)
    assert "1 days" not in render_advice(found, "table")
    assert "times)" in render_advice(tight, "table")


def test_a_device_without_runs_wins_no_tie_silently():
    """Gaudi 3 has no measured run: where it is predicted best within the error, a measured device goes first."""

    def asked(price):
        each = {"gaudi3": price, "h100-80gb-sxm": 2.0}
        prices = PriceList(offers=tuple(Offer(device=name, low=one, high=one) for name, one in each.items()))
        return ask(a_job(), choices(devices=tuple(each), sizes=(8,), prices=prices), cuts=False)

    money = {point.cell.device: point.metrics[MONEY] for point in asked(2.0).points}
    found = asked(2.0 * 0.98 * money["h100-80gb-sxm"] / money["gaudi3"])
    better = asked(0.1)

    assert (found.answer.cell.device, [one.cell.device for one in found.ties]) == ("h100-80gb-sxm", ["gaudi3"])
    assert any(
        "gaudi3" in note and "less in money" in note and "measured device goes first" in note for note in found.notes
    )
    assert "measured runs decide for it: 8 x gaudi3" in answer_text(found)
    assert not any("nor on gaudi3" in note for note in found.notes)
    assert better.answer.cell.device == "gaudi3"
    assert any("The answer has no measured run" in note for note in better.notes)


def test_the_command_of_a_point_plans_it_again(everything):
    """Days and money of `planner plan` with its entries, the start and the evaluations among them, are the point's."""
    point = everything.pareto_front[0]
    *entries, flag = command_of(point.cell, everything).split()
    again = plan(load(a_job(), [*entries, "search.fastest=true"]), certified=False).plans[0]

    assert flag == "search.fastest=true"
    assert again.schedule.days == pytest.approx(point.metrics[DAYS])
    assert again.costs.total_cost == pytest.approx(point.metrics[MONEY])


def test_what_the_job_says_of_its_training_is_kept():
    """Without evaluations and start: the days of the plan alone; the notes say what was assumed."""
    job = a_job() | {"reliability": {"init_seconds": 0}}
    job["training"] = job["training"] | {"evaluation_interval_steps": 500, "evaluation_steps": 30}
    found = ask(job, choices(devices=("h100",), sizes=(8,)))
    (point,) = found.points
    steps = point.figures["step_time_seconds"] * point.figures["num_steps"]

    assert point.figures["evaluation_seconds"] == pytest.approx(steps * 30 / 500 / 3)
    assert not any("Assumed" in note for note in found.notes)
    assert any("reliability.init_seconds=520" in note for note in ask(a_job(), choices(sizes=(8,))).notes)


def test_the_slow_end_has_the_uptime_of_published_trainings(everything):
    """At a tenth of the published uptimes, 0.684, and the slow end of steps: at least 1.3 times the days."""
    for point in everything.points:
        low, high = point.intervals[DAYS]

        assert low == pytest.approx(point.spread[0] * point.metrics[DAYS])
        assert high > 1.3 * point.spread[1] * point.metrics[DAYS]


# --- prices ------------------------------------------------------------------------------------------------


def written(tmp_path, text):
    """A file of prices."""
    path = tmp_path / "prices.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_prices_by_provider(tmp_path):
    """A row for each device of a provider, with sizes and interconnect; 400 Gbit/s are 50 GB/s."""
    found = read_prices(
        written(
            tmp_path,
            "device,provider,price_per_hour,least_devices,most_devices,interconnect\n"
            "h100,A,2.00-2.50,64,1024,400Gbit/s\nh200,B,84/day,,,\n",
        )
    )

    assert found.offers == (
        Offer(device="h100-80gb-sxm", provider="A", low=2.0, high=2.5, least=64, most=1024, interconnect=50e9),
        Offer(device="h200", provider="B", low=3.5, high=3.5),
    )


def test_prices_by_column(tmp_path):
    """A column for each provider; several devices of a row; rows whose device nobody knows are noted."""
    found = read_prices(
        written(tmp_path, 'device,large_cloud_usd_h,median_usd_h,note\n"h100, h200",2.00-2.50,,on demand\nxyz9,,1,\n')
    )

    assert [(one.device, one.provider, one.low, one.high, one.currency) for one in found.offers] == [
        ("h100-80gb-sxm", "large cloud", 2.0, 2.5, "USD"),
        ("h200", "large cloud", 2.0, 2.5, "USD"),
    ]
    assert "xyz9" in found.notes[0]
    assert "line 3" in found.notes[0]


@in_one_case(("text", "said"), CASES["prices"])
def test_wrong_prices(tmp_path, text, said):
    """Each names its place, and what is allowed."""
    with pytest.raises(SpecError, match=said) as caught:
        read_prices(written(tmp_path, text))

    assert "prices.csv" in str(caught.value)


def test_sizes_that_nobody_rents_out_are_named():
    """A offers 64 devices or more: 8 has no cell, and the answer says what is rented."""
    offers = (Offer(device="h100-80gb-sxm", provider="A", low=2.0, high=2.0, least=64),)
    found = ask(a_job(), choices(devices=("h100",), sizes=(8,), prices=PriceList(offers=offers)))
    text = " ".join(render_advice(found, "table").split())

    assert (found.num_cells, found.exit_code) == (0, 1)
    assert "Nobody rents out 8 x h100-80gb-sxm" in render_advice(found, "html")
    assert "Nobody rents out 8 x h100-80gb-sxm: A holds for 64 devices or more." in text
    assert "proven" not in text


def test_prices_of_other_devices_choose_no_aim():
    """H200 has no price: without an aim the fastest is asked for, not the cheapest."""
    found = ask(a_job(), choices(devices=("h200",), sizes=(8,)))

    assert (found.aim, names([found.answer])) == ("fastest", [("h200", 8)])
    prices = PriceList(offers=(Offer(device="v100-32gb-sxm", low=1.0, high=1.0),))  # it has no bf16
    with pytest.raises(SpecError, match="aim: the money of no device that runs the job is known"):
        ask(a_job(), choices(devices=("h200", "v100-32gb-sxm"), sizes=(8,), prices=prices), Wish(aim="cheapest"))


def test_a_price_that_may_be_of_a_month_is_noted(tmp_path):
    """1,800 USD an hour for an H100 is near a month of 730 hours at 2.50; sizes that do not overlap may differ."""
    text = "device,provider,price_per_hour,least_devices,most_devices\nh100,A,1800,,63\nh100,A,2,64,\n"
    (note,) = read_prices(written(tmp_path, text)).notes

    assert "line 2: 1800 an hour" in note
    assert "may be the price of a month" in note


def test_energy_below_a_megawatt_hour_is_told_apart():
    """10 billion tokens on 8 H100 take less than one MWh: 5.6 kW and a day at most; no zero in the table."""
    job = a_job()
    job["training"]["tokens"] = 1e10
    section = front_section(ask(job, choices(devices=("h100",), sizes=(8,), prices=PriceList()), cuts=False))
    energy = float(section.rows[0][section.header.index("MWh")])

    assert 0 < energy < 1


def test_offers_hold_for_their_sizes(everything):
    """A provider of 64 to 100 devices has no price for 8; the cheapest that holds the size counts."""
    offers = (
        Offer(device="h100-80gb-sxm", provider="A", low=2.0, high=2.0, least=64, most=100),
        Offer(device="h100-80gb-sxm", provider="B", low=3.0, high=3.0),
    )
    found = ask(a_job(), choices(devices=("h100",), sizes=(8, 64), prices=PriceList(offers=offers)), cuts=False)

    assert {one.cell.num_devices: one.cell.offer.provider for one in found.points} == {8: "B", 64: "A"}


def test_a_slower_interconnect_is_another_cluster():
    """A device behind a tenth of the bandwidth takes longer, and is a cell of its own."""
    offers = (
        Offer(device="h100-80gb-sxm", provider="A", low=2.0, high=2.0),
        Offer(device="h100-80gb-sxm", provider="B", low=2.0, high=2.0, interconnect=5e9),
    )
    found = ask(a_job(), choices(devices=("h100",), sizes=(128,), prices=PriceList(offers=offers)), cuts=False)

    assert [one.cell.offer.provider for one in found.points] == ["A", "B"]
    assert "cluster.internode_bandwidth=5e+09" in command_of(found.points[1].cell, found)


# --- wishes ------------------------------------------------------------------------------------------------

TODAY = date.today()


@in_one_case(
    ("entries", "said"),
    [
        ({"by": date(2020, 1, 1)}, "is past"),
        ({"by": date(2020, 3, 1), "start": date(2020, 1, 1)}, "is past"),
        ({"by": TODAY + timedelta(days=5), "start": TODAY + timedelta(days=9)}, "no day after the start"),
        ({"by": TODAY + timedelta(days=5), "start": TODAY - timedelta(days=1)}, "start: .* is past"),
        ({"by": TODAY + timedelta(days=5), "days": 3}, "contradict"),
        ({"start": TODAY}, "needs a date"),
        ({"budget": 0.0}, "above 0"),
        ({"budget": math.inf}, "above 0"),
        ({"days": -1}, "above 0"),
        ({"power_watts": 0}, "above 0"),
        ({"aim": "cheap"}, "cheapest"),
        ({"aim": 3}, "a name"),
        ({"days": "20"}, "expected a number, got '20'"),
        ({"budget": True}, "expected a number"),
        ({"power_watts": "5MW"}, "expected a number"),
        ({"by": "2099-01-31"}, "datetime.date"),
        ({"by": datetime(2099, 1, 31)}, "datetime.date"),
    ],
)
def test_wishes_that_nothing_can_meet(entries, said):
    """They are refused before anything is planned."""
    with pytest.raises(SpecError, match=said):
        Wish(**entries)


def test_a_date_is_a_limit_of_days():
    """From the second of a month to the twelfth are ten days."""
    first = date(TODAY.year + 1, 3, 2)

    assert Wish(start=first, by=first + timedelta(days=10)).limits == {DAYS: 10}


@pytest.mark.parametrize("wish", [Wish(budget=1e6), Wish(aim="cheapest")])
def test_money_needs_prices(wish):
    """No price is assumed."""
    with pytest.raises(SpecError, match="needs prices"):
        ask(a_job(), choices(prices=PriceList()), wish)


def test_two_currencies_are_refused():
    """The job's electricity is paid in EUR, the devices in USD."""
    with pytest.raises(SpecError, match="EUR and USD"):
        ask(a_job(electricity_price_per_kwh=0.1, currency="EUR"), choices())


def test_a_list_of_strategies_is_refused(tmp_path):
    """It is of one cluster."""
    path = tmp_path / "list.csv"
    path.write_text("tp,pp\n1,1\n", encoding="utf-8")

    with pytest.raises(SpecError, match="strategies of one cluster"):
        ask(a_job() | {"search": {"candidates": str(path)}}, choices())


def test_a_limit_of_devices_is_refused():
    """The sizes say how many there may be."""
    with pytest.raises(SpecError, match=r"is 8, a limit within one cluster.*--sizes 8"):
        advise(a_job() | {"search": {"max_devices": 8}}, choices())


@in_one_case(
    ("entries", "said"),
    [
        ({"sizes": ()}, "there are none"),
        ({"sizes": (0,)}, "from 1"),
        ({"sizes": (True,)}, "from 1"),
        ({"batches": ((256, 0.0),)}, "above 0"),
        ({"batches": ((0, 1.0),)}, "from 1"),
        ({"batches": ((256, 1.0), (256, 1.1))}, "256 is given twice"),
        ({"batches": (256,)}, "pairs"),
        ({"prices": "p.csv"}, "read_prices"),
        ({"devices": "h100"}, "a list of names"),
        ({"devices": (8,)}, "names of devices"),
        ({"sizes": 8}, "a list"),
    ],
)
def test_choices_among_nothing(entries, said):
    """Sizes and batches are whole numbers, and there are some."""
    with pytest.raises(SpecError, match=said):
        ClusterChoices(**entries)


def test_dominance():
    """Nowhere more and somewhere less: equals do not dominate each other."""
    one, two = {DAYS: 1.0, MONEY: 2.0}, {DAYS: 1.0, MONEY: 3.0}

    assert [dominates(*pair, (DAYS, MONEY)) for pair in product((one, two), repeat=2)] == [False, True, False, False]


# --- formats and the command -------------------------------------------------------------------------------


def test_json_and_csv_have_their_schemas(everything):
    """All points, cut cells and notes; a row for each point, also as a data frame takes them."""
    found = ask(a_job(), choices(), Wish(days=60))
    told = valid("advice", json.loads(render_advice(found, "json")))
    rows = list(csv.DictReader(io.StringIO(render_advice(found, "csv"))))

    assert [valid("advice-row", row(cells))["number"] for cells in rows] == [*range(1, len(found.points) + 1)]
    assert told["points"][told["answer"] - 1]["device"] == found.answer.cell.device
    assert len(told["points"]) + len(told["cut"]) == 8
    assert [one["number"] for one in advice_rows(found)] == [one["number"] for one in told["points"]]


@pytest.mark.slow
def test_the_command(tmp_path, capsys):
    """From one line to the answer; the results file answers again."""
    prices = written(tmp_path, "device,price_per_hour\nh100,2.5\nh200,3.5\n")
    words = ["advise", "llama3-8b", "8xh100", "--batch", "256", "--sequence", "4k", "--tokens", "400B"]
    words += ["--prices", str(prices), "--sizes", "8,32", "--days", "100", "--processes", "1"]
    words += ["--results", str(tmp_path / "results.jsonl")]

    codes = [cli.main(words), cli.main(words)]
    first, second = capsys.readouterr().out.split("Devices for")[1:]

    assert codes == [0, 0]
    assert first == second
    assert "the cheapest training in at most 100 days" in first
    assert len((tmp_path / "results.jsonl").read_text().splitlines()) in (2, 3, 4)


def test_a_contradiction_on_the_command_line(capsys):
    """Two aims, and a strategy, which belongs to one cluster."""
    job = ["llama3-8b", "8xh100", "--batch", "256", "--sequence", "4k", "--tokens", "1T", "--devices", "h100"]

    assert cli.main(["advise", *job, "--aim", "fastest", "--aim", "cheapest"]) == 2
    assert cli.main(["advise", *job, "TP8"]) == 2
    assert "contradict each other" in capsys.readouterr().err


def test_devices_of_files(tmp_path):
    """A GPU of one's own: an H100 with twice the memory bandwidth trains no slower than the catalog's."""
    path = tmp_path / "mine.yaml"
    path.write_text("base: h100-80gb-sxm\nname: mine\nmemory_bandwidth: 6.7e12\n", encoding="utf-8")
    found = ask(a_job(), choices(devices=("h100", str(path)), sizes=(8,), prices=PriceList()), cuts=False)
    days = {point.cell.device: point.metrics[DAYS] for point in found.points}

    assert days["mine"] <= days["h100-80gb-sxm"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name: mine\n", "peak_flops: is required"),
        ("base: h100-80gb-sxm\nname: mine\nmemory_bytes: many\n", "memory_bytes"),
        ("base: h999\nname: mine\n", "h999"),
    ],
)
def test_a_wrong_device_file_is_wrong_input(tmp_path, capsys, text, said):
    """Its mistakes are told with the file and exit code 2, not as a cell without a plan."""
    path = tmp_path / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    job = ["llama3-8b", "8xh100", "--batch", "256", "--sequence", "4k", "--tokens", "1T"]

    assert cli.main(["advise", *job, "--devices", f"h100,{path}", "--sizes", "8", "--processes", "1"]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "mine.yaml" in error


def test_two_device_files_of_one_name_are_refused(tmp_path):
    """The second one replaced the first silently."""
    for name, bandwidth in (("a", "6e12"), ("b", "7e12")):
        (tmp_path / f"{name}.yaml").write_text(
            f"base: h100-80gb-sxm\nname: mine\nmemory_bandwidth: {bandwidth}\n", encoding="utf-8"
        )

    with pytest.raises(SpecError, match="name of another device"):
        ask(a_job(), choices(devices=(str(tmp_path / "a.yaml"), str(tmp_path / "b.yaml"))))


@pytest.mark.slow
def test_lost_cells_are_planned_again(tmp_path, capsys):
    """A line of a cell that ran out of time is taken away; the others stay."""
    file = tmp_path / "results.jsonl"
    words = ["advise", "llama3-8b", "8xh100", "--batch", "256", "--sequence", "4k", "--tokens", "400B"]
    words += ["--devices", "h100,h200", "--sizes", "8", "--processes", "1", "--results", str(file)]
    assert cli.main(words) == 0
    lines = file.read_text().splitlines()
    file.write_text("\n".join([lines[0].replace('"optimal"', '"timed_out"'), *lines[1:], ""]))

    assert cli.main(words) == 0
    assert sorted(json.loads(line)["status"] for line in file.read_text().splitlines()) == ["optimal", "optimal"]
    assert "taken away" in capsys.readouterr().err
