"""A measured run is a job and a strategy: what its row says, and its framework's defaults where it is silent."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from benchmarks.accuracy.metrics import FOLDER
from costmodel import catalog
from costmodel.facts.model import LinearAttention, Mamba
from costmodel.strategy import CudaGraphs, Recompute, Schedule, Sharding, TokenDispatcher, Vocabulary
from planner import load
from planner.jobs.run_jobs import job_of, references
from planner.jobs.strategy_file import strategy_entries
from planner.measure.calibrate.constants import replace_constants
from planner.measure.runs.predictions import (
    Prediction,
    RejectedRow,
    cases,
    find_unreported_recompute,
    predict,
    predictions,
)
from tests.builders_job import a_document
from tests.builders_runs import (
    DEEPSEEK_V3,
    a_case,
    dotted,
    known,
    predicted,
    project_references,
    require_refused,
    results_of,
    rows_of,
)
from tests.cases import in_one_case

# --- the strategy ------------------------------------------------------------------------------------------


def test_empty_cells_mean_the_defaults_of_the_framework(tmp_path):
    """Megatron-Core's recipes overlap and shard where the row is silent; software of 2022 does not."""
    new = a_case(tmp_path).strategy
    old = a_case(tmp_path, cluster__framework="megatron-deepspeed-2022").strategy

    assert (new.dp, new.sequence_parallel, new.sharding, new.tp_overlap) == (32, True, Sharding.OPTIMIZER, True)
    assert (old.dp, old.sequence_parallel, old.sharding, old.dp_overlap) == (32, False, Sharding.NONE, False)


def test_stated_cells_win_over_the_defaults(tmp_path):
    """``none`` is a statement, nothing is not."""
    stated = a_case(
        tmp_path,
        strategy__sequence_parallel="false",
        strategy__sharding="weights",
        strategy__tp_overlap="false",
        strategy__dp_overlap="false",
        strategy__recompute="full",
    ).strategy

    assert [stated.sequence_parallel, stated.tp_overlap, stated.dp_overlap] == [False, False, False]
    assert (stated.sharding, stated.recompute) == (Sharding.WEIGHTS, Recompute.FULL)


def test_nvfp4_recipes_do_not_overlap_tensor_parallelism(tmp_path):
    """Megatron-Bridge's Llama recipes switch user buffers off; a row that states its overlaps has them."""
    cells = {"cluster__device": "gb200", "training__precision": "nvfp4", "cluster__framework": "megatron-bridge-26.04"}
    silent = a_case(tmp_path, **cells).strategy
    stated = a_case(tmp_path, **cells, strategy__tp_overlap="true").strategy

    assert (silent.tp_overlap, silent.dp_overlap, stated.tp_overlap) == (False, True, True)


def test_every_decision_of_a_row_is_what_its_cell_says(tmp_path):
    """V-Half has two chunks; slices of the vocabulary, dispatcher and graphs are spelled as in job files."""
    fork = {"cluster__framework": "v-half-2024", "cluster__device": "a100-80gb-sxm", "strategy__tp": "1"}
    v_half = a_case(
        tmp_path,
        **fork,
        strategy__pp="8",
        strategy__schedule="v_half",
        strategy__vocabulary="vocab_1",
        step_seconds="9",
    ).strategy
    graphs = a_case(
        tmp_path,
        model="qwen3-30b-a3b",
        strategy__ep="8",
        strategy__token_dispatcher="deepep",
        strategy__cuda_graphs="attn+moe_router",
    ).strategy

    assert (v_half.schedule, v_half.vpp, v_half.vocabulary) == (Schedule.V_HALF, 2, Vocabulary.VOCAB_1)
    assert graphs.token_dispatcher == TokenDispatcher.DEEPEP
    assert graphs.cuda_graphs == CudaGraphs.of("attn", "moe_router")


def test_a_decision_that_the_framework_has_not_is_refused(tmp_path):
    """DeepEP is younger than Megatron-LM of 2022."""
    experts = {"model": "mixtral-8x7b", "strategy.ep": "8", "strategy.token_dispatcher": "deepep"}

    (row,) = results_of(tmp_path, {"cluster.framework": "megatron-lm-2022", **experts})

    require_refused(row, "deepep", "megatron-lm-2022")


def test_a_printed_layout_is_the_pipelines(tmp_path):
    """16 stages on 8 ranks: four layers each, one on the last with multi-token prediction and head."""
    cells = {**DEEPSEEK_V3, "strategy.vpp": "2", "strategy.layout": f"{{layers: {[4] * 15 + [1]}}}"}

    (one,) = predicted(tmp_path, cells)

    assert one.strategy.layout.layers == (*(4,) * 15, 1)


@pytest.mark.parametrize(
    ("layers", "vpp", "problem"), [([4] * 15, "2", "15"), ([4] * 14 + [1, 1], "2", "58"), ([4] * 15 + [1], "1", "16")]
)
def test_a_layout_of_another_pipeline_is_refused(tmp_path, layers, vpp, problem):
    """15 stages are not 16, 58 layers not DeepSeek-V3's 61, and 16 stages not those of 8 ranks with a chunk each."""
    cells = {**DEEPSEEK_V3, "strategy.vpp": vpp, "strategy.layout": f"{{layers: {layers}}}"}

    (row,) = results_of(tmp_path, cells)

    require_refused(row, "strategy.layout", problem)


@pytest.mark.parametrize(
    ("framework", "vpp", "layers"),
    [
        ("megatron-bridge-26.04", "2", (*(4,) * 15, 1)),
        ("nemo-25.07", "1", (*(8,) * 7, 5)),
        ("torchtitan-0.1", "1", None),
    ],
)
def test_stages_that_recipes_fill(tmp_path, framework, vpp, layers):
    """Megatron-LM cannot deal 61 layers evenly; recipes fill one stage after the other."""
    (one,) = predicted(tmp_path, {**DEEPSEEK_V3, "cluster.framework": framework, "strategy.vpp": vpp})

    assert (one.strategy.layout and one.strategy.layout.layers) == layers


def test_stages_that_megatron_deals_itself(tmp_path):
    """126 layers, embedding and head over 8 ranks with 8 chunks each: as the cost model has them."""
    cells = {"model": "llama3-405b", "strategy__tp": "8", "strategy__pp": "8", "strategy__vpp": "8"}

    assert a_case(tmp_path, **cells, cluster__num_devices="512", step_seconds="20").strategy.layout is None


def test_stages_of_gpt_neox(tmp_path):
    """GPT-NeoX-20B of arXiv 2509.22832 on four and on eight stages: 48 slots, one in front and three behind."""
    cells = {"cluster__framework": "gpt-neox-2.0", "model": "gpt-neox-20b", "training__precision": "fp16"}
    four, eight = (a_case(tmp_path, **cells, strategy__pp=pp, step_seconds="6").strategy.layout for pp in ("4", "8"))

    assert four.layers == (11, 12, 12, 9)
    assert eight.layers == (5, *[6] * 6, 3)


def test_experts_of_megatron_bridge_are_whole(tmp_path):
    """On twice as many devices, too, where Megatron-LM would split them."""
    moe = dotted(
        {
            "model": "qwen3-235b-a22b",
            "cluster__device": "gb200",
            "strategy__ep": "64",
            "cluster__num_devices": "128",
            "training__global_batch_size": "1024",
            "step_seconds": "10",
        }
    )

    def expert_tp(framework: str) -> int:
        (one,) = predicted(tmp_path, {**moe, "cluster.framework": framework})
        return one.strategy.etp

    assert (expert_tp("megatron-bridge-26.04"), expert_tp("megatron-core-0.16")) == (1, 2)


def test_what_a_silent_row_must_have_recomputed(tmp_path):
    """Llama 3 70B does not fit into 64 H100 with FSDP alone: AutoModel recomputed its layers; no row says so."""
    row = {
        "model": "llama3-70b",
        "strategy__tp": "1",
        "strategy__cp": "2",
        "strategy__sharding": "weights",
        "step_seconds": "18.9",
        "peak_memory_gib": "",
    }
    silent = a_case(tmp_path, cluster__framework="automodel-26.02", **row)
    other = a_case(tmp_path, cluster__framework="torchtitan-0.1", **row)
    stated = a_case(tmp_path, cluster__framework="automodel-26.02", strategy__recompute="none", **row)

    assert (silent.strategy.recompute, other.strategy.recompute) == (Recompute.FULL, Recompute.NONE)
    assert (silent.is_inferred, other.is_inferred) == (True, False)
    assert find_unreported_recompute(silent) is not None
    assert find_unreported_recompute(other) is not None
    assert (stated.strategy.recompute, find_unreported_recompute(stated)) == (Recompute.NONE, None)


# --- the facts ---------------------------------------------------------------------------------------------


def test_a_row_changes_the_architecture(tmp_path):
    """A proxy has fewer layers, dgxc's 405B has 16 key-value heads."""
    cells = {"model": "llama3-405b", "kind": "proxy", "model__num_layers": "7", "model__num_kv_heads": "16"}

    model = a_case(tmp_path, **cells, strategy__tp="8", step_seconds="4").facts.model

    assert model.num_layers == 7
    assert model.layers[0].attention.num_kv_heads == 16


def test_hybrid_models_of_the_data(tmp_path):
    """Nemotron 3 Super: 40 Mamba layers, experts on a latent of 1,024, two layers of multi-token prediction."""
    model = a_case(tmp_path, model="nemotron3-super-120b", step_seconds="5").facts.model
    without = a_case(
        tmp_path, model="nemotron3-super-120b", cluster__framework="automodel-26.02", step_seconds="5"
    ).facts.model

    assert sum(isinstance(layer.attention, Mamba) for layer in model.layers) == 40
    assert {layer.feed_forward.latent_size for layer in model.layers if layer.feed_forward} == {1024}
    assert (len(model.mtp_layers), len(without.mtp_layers)) == (2, 0)


def test_gated_delta_layers_of_the_data(tmp_path):
    """Qwen3-Next: three of four layers; one MTP layer."""
    model = a_case(tmp_path, model="qwen3-next-80b-a3b").facts.model

    assert sum(isinstance(layer.attention, LinearAttention) for layer in model.layers) == 36
    assert len(model.mtp_layers) == 1


def test_norms_and_positions_of_the_data(tmp_path):
    """Qwen3 norms queries and keys; GPT-NeoX-20B rotates them and has a head of its own."""
    qwen = a_case(tmp_path, model="qwen3-30b-a3b").facts.model
    neox = a_case(tmp_path, model="gpt-neox-20b", step_seconds="6").facts.model

    assert qwen.layers[0].attention.qk_norm == "per_head"
    assert (neox.layers[0].attention.rotary, neox.learned_positions, neox.tied_embeddings) == (True, 0, False)


def test_the_network_is_the_rows(tmp_path):
    """Four GPUs per node and rack-wide NVLink as the row says; 6.25 GB/s are a quarter of an A100's 25."""
    rack = a_case(
        tmp_path, cluster__device="gb200", cluster__devices_per_node="4", cluster__scale_up_size="72", step_seconds="1"
    ).facts.cluster
    there = {"cluster__device": "a100-80gb-sxm", "step_seconds": "8"}
    slow = a_case(tmp_path, **there, cluster__internode_bandwidth="6.25e+09").facts.cluster
    plain = a_case(tmp_path, **there).facts.cluster

    assert (rack.device.devices_per_node, rack.scale_up_size) == (4, 72)
    assert slow.device.networks[1].bandwidth == pytest.approx(plain.device.networks[1].bandwidth / 4)
    assert slow.device.networks[0] == plain.device.networks[0]


def test_a_site_is_a_device_of_its_own(tmp_path):
    """Perlmutter's nodes of four A100, by its own collectives: 1.2 GB/s per GPU, whatever others achieve of theirs."""
    there = {"cluster__devices_per_node": "4", "cluster__scale_up_size": "4", "step_seconds": "8"}
    plain = a_case(tmp_path, cluster__device="a100-80gb-sxm", **there).facts.cluster
    nodes = a_case(tmp_path, cluster__device="devices/a100-80gb-sxm-perlmutter.yaml", **there).facts.cluster

    assert nodes.device.devices_per_node == 4
    assert nodes.device.networks[1].bandwidth == pytest.approx(1.2e9)
    assert nodes.device.networks[0].is_mesh
    assert not plain.device.networks[0].is_mesh
    assert nodes.device.networks[1].bandwidth < plain.device.networks[1].bandwidth / 10


def test_settings_of_a_row_are_what_its_framework_was_told(tmp_path):
    """InternEvo shares states among 8 unless told otherwise; DeepSpeed adds up beside 16-bit gradients; 20 of 80."""
    here = {"cluster__framework": "internevo-0.2", "cluster__device": "a100-80gb-sxm", "step_seconds": "8"}
    within, everyone = (a_case(tmp_path, **here, settings__optimizer_group=group).facts for group in ("8", "all"))
    deepspeed = a_case(tmp_path, settings__gradient_dtype="bf16+fp32").facts
    offloading = a_case(
        tmp_path,
        model="llama3-70b",
        settings__offloaded_layers="20",
        strategy__activation_offload="true",
        step_seconds="18",
    ).facts
    narrow, wide = (
        a_case(tmp_path, training__precision=dtype, cluster__framework="megatron-bridge-26.04").facts.workload.precision
        for dtype in ("fp8_current", "bf16")
    )

    assert within.cluster.device.behaviour.optimizer.sharding_ranks == 8
    assert everyone.cluster.device.behaviour.optimizer.sharding_ranks in (None, 64)
    assert deepspeed.workload.precision.gradient_bytes == 6
    assert offloading.cluster.device.behaviour.memory.offloaded_fraction == 20 / 80
    assert (narrow.weight_bytes, narrow.copy_bytes) == (1, 1)
    assert [given.parameter_gather_bytes for given in (narrow, wide)] == [1, 2]


def test_megatron_lm_of_today_fits_where_it_ran(tmp_path):
    """With scores in memory, 8,192 tokens would take more than twice of the device."""
    old, new = predicted(
        tmp_path,
        *(
            {"id": name, "cluster.framework": name, "peak_memory_gib": ""}
            for name in ("megatron-lm-2022", "megatron-lm-0.12")
        ),
    )

    assert not old.fits
    assert new.fits


def test_what_measured_operators_do_not_cover_is_said(tmp_path):
    """The paper's device B has its own operators only."""
    cells = {"cluster.device": "mofa-b", "cluster.framework": "", "step_seconds": "", "peak_memory_gib": "30"}

    (row,) = results_of(tmp_path, cells)

    assert isinstance(row, RejectedRow)
    assert not row.is_refused
    assert "do not cover" in row.reason


def test_what_has_no_formula_is_named_beside_the_prediction(tmp_path):
    """As the row says it, and what follows from its strategy."""
    (row,) = predicted(
        tmp_path,
        {
            "not_modelled": "overlap of everything: as none; token drop: as balanced",
            "model": "qwen3-30b-a3b",
            "strategy.ep": "8",
        },
    )

    assert row.missing[:2] == ("overlap of everything: as none", "token drop: as balanced")
    assert "token dispatcher not stated: the framework's default" in row.missing


@in_one_case(
    ("entry", "problem"),
    [
        ({"num_heads": ...}, "model.num_heads: is required but missing"),
        ({"hidden_size": "wide"}, "model.hidden_size"),
        ({"num_layer": 3}, "model.num_layer"),
        ({"num_kv_heads": 7}, "kv_heads"),
    ],
)
def test_an_architecture_that_lacks_something_costs_its_rows_alone(tmp_path, entry, problem):
    """The others are predicted."""
    whole = {"hidden_size": 4096, "num_layers": 32, "vocab_size": 128256, "num_heads": 32, "ffn_hidden_size": 14336}
    models = {"broken": {name: value for name, value in {**whole, **entry}.items() if value is not ...}, "whole": whole}
    rows = rows_of(tmp_path, {"id": "a", "model": "broken"}, {"id": "b", "model": "whole"})

    broken, good = predictions(rows, known(**models))

    require_refused(broken, problem)
    assert isinstance(good, Prediction)


def test_a_model_of_unknown_sizes_says_why(tmp_path):
    """Nothing is wrong with its rows."""
    (row,) = predictions(rows_of(tmp_path, {"model": "secret"}), known(secret={"unknown": "nobody printed its sizes"}))

    assert isinstance(row, RejectedRow)
    assert (row.reason, row.is_refused) == ("nobody printed its sizes", False)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{base: h100-80gb-sxm, memory_bytes: -1}", "memory_bytes"),
        ("{base: h100-80gb-sxn}", "h100-80gb-sxm"),
        ("{name: bare}", "is required but missing"),
        ("[1, 2]", "ours.yaml: holds [1, 2]"),
    ],
)
def test_a_device_file_that_lacks_something_costs_its_rows_alone(tmp_path, text, problem):
    """Named by a path from the table's folder; the others are predicted."""
    (tmp_path / "ours.yaml").write_text(text)
    rows = rows_of(tmp_path, {"id": "a", "cluster.device": "./ours.yaml"}, {"id": "b"})

    broken, good = predictions(rows, replace(known(), folder=tmp_path))

    require_refused(broken, problem)
    assert isinstance(good, Prediction)


def test_a_model_may_be_a_config(tmp_path):
    """A path relative to the file of runs."""
    config = Path(__file__).parents[2] / "benchmarks" / "jobs" / "llama-3.1-405b" / "config.json"
    (tmp_path / "config.json").write_text(config.read_text())
    cells = dotted(
        {
            "model": "./config.json",
            "cluster__num_devices": "512",
            "training__global_batch_size": "256",
            "strategy__tp": "8",
            "strategy__pp": "8",
            "step_seconds": "25",
            "peak_memory_gib": "",
        }
    )

    (one,) = cases(rows_of(tmp_path, cells), references(None, folder=tmp_path))

    assert one.facts.model.num_layers == 126


def test_a_device_that_nobody_knows_is_taken_for_the_one_that_is_given(tmp_path):
    """Refused otherwise, with what may have been meant; devices of the catalog stay what they are."""
    rows = rows_of(
        tmp_path,
        {"id": "a", "cluster.device": "our-hopper"},
        {"id": "b", "cluster.device": "a100-80gb-sxm", "step_seconds": "8"},
    )

    refused, _ = cases(rows, known())
    taken, known_one = cases(rows, replace(known(), device="h100-80gb-sxm"))

    require_refused(refused, "'our-hopper' is not in the catalog")
    assert [one.facts.cluster.device.name for one in (taken, known_one)] == ["h100-80gb-sxm", "a100-80gb-sxm"]


# --- the road ----------------------------------------------------------------------------------------------


def test_a_row_is_what_a_user_would_write(tmp_path):
    """Its job file by hand, its strategy's defaults by the framework: the same facts and the same strategy."""
    one = a_case(tmp_path, cluster__scale_up_size="8", settings__gradient_dtype="bf16")
    by_hand = load(
        a_document(
            "llama3-8b",
            "64xh100-80gb-sxm",
            batch=128,
            sequence=8192,
            cluster={"scale_up_size": 8, "framework": "megatron-core-0.16"},
            training={"precision": "bf16"},
            settings={"gradient_dtype": "bf16"},
        )
    )

    assert one.facts == by_hand.facts
    assert job_of(one.run, project_references())["cluster"]["framework"] == "megatron-core-0.16"


def test_a_strategy_as_a_job_file_writes_it_is_read_as_it_was(tmp_path):
    """With stages of its own, which recompute and keep different things."""
    layout = "{layers: [16, 16], recompute: [full, none], full_layers: [16, 0]}"
    one = a_case(tmp_path, strategy__pp="2", strategy__layout=layout)

    written = yaml.safe_dump(strategy_entries(one.facts, one.strategy))
    again = load({**one.problem.document, "strategy": yaml.safe_load(written)})

    assert again.given.decisions == one.strategy.decisions()
    assert again.given.layout["layers"] == (16, 16)


def test_rows_of_one_job_share_it(tmp_path):
    """What differs in measurement and strategy alone is loaded once; another batch is another job."""
    rows = rows_of(
        tmp_path,
        {"id": "a"},
        {"id": "b", "strategy.tp": "4", "step_seconds": "3", "notes": "x", "source": "another"},
        {"id": "c", "training.global_batch_size": "64"},
    )

    a, b, c = cases(rows, known())

    assert a.problem is b.problem
    assert a.problem is not c.problem


def test_other_constants_move_predictions_and_nothing_else(tmp_path):
    """Matmuls at half of their rate: a longer step, the same memory; the catalog's are as they were afterwards."""
    from planner.measure.calibrate.constants import constants

    one, ours = a_case(tmp_path), known()
    (matmul,) = [c for c in constants() if c.calibration == "hopper" and c.fields[0] == "matmul_efficiency.bf16"]
    halved = replace_constants(ours, [matmul], [catalog.calibration("hopper").constants.matmul_efficiency["bf16"] / 2])

    before, slower, after = (predict(one, references) for references in (ours, halved, ours))

    assert slower.step_seconds > 1.5 * before.step_seconds
    assert slower.device_bytes == before.device_bytes
    assert after.step_seconds == before.step_seconds


@in_one_case("kind", ["allocated", "reserved", "nvidia-smi", "unspecified", ""])
def test_a_peak_is_as_its_measurement_sees_it(tmp_path, kind):
    """
    Allocated is less than reserved by what is fragmented, that less than all by what the driver takes.

    What nobody says how it was measured is taken for allocated.
    """
    (one,) = predicted(tmp_path, {"memory_kind": kind})
    whole = one.device_bytes / 2**30
    device = one.facts.cluster.device
    reserved = whole - device.runtime_bytes / 2**30
    allocated = reserved / (1 + device.behaviour.memory.fragmentation)
    seen = {"allocated": allocated, "unspecified": allocated, "reserved": reserved}

    assert one.peak_memory_gib == pytest.approx(seen.get(kind, whole))


def test_a_run_that_did_not_fit_has_no_memory_error(tmp_path):
    """What it reached is not its peak."""
    (one,) = predicted(tmp_path, {"kind": "oom", "step_seconds": "", "strategy.mbs": "2", "strategy.tp": "1"})

    assert (one.time_error, one.memory_error) == (None, None)
    assert not one.fits


def test_the_projects_folder_holds_what_its_rows_name():
    """Paths of devices are relative to the table."""
    assert (FOLDER / "devices" / "a100-80gb-sxm-perlmutter.yaml").exists()
