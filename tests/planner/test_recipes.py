"""Published layouts: listed, found for a job, scaled, refused, named in reports and compared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from costmodel import catalog
from costmodel.errors import SpecError
from costmodel.models.patterns import shape_of
from costmodel.strategy import Sharding
from planner import compare_recipe, estimate, judge_recipes, load, plan, recipe_candidates, recipes_for, render
from planner.cli import main
from planner.jobs.run_jobs import Recipe, recipe, recipes, select_recipes
from planner.report.describe import catalog_text, describe_catalog
from planner.search.recipes import fit_recipe, list_refused_recipes, nearest_layouts
from planner.verbs.recipes import nearest_recipe

ROOT = Path(__file__).parents[2]

H100_70B = {"tp": 4, "cp": 2, "pp": 4, "vpp": 5, "mbs": 1}
"""Megatron-Bridge's LLAMA3_70B_PRETRAIN_CONFIG_H100_BF16_V1, llama3_workload_base_configs.py."""


def job(num_devices=64, *, model="llama3-70b", device="h100", batch=None, sequence=8192, **others):
    """Llama-3-70B on H100 with the published batch per device."""
    training = {"global_batch_size": batch or 2 * num_devices, "sequence_length": sequence, "tokens": 1e12}
    cluster = {"device": device, "num_devices": num_devices, **others.pop("cluster", {})}
    return load({"model": model, "cluster": cluster, "training": {**training, **others.pop("training", {})}, **others})


def decisions(strategy, names=tuple(H100_70B)):
    """Some decisions of a strategy."""
    return {name: strategy.decisions()[name] for name in names}


# --- the catalog ------------------------------------------------------------------------------------------------


def test_every_recipe_has_its_own_name():
    """A name given on the command line means one."""
    names = [one.id for one in recipes()]

    assert len(set(names)) == len(names) > 700


def test_models_of_the_catalog_have_its_shapes():
    """Jobs find their recipes by shapes; models that stand for a family, too."""
    known = [one for one in recipes() if one.model in catalog.model_names()]

    assert "deepseek-v4-flash" in {one.model for one in known}
    for one in known:
        assert one.shape is not None, one.id
        assert one.shape.is_like(shape_of(catalog.model(one.model))), one.id


@pytest.mark.sampled(1)
@pytest.mark.parametrize("words", [["llama3-70b", "h100"], ["meta-llama/Meta-Llama-3-70B", "H100", "bf16"]])
def test_words_select(words):
    """Models and devices by any of their names."""
    found = select_recipes(words)

    assert {(one.model, one.device) for one in found} == {("llama3-70b", "h100-80gb-sxm")}


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("lama3-70b", "'lama3-70b' is no model, device, precision or release. Did you mean 'llama3-70b'?"),
        ("llama2-7b", "no published recipe is for 'llama2-7b'"),
        ("a100", "no published recipe is for 'a100'"),
    ],
)
def test_other_words_are_refused(word, message):
    """A slip is named; what is known has simply none."""
    with pytest.raises(SpecError, match=message):
        select_recipes([word])


@pytest.mark.slow
def test_tables_name_modules_as_megatron_does():
    """The table and one entry; the JSON has the words of job files."""
    table = describe_catalog("recipes", ["deepseek-v3", "h100", "bf16"])

    assert {one["strategy.recompute"] for one in table["recipes"]} >= {"qkv+mlp"}
    assert "mla_up_proj+mlp" in catalog_text(table)
    assert "qkv" not in catalog_text(table)
    assert "mla_up_proj+mlp" in catalog_text(describe_catalog("deepseek-v3-1024xh100-bf16-25.11.01"))


@pytest.mark.slow
def test_rows_that_cannot_run_keep_their_reason():
    """DeepSeek-V3 on 64 H100 of v0.6.0: ep 64 does not divide 64 / pp 8 ranks."""
    broken = [one for one in select_recipes(["deepseek-v3", "h100"]) if one.scales == (64,)]

    assert broken
    assert all("does not divide" in one.refused for one in broken)


OWN_SIZES = [one for one in recipes() if not one.refused and one.sequence_length][::23]


@pytest.mark.parametrize("one", OWN_SIZES, ids=lambda one: one.id)
def test_recipes_are_read_at_their_own_size(one):
    """As many devices, degrees and stages as published."""
    if one.model not in catalog.models() or one.device not in catalog.devices():
        pytest.skip("its model or its device is not in the catalog")
    training = {"precision": one.precision}
    batch = int(one.cells["training.global_batch_size"])
    given = job(one.scales[0], model=one.model, device=one.device, batch=batch, sequence=one.sequence_length)
    given = load({**given.document, "training": {**given.document["training"], **training}})

    found = fit_recipe(one, given)

    assert all(note.endswith("is the recipe's") for note in found.notes)
    assert found.strategy.num_devices == one.scales[0]
    assert all(int(one.cells[f"strategy.{name}"] or 1) == found.strategy.decisions()[name] for name in ("tp", "pp"))


# --- for a job --------------------------------------------------------------------------------------------------


def test_a_job_gets_the_published_layout():
    """Nothing of it is changed."""
    nearest = recipes_for(job())[0]

    assert decisions(nearest.strategy) == H100_70B
    assert (nearest.title, nearest.notes) == ("NVIDIA's 26.06 layout", ())
    assert nearest.strategy in recipe_candidates(job())


def test_other_numbers_of_devices_are_scaled_by_dp():
    """A replica of tp 4, cp 2, pp 4 takes 32 devices: 128 have four of them."""
    nearest = recipes_for(job(128))[0]

    assert decisions(nearest.strategy) == H100_70B
    assert nearest.strategy.dp == 4
    assert nearest.notes == ("published for 64 GPUs, scaled by dp to 128",)


def test_devices_that_no_dp_reaches_are_refused():
    """32 does not divide 48."""
    given = job(48)

    assert recipes_for(given) == ()
    assert "tp x cp x pp = 32 does not divide 48 GPUs" in dict(list_refused_recipes(given))[recipe(ID)]


ID = "llama3-70b-64xh100-bf16-26.06.01"


def test_another_batch_and_sequence_are_said():
    """A batch of 512 on 64 devices is four times the published one, a sequence of 4,096 half as long."""
    notes = {one.recipe.id: one.notes for one in recipes_for(job(batch=512, sequence=4096))}

    assert notes[ID] == ("published for a batch of 128 on as many GPUs", "published for sequences of 8,192 tokens")


def test_sequences_too_long_are_refused():
    """A layout for 8,192 tokens says nothing of 131,072."""
    given = job(sequence=131072)

    assert recipes_for(given) == ()
    assert "is for sequences of 8,192 tokens" in dict(list_refused_recipes(given))[recipe(ID)]


@pytest.mark.parametrize(
    ("framework", "release"),
    [("megatron-bridge-25.09", "25.09"), ("megatron-bridge-26.03", "26.02.01"), ("megatron-bridge-26.06", "26.06")],
)
def test_the_costed_release_comes_first_then_the_nearest_older(framework, release):
    """26.03 never came: 26.02.01 is the newest before it."""
    assert nearest_layouts(job(cluster={"framework": framework}))[0].release == release


def test_other_software_has_no_such_layouts():
    """Megatron's recipes are none of torchtitan's; nor are those of another generation."""
    assert recipes_for(job(cluster={"framework": "torchtitan-0.3"})) == ()
    assert recipes_for(job(device="h200")) == ()


def test_a_model_is_known_by_its_shape():
    """The makers' config.json of Llama 3.1 405B, whatever it is called."""
    config = ROOT / "benchmarks" / "jobs" / "llama-3.1-405b" / "config.json"

    assert {one.recipe.model for one in recipes_for(job(512, model=str(config)))} == {"llama3-405b"}


def test_one_replica_scaled_gets_what_its_release_does_with_several():
    """Its table says that nothing is shared, as there is nobody to share with."""
    cells = {**recipe(ID).cells, "scales": "32", "cluster.num_devices": "32", "strategy.pp": "8", "strategy.cp": "1"}
    alone = Recipe(cells={**cells, "strategy.sharding": "none", "strategy.dp_overlap": "false", "strategy.vpp": "5"})

    found = fit_recipe(alone, job(64))

    assert (found.strategy.dp, found.strategy.sharding) == (2, Sharding.OPTIMIZER)
    assert found.strategy.dp_overlap


# --- judged -----------------------------------------------------------------------------------------------------


def test_each_is_costed_as_estimate_costs_it():
    """Its step is that of the same decisions."""
    given = job()
    nearest = nearest_recipe(given)

    same = estimate(given, nearest.layout.strategy.decisions())

    assert nearest.report.plan.step_seconds == same.plan.step_seconds
    assert nearest.report.broken_rules == same.broken_rules == ()
    assert nearest in judge_recipes(given)


def test_a_layout_of_the_default_space_says_so():
    """NVIDIA's layout for DeepSeek-V3 on 256 GB200 breaks no rule, preference or bound of the search."""
    work = {"batch": 4096, "sequence": 4096, "training": {"precision": "mxfp8"}}
    nearest = nearest_recipe(job(256, model="deepseek-v3", device="gb200", **work))

    assert (nearest.layout.strategy.tp, nearest.layout.strategy.pp, nearest.layout.strategy.ep) == (1, 4, 64)
    assert nearest.outside == ()


def test_a_layout_that_the_job_forbids_says_why():
    """The rules are the job's: a pin is one."""
    nearest = nearest_recipe(job(search={"pin": {"tp": 8}}))

    assert not nearest.is_allowed
    assert nearest.outside


@pytest.mark.slow
def test_reports_name_the_nearest():
    """Seconds, and what that is more than the plan's, in text, JSON and page."""
    given = job(search={"pin": {"tp": 4, "pp": 4, "mbs": 1}})
    report = plan(given, certified=False)
    theirs, ours = nearest_recipe(given).report.plan.step_seconds, report.plans[0].step_seconds
    said = f"NVIDIA's 26.06 layout: {theirs:.3f} s, {theirs / ours - 1:+.1%}"

    record = json.loads(render(report, "json"))["published"]

    assert all(said in " ".join(render(report, form).split()) for form in ("short", "markdown"))
    assert said in render(report, "html").replace("&#x27;", "'")
    assert record["slower_fraction"] == pytest.approx(theirs / ours - 1)
    assert {name: record["strategy"][name] for name in H100_70B} == H100_70B


# --- compared ---------------------------------------------------------------------------------------------------


def test_a_recipe_by_its_published_name():
    """As it is called where it is published, in any case."""
    comparison = compare_recipe(job(), "llama3_70b_pretrain_config_h100_bf16_v1")

    assert decisions(comparison.given.plan.strategy) == H100_70B
    assert comparison.given_name == f"NVIDIA's 26.06.01 layout {ID}"


@pytest.mark.parametrize(
    ("devices", "words", "message"),
    [
        (64, ["llama3-70b-64xh100-bf16-26.09"], "Did you mean 'llama3-70b-64xh100-bf16-26.08'?"),
        (64, ["llama3-8b-8xh100-bf16-26.08"], "is for llama3-8b, the job trains llama3-70b."),
        (48, [], "no published layout fits the job. The nearest: recipe"),
        (64, [ID, "tp=2"], "a recipe is a whole strategy, which tp=2 cannot change."),
    ],
)
def test_bad_recipes_are_refused(devices, words, message, tmp_path, capsys):
    """Exit code 2, and the reason."""
    path = tmp_path / "job.json"
    path.write_text(json.dumps({name: job(devices).document[name] for name in ("model", "cluster", "training")}))

    code = main(["explain", str(path), *words[1:], "--recipe", *words[:1]])

    assert code == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_only_recipes_are_selected_by_words(capsys):
    """Other lists have no such words."""
    assert main(["catalog", "recipes", "llama3-70b", "h100", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)["recipes"]

    assert {one["cluster.device"] for one in found} == {"h100-80gb-sxm"}
    assert all(isinstance(one["strategy.tp"], int) for one in found)
    assert main(["catalog", "devices", "h100"]) == 2
