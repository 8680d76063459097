"""``planner explain A B``: two jobs in any form, side by side."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from costmodel.errors import SpecError
from planner import compare_two, estimate, load, plan, read_any, render
from planner.cli import main

JOB = {
    "model": "llama3-8b",
    "cluster": {"device": "h100-80gb-sxm", "num_devices": 8},
    "training": {"global_batch_size": 64, "sequence_length": 8192, "tokens": 1e11},
    "strategy": {"tp": 4, "recompute": "full"},
}
LINE = "llama3-8b 16xb200 --batch 128 --sequence 8k --tokens 100B"
SCRIPT = """torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 \\
  --num-attention-heads 32 --group-query-attention --num-query-groups 8 --swiglu --normalization RMSNorm \\
  --disable-bias-linear --untie-embeddings-and-output-weights --vocab-size 128256 --max-position-embeddings 8192 \\
  --position-embedding-type rope --seq-length 8192 --micro-batch-size 1 --global-batch-size $GBS --bf16 \\
  --tensor-model-parallel-size 2 --sequence-parallel --use-distributed-optimizer --train-iters 1000
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A job with a strategy, a script and a saved plan, made once: tests read them."""
    tmp_path = tmp_path_factory.mktemp("files")
    paths = {name: tmp_path / name for name in ("job.yaml", "run.sh", "plan.json")}
    paths["job.yaml"].write_text(json.dumps(JOB))
    paths["run.sh"].write_text(SCRIPT)
    (tmp_path / "torn.json").write_text('{"plans": [')
    paths["plan.json"].write_text(render(plan(load({**JOB, "strategy": {}})), "json"))
    return {name: str(path) for name, path in paths.items()}


@pytest.mark.slow
def test_both_sides_cost_what_estimate_says(files):
    """And the differences are those of the two."""
    compared = compare_two(read_any(files["job.yaml"]).side(), read_any(f"{files['job.yaml']} tp=2").side())

    first, second = (estimate(load(JOB), given).plan for given in ({}, {"tp": 2}))
    assert (compared.given.plan, compared.best) == (first, second)
    assert compared.saved_seconds == first.step_seconds - second.step_seconds
    assert sum(one.difference_seconds for one in compared.differences) == pytest.approx(compared.saved_seconds)
    assert compared.unlike == ()


@pytest.mark.slow
def test_every_form_is_a_job(files):
    """A script by its arguments, a saved plan by its first strategy, one line by its fastest plan."""
    script = read_any(f"{files['run.sh']} --set GBS=64 cluster.device=h100-80gb-sxm")
    saved, line = read_any(f"{files['plan.json']} --number 2"), read_any(LINE)

    document = json.loads(Path(files["plan.json"]).read_text())
    assert script.report().plan.strategy.tp == 2
    assert script.problem.facts.workload.global_batch_size == 64
    assert saved.report().plan.step_seconds == pytest.approx(document["plans"][1]["step_time_seconds"])
    assert line.report().fastest.cluster.num_devices == 16


@pytest.mark.slow
def test_unlike_jobs_say_so(files):
    """Steps of other batches on other devices are compared by what a token costs."""
    compared = compare_two(read_any(files["job.yaml"]).side(), read_any(LINE).side())
    document = json.loads(render(compared, "json"))
    text = " ".join(render(compared).split())

    assert {one["what"] for one in document["apart"]["unlike"]} == {"cluster", "batch"}
    assert document["saved_seconds_per_step"] is None
    assert document["saved_gpu_hours"] == compared.saved_gpu_hours
    assert "cluster 8 x h100-80gb-sxm 16 x b200" in text
    assert "GPU-seconds per million tokens by part" in text
    per_token = sum(one["given_device_seconds"] for one in document["apart"]["per_token"])
    assert per_token == pytest.approx(1e6 / compared.given.plan.tokens_per_second_per_device)


def test_memory_is_compared_by_what_it_holds(files):
    """The parts add up to the peaks of both, and full recomputation keeps fewer activations."""
    document = json.loads(
        render(compare_two(*(read_any(files[name]).side() for name in ("job.yaml", "plan.json"))), "json")
    )

    parts = document["apart"]["memory"]
    for which in ("given", "best"):
        assert sum(one[f"{which}_bytes"] for one in parts) == pytest.approx(document[which]["peak_memory_bytes"])
    of_activations = next(one for one in parts if one["name"] == "activations")
    assert of_activations["given_bytes"] < of_activations["best_bytes"]


@pytest.mark.parametrize("format", ["table", "json", "markdown"])
def test_the_command(files, capsys, format):
    """Entries outside of quotation marks hold for both, a saved plan needs none."""
    script = [f"{files['run.sh']} --set GBS=64", "cluster.device=h100-80gb-sxm"]

    assert main(["explain", *script, files["plan.json"], "--format", format]) == 0

    printed = capsys.readouterr().out
    assert {"table": "first   ", "json": '"status": "compared"', "markdown": "- first: "}[format] in printed
    assert "recompute" in printed


def test_a_script_alone_is_compared_with_its_fastest_plan(files, capsys):
    """As a job file with a strategy is."""
    words = ["explain", f"{files['run.sh']} --set GBS=64", "cluster.device=h100-80gb-sxm", "--format", "json"]

    assert main(words) == 0

    document = json.loads(capsys.readouterr().out)
    assert (document["status"], document["given"]["strategy"]["tp"]) == ("optimal", 2)
    assert document["saved_seconds_per_step"] >= 0


def test_a_broken_rule_says_whose_strategy_breaks_it(files):
    """And amounts of two currencies are not subtracted."""
    first = read_any(f"{files['job.yaml']} tp_overlap=true sequence_parallel=false costs.price_per_device_hour=2")
    second = read_any(f"{files['job.yaml']} costs.price_per_device_hour=2 costs.currency=EUR")

    text = render(compare_two(first.side(), second.side()))

    assert "Forbidden: the first strategy breaks these rules" in text
    assert "the second strategy breaks" not in text
    assert not [line for line in text.splitlines() if line.startswith("cost")]


def test_a_saved_plan_alone_is_compared_with_the_best_of_its_job(files, capsys):
    """The second plan of the report is what it was, and the first one is recommended again."""
    saved = [one["step_time_seconds"] for one in json.loads(Path(files["plan.json"]).read_text())["plans"]]

    assert main(["explain", f"{files['plan.json']} --number 2", "--format", "json"]) == 0

    document = json.loads(capsys.readouterr().out)
    assert [document[side]["step_time_seconds"] for side in ("given", "best")] == pytest.approx([saved[1], saved[0]])


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["llama3-8b", "job.yaml"], "Put a job of several words in quotation marks"),
        (["plan.json tp=2", "job.yaml"], "is a saved plan, which tp=2 cannot change"),
        (["plan.json --number 99", "job.yaml"], "has plans 1 to"),
        (["plan.json --number x", "job.yaml"], "--number: expected a whole number, got 'x'."),
        (["torn.json", "job.yaml"], "torn.json: is not JSON"),
        (["run.sh --set GBS=64", "job.yaml"], "run.sh --set GBS=64: cluster.device: is no argument of Megatron-LM"),
        (["job.yaml --speed 9", "job.yaml"], "no job has the option --speed"),
        (["job.yaml --number 2", "job.yaml"], "--number is no option of a job file"),
        (["job.yaml", "missing.yaml"], "missing.yaml: no such file"),
        (["job.yaml 'x", "job.yaml"], "cannot be split into words"),
        (["llama3-8b 8xh100", "job.yaml"], "training.global_batch_size: is required"),
    ],
)
def test_what_cannot_be_compared(files, monkeypatch, capsys, words, message):
    """Each message names the job that it is about, and the fix."""
    monkeypatch.chdir(Path(files["job.yaml"]).parent)

    assert main(["explain", *words]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
def test_a_job_without_a_plan_has_nothing_to_compare(files):
    """A model that does not fit is named; nor has a job without a strategy one to compare its plan with."""
    job = read_any("llama3-405b 8xh100 --batch 64 --sequence 8k --tokens 1T")

    with pytest.raises(SpecError, match="has no plan"):
        job.side()
    with pytest.raises(SpecError, match=r"llama3-405b 8xh100 .*: has no strategy to compare.*such as TP8 PP4"):
        job.compare_with_plan()


@pytest.mark.slow
def test_money_is_compared_where_both_have_a_price():
    """32 dollars for 8 devices and hour: GPU-hours times four; of other lengths per trillion tokens."""
    price = "costs.price_per_device_hour=4"
    line = "llama3-8b 8xh100 --batch 64 --sequence 8k --tokens {} tp={}"
    slow, fast, longer = (
        read_any(f"{line.format(tokens, tp)} {price}") for tokens, tp in (("100B", 4), ("100B", 2), ("1T", 2))
    )

    text = " ".join(render(compare_two(slow.side(), fast.side())).split())
    per_token = " ".join(render(compare_two(slow.side(), longer.side())).split())

    hours = compare_two(slow.side(), fast.side()).saved_gpu_hours
    assert f"{hours:,.0f} GPU-hours less, {4 * hours:,.0f} USD less" in text
    assert "USD per trillion tokens" in per_token
    assert "Days and GPU-hours are of different trainings." in per_token
