"""
Scripts and configurations that others publish, as they are, imported or refused with a reason.

What an import says is compared with a second reading of the same file: expressions over the text of the command that a
real Bash would start, or of the configuration.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tarfile
import tomllib
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import yaml

from costmodel.catalog import LOADER
from costmodel.errors import SpecError
from planner import import_job

ARCHIVE = Path(__file__).parents[1] / "data" / "published_launches.tar.gz"
"""Of Megatron-LM, torchtitan and dgxc-benchmarking, with their licences."""

UNPACKED = TemporaryDirectory(prefix="published_launches_")
PUBLISHED = Path(UNPACKED.name)
with tarfile.open(ARCHIVE) as archive:
    archive.extraction_filter = getattr(tarfile, "data_filter", None)  # from Python 3.11.4 on
    archive.extractall(PUBLISHED)

BASH = shutil.which("bash")

DEVICE_COUNTS = (None, 8, 64, 256, 1024)
"""Devices that are tried, the script's own first: nothing else in most files says how many there are."""

REASONS = (
    "trains BERT",
    "trains a model of pictures",
    "an encoder with a decoder",
    "--vocab-file: is given without --merge-file",
    "the planner plans pretraining",
    "--mtp-use-repeated-layer",
    "12 layers do not divide over 8 pipeline ranks",
    "which may be one or more options",
    "model: is not said",
    "debugmodel' is no model that is known here",
)
"""Why a file may be refused: no decoder of text, a layer that has no costs, something that the file leaves open."""

SHARES = {"megatron_examples": (15, 35), "megatron_test_arguments": (37, 48), "torchtitan": (8, 12), "dgxc": (6, 6)}
"""Files of each folder that are imported, at least, of how many; all others are refused for one of the reasons."""

OPTIONS = {
    "tp": "tensor-model-parallel-size",
    "pp": "pipeline-model-parallel-size",
    "cp": "context-parallel-size",
    "ep": "expert-model-parallel-size",
    "mbs": "micro-batch-size",
}


def files(folder):
    """Of a folder, in the order of their names."""
    return sorted((PUBLISHED / folder).iterdir())


def imported(path):
    """The job, or why there is none."""
    if path.parent.name == "dgxc":
        return of_a_published_recipe(path)
    device = "gb200" if "gb200" in path.name else "h100-80gb-sxm"
    for number in DEVICE_COUNTS:
        count = [] if number is None else [f"cluster.num_devices={number}"]
        try:
            return import_job(path, [f"cluster.device={device}", *count])
        except SpecError as error:
            last = error
            if "num_devices" not in error.where and "strategy" not in error.where:
                break
    return last


def of_a_published_recipe(path):
    """A launch script on the first device and precision whose recipe somebody published, or why there is none."""
    with TemporaryDirectory() as folder:
        script = Path(shutil.copy(path, folder))
        shutil.copy(PUBLISHED / "torchtitan/v0.2.2__deepseek_v3__deepseek_v3_671b.toml", script.parent / NAMED)
        for device, precision in (("gb300", "fp8"), ("gb200", "fp8"), ("gb200", "bf16")):
            variables = {"GPU_TYPE": device, "JOB_TOTAL_GPUS": "256", "DTYPE": precision}
            try:
                return import_job(script, [f"cluster.device={device}", "cluster.num_devices=256"], variables)
            except SpecError as error:
                last = error
    return last


NAMED = "deepseek_v3_671b.toml"
"""What one of them names, of torchtitan's own configurations."""


@pytest.fixture(scope="module")
def results():
    """Every file once."""
    return {path: imported(path) for folder in SHARES for path in files(folder)}


@pytest.mark.slow
@pytest.mark.parametrize("folder", SHARES)
def test_the_share_that_is_imported(results, folder):
    """No fewer than counted here, and what is refused has one of the reasons."""
    own = {path.name: result for path, result in results.items() if path.parent.name == folder}
    refused = {name: str(result) for name, result in own.items() if isinstance(result, SpecError)}
    without = {name: text for name, text in refused.items() if not any(reason in text for reason in REASONS)}

    assert without == {}
    assert (len(own) - len(refused) >= SHARES[folder][0], len(own)) == (True, SHARES[folder][1])


def command_of_bash(path, folder):
    """The words after which a script would start its training, by a Bash whose programs only print."""
    for name in ("torchrun", "python", "python3", "uv", "srun", "sbatch", "bash_c"):
        program = folder / name
        program.write_text(f'#!/bin/bash\n(printf "%s " {name} "$@"; cat; echo) >>"$OUT"\n')
        program.chmod(0o755)
    for name in ("mkdir", "git", "pip", "hostname"):
        (folder / name).write_text("#!/bin/bash\n")
        (folder / name).chmod(0o755)
    (folder / "pretrain_gpt.py").touch()
    (folder / "NO_VALUE_PROVIDED").mkdir()
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", "OUT": str(folder / "out"), "HOME": str(folder)}
    started = (
        [BASH, str(path)],
        [BASH, "-c", f'. "{path}"; set'],
    )  # a file of options alone starts nothing: its variables
    for words in started:
        run = subprocess.run(
            words, env=environment, cwd=folder, timeout=30, capture_output=True, check=False, text=True
        )
        if (folder / "out").exists():
            return (folder / "out").read_text()
    return run.stdout


def second_reading(text):
    """Numbers behind options, the last of each; 1 where one is missing."""
    found = {name: re.findall(rf"--{option}[ =:]+(\d+)", text) for name, option in OPTIONS.items()}
    return {name: int(values[-1]) if values else 1 for name, values in found.items()}


@pytest.mark.skipif(BASH is None, reason="no bash to compare with")
@pytest.mark.parametrize(
    "path", [*files("megatron_examples"), *files("megatron_test_arguments")], ids=lambda path: path.name
)
def test_degrees_are_those_of_a_second_reading(results, path, tmp_path):
    """Degrees, batches, precision and recomputation of Megatron-LM's scripts and lists of arguments."""
    result = results[path]
    if isinstance(result, SpecError):
        pytest.skip("refused")
    text = command_of_bash(path, tmp_path) if path.suffix == ".sh" else path.read_text().replace('"', "")
    read = second_reading(text)
    strategy, training = result.document["strategy"], result.document["training"]

    assert {name: strategy[name] for name in OPTIONS} == read
    batches = re.findall(r"--global-batch-size[ =:]+(\d+)", text)
    assert training["global_batch_size"] == (int(batches[-1]) if batches else strategy["mbs"] * strategy["dp"])
    assert training["sequence_length"] == int(re.findall(r"--seq-length[ =:]+(\d+)", text)[-1])
    eights = re.search(r"--fp8-format", text)
    assert training["precision"].startswith(("fp8", "mxfp8") if eights else ("fp16" if "--fp16" in text else "bf16"))
    recomputes = re.search(r"--(recompute-granularity|recompute-activations|moe-layer-recompute)", text)
    assert (strategy["recompute"] != "none" or "layout" in strategy) == bool(recomputes)


@pytest.mark.parametrize("path", files("torchtitan"), ids=lambda path: path.name)
def test_torchtitan_is_read_as_its_toml(results, path):
    """Straight from the tables of the file."""
    result = results[path]
    if isinstance(result, SpecError):
        pytest.skip("refused")
    config = tomllib.loads(path.read_text())
    parallel, training, strategy = config["parallelism"], config["training"], result.document["strategy"]

    assert strategy["tp"] == parallel["tensor_parallel_degree"]
    assert strategy["pp"] == parallel["pipeline_parallel_degree"] if "pipeline_parallel_degree" in parallel else 1
    assert strategy["cp"] == parallel.get("context_parallel_degree", 1)
    assert result.document["training"]["sequence_length"] == training["seq_len"]
    assert result.document["training"]["global_batch_size"] == training["local_batch_size"] * strategy["dp"]
    modes = {"full": "full", "none": "none", "selective": "every_other_matmul"}
    assert strategy["recompute"] == modes[config["activation_checkpoint"]["mode"]]


def test_no_reason_is_idle(results):
    """Each is some file's."""
    texts = [str(result) for result in results.values() if isinstance(result, SpecError)]

    used = Counter(reason for reason in REASONS for text in texts if reason in text)

    assert set(used) == set(REASONS)


def test_lists_of_arguments_hold_no_other_kind():
    """What the second reading takes for granted."""
    for path in files("megatron_test_arguments"):
        assert "MODEL_ARGS" in yaml.load(path.read_text(), Loader=LOADER), path.name


DECODERS = {"megatron_test_arguments": (37, 39), "torchtitan": (8, 8), "dgxc": (6, 6)}
"""Imported, of those of models and layers that the planner knows: no encoders, no flavors made for debugging, ..."""

UNKNOWN = ("BERT", "T5", "plans pretraining", "mtp-use-repeated-layer", "debugmodel", "pictures")
"""What the refusals of others say."""


@pytest.mark.parametrize("folder", DECODERS)
def test_nine_of_ten_of_known_models_are_imported(results, folder):
    """The others leave something open that is asked for."""
    own = [result for path, result in results.items() if path.parent.name == folder]
    known = [one for one in own if not isinstance(one, SpecError) or not any(word in str(one) for word in UNKNOWN)]
    imported_ones = [one for one in known if not isinstance(one, SpecError)]

    assert (len(imported_ones), len(known)) == DECODERS[folder]
    assert len(imported_ones) >= 0.9 * len(known)


def test_scripts_that_pretrain_a_gpt_are_imported_or_ask(results):
    """Of six 4 as they are, one with the variables that it leaves to whoever sources it; Megatron-LM refuses one."""
    scripts = ("gpt3__", "mixtral__", "megatron_fsdp__", "gptoss__", "academic_paper_scripts__")
    examples = {path: result for path, result in results.items() if path.parent.name == "megatron_examples"}
    own = {path: result for path, result in examples.items() if path.name.startswith(scripts)}
    refused = {path: str(result) for path, result in own.items() if isinstance(result, SpecError)}
    config = next(path for path in refused if path.name.startswith("academic"))
    given = {"TP": "8", "PP": "8", "MBS": "1", "GBS": "1536", "NLS": "96", "HS": "12288", "NAH": "96"}
    given |= {"MEGATRON_EXTRA_PARAMS": ""}

    job = import_job(config, ["cluster.device=h100-80gb-sxm", "cluster.num_devices=1024"], given).document

    assert (len(own) - len(refused), len(own)) == (4, 6)
    assert any("12 layers do not divide over 8 pipeline ranks" in text for text in refused.values())
    assert [job["strategy"][name] for name in ("tp", "pp", "mbs")] == [8, 8, 1]
