"""
Plans as overrides of Megatron-Bridge recipes.

Fields are looked up in the sources of ``megatron-bridge==0.3.1`` and ``megatron-core==0.16.1``, and overrides are read
by Hydra's own grammar, where ``.ci/run`` installs them; importing the former needs Transformer Engine.
"""

from __future__ import annotations

import ast
import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest

from constraints.targets import effective_settings
from costmodel.errors import SpecError
from costmodel.strategy import CudaGraphs
from planner import load
from planner.frameworks.megatron.bridge import (
    DATA,
    KEPT,
    OVERLAP,
    PRECISION,
    bridge_entries,
    precision_of,
    to_megatron_bridge,
)
from planner.frameworks.megatron.options import options
from planner.frameworks.megatron.releases import lacking
from tests.builders_estimate import estimate_by_recipes as estimate
from tests.builders_megatron import every_plan
from tests.builders_plan import planned_exports
from tests.cases import read_table
from tests.planner.test_megatron_lm import DEEPSEEK, JOB, a_plan

CLASSES = read_table("megatron_bridge")["classes"]
"""The classes whose fields a section of the configuration has (megatron/bridge/training/config.py)."""


def overrides_of(job=JOB, **decisions):
    """Texts by field."""
    return dict(word.split("=", 1) for word in words_of(to_megatron_bridge(a_plan(job, **decisions))))


def words_of(exported):
    """The overrides of a file, without its comments."""
    return shlex.split(exported.files["bridge-overrides.txt"], comments=True)


# --- without the package -----------------------------------------------------------------------------------


def test_the_same_plan_in_other_names():
    """Switches are true or false, patterns are lists, layouts are quoted for Hydra."""
    overrides = overrides_of(DEEPSEEK, tp=2, pp=16, ep=16, vpp=2, pp_overlap=True, ep_overlap=True)

    expected = {
        "model.tensor_model_parallel_size": "2",
        "model.pipeline_model_parallel_layout": "'Et|(t*2|)*30mL'",
        "model.moe_layer_freq": f"[{','.join(['0'] * 3 + ['1'] * 58)}]",
        "model.share_embeddings_and_output_weights": "false",
        "model.recompute_granularity": "null",
        "model.account_for_loss_in_pipeline_split": "false",
        "ddp.use_megatron_fsdp": "false",
    }
    assert overrides.items() >= expected.items()
    for overlap in ("overlap_moe_expert_parallel_comm:true", "tp_comm_overlap:true", "delay_wgrad_compute:false"):
        assert overlap in overrides["++comm_overlap"]
    assert "bf16:true" in overrides["++mixed_precision"]
    assert "fp8:null" in overrides["++mixed_precision"]


def test_as_many_checkpoints_are_kept_as_the_plan_says():
    """Three unless a job says otherwise; Megatron-LM has no option for it."""
    assert overrides_of()[KEPT] == "3"
    assert overrides_of({**JOB, "reliability": {"keep_checkpoints": 5}})[KEPT] == "5"


@pytest.mark.parametrize(
    ("framework", "version", "fields"),
    [
        ("megatron-bridge-26.02", "0.3.1", {"model.cuda_graph_impl": "local"}),
        ("megatron-bridge-26.04", "0.3.1", {"model.cuda_graph_impl": "local"}),
        ("megatron-bridge-26.06", "0.5", {"model.cuda_graph_impl": "full_iteration", "model.cuda_graph_modules": "[]"}),
        ("megatron-bridge-26.08", "0.6", {"model.cuda_graph_impl": "full_iteration"}),
        ("megatron-lm-0.18", "0.6", {"model.cuda_graph_impl": "full_iteration"}),
    ],
)
def test_the_costed_release_is_written(framework, version, fields):
    """Graphs are as its core has them; where no package of it exists, the file names the fields that may differ."""
    job = JOB | {"cluster": {**JOB["cluster"], "framework": framework}}
    exported = to_megatron_bridge(a_plan(job, cuda_graphs="full_iteration"))
    first, *others = [line for line in exported.files["bridge-overrides.txt"].splitlines() if line.startswith("#")]

    assert exported.version == version
    assert dict(word.split("=", 1) for word in words_of(exported)).items() >= fields.items()
    assert first == f"# Overrides for Megatron-Bridge {version}; costed as {framework}."
    assert bool(others) is (framework != "megatron-bridge-26.02")
    assert all("may differ" in line and ("comm_overlap" in line) for line in others)


def test_a_release_that_cannot_run_the_plan_refuses_it():
    """Experts in one graph need what container 26.06 brought (core 0.18.2, transformer_config.py:1140)."""
    decisions = {"ep": 8, "etp": 1, "token_dispatcher": "hybridep", "cuda_graphs": "full_iteration"}
    plan = a_plan(JOB | {"model": "mixtral-8x7b"}, **decisions)
    overrides = dict(word.split("=", 1) for word in words_of(to_megatron_bridge(plan)))

    assert overrides["model.moe_paged_stash"] == "true"
    assert overrides["model.moe_expert_rank_capacity_factor"] == "1.5"
    with pytest.raises(SpecError, match=r"Megatron-Bridge 0\.3\.1 refuses this plan:\n.*\nThese take it: 0\.5, 0\.6"):
        to_megatron_bridge(plan, "0.3.1")


def test_facts_of_the_model_take_the_place_of_the_recipe_s():
    """Llama 3.1's scaling and DeepSeek-V3's router are fields; groups that Qwen3 has not are off."""
    llama, deepseek = overrides_of({**JOB, "model": "llama3-405b"}), overrides_of(DEEPSEEK, tp=2, pp=16, ep=16)
    qwen = overrides_of({**JOB, "model": "qwen3-30b-a3b"})

    scaled = {"model.rotary_base": "500000", "model.rope_scaling": "true", "model.rope_scaling_factor": "8.0"}
    routed = {"model.moe_router_score_function": "sigmoid", "model.moe_router_num_groups": "8", "model.beta_fast": "32"}
    plain = {"model.moe_router_num_groups": "null", "model.rope_scaling": "false", "model.rotary_base": "1000000"}
    assert llama.items() >= scaled.items()
    assert deepseek.items() >= routed.items()
    assert qwen.items() >= plain.items()


def test_numbers_are_not_quoted():
    """The clamp and the offset of gpt-oss's activation: in quotes they would be text."""
    overrides = overrides_of({**JOB, "model": "gpt-oss-20b"})

    assert overrides["model.activation_func_clamp_value"] == "7.0"
    assert (overrides["model.glu_linear_offset"], overrides["model.gated_linear_unit"]) == ("1.0", "true")


@pytest.mark.slow
def test_all_plans_of_a_model_say_the_same_fields():
    """What one plan sets another one sets too, also to its value without an option: nothing is left to the recipe."""
    written: dict[tuple[str, int], set[frozenset[str]]] = {}

    for plan in every_plan()[:60]:
        if effective_settings(plan.facts, plan.strategy).attention == "flash":
            entries, model = bridge_entries(plan)[0], plan.facts.model
            keys = {f"{key}.{name}" for key in (OVERLAP, PRECISION) for name in entries[key]}
            written.setdefault((model.name, len(model.mtp_layers)), set()).add(frozenset(entries.keys() | keys))

    assert len(written) > 10
    assert {len(fields) for fields in written.values()} == {1}


def test_uneven_stages_of_hybrids_are_refused():
    """They are a pattern with bars, for which it has no field."""
    job = {**JOB, "model": "nemotron-h-8b", "strategy": {"pp": 2, "layout": {"layers": [25, 27]}}}

    with pytest.raises(
        SpecError, match=r"layout = its own stages: In Megatron-Bridge .* has no field for --hybrid-layer-pattern"
    ):
        to_megatron_bridge(estimate(load(job), {}).plan)


def test_refusals_call_it_by_its_name():
    """They are Megatron Core's."""
    plan = estimate(load(JOB, ["search.framework_rules=false"]), {"pp": 4, "schedule": "zb_v", "vpp": 2}).plan

    with pytest.raises(SpecError, match=r"Megatron-Bridge cannot express this plan:\n  - schedule = zb_v: "):
        to_megatron_bridge(plan)


# --- with it -----------------------------------------------------------------------------------------------


def fields(classes=CLASSES):
    """Names of the annotated fields of each section's classes, of all their namesakes in both packages."""
    spec = find_spec("megatron")
    places = [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []
    files = [path for place in places for part in ("bridge", "core") for path in (place / part).rglob("*.py")]
    if not any(place.joinpath("bridge").is_dir() for place in places):
        pytest.skip("megatron-bridge is not installed")
    wanted = {name for names in classes.values() for name in names}
    found = {name: set() for name in wanted}
    for path in files:
        text = path.read_text(encoding="utf-8")
        if any(f"class {name}" in text for name in wanted):
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.ClassDef) and node.name in wanted:
                    found[node.name] |= {one.target.id for one in node.body if isinstance(one, ast.AnnAssign)}
    return {section: set().union(*(found[name] for name in names)) for section, names in classes.items()}


OF_MAIN = {"validation.eval_interval", "validation.eval_iters"}
"""Fields of a section that the main branch of 2026-08-22 has; releases have them in ``train``."""


def test_every_field_is_one_of_the_configuration():
    """None is misspelled: Hydra refuses a field that the configuration has not; newer ones are options of that core."""
    known = fields({**CLASSES, "model": (*CLASSES["model"], "GPTOSSProvider")})  # which alone has YaRN's
    keys = {key for option in options().values() for key in option.bridge or ()} | {*DATA.defaults, KEPT}
    keys |= {f"{PRECISION}.{name}" for name in precision_of(a_plan(), {}) if name != "_target_"}
    keys |= {f"comm_overlap.{name}" for name in DATA.overlaps if name != "_target_"}

    unknown = {key for key in keys - OF_MAIN if key.partition(".")[2] not in known[key.partition(".")[0]]}
    newer = {f"model.{name.removeprefix('--').replace('-', '_')}" for name in options() if since_core_0_18(name)}

    assert unknown <= newer
    assert unknown <= DATA.of_core_0_18.keys()
    assert not unknown & DATA.defaults.keys()


def since_core_0_18(name):
    """Whether an option is one that core 0.17 has not and 0.18 has (``releases.csv``)."""
    return [*lacking({name: True}, "0.17")] == [name] and not [*lacking({name: True}, "0.18")]


def test_hydra_reads_the_overrides():
    """Its grammar gives back the values."""
    parser = pytest.importorskip("hydra.core.override_parser.overrides_parser", reason="hydra-core is not installed")
    plan = a_plan(DEEPSEEK, tp=2, pp=16, ep=16, vpp=2, pp_overlap=True)

    lines = words_of(to_megatron_bridge(plan, "0.3.1"))
    read = {one.key_or_group: one.value() for one in parser.OverridesParser.create().parse_overrides(lines)}

    said = {key.lstrip("+"): plain(value) for key, value in bridge_entries(plan)[0].items()}
    assert {key: plain(value) for key, value in read.items()} == said


def test_hydra_reads_the_overrides_of_plans_for_it():
    """
    Those of plain jobs, as ``--target megatron-bridge`` makes them; every field is one of the configuration.

    Experts in one graph of the iteration, which 0.3.1 refuses, are written for the newer release that was costed.
    """
    parser = pytest.importorskip("hydra.core.override_parser.overrides_parser", reason="hydra-core is not installed")
    known, seen = fields(), 0

    for plan, exported in planned_exports("megatron-bridge"):
        is_newer = plan.strategy.cuda_graphs == CudaGraphs.FULL_ITERATION and plan.facts.model.has_experts
        lines = words_of(exported if is_newer else to_megatron_bridge(plan, "0.3.1"))
        read = {one.key_or_group: one.value() for one in parser.OverridesParser.create().parse_overrides(lines)}
        keys = [(key, *key.partition(".")) for key in read if "." in key]
        unknown = {key for key, section, _, name in keys if name not in known[section]}
        assert (exported.version != "0.3.1") >= is_newer
        assert unknown <= (DATA.of_core_0_18.keys() if is_newer else set())
        seen += 1

    assert seen >= 6


def plain(value):
    """A value of Hydra's grammar, quoted texts as texts."""
    if isinstance(value, dict):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, tuple):  # as words.yaml has it
        return [*value]
    return value if isinstance(value, (list, bool, int, float, type(None))) else str(value)
