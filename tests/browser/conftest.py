"""A browser, and pages of every kind as files; without Chromium or playwright the tests are skipped."""

from __future__ import annotations

import shutil
from contextlib import contextmanager

import pytest

from benchmarks.page import BROWSERS
from planner.advice.advise import ClusterChoices, advise
from planner.advice.prices import Offer, PriceList
from planner.advice.render import render_advice
from planner.advice.wish import Wish
from planner.jobs.problem import load
from planner.measure.traces.report.page import replay_page
from planner.measure.traces.report.replay import replay_report
from planner.report import render, render_study
from planner.verbs.compare import compare
from planner.verbs.plan import estimate, plan
from planner.verbs.study import study
from tests.builders_traces import a_step
from tests.planner.test_job import JOBS, a_job

HOW = "pip install '.[browser]', apt-get install chromium"


@pytest.fixture(scope="session")
def chromium():
    """The system's Chromium, headless."""
    driver = pytest.importorskip("playwright.sync_api", reason=f"playwright is not installed ({HOW})")
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip(f"no Chromium is installed ({HOW})")
    with driver.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


def quick(job, *overrides):
    """A job of the examples in a short time."""
    return load(JOBS / f"{job}.yaml", ["search.time_limit_seconds=4", *overrides])


def a_dense_plan():
    """Llama-3-405B on 2,048 GPUs, eight chunks per rank: 98,304 passes."""
    return render(plan(quick("llama3-405b-2048xh100", "top=1", "search.pin={pp: 16, vpp: 8}")), "html")


def an_moe_plan():
    """Mixtral 8x7B on 64 GPUs."""
    return render(plan(quick("mixtral-8x7b-64xa100")), "html")


def an_infeasible_job():
    """Llama-3-70B on two GPUs."""
    job = a_job(model="llama3-70b", cluster__num_devices=2, search__time_limit_seconds=4)
    return render(plan(load(job)), "html")


def a_forbidden_estimate():
    """A strategy that breaks rules."""
    return render(estimate(quick("mixtral-8x7b-64xa100"), {"tp": 3, "pp": 2, "dp": 8}), "html")


def a_comparison():
    """What somebody runs beside the fastest plan."""
    return render(compare(quick("llama3-8b-8xh100"), {"tp": 2, "pp": 2}), "html")


def a_replay():
    """A step of 400 us, measured and replayed."""
    return replay_page(replay_report([a_step()]))


def an_advice():
    """Llama 3 8B on three devices in three sizes, two of them with prices, within 60 days."""
    job = a_job(training__tokens=4e11, training__global_batch_size=256)
    offers = (
        Offer(device="h100-80gb-sxm", provider="A", low=2.0, high=2.5),
        Offer(device="a100-80gb-sxm", low=1.1, high=1.5),
    )
    choices = ClusterChoices(
        devices=("h100", "b200", "a100-80gb-sxm"), sizes=(8, 32, 128), prices=PriceList(offers=offers)
    )
    return render_advice(advise(job, choices, Wish(days=60)), "html")


def a_study_of_features():
    """Gains of the features of a plan, and costs of the others."""
    return render_study(study(quick("mixtral-8x7b-64xa100"), "features"), "html")


def a_study_of_reliability():
    """Five plots with their tables."""
    return render_study(study(quick("mixtral-8x7b-64xa100"), "reliability"), "html")


def a_study_of_scale():
    """Plans of long lines beside their remarks."""
    return render_study(study(quick("llama3-8b-8xh100"), "scale", {"strong": [8, 16, 64]}), "html")


PAGES = {
    made.__name__: made
    for made in (
        an_advice,
        a_dense_plan,
        an_moe_plan,
        an_infeasible_job,
        a_forbidden_estimate,
        a_comparison,
        a_replay,
        a_study_of_features,
        a_study_of_reliability,
        a_study_of_scale,
    )
}


@pytest.fixture(scope="session")
def files(chromium, tmp_path_factory):
    """The file of each page, made when it is asked for."""
    folder, made = tmp_path_factory.mktemp("pages"), {}

    def file_of(name):
        if name not in made:
            made[name] = folder / f"{name}.html"
            made[name].write_text(PAGES[name](), encoding="utf-8")
        return made[name]

    return file_of


@contextmanager
def opening(chromium, files):
    """Yield a function that opens a page as a file without a network; the page says what its console says."""
    # One tab for all pages, since a tab has a process of its own, which costs more than most pages do.
    context = chromium.new_context(offline=True)
    page = context.new_page()
    page.said = []
    page.on("console", lambda message: page.said.append(message.text))
    page.on("pageerror", lambda error: page.said.append(str(error)))

    def open_page(name, width=1400, height=900, **features):
        page.goto("about:blank")
        page.said.clear()
        page.mouse.move(0, 0)
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(media="null", **{"color_scheme": "light", "reduced_motion": "no-preference", **features})
        page.goto(files(name).as_uri())
        page.wait_for_selector("html[data-drawn-milliseconds]", state="attached")
        return page

    yield open_page
    context.close()


@pytest.fixture(scope="session")
def opened(chromium, files):
    """Opens a page for one test, in place of the one before."""
    with opening(chromium, files) as open_page:
        yield open_page


@pytest.fixture(scope="session")
def seen_tab(chromium, files):
    """Opens pages that several tests look at."""
    with opening(chromium, files) as open_page:
        yield open_page


@pytest.fixture(scope="module", params=PAGES)
def seen(seen_tab, request):
    """Each page on a desk, opened once for all tests of a module that leave it as it is."""
    return seen_tab(request.param, reduced_motion="reduce")
