"""Accelerate reads exported YAML: random plans, each with the strategy that it was made of."""

from __future__ import annotations

import os
from itertools import islice
from unittest import mock

import pytest

from costmodel.facts.framework import Settings
from costmodel.strategy import CudaGraphs, Recompute, Sharding
from tests.builders_plan import planned_exports, random_exports
from tests.oracle import in_step

commands = pytest.importorskip("accelerate.commands.launch", reason="Accelerate is not installed")
pytest.importorskip("transformers", reason="Accelerate's tensor parallelism needs transformers")

NUM_PLANS, NUM_PLANNED = in_step(100), 5

WITHIN = {
    "pp": (1,),
    "ep": (1,),
    "sequence_parallel": (False,),
    "activation_offload": (False, True),
    "optimizer_offload": (False,),
    "tp_overlap": (False,),
    "dp_overlap": (True,),
    "sharding": (Sharding.GRADIENTS, Sharding.WEIGHTS),
    "recompute": (Recompute.NONE, Recompute.FULL),
    "cuda_graphs": (CudaGraphs.NONE,),
}
"""What FSDP2 does at all; the rest it may still refuse."""


SETTINGS = Settings(gradient_dtype="bf16", weight_dtype="fp32")
"""What it makes of mixed precision in BF16."""


def environment(path, exported) -> dict[str, str]:
    """What ``accelerate launch`` sets for its processes, the exported variables among it."""
    from accelerate.utils.launch import prepare_multi_gpu_env

    words = [f"--config_file={path}", "--main_process_ip=localhost", "--main_process_port=29500", "train.py"]
    arguments = commands.launch_command_parser().parse_args(words)
    arguments, *_ = commands._validate_launch_command(arguments)
    return prepare_multi_gpu_env(arguments) | dict(exported.environment)


def decisions(environment) -> dict[str, object]:
    """The strategy that a process of that environment works with."""
    from accelerate import FullyShardedDataParallelPlugin, ParallelismConfig

    with mock.patch.dict(os.environ, environment, clear=True):
        fsdp, degrees = FullyShardedDataParallelPlugin(), ParallelismConfig()
    assert fsdp.fsdp_version == 2
    assert degrees.dp_replicate_size == 1
    ring = degrees.cp_size > 1 and degrees.cp_handler.cp_comm_strategy == "alltoall"
    return {
        "tp": degrees.tp_size,
        "cp": degrees.cp_size,
        "dp": degrees.dp_shard_size,
        "sharding": Sharding.WEIGHTS if fsdp.reshard_after_forward else Sharding.GRADIENTS,
        "recompute": Recompute.FULL if fsdp.activation_checkpointing else Recompute.NONE,
        "activation_offload": bool(fsdp.activation_checkpointing_offload),
        "optimizer_offload": "CPU" in type(fsdp.cpu_offload).__name__,
        "cp_overlap": ring,
    }


def test_what_accelerate_reads_is_the_strategy(tmp_path):
    """All random ones: dense, with experts and with latent attention; so are plans of plain jobs for the target."""
    path, wrong = tmp_path / "accelerate.yaml", []
    planned = [*islice(planned_exports("accelerate"), NUM_PLANNED)]
    assert len(planned) == NUM_PLANNED
    for plan, exported in (*planned, *random_exports("accelerate", NUM_PLANS, within=WITHIN, settings=SETTINGS)):
        path.write_text(exported.files["accelerate.yaml"], encoding="utf-8")
        read = environment(path, exported)

        found = decisions(read)

        batch = plan.strategy.dp * plan.strategy.mbs * int(read["ACCELERATE_GRADIENT_ACCUMULATION_STEPS"])
        same = all(getattr(plan.strategy, name) == value for name, value in found.items())
        wrong += [] if same and batch == plan.facts.workload.global_batch_size else [plan.strategy]

    assert wrong == []


def test_accelerate_refuses_a_wrong_key(tmp_path):
    """The loader is one that looks: an unknown key is an error."""
    path = tmp_path / "accelerate.yaml"
    path.write_text("distributed_type: FSDP\nparalelism_config: {}\n")

    with pytest.raises(ValueError, match="paralelism_config"):
        commands.load_config_from_file(str(path))
