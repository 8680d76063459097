"""The rows of MoFa's tables as the project's own facts and strategies."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from costmodel import catalog
from costmodel.facts.device import Cluster, EquippedDevice, Network
from costmodel.facts.workload import Workload
from costmodel.lowering import Shape, layer_operators
from costmodel.strategy import (
    CudaGraphs,
    Recompute,
    Schedule,
    Sharding,
    Strategy,
    TokenDispatcher,
    Vocabulary,
    default_microbatch_group,
)
from costmodel.tables import Facts

FOLDER = Path(__file__).parent
TOKENS = 1e12
"""Tokens of every training in Table 5: what its printed numbers of steps are for (the text says 15 T)."""

TABLE5_SEQUENCE_LENGTH = 4096
"""Sequence length of every column of Table 5, the 405B model's too: that of its printed numbers of steps."""

HOP_SECONDS = {1 / 8: 0.01302, 1 / 4: 0.02155, 1 / 2: 0.0458}
"""Seconds of one pipeline hop by mbs / tp, as the profile ``mofa-b`` measures them; decodes the PP column's chunks."""


@cache
def table(number: int) -> pd.DataFrame:
    """One of the paper's tables, columns decoded."""
    return pd.read_csv(FOLDER / f"table{number}.csv")


NUM_SLOTS = 128
"""Layer slots of LLaMA3-405B in the paper: 126 layers, embedding and head."""

OPTIMIZED_LAYER_SECONDS = 0.00384
"""Seconds that Table 9 saves per layer and micro-batch when its slow attention operator reaches 389.3 TFLOPS."""


def llama_facts(num_devices: int, global_batch_size: int, *, optimized: bool = False) -> Facts:
    """LLaMA3-405B on GPU B: Tables 6, 7 and 9; ``optimized`` with the faster attention operator of Table 9."""
    device = catalog.equip_device("mofa-b")
    return Facts(
        model=catalog.model("mofa-llama3-405b"),
        cluster=Cluster(device=with_faster_attention(device) if optimized else device, num_devices=num_devices),
        workload=workload(global_batch_size, sequence_length=8192),
    )


def deepseek_facts(row: Any) -> Facts:
    """DeepSeek-V3 on GPU B in nodes of the row's size: Table 8."""
    device = with_nodes_of(catalog.equip_device("mofa-b-deepseek"), int(row.node_size))
    return Facts(
        model=catalog.model("mofa-deepseek-v3"),
        cluster=Cluster(device=device, num_devices=int(row.n_gpu)),
        workload=workload(int(row.gbs), sequence_length=4096),
    )


def llama_strategy(row: Any, *, optimizer: str, vpp: int, mbs: int = 2, **features: Any) -> Strategy:
    """
    The strategy of a row of Table 6, 7 or 9: activations offloaded, transfers between ranks overlapped.

    Parameters
    ----------
    row
        With ``t``, ``p``, ``d``.
    optimizer
        ``cpu`` or ``dist``.
    vpp, mbs
        Chunks per rank; sequences per micro-batch.
    features
        Overlaps.
    """
    decisions: dict[str, Any] = {
        "tp": int(row.t),
        "dp": int(row.d),
        "sequence_parallel": True,
        "sharding": Sharding.OPTIMIZER if optimizer == "dist" else Sharding.NONE,
        "activation_offload": True,
        "optimizer_offload": optimizer == "cpu",
        "tp_overlap": True,
    }
    return _strategy(row, vpp=vpp, mbs=mbs, **{**decisions, **features})


def _strategy(row: Any, *, vpp: int, mbs: int, **decisions: Any) -> Strategy:
    """Return the strategy of a row of any table, with decisions that are not those of most rows."""
    usual: dict[str, Any] = {
        "tp": 1,
        "cp": 1,
        "ep": 1,
        "etp": 1,
        "group": int(default_microbatch_group(pp=int(row.p), vpp=vpp)),
        "sequence_parallel": False,
        "schedule": Schedule.ONE_F_ONE_B,
        "vocabulary": Vocabulary.ENDS,
        "sharding": Sharding.NONE,
        "recompute": Recompute.NONE,
        "activation_offload": False,
        "token_dispatcher": TokenDispatcher.ALLTOALL,
        "cuda_graphs": CudaGraphs.NONE,
        "tp_overlap": False,
        "cp_overlap": False,
        "ep_overlap": False,
        "pp_overlap": True,
        "dp_overlap": False,
    }
    return Strategy(**{**usual, "pp": int(row.p), "vpp": vpp, "mbs": mbs, **decisions})


def table6_strategy(row: Any) -> Strategy:
    """The strategy of a row of Table 6, its optimizer as memory and times say (labels of 12 rows are swapped)."""
    return llama_strategy(
        row,
        optimizer=row.optimizer_actual,
        vpp=chunks_per_rank(row),
        mbs=int(row.mbs),
        tp_overlap=bool(row.tp_overlap),
        dp_overlap=bool(row.dp_overlap),
    )


def table9_strategy(row: Any) -> Strategy:
    """The strategy of a row of Table 9."""
    optimizer = "cpu" if row.d == 1 else "dist"
    return llama_strategy(row, optimizer=optimizer, vpp=int(row.v), dp_overlap=row.d > 1)


def table7_strategy(row: Any) -> Strategy:
    """
    The strategy of a row of Table 7.

    mbs = 2 on 64 GPUs and 1 on the others, as their memory says (and m >= p wants); v = 8 as in Table 6's best, or as
    many chunks as there are slots.
    """
    optimizer = "cpu" if row.optimizer.startswith("CPU") else "dist"
    mbs = 2 if row.n_gpu == 64 else 1
    return llama_strategy(row, optimizer=optimizer, vpp=min(8, NUM_SLOTS // int(row.p)), mbs=mbs)


def table8_strategy(row: Any) -> Strategy:
    """
    The strategy of a row of Table 8: attention is replicated over d e ranks, experts over d.

    64 slots, one layer per chunk: the PP column is 126 hops.
    """
    ep = int(row.e)
    decisions = {"dp": int(row.d) * ep, "ep": ep, "optimizer_offload": True, "ep_overlap": True}
    return _strategy(row, vpp=64 // int(row.p), mbs=int(row.mbs), **decisions)


def chunks_per_rank(row: Any) -> int:
    """Chunks per pipeline rank from the PP column, 2 (p v - 1) hops."""
    chunks: int = round((row.T_pp / (2 * HOP_SECONDS[row.mbs / row.t]) + 1) / row.p)
    return chunks


def workload(global_batch_size: int, *, sequence_length: int) -> Workload:
    """A step's batch in the paper's precision."""
    return Workload(
        global_batch_size=global_batch_size,
        sequence_length=sequence_length,
        tokens=TOKENS,
        precision=catalog.precision("mofa"),
    )


def with_nodes_of(device: EquippedDevice, devices_per_node: int) -> EquippedDevice:
    """The device in nodes of another size."""
    node, *others = device.networks
    inner: Network = replace(node, num_peers=devices_per_node)
    return replace(device, devices_per_node=devices_per_node, networks=(inner, *others))


def with_faster_attention(device: EquippedDevice) -> EquippedDevice:
    """GPU B with the attention of Table 9's optimized rows: a layer at (t, mbs) = (8, 2) takes 3.84 ms less."""
    shape = Shape(hidden_size=16384, sequence_length=8192, activation_bytes=2, causal=False, mbs=2, tp=8)
    operators = layer_operators(catalog.model("mofa-llama3-405b").layers[0], shape)
    attention = next(operator for operator in operators if operator.kind == "attention")
    flops = float(attention.flops + attention.backward_flops)
    known = device.constants.measured
    slow = next(rate for rate in known.rates if (rate.rows, rate.shards) == (2 * 8192, 8))
    seconds = flops / slow.flops_per_second - OPTIMIZED_LAYER_SECONDS
    faster = replace(slow, kinds=("attention:core_attention",), flops_per_second=flops / seconds)
    measured = replace(known, rates=(faster, *known.rates))
    return replace(device, constants=replace(device.constants, measured=measured))
