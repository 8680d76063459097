"""
What scripts of others hold: arrays, defaults, cases, functions, here-documents, several launchers.

What is read is compared with the command that a real Bash would start, where programs only print their words.
"""

from __future__ import annotations

import pytest

from costmodel.errors import SpecError
from planner import import_job
from tests.planner.test_imports_published import BASH, OPTIONS, command_of_bash, second_reading

DEVICE = "cluster.device=h100-80gb-sxm"

MODEL = (
    "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 "
    "--vocab-size 32000 --bf16 --swiglu"
)

SCRIPTS = {
    "arrays with keys, a case, arithmetic": (
        r"""
set -eu
GPUS_PER_NODE=${GPUS_PER_NODE:-8}
NUM_NODES=${SLURM_NNODES:-2}
declare -A SIZES=([8b]="--num-layers 32 --hidden-size 4096 --num-attention-heads 32" [70b]="--num-layers 80")
SIZE=${1:-8b}
MODEL=(${SIZES[$SIZE]} --seq-length 8192 --max-position-embeddings 8192 --vocab-size 128256)
PP=2
case "$SIZE" in
  8b) TP=2 ;;
  70b|72b) TP=8; PP=4 ;;
  *) echo "unknown"; exit 1 ;;
esac
PARALLEL=(--tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP)
if (( TP > 1 )); then PARALLEL+=(--sequence-parallel); fi
[[ "${FP8:-0}" == 1 ]] && PARALLEL+=(--fp8-format hybrid)
DP=$(( GPUS_PER_NODE * NUM_NODES / (TP * PP) ))
TRAIN=(--micro-batch-size 1 --global-batch-size $((DP * 16)) --bf16)
torchrun --nproc_per_node "$GPUS_PER_NODE" --nnodes "$NUM_NODES" pretrain_gpt.py \
  "${MODEL[@]}" "${PARALLEL[@]}" "${TRAIN[@]}" 2>&1 | cat
""",
        16,
    ),
    "one string, srun and a shell": (
        f'#SBATCH -N 4\n#SBATCH --gpus-per-node=8\nDIR=`pwd`\noptions=" {MODEL} --tensor-model-parallel-size 4 \\\n'
        '  --pipeline-model-parallel-size 2 --micro-batch-size 1 --global-batch-size 256 --recompute-activations"\n'
        'run_cmd="python -u ${DIR}/pretrain_gpt.py $@ ${options}"\n'
        'srun -l --container-image "image" --output=${DIR}/%x.log sh -c "${run_cmd}"\n',
        32,
    ),
    "here-documents": (
        f"ARGS=$(cat <<'X'\n{MODEL}\nX\n)\nread -r -d '' MORE <<EOM\n--micro-batch-size 4 "
        "--global-batch-size ${GBS:=64}\nEOM\n"
        'eval "export TP=4"\ncat <<EOF > config.json\n{"tp": "$TP"}\nEOF\n'
        "python -m torch.distributed.launch --nproc_per_node=8 pretrain_gpt.py $ARGS $MORE "
        "--tensor-model-parallel-size ${TP:-2}\n",
        8,
    ),
    "functions, local names, shift": (
        'launch() {\n  local extra="$1"; shift\n  torchrun --nproc-per-node 8 --nnodes 2 pretrain_gpt.py '
        f'{MODEL} --micro-batch-size $MBS --global-batch-size 128 $extra "$@"\n}}\nexport MBS=2\n'
        'launch "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1" '
        "--tensor-model-parallel-size 2\n",
        16,
    ),
    "arguments of its own in a loop": (
        'set -- --tp 8 --nodes 4\nwhile [ $# -gt 0 ]; do case $1 in --tp) TP=$2; shift 2;; --nodes) N="$2"; shift 2;; '
        '*) shift;; esac; done\n: "${TP:=1}" "${PP:=4}"\nARGS="'
        f'{MODEL}\n--tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP --micro-batch-size 1"\n'
        "torchrun --nproc-per-node=8 --nnodes=${N} pretrain_gpt.py ${ARGS//$'\\n'/ } --global-batch-size 256\n",
        32,
    ),
    "mpirun": (
        f"mpirun -np 16 -H h1:8,h2:8 -x NCCL_DEBUG=INFO python pretrain_gpt.py {MODEL} --tensor-model-parallel-size 2 "
        "--micro-batch-size 1 --global-batch-size 64\n",
        16,
    ),
    "a profiler in front, eval": (
        'P="nsys profile -t nvtx,cuda -o out"\nCMD="${P} torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py '
        f"{MODEL} "
        '--context-parallel-size 2 --micro-batch-size 1 --global-batch-size 64"\necho $CMD\neval $CMD\n',
        16,
    ),
    "variables changed on the way": (
        "NAME=run-TP4-PP2\nTP=${NAME#*TP}; TP=${TP%%-*}\nPP=${NAME##*PP}\nMODE=${MODE:-SWIGLU}\nlast=${MODE,,}\n"
        f"for n in 1 2; do MBS=$n; done\nARGS=({MODEL} --$last)\n"
        "torchrun --nproc_per_node=8 --nnodes=2 pretrain_gpt.py ${ARGS[*]} --tensor-model-parallel-size $TP "
        "--pipeline-model-parallel-size $PP --micro-batch-size $MBS --global-batch-size 64\n",
        16,
    ),
}
"""A script, and the devices that it starts."""


@pytest.mark.skipif(BASH is None, reason="no bash to compare with")
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_read_as_bash_follows_it(name, tmp_path):
    """Degrees, batches and recomputation of the command that Bash would start."""
    text, devices = SCRIPTS[name]
    path = tmp_path / "run.sh"
    path.write_text(text)
    job = import_job(path, [DEVICE]).document

    stubs = tmp_path / "stubs"
    stubs.mkdir()
    for program in ("mpirun", "nsys"):
        (stubs / program).write_text(f'#!/bin/bash\n(printf "%s " {program} "$@"; echo) >>"$OUT"\n')
        (stubs / program).chmod(0o755)
    command = command_of_bash(path, stubs)

    strategy = job["strategy"]
    assert {name: strategy[name] for name in OPTIONS} == second_reading(command)
    assert f"--global-batch-size {job['training']['global_batch_size']}" in command
    assert job["cluster"]["num_devices"] == devices
    assert (strategy["recompute"] != "none") == ("--recompute" in command)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--tensor-model-parallel-size $(nproc)", r"\$\(nproc\)"),
        ("--tensor-model-parallel-size $TP", "TP"),
        ("--micro-batch-size ${MBS:?say it}", "MBS"),
        ("--tensor-model-parallel-size `cat tp.txt`", "cat tp.txt"),
        ("--tensor-model-paralel-size 2", "Did you mean '--tensor-model-parallel-size'"),
        ("--zero-stage 3", "DeepSpeed under Megatron-LM"),
    ],
)
def test_what_is_open_is_asked_for(line, message, tmp_path):
    """By its name and line; a command in a word is never run."""
    path = tmp_path / "run.sh"
    path.write_text(f"torchrun --nproc-per-node 8 pretrain_gpt.py {MODEL} --global-batch-size 64 {line}\n")

    with pytest.raises(SpecError, match=message):
        import_job(path, [DEVICE])


def test_nothing_is_executed(tmp_path):
    """Neither commands nor what stands in their words, in arithmetic or in a here-document."""
    mark = tmp_path / "ran"
    path = tmp_path / "run.sh"
    path.write_text(
        f"touch {mark}\nA=$(touch {mark})\neval 'touch {mark}'\nbash -c 'touch {mark}'\nX=`touch {mark}`\n"
        f"bash <<E\ntouch {mark}\nE\nB=$(( $(touch {mark}) + 1 ))\n. <(touch {mark})\n"
        f"torchrun --nproc-per-node 8 pretrain_gpt.py {MODEL} --micro-batch-size 1 --global-batch-size 8\n"
    )

    job = import_job(path, [DEVICE]).document

    assert (job["strategy"]["dp"], mark.exists()) == (8, False)
