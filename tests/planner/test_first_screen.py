"""The first screen of a short answer: a decision in at most 14 lines before the table of plans."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from planner import cli, estimate, load, plan, render
from planner.report.short import MOST_LINES, REST, fit_rows, short_sections

TRAINING = {"global_batch_size": 256, "sequence_length": 4096, "tokens": 1e12}


def a_job(model="llama3-8b", device="h100-80gb-sxm", num_devices=64, training=None, **entries):
    """A job of a few entries."""
    cluster = {"device": device, "num_devices": num_devices}
    training = {**TRAINING, **(training or {})}
    return {"model": model, "cluster": cluster, "training": training, "search": {"stages": "even"}, **entries}


JOBS = {
    "dense": a_job(),
    "experts": a_job("qwen3-30b-a3b", num_devices=32),
    "idle devices": a_job(num_devices=72, training={"global_batch_size": 70}),
    "prices": a_job(costs={"price_per_device_hour": 2.5, "electricity_price_per_kwh": 0.1, "currency": "EUR"}),
    "several settings": a_job(settings={"gradient_dtype": ["fp32", "bf16"], "moments_dtype": "any"}),
    "no runs of the device": a_job(device="rtx-4090", num_devices=8),
    "a batch in tokens": a_job(training={"global_batch_size": 4_194_304}),
}


def lines_before(text: str, title: str = "Plans") -> list[str]:
    """Lines above the table of plans that are not empty."""
    lines = text.splitlines()
    return [line for line in lines[: lines.index(title)] if line.strip()]


@pytest.fixture(scope="module", params=JOBS, ids=str)
def report(request):
    """The plans of a job."""
    return plan(load({**JOBS[request.param]}))


@pytest.mark.sampled(1)
def test_a_decision_takes_fourteen_lines(report):
    """With the plan, its step and interval, memory, days; the commands come below the table."""
    text = render(report, "short")
    names = [line.split("  ")[0] for line in lines_before(text)]

    assert len(lines_before(text)) <= MOST_LINES == 14
    assert [name for name in names if name in ("step", "memory", "training")] == ["step", "memory", "training"]
    assert text.index("Plans") < text.index("Next")


@pytest.mark.slow
def test_no_row_says_the_same_for_every_job():
    """Of two jobs that differ in everything each row differs, too."""
    texts = [dict(next(short_sections(plan(load(JOBS[name])))).rows) for name in ("dense", "no runs of the device")]

    assert [name for name, text in texts[0].items() if texts[1].get(name) == text] == []


def test_the_software_stands_in_the_title():
    """With a word on that nobody named it; a job that names it is not in doubt."""
    named = a_job()
    named["cluster"] = {**named["cluster"], "framework": "megatron-lm-0.17"}
    titles = [next(short_sections(estimate(load(job), {}, searched=False))).title for job in (a_job(), named)]

    assert titles[0].endswith(" (assumed)")
    assert titles[1] == "llama3-8b on 64 x h100-80gb-sxm, megatron-lm-0.17"


@cache
def idle_plan():
    """The plan of the job that leaves devices idle."""
    return plan(load(JOBS["idle devices"]))


@pytest.mark.slow
def test_a_near_by_batch_that_gains_much_is_said():
    """70 sequences on 72 GPUs leave 2 or more idle; 72 share all of them. Below 3 % it is in the whole report only."""
    found = idle_plan()
    best = max(found.nearby, key=lambda one: one.tokens_per_second)
    gain = best.tokens_per_second / found.fastest.tokens_per_second - 1
    (said,) = [text for name, text in next(short_sections(found)).rows if name == "near-by batch"]
    slower = replace(best, tokens_per_second_per_device=1.02 / 72 * found.fastest.tokens_per_second)
    little = replace(found, nearby=(slower,))

    assert gain > 0.03
    assert said.startswith(f"{best.facts.workload.global_batch_size} sequences (")
    assert f" on all 72 GPUs: {best.step_seconds:.3f} s, {gain:+.1%} tokens/s" in said
    assert "near-by batch" not in dict(next(short_sections(little)).rows)
    assert "Near-by batch sizes" in render(little)


def test_a_plan_alone_says_what_is_proven():
    """There is no table below whose note could say it; estimates are proven nothing."""
    alone = plan(load({**a_job(), "top": 1}))

    assert "proven" in dict(next(short_sections(alone)).rows)["proof"]
    assert "proof" not in dict(next(short_sections(estimate(load(a_job()), {}, searched=False))).rows)


@pytest.mark.sampled(2)
def test_small_runs_leave_the_decision_in_sight(report):
    """Whatever they say, in as many sentences as they like."""
    sentences = tuple(f"{number} layers: 0.2 s measured (model 0.21 s, {'x' * 60})" for number in range(12))
    text = render(replace(report, small_runs=sentences), "short")

    assert len(lines_before(text)) <= MOST_LINES
    assert "small runs" in text
    assert f"; {REST}" in " ".join(text.split())
    assert {"step", "memory", "training"} <= {line.split("  ")[0] for line in lines_before(text)}


# --- what goes first ---------------------------------------------------------------------------------------


def test_rows_that_fit_stay():
    """As they are."""
    rows = (("step", "1 s"), ("uncertain", "one; two"))

    assert fit_rows(rows) == rows


def test_clauses_of_the_longest_row_go_first():
    """Ten doubts of 60 characters, of which the step's line must not suffer."""
    doubts = "; ".join(f"{number} {'x' * 58}" for number in range(20))

    step, uncertain = fit_rows((("step", "1 s; 2 tokens/s"), ("uncertain", doubts)))

    assert step == ("step", "1 s; 2 tokens/s")
    assert uncertain[1].startswith("0 x")
    assert uncertain[1].endswith(f"; {REST}")


def test_whole_rows_go_where_clauses_do_not_suffice():
    """The plan, its step, memory and days stay whatever is said beside."""
    kept = tuple((name, "x" * 150) for name in ("degrees", "step", "memory", "training"))
    extra = tuple((name, "y" * 150) for name in ("money", "uses", "batch", "proof"))

    rows = fit_rows((*kept, *extra))

    assert rows[:4] == kept
    assert {name for name, _ in rows[4:]} < {name for name, _ in extra}


def test_what_continues_a_row_goes_with_it():
    """Rules that forbid a strategy are a row each; the last ones are left to the whole report."""
    rules = [("forbidden" if number == 0 else "", f"rule {number}") for number in range(30)]

    rows = fit_rows((*rules, ("step", "1 s")))

    assert rows[0] == ("forbidden", "rule 0")
    assert rows[-1] == ("step", "1 s")
    assert rows[-2][1].endswith(REST)
    assert len(rows) == MOST_LINES - 2


# --- what goes on from here ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_next_commands_ask_about_the_same_plans(capsys):
    """Llama-3-70B on 8 H100 fits with an offloaded optimizer alone, which no run has: the next command allows it."""
    words = ["llama3-70b", "8xh100", "--batch", "64", "--sequence", "4k", "--tokens", "1B"]

    assert cli.main(["plan", *words, "-q"]) == 1
    assert "search.evidence  any, which drops: The search leaves optimizer offload out" in capsys.readouterr().out
    assert cli.main(["plan", *words, "search.evidence=any", "-q"]) == 0
    text = capsys.readouterr().out
    (line,) = [one for one in text.splitlines() if one.startswith("line ")]
    (why,) = [one for one in text.splitlines() if one.startswith(("why  ", "why the fastest  "))]
    assert "offload=optimizer" in line
    assert "search.evidence=any" in why.split()


@pytest.mark.slow
def test_a_layout_that_cannot_run_is_not_compared():
    """70 sequences are no multiple of the replicas that NVIDIA's layout has on 72 GPUs."""
    found = idle_plan()

    assert "NVIDIA" not in render(found, "short")
    said = " ".join(render(found).split())
    assert "NVIDIA's 26.06 layout; published for " in said
    assert "; forbidden: " in said
