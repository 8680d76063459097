"""Launches of Megatron-MoE-ModelZoo: an environment for its template, with the files beside it that there are."""

from __future__ import annotations

import pytest

from costmodel.errors import SpecError
from planner import import_job

DEVICE = ["cluster.device=h100-80gb-sxm"]
TWO = """
export MODEL=Small-MoE
export MBS=1 SEQ_LEN=4096
TP=2 PP=2 EP=4 CP=1 VPP=2 NNODES=2 GBS=64 PR=fp8 DISPATCHER=alltoall bash ./sbatch_benchmarking.sh
TP=1 PP=4 EP=4 NNODES=4 bash ./sbatch_benchmarking.sh --recompute-granularity selective --recompute-modules moe_act
"""
CONFIG = """
MODEL_ARGS:
  --tensor-model-parallel-size: ${TP}
  --pipeline-model-parallel-size: ${PP}
  --expert-model-parallel-size: ${EP}
  --context-parallel-size: ${CP}
  --decoder-first-pipeline-num-layers: ${PP_FIRST}
  --sequence-parallel: true
  --use-distributed-optimizer: true
  --micro-batch-size: ${MBS}
  --global-batch-size: ${GBS}
  --seq-length: ${SEQ_LEN}
  --max-position-embeddings: 4096
  --num-layers: 8
  --hidden-size: 1024
  --num-attention-heads: 16
  --vocab-size: 32000
  --num-experts: 8
  --moe-layer-freq: "'([0]*1+[1]*7)'"
  --moe-grouped-gemm: ${MOE_GROUPED_GEMM}
  --disable-bias-linear: true
  --swiglu: true
  --bf16: true
  --train-samples: 1000000
"""
DEFAULTS = """
declare -A BENCHMARKING_MODEL_CONFIGS=(
    # MODEL:      TP PP EP CP VPP MBS GBS LAYERS DISPATCHER GROUPED_GEMM NNODES RUN_TIME PRETRAIN SLEN DATASET
    [Small-MoE]=" 1  1  8  1  1   1   128 8      alltoall   true         1      00:20:00 0        2048 Data"
)
"""


@pytest.fixture
def script(tmp_path):
    """A script of the repository, whose configurations stand two folders above it."""
    for name, text in (
        ("model_configs/benchmarking/Small-MoE.yaml", CONFIG),
        ("runtime_configs/benchmarking/runtime.conf", DEFAULTS),
        ("best_practice/small/run.sh", TWO),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path / "best_practice/small/run.sh"


def test_one_of_several_launches_is_asked_for(script):
    """Each has another environment: none is the script's."""
    with pytest.raises(SpecError, match=r"has 2 launches: 1 \(line 4\), 2 \(line 5\). Say which one: --set launch=1"):
        import_job(script, DEVICE)
    with pytest.raises(SpecError, match=r"launch: is '3'; the script has 2"):
        import_job(script, DEVICE, {"launch": "3"})


def test_a_launch_has_its_environment_and_what_the_template_adds(script):
    """8 GPUs on each of 2 nodes, chunks by VPP, blockwise FP8 with narrow moments, the dispatcher that it names."""
    job = import_job(script, DEVICE, {"launch": "1"}).document

    strategy = job["strategy"]
    assert (job["cluster"]["num_devices"], job["training"]["global_batch_size"]) == (16, 64)
    assert tuple(strategy[name] for name in ("tp", "pp", "ep", "vpp", "mbs")) == (2, 2, 4, 2, 1)
    assert (job["training"]["precision"], job["settings"]["moments_dtype"]) == ("fp8_blockwise", "bf16")
    assert strategy["token_dispatcher"] == "alltoall"


def test_what_a_launch_leaves_to_the_defaults_is_read_there(script):
    """Batch 128 and one chunk of the model's line; DeepEP and bf16 are the template's own."""
    job = import_job(script, DEVICE, {"launch": "2"}).document

    strategy = job["strategy"]
    assert (job["cluster"]["num_devices"], job["training"]["global_batch_size"]) == (32, 128)
    assert tuple(strategy[name] for name in ("tp", "pp", "ep", "vpp")) == (1, 4, 4, 1)
    assert (strategy["token_dispatcher"], strategy["recompute"]) == ("deepep", "expert_activation")


def test_without_its_configuration_a_model_is_that_of_the_catalog(tmp_path):
    """It says so; a model that nobody knows is asked for."""
    line = "PR=bf16 TP=2 PP=8 EP=32 CP=1 VPP=4 MBS=1 GBS=2048 SEQ_LEN=4096 NUM_LAYERS=96 NNODES=32 MODEL={}"
    path = tmp_path / "run.sh"
    path.write_text(f"{line.format('Qwen3-235B-A22B')} bash sbatch_benchmarking.sh\n")

    job = import_job(path, DEVICE)

    # 94 layers, the embedding and the loss on 8 ranks of 4 chunks are 3 for each chunk.
    assert (job.document["strategy"]["vpp"], job.document["strategy"]["dp"]) == (4, 16)
    assert any(note.startswith("model_configs/benchmarking/Qwen3-235B-A22B.yaml is not at hand") for note in job.notes)
    path.write_text(f"{line.format('Unheard-7B')} bash sbatch_benchmarking.sh\n")
    with pytest.raises(SpecError, match=r"names the configuration model_configs/benchmarking/Unheard-7B.yaml"):
        import_job(path, DEVICE)


def test_switches_of_a_list_take_values_of_variables(tmp_path):
    """On by true, gone by false; quotation marks for a shell are none of the value."""
    path = tmp_path / "model.yaml"
    path.write_text(CONFIG)
    given = {"TP": "1", "PP": "1", "EP": "8", "CP": "1", "MBS": "1", "GBS": "64", "SEQ_LEN": "2048"}
    entries = [*DEVICE, "cluster.num_devices=8"]

    off = import_job(path, entries, {**given, "PP_FIRST": "false", "MOE_GROUPED_GEMM": "false"})
    grouped = import_job(path, entries, {**given, "PP_FIRST": "false", "MOE_GROUPED_GEMM": "true"})

    assert off.document["model"]["first_dense_layers"] == 1
    assert any("Without --moe-grouped-gemm" in note for note in off.notes)
    assert not any("Without --moe-grouped-gemm" in note for note in grouped.notes)
