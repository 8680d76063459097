"""Rules that public runs corrected: what is a preference, and where their own software does what others refuse."""

from __future__ import annotations

from dataclasses import replace

from constraints import FRAMEWORK_RULES, PHYSICS_RULES, PREFERENCE_RULES, RULES, frameworks, sentence
from costmodel import catalog
from costmodel.strategy import Schedule, Sharding
from tests.builders_cluster import a_cluster, a_workload
from tests.cases import in_one_case
from tests.constraints.rule_cases import on


def test_preferences_are_neither_physics_nor_a_framework_s():
    """Their sentences are about the search and name the entry that switches them off; no other rule names it."""
    assert not {*PREFERENCE_RULES} & {*PHYSICS_RULES, *FRAMEWORK_RULES}
    for rule in RULES:
        assert sentence(rule).startswith("The search ") == (rule in PREFERENCE_RULES)
        assert ("search.preferences" in sentence(rule)) == (rule in PREFERENCE_RULES)


def test_gradients_are_sharded_in_pipelines_where_a_release_does_it():
    """AutoModel ran DeepSeek-V3 with PP 4 and FSDP 256; Megatron-LM, torchtitan and jobs without a release do not."""
    asked = {"pp": 4, "sharding": Sharding.WEIGHTS}

    assert frameworks.pipelines_keep_gradients_whole(on("automodel-26.02"), **asked)
    for cluster in (on("megatron-bridge-26.04"), on("torchtitan-0.1"), a_cluster()):
        assert not frameworks.pipelines_keep_gradients_whole(cluster, **asked)


def test_sharded_gradients_wait_where_a_release_lets_them():
    """PaddleNLP's sharding of stage 2 overlaps on request only; Megatron-FSDP always does."""
    asked = {"sharding": Sharding.GRADIENTS, "dp_overlap": False}

    assert frameworks.sharded_gradients_are_overlapped(on("paddlenlp-2.6"), **asked)
    assert not frameworks.sharded_gradients_are_overlapped(on("megatron-bridge-26.04"), **asked)


def test_v_shaped_schedules_have_no_groups():
    """128 micro-batches on 24 ranks leave 8 over, with which interleaved 1F1B would wait for ever; V-Half ran them."""
    asked = {"num_microbatches": 128, "pp": 24, "vpp": 2, "group": 24}

    assert frameworks.interleaving_needs_whole_groups_of_microbatches(**asked, schedule=Schedule.V_HALF)
    assert not frameworks.interleaving_needs_whole_groups_of_microbatches(**asked, schedule=Schedule.ONE_F_ONE_B)


def test_megatron_reduces_whole_gradients_behind_the_backward_pass():
    """Its buckets are all-reduced one by one since 2023; DeepSpeed waits for the end of the backward pass."""
    asked = {"sharding": Sharding.NONE, "dp_overlap": True}

    for framework in ("megatron-lm-0.17", "megatron-bridge-26.06", "nemo-25.07"):
        assert frameworks.whole_gradients_wait(on(framework), **asked)
    assert not frameworks.whole_gradients_wait(on("megatron-deepspeed-2023"), **asked)
    assert frameworks.whole_gradients_wait(on("megatron-deepspeed-2023"), **{**asked, "dp_overlap": False})


@in_one_case(
    ("precision", "overlaps"),
    [("bf16", True), ("fp8", True), ("fp8_current", True), ("mxfp8", True), ("fp8_blockwise", False), ("nvfp4", False)],
)
def test_user_buffers_know_few_number_formats(precision, overlaps):
    """Runs overlapped tensor-parallel communication in BF16, FP8 with one scale per tensor, and MXFP8."""
    workload = replace(a_workload(), precision=catalog.precision(precision))

    assert frameworks.tp_overlap_excludes_block_scales(workload, tp_overlap=False)
    assert frameworks.tp_overlap_excludes_block_scales(workload, tp_overlap=True) == overlaps
