"""Facts of a model in exported files: rotary base and scaling, epsilon, initialisation, dropout, router; TODO lines."""

from __future__ import annotations

import json

import pytest

from planner import estimate, export, load
from planner.frameworks.megatron.options import read_arguments, split_words
from planner.frameworks.megatron.releases import RELEASES
from planner.results import Plan

SIZES = {
    "model_type": "llama",
    "hidden_size": 1024,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "intermediate_size": 4096,
    "vocab_size": 32000,
}
INLINE = {
    "hidden_size": 1024, "num_layers": 8, "num_heads": 16, "ffn_hidden_size": 4096, "vocab_size": 32000,
}  # fmt: skip


def a_plan(model, **decisions):
    """What one strategy costs on a node."""
    cluster = {"device": "h100-80gb-sxm", "num_devices": 8, "framework": "megatron-lm-0.17"}
    training = {"global_batch_size": 64, "sequence_length": 1024, "tokens": 1e10}
    job = {"model": model, "cluster": cluster, "training": training}
    return estimate(load(job), {"tp": 1, "dp": 8, "cuda_graphs": "none", **decisions}, searched=False).plan


def config(tmp_path, **entries):
    """A file of a model with more entries."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**SIZES, **entries}), encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def llama():
    """A plan of Llama 3.1 405B."""
    return a_plan("llama3-405b")


def written(model, release="0.17", **decisions):
    """Values by option, and the lines that are left to the user, of a model or its plan."""
    plan = model if isinstance(model, Plan) else a_plan(model, **decisions)
    text = export(plan, "megatron-lm", release).files["megatron-args.txt"]
    todo = [line.removeprefix("# TODO: ") for line in text.splitlines() if line.startswith("# TODO")]
    return read_arguments(split_words(text)[0]), todo


@pytest.mark.parametrize("release", RELEASES)
def test_llama_3_1_is_written_whole(llama, release):
    """Its config.json: base 500,000, factor 8 over 8,192 positions, epsilon 1e-5, no dropout; 0.1 is Megatron-LM's."""
    arguments, todo = written(llama, release)

    assert (
        arguments.items()
        >= {
            "--rotary-base": 500000,
            "--use-rope-scaling": True,
            "--rope-scaling-factor": 8.0,
            "--norm-epsilon": 1e-5,
            "--init-method-std": 0.02,
            "--attention-dropout": 0.0,
            "--hidden-dropout": 0.0,
        }.items()
    )
    assert todo == []


def test_the_router_of_deepseek_v3_is_written():
    """Sigmoids with a bias, 4 of 8 groups, weights times 2.5, a loss of sequences of 0.001; YaRN of factor 40."""
    arguments, todo = written("deepseek-v3")

    assert (
        arguments.items()
        >= {
            "--moe-router-score-function": "sigmoid",
            "--moe-router-enable-expert-bias": True,
            "--moe-router-num-groups": 8,
            "--moe-router-group-topk": 4,
            "--moe-router-topk-scaling-factor": 2.5,
            "--moe-aux-loss-coeff": [0.001],
            "--moe-router-load-balancing-type": ["seq_aux_loss"],
            "--rotary-scaling-factor": 40.0,
            "--mscale-all-dim": 1.0,
        }.items()
    )
    assert "--moe-router-pre-softmax" not in arguments
    assert todo == []


def test_yarn_outside_latent_attention_is_for_newer_releases():
    """Options of its numbers came with core 0.19 (argument_utils.py:384); before, the file says what is missing."""
    old, missing = written("gpt-oss-20b", "0.18")
    new, nothing = written("gpt-oss-20b", "0.19")

    assert old["--position-embedding-type"] == "rope"
    assert missing == [
        "rope_scaling = yarn (beta_fast 32, beta_slow 1, factor 32, original_max_position_embeddings 4096, "
        "truncate 0): Megatron Core 0.18 has no option for it."
    ]
    assert (new["--position-embedding-type"], new["--rotary-scaling-factor"]) == ("yarn", 32.0)
    assert "--no-yarn-correction-range-round-to-int" in new
    assert nothing == []


def test_facts_that_nobody_says_are_todo():
    """A model in the job's own words has sizes alone; dropout is off, as the plan is costed."""
    arguments, todo = written(INLINE)

    assert [line.partition(":")[0] for line in todo] == [
        "rms_norm_eps (--norm-epsilon)",
        "initializer_range (--init-method-std)",
        "rope_theta (--rotary-base)",
        "partial_rotary_factor (--rotary-percent)",
        "hidden_act",
    ]
    assert (arguments["--attention-dropout"], arguments["--hidden-dropout"]) == (0.0, 0.0)
    assert not {"--rotary-base", "--norm-epsilon", "--init-method-std"} & arguments.keys()


MIXTRAL = {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}


@pytest.mark.sampled(11)
@pytest.mark.parametrize(
    ("entries", "options", "todo"),
    [
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, {"--rotary-seq-len-interpolation-factor": 4}, []),
        ({"rope_scaling": {"type": "linear", "factor": 2.5}}, {}, ["rope_scaling.factor (linear) = 2.5"]),
        ({"rope_theta": 10000.5}, {}, ["rope_theta = 10000.5"]),
        ({"rope_theta": None}, {}, ["rope_theta (--rotary-base)"]),
        ({"attn_logit_softcapping": 50.0}, {}, ["attn_logit_softcapping = 50"]),
        ({"hidden_act": "gelu"}, {}, ["hidden_act = gelu"]),
        ({"attention_dropout": 0.1}, {"--attention-dropout": 0.1}, []),
        ({"swiglu_limit": 7.0}, {}, ["swiglu_limit = 7"]),
        ({**MIXTRAL, "router_jitter_noise": 0.1}, {"--moe-input-jitter-eps": 0.1}, []),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 8.0}}, {}, ["rope_scaling = longrope (factor 8)"]),
        (
            {
                "rope_scaling": {
                    "rope_type": "llama3",
                    "factor": 16.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 1.0,
                    "original_max_position_embeddings": 8192,
                }
            },
            {"--rope-scaling-factor": 16.0},
            ["rope_scaling.high_freq_factor = 1"],
        ),
    ],
)
def test_entries_of_a_config_json_are_options_or_todo(entries, options, todo, tmp_path):
    """Megatron-LM's options take whole bases and factors, one kind of Llama's scaling, and no softcap."""
    arguments, lines = written(config(tmp_path, **entries))

    assert arguments.items() >= options.items()
    assert [line.partition(":")[0] for line in lines] == todo


def test_dropout_that_a_graph_excludes_is_todo(tmp_path):
    """Core 0.18.2 refuses dropout in what a graph recomputes (transformer_config.py:2320)."""
    model = config(tmp_path, attention_dropout=0.1)
    decisions = {"cuda_graphs": "full_iteration", "recompute": "core_attention"}
    arguments, lines = written(model, **decisions)

    assert arguments["--attention-dropout"] == 0.0
    assert [line.partition(":")[0] for line in lines] == ["--attention-dropout 0.1"]


@pytest.mark.parametrize(
    ("target", "decisions", "said"),
    [
        ("torchtitan", {"dp_overlap": True}, "'theta': 500000.0"),
        ("accelerate", {"dp_overlap": True}, "# TODO: build the model in the training script: rms_norm_eps = 1e-05"),
    ],
)
def test_other_targets_say_them_too(target, decisions, said):
    """torchtitan's configuration has fields for them; others leave the model to the training script."""
    framework = {"torchtitan": "torchtitan-0.3", "accelerate": "accelerate-1.15"}[target]
    cluster = {"device": "h100-80gb-sxm", "num_devices": 8, "framework": framework}
    training = {"global_batch_size": 64, "sequence_length": 1024, "tokens": 1e10}
    job = load({"model": "llama3-8b", "cluster": cluster, "training": training})
    strategy = {"tp": 1, "dp": 8, "sharding": "weights", "cuda_graphs": "none", "recompute": "none", **decisions}

    assert said in next(iter(export(estimate(job, strategy, searched=False).plan, target).files.values()))
