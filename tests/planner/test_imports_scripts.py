"""
What scripts of others hold: arrays, defaults, cases, functions, here-documents, several launchers.

What is read is compared with the command that a real Bash would start, where programs only print their words.
"""

from __future__ import annotations

import pytest

from costmodel.errors import SpecError
from planner import import_job
from tests.cases import in_one_case, read_table
from tests.planner.test_imports_published import BASH, OPTIONS, command_of_bash, second_reading

CASES = read_table("imports_scripts")

DEVICE = "cluster.device=h100-80gb-sxm"

MODEL = (
    "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 "
    "--vocab-size 32000 --bf16 --swiglu"
)


@pytest.mark.skipif(BASH is None, reason="no bash to compare with")
@pytest.mark.parametrize(("text", "devices"), CASES["scripts"].values(), ids=CASES["scripts"])
def test_a_script_is_read_as_bash_follows_it(text, devices, tmp_path):
    """Degrees, batches and recomputation of the command that Bash would start."""
    path = tmp_path / "run.sh"
    path.write_text(text.replace("@MODEL@", MODEL))
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


@in_one_case(
    ("line", "message"),
    [
        ("--tensor-model-parallel-size $(nproc)", r"\$\(nproc\)"),
        ("--tensor-model-parallel-size $TP", "TP"),
        ("--micro-batch-size ${MBS:?say it}", "MBS"),
        ("--tensor-model-parallel-size `cat tp.txt`", "cat tp.txt"),
        ("--tensor-model-paralel-size 2", "Did you mean '--tensor-model-parallel-size'"),
        ("--zero-stage 4", "expected 0, 1, 2 or 3"),
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


TRAIN = f'ARGS="{MODEL} --micro-batch-size 1 --global-batch-size 64"\ntorchrun --nproc-per-node 8 pretrain_gpt.py $ARGS'
EXPERTS = "--num-experts 64 --expert-model-parallel-size 8"


@in_one_case(("before", "words", "message"), CASES["open"])
def test_what_may_be_options_is_no_empty_word(before, words, message, tmp_path):
    """It may hold a degree: it is asked for by its variable and line."""
    path = tmp_path / "run.sh"
    path.write_text(f"{before}\n{TRAIN} {words}\n")

    with pytest.raises(SpecError, match=message):
        import_job(path, [DEVICE])


@pytest.mark.parametrize(
    ("before", "words"),
    [
        (f'moe_args(){{ echo "{EXPERTS}"; }}\nMOE="$(moe_args 8)"', "$MOE"),
        ("mapfile -t MOE < args.txt", '"${MOE[@]}"'),
        ("printf -v MOE '%s' x", "$MOE"),
        ("read -r MOE < x", "$MOE"),
    ],
)
def test_what_is_said_of_open_options_counts(before, words, tmp_path):
    """As many words as it has, of an array, too."""
    path = tmp_path / "run.sh"
    path.write_text(f"{before}\n{TRAIN} {words}\n")

    assert import_job(path, [DEVICE], {"MOE": EXPERTS}).document["strategy"]["ep"] == 8
    assert import_job(path, [DEVICE], {"MOE": ""}).document["strategy"]["ep"] == 1


def test_a_here_string_is_read(tmp_path):
    """Its text is in the script."""
    path = tmp_path / "run.sh"
    path.write_text(f'read -r A <<< "{EXPERTS}"\n{TRAIN} $A\n')

    assert import_job(path, [DEVICE]).document["strategy"]["ep"] == 8


def test_values_of_options_without_meaning_may_be_open(tmp_path):
    """Paths, names and weights of data; what stands in front of the program, too."""
    path = tmp_path / "run.sh"
    words = "--data-path 0.3 $A 0.7 $(cat b) --save $OUT/x --wandb-exp-name $(date +%s) --lr $LR --load=$IN"
    path.write_text(f"{TRAIN.replace('torchrun', 'env $X srun $(flags) torchrun')} {words} --data-path $(find .)\n")

    assert import_job(path, [DEVICE]).document["strategy"]["dp"] == 8


@pytest.mark.parametrize("words", ["--do_train $MORE", "--output_dir $OUT $MORE", "$MORE"])
def test_open_words_of_other_programs_are_asked_for(words, tmp_path):
    """The same of a script in the manner of Hugging Face's Trainer; its folder may be open."""
    (tmp_path / "ds.json").write_text('{"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}}')
    path = tmp_path / "run.sh"
    start = "deepspeed --num_gpus 8 train.py --deepspeed ds.json --model_name_or_path Qwen/Qwen3-8B --max_length 4096"

    path.write_text(f"{start} {words}\n")
    with pytest.raises(SpecError, match=r"\$MORE"):
        import_job(path, [DEVICE])

    path.write_text(f"{start} --output_dir $OUT --run_name $(date)\n")
    assert import_job(path, [DEVICE]).document["strategy"]["dp"] == 8


def test_too_few_devices_are_told_with_what_the_degrees_take(tmp_path):
    """8 ranks share experts on each of 4 stages: 32 devices, where the script starts 8."""
    path = tmp_path / "run.sh"
    path.write_text(
        f"{TRAIN} --num-experts 8 --expert-model-parallel-size 8 --pipeline-model-parallel-size 4 "
        "--moe-token-dispatcher-type alltoall\n"
    )

    with pytest.raises(SpecError, match=r"ranks share experts.*starts 8 processes.*least cluster\.num_devices=32\."):
        import_job(path, [DEVICE])


def test_messages_have_no_signs_of_our_own(tmp_path):
    """What a command prints, read by two shells, stands in a message as the script has it."""
    path = tmp_path / "run.sh"
    path.write_text('S=`pwd`\nrun="python $S/multimodal/train.py --bf16"\nsrun sh -c "${run}"\n')

    with pytest.raises(SpecError, match=r"line 3: `pwd`/multimodal/train\.py trains a model"):
        import_job(path, [DEVICE])


PATHS = {
    "a file": ("if [ -f /opt/flag ]; then TP=8; else TP=2; fi", 3, {"true": 8, "false": 2}),
    "a program": ("if nvidia-smi | grep -q H100; then TP=2; else TP=4; fi", 3, {"true": 2, "false": 4}),
    "another way": ("TP=2\nmkdir build/mine || TP=8", 4, {"true": 2, "false": 8}),
    "an output": ("TP=1\nif [ $(nvidia-smi -L | wc -l) -gt 4 ]; then TP=4; fi", 4, {"true": 4, "false": 1}),
    "a name of it": ('case "$(hostname)" in\n  a*) TP=2 ;;\n  *) TP=4 ;;\nesac', 3, {"abc": 2, "z": 4}),
}


@pytest.mark.parametrize("name", PATHS)
def test_the_machine_decides_no_degree(name, tmp_path):
    """A decision is asked for where an option that is read hangs on it, and the given answer counts."""
    before, line, expected = PATHS[name]
    path = tmp_path / "run.sh"
    path.write_text(f"#!/bin/bash\n\n{before}\n{TRAIN} --tensor-model-parallel-size $TP\n")

    with pytest.raises(SpecError, match=rf"line {line}: the machine decides by .*--set line_{line}="):
        import_job(path, [DEVICE])
    for said, tp in expected.items():
        result = import_job(path, [DEVICE], {f"line_{line}": said})
        assert result.document["strategy"]["tp"] == tp
        assert not any("--set line" in note for note in result.notes)


@pytest.mark.parametrize(
    "before", ["[ -d logs ] || mkdir logs", "if [ ! -f data.bin ]; then\necho none; exit 1\nfi", "[ -f x ] && SAVE=1"]
)
def test_the_machine_may_decide_what_no_option_needs(before, tmp_path):
    """A folder, the end of the script, a variable of another program."""
    path = tmp_path / "run.sh"
    path.write_text(f"{before}\n{TRAIN}\n")

    assert import_job(path, [DEVICE]).document["strategy"]["tp"] == 1


@pytest.mark.parametrize("remote", ["ssh node1", "pdsh -w node[1-4]", "ssh -p 22 me@node1"])
def test_what_runs_on_another_host_is_read(remote, tmp_path):
    """Its command is one word in quotation marks."""
    path = tmp_path / "run.sh"
    path.write_text(f"ARGS='{MODEL} --micro-batch-size 1 --global-batch-size 64 --tensor-model-parallel-size 2'\n")
    path.write_text(f'{path.read_text()}{remote} "torchrun --nproc-per-node 8 pretrain_gpt.py $ARGS"\n')

    assert import_job(path, [DEVICE]).document["strategy"]["tp"] == 2


def test_an_option_is_not_abbreviated(tmp_path):
    """Megatron-LM's parser takes none (allow_abbrev=False)."""
    path = tmp_path / "run.sh"
    path.write_text(f"{TRAIN} --tensor-model-par 4\n")

    with pytest.raises(SpecError, match="Did you mean '--tensor-model-parallel-size'"):
        import_job(path, [DEVICE])
