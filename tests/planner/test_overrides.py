"""``key=value`` on the command line and in Python: dotted keys, YAML values."""

import re

import pytest
import yaml

from costmodel.errors import SpecError
from costmodel.strategy import Recompute
from planner.agents.work import read_job
from planner.jobs.line import read_decisions
from planner.jobs.problem import load, split_overrides
from planner.measure.traces.report.what_if import read_changed_jobs
from planner.serve.answers import read_problem
from planner.verbs.any_job import read_any
from tests.cases import in_one_case, read_table
from tests.planner.test_job import A_TIER, JOB, a_job, message_of


def test_override_makes_missing_sections_and_replaces_whole_ones():
    """``search.pin.tp=8`` needs no ``search:`` in the file; a value may be any YAML."""
    limits = load(JOB, ["search.pin.tp=8", "search.allow.pp=[4,8]", "search.pin.recompute=full"]).search

    assert limits.pin == {"tp": 8, "recompute": Recompute.FULL}
    assert limits.allow == {"pp": (4, 8)}
    assert load(JOB, ["search={pin: {tp: 4}}"]).search.pin == {"tp": 4}


def test_override_replaces_an_entry():
    """Later ones win as later options do; 15e12 is a number as in the file, and underscores may separate digits."""
    problem = load(JOB, ["training.tokens=15e12", "cluster.num_devices=1_024", "top=2", "top=3"])

    assert (problem.facts.workload.tokens, problem.facts.cluster.num_devices, problem.top) == (15e12, 1024, 3)


def test_override_addresses_lists_by_number():
    """From 0, as messages count them."""
    device = load(a_job(cluster__networks=[A_TIER]), ["cluster.networks.0.bandwidth=1e11"]).facts.cluster.device

    assert device.networks[0].bandwidth == 1e11


def test_override_value_may_contain_an_equals_sign():
    """Only the first one separates."""
    assert "'a=b' is neither in the catalog nor a file" in message_of(JOB, ["model=a=b"])


def test_override_leaves_the_mapping_as_it_was():
    """A caller may load the same mapping again with other overrides."""
    job = a_job()

    load(job, ["training.sequence_length=1024", "top=5"])

    assert job == JOB


BAD_OVERRIDES = read_table("overrides")["bad_overrides"]


@in_one_case(
    ("override", "message"),
    [
        *BAD_OVERRIDES,
        ("a." * 50 + "a=3", "expected names joined by single dots"),
        ("training.tokens=\ud800", "training.tokens: is not text in UTF-8 (character 1)."),
    ],
)
def test_bad_override(override, message):
    """The messages are those of the file."""
    assert message in message_of(a_job(cluster__networks=[A_TIER]), [override])


# --- decisions of `planner estimate` --------------------------------------------------------------------------


def test_decisions_are_told_from_overrides():
    """What has a dot, or is a section of the job, changes the job."""
    assert split_overrides(["tp=8", "training.tokens=1", "model=llama3-8b", "dp_overlap=on"]) == (
        ["training.tokens=1", "model=llama3-8b"],
        ["tp=8", "dp_overlap=on"],
    )


def test_decisions_become_numbers():
    """Enums by name, flags in any spelling of YAML."""
    assert read_decisions(["tp=8", "recompute=full", "dp_overlap=on"]) == {
        "tp": 8,
        "recompute": Recompute.FULL,
        "dp_overlap": 1,
    }


BAD_DECISIONS = [
    ("tpp=8", "strategy.tpp: no such decision. Did you mean 'tp'?"),
    ("global_batch_size=64", "no such decision. Write training.global_batch_size=64."),
    ("tp=eight", "strategy.tp: expected a whole number, got 'eight'."),
    ("tp", "'tp': has no value. Write TP2."),
    ("recompute=ful", "(the latter may be joined by +), got 'ful'. Did you mean 'full'?"),
    (
        "recompute=mlp+nor",
        "strategy.recompute: expected one of none, selective, full, core_attention, qkv, norms, mlp, ",
    ),
]


@in_one_case(("assignment", "message"), BAD_DECISIONS)
def test_bad_decision(assignment, message):
    """Decisions are known by name."""
    with pytest.raises(SpecError, match=re.escape(message)):
        read_decisions([assignment])


def test_a_decision_is_given_once():
    """As an entry of a YAML file is."""
    with pytest.raises(SpecError) as caught:
        read_decisions(["tp=2", "pp=2", "tp=4"])

    assert str(caught.value) == "strategy.tp: is given twice, by tp=2 and tp=4; keep one."


WHOLE = "TP8 DP1 MBS1 ZeRO1 graphs=none recompute=none overlap=none"


@pytest.mark.parametrize(
    ("words", "entry", "name"),
    [
        ("TP4", "strategy.tp=8", "tp"),
        ("TP4", "strategy = {pp: 2, tp: 8}", "tp"),
        ("TP4", "strategy=PP2 TP8", "tp"),
        ("TP4 overlap=tp", "strategy.ep_overlap=true", "ep_overlap"),
        ("PP2 layout=16+16", "strategy.layout.layers=[15, 17]", "layout"),
        (WHOLE, "strategy.group=2", "group"),
    ],
)
def test_an_entry_of_a_decision_that_words_give_is_refused(words, entry, name):
    """Lines, mappings, stages and flags turned off give decisions; a whole line gives those it does not write."""
    with pytest.raises(SpecError) as caught:
        read_decisions(words.split(), ["top=2", entry])

    assert str(caught.value) == f"strategy.{name}: is given twice, by {words} and {entry}; keep one."


@pytest.mark.parametrize("entry", ["strategy.mbs=2", "strategy={mbs: 2}", "strategy=null", "search.pin.tp=8", "top=2"])
def test_an_entry_that_words_leave_open_is_taken(entry):
    """Entries of another decision, of none, or of another section."""
    assert read_decisions(["TP4"], [entry]) == {"tp": 4}


LINE = "llama3-8b 8xh100 --batch 64 --sequence 8k --tokens 1T"
ASKED = {
    "model": "llama3-8b", "device": "h100", "devices": "8", "batch": "64", "sequence": "8k", "tokens": "1T",
    "price": "", "target": "", "more": "TP4 strategy.tp=8",
}  # fmt: skip


@pytest.mark.parametrize(
    "read",
    [
        lambda path, words: read_any(LINE, words),
        lambda path, words: read_any(f"{path} {words[0]}", words[1:]),
        lambda path, words: read_job({"job": JOB, "changes": words}, 1.0),
        lambda path, words: read_job({"job": str(path), "changes": words}, 1.0),
        lambda path, words: read_job({"job": JOB, "changes": words}, 1.0, pins=True),
        lambda path, words: read_changed_jobs(path, words),
        lambda path, words: read_problem(ASKED, 1.0),
    ],
    ids=["two jobs", "a job's own words", "agent", "agent's file", "agent's pins", "what-if", "page"],
)
def test_whoever_reads_words_refuses_a_decision_that_is_given_twice(read, tmp_path):
    """Comparisons, tools of agents, changes of a trace and the page, with the message of ``planner estimate``."""
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump({**JOB, "strategy": WHOLE}))

    with pytest.raises(SpecError, match=re.escape("strategy.tp: is given twice, by TP4 and strategy.tp=8; keep one.")):
        read(path, ["TP4", "strategy.tp=8"])
