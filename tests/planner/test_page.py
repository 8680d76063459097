"""The page: one file that needs nothing, holds every plan, rank and pass, and trusts no name."""

import base64
import hashlib
import json
import re
import shlex
from dataclasses import replace
from functools import cache
from html import unescape
from html.parser import HTMLParser

import numpy as np
import pytest

from constraints.targets import find_first_refusals
from costmodel.errors import SpecError
from costmodel.reliability import scale_reliability
from costmodel.step.estimate import simulate_step
from planner.cli import main
from planner.frameworks import LAUNCHERS, export
from planner.frameworks.launch import launched
from planner.jobs.checkpoints import schedules_around
from planner.jobs.problem import load
from planner.report import record_of, render
from planner.report.html.content import SCRIPTS, input_sections, launch_blocks
from planner.report.html.frame import MOST_OPEN, section_html, transpose
from planner.report.html.page import KINDS, MOST_PASSES, page_html, pieces, timeline_of
from planner.report.html.shown import report_plans, show_report
from planner.report.proof import search_section
from planner.report.records.reports import report_record
from planner.report.results import results_section
from planner.report.section import Section
from planner.report.sections import all_sections
from planner.report.strategies import strategies_section
from planner.search.solver import Clock
from planner.verbs.compare import compare, compare_two, side_of
from planner.verbs.pareto import pareto_front
from planner.verbs.plan import estimate, plan
from tests.planner.test_job import JOBS, a_job

LARGEST_BYTES = 6e6
ATTACK = "<script>alert(1)</script>\"'&<img src=x onerror=alert(2)>"

SCHEDULES = [
    {"pp": 4, "schedule": "1f1b"},
    {"pp": 4, "vpp": 2},
    {"pp": 4, "schedule": "gpipe"},
    {"pp": 4, "schedule": "zb_h1"},
    {"pp": 4, "vpp": 2, "schedule": "zb_v"},
    {"pp": 4, "schedule": "dualpipe"},
    {"pp": 1, "tp": 2},
]


class Elements(HTMLParser):
    """Every element with its attributes, and the text of each table cell."""

    def __init__(self, text):
        super().__init__()
        self.found = []
        self.cells = []
        self.in_cell = False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag in ("td", "th"):
            self.cells.append("")
            self.in_cell = True

    def handle_endtag(self, tag):
        self.in_cell &= tag not in ("td", "th")

    def handle_data(self, data):
        if self.in_cell:
            self.cells[-1] += data

    def named(self, tag):
        """The attributes of all elements of one kind."""
        return [attributes for name, attributes in self.found if name == tag]


@pytest.fixture(scope="module")
def report():
    """Mixtral 8x7B on 16 H100 with pipelines, three plans."""
    search = {"allow": {"pp": [2, 4]}, "pin": {"cp": 1, "etp": 1}}
    return plan(load(a_job(model="mixtral-8x7b", cluster__num_devices=16, top=3, search=search)))


@pytest.fixture(scope="module")
def shown(report):
    """The same with what further searches find."""
    return show_report(report)


@pytest.fixture(scope="module")
def page(shown):
    """The page of it."""
    return page_html(shown)


@pytest.fixture(scope="module")
def unfit():
    """A job for whose strategies the memory never suffices."""
    return plan(load(a_job(model="llama3-405b", cluster__num_devices=8, search__time_limit_seconds=10)))


def data_of(page):
    """What the page's plots show."""
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, flags=re.DOTALL)
    return json.loads(text)


def column(text):
    """Integers of a packed column."""
    return np.frombuffer(base64.b64decode(text), dtype="<u4")


# --- one file --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_nothing_is_loaded(page):
    """
    No element names another file or host, and the policy forbids whatever would, as it does styles in the body.

    It allows the page's own script and style by the hashes that a browser computes of what stands between the tags.
    """
    elements = Elements(page)
    policy = next(one["content"] for one in elements.named("meta") if "http-equiv" in one)
    links = [one[name] for _, one in elements.found for name in ("src", "href", "srcset", "action") if name in one]

    assert policy.startswith("default-src 'none'")
    assert [link for link in links if not link.startswith(("#", "data:,"))] == []
    assert "url(" not in page
    assert "@import" not in page
    names = {name for _, attributes in elements.found for name in attributes}
    assert [name for name in names if name == "style" or name.startswith("on")] == []
    for tag, name in (("style", "style-src"), ("script", "script-src")):
        (text,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, flags=re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{name} 'sha256-{digest}'" in page


def test_names_are_escaped(report):
    """A model's name is text wherever it stands: title, headings, tables, data."""
    facts = report.problem.facts
    named = replace(
        report,
        problem=replace(report.problem, name=ATTACK, facts=replace(facts, model=replace(facts.model, name=ATTACK))),
        model=replace(report.model, name=ATTACK, source=ATTACK),
    )
    page = page_html(show_report(replace(named, plans=())))

    assert "<script>alert" not in page
    assert "<img" not in page
    assert len(Elements(page).named("script")) == 2
    assert f"{ATTACK} on 16 x" in unescape(page)
    assert data_of(page)["report"]["model"]["name"] == ATTACK


@pytest.mark.slow
def test_the_page_is_the_same_again(report, shown):
    """Nothing in it depends on when or in which order it was made."""
    assert page_html(shown) == page_html(replace(shown, whole=report_record(replace(report))))


def test_constants_and_behaviour_stand_with_their_sources(report):
    """Constants as the calibration, behaviour as the framework's entry: both where a job would change them."""
    cluster = report.problem.facts.cluster
    (devices,) = (
        section
        for section in input_sections(report.problem, report_record(report))
        if section.title.startswith("The GPU")
    )
    rows = {name: (value, source) for name, value, source in devices.rows}
    fitted, known = cluster.device.calibration, cluster.framework

    assert rows["calibration"][0] == fitted.name
    assert rows["calibration.kernel_gap_seconds"][1] == fitted.sources["kernel_gap_seconds"]
    assert rows["framework"][0] == known.name
    assert rows["framework.behaviour.kernels.vocabulary_multiple"] == (
        "128",
        known.sources["behaviour.kernels.vocabulary_multiple"],
    )
    assert not any(name.startswith("profile") for name in rows)


@pytest.mark.slow
def test_plain_text_of_any_plan_is_there(report, page):
    """The tables hold what the other reports say."""
    cells = Elements(page).cells
    whole = report_record(report)
    strategies = strategies_section([one.strategy for one in whole.plans])

    for section in (strategies, results_section(whole), search_section(whole)):
        assert {cell for row in section.rows for cell in row} <= set(cells)


@pytest.mark.slow
def test_an_explanation_has_no_page(shown):
    """It says so, with what there is."""
    with pytest.raises(SpecError, match="explanations have no page"):
        render(shown.explanation, "html")


# --- what it shows ---------------------------------------------------------------------------------------------


def test_every_plan_and_rank_is_there(report, page):
    """Each plan has its bar, which makes up the step, and each of its ranks a column."""
    charts = data_of(page)["charts"]

    assert len(charts["steps"]["rows"]) == len(report.plans) == 3
    for number, (one, row) in enumerate(zip(report.plans, charts["steps"]["rows"], strict=True), start=1):
        assert sum(part["value"] for part in row["parts"]) == pytest.approx(one.step_seconds)
        columns = charts[f"memory {number}"]["columns"]
        totals = [sum(part["value"] for part in each["parts"]) * 2**30 for each in columns]
        assert totals == pytest.approx([rank.device_bytes for rank in one.estimate.ranks])
    assert charts["memory 1"]["lines"][0]["value"] * 2**30 == pytest.approx(report.plans[0].memory_bytes)


def test_every_plot_has_its_place(page):
    """A figure for each set of data, data for each figure."""
    found = Elements(page).named("figure")
    data = data_of(page)

    assert {one["data-chart"] for one in found if "data-chart" in one} == set(data["charts"])
    assert {one["data-timeline"] for one in found if "data-timeline" in one} == set(data["timelines"])


def test_what_binds_is_explained(shown, page):
    """The bars are the constraints of the explanation, and its sentences stand below them."""
    bindings = shown.explanation.bindings
    rows = data_of(page)["charts"]["bindings"]["rows"]

    assert [row["parts"][0]["value"] for row in rows] == [one.saved_seconds for one in bindings]
    assert {*shown.explanation.idle} <= {*Elements(page).cells}


@pytest.mark.slow
def test_nothing_fits_is_explained(unfit):
    """Why, what comes closest, on which ranks memory is missing, and what larger GPUs would do."""
    page = page_html(show_report(unfit))
    charts = data_of(page)["charts"]

    assert unfit.plans == ()
    assert "No strategy fits" in page
    assert "steps" not in charts
    assert len(charts["memory closest"]["columns"]) == len(unfit.closest.ranks)
    assert all(point[4] * 2**30 > unfit.closest.device_bytes * 0.9 for point in charts["front"]["series"][0]["points"])


def test_an_estimate_has_a_page(report):
    """A forbidden strategy too: its broken rules stand first, and nothing was searched for."""
    given = estimate(report.problem, {"tp": 3, "pp": 2, "dp": 2})
    page = render(given, "html")

    assert given.broken_rules
    assert set(given.broken_rules) <= set(Elements(page).cells)
    assert {"front", "bindings"}.isdisjoint(data_of(page)["charts"])


# --- tables -----------------------------------------------------------------------------------------------------


def test_a_few_strategies_are_columns():
    """A row for each decision; cells are marked where they differ from the first strategy's, and nowhere else."""
    section = Section(title="Two", header=("#", "tp", "pp"), rows=(("1", "8", "2"), ("2", "4", "2")))

    across = transpose(section, "decision")
    marked = re.findall(r"<td class=\"num differs\">(.*?)</td>", section_html(across, compare=True, across=True))

    assert across.header == ("decision", "1", "2")
    assert across.rows == (("tp", "8", "4"), ("pp", "2", "2"))
    assert marked == ["4"]


def test_long_tables_are_folded():
    """21 rows behind their number, 20 open; the notes stay below."""
    rows = tuple((str(number), "1") for number in range(MOST_OPEN + 1))
    longer = Section(title="Long", header=("#", "x"), rows=rows, notes=("Why.",))
    shorter = Section(title="Short", header=("#", "x"), rows=rows[1:])

    assert "<summary>21 rows</summary>" in section_html(longer)
    assert section_html(longer).index("</details>") < section_html(longer).index("Why.")
    assert "<details" not in section_html(shorter)


# --- what is uncertain ------------------------------------------------------------------------------------------


def test_intervals_are_drawn(report, shown, page):
    """Of the step, the peaks and the days, by the records; bars of what binds span the noise of two plans' ratio."""
    charts, best = data_of(page)["charts"], report.plans[0]
    peak = report_record(report).plans[0].chance_to_fit.peak_memory_interval_bytes
    fullest = max(charts["memory 1"]["columns"], key=lambda column: column["range"][1])
    days, mine = charts["days 1"]["series"][0], best.schedule.interval_steps
    low, high = next(ends for point, ends in zip(days["points"], days["spread"], strict=True) if point[0] == mine)
    bound = shown.explanation.bindings[0]

    assert charts["steps"]["rows"][0]["range"] == [best.interval.low_seconds, best.interval.high_seconds]
    assert data_of(page)["timelines"]["1"]["range"] == charts["steps"]["rows"][0]["range"]
    assert [end * 2**30 for end in fullest["range"]] == pytest.approx(peak)
    assert low < best.schedule.days < high
    assert high / best.schedule.days == pytest.approx(best.interval.high_seconds / best.step_seconds, rel=0.05)
    assert charts["bindings"]["rows"][0]["range"] == pytest.approx(
        [
            shown.explanation.compared_seconds - bound.step_seconds * (1 + best.noise_fraction),
            shown.explanation.compared_seconds - bound.step_seconds / (1 + best.noise_fraction),
        ]
    )


def test_points_of_the_front_have_both_intervals(shown, page):
    """Of the step and of the memory, around the point; the plan's own as its record says."""
    series, best = data_of(page)["charts"]["front"]["series"][0], shown.whole.report.fastest

    for point, step, memory in zip(series["points"], series["spread"], series["sideways"], strict=True):
        assert step[0] < point[1] < step[1]
        assert memory[0] < point[0] < memory[1]
    own = next(index for index, point in enumerate(series["points"]) if point[1] == best.step_seconds)
    assert series["spread"][own] == pytest.approx([best.interval.low_seconds, best.interval.high_seconds])


@pytest.mark.slow
def test_money_has_its_interval():
    """
    8 H100 for 2 dollars an hour: 16 dollars times the hours; 80 % of trainings end with other hours.

    Without a price there is no plot of money, and the page says how to give one.
    """
    job, priced = JOBS / "llama3-8b-8xh100.yaml", ["costs.price_per_device_hour=2"]
    given = estimate(load(job, priced), {"tp": 2})
    (row,) = data_of(render(given, "html"))["charts"]["money"]["rows"]
    without = render(estimate(load(job), {"tp": 2}), "html")

    assert row["parts"][0]["value"] == pytest.approx(16 * 24 * given.plan.schedule.days)
    assert row["range"][0] < row["parts"][0]["value"] < row["range"][1]
    assert "money" not in data_of(without)["charts"]
    assert "no price is given: costs.price_per_device_hour" in without


# --- what starts it ---------------------------------------------------------------------------------------------


def code_of(page):
    """Texts to copy, by their names."""
    blocks = re.findall(r"<p class=code-name>(.*?)</p><pre.*?><code>(.*?)</code></pre>", page, flags=re.DOTALL)
    return {unescape(name): unescape(text) for name, text in blocks}


def test_files_are_those_of_the_export(report):
    """Of each target that can run the plan, with the files of all launchers; reasons of the others."""
    one = report_plans(report_record(report))[0]
    page = "".join(launch_blocks(one, searched=True))
    code, reasons = code_of(page), find_first_refusals(one.plan.facts, one.plan.strategy)

    for target, reason in reasons.items():
        if reason is not None:
            assert reason in Elements(page).cells
            continue
        exported = export(one.plan, target)
        assert {name: code[f"{target}: {name}"] for name in exported.files} == {
            name: text.rstrip() for name, text in exported.files.items()
        }
        for launcher, word in SCRIPTS.items():
            name = LAUNCHERS[launcher]
            text = launched(one.plan, exported, launcher).files[name]
            assert code[f"{target}: {name}, for {word}"] == text.rstrip()
    assert None in reasons.values()
    assert set(reasons.values()) != {None}


def test_commands_give_the_answer_again(report, tmp_path, monkeypatch, capsys):
    """The job of the page as a file: its commands write the plan, and the files that start it."""
    given = estimate(report.problem, report.plans[1].strategy.decisions())
    one = report_plans(report_record(given))[0]
    code = code_of("".join(launch_blocks(one, searched=False)))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text(code["job.yaml"], encoding="utf-8")
    lines = [line for line in code["Planner commands"].splitlines() if not line.startswith("#")]

    for line in lines:
        assert main(shlex.split(line)[1:]) == 0

    assert len(lines) == 2
    assert json.loads((tmp_path / "plan.json").read_text())["step_time_seconds"] == given.plan.step_seconds
    assert (tmp_path / "run" / "job.sbatch").exists()
    capsys.readouterr()


def test_the_second_plan_is_exported_by_its_number(report):
    """The commands of a searched plan plan again; the file's name comes from the job's."""
    second = report_plans(report_record(report))[1]
    (commands,) = (
        text for name, text in code_of("".join(launch_blocks(second, searched=True))).items() if "comm" in name
    )

    assert "planner plan job.yaml --format json -o plan.json" in commands
    assert "planner export plan.json --number 2 --target" in commands


# --- beside what one runs ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compared():
    """Llama-3-8B on eight GPUs: tp 2 and pp 2 beside the fastest plan."""
    return compare(load(JOBS / "llama3-8b-8xh100.yaml", ["search.time_limit_seconds=5"]), {"tp": 2, "pp": 2})


@pytest.mark.slow
def test_both_stand_side_by_side(compared):
    """A bar, a memory plot on the same scale and a time line of each; days in one plot; all tables of the text."""
    page = render(compared, "html")
    charts, timelines = data_of(page)["charts"], data_of(page)["timelines"]
    found = {one["data-chart"] for one in Elements(page).named("figure") if "data-chart" in one}
    cells = {cell for section in list(all_sections(record_of(compared)))[1:] for row in section.rows for cell in row}

    assert [row["label"] for row in charts["steps"]["rows"]] == ["Given strategy", "Fastest plan"]
    assert charts["memory 1"]["most"] == charts["memory 2"]["most"]
    assert len(charts["days"]["series"]) == len(timelines) == 2
    assert found == set(charts)
    assert cells <= set(Elements(page).cells)


@pytest.mark.slow
def test_bars_of_differences_add_up(compared):
    """Parts that are shown are within a thousandth of the step each of what the whole step differs by."""
    (whole, *parts) = data_of(render(compared, "html"))["charts"]["differences"]["rows"]

    assert whole["value"] == pytest.approx(compared.saved_seconds)
    assert whole["range"][0] < whole["value"] < whole["range"][1]
    assert sum(part["value"] for part in parts) == pytest.approx(
        whole["value"], abs=0.01 * compared.given.plan.step_seconds
    )


@pytest.mark.slow
def test_unlike_jobs_have_no_bars_of_differences(compared):
    """Their steps train other models; each is named first or second, and both jobs' inputs are there."""
    other = estimate(load(JOBS / "mixtral-8x7b-64xa100.yaml"), {"ep": 8})
    page = render(compare_two(side_of(compared.given, "mine"), side_of(other, "theirs")), "html")

    assert "differences" not in data_of(page)["charts"]
    assert [row["label"] for row in data_of(page)["charts"]["steps"]["rows"]] == ["First job", "Second job"]
    assert "The model: llama3-8b of the first job" in page
    assert "The model: mixtral-8x7b of the second job" in page


def test_a_comparison_without_a_plan_has_a_page():
    """What is run today alone, and why nothing fits."""
    job = load(JOBS / "llama3-8b-8xh100.yaml", ["search.forbid=[{pp: 1}, {pp: 2}, {pp: 4}, {pp: 8}]"])
    alone = compare(job, {"tp": 2, "pp": 2})
    page = render(alone, "html")

    assert alone.best is None
    assert [row["label"] for row in data_of(page)["charts"]["steps"]["rows"]] == ["Given strategy"]
    assert "no strategy fits" in page


# --- the time line ---------------------------------------------------------------------------------------------


@cache
def played(**decisions):
    """The plan of a schedule, and its step, simulated."""
    problem = load(JOBS / "llama3-8b-8xh100.yaml", ["search.framework_rules=false"])
    one = estimate(problem, decisions).plan
    return one, simulate_step(problem.facts, one.strategy, most_passes=MOST_PASSES)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("decisions", SCHEDULES, ids=str)
def test_a_played_step_is_the_estimate_s(decisions):
    """The passes with what stands beside them take as long as the plan says; the parts beside are lines of it."""
    one, simulated = played(**decisions)

    assert simulated.step_seconds == pytest.approx(one.step_seconds, rel=1e-9)
    exposed = {part.name: part.exposed_seconds for part in one.estimate.breakdown}
    assert all(seconds <= exposed[name] + 1e-12 for name, seconds in simulated.other_seconds.items())


@pytest.mark.sampled(6)
@pytest.mark.parametrize("decisions", SCHEDULES, ids=str)
def test_pieces_are_the_simulator_s_passes(decisions):
    """Each pass once, inside its block; of a block that holds one direction the pieces fill it without a gap."""
    _, simulated = played(**decisions)
    passes = {one[:4]: one for one in simulated.timeline.passes}

    made = list(pieces(simulated))

    assert sorted(one[:4] for one in made) == sorted(passes)
    for one in made:
        block = passes[one[:4]]
        assert block.start - 1e-9 <= one.start <= one.start + one.seconds <= block.end + 1e-9
    busy = sum(one.seconds for one in made if one.lane != 2)
    blocks = {(one.rank, one.start, one.end) for one in simulated.timeline.passes}
    assert busy == pytest.approx(sum(end - start for _, start, end in blocks))


def test_packed_time_lines_hold_the_passes(report, page):
    """Starts, kinds, stages and micro-batches as the simulator has them, to a millionth of the step; it ends there."""
    best = report.plans[0]
    packed = data_of(page)["timelines"]["1"]
    simulated = simulate_step(report.problem.facts, best.strategy, most_passes=MOST_PASSES)
    made = list(pieces(simulated))
    code, start = column(packed["code"]).astype(np.int64), column(packed["start"]) * packed["tick"]
    stage, microbatch = np.divmod(code // 16, packed["microbatches"])

    assert packed["end"] == pytest.approx(best.step_seconds)
    assert packed["counts"] == [sum(one.rank == rank for one in made) for rank in range(best.strategy.pp)]
    assert [KINDS[kind] for kind in code % 4] == [one.kind for one in made]
    assert stage.tolist() == [one.stage for one in made]
    assert microbatch.tolist() == [one.microbatch for one in made]
    assert start == pytest.approx([one.start for one in made], abs=1e-6 * best.step_seconds)


def test_long_time_lines_are_cut_in_the_middle(report, monkeypatch):
    """The first and last passes of each rank stay, and the page says that some are left out."""
    monkeypatch.setattr("planner.report.html.page.MOST_DRAWN", 40)

    packed = timeline_of(report.problem.facts, report.plans[0].estimate)

    assert packed["cut"]
    assert sum(packed["counts"]) <= 40
    assert column(packed["start"]).max() * packed["tick"] > 0.8 * packed["pipeline"]


def test_steps_by_closed_form_have_no_time_line():
    """V-Half's passes are ordered anew for each model, so that none are shown; the page says why."""
    given = estimate(
        load(JOBS / "llama3-8b-8xh100.yaml", ["search.framework_rules=false"]),
        {"pp": 4, "vpp": 2, "schedule": "v_half"},
    )
    page = render(given, "html")

    assert data_of(page)["timelines"] == {}
    assert "the schedule of this strategy is not simulated" in page


# --- checkpoints and memory ------------------------------------------------------------------------------------


def test_the_chosen_interval_is_best(report):
    """No interval of the curve has a shorter total time, and all of them leave half of the time or more."""
    best = report.plans[0]

    curve = schedules_around(
        best.cluster,
        report.problem.facts.workload,
        scale_reliability(best.cluster, report.problem.reliability),
        step_seconds=best.step_seconds,
        best=best.schedule,
    )

    assert best.schedule in curve
    assert len(curve) > 20
    assert min(one.total_seconds for one in curve) == best.schedule.total_seconds
    assert [one.interval_steps for one in curve] == sorted({one.interval_steps for one in curve})


def test_less_memory_is_never_faster(shown):
    """The front falls; each strategy fits into what its point allows, and nothing fits below the least."""
    points = shown.points
    steps = [point.estimate.step_seconds for point in points]

    assert len(points) > 3
    assert steps == sorted(steps, reverse=True)
    assert all(point.estimate.device_bytes <= point.allowed_bytes for point in points)
    assert points[0].estimate.device_bytes == pytest.approx(shown.least_bytes, abs=2**21)


def test_the_front_passes_through_the_plan(report, shown):
    """Within what the job allows the fastest plan is its point."""
    room = report.plans[0].memory_bytes - report.problem.search.memory_headroom_bytes
    (own,) = [point for point in shown.points if point.allowed_bytes == room][:1]

    assert own.estimate.step_seconds == report.fastest.step_seconds
    assert own.is_proven


def test_a_front_without_time_is_the_plan(report):
    """What was not searched is named, or not known at all."""
    points, least_bytes, _ = pareto_front(report, Clock(seconds=0))

    assert [point.estimate for point in points] == [report.fastest.estimate]
    assert least_bytes is None


# --- size -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def large():
    """The page of Llama-3-405B on 2,048 GPUs with eight chunks per rank, of few choices."""
    job = load(JOBS / "llama3-405b-2048xh100.yaml", ["search.pin={pp: 16, vpp: 8, tp: 8, cp: 2, mbs: 1}"])
    return page_html(show_report(plan(job)))


@pytest.mark.slow
def test_large_pages_stay_small(large):
    """98,304 passes for each of three plans in less than 6 MB, none left out."""
    timelines = data_of(large)["timelines"]

    assert timelines["1"]["passes"] == 3 * 16 * 8 * 256
    assert not timelines["1"]["cut"]
    assert len(large.encode()) < LARGEST_BYTES
