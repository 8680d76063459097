"""
Our rules against the verdicts of Megatron-LM's real parser.

``tests/data/megatron_validity_cases.csv`` holds 55 argument sets and what Megatron-LM main d98e8a64 (2026-08-22) said
to them: a model of 32 layers, 32 heads and 8 key-value heads with 128 sequences per step, and DeepSeek-V3 where a case
names it, experts, or the overlap of their all-to-alls.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from constraints import MEMORY_RULES, RULES, find_violations
from constraints.rule import Rule
from constraints.rules import frameworks, physics
from costmodel.facts.model import Attention, Experts, Layer, Mlp, Model
from costmodel.strategy import Recompute, Sharding
from costmodel.tables import Facts
from tests.builders_cluster import a_cluster, a_strategy, a_workload, facts
from tests.constraints.models import LATENT, a_stack

CSV = Path(__file__).parents[1] / "data" / "megatron_validity_cases.csv"

SMALL = a_stack(
    *[Layer(attention=Attention(num_heads=32, num_kv_heads=8, head_dim=128), feed_forward=Mlp(ffn_hidden_size=14336))]
    * 32
)

SPARSE_LAYER = Layer(
    attention=LATENT,
    feed_forward=Experts(num_experts=256, top_k=8, ffn_hidden_size=2048, shared_ffn_hidden_size=2048),
)
DEEPSEEK_V3 = a_stack(
    *[Layer(attention=LATENT, feed_forward=Mlp(ffn_hidden_size=18432))] * 3,
    *[SPARSE_LAYER] * 58,
    mtp_layers=(SPARSE_LAYER,),
)

LAYOUT = {"pp": 16, "dp": 32, "ep": 16, "vpp": 2, "pp_overlap": True}


@dataclass(frozen=True, kw_only=True)
class Case:
    """The strategy behind a name of the file; ``rule`` is ours that says why Megatron refuses."""

    strategy: dict[str, Any]
    rule: Rule | None = None
    model: Model = SMALL
    sequences: int = 128
    tokens: int = 4096


CASES = {
    "ok tp2 pp2 sp": Case(strategy={"tp": 2, "pp": 2, "dp": 4, "sequence_parallel": True}),
    "ok vpp by layers": Case(strategy={"tp": 2, "pp": 4, "dp": 2, "vpp": 4, "pp_overlap": True}),
    "ok vpp by count": Case(strategy={"tp": 2, "pp": 4, "dp": 2, "vpp": 4, "pp_overlap": True}),
    "pp not dividing, first/last": Case(strategy={"pp": 3, "dp": 4}),
    "layout non uniform pp4": Case(strategy={"pp": 4, "dp": 4}),
    "layout pp4 vpp2": Case(strategy={"tp": 2, "pp": 4, "dp": 2, "vpp": 2, "pp_overlap": True}),
    "layout empty stage ok?": Case(strategy={"pp": 4, "dp": 4}),
    "world not divisible": Case(strategy={"tp": 2, "dp": 7}, rule=physics.degrees_multiply_to_the_devices),
    "gbs not divisible by mbs*dp": Case(strategy={"dp": 16, "mbs": 3}, rule=physics.global_batch_splits_over_ranks),
    "tp16 of kv8": Case(strategy={"tp": 16}),
    "tp3 heads": Case(strategy={"tp": 3, "dp": 4}, rule=physics.heads_split_over_tp),
    "cp2": Case(strategy={"cp": 2, "dp": 8, "cp_overlap": True}),
    "cp2 seq odd": Case(strategy={"cp": 2, "dp": 8}, tokens=4097, rule=physics.sequence_splits_over_cp),
    "tp overlap no sp": Case(
        strategy={"tp": 2, "dp": 8, "tp_overlap": True}, rule=frameworks.tp_overlap_needs_sequence_parallelism
    ),
    "recompute full uniform 1": Case(strategy={"dp": 16, "recompute": Recompute.FULL}),
    "recompute full block 4 pp4": Case(strategy={"pp": 4, "dp": 4, "recompute": Recompute.FULL}),
    "recompute selective mlp layernorm": Case(strategy={"dp": 16, "recompute": Recompute.of("mlp", "norms")}),
    "fine grained offload": Case(strategy={"dp": 16, "activation_offload": True}),
    "optimizer offload": Case(strategy={"dp": 16, "sharding": Sharding.OPTIMIZER, "optimizer_offload": True}),
    "torch fsdp2 + pp": Case(
        strategy={"pp": 2, "dp": 8, "sharding": Sharding.WEIGHTS}, rule=frameworks.pipelines_keep_gradients_whole
    ),
    "dsv3 pp16 ep16 layout": Case(strategy=LAYOUT, model=DEEPSEEK_V3, sequences=8192),
    "dsv3 + a2a overlap + wgrad": Case(strategy=LAYOUT | {"ep_overlap": True}, model=DEEPSEEK_V3, sequences=8192),
    "a2a overlap + full recompute": Case(
        strategy=LAYOUT | {"ep_overlap": True, "recompute": Recompute.FULL},
        model=DEEPSEEK_V3,
        sequences=8192,
        rule=frameworks.ep_overlap_excludes_full_recompute,
    ),
    "a2a overlap pp without vpp": Case(
        strategy=LAYOUT | {"ep_overlap": True, "vpp": 1, "pp_overlap": False},
        model=DEEPSEEK_V3,
        sequences=8192,
        rule=frameworks.ep_overlap_in_a_pipeline_needs_interleaving,
    ),
    "ep not dividing experts": Case(
        strategy={"dp": 480, "ep": 15}, model=DEEPSEEK_V3, sequences=960, rule=physics.experts_split_over_ep
    ),
    "recompute mla_up_proj moe_act": Case(
        strategy=LAYOUT | {"recompute": Recompute.SELECTIVE}, model=DEEPSEEK_V3, sequences=8192
    ),
}

NOT_OURS = {
    "both vpp spellings": "a spelling: the exporter writes one",
    "pp5 of 32 layers": "Megatron's uniform split: the planner writes a layout, which may be uneven",
    "first/last bad sum": "a spelling of the layout",
    "first/last + layers-per-vstage": "a spelling of the layout",
    "layout wrong count": "a spelling of the layout",
    "layout + account_for_embedding": "a spelling of the layout",
    "sp with tp1": "Megatron drops the flag silently: we refuse what has no effect",
    "cp a2a+p2p without hier": "the kind of context-parallel exchange is no decision",
    "cp a2a+p2p hier": "the kind of context-parallel exchange is no decision",
    "overlap param gather w/o distopt": "the exporter writes it with sharded states only",
    "recompute full no method": "the exporter writes the method",
    "recompute selective + num layers": "a spelling of recompute",
    "selective bad module": "the modules are no decision",
    "fine grained offload mlp (bad)": "the modules are no decision",
    "layer cpu offload + pp": "another mechanism: ours is the fine-grained one",
    "layer cpu offload": "another mechanism: ours is the fine-grained one",
    "optimizer offload w/o precision aware": "the exporter writes the flag",
    "fp8 mxfp8": "precision is a fact of the workload",
    "fp8 blockwise": "precision is a fact of the workload",
    "fp4": "precision is a fact of the workload",
    "fp4+fp8": "precision is a fact of the workload",
    "torch fsdp2": "refused for an environment variable, which the exporter writes",
    "cuda graph te attn": "CUDA graphs are no decision",
    "cuda graph local full": "CUDA graphs are no decision",
    "num optimizer instances 2": "optimizer instances are no decision",
    "delay wgrad alone": "delayed weight gradients are no decision",
    "mla + gqa": "a spelling of the model",
    "ep*etp*pp not dividing world": "the parser misses it: the test below",
    "hybrid ep flex": "the dispatcher is no decision",
}


def the_file() -> dict[str, tuple[int, bool]]:
    """World size and whether Megatron took it, by name."""
    with CSV.open() as lines:
        return {
            row["case"]: (int(row["world_size"]), row["verdict"].startswith("VALID")) for row in csv.DictReader(lines)
        }


def one_domain(case: Case, num_devices: int) -> Facts:
    """Megatron does not look at the network: all devices share one node and one NVLink domain."""
    network = {"name": "nvlink", "num_peers": num_devices, "bandwidth": 4e11, "latency": 1e-6}
    return facts(
        case.model,
        cluster=a_cluster(num_devices, devices_per_node=num_devices, networks=(network,)),
        workload=a_workload(global_batch_size=case.sequences, sequence_length=case.tokens),
    )


def refusals(case: Case, num_devices: int) -> tuple[Rule, ...]:
    """Our rules that the case breaks; the parser does not look at memory."""
    rules = [rule for rule in RULES if rule not in MEMORY_RULES]
    return find_violations(one_domain(case, num_devices), a_strategy(**case.strategy).decisions(), rules=rules)


@pytest.mark.parametrize("name", CASES)
def test_rules_agree_with_megatron(name):
    """What Megatron takes breaks no rule of ours; what it refuses breaks the one that names the reason."""
    case = CASES[name]
    num_devices, megatron_takes_it = the_file()[name]

    broken = refusals(case, num_devices)

    assert (broken == ()) == megatron_takes_it
    assert case.rule is None or case.rule in broken


def test_every_case_is_judged():
    """Each case of the file is a strategy of ours or has a reason why it is not."""
    assert {*CASES, *NOT_OURS} == {*the_file()}
    assert not {*CASES} & {*NOT_OURS}


def test_expert_groups_beyond_the_world_are_refused():
    """64 expert-parallel times 16 expert-tensor-parallel ranks passed Megatron's parser on 512 GPUs (ecosystem.md)."""
    case = Case(strategy={"dp": 512, "ep": 64, "etp": 16}, model=DEEPSEEK_V3, sequences=512)

    assert the_file()["ep*etp*pp not dividing world"] == (512, True)
    assert physics.expert_groups_tile_a_stage in refusals(case, 512)


def test_flags_without_effect_are_refused():
    """Megatron takes sequence parallelism without tensor parallelism, and drops it."""
    case = Case(strategy={"dp": 16, "sequence_parallel": True})

    assert the_file()["sp with tp1"] == (16, True)
    assert refusals(case, 16) == (physics.sequence_parallelism_needs_tp,)
