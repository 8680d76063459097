"""Measured runs beside predictions: rows read and refused, layouts completed, figures by hand."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.accuracy.__main__ import FOLDER, main
from benchmarks.accuracy.metrics import errors, ranking_summary, rankings, regret, spearman
from benchmarks.accuracy.report import ROW_COLUMNS, as_json, family, lines, report
from costmodel import catalog
from costmodel.spec import Attention, LinearAttention, Mamba
from costmodel.strategy import Recompute, Schedule, Sharding, Vocabulary
from planner.runs.facts import facts_of, references
from planner.runs.layouts import strategy_of
from planner.runs.predictions import Prediction, case, left_unsaid, predictions
from planner.runs.software import SOFTWARE, software_of
from planner.runs.table import COLUMNS, NotRun, Run, read

GOOD: dict[str, str] = {
    **dict.fromkeys(COLUMNS, ""),
    "id": "good",
    "quality": "ok",
    "source": "a paper",
    "framework": "Megatron-Core",
    "kind": "pretrain",
    "usable": "1",
    "gpu": "h100-80g-sxm",
    "n_gpus": "64.0",
    "gpus_per_node": "8.0",
    "nvlink_domain": "8.0",
    "model": "llama3-8b",
    "seq_len": "8192",
    "gbs": "128",
    "mbs": "1",
    "tp": "2",
    "pp": "1",
    "dtype": "bf16",
    "step_time_s": "2.1",
    "peak_memory_gib": "60",
    "memory_kind": "allocated",
}
"""A row that is in order: 128 x 8192 tokens of an 8 B model on 64 H100 need about 1.9 s at 40 % of the peak."""


DEEPSEEK_V3: dict[str, str] = {
    "model": "deepseek-v3",
    "gpu": "gb200",
    "nvlink_domain": "72",
    "tp": "1",
    "pp": "8",
    "ep": "8",
    "step_time_s": "10",
    "peak_memory_gib": "150",
}
"""A pipeline of 61 layers on eight ranks."""


def a_file(folder: Path, *rows: dict[str, str], columns: tuple[str, ...] = COLUMNS) -> Path:
    """A CSV of rows that differ from the good one in what a test is about."""
    path = folder / "runs.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows({**GOOD, **row} for row in rows)
    return path


def a_run(folder: Path, **cells: str) -> Run:
    """The good row with other cells, read."""
    run = next(read(a_file(folder, cells)))
    assert isinstance(run, Run)
    return run


def known() -> Any:
    """The project's own models and systems."""
    return references(FOLDER / "models.yaml", FOLDER / "systems.yaml")


def results_of(folder: Path, *rows: dict[str, str]) -> list[Prediction | NotRun]:
    """Rows predicted."""
    return list(predictions(read(a_file(folder, *rows)), known()))


# --- rows --------------------------------------------------------------------------------------------------


REFUSED = {
    "time: zero": ({"step_time_s": "0"}, "step_time_s"),
    "time: negative": ({"step_time_s": "-2.1"}, "step_time_s"),
    "time: not a number": ({"step_time_s": "nan"}, "step_time_s"),
    "time: text": ({"step_time_s": "2.1 s"}, "step_time_s"),
    "time: in milliseconds": ({"step_time_s": "2100"}, "in seconds"),
    "time: in kiloseconds": ({"step_time_s": "0.0021"}, "in seconds"),
    "memory: in MiB": ({"peak_memory_gib": "61440"}, "in GiB"),
    "memory: in TiB": ({"peak_memory_gib": "0.0586"}, "in GiB"),
    "throughput: contradicts the time": ({"tokens_per_s_per_gpu": "7801000"}, "tokens_per_s_per_gpu"),
    "device: unknown": ({"gpu": "h1000-80g-sxm"}, "h100-80g-sxm"),
    "model: unknown": ({"model": "llama3-8bb"}, "llama3-8b"),
    "dtype: unknown": ({"dtype": "bf61"}, "bf16"),
    "dtype: not on this device": ({"dtype": "nvfp4"}, "nvfp4"),
    "kind: unknown": ({"kind": "pretraining"}, "pretrain"),
    "optimizer: unknown": ({"optimizer": "zero4"}, "zero3"),
    "layout: does not divide the devices": ({"tp": "3"}, "64 is not a multiple of tp x cp x pp = 3"),
    "layout: another dp": ({"dp": "64"}, "dp"),
    "layout: batch does not divide": ({"mbs": "3"}, "divides evenly"),
    "layout: more stages than layers": ({"pp": "8", "vp": "8"}, "virtual"),
    "layout: experts of a dense model": ({"ep": "8"}, "experts"),
    "count: in parts": ({"tp": "1.5"}, "whole number"),
    "measured: nothing": ({"step_time_s": "", "peak_memory_gib": ""}, "nothing was measured"),
    "proxy: of unknown depth": ({"kind": "proxy"}, "n_layers"),
    "usable: neither 0 nor 1": ({"usable": "yes"}, "expected 0 or 1"),
}


@pytest.mark.parametrize(("cells", "sentence"), REFUSED.values(), ids=REFUSED)
def test_a_wrong_row_is_refused_with_its_reason_and_the_rest_goes_on(tmp_path, cells, sentence):
    """One bad row between two good ones costs nothing but itself."""
    rows = ({"id": "first"}, {"id": "bad", **cells}, {"id": "last"})

    first, bad, last = results_of(tmp_path, *rows)

    assert isinstance(first, Prediction)
    assert isinstance(last, Prediction)
    assert isinstance(bad, NotRun)
    assert bad.is_refused
    assert sentence in bad.reason


SKIPPED = {
    "not usable": ({"usable": "0"}, "usable = 0"),
    "excluded": ({"quality": "excluded: slower than its repeats"}, "excluded"),
    "no layout": ({"tp": "", "pp": ""}, "no layout: the row does not say tp, pp"),
    "unknown architecture": ({"model": "deepseek-v4-flash"}, "unknown architecture"),
    "one layer": ({"kind": "component"}, "a single layer"),
    "adapters": ({"kind": "finetune", "notes": "LoRA rank 16"}, "adapters"),
}


@pytest.mark.parametrize(("cells", "reason"), SKIPPED.values(), ids=SKIPPED)
def test_a_row_that_cannot_be_predicted_is_not_refused(tmp_path, cells, reason):
    """Nothing is wrong with the row; the reason stands where the prediction would."""
    (row,) = results_of(tmp_path, cells)

    assert isinstance(row, NotRun)
    assert not row.is_refused
    assert reason in row.reason


def test_a_missing_column_refuses_every_row(tmp_path):
    """The reason names the column."""
    columns = tuple(column for column in COLUMNS if column != "gbs")

    rows = list(read(a_file(tmp_path, {}, {"id": "other"}, columns=columns)))

    assert [row.is_refused for row in rows if isinstance(row, NotRun)] == [True, True]
    assert all("gbs" in row.reason for row in rows if isinstance(row, NotRun))


def test_a_short_line_and_an_id_used_twice_are_refused(tmp_path):
    """Cells that slipped to the left are not guessed at."""
    path = a_file(tmp_path, {}, {})
    path.write_text(path.read_text() + "short,ok\n")

    first, second, short = read(path)

    assert isinstance(first, Run)
    assert isinstance(second, NotRun)
    assert isinstance(short, NotRun)
    assert "earlier row" in second.reason
    assert "fewer cells" in short.reason


@pytest.mark.parametrize("cell", ["1", "1.0", "True", "true", "TRUE", " 1 "])
def test_yes_as_programs_write_it(tmp_path, cell):
    """Pandas and spreadsheets spell ``usable`` and ``sp`` in their own ways."""
    run = a_run(tmp_path, usable=cell, sp=cell)

    assert run.sequence_parallel is True


@pytest.mark.parametrize("cell", ["0", "0.0", "False", "false"])
def test_no_as_programs_write_it(tmp_path, cell):
    """Such a row is skipped, not refused; its layout has no sequence parallelism."""
    (skipped,) = read(a_file(tmp_path, {"usable": cell}))

    assert isinstance(skipped, NotRun)
    assert not skipped.is_refused
    assert a_run(tmp_path, sp=cell).sequence_parallel is False


def test_a_byte_that_is_not_utf_8_costs_its_row_alone(tmp_path, capsys):
    """Latin-1 in the notes of one row and in the id of another; what is printed of them is text."""
    path = a_file(tmp_path, {"id": "first"}, {"id": "notes", "notes": "M?nchen"}, {"id": "n?me"}, {"id": "last"})
    path.write_bytes(path.read_bytes().replace(b"?", b"\xfc"))

    code = main(["--runs", str(path), "--rows", str(tmp_path / "out.csv")])

    rows = list(read(path))
    out = capsys.readouterr().out
    assert code == 1
    assert [isinstance(row, Run) for row in rows] == [True, False, False, True]
    assert "notes: notes: is not UTF-8: it has the byte 0xfc." in out
    assert "n\ufffdme: id: is not UTF-8" in out


def test_a_cell_that_is_too_long_costs_its_row_alone(tmp_path):
    """131,073 characters are one more than Python's csv module takes; the row is known by its line."""
    path = a_file(tmp_path, {"id": "first"}, {"id": "long", "notes": "x" * 131_073}, {"id": "last"})

    first, long, last = read(path)

    assert isinstance(first, Run)
    assert isinstance(last, Run)
    assert isinstance(long, NotRun)
    assert (long.id, long.is_refused) == ("line 3", True)
    assert "field limit (131072)" in long.reason


def test_a_long_cell_of_several_lines_is_refused_line_by_line(tmp_path):
    """Where such a cell ends is not known: what follows of it is no row either, and has no text for a name."""
    path = a_file(
        tmp_path, {"id": "first"}, {"id": "long", "notes": ("x" * 100_000 + "\n") * 3 + "end"}, {"id": "last"}
    )

    first, *others, last = read(path)

    assert isinstance(first, Run)
    assert isinstance(last, Run)
    assert [one.id for one in others][:2] == ["line 4", "line 5"]
    assert max(len(one.id) for one in others) < 10
    assert all(isinstance(one, NotRun) and one.is_refused for one in others)


def test_a_header_that_is_not_utf_8_is_no_table(tmp_path, capsys):
    """UTF-16, as spreadsheets write it: there are no columns to go by."""
    path = a_file(tmp_path, {})
    path.write_bytes(path.read_text().encode("utf-16"))

    assert main(["--runs", str(path)]) == 2
    assert "its first line is not UTF-8" in capsys.readouterr().err


def test_the_id_of_a_refused_row_is_free(tmp_path):
    """A correction below a wrong row is predicted; blanks around an id do not make it another."""
    rows = ({"id": "a", "step_time_s": "-1"}, {"id": "a"}, {"id": " a "})

    wrong, corrected, again = read(a_file(tmp_path, *rows))

    assert isinstance(wrong, NotRun)
    assert isinstance(corrected, Run)
    assert corrected.id == "a"
    assert isinstance(again, NotRun)
    assert again.reason == "id: 'a' is the id of an earlier row too."


# --- layouts -----------------------------------------------------------------------------------------------


def strategy(folder: Path, **cells: str) -> Any:
    """The strategy of the good row with other cells."""
    run = a_run(folder, **cells)
    return strategy_of(run, facts_of(run, known()))


def test_empty_cells_mean_the_defaults_of_the_framework(tmp_path):
    """Megatron-Core's recipes overlap and shard where the row is silent; software of 2022 does not."""
    new = strategy(tmp_path)
    old = strategy(tmp_path, framework="Megatron-DeepSpeed")

    assert (new.dp, new.sequence_parallel, new.sharding, new.tp_overlap) == (32, True, Sharding.OPTIMIZER, True)
    assert (old.dp, old.sequence_parallel, old.sharding, old.dp_overlap) == (32, False, Sharding.NONE, False)


def test_nvfp4_recipes_do_not_overlap_tensor_parallelism(tmp_path):
    """Megatron-Bridge's Llama recipes switch user buffers off; a row that states its overlaps has them."""
    cells = {"gpu": "gb200", "dtype": "nvfp4"}
    silent, stated = strategy(tmp_path, **cells), strategy(tmp_path, **cells, overlaps="tp")

    assert (silent.tp_overlap, silent.dp_overlap, stated.tp_overlap) == (False, True, True)


def test_stated_cells_win_over_the_defaults(tmp_path):
    """``none`` is a statement, nothing is not."""
    stated = strategy(tmp_path, sp="0", optimizer="zero3", overlaps="none", recompute="full")

    assert [stated.sequence_parallel, stated.tp_overlap, stated.dp_overlap] == [False, False, False]
    assert (stated.sharding, stated.recompute) == (Sharding.WEIGHTS, Recompute.FULL)


def test_micro_batches_of_torchtitans_pipelines(tmp_path):
    """Its mbs column is the local batch, which a pipeline cuts into as many micro-batches as ranks: 16 / 8."""
    pipeline = strategy(tmp_path, framework="torchtitan (FSDP2)", tp="1", pp="8", mbs="16", gbs="128")

    assert pipeline.mbs == 2


def test_chunks_of_zero_bubbles_interleaved_rows(tmp_path):
    """One layer per chunk, embedding and head counted: (30 + 2) / 8."""
    cells = {"model": "zb-6.2b", "gpu": "a100-80g-sxm", "n_gpus": "8", "tp": "1", "pp": "8"}

    interleaved = strategy(tmp_path, **cells, vp="max (1 layer per chunk)", step_time_s="60")

    assert interleaved.vpp == 4


def test_schedules_and_heads_of_the_notes(tmp_path):
    """V-Half has two chunks; ZB-2p and slices of the vocabulary are their own; what is unknown is named."""
    pipeline = {"pp": "8", "tp": "1", "framework": "Megatron-LM fork (sail-sg)"}
    notes = ("schedule V-Half, method vocab1", "schedule ZB-2p", "schedule 1F1B, method redis", "schedule XYZ")
    rows = [{**pipeline, "id": one, "notes": one} for one in notes]

    v_half, zb_2p, redis, unknown = results_of(tmp_path, *rows)

    assert (v_half.strategy.schedule, v_half.strategy.vpp) == (Schedule.V_HALF, 2)
    assert v_half.strategy.vocabulary == Vocabulary.VOCAB_1
    assert zb_2p.strategy.schedule == Schedule.ZB_2P
    assert redis.strategy.vocabulary == Vocabulary.REDISTRIBUTED
    assert "schedule XYZ: as 1F1B" in unknown.missing
    assert not {one for one in v_half.missing if "schedule" in one or "vocabulary" in one}


def test_v_half_is_of_a_code_without_constants(tmp_path):
    """Its rows have the framework's name, but another stack; the other schedules keep theirs."""
    fork = "Megatron-LM fork (sail-sg)"

    v_half, plain, zb_1p = (
        software_of(a_run(tmp_path, framework=fork, date=date, notes=f"x; schedule {one}, method vocab1"))
        for one, date in (("V-Half", "2024-11"), ("1F1B", "2024-11"), ("ZB-1p", "2023-11"))
    )

    assert (v_half.stack, plain.stack) == ("v-half", "zero-bubble")
    assert not catalog.software(v_half.stack).factors
    assert catalog.software(v_half.stack).settings == catalog.software(plain.stack).settings
    assert v_half.retention == plain.retention
    assert zb_1p.stack == "megatron-lm-2023"


def test_chunks_of_a_printed_pipeline_layout(tmp_path):
    """16 stages on 8 ranks: four layers each, one on the last with multi-token prediction and head."""
    printed = strategy(tmp_path, **DEEPSEEK_V3, notes="pp_layout=Et*4|(t*4|)*14tmL")

    assert printed.vpp == 2
    assert printed.layout is not None
    assert printed.layout.layers == (*(4,) * 15, 1)


@pytest.mark.parametrize(
    ("cells", "problem"), [({"notes": "pp_layout=Et*4|(t*4|)*14mL"}, "60 layers"), ({"vp": "1"}, "16 virtual stages")]
)
def test_a_printed_pipeline_layout_of_another_pipeline_is_refused(tmp_path, cells, problem):
    """60 layers are not DeepSeek-V3's 61; neither are 16 stages those of 8 ranks with a chunk each."""
    (refused,) = results_of(tmp_path, {**DEEPSEEK_V3, "notes": "pp_layout=Et*4|(t*4|)*14tmL", **cells})

    assert refused.is_refused
    assert problem in refused.reason


@pytest.mark.parametrize(
    ("cells", "layers"),
    [
        ({"framework": "Megatron-Bridge (Megatron-Core)", "vp": "2"}, (*(4,) * 15, 1)),
        ({"framework": "NeMo 2.x (Megatron-Core)", "vp": "1"}, (*(8,) * 7, 5)),
        ({"framework": "torchtitan", "vp": "1"}, None),
    ],
)
def test_stages_that_recipes_fill(tmp_path, cells, layers):
    """Megatron-LM cannot deal 61 layers evenly; recipes fill one stage after the other."""
    found = strategy(tmp_path, **{**DEEPSEEK_V3, **cells}).layout
    assert (found and found.layers) == layers


def test_stages_that_megatron_deals_itself(tmp_path):
    """126 layers, embedding and head over 8 ranks with 8 chunks each: as the cost model has them."""
    cells = {"model": "llama3-405b", "tp": "8", "pp": "8", "vp": "8", "n_gpus": "512"}
    assert strategy(tmp_path, **cells, step_time_s="20").layout is None


def test_stages_of_gpt_neox(tmp_path):
    """GPT-NeoX-20B of arXiv 2509.22832 on four and on eight stages: 48 slots, one in front and three behind."""
    cells = {"framework": "GPT-NeoX / DeepSpeed (ZeRO-1)", "model": "gpt-neox-20b", "dtype": "fp16"}
    four, eight = (strategy(tmp_path, **cells, pp=pp).layout for pp in ("4", "8"))
    assert four is not None
    assert eight is not None
    assert four.layers == (11, 12, 12, 9)
    assert eight.layers == (5, *[6] * 6, 3)


def test_every_framework_of_the_data_has_its_defaults():
    """A row of an unknown framework would silently get another's."""
    usable = [row for row in read(FOLDER / "runs.csv") if isinstance(row, Run)]

    assert {run.framework for run in usable if software_of(run) not in SOFTWARE} == set()


# --- memory ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "most"),
    [
        ("SimuMax v1.2 (MooreThreads)", 0.01),
        ("PaddleNLP pretrain table", 0.02),
        ("BLOOM / BigScience tuning tables", 0.15),
    ],
)
def test_peaks_of_published_runs(source, most):
    """Allocated memory follows from what the software keeps; nvidia-smi's within the noise of an allocator."""
    rows = [row for row in read(FOLDER / "runs.csv") if isinstance(row, Run) and row.source == source]

    found = [one.memory_error for one in predictions(rows, known()) if isinstance(one, Prediction)]

    memory_errors = [abs(error) for error in found if error is not None]
    contradictory = source.startswith("BLOOM")  # 65 GB at mbs 2, 56 GB at mbs 4 of the same layout
    assert len(memory_errors) >= 2
    assert max(sorted(memory_errors)[: -1 if contradictory else None]) <= most


def test_pipelines_with_large_vocabularies():
    """Vocabulary Parallelism's baselines in 1F1B: FP16 with 16 bytes per parameter, FlashAttention, no offset."""
    rows = [row for row in read(FOLDER / "runs.csv") if isinstance(row, Run) and "1F1B, method baseline" in row.notes]

    found = [abs(one.memory_error or 0.0) for one in predictions(rows, known()) if isinstance(one, Prediction)]

    assert len(found) == 12
    assert max(found) <= 0.012


def test_modules_of_the_rows(tmp_path):
    """Megatron-LM's names; selective is the attention core's, torchtitan's is of every other matmul."""
    modules = strategy(tmp_path, recompute="modules:core_attn+mla_up_proj")
    selective = strategy(tmp_path, recompute="selective")
    torchtitan = strategy(tmp_path, recompute="selective", framework="torchtitan (FSDP2)")

    assert modules.recompute == Recompute.of("core_attention", "qkv")
    assert selective.recompute == Recompute.of("core_attention")
    assert torchtitan.recompute == Recompute.of("every_other_matmul")


def test_notes_and_cells_say_what_is_kept(tmp_path):
    """DeepSpeed's BF16 optimizer adds up beside 16-bit gradients; 20 of 80 layers are offloaded; FP8 weights alone."""
    notes = "BF16 optimizer with fp32 grad accumulation"
    deepspeed = facts_of(a_run(tmp_path, framework="Megatron-DeepSpeed", notes=notes), known())
    offloading = facts_of(a_run(tmp_path, model="llama3-70b", offload="activations:20layers"), known())
    narrow, wide = (facts_of(a_run(tmp_path, dtype=dtype), known()) for dtype in ("fp8_current", "bf16"))

    assert deepspeed.workload.precision.gradient_bytes == 6
    assert offloading.cluster.device.profile.retention.offloaded_fraction == 20 / 80
    assert (narrow.workload.precision.weight_bytes, narrow.workload.precision.copy_bytes) == (1, 1)
    assert [given.workload.precision.parameter_gather_bytes for given in (narrow, wide)] == [1, 2]


# --- facts -------------------------------------------------------------------------------------------------


def test_notes_change_the_architecture(tmp_path):
    """A proxy has fewer layers, dgxc's 405B has 16 key-value heads; vocabularies are padded to 128 tp."""
    notes = "PROXY: n_layers=7 (full model 126); num_query_groups=16"
    run = a_run(tmp_path, model="llama3-405b", kind="proxy", notes=notes, tp="8")

    model = facts_of(run, known()).model

    assert model.num_layers == 7
    assert isinstance(model.layers[0].attention, Attention)
    assert model.layers[0].attention.num_kv_heads == 16
    assert model.vocab_size == 129_024  # 126 * 1024 >= 128256


def test_hybrid_models_of_the_data(tmp_path):
    """Nemotron 3 Super: 40 Mamba layers, experts on a latent of 1,024, two layers of multi-token prediction."""
    model = facts_of(a_run(tmp_path, model="nemotron3-super-120b"), known()).model
    without = facts_of(
        a_run(tmp_path, model="nemotron3-super-120b", framework="NeMo AutoModel (PyTorch FSDP2)"), known()
    ).model

    assert sum(isinstance(layer.attention, Mamba) for layer in model.layers) == 40
    assert {layer.feed_forward.latent_size for layer in model.layers if layer.feed_forward} == {1024}
    assert (len(model.mtp_layers), len(without.mtp_layers)) == (2, 0)


def test_gated_delta_layers_come_from_the_catalog(tmp_path):
    """Qwen3-Next: three of four layers, whose sizes the file of models does not give; one MTP layer as it says."""
    model = facts_of(a_run(tmp_path, model="qwen3-next-80b-a3b", tp="2"), known()).model

    assert sum(isinstance(layer.attention, LinearAttention) for layer in model.layers) == 36
    assert (model.vocab_size, len(model.mtp_layers)) == (152_064, 1)  # 594 * 256 >= 151936


def test_what_the_file_of_models_does_not_say(tmp_path):
    """Qwen3 norms queries and keys; GPT-NeoX-20B rotates them and has a head of its own."""
    qwen = facts_of(a_run(tmp_path, model="qwen3-30b-a3b"), known()).model
    neox = facts_of(a_run(tmp_path, model="gpt-neox-20b"), known()).model

    assert qwen.layers[0].attention.qk_norm == "per_head"
    assert (neox.layers[0].attention.rotary, neox.learned_positions, neox.tied_embeddings) == (True, 0, False)


def test_the_network_is_the_rows(tmp_path):
    """Four GPUs per node and rack-wide NVLink as the row says; 4 x 100 Gbit/s per node are 6.25 GB/s per GPU of 8."""
    rack = facts_of(a_run(tmp_path, gpu="gb200", gpus_per_node="4", nvlink_domain="72"), known()).cluster
    slow = facts_of(a_run(tmp_path, gpu="a100-80g-sxm", notes="4x100Gb RoCE per node"), known()).cluster
    plain = facts_of(a_run(tmp_path, gpu="a100-80g-sxm"), known()).cluster

    assert (rack.device.devices_per_node, rack.scale_up_size) == (4, 72)
    assert slow.device.networks[1].bandwidth == pytest.approx(plain.device.networks[1].bandwidth * 6.25 / 25)


def test_the_software_decides_what_is_exchanged(tmp_path):
    """InternEvo shares states among 8 unless the row's name says otherwise, on its one cluster; DeepEP sends once."""
    within = facts_of(a_run(tmp_path, id="a-tp1-z8-n16", framework="InternEvo", gpu="a100-80g-sxm"), known()).cluster
    plain = facts_of(a_run(tmp_path, gpu="a100-80g-sxm"), known()).cluster
    all_of = facts_of(a_run(tmp_path, id="a-tp1-z-1-n16", framework="InternEvo", gpu="a100-80g-sxm"), known()).cluster
    once = facts_of(a_run(tmp_path, notes="dispatcher=hybridep"), known()).cluster

    assert within.device.profile.sharding_ranks == 8
    assert all_of.device.profile.sharding_ranks is None
    assert within.device.networks[1].bandwidth == pytest.approx(plain.device.networks[1].bandwidth * 6.25 / 25)
    assert once.device.profile.expert_dispatch == "tokens"


def test_a_site_is_a_system_of_its_own(tmp_path):
    """Perlmutter's nodes of four A100, by its own collectives: 1.2 GB/s per GPU, whatever others achieve of theirs."""
    four = {"gpu": "a100-80g-sxm", "gpus_per_node": "4", "nvlink_domain": "4"}
    plain = facts_of(a_run(tmp_path, gpu="a100-80g-sxm"), known()).cluster
    nodes = facts_of(a_run(tmp_path, id="gm25-perlmutter-GPT_20B", **four), known()).cluster

    assert nodes.device.devices_per_node == 4
    assert nodes.device.networks[1].bandwidth == pytest.approx(1.2e9)
    assert nodes.device.networks[0].is_mesh
    assert not plain.device.networks[0].is_mesh


def test_what_a_silent_row_must_have_recomputed(tmp_path):
    """Llama 3 70B does not fit into 64 H100 with FSDP alone: AutoModel recomputed its layers; no row says so."""
    layout = {"gpu": "h100-80g-sxm", "n_gpus": "64", "model": "llama3-70b", "seq_len": "8192", "gbs": "128", "mbs": "1"}
    row = layout | {"tp": "1", "cp": "2", "pp": "1", "optimizer": "zero3", "recompute": "", "step_time_s": "18.9"}
    silent = case(a_run(tmp_path, framework="NeMo AutoModel (PyTorch FSDP2)", **row), known())
    other = case(a_run(tmp_path, framework="torchtitan", **row), known())

    assert (silent.strategy.recompute, other.strategy.recompute) == (Recompute.FULL, Recompute.NONE)
    assert left_unsaid(silent) is not None
    assert left_unsaid(other) is not None


# --- figures -----------------------------------------------------------------------------------------------


def test_errors_by_hand():
    """Ten errors of 1 to 10 per cent, every second one negative: p90 lies a tenth of the way from 9 to 10."""
    one = errors([0.01, -0.02, 0.03, -0.04, 0.05, -0.06, 0.07, -0.08, 0.09, -0.10])

    assert one.rows == 10
    assert one.mean == pytest.approx(0.055)
    assert one.median == pytest.approx(0.055)
    assert one.p90 == pytest.approx(0.091)
    assert one.maximum == pytest.approx(0.10)
    assert one.bias == pytest.approx(-0.005)


def test_rank_correlation_by_hand():
    """1 - 6 sum d^2 / (n (n^2 - 1)) for one swapped pair of five: 1 - 12 / 120."""
    assert spearman([1, 2, 3, 4, 5], [10, 20, 40, 30, 50]) == pytest.approx(0.9)
    assert spearman([1, 2, 3, 4], [4, 3, 2, 1]) == pytest.approx(-1.0)
    assert spearman([1, 2, 3, 4], [5, 5, 5, 5]) == 0.0
    assert spearman([5, 5, 5, 5], [1, 2, 3, 4]) is None


def test_regret_by_hand():
    """Choosing the layout of 11 s where 10 s was possible costs a tenth; of ties, the worst counts."""
    assert regret([10.0, 11.0, 12.0], [3.0, 2.0, 4.0]) == pytest.approx(0.1)
    assert regret([10.0, 11.0, 12.0], [2.0, 3.0, 4.0]) == 0.0
    assert regret([10.0, 11.0, 12.0], [2.0, 3.0, 2.0]) == pytest.approx(0.2)


def test_a_prediction_that_is_no_number_is_the_last_choice():
    """It ranks as the slowest: 1 - 6 sum d^2 / (n (n^2 - 1)), where the fastest of four comes last."""
    assert regret([10.0, 11.0, 12.0], [math.nan, 3.0, math.inf]) == pytest.approx(0.1)
    assert regret([10.0, 11.0], [math.nan, math.nan]) == pytest.approx(0.1)
    assert spearman([1, 2, 3, 4], [10, 20, 30, math.nan]) == pytest.approx(1.0)
    assert spearman([1, 2, 3, 4], [math.nan, 10, 20, 30]) == pytest.approx(1 - 6 * (9 + 1 + 1 + 1) / (4 * 15))


@pytest.mark.parametrize("seconds", [math.nan, math.inf])
def test_figures_that_are_not_finite_are_neither_printed_nor_written(tmp_path, seconds):
    """Of four layouts one is predicted as no number: a dash, and null in strict JSON."""
    rows = [{"id": tp, "tp": tp, "step_time_s": f"2.{tp}"} for tp in ("1", "2", "4", "8")]
    first, *others = (one for one in results_of(tmp_path, *rows) if isinstance(one, Prediction))

    figures = report([replace(first, step_seconds=seconds), *others])

    text = "\n".join(lines(figures))
    written = json.loads(json.dumps(as_json(figures), allow_nan=False))
    assert "nan" not in text
    assert "inf" not in text
    assert written["macro"]["all"] is None
    assert written["ranking"]["regret_median"] is not None


def test_groups_share_everything_but_the_layout(tmp_path):
    """Two measurements of one layout count once; another batch is another group."""
    rows = (
        {"id": "a", "tp": "1"},
        {"id": "b", "tp": "2", "step_time_s": "2.2"},
        {"id": "c", "tp": "2", "step_time_s": "2.6"},
        {"id": "d", "tp": "4", "step_time_s": "3.0"},
        {"id": "e", "tp": "4", "gbs": "256", "step_time_s": "5.0"},
    )
    predicted = [one for one in results_of(tmp_path, *rows) if isinstance(one, Prediction)]

    (ranking,) = rankings(predicted)

    assert (ranking.layouts, ranking.spearman) == (3, None)
    assert ranking.pairs == 3  # 2.1, 2.4 (the median of 2.2 and 2.6) and 3.0 s


def test_no_groups_no_summary():
    """A file of single runs ranks nothing."""
    assert ranking_summary(()) == {}


def test_families():
    """What stands in front of the size."""
    assert [family(key) for key in ("bs-1b3", "llama3-70b", "nemotron4-15b")] == ["bs", "llama3", "nemotron4"]


# --- the command -------------------------------------------------------------------------------------------


def test_the_command_writes_every_row_and_says_that_rows_were_refused(tmp_path, capsys):
    """A good row, a skipped one, a refused one, one that did not fit: each has its line."""
    rows = (
        {},
        {"id": "skipped", "usable": "0"},
        {"id": "refused", "step_time_s": "-1"},
        {"id": "oom", "kind": "oom", "step_time_s": "", "mbs": "2", "tp": "1"},
    )
    options = ["--runs", str(a_file(tmp_path, *rows)), "--rows", str(tmp_path / "out.csv")]

    code = main([*options, "--json", str(tmp_path / "out.json")])

    written = list(csv.DictReader((tmp_path / "out.csv").open()))
    figures = json.loads((tmp_path / "out.json").read_text())
    assert code == 1
    assert tuple(written[0]) == ROW_COLUMNS
    assert [row["id"] for row in written] == ["good", "skipped", "refused", "oom"]
    assert [bool(row["predicted_step_time_s"]) for row in written] == [True, False, False, True]
    assert [bool(row["skipped_because"]) for row in written] == [False, True, True, False]
    assert (figures["predicted"], figures["refused"], figures["calls"]["all"]["oom"]) == (2, 1, 1)
    assert "step_time_s: must be a number above 0, got '-1'." in capsys.readouterr().out


def test_the_command_succeeds_on_rows_in_order(tmp_path):
    """Nothing refused, nothing to complain about."""
    assert main(["--runs", str(a_file(tmp_path, {}))]) == 0


ODD_FILES: dict[str, tuple[dict[str, str], ...]] = {
    "no rows": (),
    "one row": ({},),
    "one row that was left out of a fit": ({"id": "mb-26.04.01-0073"},),
    "memory alone": ({"step_time_s": ""}, {"id": "other", "step_time_s": ""}),
    "out of memory alone": ({"kind": "oom", "step_time_s": "", "peak_memory_gib": ""},),
    "nothing usable": ({"usable": "0"},),
}


@pytest.mark.parametrize("rows", ODD_FILES.values(), ids=ODD_FILES)
def test_odd_files_have_no_figures_that_are_no_numbers(tmp_path, capsys, rows):
    """What there is nothing to average of is a dash or left away."""
    code = main(["--runs", str(a_file(tmp_path, *rows)), "--json", str(tmp_path / "out.json")])

    text = (tmp_path / "out.json").read_text()
    assert code == 0
    assert not {"NaN", "Infinity"} & set(text.replace(",", " ").split())
    assert "nan" not in capsys.readouterr().out


def test_refused_rows_that_share_an_id_are_all_listed(tmp_path, capsys):
    """Two reasons, two lines, two entries."""
    runs = a_file(tmp_path, {"id": "a", "tp": "3"}, {"id": "a", "mbs": "1.5"})

    code = main(["--runs", str(runs), "--json", str(tmp_path / "out.json")])

    out = capsys.readouterr().out
    listed = json.loads((tmp_path / "out.json").read_text())["refusals"]
    assert code == 1
    assert "a: n_gpus: 64 is not a multiple" in out
    assert "a: mbs: must be a whole number" in out
    assert [one["id"] for one in listed] == ["a", "a"]


def test_the_command_says_what_it_cannot_read(tmp_path, capsys):
    """A file that is not there, and one without any line."""
    (tmp_path / "empty.csv").write_text("")

    codes = [main(["--runs", str(tmp_path / name)]) for name in ("none.csv", "empty.csv")]

    assert codes == [2, 2]
    assert capsys.readouterr().err.count(str(tmp_path)) == 2


def test_every_row_of_the_projects_own_copy_is_predicted_or_has_a_reason():
    """1,352 rows; none is refused, no prediction is absurd."""
    results = list(predictions(read(FOLDER / "runs.csv"), known()))

    predicted = [one for one in results if isinstance(one, Prediction)]
    others = [one for one in results if isinstance(one, NotRun)]
    assert len(results) == 1352
    assert [one.id for one in others if one.is_refused or not one.reason] == []
    assert len(predicted) >= 1116
    assert all(one.step_seconds > 0 and one.peak_memory_gib > 0 for one in predicted)
