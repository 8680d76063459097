"""Reports: complete and strict for programs, within 100 columns for people; and the commands that print them."""

import csv
import io
import json
import math
import re
import shlex
from dataclasses import fields, replace
from functools import cache

import pytest

from costmodel import catalog
from costmodel.errors import SpecError
from costmodel.step.estimate import PARTS
from costmodel.strategy import MODULES, Strategy
from planner import cli
from planner.jobs.problem import load
from planner.report import FORMATS, record_of, render
from planner.report.console import table_text
from planner.report.records.plan import PlanRecord
from planner.report.records.setting import ASSUMED
from planner.report.section import WIDTH
from planner.report.short import short_sections
from planner.report.strategies import strategies_section
from planner.results import Plan
from planner.search.branch_and_bound import Status
from planner.verbs.plan import estimate, plan
from tests.planner.test_job import JOBS, a_job
from tests.schemas import valid

COPIED = re.compile(r"([a-z]+ )?line {2,}\S")
"""How rows begin that have a strategy to copy, which is never folded."""

DEFAULT = catalog.default_framework(catalog.device("h100-80gb-sxm"))

EXAMPLES = sorted(JOBS.glob("*.yaml"))

ANY_MODULE = "|".join(MODULES)


def load_strictly(text):
    """JSON as the standard has it: no NaN, no Infinity."""

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


@cache
def planned(name):
    """Three plans of Mixtral 8x7B on 32 H100, with a pipeline where the job asks for one; none of 405B on 8."""
    if name == "infeasible":
        return plan(load(a_job(model="llama3-405b", cluster__num_devices=8)))
    return plan(load(a_job(model="mixtral-8x7b", cluster__num_devices=32, top=3, search__allow={"pp": [1, 4]})))


@pytest.fixture(scope="module")
def report():
    """Three plans."""
    return planned("plans")


@pytest.fixture(scope="module")
def estimated(report):
    """A strategy that rules forbid."""
    return estimate(report.problem, {"tp": 16, "pp": 2, "recompute": "full"}, searched=False)


@pytest.fixture(scope="module")
def infeasible():
    """405 billion parameters on 8 devices."""
    return planned("infeasible")


@pytest.fixture(scope="module")
def every_report(report, estimated, infeasible):
    """One of each kind, and searches that ran out of time."""
    late = replace(report.outcome, status=Status.FEASIBLE, gap=0.1)
    empty = replace(
        late, status=Status.UNKNOWN, strategies=(), step_seconds=(), lower_bound_seconds=math.inf, gap=math.inf
    )
    return {
        "plans": report,
        "estimate": estimated,
        "infeasible": infeasible,
        "feasible": replace(report, outcome=late),
        "unknown": replace(report, outcome=empty, plans=()),
    }


@pytest.fixture(scope="module")
def text_of(every_report):
    """Each report in a format, written once."""
    return cache(lambda kind, form="table": render(every_report[kind], form))


KINDS = ("plans", "estimate", "infeasible", "feasible", "unknown")


# --- JSON ----------------------------------------------------------------------------------------------------


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", KINDS)
def test_json_is_strict_and_versioned(every_report, text_of, kind):
    """What is infinite, as a bound that nobody has, is null."""
    whole = load_strictly(text_of(kind, "json"))

    assert whole["format_version"] == 1
    assert whole["kind"] == ("estimate" if kind == "estimate" else "plan")
    assert whole == load_strictly(json.dumps(record_of(every_report[kind]).plain(), allow_nan=False))


def test_json_holds_every_decision(text_of):
    """A field that is new in Strategy and missing here would be lost to every program."""
    [first, *_] = load_strictly(text_of("plans", "json"))["plans"]

    assert list(first["strategy"]) == [*(field.name for field in fields(Strategy)), "num_microbatches"]


@pytest.mark.slow
def test_json_plans_have_what_the_issue_names(report, estimated):
    """Quantities with their units, as the schema says; an estimate is one plan, written flat."""
    whole = valid("report", load_strictly(render(report, "json")))

    for one in (*whole["plans"], valid("report", load_strictly(render(estimated, "json")))):
        times = [one[f"{name}step_time_seconds"] for name in ("", "closed_form_")]
        assert min(*times, one["peak_memory_bytes"]) > 0
        assert min(one["mfu"], one["hfu"]) >= 0
        assert max(one["mfu"], one["hfu"]) <= 1
        assert re.fullmatch(f"none|selective|full|({ANY_MODULE})([+]({ANY_MODULE}))*", one["strategy"]["recompute"])
    assert [one["number"] for one in whole["plans"]] == [1, 2, 3]
    assert {"status", "lower_bound_seconds", "gap", "rounding_bound_seconds", "conventions"} <= set(whole)
    assert (whole["status"], whole["gap"]) == ("optimal", 0.0)


@pytest.mark.slow
def test_reports_say_what_storage_takes():
    """Bytes over bandwidth, the share of the time, and what is kept; no bandwidth where a job gives the seconds."""
    told = {"asynchronous_checkpoints": True, "storage_bandwidth": 20e9, "keep_checkpoints": 4}
    one, measured = (plan(load(a_job(reliability=section))).plans[0] for section in (told, {"checkpoint_seconds": 10}))
    saved, known = (PlanRecord.build_from_plan(each).checkpoint for each in (one, measured))

    assert saved.write_seconds == pytest.approx(saved.nbytes / 20e9)
    assert saved.write_fraction == pytest.approx(saved.write_seconds / (saved.interval_seconds + saved.seconds))
    assert saved.write_fraction <= 0.05
    assert saved.num_checkpoints == one.schedule.num_steps // saved.interval_steps
    assert (saved.storage_bytes_per_second, saved.kept) == (20e9, 4)
    assert (known.storage_bytes_per_second, known.write_seconds, known.nbytes) == (None, 10, saved.nbytes)


@pytest.mark.slow
def test_a_batch_that_leaves_devices_idle_is_said_with_its_mfu():
    """Seven sequences on 512 GPUs that are all used; not where others stay idle, or a small batch keeps few busy."""
    jobs = [
        a_job(cluster__num_devices=512, training__global_batch_size=7, search={"idle_devices": idle, "evidence": "any"})
        for idle in (False, True)
    ]
    few, idle = (plan(load(job)) for job in jobs)
    enough = plan(load(a_job(cluster__num_devices=4, training__global_batch_size=16)))

    assert few.plans[0].mfu < 0.05
    assert f"MFU {few.plans[0].mfu:.1%}: 7 sequences per step are few for 512 GPUs." in " ".join(render(few).split())
    assert "are few for" not in render(enough)
    assert "are few for" not in render(idle)
    assert idle.plans[0].mfu > 0.1
    assert idle.plans[0].step_seconds < few.plans[0].step_seconds


def test_json_breakdown_adds_up_to_the_step(text_of):
    """Exposed parts only; hidden ones run behind them."""
    for one in load_strictly(text_of("plans", "json"))["plans"]:
        assert [part["name"] for part in one["breakdown"]] == list(PARTS)
        assert sum(part["exposed_seconds"] for part in one["breakdown"]) == pytest.approx(one["step_time_seconds"])


def test_json_says_what_each_plan_loses(text_of):
    """Line by line against the first; the lines add up to the difference of the steps, the largest come first."""
    first, *others = load_strictly(text_of("plans", "json"))["plans"]
    best = {part["name"]: part["exposed_seconds"] for part in first["breakdown"]}

    assert first["difference_seconds"] == 0
    assert not any(first["difference_by_part"].values())
    for one in others:
        lines = one["difference_by_part"]
        assert sum(lines.values()) == pytest.approx(one["step_time_seconds"] - first["step_time_seconds"], abs=1e-9)
        assert list(map(abs, lines.values())) == sorted(map(abs, lines.values()), reverse=True)
        for part in one["breakdown"]:
            assert lines[part["name"]] == pytest.approx(part["exposed_seconds"] - best[part["name"]], abs=1e-12)


def test_the_table_names_the_largest_losses(report):
    """A second plan of 1.05 s more, 0.8 of it tensor-parallel communication, and 0.06 less computation."""
    best = report.plans[0]
    more = {"tp": 0.8, "bubble": 0.31, "compute": -0.06}
    breakdown = tuple(
        replace(part, exposed_seconds=part.exposed_seconds + more.get(part.name, 0.0))
        for part in best.estimate.breakdown
    )
    slower = replace(best, estimate=replace(best.estimate, breakdown=breakdown, step_seconds=best.step_seconds + 1.05))

    text = render(replace(report, plans=(best, slower)))

    assert "2      1.050  tp +0.800, bubble +0.310, compute -0.060" in text


def test_json_ranks_add_up_to_the_peak(text_of):
    """Parts are the rank, the fullest rank is the peak, and the rest of the device is free."""
    one = load_strictly(text_of("estimate", "json"))

    assert [rank["rank"] for rank in one["ranks"]] == [0, 1]
    for rank in one["ranks"]:
        assert sum(rank["bytes"].values()) == pytest.approx(rank["peak_memory_bytes"])
        assert rank["peak_memory_bytes"] + rank["headroom_bytes"] == pytest.approx(one["cluster"]["memory_bytes"])
    assert max(rank["peak_memory_bytes"] for rank in one["ranks"]) == one["peak_memory_bytes"]


def test_reports_say_how_many_devices_are_used():
    """In a fact and a column for people, as a number for programs."""
    found = plan(load(a_job(objective="step_time", search__max_devices=6, search__pin={"tp": 2}, top=2)))

    used = record_of(found).plain()["plans"][0]["num_devices"]
    text = render(found)

    assert used <= 6
    assert f"uses       {used} of 64 GPUs on 1 node; the job allows 6" in text
    assert max(map(len, text.splitlines())) <= WIDTH


def test_json_of_an_estimate_names_the_broken_rules(text_of):
    """Programs ask ``allowed``, people read the sentences; what the search alone leaves out is apart."""
    one = load_strictly(text_of("estimate", "json"))

    assert one["allowed"] is False
    assert "search.allow: pp is 1 or 4." in one["broken_rules"]
    assert one["broken_preferences"] == [
        "The search keeps each tensor-parallel group inside one scale-up domain (search.preferences)."
    ]


def test_json_says_why_nothing_fits(text_of):
    """The rules in their own sentences, the shortage, and the strategy that comes closest."""
    whole = load_strictly(text_of("infeasible", "json"))

    assert (whole["status"], whole["plans"], whole["lower_bound_seconds"]) == ("infeasible", [], None)
    assert whole["conflict"]["shortage_bytes"] > 0
    assert any("memory of every GPU" in rule for rules in whole["conflict"]["exclusive_rules"] for rule in rules)
    assert whole["conflict"]["closest"]["headroom_bytes"] < 0


# --- CSV -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "rows"), [("plans", 3), ("estimate", 1), ("infeasible", 0), ("unknown", 0)])
def test_csv_has_one_row_per_plan(text_of, kind, rows):
    """The header is there even where no plan is; each row names the framework, with flags as job files spell them."""
    read = list(csv.reader(io.StringIO(text_of(kind, "csv"))))

    assert len(read) == 1 + rows
    assert {len(row) for row in read} == {len(read[0])}
    for row in read[1:]:
        cells = dict(zip(read[0], row, strict=True))
        assert (cells["framework"], cells["framework_is_assumed"]) == (DEFAULT, "true")


def test_json_says_what_to_write_for_another_framework(report, text_of):
    """The sentence of the table, where the job names none; nothing where it does."""
    named = estimate(load(a_job(cluster__framework="nemo-25.07")), {"tp": 8}, searched=False)
    assumed, given = (record_of(one).plain()["cluster"] for one in (report, named))

    assert assumed["framework_hint"] == ASSUMED
    assert f"{DEFAULT}; {assumed['framework_hint']}" in " ".join(text_of("plans").split())
    assert (given["framework"], given["framework_is_assumed"], given["framework_hint"]) == ("nemo-25.07", False, None)


def test_csv_holds_decisions_and_parts(report, text_of):
    """The same figures as the JSON."""
    rows = list(csv.DictReader(io.StringIO(text_of("plans", "csv"))))
    plans = record_of(report).plain()["plans"]

    for row, one in zip(rows, plans, strict=True):
        assert [row[name] for name in ("sharding", "recompute")] == [
            one["strategy"]["sharding"],
            one["strategy"]["recompute"],
        ]
        assert [int(row[name]) for name in ("tp", "dp", "num_microbatches")] == [
            one["strategy"][name] for name in ("tp", "dp", "num_microbatches")
        ]
        reserved = [float(row[f"reserved_{end}_bytes"]) for end in ("low", "high")]
        assert reserved == pytest.approx(one["chance_to_fit"]["reserved_interval_bytes"])
        assert float(row["reserved_bytes"]) == pytest.approx(one["reserved_bytes"])
        assert float(row["chance_fastest"]) == pytest.approx(one["chance_fastest"])
        assert row["gaps"] == "; ".join(gap["sentence"] for gap in one["gaps"])
        exposed = sum(float(row[f"{part}_exposed_seconds"]) for part in PARTS)
        assert exposed == pytest.approx(float(row["step_time_seconds"]))


# --- text ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_text_fits_into_100_columns(text_of, kind):
    """Plain ASCII, no trailing blanks, so that it can be pasted anywhere; a strategy in one line is never folded."""
    text = text_of(kind)

    assert text.isascii()
    assert max(len(line) for line in text.splitlines() if not COPIED.match(line)) <= WIDTH
    assert not any(line != line.rstrip() for line in text.splitlines())


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (
            "plans",
            ("proven optimal", "Step time of strategy 1", "gap 0.00%", "ETTR", "slower", "peak GiB", "free", "bubble"),
        ),
        ("estimate", ("; forbidden", "Forbidden: this strategy breaks", "(search.preferences).")),
        (
            "infeasible",
            (
                "infeasible: the closest strategy lacks",
                "GiB of GPU memory",
                "No strategy satisfies all of these together",
            ),
        ),
        ("feasible", ("not proven optimal", "time ran out before the proof", "gap 10.00%")),
        ("unknown", ("none within the time limit", "time ran out before a strategy was found")),
    ],
)
def test_text_says_what_happened(text_of, kind, words):
    """The second line already has the answer."""
    text = text_of(kind)

    assert all(word in text for word in words)
    assert "nan" not in text.replace("nano", "")
    assert "inf " not in text


@pytest.mark.parametrize(
    ("closed_forms", "words"),
    [
        ((0.9, 1.0), "0.900000 s for strategy 1, as the search compares it; the proof is about this"),
        ((1.0, 0.9), "1.000000 s for strategy 1, 0.900000 s for strategy 2, as the search compares them;"),
    ],
)
def test_text_says_whose_closed_form_is_proven(report, monkeypatch, closed_forms, words):
    """The plan whose simulated step is fastest stands first; another one's closed form may be the least."""
    shown = {one.strategy: seconds for one, seconds in zip(report.plans, closed_forms, strict=False)}
    monkeypatch.setattr(Plan, "closed_form_seconds", property(lambda one: shown.get(one.strategy, one.step_seconds)))

    text = " ".join(render(report).split())

    assert words in text


@pytest.mark.slow
def test_long_pipelines_show_a_few_ranks():
    """Of 32 ranks, all different, the console shows a few and says so; the JSON has all."""
    problem = load(a_job(model="llama3-405b", cluster__num_devices=2048, training__global_batch_size=2048))

    report = estimate(problem, {"tp": 8, "pp": 32})
    text = render(report)

    assert "Shown of 32 ranks: the ends, the middle, the fullest, the slowest; the JSON has all." in text
    assert len(text.splitlines()) < 105
    assert len(record_of(report).plain()["ranks"]) == 32


def test_numbers_stand_flush_right():
    """Text left, numbers right, a dash for nothing."""
    text = table_text(("name", "s"), (("a", "1.5"), ("bcd ef", "-")))

    assert text == "name      s\na       1.5\nbcd ef    -\n"


@pytest.mark.parametrize("kind", KINDS)
def test_markdown_tables_are_valid(every_report, kind):
    """Every table has a header, a rule below it, and as many cells in each row."""
    blocks = render(every_report[kind], "markdown").split("\n\n")
    tables = [block.splitlines() for block in blocks if block.startswith("|")]

    assert blocks[0].startswith("# ")
    for header, rule, *rows in tables:
        assert set(rule) <= set("|:- ")
        assert {line.count("|") for line in (rule, *rows)} == {header.count("|")}
        assert rows


def test_unknown_formats_are_refused(report):
    """One message that names the nearest."""
    with pytest.raises(SpecError, match="there is no format 'jsn'"):
        render(report, "jsn")


# --- commands, end to end ------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_jobs_are_planned(path, capsys):
    """Proven within the time limit; the lower bound is the first plan's step, which simulated alone is the same."""
    assert cli.main(["plan", str(path), "search.fastest=true", "--format", "json"]) == 0

    whole = load_strictly(capsys.readouterr().out)
    assert whole["status"] == "optimal"
    best = whole["plans"][0]
    assert best["closed_form_step_time_seconds"] == pytest.approx(whole["lower_bound_seconds"], abs=2e-6)
    assert best["step_time_seconds"] == pytest.approx(best["closed_form_step_time_seconds"], rel=1e-9)
    assert whole["plans"][0]["headroom_bytes"] >= whole["job"]["memory_headroom_bytes"]


def test_estimate_command(capsys):
    """The issue's own example, with the same parts as a plan."""
    job = str(JOBS / "llama3-405b-2048xh100.yaml")

    assert cli.main(["estimate", job, "tp=8", "pp=16", "--format", "json"]) == 0

    one = load_strictly(capsys.readouterr().out)
    assert (one["strategy"]["tp"], one["strategy"]["pp"]) == (8, 16)
    assert one["strategy"]["cp"] * one["strategy"]["dp"] == 16  # 2,048 GPUs over 8 * 16
    assert one["completed_by"] == "search"
    assert len(one["ranks"]) == 16


@pytest.mark.sampled(2)
@pytest.mark.parametrize("form", FORMATS)
def test_output_goes_to_a_file(form, tmp_path, capsys):
    """As it would be printed."""
    job, target = str(JOBS / "llama3-8b-8xh100.yaml"), tmp_path / "report"
    estimate_it = ["estimate", job, "tp=4", "--format", form]

    assert cli.main(estimate_it) == 0
    assert cli.main([*estimate_it, "-o", str(target)]) == 0

    assert target.read_text() == capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "heading", "question"),
    [
        ("plan JOB TP2 loss=fused", "why", "which constraints bind the fastest plan?"),
        ("plan JOB 'TP2 PP2'", "why not another", "why not TP2 PP2"),
        ("plan llama3-8b 8xh100 --batch 64 --sequence 8k --tokens 1T TP2", "why not another", "why not TP2"),
        ("estimate JOB TP2", "against the best", "why not TP2"),
    ],
)
def test_the_next_command_asks_what_it_says(command, heading, question, capsys):
    """Words of ``plan`` limit its search, those of ``explain`` are compared: the first become entries for the other."""
    job = str(JOBS / "llama3-8b-8xh100.yaml")
    assert cli.main(shlex.split(command.replace("JOB", job))) == 0
    rows = dict(re.split(r" {2,}", line, maxsplit=1) for line in capsys.readouterr().out.splitlines() if "  " in line)

    assert cli.main(shlex.split(rows[heading])[1:]) == 0

    assert question in capsys.readouterr().out


@pytest.mark.slow
def test_an_impossible_job_ends_with_1_and_a_wrong_decision_with_2(capsys):
    """Llama-3-405B on 8 GPUs: an answer on stdout, nothing on stderr but progress. A mistake has no answer."""
    job = str(JOBS / "llama3-405b-2048xh100.yaml")

    assert cli.main(["plan", job, "cluster.num_devices=8"]) == 1

    out, err = capsys.readouterr()
    assert "infeasible: the closest strategy lacks" in out
    assert "Traceback" not in err
    assert cli.main(["estimate", str(JOBS / "llama3-8b-8xh100.yaml"), "tp=16"]) == 2

    out, err = capsys.readouterr()
    assert (out, err) == ("", "planner: strategy.dp: nothing is left for it: tp * cp * pp = 16 of 8 devices.\n")


def test_no_time_ends_with_3(capsys):
    """A bound, but no strategy; nothing asks why nothing would fit."""
    assert cli.main(["plan", str(JOBS / "llama3-405b-2048xh100.yaml"), "--time-limit", "1e-6"]) == 3
    out = capsys.readouterr().out
    assert "none within the time limit" in out
    assert re.search(
        r"known +no strategy is below 3\d\.\d+ s per step\ntry +a longer time: --time-limit, now 1e-06 s", out
    )
    assert "why nothing fits" not in out


@pytest.mark.slow
def test_the_chance_to_fit_is_told_with_the_runs_behind_it():
    """Of a device that is nearly full about half, of a roomy one nearly all; the table's row, the note, the JSON."""
    problem = load(a_job())
    peak = estimate(problem, {"tp": 8}, searched=False).plan.estimate.device_bytes
    devices = [replace_memory(problem, peak * factor) for factor in (1.001, 1.3)]
    full, roomy = (estimate(one, {"tp": 8}, searched=False) for one in devices)

    texts = [" ".join(render(one, "table").split()) for one in (full, roomy)]
    shares = [json.loads(render(one, "json"))["chance_to_fit"]["share"] for one in (full, roomy)]

    assert 0.3 < shares[0] < 0.7 < 0.97 < shares[1] < 1
    for text, share in zip(texts, shares, strict=True):
        assert f"Chance that the fullest rank fits: {share:.0%}, by" in text
        assert "runs that fitted and" in text


def test_ep_overlap_that_hides_little_is_said():
    """Before the first backward pass the last of two ranks does 2 + 1 forward passes: of 4 and, at m 3, of 6 in all."""
    decisions = {"pp": 2, "vpp": 2, "group": 2, "ep": 2, "dp": 2, "mbs": 1, "ep_overlap": True}
    job = {"model": "qwen3-30b-a3b", "cluster__num_devices": 4}
    jobs = [load(a_job(**job, training__global_batch_size=2 * m)) for m in (2, 3)]
    few, enough = (record_of(estimate(one, decisions, searched=False)) for one in jobs)
    said = (
        "3 of a rank's 4 forward passes run alone, and overlap=ep (--overlap-moe-expert-parallel-comm) hides nothing "
        "of their all-to-alls; more micro-batches hide more"
    )

    table = strategies_section([one.plans[0].strategy for one in (enough, few)])

    assert f"EP overlap in strategy 2: {said}." in table.notes
    assert ("EP overlap", said) in next(iter(short_sections(few))).rows
    assert "EP overlap" not in dict(next(iter(short_sections(enough))).rows)


def replace_memory(problem, memory_bytes):
    """The problem on devices with so much memory."""
    cluster = problem.facts.cluster
    device = replace(cluster.device, memory_bytes=memory_bytes)
    return replace(problem, facts=replace(problem.facts, cluster=replace(cluster, device=device)))
