"""
Real optimizers as the oracle of Muon: FLOPs and states of PyTorch's own, groups and owners of Megatron-Core's.

Needs torch 2.9 or later, and transformers (``pip install -e .[oracle]``); two tests also megatron-core 0.16 or 0.17.
Its ``emerging_optimizers`` is replaced by an empty class, since only groups of parameters are asked for.
"""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from costmodel.lowering.layer import layer_matrices
from costmodel.memory import dealt_share, different_ranks, rank_bytes
from costmodel.models.flops import parameters, whole_shape
from costmodel.models.huggingface import model_from_config
from costmodel.step.muon import newton_schulz_flops
from planner.api import load
from tests.builders_cluster import a_strategy

REASON = "the oracle needs torch 2.9 and transformers: pip install -e .[oracle]"
torch = pytest.importorskip("torch", minversion="2.9", reason=REASON)
transformers = pytest.importorskip("transformers", reason=REASON)

DENSE = {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 96, "vocab_size": 512}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": False}
CONFIG = {"architectures": ["LlamaForCausalLM"], **DENSE, **HEADS}


@pytest.mark.parametrize("steps", [1, 5])
@pytest.mark.parametrize(("rows", "columns"), [(32, 32), (16, 48), (80, 24)])
def test_steps_take_the_counted_flops(rows, columns, steps):
    """The counter of torch on its own function, whose matrices are on the meta device."""
    from torch.optim._muon import _zeropower_via_newtonschulz
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        _zeropower_via_newtonschulz(torch.empty(rows, columns, device="meta"), (3.4445, -4.775, 2.0315), steps, 1e-7)

    assert newton_schulz_flops(min(rows, columns), max(rows, columns), steps=steps) == counter.get_total_flops()


def a_llama() -> Any:
    """A small real model, whose matrices but embedding and head have a step of Muon behind them, the rest of AdamW."""
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**CONFIG))
    ends = {id(model.get_input_embeddings().weight), id(model.get_output_embeddings().weight)}
    matrices = [one for one in model.parameters() if one.dim() == 2 and id(one) not in ends]
    others = [one for one in model.parameters() if one.dim() != 2 or id(one) in ends]
    optimizers = torch.optim.Muon(matrices), torch.optim.AdamW(others)
    for one in model.parameters():
        one.grad = torch.ones_like(one)
    for optimizer in optimizers:
        optimizer.step()
    return model, matrices, optimizers


def test_matrices_and_states_are_those_of_the_optimizers():
    """FP32 weights and moments, without another copy: bytes of all tensors of both optimizers' states but counters."""
    model, matrices, optimizers = a_llama()
    kept = [one for optimizer in optimizers for state in optimizer.state.values() for one in state.values()]
    nbytes = sum(one.numel() * one.element_size() for one in kept if torch.is_tensor(one) and one.dim())
    cluster = {"device": "h100", "num_devices": 1, "framework": "torchtitan-0.3"}
    training = {"global_batch_size": 8, "sequence_length": 64, "tokens": "1B"}
    settings = {"optimizer": "muon", "weight_dtype": "fp32"}
    given = load({"model": CONFIG, "cluster": cluster, "training": training, "settings": settings}).facts
    decisions = a_strategy().decisions()

    found = model_from_config(CONFIG, name="llama", source="")
    shape = whole_shape(found)
    counted = sum(float(one.parameters * one.count) for layer in found.layers for one in layer_matrices(layer, shape))

    assert parameters(found) == sum(one.numel() for one in model.parameters())
    assert counted == sum(one.numel() for one in matrices)
    assert float(rank_bytes(given, decisions, different_ranks(given, decisions)).optimizer[0]) == nbytes


# --- Megatron-Core -----------------------------------------------------------------------------------------


@pytest.fixture
def layer_wise(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module of Megatron-Core that deals parameters, on groups that say their size by themselves."""
    module = pytest.importorskip("megatron.core.optimizer.layer_wise_optimizer", reason="needs megatron-core 0.16")
    if not hasattr(module.LayerWiseDistributedOptimizer, "shard_params"):
        pytest.skip("this release deals by a layout")
    monkeypatch.setattr(module, "get_pg_size", lambda group: group)
    monkeypatch.setattr(module, "get_pg_rank", lambda group: 0)
    return module.LayerWiseDistributedOptimizer


def test_deals_are_close_to_those_of_megatron(layer_wise):
    """
    Random models on random numbers of replicas: no deal has a busiest owner with less than the bound.

    Deals by size in turns, with work that grows faster than sizes, are at most 2.1 times the bound, in the mean at most
    25 % above it.
    """
    chooser, excess = random.Random(5), []
    for _ in range(60):
        owners, layers = chooser.choice([2, 4, 8, 16, 32, 64]), chooser.randrange(1, 17)
        hidden, inner = chooser.choice([1024, 2048, 4096]), chooser.choice([2048, 8192, 14336])
        shapes = [(hidden, hidden), (hidden // 4, hidden), (2 * inner, hidden), (hidden, inner)]
        tensors = [torch.empty(shape, device="meta") for shape in shapes for _ in range(layers)]
        costs = [float(newton_schulz_flops(min(shape), max(shape), steps=5)) for shape in shapes]
        by_shape = dict(zip(shapes, costs, strict=True))
        dealer = SimpleNamespace(pg_collection=SimpleNamespace(dp_cp=owners, expt_dp=1))
        group = {"params": tensors, "is_expert_parallel": False}

        layer_wise.shard_params(dealer, [SimpleNamespace(param_groups=[group])])

        loads = [sum(by_shape[tuple(one.shape)] for one in own) for own in dealer.dp_cp_params_list]
        bound = float(dealt_share(np.array([[float(layers)] * 4]), np.array([costs]), owners=float(owners)))
        assert bound <= max(loads) * (1 + 1e-9)
        excess.append(max(loads) / bound)
    assert max(excess) <= 2.1
    assert np.mean(excess) <= 1.25


def test_groups_are_those_of_megatron(monkeypatch):
    """Weights of its linears, each expert's apart, are Muon's; embedding, head, norms and biases are Adam's."""
    muon = pytest.importorskip("megatron.core.optimizer.muon", reason="needs megatron-core 0.16")
    if not hasattr(muon, "_get_param_groups"):
        pytest.skip("this release has other names")
    taken: list[Any] = []

    class Kept(torch.optim.SGD):
        """An optimizer that keeps what it is given."""

        def __init__(self, params: list[dict[str, Any]], **_: Any) -> None:
            taken.extend(one for group in params for one in group["params"])
            super().__init__(params or [torch.zeros(1)], lr=0.0)

    monkeypatch.setattr(muon, "HAVE_EMERGING_OPTIMIZERS", True)
    monkeypatch.setattr(muon, "TensorParallelMuon", Kept)
    monkeypatch.setattr(muon, "FP32Optimizer", lambda optimizer, *_: optimizer)
    monkeypatch.setattr(muon, "ChainedOptimizer", lambda optimizers: optimizers)
    monkeypatch.setattr(
        muon,
        "_get_param_groups",
        lambda chunks, *_: [
            {"params": [one for one in chunks[0].parameters() if one.requires_grad], "is_expert_parallel": False}
        ],
    )
    monkeypatch.setattr(muon, "get_megatron_optimizer", lambda *_, **__: SimpleNamespace(chained_optimizers=[]))
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**CONFIG))
    model.get_input_embeddings().weight.is_embedding_or_output_parameter = True
    model.get_output_embeddings().weight.is_embedding_or_output_parameter = True
    object.__setattr__(model, "config", SimpleNamespace(num_attention_heads=4, num_query_groups=2, kv_channels=16))
    config = muon.OptimizerConfig(optimizer="muon", lr=1e-3, bf16=False, fp16=False)

    muon.get_megatron_muon_optimizer(config, [model], pg_collection=SimpleNamespace(tp_ep_pp=None))

    found = model_from_config(CONFIG, name="llama", source="")
    counted = [one for layer in found.layers for one in layer_matrices(layer, whole_shape(found))]
    assert sum(one.numel() for one in taken) == sum(float(one.parameters * one.count) for one in counted)
