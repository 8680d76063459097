"""The cluster of a job: bandwidths, devices that start from others, calibrations, frameworks and their settings."""

from dataclasses import replace

import pytest

from costmodel import catalog
from costmodel.errors import SpecError
from costmodel.facts.framework import Settings
from planner.jobs.cluster import CATALOG, Fitted, cluster_of, device_of, device_path
from planner.jobs.entries import ClusterSection
from planner.jobs.problem import load
from planner.jobs.strategy_file import require_sound
from tests.builders_cluster import achieved
from tests.cases import in_one_case, read_table
from tests.planner.test_job import A_TIER, a_job, message_of

CASES = read_table("cluster")

H100 = catalog.device("h100-80gb-sxm")
DEFAULT = catalog.default_framework(H100)
EFFICIENCY = H100.calibration.constants.link_efficiency


def cluster(**entries):
    """64 H100 but for some entries of the cluster; other entries with their dotted name."""
    sections = {name if "__" in name else f"cluster__{name}": value for name, value in entries.items()}
    return load(a_job(**sections)).facts.cluster


def bandwidths(**entries):
    """What is achieved of each level."""
    return [network.bandwidth for network in cluster(**entries).device.networks]


# --- bandwidths --------------------------------------------------------------------------------------------


def test_of_nominal_bandwidths_a_share_is_achieved():
    """The datasheet's 450 and 50 GB/s, times what the calibration says of each level."""
    nvlink, rail, spine = EFFICIENCY["nvlink"], EFFICIENCY["rail"], EFFICIENCY["spine"]

    assert bandwidths() == pytest.approx([450e9 * nvlink, 50e9 * rail, 50e9 * spine])


def test_a_job_states_nominal_bandwidths():
    """As much is achieved of 300 and 25 GB/s as of the device's own; whatever is beyond the domain has the same."""
    nvlink, rail, spine = EFFICIENCY["nvlink"], EFFICIENCY["rail"], EFFICIENCY["spine"]

    found = bandwidths(scale_up_bandwidth=300e9, internode_bandwidth=25e9)

    assert found == pytest.approx([300e9 * nvlink, 25e9 * rail, 25e9 * spine])


def test_either_bandwidth_alone_leaves_the_other():
    """What is not written is the device's own; the source of networks is the job then."""
    own = bandwidths()

    assert bandwidths(scale_up_bandwidth=450e9 / 2) == pytest.approx([own[0] / 2, *own[1:]])
    assert bandwidths(internode_bandwidth=50e9 / 2) == pytest.approx([own[0], own[1] / 2, own[2] / 2])
    sources = cluster(internode_bandwidth=25e9).device.sources
    assert sources["networks"] == "job file"
    assert not any(name.startswith("networks.") for name in sources)


def test_networks_of_the_job_are_what_is_achieved():
    """They are measured or assumed as a whole, and nothing is taken off."""
    assert bandwidths(networks=[A_TIER]) == [4e11]


@in_one_case(
    ("entries", "message"),
    [
        (
            {"networks": [A_TIER], "internode_bandwidth": 25e9},
            "cluster.internode_bandwidth: is given with 'networks', which have their own; keep one.",
        ),
        (
            {"networks": [A_TIER], "scale_up_bandwidth": 25e9},
            "cluster.scale_up_bandwidth: is given with 'networks', which have their own; keep one.",
        ),
        (
            {"device": {"base": "h100-80gb-sxm", "networks": [A_TIER]}, "internode_bandwidth": 25e9},
            "cluster.internode_bandwidth: is of no level: h100-80gb-sxm, changed has one network only.",
        ),
        ({"scale_up_bandwidth": 0}, "cluster.scale_up_bandwidth: must be at least 1000000, got 0."),
        (
            {"internode_bandwidth": "fast"},
            "cluster.internode_bandwidth: expected bytes per second such as 50GB/s, got 'fast'.",
        ),
    ],
)
def test_bandwidths_that_mean_nothing_are_refused(entries, message):
    """Where, what was seen, what is allowed."""
    assert message in message_of(a_job(**{f"cluster__{name}": value for name, value in entries.items()}))


# --- devices -----------------------------------------------------------------------------------------------


def test_constants_may_be_changed_alone():
    """What a device's calibration is based on stays, but for what is written; its source is the job."""
    device = cluster(device={"base": "h100-80gb-sxm", "calibration": {"matmul_efficiency": {"bf16": 0.5}}}).device

    known = H100.calibration.constants
    constants = device.calibration.constants
    assert constants == replace(known, matmul_efficiency={**known.matmul_efficiency, "bf16": 0.5})
    assert device.calibration.name == "hopper, changed"
    assert device.calibration.sources["matmul_efficiency"] == "job file"
    assert device.calibration.sources["kernel_gap_seconds"] == H100.calibration.sources["kernel_gap_seconds"]
    assert device.sources == H100.sources


def test_a_calibration_may_be_another_entry():
    """By its name, or based on it."""
    ampere = catalog.calibration("ampere").constants

    named = device_of({"base": "h100-80gb-sxm", "calibration": "ampere"})
    based = device_of({"base": "h100-80gb-sxm", "calibration": {"base": "ampere", "straggler_spread": 0.0}})

    assert named.calibration == catalog.calibration("ampere")
    assert based.calibration.constants == replace(ampere, straggler_spread=0.0)


def test_a_device_may_be_described_whole():
    """Nothing is added but a name; without a source nobody says anything of it."""
    entry = {name: value for name, value in catalog.device_entry("h100-80gb-sxm").items() if name != "name"}

    assert device_of(entry) == replace(H100, name="inline")


@in_one_case(
    ("calibration", "message"),
    [
        ("hoper", "cluster.device.calibration: 'hoper' is not in the catalog. Did you mean 'hopper'?"),
        ({"base": "hoper"}, "cluster.device.calibration.base: 'hoper' is not in the catalog. Did you mean 'hopper'?"),
        ({"kernel_secnds": 1}, "cluster.device.calibration.kernel_secnds: no such entry. Did you mean 'kernel_gap_sec"),
        ({"memory_efficiency": 2}, "cluster.device.calibration.memory_efficiency: must be at most 1, got 2."),
        (3, "cluster.device.calibration: expected a name or a mapping, got 3."),
    ],
)
def test_calibrations_that_are_wrong_are_refused(calibration, message):
    """The dotted path of the job, and what may have been meant."""
    assert message in message_of(a_job(cluster__device={"base": "h100-80gb-sxm", "calibration": calibration}))


def test_a_path_is_a_file_and_a_name_is_none(tmp_path):
    """What ends like a file or has a slash is one, relative to the job."""
    assert device_path("h100-80gb-sxm", tmp_path) is None
    assert device_path("h100", tmp_path) is None
    assert device_path({"base": "h100-80gb-sxm"}, tmp_path) is None
    assert device_path("ours.yaml", tmp_path) == tmp_path / "ours.yaml"
    assert device_path("devices/ours", tmp_path) == tmp_path / "devices" / "ours"


# --- frameworks and settings -------------------------------------------------------------------------------


def test_a_job_without_framework_gets_the_devices():
    """Megatron-Bridge's recipes with their settings; their gradients take 2 bytes, not the recipe's 4."""
    facts = load(a_job()).facts

    assert facts.cluster.framework == catalog.framework(DEFAULT)
    assert facts.cluster.settings == facts.cluster.framework.settings
    assert facts.workload.precision.gradient_bytes == 2
    assert catalog.precision("bf16").gradient_bytes == 4


def test_settings_of_the_job_come_first():
    """Gradients in FP32; 8-bit weights are gathered as the framework's recipes do."""
    facts = load(a_job(settings={"gradient_dtype": "fp32"})).facts

    assert facts.workload.precision.gradient_bytes == 4
    assert facts.cluster.settings == Settings(gradient_dtype="fp32", fp8_param_gather=True)


def test_what_a_job_says_byte_by_byte_stays():
    """An inline precision's own bytes are not the framework's."""
    own = load(a_job(training__precision={"base": "bf16", "gradient_bytes": 4})).facts.workload.precision
    other = load(a_job(training__precision={"base": "bf16", "optimizer_bytes": 8})).facts.workload.precision

    assert (own.gradient_bytes, own.optimizer_bytes) == (4, 12)
    assert (other.gradient_bytes, other.optimizer_bytes) == (2, 8)


def test_precision_is_the_frameworks_unless_told():
    """BLOOM's Megatron-DeepSpeed trained in FP16, Megatron-Bridge in BF16."""
    job = a_job(cluster__device="a100-80gb-sxm")
    del job["training"]["precision"]

    assert load(job).facts.workload.precision.name == "bf16"
    job["cluster"]["framework"] = "megatron-deepspeed-2022"
    assert load(job).facts.workload.precision.name == "fp16"


def test_a_framework_may_be_changed_by_the_job():
    """On top of a release: its kernels are what they are, its launches block."""
    base = {"base": DEFAULT, "behaviour": {"host": {"launch_blocking": True}}}

    changed = cluster(framework=base)

    assert changed.device == replace(cluster().device, **achieved(cluster().device, launch_blocking=True))
    assert changed.framework.name == f"{DEFAULT}, changed"


def test_layers_of_multi_token_prediction_are_a_setting():
    """DeepSeek-V3 has one; a job that trains none has none to cost."""
    assert len(load(a_job(model="deepseek-v3")).facts.model.mtp_layers) == 1
    assert load(a_job(model="deepseek-v3", settings={"mtp_layers": 0})).facts.model.mtp_layers == ()


def test_a_domain_and_a_node_fit_into_each_other():
    """Of a domain of 8 and nodes of 3 neither divides the other."""
    assert "cluster.devices_per_node: is 3" in message_of(a_job(cluster__devices_per_node=3))


def test_levels_go_outwards():
    """A domain of 512 devices reaches more than the rail of 256 around it."""
    assert message_of(a_job(cluster__scale_up_size=512)).startswith("cluster.scale_up_size: level 'nvlink' reaches 512")


# --- constants that are fitted -----------------------------------------------------------------------------


def fitted_cluster(fitted, device="h100-80gb-sxm"):
    """The plain job's cluster with other constants."""
    section = ClusterSection(device=device, num_devices=64)
    return cluster_of(section, device, Settings(), catalog.model("llama3-8b"), "bf16", fitted)


def test_the_catalogs_constants_are_the_default():
    """Nothing is fitted."""
    assert fitted_cluster(CATALOG) == fitted_cluster(Fitted()) == cluster()


def test_other_constants_take_the_place_of_the_catalogs():
    """Of the device's calibration or one that it extends; another's changes nothing; dotted names reach inside."""
    fitted = Fitted(
        constants={"hopper": {"kernel_gap_seconds": 1e-6, "link_efficiency.rail": 0.5}, "ampere": {"x": 1.0}}
    )

    for name in ("h100-80gb-sxm", "h100-96gb-hbm2e"):
        device, usual = fitted_cluster(fitted, name).device, fitted_cluster(CATALOG, name).device
        assert device.calibration.constants.kernel_gap_seconds == 1e-6
        assert device.networks[1].bandwidth == pytest.approx(0.5 * catalog.device(name).networks[1].bandwidth)
        assert (device.networks[0], device.networks[2]) == (usual.networks[0], usual.networks[2])


def test_other_factors_take_the_place_of_the_catalogs():
    """Those of the kernels that a release has; none at all where none are given for them."""
    plain = fitted_cluster(Fitted(factors={})).device
    half = fitted_cluster(Fitted(factors={"megatron-bridge-26.04": {"kernel_gap_seconds": 0.5}})).device

    assert plain.constants.attention_efficiency == H100.calibration.constants.attention_efficiency
    assert half.constants == replace(plain.constants, kernel_gap_seconds=0.5 * plain.constants.kernel_gap_seconds)


def test_constants_that_do_not_exist_are_refused():
    """A table of constants that names another field than there is."""
    with pytest.raises(SpecError, match="kernel_secnds: no such entry"):
        fitted_cluster(Fitted(constants={"hopper": {"kernel_secnds": 1.0}}))


# --- what a job says itself --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "most", "what"),
    [
        ("communication_sms", 132, "processors of h100-80gb-sxm"),
        ("offloaded_layers", 32, "layers of llama3-8b"),
        ("optimizer_group", 64, "devices of cluster.num_devices"),
    ],
)
def test_settings_count_what_there_is(setting, most, what):
    """An H100 has 132 processors, Llama-3 8B 32 layers, the job 64 devices: all of them may be named, one more not."""
    load(a_job(settings={setting: most}))

    message = message_of(a_job(settings={setting: most + 1}))

    assert message == f"settings.{setting}: is {most + 1}, more than the {most} {what}. Give at most {most}."


def test_defaults_may_be_of_larger_clusters():
    """InternEvo shares states among 8; so do 4 devices, all of them. Processors that nobody knows are not counted."""
    a100 = a_job(cluster__device="a100-80gb-sxm", cluster__framework="internevo-0.2", cluster__num_devices=4)
    unknown = {"base": "h100-80gb-sxm", "num_processors": None}

    assert load(a100).facts.cluster.settings.optimizer_group == 8
    load(a_job(cluster__device=unknown, settings={"communication_sms": 1000}))


@in_one_case(("changes", "message"), CASES["frameworks"])
def test_an_inline_framework_says_what_there_is(changes, message):
    """Whatever nothing would read is refused at its entry."""
    found = message_of(a_job(cluster__framework={"base": "nemo-25.07", **changes}))

    assert found.startswith(f"cluster.framework.{message}")


def test_an_architecture_without_a_default_says_what_runs_on_it():
    """A release of Megatron-LM is no default for chips that it does not know."""
    device = {"base": "h100-80gb-sxm", "name": "mine", "architecture": "gaudi3"}

    found = message_of(a_job(cluster__device=device))

    assert found.startswith("cluster.framework: is required: no default runs on mine. Write one that does: deepspeed-")


def test_what_an_inline_framework_may_say():
    """Values of every kind, a month or none."""
    features = {"cuda_graphs": ["none", "modules"], "tp_overlap": ["false"], "recompute": ["modules"], "tp": ["1", "8"]}
    changes = {"features": features, "since": "", "factors": {"kernel_gap_seconds@volta": 2.0}, "precision": "fp8"}

    assert cluster(framework={"base": "nemo-25.07", **changes}).framework.precision == "fp8"


def test_what_an_inline_framework_says_has_the_job_as_its_source():
    """The source of what it says otherwise is not its base's; those of the rest are."""
    known = catalog.framework("nemo-25.07").sources
    changes = {"stages": "even", "behaviour": {"memory": {"logit_bytes": 4.0}}}

    sources = cluster(framework={"base": "nemo-25.07", **changes}).framework.sources

    assert (sources["stages"], sources["behaviour.memory.logit_bytes"]) == ("job file", "job file")
    assert sources["behaviour.memory.workspace_bytes"] == known["behaviour.memory"]
    assert sources["behaviour.kernels.causal_attention"] == known["behaviour.kernels.causal_attention"]


@in_one_case("name", catalog.frameworks())
def test_the_catalogs_frameworks_say_what_there_is(name):
    """What is asked of a job's own framework holds for every entry, and each of them says since when."""
    framework = catalog.framework(name)

    require_sound(framework, f"frameworks.{name}")
    assert framework.since
