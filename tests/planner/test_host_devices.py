"""A device's kind decides which decisions exist: the host's own processors have no CUDA graphs and no offload."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from costmodel import catalog
from costmodel.errors import SpecError
from costmodel.strategy import CudaGraphs
from planner import estimate, load, plan
from planner.jobs.strategy_file import require_features
from planner.measure.fit.device import fit_device
from tests.builders_samples import A_MACHINE, matmul_points, samples_of
from tests.cases import in_one_case
from tests.sources import FILES, label, text

CPU = {
    "model": "llama3-8b",
    "cluster": {
        "device": {"base": "h100-80gb-sxm", "name": "my-cpu", "architecture": None, "host_link": "none"},
        "num_devices": 8,
    },
    "training": {"global_batch_size": 64, "sequence_length": "4k", "tokens": "1T"},
    "search": {"evidence": "any"},
}


@pytest.mark.slow
def test_plans_on_processors_have_neither():
    """With a link to a host the fastest plan of the same rates has a CUDA graph."""
    with_host = {**CPU, "cluster": {**CPU["cluster"], "device": {**CPU["cluster"]["device"], "host_link": "pcie"}}}

    assert plan(load(with_host)).fastest.strategy.cuda_graphs != CudaGraphs.NONE
    strategies = [one.strategy for one in plan(load(CPU, ["top=3"])).plans]
    assert {one.cuda_graphs for one in strategies} == {CudaGraphs.NONE}
    assert not any(one.activation_offload or one.optimizer_offload for one in strategies)


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("graphs=full_iteration", "cuda_graphs"),
        ("offload=activations", "activation_offload"),
        ("offload=optimizer", "optimizer_offload"),
    ],
)
def test_asked_for_they_are_refused(word, name):
    """The message names the device and its entry, not a release that has the feature."""
    with pytest.raises(SpecError, match=rf"{name}: there is no {name} '\w+' on my-cpu, .* host_link is 'none'"):
        estimate(load(CPU), word, searched=False)


KINDS = dict.fromkeys(("ascend", "gaudi3", "tpu", "trainium2", "trainium3"), False) | dict.fromkeys(
    ("ada", "ampere", "blackwell", "blackwell-rtx", "cdna3", "cdna4", "hopper", "rubin", "volta"), True
)
"""Architectures, and whether PyTorch captures graphs on them: torch.cuda.CUDAGraph is of CUDA and ROCm."""


@in_one_case("device", [name for name in catalog.devices() if catalog.device(name).architecture])
def test_graphs_exist_where_pytorch_captures_them(device):
    """For every device of the catalog, under a framework that has them elsewhere."""
    precision = ["training.precision=fp16"] if device.startswith("v100") else []
    job = {**CPU, "cluster": {"device": device, "num_devices": 8, "framework": "megatron-lm-0.17"}}
    cluster = load(job, precision).facts.cluster
    asked = {"cuda_graphs": int(CudaGraphs.FULL_ITERATION)}

    if KINDS[cluster.device.architecture]:
        require_features(cluster, asked, "strategy")
    else:
        with pytest.raises(SpecError, match=f"there is no cuda_graphs 'full_iteration' on {device}, of"):
            require_features(cluster, asked, "strategy")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("software", "driver", "link"),
    [("torch 2.13", "", "none"), ("torch 2.13, cuda 13.0", "", None), ("torch 2.13", "1.2", None)],
)
def test_a_device_fitted_on_processors_is_one(software, driver, link):
    """Samples say what they were measured on."""
    machine = replace(A_MACHINE, software=software, driver=driver)
    forward = [one for one in matmul_points(rows=(256, 16384), widths=(1024, 8192)) if one.pass_ == "forward"]
    samples = samples_of(forward, machine=machine)
    networks = [{"name": "links", "num_peers": 4, "bandwidth": 1e11, "latency": 1e-6}]
    entry = fit_device(samples, name="mine", facts={"networks": networks, "memory_bandwidth": 1e12}).entry

    assert entry.get("host_link") == link


def test_no_document_installs_a_package_that_no_registry_has():
    """The project is installed from its checkout; under its name a registry may have something else tomorrow."""
    asked = re.compile(r"pip install [^\n`(]*pretraining.planner")
    found = [label(path) for path in FILES if asked.search(text(path))]

    assert found == []
