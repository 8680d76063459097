"""Collected rows become columns of a job file: tiny rows, one fact each."""

from __future__ import annotations

import csv

import pytest
import yaml

import planner
from benchmarks.measured_runs import convert, is_collected
from benchmarks.measured_runs.__main__ import FOLDER, convert_files, main
from benchmarks.measured_runs.columns import COLLECTED, EXPLICIT, JOB, models_file, table
from planner.jobs.strategy_file import read_given

ROW = {
    **dict.fromkeys(COLLECTED, ""),
    "id": "a-row",
    "quality": "ok",
    "source": "a table",
    "date": "2026-04",
    "framework": "Megatron-Bridge (Megatron-Core)",
    "kind": "pretrain",
    "usable": "1",
    "gpu": "h100-80g-sxm",
    "n_gpus": "64.0",
    "gpus_per_node": "8.0",
    "nvlink_domain": "8.0",
    "model": "llama3-8b",
    "seq_len": "8192.0",
    "gbs": "128.0",
    "mbs": "1.0",
    "tp": "2.0",
    "cp": "1.0",
    "ep": "1.0",
    "pp": "4.0",
    "vp": "2",
    "dp": "8.0",
    "dtype": "bf16",
    "step_time_s": "5.5",
}
"""A row of the 34 columns that every collected table has."""

MOE = {"model": "qwen3-30b-a3b", "ep": "8.0", "tp": "1.0", "pp": "1.0", "dp": "64.0", "vp": ""}


def explicit(models=None, **cells: str) -> dict[str, str]:
    """One row converted."""
    (row,) = convert([{**ROW, **cells}], models or {}).rows
    return row


def said(prefix: str, row: dict[str, str]) -> dict[str, str]:
    """What a row says under a section."""
    return {key.removeprefix(prefix): cell for key, cell in row.items() if key.startswith(prefix) and cell}


@pytest.fixture(scope="module")
def ours():
    """The project's own table and models, converted now."""
    return convert_files(FOLDER / "collected" / "runs.csv", FOLDER / "collected" / "models.yaml")


# --- the files --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_generated_files_are_current(ours):
    """``python -m benchmarks.measured_runs`` writes them."""
    assert (FOLDER / "runs.csv").read_text(encoding="utf-8") == table(ours.rows)
    assert (FOLDER / "models.yaml").read_text(encoding="utf-8") == models_file(ours.models, ours.comments)


def test_nothing_of_ours_is_refused(ours):
    """Every cell of the public table is understood; seven runs of InternEvo are printed twice."""
    with (FOLDER / "collected" / "runs.csv").open(encoding="utf-8", newline="") as file:
        collected = list(csv.DictReader(file))

    assert not [row["id"] for row in ours.rows if row["refused"]]
    assert [row["id"] for row in ours.rows] == [row["id"] for row in collected]
    assert sum(row["usable"] == "1" for row in ours.rows) == sum(row["usable"] == "1" for row in collected) - 7


@pytest.mark.slow
def test_every_strategy_reads_as_one_of_a_job(ours):
    """All decisions that job files have today are in their words."""
    later = ("token_dispatcher", "cuda_graphs")
    for row in ours.rows:
        strategy = {name: yaml.safe_load(cell) for name, cell in said("strategy.", row).items() if name not in later}
        given = read_given(strategy)
        assert len(given.decisions) + (given.layout is not None) == len(strategy)


def test_every_model_is_one(ours):
    """Usable rows name a model of the file, and none that is unknown."""
    usable = {row["model"] for row in ours.rows if row["usable"] == "1"}

    assert usable <= set(ours.models)
    assert not [name for name in usable if "unknown" in ours.models[name]]


def test_the_device_of_a_site_loads():
    """Four A100 per node behind a network of 1.2 GB/s (their own collectives)."""
    job = {
        "model": "llama2-7b",
        "cluster": {"device": "devices/a100-80gb-sxm-perlmutter.yaml", "num_devices": 128},
        "training": {"global_batch_size": 128, "sequence_length": 2048, "tokens": 1e12},
    }

    device = planner.load(job, folder=FOLDER).facts.cluster.device

    assert device.devices_per_node == 4
    assert [(one.name, one.num_peers, one.is_mesh) for one in device.networks[:1]] == [("nvlink", 4, True)]
    assert device.networks[-1].bandwidth == 1.2e9
    assert device.networks[-1].is_half_duplex


def test_both_forms_are_told_apart():
    """The collected one has no dotted columns."""
    assert is_collected(ROW)
    assert not is_collected(EXPLICIT)


def test_the_command_converts_another_table(tmp_path, capsys):
    """With the devices of sites beside it; refused rows are told and make the exit code 1."""
    folder = tmp_path / "theirs"
    folder.mkdir()
    with (folder / "in.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ROW)
        writer.writeheader()
        writer.writerows([ROW, {**ROW, "id": "b", "dtype": "int7"}])
    (folder / "in.yaml").write_text("{}")
    arguments = ["--runs", str(folder / "in.csv"), "--models", str(folder / "in.yaml"), "-o", str(folder / "out")]

    assert main(arguments) == 1
    assert "b: dtype: 'int7' is no known recipe." in capsys.readouterr().out
    assert sorted(path.name for path in (folder / "out").iterdir()) == ["devices", "models.yaml", "runs.csv"]
    assert main(["--runs", str(folder / "none.csv"), *arguments[2:]]) == 2


# --- what a row says ---------------------------------------------------------------------------------------------


def test_a_plain_row_is_a_job_and_a_strategy():
    """Counts of pandas are whole numbers; what the row does not say is empty."""
    row = explicit()

    assert said("cluster.", row) == {
        "device": "h100-80gb-sxm",
        "num_devices": "64",
        "devices_per_node": "8",
        "scale_up_size": "8",
        "framework": "megatron-bridge-26.04",
    }
    assert said("training.", row) == {"global_batch_size": "128", "sequence_length": "8192", "precision": "bf16"}
    degrees = {"tp": "2", "cp": "1", "pp": "4", "dp": "8", "ep": "1", "vpp": "2", "mbs": "1"}
    assert said("strategy.", row) == degrees
    assert said("settings.", row) == {}
    assert (row["model"], row["step_seconds"], row["refused"]) == ("llama3-8b", "5.5", "")


def test_the_older_form_lacks_columns_only():
    """What they would say stays empty; a dispatcher that its notes name is not lost."""
    assert "token_dispatcher" not in ROW
    assert explicit(**MOE, notes="GA=8; dispatcher=hybridep")["strategy.token_dispatcher"] == "hybridep"
    assert explicit(**MOE)["strategy.token_dispatcher"] == ""


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ({"overlaps": "none"}, {"tp": "false", "ep": "false", "pp": "false", "dp": "false"}),
        ({"overlaps": "TP, dp_grad;pp"}, {"tp": "true", "ep": "false", "pp": "true", "dp": "true"}),
        ({"overlaps": "tp;pp;ep", "vp": "1"}, {"tp": "true", "ep": "false", "pp": "false", "dp": "false"}),
        ({"overlaps": "tp", "sp": "0.0"}, {"tp": "false", "ep": "false", "pp": "false", "dp": "false"}),
        ({"overlaps": ""}, {}),
        ({"overlaps": "", "notes": "schedule V-Half, method vocab1"}, {"pp": "true"}),
    ],
)
def test_overlaps_are_said_of_what_there_is(cells, expected):
    """No tensor-parallel overlap without split norms, none of a pipeline with one chunk; silence says nothing."""
    row = explicit(**cells)

    assert {name: row[f"strategy.{name}_overlap"] for name in ("tp", "ep", "pp", "dp")} == {
        **dict.fromkeys(("tp", "ep", "pp", "dp"), ""),
        **expected,
    }
    assert row["strategy.cp_overlap"] == ""


@pytest.mark.parametrize(
    ("cells", "column", "expected"),
    [
        ({"optimizer": "zero2"}, "sharding", "optimizer"),
        ({"optimizer": "zero2", "pp": "1", "dp": "32", "vp": ""}, "sharding", "gradients"),
        ({"optimizer": "zero3", "n_gpus": "8", "dp": "1"}, "sharding", "none"),
        ({"recompute": "modules:moe_act+layernorm"}, "recompute", "norms+expert_activation"),
        ({"recompute": "selective"}, "recompute", "core_attention"),
        ({"recompute": "selective", "framework": "torchtitan (FSDP2)"}, "recompute", "every_other_matmul"),
        ({"recompute": "full", "id": "vtrain-single-1"}, "recompute", ""),
        ({"framework": "torchtitan (FSDP2)", "mbs": "8"}, "mbs", "2"),
        ({"vp": "max (1 layer per chunk)"}, "vpp", "9"),
        ({"vp": "", "notes": "schedule V-Half, method baseline"}, "vpp", "2"),
        ({"notes": "schedule ZB-2p, peak"}, "schedule", "zb_2p"),
        ({"notes": "schedule 1F1B, method redis (baseline = x)"}, "vocabulary", "redistributed"),
        ({"notes": "GB as printed, method not stated"}, "vocabulary", ""),
        ({"sp": "1.0"}, "sequence_parallel", "true"),
        ({"sp": "1.0", "tp": "1", "dp": "16"}, "sequence_parallel", "false"),
        ({**MOE, "tp": "2", "dp": "32", "sp": "0"}, "sequence_parallel", "true"),
        ({"offload": "activations:20layers"}, "activation_offload", "true"),
        ({"offload": "none"}, "activation_offload", "false"),
        ({"offload": "optimizer:cpu"}, "optimizer_offload", "true"),
        ({"offload": "optimizer:25%"}, "optimizer_offload", "true"),
        ({"offload": "optimizer:100%+overlap"}, "optimizer_offload", "true"),
        ({"cuda_graph": "none stated"}, "cuda_graphs", ""),
        ({"cuda_graph": "none"}, "cuda_graphs", "none"),
        ({"cuda_graph": "local:full_iteration"}, "cuda_graphs", "full_iteration"),
        ({"cuda_graph": 'local (a graph per layer; was "yes")'}, "cuda_graphs", "attn+mlp"),
        ({**MOE, "cuda_graph": 'local (a graph per layer; was "yes")'}, "cuda_graphs", "attn+moe"),
        ({"cuda_graph": "transformer_engine:mamba+attn+moe_router"}, "cuda_graphs", "attn+moe_router+mamba"),
        ({"pp_layout": "Et*2|t*10|t*10|t*10L", "vp": "1"}, "layout", "{layers: [2, 10, 10, 10]}"),
        ({"notes": "pp_layout=E(t*4|)*7t*4L; x"}, "layout", "{layers: [4, 4, 4, 4, 4, 4, 4, 4]}"),
        ({"recompute": "full:5", "vp": ""}, "layout", "{layers: [8, 8, 8, 8], full_layers: [5, 5, 5, 5]}"),
        ({"recompute": "full:5", "vp": ""}, "recompute", "none"),
        ({**MOE, "token_dispatcher": "alltoall", "notes": "dispatcher=deepep"}, "token_dispatcher", "alltoall"),
    ],
)
def test_features_are_said_in_the_words_of_job_files(cells, column, expected):
    """Columns before notes, conditions as the decisions themselves have them."""
    row = explicit(**cells)

    assert (row[f"strategy.{column}"], row["refused"]) == (expected, "")


@pytest.mark.parametrize(
    ("cells", "column", "expected"),
    [
        ({"grad_reduce_in_fp32": "False", "notes": "fp32 grad accumulation"}, "gradient_dtype", "bf16"),
        ({"notes": "optimizer=adam, grad_sync_dtype=bf16"}, "gradient_dtype", "bf16"),
        ({"notes": "BF16 optimizer with fp32 grad accumulation"}, "gradient_dtype", "bf16+fp32"),
        ({"notes": "grad_sync_dtype=None"}, "gradient_dtype", ""),
        ({"exp_avg_dtype": "bfloat16"}, "moments_dtype", "bf16"),
        ({"id": "internevo-tgs-tp1-z8-n16"}, "optimizer_group", "8"),
        ({"id": "internevo-tgs-tp1-z-1-n16"}, "optimizer_group", "all"),
        ({"mtp_layers": "0.0"}, "mtp_layers", "0"),
        ({"mtp_layers": "1.0", "notes": "w/o MTP"}, "mtp_layers", "1"),
        ({"notes": "w/o MTP"}, "mtp_layers", "0"),
        ({"offload": "activations:20layers"}, "offloaded_layers", "20"),
        ({"offload": "optimizer:25%"}, "offloaded_states", "0.25"),
        ({"offload": "optimizer:25%"}, "offload_overlap", "false"),
        ({"offload": "optimizer:25%"}, "offloaded_masters", ""),
        ({"offload": "optimizer:25%", "precision_aware_optimizer": "False"}, "offloaded_masters", "false"),
        ({"offload": "optimizer:100%+overlap"}, "offload_overlap", "true"),
        ({"framework": "torchtitan (FSDP2)", "notes": "bf16; seq 8192"}, "kernels", "eager"),
        ({"framework": "torchtitan (FSDP2)", "notes": "bf16+compile; seq 8192"}, "kernels", ""),
        ({"id": "vtrain-single-7"}, "composition", "parts"),
        ({"comm_sms": "32.0"}, "communication_sms", "32"),
        ({"delay_wgrad": "True"}, "delay_wgrad", "true"),
    ],
)
def test_settings_are_what_the_framework_was_told(cells, column, expected):
    """Only where the row says; a column before a note that says otherwise."""
    row = explicit(**cells)

    assert (row[f"settings.{column}"], row["refused"]) == (expected, "")


@pytest.mark.parametrize(
    ("notes", "gpus_per_node", "expected"),
    [
        ("4x100Gb RoCE per node", "8", "6.25e+09"),
        ("4x100Gb RoCE per node", "", "6.25e+09"),
        ("inter-node 800 Gb/s, intra 150 GB/s", "8", "1.25e+10"),
        ("HBM2e 96GB 2.4TB/s, 400Gb/s RDMA per GPU", "8", "5e+10"),
        ("nothing of it", "8", ""),
    ],
)
def test_networks_are_bytes_per_second_of_a_device(notes, gpus_per_node, expected):
    """Links of a node are shared by its devices: 4 x 100 Gbit/s for eight are 6.25 GB/s each."""
    row = explicit(notes=notes, gpus_per_node=gpus_per_node)

    assert (row["cluster.internode_bandwidth"], row["cluster.scale_up_bandwidth"]) == (expected, "")


def test_sites_are_of_their_source_alone():
    """Jean Zay's NVLinks, 4 of 12 x 25 GB/s, are of BigScience's rows; Perlmutter's device of those measured there."""
    bloom = explicit(source="BLOOM / BigScience tuning tables", gpu="a100-80g-sxm")
    there = {"source": "Zhang et al. 2025", "id": "gm25-perlmutter-1", "gpu": "a100-80g-sxm"}

    assert bloom["cluster.scale_up_bandwidth"] == "1e+11"
    assert explicit(**there)["cluster.device"] == "devices/a100-80gb-sxm-perlmutter.yaml"
    assert explicit(**{**there, "id": "gm25-vista-1"})["cluster.device"] == "a100-80gb-sxm"
    assert explicit(gpu="tpu-v5p")["cluster.device"] == "tpu-v5p"


@pytest.mark.parametrize(
    ("cells", "entry"),
    [
        ({"source_ref": "summary.md:1 (26.02.01 NeMo Container; Pre-Training)"}, "megatron-bridge-26.02.01"),
        ({"id": "mb-26.08-0001", "date": "2026-08"}, "megatron-bridge-26.08"),
        ({"date": "2025-09"}, "megatron-bridge-25.09"),
        ({"framework": "NeMo (Megatron-Core)", "date": "2025-04"}, "nemo-25.07"),
        ({"framework": "NeMo 1.x (Megatron-Core)", "notes": "container NeMo 24.07; x"}, "nemo-24.07"),
        (
            {
                "framework": "NeMo (Megatron-Core)",
                "source_ref": "github NVIDIA/dgxc-benchmarking@v24.11.1:l.md:7 (Llama 3.1 8b 24.09 BF16 (TP=1))",
            },
            "nemo-24.09",
        ),
        (
            {
                "framework": "NeMo (Megatron-Core)",
                "source_ref": "x/dgxc-benchmarking@v25.05.01:grok1/README.md:1 (Grok)",
            },
            "nemo-25.05",
        ),
        ({"framework": "NeMo AutoModel (PyTorch FSDP2)"}, "automodel-26.02"),
        ({"framework": "Megatron-LM", "date": "2021-04"}, "megatron-lm-2021"),
        ({"framework": "megatron-lm main", "date": ""}, "megatron-lm-0.17"),
        ({"framework": "Megatron-LM 0.14 @23e00ed"}, "megatron-lm-0.14"),
        ({"framework": "Megatron-LM fork (sail-sg)", "date": "2023-11"}, "zero-bubble-2023"),
        ({"framework": "Megatron-LM fork (sail-sg)", "notes": "schedule V-Half"}, "v-half-2024"),
        ({"framework": "Megatron-LM fork (sail-sg)"}, "vocabulary-parallelism-2024"),
    ],
)
def test_a_framework_is_what_its_date_and_container_say(cells, entry):
    """The release that a row tells, else the one of its date; case says nothing."""
    assert explicit(**cells)["cluster.framework"] == entry


def test_a_framework_without_an_entry_is_named_in_the_notes():
    """Nothing is lost."""
    row = explicit(framework="MaxText (JAX)", notes="fast")

    assert (row["cluster.framework"], row["notes"]) == ("", "fast; framework: MaxText (JAX)")


def test_what_has_no_formula_is_named():
    """In the report's words; routing without drops is no token drop."""
    row = explicit(overlaps="everything", offload="activations:expert_fc1", notes="schedule ZB-9, token drop")

    assert row["not_modelled"].split("; ") == [
        "schedule ZB-9: as 1F1B",
        "offload of single modules: as none",
        "overlap of everything: as none",
        "token drop: as balanced and dropless",
    ]
    assert explicit(notes="router force-balanced, token-dropless")["not_modelled"] == ""


def test_a_run_that_is_printed_twice_counts_once():
    """The second copy says whose it is; without the first it stands."""
    first, second = {**ROW, "id": "internevo-tgs-tp1-z8-n64"}, {**ROW, "id": "internevo-flops-ckF-n64-mb2x4"}

    rows = convert([first, second], {}).rows
    (alone,) = convert([second], {}).rows

    assert [row["usable"] for row in rows] == ["1", "0"]
    assert rows[1]["quality"] == "excluded: the same run as internevo-tgs-tp1-z8-n64, printed twice"
    assert alone["usable"] == "1"


def test_adapters_are_a_kind_of_their_own():
    """The cost model trains every parameter."""
    assert explicit(kind="finetune", notes="LoRA fine-tuning, packed")["kind"] == "adapters"
    assert explicit(kind="finetune", notes="SFT fine-tuning")["kind"] == "finetune"


# --- what is wrong -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"dtype": "int7"}, "dtype: 'int7' is no known recipe."),
        ({"recompute": "some"}, "recompute: unknown entry 'some'."),
        ({"recompute": "modules:mlp+soul"}, "recompute: unknown module 'soul'."),
        ({"recompute": "full:5", "model": "elsewhere/config.json"}, "needs 'pp_layout'"),
        ({"optimizer": "zero9"}, "optimizer: unknown entry 'zero9'."),
        ({"cuda_graph": "often"}, "cuda_graph: unknown entry 'often'."),
        ({"tp": "3"}, "n_gpus: 64 is not a multiple of tp x cp x pp = 12."),
        ({"dp": "4"}, "dp: is 4, but n_gpus / (tp x cp x pp) gives 8."),
        ({"tp": "two"}, "tp: expected a number, got 'two'."),
        ({"gbs": "0"}, "gbs: must be a number above 0, got '0'."),
        ({"mbs": "1.5"}, "mbs: must be a whole number, got '1.5'."),
        ({"n_gpus": "1e12"}, "n_gpus: must be at most 1,000,000,000"),
        ({"sp": "maybe"}, "sp: expected 0 or 1, got 'maybe'."),
        ({"usable": ""}, "usable: expected 0 or 1, got nothing."),
        ({"kind": "dream"}, "kind: unknown entry 'dream'."),
        ({"kind": "proxy"}, "notes: a proxy must say 'PROXY: n_layers='"),
        ({"kind": "oom"}, "step_time_s: must be empty for a run that did not fit, got 5.5."),
        ({"step_time_s": ""}, "nothing was measured."),
        ({"step_time_s": "nan"}, "step_time_s: must be a number above 0"),
        ({"tokens_per_s_per_gpu": "99"}, "tokens_per_s_per_gpu: 99 does not agree"),
        ({"pp_layout": "Et*9|t*9L"}, "pp_layout: prints 2 stages of 18 layers; the row has 8 of 32."),
        ({"pp_layout": "Et*999999999|tL"}, "pp_layout: prints"),
        ({"id": ""}, "id: is empty."),
        ({"notes": "caf\udce9"}, "notes: is not UTF-8: it has the byte 0xe9."),
    ],
)
def test_a_wrong_row_is_refused_alone(cells, reason):
    """With the reason, and what could be read; the next one is converted."""
    wrong, right = convert([{**ROW, **cells}, {**ROW, "id": "next"}], {}).rows

    assert reason in wrong["refused"]
    assert wrong["id"] == (cells.get("id", "a-row") or "line 2")
    assert (right["id"], right["refused"]) == ("next", "")


def test_what_could_be_read_of_a_refused_row_is_there():
    """Its measurement, too; two faults are both told."""
    row = explicit(dtype="int7", recompute="some")

    assert (row["strategy.tp"], row["step_seconds"], row["training.precision"]) == ("2", "5.5", "")
    assert "dtype" in row["refused"]
    assert "recompute" in row["refused"]


@pytest.mark.parametrize("cells", [{"usable": "0"}, {"quality": "excluded: slow"}, {"mbs": ""}])
def test_nothing_is_refused_of_a_row_that_nobody_predicts(cells):
    """Not usable, excluded, or without a layout."""
    assert explicit(dtype="int7", **cells)["refused"] == ""


def test_records_that_are_no_rows_say_so():
    """Too few cells, too many, columns that are missing, an id that was there."""
    few, many = {**ROW, "notes": None}, {**ROW, "id": "b", None: ["x"]}
    columns = {column: cell for column, cell in ROW.items() if column not in ("gpu", "tp")}

    rows = convert([few, many, columns, ROW, ROW], {}).rows

    assert [row["refused"] for row in rows] == [
        "row: has fewer cells than the header.",
        "row: has more cells than the header.",
        "gpu: no such column; 2 of 34 are missing.",
        "",
        "id: 'a-row' is the id of an earlier row too.",
    ]


def test_cells_that_are_too_long_cost_their_record_alone(tmp_path):
    """Python's reader gives up on them and goes on."""
    path, models = tmp_path / "in.csv", tmp_path / "in.yaml"
    lines = [",".join(ROW), ",".join(ROW.values()), "x" * 200_000, ",".join({**ROW, "id": "b"}.values())]
    path.write_text("\n".join(lines) + "\n")
    models.write_text("{}")

    rows = convert_files(path, models).rows

    assert [row["refused"][:29] for row in rows] == ["", "row: cannot be read as CSV: f", ""]


def test_columns_of_a_job_have_their_sections():
    """Nothing but sections of a job file, and the model."""
    sections = {"model", "cluster", "training", "settings", "strategy"}

    assert {column.partition(".")[0] for column in JOB} == sections
