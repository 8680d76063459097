"""Settings of which a job gives several values: what is said of wrong ones, and where the chosen ones are seen."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest
import yaml

from costmodel import catalog
from costmodel.errors import SpecError
from costmodel.step import step
from planner import compare, estimate, explain, export, from_megatron_lm, load, plan, read_plan, render
from planner.batch.job_result import line_of, result_of
from planner.batch.jobs import make_job
from planner.batch.results import row_of
from planner.batch.work import plan_job
from planner.cli import main
from planner.jobs.strategy_file import CHOOSABLE, WITHOUT_ANY, has_value
from planner.schema.job import job_schema
from planner.search.alternatives import search_each
from planner.search.branch_and_bound import Status
from planner.search.candidates import Formulas
from planner.verbs.device_counts import plan_for_sizes
from tests.builders_job import a_document
from tests.cases import in_one_case, read_table

JOB = a_document(
    "llama3-8b",
    "16xh100-80gb-sxm",
    batch=64,
    sequence=4096,
    tokens=1e11,
    cluster={"framework": "megatron-lm-0.17"},
    search={"stages": "even"},
)
GRADIENTS = {"gradient_dtype": ["fp32", "bf16"]}
"""Two values: 16-bit gradients are sent in half the time."""


def a_job(settings, **changes):
    """A small job with some settings."""
    return {**JOB, "settings": settings, **changes}


@pytest.fixture(scope="module")
def report():
    """The three best plans of the small job with either gradients."""
    return plan(load(a_job(GRADIENTS, top=3)))


# --- the search --------------------------------------------------------------------------------------------


def test_a_combination_that_its_bound_excludes_is_not_searched():
    """With 32-bit gradients every step takes at least 100 s, says the bound: no row is tabulated."""

    def lower_bound(facts, degrees):
        least = step.lower_bound_seconds(facts, degrees)
        return least if facts.workload.precision.gradient_bytes == 2 else np.maximum(least, 100.0)

    joint = search_each(load(a_job(GRADIENTS)), Formulas(lower_bound=lower_bound))

    wide, narrow = joint.of_each
    assert [one.answer for one in (wide, narrow)] == ["nothing faster", "found"]
    assert wide.bound_seconds == 100.0
    assert narrow.bound_seconds is None
    assert wide.outcome.effort.num_rows_tabulated == 0
    assert joint.outcome.effort.num_bounded >= wide.outcome.effort.size
    assert joint.outcome.status == Status.OPTIMAL


@pytest.mark.slow
def test_one_model_decides_among_all_combinations():
    """Three plans of one group each take three solves, however many combinations there are."""
    settings = {**GRADIENTS, "moments_dtype": ["fp32", "bf16"], "loss": ["fused", "unfused"]}

    joint = search_each(load(a_job(settings, top=3)))

    assert len(joint.of_each) == 8
    assert joint.outcome.effort.num_solves == len(joint.ranked) == 3


# --- reading -----------------------------------------------------------------------------------------------


def test_every_combination_is_an_alternative_in_the_job_s_order():
    """Two of one by two of another; the job's own facts are those of the first."""
    problem = load(a_job({"gradient_dtype": ["bf16", "fp32"], "offloaded_states": [1, 0.5], "loss": "fused"}))

    assert [one.settings for one in problem.each] == [
        {"gradient_dtype": "bf16", "offloaded_states": 1.0},
        {"gradient_dtype": "bf16", "offloaded_states": 0.5},
        {"gradient_dtype": "fp32", "offloaded_states": 1.0},
        {"gradient_dtype": "fp32", "offloaded_states": 0.5},
    ]
    assert problem.facts == problem.each[0].facts
    assert [one.facts.workload.precision.gradient_bytes for one in problem.each] == [2, 2, 4, 4]
    assert {one.facts.cluster.settings.loss for one in problem.each} == {"fused"}


@pytest.mark.parametrize("value", ["fp32", "bf16"])
def test_an_alternative_is_the_job_that_gives_its_values_alone(value):
    """Facts, reliability (a checkpoint holds the moments) and document."""
    settings = {"gradient_dtype": value, "moments_dtype": "bf16"}
    alone = load(a_job(settings))
    several = load(a_job({name: ["fp32", "bf16"] for name in settings}))

    (own,) = [one for one in several.each if one.settings == settings]

    assert replace(own, settings={}) == alone
    assert own.document == alone.document


@pytest.mark.slow
def test_the_mode_of_muon_is_chosen_with_its_placement():
    """Sharding places matrices and the mode splits their work: the best of all is the best of each mode alone."""
    small = {"search": {"stages": "even", "pin": {"tp": 2}}, "top": 1}
    modes = ["blockwise", "duplicated", "distributed"]
    best = plan(load(a_job({"optimizer": "muon", "muon_tp_mode": modes}, **small))).plans[0]

    alone = [plan(load(a_job({"optimizer": "muon", "muon_tp_mode": one}, **small))).plans[0] for one in modes]

    assert best.step_seconds == min(one.step_seconds for one in alone)
    assert best.cluster.settings.muon_tp_mode == "blockwise"
    assert best.strategy.sharding.text == "optimizer"


@in_one_case(("settings", "message"), read_table("setting_choices")["optimizers"])
def test_other_optimizers_are_answered_with_their_price(settings, message):
    """An optimizer without an entry is priced as Adam; Muon's own settings want Muon."""
    with pytest.raises(SpecError, match=re.escape(message)):
        load(a_job(settings))


def test_muon_in_fp16_is_refused_before_the_search():
    """Megatron-LM asserts it (optimizer/muon.py:196 of core 0.16.1)."""
    with pytest.raises(SpecError, match=r"training\.precision: is fp16, which settings\.optimizer=muon excludes"):
        load(a_job({"optimizer": "muon"}, training={**JOB["training"], "precision": "fp16"}))


def test_a_list_of_one_value_is_that_value():
    """There is nothing to choose."""
    problem = load(a_job({"gradient_dtype": ["bf16"]}))

    assert problem.alternatives == ()
    assert problem.facts == load(a_job({"gradient_dtype": "bf16"})).facts


def test_settings_without_any_are_those_that_no_release_lists():
    """The schema and the job entries document ``any`` where some release's values are known."""
    listed = {name for one in catalog.frameworks() for name in catalog.framework(one).setting_values}
    assert set(WITHOUT_ANY) == set(CHOOSABLE) - listed
    properties = job_schema()["$defs"]["JobSettings"]["properties"]
    assert {name for name in CHOOSABLE if {"const": "any"} in properties[name]["anyOf"]} == listed & set(CHOOSABLE)


def test_any_is_what_the_release_has():
    """The precision-aware optimizer is of Megatron-Core 0.11, partial offload of 0.12."""
    new, old = catalog.framework("megatron-lm-0.17"), catalog.framework("megatron-lm-0.8")

    assert new.setting_values["moments_dtype"] == ("fp32", "bf16")
    assert new.setting_values["offloaded_states"] == (0.25, 0.5, 0.75, 1.0)
    assert old.setting_values["moments_dtype"] == ("fp32",)
    assert len(load(a_job({"moments_dtype": "any", "offloaded_states": "any"})).alternatives) == 8


def test_of_a_number_with_several_values_those_between_are_had():
    """A third of the states is no quarter; of words only those that are listed are had."""
    framework = catalog.framework("megatron-lm-0.17")

    assert has_value(framework, "offloaded_states", 1 / 3)
    assert not has_value(framework, "gradient_dtype", "bf16+fp32")


@pytest.mark.slow
@in_one_case("name", catalog.frameworks())
def test_the_catalog_lists_values_of_choosable_settings(name):
    """Each is a value of its setting, as a job may give it."""
    values = catalog.framework(name).setting_values

    assert set(values) <= set(CHOOSABLE)
    for setting, own in values.items():
        assert all(load(a_job({setting: value})).facts for value in own)


MISTAKES = read_table("setting_choices")["mistakes"]


@in_one_case("mistake", MISTAKES)
def test_wrong_values_are_named(mistake):
    """Where, what was seen, what is allowed."""
    settings, texts = MISTAKES[mistake]

    with pytest.raises(SpecError) as caught:
        load(a_job(settings))

    assert [text for text in texts if text not in str(caught.value)] == []


def test_any_is_refused_where_no_values_of_the_release_are_known():
    """The release and the fix."""
    with pytest.raises(SpecError, match=r"settings\.gradient_dtype: is any, .* gpt-neox-2\.0 has\. Give a list"):
        load(a_job({"gradient_dtype": "any"}, cluster={**JOB["cluster"], "framework": "gpt-neox-2.0"}))


@pytest.mark.parametrize(
    ("framework", "settings", "texts"),
    [
        ("megatron-lm-0.8", {"moments_dtype": ["fp32", "bf16"]}, ("settings.moments_dtype.1", "allowed: fp32", "0.17")),
        ("megatron-lm-0.8", {"offloaded_states": "any"}, ("settings.offloaded_states", "no optimizer_offload")),
        ("torchtitan-0.1", {"offloaded_states": [0.5, 1]}, ("settings.offloaded_states", "no optimizer_offload")),
    ],
)
def test_a_release_without_the_setting_refuses_several(framework, settings, texts):
    """What it would cost all the same is asked for by framework_rules: false, as of decisions."""
    job = a_job(settings, cluster={**JOB["cluster"], "framework": framework})

    with pytest.raises(SpecError) as caught:
        load(job)

    assert [text for text in texts if text not in str(caught.value)] == []
    if settings != {"offloaded_states": "any"}:
        assert load({**job, "search": {"framework_rules": False}}).alternatives


def test_a_framework_of_the_job_lists_values_that_there_are():
    """An entry that nothing could mean is refused."""
    framework = {"base": "megatron-lm-0.17", "setting_values": {"gradient_dtype": ["fp8"]}}

    with pytest.raises(SpecError, match=r"cluster\.framework\.setting_values\.gradient_dtype\.0"):
        load(a_job({}, cluster={**JOB["cluster"], "framework": framework}))


# --- what is chosen ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_each_plan_has_its_own_settings(report):
    """Gradients of half the bytes are faster; the report says so in text and JSON."""
    whole = json.loads(render(report, "json"))

    assert report.plans[0].problem.settings == {"gradient_dtype": "bf16"}
    assert report.plans[0].facts.workload.precision.gradient_bytes == 2
    assert report.chosen.settings == {"gradient_dtype": "bf16"}
    assert [one["settings"] for one in whole["plans"]] == [dict(one.problem.settings) for one in report.plans]
    assert whole["cluster"]["settings"]["gradient_dtype"] == "bf16"
    assert whole["job"]["document"]["settings"] == GRADIENTS
    assert {one["answer"] for one in whole["alternatives"]} <= {"found", "nothing faster"}
    assert "gradient_dtype=bf16" in render(report, "table")
    assert '{""gradient_dtype"": ""bf16""}' in render(report, "csv")
    assert report.certificate.verdict == "certified"


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_saved_plan_keeps_its_choice(report, tmp_path, number):
    """Read back, it has the settings and the step of the plan, and no alternatives."""
    file = tmp_path / "plan.json"
    file.write_text(render(report, "json"))

    saved = read_plan(file, number)

    assert saved.plan.step_seconds == report.plans[number - 1].step_seconds == saved.step_seconds
    assert saved.problem.settings == report.plans[number - 1].problem.settings
    assert saved.problem.alternatives == ()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "search", "options"),
    [
        ({"gradient_dtype": ["fp32", "bf16"], "moments_dtype": "any"}, {}, {"gradient_dtype": "--grad-reduce-in-bf16"}),
        (
            {"offloaded_states": [0.5, 0.25]},
            {"pin": {"optimizer_offload": True}},
            {"offloaded_states": "--optimizer-offload-fraction 0.25"},
        ),
    ],
)
def test_an_export_says_what_was_chosen_and_comes_back(settings, search, options):
    """Megatron-LM's options of the chosen values; read again they are the same settings, and the same step."""
    chosen = plan(load(a_job(settings, search={"stages": "even", **search}))).plans[0]

    text = export(chosen, "megatron-lm").files["megatron-args.txt"]
    cluster = [f"cluster.{name}={value}" for name, value in JOB["cluster"].items()]
    again = from_megatron_lm(text, [*cluster, "training.tokens=1e11"])

    assert [option for option in options.values() if option not in text] == []
    assert {name: again.document["settings"][name] for name in settings} == chosen.problem.settings
    assert estimate(load(again.document), {}).plan.step_seconds == pytest.approx(chosen.step_seconds, rel=1e-9)


@pytest.mark.slow
def test_an_estimate_takes_the_values_that_are_fastest():
    """A given strategy is costed with either; the report is of a job with one value."""
    answer = estimate(load(a_job(GRADIENTS)), {"tp": 2, "pp": 2, "mbs": 4})
    both = [estimate(load(a_job({"gradient_dtype": one})), {"tp": 2, "pp": 2, "mbs": 4}) for one in ("fp32", "bf16")]

    assert answer.plan.step_seconds == min(one.plan.step_seconds for one in both)
    assert answer.problem.settings == {"gradient_dtype": "bf16"}


@pytest.mark.slow
def test_explanations_and_comparisons_are_of_the_chosen_settings():
    """What binds the best plan, and what it gains over a given one."""
    problem = load(a_job(GRADIENTS))
    alone = load(a_job({"gradient_dtype": "bf16"}))

    explained, expected = explain(problem, {"tp": 4}), explain(alone, {"tp": 4})
    compared = compare(problem, {"tp": 4})

    assert explained.bindings == expected.bindings
    assert explained.given.step_seconds == expected.given.step_seconds
    assert compared.saved_seconds == compare(alone, {"tp": 4}).saved_seconds
    assert "gradient_dtype=bf16" in render(explained, "table")
    assert "gradient_dtype=bf16" in render(compared, "table")


@pytest.mark.slow
def test_a_batch_and_sizes_choose_as_well():
    """A line of results has the settings of each plan; so has each size its plan."""
    job = make_job(a_job(GRADIENTS))
    line = plan_job(job)
    row = row_of(json.loads(line_of(result_of(job, line))), line.plans[0])
    sizes = plan_for_sizes(a_job(GRADIENTS), num_nodes=[1, 2]).sizes

    assert line.plans[0]["settings"] == {"gradient_dtype": "bf16"}
    assert row["settings.gradient_dtype"] == "bf16"
    assert [size.plan.problem.settings for size in sizes] == [{"gradient_dtype": "bf16"}] * 2


@pytest.mark.slow
def test_what_nothing_fits_with_is_said_of_each():
    """Less is offloaded, more is lacking; all is explained of what comes closest."""
    settings = {"offloaded_states": [0.25, 1.0]}
    job = a_job(settings, model="llama3-70b", search={"pin": {"optimizer_offload": True}})
    report = plan(load({**job, "cluster": {**JOB["cluster"], "memory_gib": 10}}))

    less, more = report.alternatives

    assert report.exit_code == 1
    assert less.answer == more.answer == "nothing fits"
    assert less.shortage_bytes > more.shortage_bytes > 0
    assert report.chosen.settings == {"offloaded_states": 1.0}
    assert report.outcome.conflict.shortage_bytes == more.shortage_bytes
    assert render(report, "table").count("the closest strategy lacks") == 3


def test_time_that_runs_out_is_said():
    """No proof, and no certificate."""
    job = a_job(GRADIENTS, model="llama3-405b", cluster={**JOB["cluster"], "num_devices": 4096})
    report = plan(
        load({**job, "training": {**JOB["training"], "global_batch_size": 4096}}, ["search.time_limit_seconds=0.001"])
    )

    assert report.exit_code == 3
    assert {one.answer for one in report.alternatives} == {"unknown"}
    assert "time ran out before the proof" in render(report, "table")
    assert json.loads(render(report, "json"))["lower_bound_seconds"] == 0


@pytest.mark.slow
def test_the_command_line_takes_lists_and_refuses_wrong_ones(tmp_path, capsys):
    """Exit codes 0 and 2; the model's file is of the chosen settings."""
    file, model = tmp_path / "job.yaml", tmp_path / "model.txt"
    file.write_text(yaml.safe_dump(JOB))

    assert main(["plan", str(file), "settings.gradient_dtype=[fp32, bf16]", "--write-model", str(model)]) == 0
    assert "gradient_dtype=bf16" in capsys.readouterr().out
    assert model.exists()
    assert main(["plan", str(file), "settings.gradient_dtype=[]"]) == 2
    assert "settings.gradient_dtype: is an empty list." in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(("entries", "unused"), read_table("setting_choices")["unused"])
def test_entries_without_effect_are_said(entries, unused):
    """In the short report, the table and JSON, by name."""
    report = plan(load({**JOB, "search": {"stages": "even", "pin": {"pp": 1, "mbs": 1}}}, entries))
    named = [entry.split("=")[0] for entry in entries]

    said = json.loads(render(report, "json"))["job"]["unused_entries"]

    assert len(said) == unused
    assert {*said} <= {*named}
    for form in ("short", "table"):
        assert all(name in render(report, form).split("\nNext\n")[0] for name in said)
        assert ("no effect" in render(report, form)) == bool(said)


@pytest.mark.parametrize(("entries", "is_allowed"), [([], False), (["settings.cp_comm_type=a2a"], True)])
def test_windows_need_a_kind_of_context_parallelism(entries, is_allowed):
    """Exports write --cp-comm-type p2p where a job says none, and Transformer Engine's ring has no windows."""
    job = load({**JOB, "model": "gpt-oss-20b"}, entries)

    broken = estimate(
        job, {"tp": 1, "cp": 2, "pp": 1, "ep": 8, "cp_overlap": not is_allowed}, searched=False
    ).broken_rules

    assert any("cp_comm_type" in rule for rule in broken) != is_allowed


@pytest.mark.parametrize("entry", ["max_seqlen_per_dp_cp_rank=4k", "evaluation_interval_steps=1k"])
def test_units_of_every_entry_of_a_training_are_read(entry):
    """An entry with a unit ends no report, and lengths say how they were read: 4k is 4,096."""
    job = load(JOB, ["training.sequence_lengths={1k: 3}", f"training.{entry}"])
    text = render(estimate(job, {"tp": 2}, searched=False), "table")

    assert ("max_seqlen_per_dp_cp_rank 4k is 4,096" in " ".join(text.split())) == entry.startswith("max")
