"""Whatever a job holds, the loader either reads it or says what is wrong: no other exception than the project's own."""

import copy
import json

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from costmodel.errors import SpecError, mistakes_of
from planner.jobs.problem import Problem, load

NETWORK = {"name": "nvlink", "num_peers": 8, "bandwidth": 4.5e11, "latency": 3e-6, "decay": 0.9, "reference_peers": 2}

LLAMA = {
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
    "tie_word_embeddings": False,
}

MOE = {
    "hidden_size": 1024,
    "num_layers": 4,
    "num_heads": 8,
    "num_kv_heads": 2,
    "vocab_size": 32000,
    "num_experts": 8,
    "top_k": 2,
    "expert_ffn_hidden_size": 512,
}

FULL_JOB = {
    "model": LLAMA,
    "cluster": {
        "device": {
            "base": "h100-80gb-sxm",
            "memory_bytes": 8e10,
            "networks": [NETWORK],
            "calibration": {"times": "roofline"},
        },
        "num_devices": 64,
        "devices_per_node": 8,
        "networks": [NETWORK, {**NETWORK, "name": "spine", "num_peers": 1024}],
        "scale_up_size": 8,
        "memory_gib": 80,
        "host_memory_gib": 200,
        "framework": {"base": "megatron-bridge-26.04", "behaviour": {"memory": {"unfused_kernels": True}}},
    },
    "training": {
        "global_batch_size": 256,
        "sequence_length": 8192,
        "tokens": 1e12,
        "precision": {"base": "bf16", "optimizer_bytes": 12},
    },
    "settings": {"gradient_dtype": "fp32", "fp8_param_gather": False, "optimizer_group": 8},
    "reliability": {
        "failures_per_node_day": 0.004,
        "recovery": [
            {"name": "process", "probability": 0.5, "seconds": 100},
            {"name": "job", "probability": 0.5, "seconds": 300},
        ],
        "disk_write_bandwidth": 2e9,
        "asynchronous_checkpoints": True,
        "init_seconds": 60,
    },
    "search": {
        "pin": {"tp": 8, "recompute": "full", "tp_overlap": False},
        "allow": {"pp": [1, 2, 4], "sharding": ["none", "optimizer"]},
        "forbid": [{"recompute": "none", "pp": 4}],
        "memory_headroom_gib": 2,
        "framework_rules": True,
        "time_limit_seconds": 30,
    },
    "objective": "total_time",
    "top": 3,
}

SMALL_JOB = {
    "model": "llama3-8b",
    "cluster": {
        "device": "h100-80gb-sxm",
        "num_devices": 8,
        "scale_up_bandwidth": 4e11,
        "internode_bandwidth": 2.5e10,
    },
    "training": {"global_batch_size": 128, "sequence_length": 4096, "tokens": 1e9},
}

JOBS = (FULL_JOB, {**FULL_JOB, "model": MOE}, {**FULL_JOB, "model": {"base": LLAMA, "num_layers": 2}}, SMALL_JOB)

NASTY_VALUES = [
    *(None, True, False, 0, -1, 1, 2.5, -0.0, 1e-300, 1e308, 10**30, 10**400, 2**63, 2**64, -(2**63)),
    *(
        float("nan"),
        float("inf"),
        float("-inf"),
        "",
        " ",
        "8",
        "8k",
        "15e12",
        "nan",
        "inf",
        "-1",
        "none",
        "NONE",
        "null",
    ),
    *("~", "true", "llama3-8b", "h100-80gb-sxm", "bf16", "fp8", "base", ".", "..", "/", "/dev/null", "~root", "\0"),
    *(
        "a\0b",
        "\n",
        "\x1b[31m",
        "\u202e",
        "\ud800",
        "\U0001d7d8",
        "²",
        "x" * 10_000,
        "config.json",
        "../config.json",
        "{}",
        "%s",
    ),
    *(
        [],
        [[]],
        [None],
        [0, -1],
        {},
        {"": 1},
        {"a": {}},
        {"base": None},
        {"base": "h100-80gb-sxm"},
        {"model_type": None},
    ),
    *(
        {"model_type": "llama"},
        {"model_type": "mamba"},
        {"base": "bf16", "compute": "nvfp4"},
        [{}],
        [{"pp": 8}],
        ["pp"],
    ),
]

KEYS = [
    "tp",
    "pp",
    "base",
    "name",
    "model_type",
    "text_config",
    "recompute",
    "",
    ".",
    "a.b",
    "\0",
    "x" * 500,
    "__class__",
]

scalars = st.sampled_from(NASTY_VALUES) | st.integers() | st.floats() | st.text(max_size=20)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


def places(part, path=()):
    """Every place of a job, as the keys that lead to it."""
    items = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from places(inner, (*path, key))


@st.composite
def broken_jobs(draw):
    """A valid job with one to three entries removed, renamed, replaced, nested, or added."""
    job = copy.deepcopy(draw(st.sampled_from(JOBS)))
    for _ in range(draw(st.integers(1, 3))):
        mutate(draw, job)
    return job


def mutate(draw, job):
    """Change one entry for the worse."""
    *parents, last = draw(st.sampled_from(list(places(job)) or [("model",)]))
    place = job
    for key in parents:
        place = place[key]
    action = draw(st.sampled_from(["replace", "replace", "remove", "rename", "wrap", "retype", "add"]))
    if action == "replace":
        place[last] = copy.deepcopy(draw(values))
    elif action == "remove":
        del place[last]
    elif action == "rename" and isinstance(place, dict):
        place[draw(st.sampled_from(KEYS))] = place.pop(last)
    elif action == "wrap":
        place[last] = draw(st.sampled_from([[place.get(last)] if isinstance(place, dict) else [], {"a": 1}, [[]]]))
    elif action == "retype" and isinstance(place, dict):
        place[last] = str(place[last])
    elif isinstance(place, dict):
        place[draw(st.sampled_from(KEYS) | st.text(max_size=8))] = copy.deepcopy(draw(values))


def complaint(job, overrides=()):
    """The longest thing that the loader says of a job; nothing if it is a problem."""
    try:
        problem = load(job, overrides)
    except SpecError as error:
        return max(map(str, mistakes_of(error)), key=len)
    assert isinstance(problem, Problem)
    return ""


PROPERTY = settings(deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@settings(PROPERTY, max_examples=100)
@given(broken_jobs())
@pytest.mark.slow
def test_broken_mappings(job):
    """As Python objects; a message has a reasonable length."""
    assert len(complaint(job)) < 2_000


@pytest.mark.slow
@settings(PROPERTY, max_examples=1000)
@given(broken_jobs())
def test_many_broken_mappings(job):
    """The same of ten times as many."""
    assert len(complaint(job)) < 2_000


@pytest.mark.slow
@settings(PROPERTY, max_examples=400)
@given(broken_jobs(), st.booleans())
def test_broken_files(tmp_path_factory, job, as_json):
    """The same jobs as text, in the spelling of PyYAML or of JSON."""
    path = tmp_path_factory.getbasetemp() / "broken.yaml"
    path.write_bytes((json.dumps if as_json else yaml.safe_dump)(job).encode("utf-8", "surrogatepass"))
    assert len(complaint(path)) < 2_000


YAML_CHARACTERS = "abc:-[]{},&*!|>'\"%@#?~ \n\t\0\\0123456789.eE_+<=\u2028é\ufeff"


@settings(PROPERTY, max_examples=600)
@given(
    st.text(YAML_CHARACTERS, max_size=60) | st.text(max_size=60), st.sampled_from(["", "model: ", "search:\n  pin: "])
)
@pytest.mark.slow
def test_random_text(tmp_path_factory, text, start):
    """No random text is a job, so each is told what is wrong."""
    path = tmp_path_factory.getbasetemp() / "random.yaml"
    path.write_bytes((start + text).encode("utf-8", "surrogatepass"))
    assert complaint(path)


@settings(PROPERTY, max_examples=200)
@given(st.binary(max_size=60))
def test_random_bytes(tmp_path_factory, content):
    """Binary files too."""
    path = tmp_path_factory.getbasetemp() / "bytes.yaml"
    path.write_bytes(content)
    assert complaint(path)


OVERRIDE_PATHS = st.sampled_from([".".join(map(str, place)) for place in places(FULL_JOB)]) | st.text(
    YAML_CHARACTERS, max_size=15
)


@pytest.mark.slow
@settings(PROPERTY, max_examples=600)
@given(
    OVERRIDE_PATHS, st.text(YAML_CHARACTERS, max_size=15) | scalars.map(str), st.sampled_from(["=", "=", "=", "", "=="])
)
def test_random_overrides(path, value, equals):
    """Known and random paths, random values."""
    complaint(FULL_JOB, [f"{path}{equals}{value}"])


@pytest.mark.parametrize("job", JOBS, ids=["huggingface", "described", "changed", "catalog"])
def test_jobs_are_valid_before_they_are_broken(job):
    """Otherwise the properties above would test nothing behind the first complaint."""
    assert complaint(job) == ""
