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

from constraints import MEMORY_RULES, RULES, find_violations
from constraints.rule import Rule
from constraints.rules import physics
from costmodel.facts.model import Attention, Experts, Layer, Mlp
from costmodel.tables import Facts
from tests.builders_cluster import a_cluster, a_strategy, a_workload, facts
from tests.cases import in_one_case, read_table
from tests.constraints.models import LATENT, a_stack
from tests.constraints.rule_cases import find_rule, named

CSV = Path(__file__).parents[1] / "data" / "megatron_validity_cases.csv"

SMALL = a_stack(
    *[Layer(attention=Attention(num_heads=32, num_kv_heads=8, head_dim=128), feed_forward=Mlp(ffn_hidden_size=14336))]
    * 32
)

SPARSE_LAYER = Layer(
    attention=LATENT, feed_forward=Experts(num_experts=256, top_k=8, ffn_hidden_size=2048, shared_ffn_hidden_size=2048)
)
DEEPSEEK_V3 = a_stack(
    *[Layer(attention=LATENT, feed_forward=Mlp(ffn_hidden_size=18432))] * 3,
    *[SPARSE_LAYER] * 58,
    mtp_layers=(SPARSE_LAYER,),
)


MODELS = {"SMALL": SMALL, "DEEPSEEK_V3": DEEPSEEK_V3}


@dataclass(frozen=True, kw_only=True)
class Case:
    """The strategy behind a name of the file; ``rule`` is ours that says why Megatron refuses."""

    strategy: dict[str, Any]
    rule: str = ""
    model: str = "SMALL"
    sequences: int = 128
    tokens: int = 4096


TABLE = read_table("megatron_validity_cases")
CASES = {name: Case(**row) for name, row in TABLE["ours"].items()}


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
        MODELS[case.model],
        cluster=a_cluster(num_devices, devices_per_node=num_devices, networks=(network,)),
        workload=a_workload(global_batch_size=case.sequences, sequence_length=case.tokens),
    )


def refusals(case: Case, num_devices: int) -> tuple[Rule, ...]:
    """Our rules that the case breaks; the parser does not look at memory."""
    rules = [rule for rule in RULES if rule not in MEMORY_RULES]
    return find_violations(one_domain(case, num_devices), a_strategy(**named(case.strategy)).decisions(), rules=rules)


@in_one_case("name", CASES)
def test_rules_agree_with_megatron(name):
    """What Megatron takes breaks no rule of ours; what it refuses breaks the one that names the reason."""
    case = CASES[name]
    num_devices, megatron_takes_it = the_file()[name]

    broken = refusals(case, num_devices)

    assert (broken == ()) == megatron_takes_it
    assert not case.rule or find_rule(case.rule) in broken


def test_every_case_is_judged():
    """Each case of the file is a strategy of ours or has a reason why it is not."""
    assert {*CASES, *TABLE["not_ours"]} == {*the_file()}
    assert not {*CASES} & {*TABLE["not_ours"]}


def test_expert_groups_beyond_the_world_are_refused():
    """64 expert-parallel times 16 expert-tensor-parallel ranks passed Megatron's parser on 512 GPUs (ecosystem.md)."""
    case = Case(strategy={"dp": 512, "ep": 64, "etp": 16}, model="DEEPSEEK_V3", sequences=512)

    assert the_file()["ep*etp*pp not dividing world"] == (512, True)
    assert physics.expert_groups_tile_a_stage in refusals(case, 512)


def test_flags_without_effect_are_refused():
    """Megatron takes sequence parallelism without tensor parallelism, and drops it."""
    case = Case(strategy={"dp": 16, "sequence_parallel": True})

    assert the_file()["sp with tp1"] == (16, True)
    assert refusals(case, 16) == (physics.sequence_parallelism_needs_tp,)
