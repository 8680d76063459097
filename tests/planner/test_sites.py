"""Several data centres: data parallelism over slow links, synchronous or with local steps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from costmodel.errors import SpecError
from costmodel.models.flops import parameters
from costmodel.step.estimate import estimate
from planner import estimate as judge
from planner import load, plan, render, render_study, study
from planner.frameworks import export
from tests.cases import in_one_case

LINE = "TP4 PP4 VPP10 MBS1 ZeRO1 graphs=none recompute=none overlap=tp,pp,dp"
"""Data parallelism over what is left: 8 replicas on 128 devices, 2 on 32."""


def a_job(sites=None, *, num_devices=128, batch=256, **entries):
    """Llama 3 70B on 16 nodes."""
    cluster = {"device": "h100-80gb-sxm", "num_devices": num_devices, **({"sites": sites} if sites else {})}
    training = {"global_batch_size": batch, "sequence_length": 8192, "tokens": 1e12}
    return load({"model": "llama3-70b", "cluster": cluster, "training": training, **entries})


def step_of(sites, **others):
    """The step of one strategy, and the plan."""
    found = judge(a_job(sites, **others), LINE).plan
    return found.step_seconds, found


@pytest.mark.slow
def test_unlimited_bandwidth_makes_sites_one():
    """Gradients that cross in no time cost nothing: the step, memory and plan of one site, to the last digit."""
    one, many = (plan(a_job(sites)).plans[0] for sites in (None, {"count": 4, "bandwidth": None}))

    assert many.step_seconds == one.step_seconds
    assert many.strategy == one.strategy
    assert many.estimate.device_bytes == one.estimate.device_bytes
    assert many.site_links_seconds == 0


@pytest.mark.slow
def test_a_synchronous_step_adds_what_crosses_the_links():
    """2 + 2 bytes of each parameter, 3 of 4 parts from each site, over 12.5 GB/s; 2 (s - 1) latencies of 30 ms."""
    alone, _ = step_of(None)
    joined, found = step_of({"count": 4, "bandwidth": "100Gbit/s", "latency": "30ms"})

    count = parameters(found.facts.model)  # 70.55e9
    assert joined - alone == pytest.approx(count * 4 * 3 / 4 / 12.5e9 + 6 * 0.030, rel=1e-9)
    assert found.site_links_seconds == pytest.approx(joined - alone, rel=1e-9)


def test_a_slow_link_is_named_as_idle():
    """0.84 Gbit/s are 0.105 GB/s: 282 GB x 3/4 take 2,016 s, beside some 14 s of computation."""
    report = plan(a_job({"count": 4, "bandwidth": "0.84Gbit/s"}).change_limits(simplest=False), certified=False)

    best = report.plans[0]
    assert best.site_links_seconds / best.step_seconds > 0.9
    assert "devices idle 99" in render(report, "short")


@pytest.mark.slow
def test_local_steps_share_one_synchronization():
    """Every 100 steps 4 + 4 bytes of each parameter: a hundredth of 70.55e9 x 8 x 3/4 / 0.105 GB/s = 40.3 s."""
    free, _ = step_of({"count": 4, "bandwidth": None, "local_steps": 100})
    joined, found = step_of({"count": 4, "bandwidth": "0.84Gbit/s", "local_steps": 100})

    count = parameters(found.facts.model)
    assert joined - free == pytest.approx(count * 8 * 3 / 4 / 0.105e9 / 100, rel=1e-9)
    small, _ = step_of({"count": 4, "bandwidth": "0.84Gbit/s", "local_steps": 100, "sent_bytes": 0.5})
    assert small - free == pytest.approx((joined - free) / 8, rel=1e-9)


@pytest.mark.slow
def test_streams_hide_behind_computation():
    """8 s of sending every step hide behind 14 s of computing; 40 s are exposed but for these."""
    free, _ = step_of({"count": 4, "bandwidth": None, "local_steps": 500})
    streamed, _ = step_of({"count": 4, "bandwidth": "0.84Gbit/s", "local_steps": 500, "streams": 4})
    blocking, _ = step_of({"count": 4, "bandwidth": "0.84Gbit/s", "local_steps": 100})
    partly, _ = step_of({"count": 4, "bandwidth": "0.84Gbit/s", "local_steps": 100, "streams": 4})

    assert streamed == free
    assert free < partly < blocking


@pytest.mark.slow
def test_a_site_with_local_steps_is_a_job_of_its_own():
    """A quarter of the devices with a quarter of the batch: the same memory, the same step within 1 %."""
    _, apart = step_of({"count": 4, "bandwidth": None, "local_steps": 100})
    _, alone = step_of(None, num_devices=32, batch=64)

    assert apart.strategy.dp == 4 * alone.strategy.dp
    assert apart.estimate.device_bytes == alone.estimate.device_bytes
    assert apart.step_seconds == pytest.approx(alone.step_seconds, rel=0.01)


@pytest.mark.slow
def test_bounds_of_the_search_stay_below_steps_with_sites():
    """The fastest of a whole space is the fastest by costing each of its strategies."""
    job = a_job({"count": 2, "bandwidth": "10Gbit/s", "local_steps": 10, "streams": 2}, search={"pin": {"tp": 8}})
    report = plan(job.change_limits(simplest=False))

    best = report.plans[0]
    others = [one for one in plan(replace(job, top=20)).plans if one.strategy.dp % 2 == 0]
    assert best.step_seconds <= min(estimate(one.facts, one.strategy).step_seconds for one in others) * (1 + 1e-9)
    assert report.exit_code == 0


@in_one_case(
    ("sites", "message"),
    [
        ({"count": 3, "bandwidth": "1GB/s"}, r"cluster\.sites\.count: is 3, which does not divide 128 devices"),
        ({"count": 1, "bandwidth": "1GB/s"}, r"cluster\.sites\.count: must be at least 2, got 1"),
        ({"count": 9, "bandwidth": "1GB/s"}, r"cluster\.sites\.count: must be at most 8, got 9"),
        ({"count": 2}, r"cluster\.sites\.bandwidth"),
        ({"count": 2, "bandwidth": 0}, r"cluster\.sites\.bandwidth: must be at least 1000000, got 0"),
        ({"count": 2, "bandwidth": "1Gbps"}, r"cluster\.sites\.bandwidth: .*1Gbit/s"),
        ({"count": 2, "bandwidth": "1GB/s", "streams": 4}, r"cluster\.sites\.streams: is 4 without local steps"),
        ({"count": 2, "bandwith": "1GB/s"}, r"cluster\.sites\.bandwith: no such entry\. Did you mean 'bandwidth'\?"),
    ],
)
def test_wrong_sites_are_named(sites, message):
    """Place, value seen and what is allowed."""
    with pytest.raises(SpecError, match=message):
        a_job(sites)


def test_rules_keep_sites_whole():
    """One replica cannot be in two sites; ZeRO-3 would send in each micro-batch."""
    sites = {"count": 2, "bandwidth": "1GB/s"}
    report = judge(a_job(sites), "TP8 PP16 DP1 MBS1 ZeRO0 recompute=full")
    assert any("cluster.sites.count" in one for one in report.broken_rules)
    report = judge(a_job(sites), "TP8 DP16 MBS1 ZeRO3 recompute=full")
    assert any("cross once per step" in one for one in report.broken_rules)


def test_no_target_launches_sites():
    """The export would start one site without the others."""
    with pytest.raises(SpecError, match=r"cluster\.sites: is nothing that megatron-lm launches"):
        export(judge(a_job({"count": 2, "bandwidth": "1GB/s"}), LINE).plan, "megatron-lm")


@pytest.mark.slow
def test_the_study_of_sites_states_its_caveat():
    """More local steps wait less; that their quality differs is said."""
    report = study(a_job({"count": 4, "bandwidth": "0.84Gbit/s"}), "sites", {"local_steps": [1, 100]})
    every, seldom = report.series[0].points

    assert every.plan.step_seconds > 10 * seldom.plan.step_seconds
    text = render_study(report)
    assert "Quality is not modelled" in text
    assert "idle for links" in text


@pytest.mark.slow
def test_one_site_is_the_baseline_of_others():
    """A site alone is the job without the section, whatever its links and local steps."""
    sites = {"count": 2, "bandwidth": "1GB/s", "local_steps": 10, "streams": 2}
    one, two = study(a_job(sites), "sites", {"sites": [1, 2]}).series[0].points

    assert one.plan.cluster.sites is None
    alone = plan(a_job().change_limits(simplest=False)).plans[0]
    assert one.plan.step_seconds == alone.step_seconds < two.plan.step_seconds
    small = a_job(sites, search={"pin": {"tp": 8, "cp": 1, "mbs": 1}})
    (series,) = (one for one in study(small, "sites").series if one.name == "sites")
    assert series.points[0].value == 1


def test_one_site_has_no_study_of_sites():
    """There are no links to change; the message gives entries that a job takes."""
    with pytest.raises(SpecError, match=r"'sites' does not apply to this job: its devices are in one site") as caught:
        study(a_job(), "sites")

    entries = [word.strip(".,") for word in str(caught.value).split() if "=" in word]
    assert load(a_job().document, entries).facts.cluster.sites.count == 2
