"""Rules against configurations that really ran: physics forbids none of them, their own software's rules few."""

from __future__ import annotations

import pytest

from benchmarks.accuracy.__main__ import RULES_FORBID, main
from benchmarks.accuracy.checks import allowed_lines, distinct_configurations, refusals
from constraints import MEGATRON_LM_RULES
from constraints.rules import frameworks, physics
from tests.builders_runs import a_file, predicted, project_predictions


@pytest.fixture(scope="module")
def found():
    """Refusals of every configuration of the project's own table that ran, by family of rules."""
    return {one.family: one for one in refusals(distinct_configurations(project_predictions()))}


@pytest.mark.slow
def test_physics_allows_everything_that_ran(found):
    """Of more than a thousand distinct configurations none; of their own software's rules at most one in a hundred."""
    assert found["physics"].num_asked > 1_000
    assert found["physics"].by_rule == {}
    assert found["their own software's rules"].fraction <= 0.01
    assert all(one.is_met for one in found.values())
    of_releases = {
        *MEGATRON_LM_RULES,
        frameworks.one_graph_with_experts_keeps_activations,
        frameworks.one_graph_with_experts_has_them_whole,
    }
    own = found["their own software's rules"].by_rule
    # dgxc prints of its run that it had CUDA graphs, and not of which scope: NeMo 25.05 with an all-to-all
    assert {case.run.id for rule in of_releases & own.keys() for case in own[rule]} <= {"dgxc-25.05-0302"}


@pytest.mark.slow
def test_what_ran_all_the_same_is_a_preference(found):
    """Two micro-batches on four pipeline ranks (vTrain), tp 8 on nodes of four (GPT-NeoX): not what a search tries."""
    by_rule = found["preferences of the search"].by_rule
    rows = {rule: {case.run.id for case in some} for rule, some in by_rule.items()}

    assert "vtrain-single-0092" in rows[physics.microbatches_fill_the_pipeline]
    assert "gm25-perlmutter-GPT_20B_4_8_4_32_4-31697107" in rows[physics.tp_stays_inside_a_scale_up_domain]


def test_a_configuration_counts_once_and_what_ran_out_of_memory_not_at_all(tmp_path):
    """Two measurements of one configuration, another one, and one that ended without memory: two ran."""
    rows = predicted(
        tmp_path,
        {"id": "one"},
        {"id": "again", "step_seconds": "9"},
        {"id": "other", "strategy.mbs": "2"},
        {"id": "late", "strategy.mbs": "4", "kind": "oom", "step_seconds": ""},
    )

    ran = distinct_configurations(rows)

    assert [one.run.id for one in ran] == ["one", "other"]


IMPOSSIBLE = {
    "strategy.sharding": "none",
    "strategy.dp_overlap": "true",
    "cluster.framework": "megatron-deepspeed-2023",
}


def test_a_forbidden_configuration_is_named_with_its_rule(tmp_path):
    """Gradients that nothing shards are reduced behind the backward pass, says the row: DeepSpeed's wait."""
    (one,) = predicted(tmp_path, {"id": "impossible", **IMPOSSIBLE})

    found = list(refusals([one]))
    text = "\n".join(allowed_lines(found))

    (own,) = (some for some in found if some.family == "their own software's rules")
    assert frameworks.whole_gradients_wait in own.by_rule
    assert (own.num_refused, own.num_asked, own.is_met) == (1, 1, False)
    assert "Data-parallel communication overlaps only with sharded optimizer states" in text
    assert "impossible" in text


@pytest.mark.slow
def test_the_command_fails_where_rules_forbid_what_ran(tmp_path, capsys):
    """Exit code 4 for a table of one forbidden run, 0 without the option."""
    table = a_file(tmp_path, IMPOSSIBLE)

    assert main(["--runs", str(table)]) == 0
    assert main(["--runs", str(table), "--allowed"]) == RULES_FORBID
    assert "their own software's rules" in capsys.readouterr().out
