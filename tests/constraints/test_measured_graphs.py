"""What publicly ran is not refused: dispatchers and CUDA graphs of the measured runs."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from constraints import find_violations
from constraints.rules import frameworks, physics
from costmodel import catalog
from costmodel.facts.device import Cluster
from costmodel.facts.model import Model
from costmodel.strategy import CudaGraphs, Recompute, TokenDispatcher
from tests.builders import a_latent_model, a_model, a_moe_model
from tests.builders_cluster import a_strategy, facts
from tests.constraints.models import DENSE_LAYER, EXPERT_LAYER, MAMBA_LAYER, a_stack

RUNS = Path(__file__).parents[2] / "benchmarks" / "measured_runs" / "collected" / "runs.csv"

RULES = (
    physics.dispatchers_need_ep,
    physics.graphs_hold_what_the_model_has,
    frameworks.deepep_runs_within_nodes,
    frameworks.hybridep_runs_since_ampere,
    frameworks.preprocess_graphs_hold_the_router,
    frameworks.graphs_of_modules_leave_routed_experts_out,
    frameworks.graphs_of_iterations_with_experts_need_hybridep,
    frameworks.graphs_exclude_offloaded_layers,
    frameworks.full_recompute_excludes_graphs_of_modules,
    frameworks.recomputed_experts_exclude_graphs_of_routers,
    frameworks.ep_overlap_excludes_graphs_of_dense_layers,
    frameworks.ep_overlap_in_one_graph_needs_fused_experts,
)

MODULES = {ours: name for name, ours in frameworks.MEGATRON_MODULES.items()}


def graphs_of(text: str) -> CudaGraphs | None:
    """What a cell says; None where it names neither modules nor the whole iteration."""
    if "full_iteration" in text:
        return CudaGraphs.FULL_ITERATION
    if text.startswith("transformer_engine:"):
        return CudaGraphs.named(text.partition(":")[2])
    return CudaGraphs.NONE if text in ("", "none", "none stated") else None


def recompute_of(text: str) -> Recompute:
    """What a cell says; some layers in full count as nothing, the others are not."""
    if text.startswith("modules:"):
        return Recompute.of(*(MODULES[name] for name in text.removeprefix("modules:").split("+")))
    return Recompute.FULL if text == "full" else Recompute.NONE


def a_model_like(name: str) -> Model:
    """Which blocks a model has is all that the rules ask."""
    if "nemotron" in name and ("3" in name or "h" in name.partition("-")[0][-1:]):
        return a_stack(MAMBA_LAYER, EXPERT_LAYER, DENSE_LAYER)
    if "deepseek" in name or "kimi" in name:
        return a_latent_model(num_experts=4, top_k=2, expert_ffn_hidden_size=24, first_dense_layers=1)
    dense = any(word in name for word in ("llama3", "llama-3", "llama2", "gpt3", "nemotron4"))
    return a_model() if dense else a_moe_model()


def test_what_ran_is_allowed():
    """Every usable row that names its dispatcher, or what its graphs hold, breaks none of the rules of either."""
    with RUNS.open(encoding="utf-8", newline="") as lines:
        rows = [row for row in csv.DictReader(lines) if row["usable"] == "1"]
    checked = 0
    for row in rows:
        graphs = graphs_of(row["cuda_graph"])
        if graphs is None or not (row["token_dispatcher"] or graphs) or row["gpu"] not in catalog.devices():
            continue
        decisions: dict[str, Any] = {
            "pp": int(float(row["pp"])),
            "ep": int(float(row["ep"] or 1)),
            "recompute": recompute_of(row["recompute"]),
            "activation_offload": row["offload"].startswith("activations"),
            "token_dispatcher": TokenDispatcher.named(row["token_dispatcher"] or "alltoall"),
            "cuda_graphs": graphs,
            "ep_overlap": "ep" in row["overlaps"].replace(";", " ").replace(",", " ").split(),
        }
        given = facts(
            a_model_like(row["model"]), cluster=Cluster(device=catalog.equip_device(row["gpu"]), num_devices=64)
        )

        assert not find_violations(given, a_strategy(**decisions).decisions(), rules=RULES), (row["id"], row["model"])
        checked += 1
    assert checked > 100
