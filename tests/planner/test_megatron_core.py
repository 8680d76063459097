"""
Exports against megatron-core's own checks: ``TransformerConfig`` and its layouts.

Needs megatron-core 0.16.1 or 0.14.0 and torch, which ``.ci/run`` installs; without them the tests are skipped. Exports
are those for the release that is there.
"""

from __future__ import annotations

import dataclasses
import warnings

import pytest

from benchmarks.plans.laws import JOBS
from costmodel.errors import SpecError
from planner.frameworks.megatron.bridge import option_value
from planner.frameworks.megatron.lm import to_megatron_lm
from planner.frameworks.megatron.options import options, read_arguments, split_words
from tests.builders_megatron import hybrid_plans, megatron_plans
from tests.builders_plan import MOST_DEVICES, planned_exports
from tests.oracle import in_step

core = pytest.importorskip("megatron.core", reason="megatron-core is not installed")
torch = pytest.importorskip("torch", reason="torch is not installed")

from megatron.core.transformer import transformer_config  # noqa: E402  # after the skip
from megatron.core.transformer.enums import AttnBackend  # noqa: E402
from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout  # noqa: E402

RENAMED = {
    "--num-experts": "num_moe_experts",
    "--decoder-last-pipeline-num-layers": "num_layers_in_last_pipeline_stage",
    "--num-virtual-stages-per-pipeline-rank": "virtual_pipeline_model_parallel_size",
    "--swiglu": "gated_linear_unit",
    "--quick-geglu": "gated_linear_unit",
    "--disable-bias-linear": "add_bias_linear",
}
"""Fields that the parser fills from options of another name (megatron/training/arguments.py)."""


RELEASE = core.__version__.rpartition(".")[0]
"""The release that is there, as exports call it."""


@pytest.fixture(autouse=True)
def _with_transformer_engine(monkeypatch):
    """Its version is asked for; it does not install without CUDA."""
    monkeypatch.setattr(transformer_config, "is_te_min_version", lambda *_: True)


def config_of(plan):
    """The configuration that the arguments make, checked by itself; fields of the same name get the values."""
    arguments = read_arguments(split_words(to_megatron_lm(plan, RELEASE).files["megatron-args.txt"])[0])
    kind = transformer_config.TransformerConfig
    if "--multi-latent-attention" in arguments:
        kind = transformer_config.MLATransformerConfig
    names = {field.name for field in dataclasses.fields(kind)}
    given = {RENAMED.get(name, options_dest(name)): option_value(name, value) for name, value in arguments.items()}
    values = {name: value for name, value in given.items() if name in names}
    if "--swiglu" in arguments:
        values["activation_func"] = torch.nn.functional.silu
    if "--quick-geglu" in arguments:
        values |= {"activation_func": transformer_config.quick_gelu, "bias_activation_fusion": True}
    values |= {"num_query_groups": arguments.get("--num-query-groups"), "pipeline_dtype": torch.bfloat16}
    if "--cpu-offloading-num-layers" in arguments:
        values["cpu_offloading"] = True
    if "attention_backend" in values:
        values["attention_backend"] = AttnBackend[values["attention_backend"]]
    if "window_size" in values:
        values["window_size"] = tuple(values["window_size"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return kind(**values), arguments


def options_dest(name):
    """An option's name as that of a field; formats are called by what they are of."""
    return {"--fp8-format": "fp8", "--fp4-format": "fp4"}.get(name, options()[name].name[2:].replace("-", "_"))


def test_megatron_core_takes_random_plans():
    """Its own checks pass, and it puts as many layers on each stage as the plan does; core 0.14 lacks much."""
    layouts, refused = 0, []

    for plan in megatron_plans(in_step(500)):
        try:
            config, arguments = config_of(plan)
        except SpecError as error:
            refused.append(str(error))
            continue
        strategy, text = plan.strategy, arguments.get("--pipeline-model-parallel-layout")
        assert config.pipeline_model_parallel_size == strategy.pp
        if text is None:
            continue
        layouts += 1
        read = PipelineParallelLayerLayout.from_str(text, strategy.pp)
        assert read.virtual_pipeline_model_parallel_size == strategy.vpp
        held = [sum(len(chunk) for chunk in rank) for rank in read.layout]
        assert held == ranks_slots(plan)

    assert layouts > in_step(50 if RELEASE == "0.14" else 100)
    assert all("Megatron Core 0.14 refuses this plan" in reason for reason in refused)
    assert len(refused) < in_step(350) if RELEASE == "0.14" else not refused


def test_megatron_core_takes_hybrids():
    """Its checks of random plans pass, and it deals the letters of the pattern to as many layers."""
    from megatron.core.ssm.mamba_hybrid_layer_allocation import allocate_layers

    patterns = set()

    for plan in hybrid_plans(max(in_step(60), 20)):
        try:
            config, arguments = config_of(plan)
        except SpecError:
            continue
        dealt = allocate_layers(config.num_layers, 0.0, 0.0, arguments["--hybrid-override-pattern"])
        blocks = ["".join(type(block).__name__ for block in layer.blocks) for layer in plan.facts.model.layers]
        letters = {"Mamba": "M", "Attention": "*", "Mlp": "-", "Experts": "E"}
        assert dealt == [letters[block] for block in blocks]
        assert config.is_hybrid_model
        assert config.mamba_num_heads == plan.facts.model.layers[0].attention.num_heads
        patterns.add("".join(dealt))

    assert len(patterns) == (1 if RELEASE == "0.14" else 2)


@pytest.mark.skipif(RELEASE == "0.14", reason="plans are for the newest release")
def test_megatron_core_takes_plans_for_it():
    """Those of plain jobs, as ``--target megatron-lm`` makes them: all of its own, dense, with experts and hybrid."""
    degrees = []

    for plan, _ in planned_exports("megatron-lm"):
        config, _ = config_of(plan)
        degrees.append((plan.strategy.tp, plan.strategy.pp, plan.strategy.ep))
        found = (config.tensor_model_parallel_size, config.pipeline_model_parallel_size)
        assert (*found, config.expert_model_parallel_size) == degrees[-1]

    assert len(degrees) == sum(job[2] <= MOST_DEVICES for job in JOBS)


def ranks_slots(plan):
    """Layers of each pipeline rank with those of multi-token prediction, and one more for embedding and for loss."""
    ends = [int(rank == 0) + int(rank == plan.strategy.pp - 1) for rank in range(plan.strategy.pp)]
    return [rank.num_layers + more for rank, more in zip(plan.estimate.ranks, ends, strict=True)]


@pytest.mark.parametrize("text", ["Et*31L", "t*32L", "Et*32"])
def test_layouts_that_we_refuse_are_refused_there(text):
    """The same three as in the tests of our own reader."""
    layout = PipelineParallelLayerLayout.from_str(text, 1)

    with pytest.raises(AssertionError):
        layout.validate_layer_layout(num_layers=32, mtp_num_layers=None)
