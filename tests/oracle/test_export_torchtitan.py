"""torchtitan reads exported recipes: random plans, each with the strategy that it was made of."""

from __future__ import annotations

import importlib
import sys
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import islice, pairwise
from types import ModuleType
from unittest import mock

import pytest

from costmodel import catalog
from costmodel.facts.framework import Settings
from costmodel.models.flops import parameters
from costmodel.strategy import Recompute, Schedule, Sharding, TokenDispatcher, Vocabulary
from planner import load
from planner.frameworks.torchtitan import FLAVORS, to_torchtitan
from planner.results import Plan
from tests.builders_estimate import estimate_by_recipes as estimate
from tests.builders_plan import planned_exports, random_exports
from tests.oracle import in_step

pytest.importorskip("torchtitan", reason="torchtitan is not installed")

NUM_PLANS_PER_SEED = in_step(50)
SEEDS = range(2)

ALWAYS = {
    **dict.fromkeys(("activation_offload", "optimizer_offload", "cp_overlap", "ep_overlap"), (False,)),
    "recompute": (Recompute.NONE, Recompute.FULL, Recompute.of("every_other_matmul")),
    "token_dispatcher": (TokenDispatcher.ALLTOALL,),
}
FLAT = {"pp": (1,), "dp_overlap": (True,), "sharding": (Sharding.NONE, Sharding.GRADIENTS, Sharding.WEIGHTS)}
PIPELINES = {
    "pp": (2, 4),
    "dp_overlap": (False,),
    "sharding": (Sharding.NONE, Sharding.OPTIMIZER),
    "schedule": (*(Schedule.ONE_F_ONE_B,) * 3, Schedule.GPIPE, Schedule.ZB_V, Schedule.DUALPIPEV),
    "vocabulary": (Vocabulary.ENDS, Vocabulary.ENDS, Vocabulary.REDISTRIBUTED),
}
"""What torchtitan does at all, with and without a pipeline; the rest it may still refuse."""

SETTINGS = Settings(gradient_dtype="fp32", weight_dtype="fp32", loss="unfused")
"""What FSDP2 does of itself."""

SCHEDULES = {
    "1F1B": Schedule.ONE_F_ONE_B,
    "Interleaved1F1B": Schedule.ONE_F_ONE_B,
    "GPipe": Schedule.GPIPE,
    "ZBVZeroBubble": Schedule.ZB_V,
    "DualPipeV": Schedule.DUALPIPEV,
}


class Kernels(ModuleType):
    """In place of kernels that need Triton, which nothing here runs."""

    def __getattr__(self, name: str):
        """Any kernel."""
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_: None


@pytest.fixture(scope="module", autouse=True)
def _torchtitan():
    kernels = "torchtitan.distributed.minimal_async_ep.kernels"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, kernels, Kernels(kernels))
        yield


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where recipes are imported from."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, "your_recipes", ModuleType("your_recipes"))
    return tmp_path


def your_model(plan: Plan):
    """The recipe that a user would bring: a model with the sizes of the plan's."""
    from torchtitan.models.llama3.config_registry import llama3_debugmodel

    config = llama3_debugmodel()
    model, spec = plan.facts.model, config.model_spec
    sizes = {"dim": model.hidden_size, "vocab_size": model.vocab_size}
    layers = spec.model.layers[:1] * model.num_layers
    return replace(config, model_spec=replace(spec, model=replace(spec.model, layers=layers, **sizes)))


def read(plan: Plan, text: str, folder, name: str, *, options: bool = True):
    """
    torchtitan's configuration, as ``torchtitan.train`` makes it, checked against the number of devices.

    Without ``options`` its parser of the command line is left out, which takes longer than all else to find
    that there are none.
    """
    from torchtitan.config import manager
    from torchtitan.distributed import ParallelDims

    (folder / f"{name}.py").write_text(text, encoding="utf-8")
    importlib.invalidate_caches()
    sys.modules["your_recipes"].your_model = partial(your_model, plan)
    with nullcontext() if options else mock.patch.object(manager.tyro, "cli", lambda *_, default, **__: default):
        config = manager.ConfigManager().parse_args(["--module", name, "--config", "recipe"])
    strategy = plan.strategy
    ParallelDims.from_config(config.parallelism, strategy.tp * strategy.cp * strategy.pp * strategy.dp)
    return config


def decisions(config) -> dict[str, object]:
    """The strategy that a configuration means."""
    from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC

    degrees, batch = config.parallelism, config.training
    policies = {type(None): Recompute.NONE, FullAC.Config: Recompute.FULL}
    policies[SelectiveAC.Config] = Recompute.of("every_other_matmul")
    pp, replicas = degrees.pipeline_parallel_degree, degrees.data_parallel_replicate_degree
    shards = degrees.data_parallel_shard_degree
    stages = degrees.module_fqns_per_model_part or [[]]
    vpp = len(stages) // pp
    total = batch.global_batch_size // (shards * replicas)
    mbs = degrees.pipeline_parallel_microbatch_size if pp > 1 else batch.local_batch_size
    schedule = degrees.pipeline_parallel_schedule
    group = total // mbs // max(1, total // mbs // pp) if schedule == "Interleaved1F1B" else None
    sharded = {"always": Sharding.WEIGHTS, "never": Sharding.OPTIMIZER if pp > 1 else Sharding.GRADIENTS}
    alone = shards * degrees.context_parallel_degree == 1
    return {
        "tp": degrees.tensor_parallel_degree,
        "cp": degrees.context_parallel_degree,
        "pp": pp,
        "dp": shards * replicas,
        "ep": degrees.expert_parallel_degree,
        "vpp": vpp,
        "mbs": mbs,
        "sequence_parallel": degrees.enable_sequence_parallel,
        "schedule": SCHEDULES[schedule],
        "sharding": Sharding.NONE if alone else sharded[degrees.fsdp_reshard_after_forward],
        "recompute": policies[type(config.activation_checkpoint)],
        "tp_overlap": config.compile.enable_async_tensor_parallel,
        "group": group,
    }


def layers(stages: list[list[str]]) -> tuple[int, ...]:
    """Layers of each virtual stage; all modules are there once, in the order of the model."""
    names = [name for stage in stages for name in stage]
    numbers = [int(name.removeprefix("layers.")) for name in names if name.startswith("layers.")]
    assert (names[0], *names[-2:]) == ("tok_embeddings", "norm", "lm_head")
    assert numbers[0] == 0
    assert all(later == earlier + 1 for earlier, later in pairwise(numbers))
    return tuple(sum(name.startswith("layers.") for name in stage) for stage in stages)


@pytest.mark.parametrize("within", [FLAT, PIPELINES], ids=["flat", "pipelines"])
@pytest.mark.parametrize("seed", SEEDS)
def test_what_torchtitan_reads_is_the_strategy(seed, within, folder):
    """All, without a pipeline and with one: dense, with experts, with latent attention, uneven stages."""
    wrong = []
    plans = random_exports("torchtitan", NUM_PLANS_PER_SEED, within=ALWAYS | within, settings=SETTINGS, seed=seed)
    for number, (plan, exported) in enumerate(plans):
        (text,) = exported.files.values()
        name = f"recipe_{within['pp'][0]}_{seed}_{number}"
        config = read(plan, text, folder, name, options=number % 10 == 0)

        found = {name: value for name, value in decisions(config).items() if value is not None}

        same = all(getattr(plan.strategy, name) == value for name, value in found.items())
        if plan.strategy.layout:
            same &= layers(config.parallelism.module_fqns_per_model_part) == plan.strategy.layout.layers
        elif plan.strategy.pp > 1 and plan.strategy.vocabulary == Vocabulary.ENDS:
            same &= sum(layers(config.parallelism.module_fqns_per_model_part)) == plan.facts.model.num_layers
        wrong += [] if same else [(plan.strategy, found)]

    assert wrong == []


def test_plans_for_torchtitan_are_read(folder):
    """Those of plain jobs, as ``--target torchtitan`` makes them."""
    planned = [*islice(planned_exports("torchtitan"), 5)]
    assert len(planned) == 5
    for number, (plan, exported) in enumerate(planned):
        config = read(plan, *exported.files.values(), folder, f"planned_{number}")
        found = {name: value for name, value in decisions(config).items() if value is not None}
        assert found == {name: getattr(plan.strategy, name) for name in found}


def test_torchtitan_refuses_cuda_graphs_in_a_pipeline(folder):
    """The parser is one that looks: what the export switches off would be an error."""
    plan, exported = next(random_exports("torchtitan", 1, within=ALWAYS | PIPELINES, settings=SETTINGS))
    (text,) = exported.files.values()

    with pytest.raises(ValueError, match="CUDA graphs"):
        read(plan, text.replace("disable_cuda_graphs=True", "disable_cuda_graphs=False"), folder, "with_graphs")


@pytest.mark.parametrize("name", FLAVORS)
@pytest.mark.parametrize("degrees", [{"tp": 2, "cp": 2, "ep": 1}, {"pp": 2, "vpp": 2, "pp_overlap": True}])
def test_torchtitans_own_models_take_the_recipes(degrees, name, folder):
    """The checks that a model makes of its configuration when the trainer is built."""
    experts = "b-a" in name or name.startswith("gpt-oss")
    if "pp" in degrees:
        given = {**degrees, "sharding": "optimizer", "mbs": 1}
    else:
        given = {**degrees, "etp": 2 if experts else 1, "sharding": "weights", "dp_overlap": True, "mbs": 1}
    job = {
        "model": name,
        "cluster": {"device": "h100-80gb-sxm", "num_devices": 16, "framework": {"name": "any"}},
        "settings": {"gradient_dtype": "fp32", "weight_dtype": "fp32", "loss": "unfused"},
        "training": {"global_batch_size": 64, "sequence_length": 4096, "tokens": 1e11},
    }
    plan = estimate(load(job), given).plan
    (text,) = to_torchtitan(plan).files.values()

    config = read(plan, text, folder, f"flavor_{name}_{plan.strategy.pp}".replace("-", "_").replace(".", "_"))
    config.model_spec.model.update_from_config(config=config)

    assert len(config.model_spec.model.layers) == plan.facts.model.num_layers


@pytest.mark.parametrize("name", FLAVORS)
def test_flavors_are_the_models_of_the_catalog(name):
    """torchtitan's own model has as many parameters as the catalog's."""
    import torch

    module, recipe, flavor = FLAVORS[name]
    package = importlib.import_module(f"torchtitan.models.{module}")
    registry = importlib.import_module(f"torchtitan.models.{module}.config_registry")
    with torch.device("meta"):
        model = package.model_registry(flavor).model.build()

    assert sum(one.numel() for one in model.parameters()) == parameters(catalog.model(name))
    assert callable(getattr(registry, recipe))
