"""Random strategies whose degrees fit together, and the models and profiles that tests of a whole step put them on."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from costmodel.facts.device import Cluster
from costmodel.facts.model import Model
from costmodel.strategy import (
    DECISIONS,
    ENUMS,
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
from tests.builders import a_latent_model, a_model, a_moe_model
from tests.builders_cluster import a_cluster, a_workload, achieved, facts

NUM_LAYERS = 14

FEATURES = ("sharding", "recompute", "activation_offload", "optimizer_offload", "token_dispatcher", "cuda_graphs")
FEATURE_OVERLAPS = ("tp_overlap", "cp_overlap", "ep_overlap", "pp_overlap", "dp_overlap")

GRAPHS = (
    CudaGraphs.NONE,
    CudaGraphs.FULL_ITERATION,
    CudaGraphs.of("attn"),
    CudaGraphs.of("attn", "mlp"),
    CudaGraphs.of("mlp", "moe_router"),
    CudaGraphs.of("attn", "moe_router", "moe_preprocess"),
)
"""Nothing, everything, and some sets of modules."""

_REALISTIC: dict[str, Any] = {
    "hidden_size": 2048,
    "num_layers": NUM_LAYERS,
    "num_heads": 16,
    "num_kv_heads": 8,
    "ffn_hidden_size": 6144,
    "vocab_size": 64000,
}
_EXPERTS: dict[str, Any] = {
    "num_experts": 16,
    "top_k": 4,
    "expert_ffn_hidden_size": 1536,
    "shared_ffn_hidden_size": 1536,
    "first_dense_layers": 2,
}
_LATENT: dict[str, Any] = {
    "num_kv_heads": None,
    "q_lora_rank": 512,
    "kv_lora_rank": 256,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}

DENSE = a_model(**_REALISTIC)
TIED = a_model(**_REALISTIC, tied_embeddings=True)
MOE = a_moe_model(**(_REALISTIC | _EXPERTS))
LATENT_MOE = a_latent_model(**(_REALISTIC | _LATENT | _EXPERTS), mtp_layers=1)

MODELS: dict[str, Model] = {"dense": DENSE, "tied": TIED, "moe": MOE, "latent-moe-mtp": LATENT_MOE}


def the_facts(model: Model, *, cluster: Cluster | None = None, **profile: Any) -> Facts:
    """The model on the test cluster, its profile as told, matmuls at 60 % of their peak."""
    given = facts(model, cluster=cluster or a_cluster(), workload=a_workload(global_batch_size=256))
    return with_profile(given, **({"matmul_efficiency": {"bf16": 0.6}} | profile))


def with_profile(given: Facts, **changes: Any) -> Facts:
    """The same facts, the profile changed."""
    device = given.cluster.device
    device = replace(device, **achieved(device, **changes))
    return replace(given, cluster=replace(given.cluster, device=device))


def with_device(given: Facts, **changes: Any) -> Facts:
    """The same facts, the device changed."""
    return replace(given, cluster=replace(given.cluster, device=replace(given.cluster.device, **changes)))


def random_degrees(model: Model, num: int, *, seed: int, gbs: int = 256) -> dict[str, NDArray[np.int64]]:
    """Degrees that multiply up, experts that tile a stage, micro-batches that fill the pipeline."""
    rng = np.random.default_rng(seed)
    num_experts = max((getattr(kind.feed_forward, "num_experts", 1) for kind in model.kinds), default=1)
    choices: dict[str, list[int]] = {
        "tp": [1, 2, 4, 8],
        "cp": [1, 2, 4],
        "pp": [1, 2, 4, 8],
        "dp": [1, 2, 4, 8, 16],
        "ep": [1, 2, 4, 8] if num_experts > 1 else [1],
        "etp": [1, 2] if num_experts > 1 else [1],
        "vpp": [1, 2, 4],
        "mbs": [1, 2, 4],
        "sequence_parallel": [0, 1],
        "schedule": [Schedule.ONE_F_ONE_B],
        "vocabulary": [Vocabulary.ENDS],
    }
    drawn = {name: rng.choice(values, size=200 * num) for name, values in choices.items()}
    tp, cp, pp, dp, vpp = (drawn[name] for name in ("tp", "cp", "pp", "dp", "vpp"))
    experts = drawn["ep"] * drawn["etp"]
    m = gbs // (dp * drawn["mbs"])
    fits = (tp * cp * dp) % experts == 0
    fits &= (gbs % (dp * drawn["mbs"]) == 0) & (m >= pp) & (pp * vpp <= model.num_layers + 2)
    fits &= (vpp == 1) | ((pp > 1) & (m % pp == 0))
    fits &= (drawn["sequence_parallel"] == 0) | (tp > 1)
    if num_experts > 1:
        fits &= (drawn["sequence_parallel"] == 1) | (tp == 1)
    index = np.flatnonzero(fits)[:num]
    assert len(index) == num, "Too few random strategies fit."
    degrees = {name: values[index] for name, values in drawn.items()}
    return degrees | {"group": default_microbatch_group(pp=degrees["pp"], vpp=degrees["vpp"])}


def random_strategies(model: Model, num: int, *, seed: int) -> dict[str, NDArray[np.int64]]:
    """Random degrees with random features; gradients and weights are sharded only without a pipeline."""
    rng = np.random.default_rng(seed + 1)
    degrees = random_degrees(model, num, seed=seed)
    features = {
        "sharding": rng.integers(0, len(Sharding), num),
        "recompute": rng.integers(0, len(Recompute), num),
        **{name: rng.integers(0, 2, num) for name in ("activation_offload", "optimizer_offload", *FEATURE_OVERLAPS)},
        "token_dispatcher": rng.integers(0, len(TokenDispatcher), num),
        "cuda_graphs": rng.choice([int(graphs) for graphs in GRAPHS], num),
    }
    pipelined = np.minimum(features["sharding"], int(Sharding.OPTIMIZER))
    features["sharding"] = np.where(degrees["pp"] > 1, pipelined, features["sharding"])
    return degrees | features


def one_of(strategies: dict[str, NDArray[np.int64]], index: int) -> Strategy:
    """The strategy in one row."""
    values: dict[str, Any] = {name: strategies[name][index].item() for name in DECISIONS}
    flags = ("sequence_parallel", "activation_offload", "optimizer_offload", *FEATURE_OVERLAPS)
    return Strategy(
        **values
        | {name: bool(values[name]) for name in flags}
        | {name: kind(values[name]) for name, kind in ENUMS.items()}
    )


def all_features() -> list[dict[str, int]]:
    """Every combination of the features."""
    flags = dict.fromkeys(("activation_offload", "optimizer_offload", *FEATURE_OVERLAPS), (0, 1))
    domains: dict[str, tuple[int, ...]] = {
        "sharding": tuple(range(len(Sharding))),
        "recompute": tuple(range(len(Recompute))),
        "token_dispatcher": (TokenDispatcher.ALLTOALL, TokenDispatcher.HYBRIDEP),
        "cuda_graphs": (CudaGraphs.NONE, CudaGraphs.FULL_ITERATION, CudaGraphs.of("attn", "moe_router")),
        **flags,
    }
    return [dict(zip(domains, map(int, values), strict=True)) for values in product(*domains.values())]


PROFILES: dict[str, dict[str, Any]] = {
    "no slow-down": {},
    "slow communication": {"overlap_slowdown_communication": 1.2},
    "both slow": {"overlap_slowdown_communication": 1.5, "overlap_slowdown_compute": 1.3, "tp_contention": 0.0233},
    "very slow": {"overlap_slowdown_communication": 4.0, "overlap_slowdown_compute": 2.0},
    "measured overlap": {"dp_overlap": {"unhidden": 0.303, "slowdown": 1.64, "window": 0.216}},
    "all constants": {
        "overlap_slowdown_communication": 1.2,
        "head_pipeline_fill_fraction": 0.3,
        "embedding_buffers": 1.0,
        "working_layers": 2.0,
        "parameter_pass_bytes": 24.0,
        "embedding_head_fraction": 0.5,
        "kernel_gap_seconds": 4e-6,
        "attention_half_length": 1000.0,
        "tp_contention": 0.1,
        "straggler_spread": 0.02,
    },
    "Muon": {"is_muon": True, "muon_tp_mode": "duplicated", "launch_overhead_seconds": 1e-5},
}

PAIRS = [
    (model, profile)
    for (row, model), (column, profile) in product(enumerate(MODELS), enumerate(PROFILES))
    if (row + column) % 2 == 0
]
"""Like the black squares of a board: each profile on a dense model and on one of experts, each model by turns."""

models = pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
models_by_profiles = pytest.mark.parametrize(
    ("model", "profile"),
    [(MODELS[model], PROFILES[profile]) for model, profile in PAIRS],
    ids=["-".join(one) for one in PAIRS],
)


def with_networks(given: Facts, *, inside: float = 1.0, outside: float = 1.0) -> Facts:
    """The same facts on faster or slower networks."""
    first, last = given.cluster.device.networks
    return with_device(
        given,
        networks=(
            replace(first, bandwidth=first.bandwidth * inside),
            replace(last, bandwidth=last.bandwidth * outside),
        ),
    )
