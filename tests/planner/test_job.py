"""The job file: what is read from it, and what every kind of bad input is told."""

import copy
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from costmodel.errors import SpecError
from costmodel.models.flops import parameters
from costmodel.strategy import Recompute, Sharding
from planner import estimate, render
from planner.jobs.problem import load
from tests.cases import in_one_case, read_table

JOBS = Path(__file__).parents[2] / "benchmarks" / "jobs"

JOB = {
    "model": "llama3-8b",
    "cluster": {"device": "h100-80gb-sxm", "num_devices": 64},
    "training": {"global_batch_size": 256, "sequence_length": 8192, "tokens": 1e12, "precision": "bf16"},
}

LLAMA = read_table("job_properties")["llama"]
"""The ``config.json`` of a small model: four layers."""

A_TIER = {"name": "nvlink", "num_peers": 8, "bandwidth": 4e11, "latency": 3e-6}

JOB_TEXT = """
model: llama3-8b
cluster: {device: h100-80gb-sxm, num_devices: 64}
training: {global_batch_size: 256, sequence_length: 8192, tokens: 15e12, precision: bf16}
"""


def a_job(**entries):
    """A valid job with some entries written over; ``search__pin={...}`` is ``search: {pin: {...}}``."""
    job = copy.deepcopy(JOB)
    for path, value in entries.items():
        *sections, last = path.split("__")
        place = job
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = value
    return job


def message_of(job, overrides=()):
    """What the loader says is wrong with a job."""
    with pytest.raises(SpecError) as caught:
        load(job, overrides)
    return str(caught.value)


# --- what is read --------------------------------------------------------------------------------------------


@in_one_case("path", sorted(JOBS.glob("*.yaml")), ids=lambda path: path.stem)
def test_example_jobs_load(path):
    """The jobs that the README and the editor's users start from."""
    problem = load(path)

    assert problem.name == path.stem
    assert str(problem.facts.cluster.num_devices) in path.stem


def test_405b_job_reads_the_config_beside_it():
    """405,853,388,800 parameters, as Hugging Face counts them; 15e12 is a number although YAML 1.1 calls it text."""
    problem = load(JOBS / "llama3-405b-2048xh100.yaml")

    assert parameters(problem.facts.model) == 405_853_388_800
    assert problem.facts.workload.tokens == 15e12
    assert problem.sources[1] == JOBS / "llama-3.1-405b" / "config.json"


def test_a_config_may_say_that_it_has_no_text_part(tmp_path):
    """As if it said nothing."""
    config = json.loads((JOBS / "llama-3.1-405b" / "config.json").read_text())
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**config, "text_config": None}))

    assert load(a_job(model=path)).facts.model.num_layers == 126


def test_model_may_be_a_folder_or_inline_in_hugging_faces_keys():
    """Models lie in folders as on the hub; ``model_type`` tells keys of a config from the planner's own."""
    assert load(a_job(model=JOBS / "llama-3.1-405b")).facts.model.num_layers == 126
    assert load(a_job(model=LLAMA)).facts.model.num_layers == 4


def test_cluster_entries_replace_the_devices_own():
    """16 GiB are 17,179,869,184 bytes; what a job changed is no longer the catalog's."""
    device = load(a_job(cluster__memory_gib=16, cluster__devices_per_node=4, cluster__scale_up_size=4)).facts.cluster

    assert device.device.memory_bytes == 17_179_869_184
    assert (device.device.devices_per_node, device.scale_up_size) == (4, 4)
    assert device.device.sources["memory_bytes"] == "job file"


def test_networks_replace_the_devices_own():
    """All levels at once: what is not written is not there."""
    networks = load(a_job(cluster__networks=[A_TIER])).facts.cluster.device.networks

    assert [network.bandwidth for network in networks] == [4e11]


def test_device_may_start_from_another():
    """Only what differs is written; nested mappings merge, the rest stays as the catalog has it."""
    known = load(a_job(cluster__device="h100-80gb-sxm")).facts.cluster.device
    inline = {"base": "h100-80gb-sxm", "memory_bytes": 9.4e10, "calibration": {"memory_efficiency": 0.5}}

    device = load(a_job(cluster__device=inline)).facts.cluster.device

    assert (device.memory_bytes, device.constants.memory_efficiency) == (9.4e10, 0.5)
    assert device.runtime_bytes == known.runtime_bytes
    assert device.constants == replace(known.constants, memory_efficiency=0.5)
    assert device.networks == known.networks
    assert device.sources["memory_bytes"] == "job file"


def test_a_job_may_describe_the_family_of_a_config(tmp_path):
    """As the same words in the config.json would; a key that the family does not read is a doubt of the report."""
    config = {"model_type": "a_newcomer", "hidden_size": 512, "num_hidden_layers": 2, "vocab_size": 1000}
    config |= {"num_attention_heads": 8, "intermediate_size": 2048, "rms_norm_eps": 1e-5, "residual_moe": True}
    family = {"like": "llama", "sinks": "all"}
    paths = {name: tmp_path / f"{name}.json" for name in ("plain", "described")}
    paths["plain"].write_text(json.dumps(config))
    paths["described"].write_text(json.dumps({**config, "family": family}))

    own, written = (
        load(a_job(model=one)) for one in ({"base": str(paths["plain"]), "family": family}, str(paths["described"]))
    )

    assert own.facts.model.layers == written.facts.model.layers
    assert own.facts.model.layers[0].attention.sinks
    assert re.search(r"model doubt +not read .*residual_moe \(true\)", render(estimate(own, {}, searched=False)))


def test_precision_may_be_inline():
    """Bytes per element, or only those that differ from a known recipe."""
    precision = load(a_job(training__precision={"base": "bf16", "optimizer_bytes": 8})).facts.workload.precision

    assert (precision.compute, precision.optimizer_bytes) == ("bf16", 8)


def test_reliability_has_published_defaults():
    """Llama 3: 419 failures / 54 days / 2,048 nodes; MoFa: 0.3 * 141 + 0.6 * 262 + 0.1 * 307 = 230.2 s."""
    reliability = load(JOB).reliability

    assert reliability.failures_per_node_day == pytest.approx(0.0037887, rel=1e-4)
    assert reliability.mttr_seconds == pytest.approx(230.2)


def test_checkpoint_seconds_follow_from_bandwidths():
    """Half the bandwidth of both ways takes twice as long; a checkpoint that does not wait for the disk is shorter."""
    section = {"device_to_host_bandwidth": 1e10, "disk_write_bandwidth": 1e9}
    fast = load(a_job(reliability=section)).reliability.checkpoint_seconds
    slow = load(a_job(reliability={name: value / 2 for name, value in section.items()})).reliability.checkpoint_seconds
    copy_only = load(a_job(reliability={**section, "asynchronous_checkpoints": True})).reliability.checkpoint_seconds

    assert slow == pytest.approx(2 * fast)
    assert copy_only == pytest.approx(fast / 11)


def test_storage_keeps_what_it_holds():
    """Three checkpoints where nothing is said, two where only three fit, beside the one that is being written."""
    nbytes = load(JOB).reliability.checkpoint.nbytes

    def kept(**section: Any) -> int:
        return load(a_job(reliability=section)).reliability.checkpoint.keep

    assert (kept(), kept(storage_capacity=10 * nbytes), kept(storage_capacity=3 * nbytes)) == (3, 3, 2)
    assert (kept(keep_checkpoints=5), kept(keep_checkpoints=5, storage_capacity=6 * nbytes)) == (5, 5)
    with pytest.raises(SpecError, match=r"reliability.storage_capacity.*too few for 2 checkpoints .* at least"):
        kept(storage_capacity=2.9 * nbytes)
    with pytest.raises(SpecError, match=r"reliability.keep_checkpoints: is 5, but storage_capacity holds 4"):
        kept(keep_checkpoints=5, storage_capacity=5.5 * nbytes)
    with pytest.raises(SpecError, match=r"reliability.keep_checkpoints"):
        kept(keep_checkpoints=1)


def test_storage_of_a_job_sets_its_writing():
    """Half the bandwidth takes twice as long; by default storage is written for at most 5 % of the time."""
    fast, slow = (load(a_job(reliability={"storage_bandwidth": given})).reliability for given in (4e9, 2e9))

    assert slow.storage_seconds == pytest.approx(2 * fast.storage_seconds)
    assert slow.storage_seconds == pytest.approx(slow.checkpoint.nbytes / 2e9)
    assert fast.max_write_fraction == 0.05
    with pytest.raises(SpecError, match=r"reliability\.max_write_fraction"):
        load(a_job(reliability={"max_write_fraction": 0}))


def test_search_values_become_numbers():
    """Enums by name in lower case, flags as booleans, degrees in any order and once each."""
    search = {
        "pin": {"recompute": "full", "sequence_parallel": True, "tp": 8},
        "allow": {"pp": [8, 4, 8], "sharding": ["weights", "none"], "dp_overlap": [False]},
        "forbid": [{"recompute": "selective", "pp": 8}],
        "memory_headroom_gib": 2,
    }

    limits = load(a_job(search=search)).search

    assert limits.pin == {"recompute": Recompute.FULL, "sequence_parallel": 1, "tp": 8}
    assert limits.allow == {"pp": (4, 8), "sharding": (Sharding.NONE, Sharding.WEIGHTS), "dp_overlap": (0,)}
    assert limits.forbid == ({"recompute": Recompute.SELECTIVE, "pp": 8},)
    assert limits.memory_headroom_bytes == 2 * 2**30


def test_bounds_are_read():
    """One decision, a product, an enum, the micro-batches; and beside a name in a forbidden combination."""
    search = {
        "limits": ["tp <= 4", "tp*cp<16", "recompute != full", " num_microbatches  >= 16 "],
        "forbid": [{"pp": ">= 16", "recompute": "== full", "dp": 8}],
    }

    limits = load(a_job(search=search)).search

    assert [bound.text for bound in limits.limits] == [
        "tp is at most 4",
        "tp * cp is below 16",
        "recompute is not full",
        "num_microbatches is at least 16",
    ]
    (forbidden,) = limits.forbid
    assert forbidden["pp"].text == "pp is at least 16"
    assert forbidden["recompute"].text == "recompute is full"
    assert forbidden["dp"] == 8


def test_sections_whose_entries_are_commented_out_are_empty():
    """YAML reads ``search:`` with nothing below it as null."""
    assert load(a_job(search=None, reliability=None)) == load(JOB)
    assert load(a_job(search={"pin": None})) == load(JOB)


def test_numbers_are_read_as_yaml_1_2_spells_them(tmp_path):
    """YAML 1.1 has 15e12 as text, 010 as eight and 1:30 as ninety."""
    path = tmp_path / "job.yaml"
    path.write_text(JOB_TEXT.replace("64", "0_64").replace("256", "+0256"))

    facts = load(path).facts

    assert (facts.cluster.num_devices, facts.workload.global_batch_size, facts.workload.tokens) == (64, 256, 15e12)


def test_relations_between_decisions_are_no_errors_of_the_file():
    """Three-way tensor parallelism fits no model, but that is for the rules to say."""
    assert load(a_job(search__pin={"tp": 3, "dp": 1000})).search.pin == {"tp": 3, "dp": 1000}


# --- bad values: one row per kind, with what the user is told -------------------------------------------------

WHOLE = "training.global_batch_size"

BAD_VALUES = read_table("job")["bad_values"]

OBJECTS = [
    ("training__global_batch_size", 10**5000, f"{WHOLE}: "),
    ("training__tokens", 10**400, "training.tokens: "),
    ("cluster__num_devices", {8}, "cluster.num_devices: expected text, a number, a list or a mapping, got set."),
    ("search__pin", {8: "tp"}, "search.pin: 8 cannot name an entry, expected text."),
    ("model", b"llama", "model: expected text, a number, a list or a mapping, got bytes."),
]
"""Python's objects that no file can hold."""


@in_one_case(("entry", "value", "message"), [*BAD_VALUES, *OBJECTS])
def test_bad_value(entry, value, message):
    """The dotted path, what was seen, what is allowed, and the nearest word."""
    assert message in message_of(a_job(**{entry: value}))


def test_what_is_missing():
    """Three sections have no defaults, no hardware number has one either."""
    for section in ("model", "cluster", "training"):
        job = {name: value for name, value in JOB.items() if name != section}
        assert message_of(job).startswith(f"{section}: is required but missing.")
    for name in ("num_devices", "device"):
        cluster = {key: value for key, value in JOB["cluster"].items() if key != name}
        assert message_of(a_job(cluster=cluster)) == f"cluster.{name}: is required but missing."


def test_precision_that_the_device_does_not_have():
    """An A100 has no tensor cores for fp8."""
    job = a_job(cluster__device="a100-80gb-sxm", training__precision="fp8")

    message = message_of(job)

    assert message.startswith("training.precision: 'fp8' computes in fp8, which a100-80gb-sxm does not. It has: bf16")


def test_object_that_contains_itself():
    """The Python way to make a bomb."""
    job = a_job()
    job["search"] = {"pin": job}

    assert "is nested deeper than 32 levels." in message_of(job)


# --- bad files ------------------------------------------------------------------------------------------------

BOMB = "a: &a [x, x, x, x]\n" + "".join(
    f"{b}: &{b} [*{a}, *{a}, *{a}, *{a}]\n" for a, b in zip("abcdef", "bcdefg", strict=True)
)

BAD_TEXTS = read_table("job")["bad_texts"]

LARGE_TEXTS = [
    (BOMB, "line 1: uses an anchor or alias (& or *), which job files may not. Write the value out."),
    ("a: " + "[" * 5000, "line 1: is nested deeper than 32 levels."),
    ("a: " + "{a: " * 5000, "line 1: is nested deeper than 32 levels."),
    ("- " * 5000, "line 1: is nested deeper than 32 levels."),
    ("a: [" + "1, " * 30000 + "]", "has more than 20000 entries, which no job file has."),
    ("#" * (2**20 + 1), "is larger than 1024 KiB, which no job file is."),
]


@in_one_case(("content", "message"), [*BAD_TEXTS, *LARGE_TEXTS])
def test_bad_file(tmp_path, content, message):
    """One message with the place, within the blink of an eye."""
    path = tmp_path / "job.yaml"
    path.write_bytes(content.encode("latin-1"))

    assert message in message_of(path)


BAD_TEXT_VALUES = [
    ("15e12", ".nan", "training.tokens: "),
    ("15e12", ".inf", "training.tokens: must be at most 1e+24, got inf."),
    ("15e12", "1e999", "training.tokens: must be at most 1e+24, got inf (written 1e999)."),
    ("15e12", "9" * 5000, "training.tokens: must be at most 1e+24, got inf."),
    ("15e12", "2026-01-01", "training.tokens: expected a count such as 15T, got '2026-01-01'."),
    ("15e12", "15 trillion", "training.tokens: expected a count such as 15T, got '15 trillion'. "),
    ("15e12", "yes", "training.tokens: expected a number, got true."),
    ("15e12", "", "training.tokens: expected a count such as 15T, got null."),
    ("64", "2026-01-01 10:00:00", "cluster.num_devices: expected a whole number, got '2026-01-01 10:00:00'."),
    ("64", "1:30", "cluster.num_devices: expected a whole number, got '1:30'."),
]


@in_one_case(("old", "new", "message"), BAD_TEXT_VALUES)
def test_bad_value_in_a_file(tmp_path, old, new, message):
    """What YAML makes of words that are meant as numbers."""
    path = tmp_path / "job.yaml"
    path.write_text(JOB_TEXT.replace(old, new))

    assert message in message_of(path)


def test_missing_file(tmp_path):
    """The nearest name in the same folder is probably meant."""
    (tmp_path / "llama.yaml").write_text(JOB_TEXT)

    assert message_of(tmp_path / "lama.yaml").endswith(f"no such file. Did you mean '{tmp_path / 'llama.yaml'}'?")


def test_folders(tmp_path):
    """A missing one is what is wrong then; one that is there is no job."""
    assert "There is no folder" in message_of(tmp_path / "nowhere" / "job.yaml")
    assert message_of(tmp_path) == f"{tmp_path}: is a directory, expected a YAML file."


@pytest.mark.parametrize("path", ["a\0b", "x" * 5000, "\ud800"])
def test_impossible_path(path):
    """Names that no file can have."""
    assert "cannot be read" in message_of(path)


def test_a_number_that_follows_and_overflows_is_named():
    """A copy to the host at 1e-24 bytes per second takes more seconds than any record holds."""
    message = message_of(a_job(cluster__device={"base": "h100-80gb-sxm", "device_to_host_bandwidth": 1e-24}))

    assert "reliability.checkpoint_seconds: follows from other entries and must be at most 1e+24, got" in message
