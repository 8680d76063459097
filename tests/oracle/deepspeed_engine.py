"""Engines that ``deepspeed.initialize`` makes of configurations, on gloo processes on the CPU."""

from __future__ import annotations

import gc
import multiprocessing
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

HEADS, WIDTH, VOCABULARY, TOKENS = 4, 32, 128, 16
"""Sizes of the model, which is a Llama of two layers."""


IMPORTED_ONCE = (
    "deepspeed",
    "deepspeed.runtime.zero.muon.original_muon",  # each engine asks for it, and it imports torch's compiler
    "transformers.models.llama.modeling_llama",
)
"""Modules that all ranks have from the process that they are forked from."""


def engines(configurations: Sequence[Mapping[str, Any]], world: int) -> list[dict[str, Any]]:
    """
    What DeepSpeed makes of each configuration on so many processes, after one step of training.

    No ``mpu`` is passed: as many ranks as the configuration says hold a model together.
    """
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*IMPORTED_ONCE])
    with TemporaryDirectory() as folder:
        received, sent = context.Pipe(duplex=False)
        ranks = [
            context.Process(target=_rank, args=(rank, world, folder, [*configurations], sent)) for rank in range(world)
        ]
        for one in ranks:
            one.start()
        sent.close()
        try:
            return [received.recv() for _ in configurations]
        finally:
            for one in ranks:
                one.join(10)
                one.kill()


def _rank(rank: int, world: int, folder: str, configurations: Sequence[Mapping[str, Any]], sent: Any) -> None:
    import deepspeed
    import torch
    from deepspeed import comm

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # gloo alone: nothing is compiled
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
    torch.set_num_threads(1)
    gc.freeze()  # each engine looks for garbage, among all that the modules hold
    for number, configuration in enumerate(configurations):
        place = Path(folder, str(number)).as_uri()
        torch.distributed.init_process_group("gloo", init_method=place, rank=rank, world_size=world)
        try:
            found = _trained(configuration)
        except Exception as error:
            found = {"error": f"{type(error).__name__}: {error}"}
        if rank == 0:
            sent.send(found)
        comm.destroy_process_group()


def _trained(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """What an engine has taken; its first step is over when the micro-batches of one are."""
    import deepspeed
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": WIDTH, "intermediate_size": 2 * WIDTH, "vocab_size": VOCABULARY}
    model = LlamaForCausalLM(
        LlamaConfig(num_hidden_layers=2, num_attention_heads=HEADS, num_key_value_heads=HEADS, **sizes)
    )
    optimizer = torch.optim.AdamW(model.parameters())
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=dict(configuration))
    with deepspeed.zero.GatheredParameters([model.model.layers[0].self_attn.q_proj.weight]):
        rows = len(model.model.layers[0].self_attn.q_proj.weight)
    torch.manual_seed(torch.distributed.get_rank() // engine.mp_world_size)
    num_microbatches = 0
    while engine.global_steps == 0:
        tokens = torch.randint(0, VOCABULARY, (engine.train_micro_batch_size_per_gpu(), TOKENS))
        engine.backward(engine(input_ids=tokens, labels=tokens).loss)
        engine.step()
        num_microbatches += 1
    weights, gradients = engine.get_data_types()
    return {
        "tp": WIDTH // rows,
        "dp": engine.dp_world_size,
        "mbs": engine.train_micro_batch_size_per_gpu(),
        "num_microbatches": num_microbatches,
        "accumulation": engine.gradient_accumulation_steps(),
        "sharding": engine.zero_optimization_stage(),
        "precision": str(weights).removeprefix("torch."),
        "gradients": str(gradients).removeprefix("torch."),
        "overlap": engine.zero_overlap_comm(),
    }
