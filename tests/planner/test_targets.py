"""One option for the framework: what a target brings, what is refused before the search, the nearest strategy."""

from __future__ import annotations

import json

import pytest
import yaml

from constraints.targets import find_first_refusals
from costmodel import catalog
from costmodel.errors import SpecError
from planner import cli, estimate, explain, export, load, plan, render
from planner.frameworks import TARGETS
from planner.search.runnable import require_runnable
from tests.builders_job import a_document
from tests.cases import in_one_case, read_table
from tests.planner.test_job import JOBS

JOB = a_document("llama3-8b", "16xh100-80gb-sxm", batch=64, sequence=8192, tokens=1e11)
OWN = {
    "megatron-lm": "megatron-lm-0.18",
    "megatron-bridge": "megatron-bridge-26.06",
    "torchtitan": "torchtitan-0.3",
    "deepspeed": "deepspeed-0.19",
    "accelerate": "accelerate-1.15",
}


def a_job(target: str | None = None, *overrides: str, **changes):
    """A job of 16 GPUs for a target."""
    return load({**JOB, **changes}, [*([f"search.target={target}"] if target else []), *overrides])


def refusal(target: str, *overrides: str, **changes) -> str:
    """What a job for a target is told before anything is searched."""
    with pytest.raises(SpecError) as error:
        require_runnable(a_job(target, *overrides, **changes))
    return str(error.value)


# --- what a target brings ----------------------------------------------------------------------------------


@in_one_case(("target", "framework"), OWN.items())
def test_a_target_brings_its_newest_release(target, framework):
    """On Hopper, of its own releases; that of others which it takes too is not its own."""
    problem = a_job(target)

    assert problem.facts.cluster.framework == catalog.framework(framework)
    assert problem.search.target == target


def test_a_target_brings_the_newest_release_that_runs_on_the_device():
    """A V100 gets Megatron-LM of 2022; of torchtitan there is none, which is refused with what there is."""
    v100 = {"device": "v100-32gb-sxm", "num_devices": 16}
    training = {**JOB["training"], "precision": "fp16"}

    found = a_job("megatron-lm", cluster=v100, training=training).facts.cluster.framework
    text = refusal("torchtitan", cluster=v100, training=training)

    assert found.name == "megatron-lm-2022"
    assert text.startswith(
        "search.target: is torchtitan, which has no release for v100-32gb-sxm (volta) in the catalog: "
    )
    assert text.endswith("These have one: megatron-lm.")


def test_delayed_weight_gradients_are_planned_with_overlapped_experts():
    """The setting needs EP overlap, which a search may choose: no reason to refuse the job."""
    experts = {"model": "qwen3-30b-a3b", "cluster": {"device": "h200", "num_devices": 8}}

    require_runnable(a_job("megatron-lm", "settings.delay_wgrad=true", **experts))
    found = estimate(a_job("megatron-lm", "settings.delay_wgrad=true", **experts), {"ep": 8, "ep_overlap": True})

    assert "--delay-wgrad-compute" in export(found.plan, "megatron-lm").files["megatron-args.txt"]
    assert "delay_wgrad" in refusal("megatron-lm", "settings.delay_wgrad=true")  # a dense model has nothing to overlap


def test_stages_that_are_given_are_refused_not_replaced():
    """A hybrid's last rank has no layers: no other stages are costed in their place."""
    job = a_job("megatron-lm", model="nemotron-h-8b", cluster={"device": "h200", "num_devices": 8})

    with pytest.raises(SpecError, match="no stage of a custom pipeline layout is empty where layers are single blocks"):
        estimate(job, {"pp": 2, "dp": 4, "layout": "52+0"}, searched=False)


def test_chunks_without_a_pipeline_are_not_exported():
    """Megatron-LM's parser refuses the interleaved schedule on one pipeline rank."""
    found = estimate(a_job("megatron-lm"), {"tp": 2, "pp": 1, "dp": 8, "vpp": 2}, searched=False)

    with pytest.raises(SpecError, match="Only a pipeline of at least two ranks has more than one virtual stage"):
        export(found.plan, "megatron-lm")


def test_a_loss_that_the_release_refuses_is_refused_before_the_search():
    """Core 0.18 and later refuse Transformer Engine's fused loss, which 0.17 takes."""
    text = refusal("megatron-lm", "settings.loss=fused")

    assert text.startswith("search.target: is megatron-lm (megatron-lm-0.18), which cannot run the job: ")
    assert "refuses Transformer Engine's fused loss" in text
    require_runnable(a_job("megatron-lm", "settings.loss=fused", "cluster.framework=megatron-lm-0.17"))


def test_a_framework_that_is_given_must_be_the_targets():
    """Megatron Core's configuration is Bridge's, too; torchtitan 0.1 is torchtitan's; anything else is refused."""
    agree = {"megatron-lm": "megatron-bridge-26.04", "megatron-bridge": "nemo-25.02", "torchtitan": "torchtitan-0.1"}
    for target, framework in agree.items():
        assert a_job(target, f"cluster.framework={framework}").facts.cluster.framework.name == framework

    text = refusal("deepspeed", "cluster.framework=torchtitan-0.1")
    assert text == (
        "cluster.framework: torchtitan-0.1 is no release whose plans search.target deepspeed takes. These are: "
        "deepspeed-0.19; without cluster.framework it is the newest of them."
    )


def test_releases_name_targets_that_there_are():
    """The first is their own; each target has one."""
    named = {target for name in catalog.frameworks() for target in catalog.framework(name).targets}

    assert named == {*TARGETS}
    assert all(catalog.newest_for(target, "hopper") for target in TARGETS)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("job", ["llama3-8b-8xh100", "mixtral-8x7b-64xa100"])
def test_every_plan_for_a_target_exports(target, job):
    """Dense and with experts; five plans each, of a job that names another framework none."""
    document = load(JOBS / f"{job}.yaml").document
    document = {**document, "cluster": {**document["cluster"], "framework": None}, "top": 5}

    plans = plan(load(document, [f"search.target={target}"])).plans

    assert plans
    assert [export(one, target).target.lower() for one in plans] == [target] * len(plans)


# --- what is refused before the search ---------------------------------------------------------------------


def test_an_unknown_target_is_told_the_known_ones():
    """With the nearest one first."""
    assert refusal("torchtitn") == "search.target: 'torchtitn' is no target. Did you mean 'torchtitan'?"
    assert refusal("nemo").endswith("Known: accelerate, deepspeed, megatron-bridge, megatron-lm, torchtitan.")


@pytest.mark.parametrize(("target", "overrides", "begin", "end"), read_table("targets")["refused_jobs"])
def test_jobs_that_a_target_cannot_run_are_refused_before_the_search(target, overrides, begin, end):
    """Where in the job, the target's own reason, what it has, and the other targets that could."""
    text = refusal(target, *overrides)

    assert text.startswith(begin)
    assert text.endswith(end)


# --- a given strategy --------------------------------------------------------------------------------------


def told(target: str, given: dict, **changes) -> list[str]:
    """The lines of the refusal of a strategy."""
    with pytest.raises(SpecError) as error:
        estimate(a_job(target, **changes), given, searched=False)
    return str(error.value).splitlines()


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("target", "given", "refused", "nearest"),
    [
        ("deepspeed", {"tp": 2, "pp": 2}, ["pp"], "pp=1 dp=8"),
        ("deepspeed", {"tp": 2, "cp": 2, "sequence_parallel": True}, ["cp", "sequence_parallel"], "cp=1 dp=8 seq"),
        ("accelerate", {"sharding": "optimizer"}, ["sharding"], "sharding=gradients"),
        ("torchtitan", {"pp": 4, "sharding": "weights"}, ["sharding"], "sharding=optimizer"),
        ("torchtitan", {"tp": 16}, ["tp"], "tp=8 dp=2"),
        ("torchtitan", {"recompute": "core_attention"}, ["recompute"], "recompute="),
        ("megatron-lm", {"pp": 4, "schedule": "zb_h1"}, ["schedule"], "schedule=1f1b"),
    ],
)
def test_a_strategy_that_a_target_cannot_run_is_told_the_nearest(target, given, refused, nearest):
    """Which part, why, and a strategy that it can run and that differs in little else; that one is estimated."""
    first, *reasons, last = told(target, given)
    begin = "The nearest that it can run has "

    assert first.endswith("cannot run this strategy:")
    assert {*refused} <= {line[4:].split(" ")[0] for line in reasons}
    assert last.startswith(begin + nearest)
    changes = [change.split("=") for change in last.removeprefix(begin).removesuffix(".").split(" ")]
    changed = {name: yaml.safe_load(value) for name, value in changes}
    assert export(estimate(a_job(target), {**given, **changed}, searched=False).plan, target)


def test_what_settings_refuse_of_a_strategy_has_a_nearest_one_too():
    """Half of the optimizer states go to the host in ZeRO-3 only: weights are sharded then."""
    job = a_job("deepspeed", settings={"offloaded_states": 0.5})

    with pytest.raises(SpecError) as error:
        estimate(job, {"sharding": "gradients", "optimizer_offload": True}, searched=False)

    first, reason, last = str(error.value).splitlines()
    assert first == "strategy: DeepSpeed cannot run this strategy:"
    assert reason.startswith("  - settings.offloaded_states = 0.5: In DeepSpeed optimizer states are offloaded in part")
    assert last == "The nearest that it can run has sharding=weights."


def test_what_is_not_given_is_as_the_target_has_it():
    """In torchtitan's pipelines only optimizer states are sharded, and gradients wait; what is given stays."""
    report = estimate(a_job("torchtitan"), {"pp": 4}, searched=False)
    strategy = report.plan.strategy

    assert (strategy.sharding.text, strategy.dp_overlap) == ("optimizer", False)
    assert {"sharding", "dp_overlap"} <= report.assumed.keys()
    assert export(report.plan, "torchtitan")


# --- reports and commands ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_report_says_which_targets_could_run_its_best_plan():
    """Without a target: those that can in a line, the first reason of each other one in the JSON."""
    report = estimate(a_job(), {"pp": 2})
    found = json.loads(render(report, "json"))["targets"]
    (line,) = [line for line in render(report, "table").splitlines() if line.startswith("targets")]

    assert found == find_first_refusals(report.plan.facts, report.plan.strategy)
    assert [found[name] for name in ("megatron-lm", "megatron-bridge")] == [None, None]
    assert found["deepspeed"].startswith("pp = 2: A pipeline is a PipelineModule of the training script")
    assert line.split(maxsplit=1)[1] == "megatron-lm, megatron-bridge; search.target=NAME plans for another"


def test_a_report_says_for_which_target_it_is():
    """Beside the release that it brought."""
    text = render(estimate(a_job("torchtitan"), {}), "table")

    assert "torchtitan-0.3; for search.target torchtitan;" in text
    assert "\ntargets " not in text


def test_explain_refuses_what_the_target_has_not():
    """Decisions that are asked about, not a pin of the job; with the nearest value that it has."""
    with pytest.raises(SpecError, match=r"^strategy\.pp: is 16, which DeepSpeed cannot run: A pipeline is a") as caught:
        explain(a_job("deepspeed"), {"pp": 16})

    assert str(caught.value).endswith("The nearest that it can run is 1.")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("command", ["plan", "estimate", "explain"])
def test_commands_take_a_target(command, tmp_path, capsys):
    """``--target`` is ``search.target``; what cannot be is exit code 2."""
    job = tmp_path / "job.yaml"
    job.write_text(json.dumps(JOB), encoding="utf-8")

    assert cli.main([command, str(job), "search.target=deepspeed", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["cluster"]["framework"], found["job"]["target"]) == ("deepspeed-0.19", "deepspeed")

    assert cli.main([command, str(job), "search.target=deepspeed", "training.precision=fp8"]) == 2
    assert "planner: training.precision: DeepSpeed has no key for fp8" in capsys.readouterr().err


@pytest.mark.slow
def test_a_batch_takes_a_target_for_all_jobs_or_has_one_in_each(tmp_path, capsys):
    """The option goes before what a job says; a refusal is a line with its message."""
    for name, entries in {"a": {}, "b": {"search": {"target": "torchtitan"}}, "c": {"model": "gemma-2-27b"}}.items():
        (tmp_path / f"{name}.yaml").write_text(json.dumps({**JOB, **entries}), encoding="utf-8")
    own, all_of_them = tmp_path / "own.jsonl", tmp_path / "all.jsonl"

    command = ["batch", str(tmp_path), "--processes", "1", "-o"]
    assert cli.main([*command, str(own)]) == 0
    assert cli.main([*command, str(all_of_them), "search.target=megatron-lm"]) == 1

    def frameworks(path):
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        return {line["name"]: line.get("framework") or line["message"] for line in lines if "name" in line}

    found = frameworks(own), frameworks(all_of_them)
    assert (found[0]["b"], found[1]["a"], found[1]["b"]) == ("torchtitan-0.3", "megatron-lm-0.18", "megatron-lm-0.18")
    assert "no plan of the job can be exported to Megatron-LM." in found[1]["c"]
