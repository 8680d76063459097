"""Exports for the releases of Megatron-LM: each is written in its own words, or refused by name."""

from __future__ import annotations

import csv
from dataclasses import replace
from functools import cache

import pytest

from constraints.targets import effective_settings
from costmodel.errors import SpecError
from planner import export
from planner.frameworks import TARGETS
from planner.frameworks.megatron.lm import to_megatron_lm
from planner.frameworks.megatron.options import options, read_arguments, split_words
from planner.frameworks.megatron.releases import RELEASES, TABLE
from planner.frameworks.target import Export
from planner.results import Plan
from tests.builders_megatron import every_hybrid, every_plan
from tests.cases import read_table
from tests.planner.test_megatron_lm import JOB, MIXTRAL, a_plan, assert_same, read_back

NUM_PLANS = 50


def words_of(plan: Plan, release: str | None = None) -> list[str]:
    """The arguments for a release."""
    return words_in(to_megatron_lm(plan, release))


def words_in(exported: Export) -> list[str]:
    """The arguments of an export."""
    return split_words(exported.files["megatron-args.txt"])[0]


@cache
def plans() -> list[Plan]:
    """Random ones, as every release is asked for."""
    return [*every_plan()[:NUM_PLANS], *every_hybrid()[: NUM_PLANS // 5]]


@cache
def exports(release: str) -> list[tuple[Plan, Export]]:
    """Plans that a release takes, with their exports; the rest it refuses by options and rules."""
    found, refusals = [], []
    for plan in plans():
        try:
            found.append((plan, to_megatron_lm(plan, release)))
        except SpecError as refused:
            refusals.append(str(refused))
    assert all(f"Megatron Core {release} refuses this plan:" in refusal for refusal in refusals)
    assert len(found) > (0.3 if release == "0.14" else 0.9) * len(plans())
    return found


def by_option(words: list[str]) -> dict[str, list[str]]:
    """Values by option, whatever options there are."""
    found: dict[str, list[str]] = {}
    for word in words:
        if word.startswith("--"):
            found[word] = []
        else:
            found[[*found][-1]].append(word)
    return found


# --- with what is shipped --------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("release", RELEASES)
def test_what_is_written_for_a_release_comes_back(release):
    """
    Importing its words gives the same plan: every sixth, another sixth for the next release.

    None of the words is an option or a choice of other releases only.
    """
    with TABLE.open(encoding="utf-8", newline="") as lines:
        rows = [row for row in csv.DictReader(lines) if release not in spanned(row)]
    others = {f"{row['option']} {row['choice']}".strip() for row in rows}

    for _, exported in exports(release):
        written = by_option(words_in(exported))
        assert not others & {*written, *(f"{name} {one}" for name, values in written.items() for one in values)}
    for plan, exported in exports(release)[RELEASES.index(release) :: len(RELEASES)]:
        back = read_back(plan, exported)
        if "native" in words_in(exported):  # instead of the fused loss, which it refuses
            own = effective_settings(plan.facts, plan.strategy)
            ring = own.cp_comm_type or ("p2p" if plan.strategy.cp > 1 else None)  # a ring is written always
            settings = effective_settings(back.facts, back.strategy)
            assert settings == replace(own, loss="unfused", cp_comm_type=ring)
            assert (back.strategy, back.facts.model) == (plan.strategy, plan.facts.model)
        else:
            assert_same(back, plan)


def spanned(row: dict[str, str]) -> tuple[str, ...]:
    """The releases that have an option."""
    return RELEASES[RELEASES.index(row["since"]) : RELEASES.index(row["until"]) + 1]


def test_every_option_of_main_is_in_the_newest_release():
    """The table of options and that of releases are of one parser."""
    with TABLE.open(encoding="utf-8", newline="") as lines:
        names = {row["option"]: row["until"] for row in csv.DictReader(lines) if not row["choice"]}

    assert {name for name, until in names.items() if until == "main"} <= options().keys()
    assert not {name for name, until in names.items() if until != "main"} & options().keys()


def test_one_graph_of_an_iteration_in_the_words_of_each_release():
    """A switch and a scope, an implementation and a scope, an implementation."""
    plan = a_plan(cuda_graphs="full_iteration")
    graphs = {
        release: {
            name: value for name, value in read_arguments(words_of(plan, release)).items() if "cuda-graph" in name
        }
        for release in RELEASES
    }

    assert graphs["0.14"] == {"--enable-cuda-graph": True, "--cuda-graph-scope": ["full_iteration"]}
    assert graphs["0.16"] == {"--cuda-graph-impl": "local", "--cuda-graph-scope": ["full_iteration"]}
    assert graphs["0.17"] == graphs["0.16"]
    assert graphs["0.18"] == graphs["0.19"] == graphs["main"] == {"--cuda-graph-impl": "full_iteration"}


def test_what_a_release_lacks_is_refused_by_name():
    """Each option with the releases that have it, and the releases that take the plan."""
    graphs = a_plan(cuda_graphs="attn+mlp")

    with pytest.raises(SpecError) as error:
        to_megatron_lm(graphs, "0.14")

    assert str(error.value).splitlines() == [
        "framework-version: Megatron Core 0.14 refuses this plan:",
        "  - In Megatron-LM up to core 0.14 a CUDA graph holds the whole iteration, or attention alone.",
        "  - --cuda-graph-impl needs core 0.16 or later.",
        "These take it: 0.16, 0.17, 0.18, 0.19, main (--framework-version).",
    ]


# --- rules of single releases ----------------------------------------------------------------------------------


def test_newer_releases_compute_the_loss_themselves():
    """Core 0.18 and later refuse Transformer Engine's (arguments.py:1528 of 0.18.2): the export says what changes."""
    plan = a_plan(JOB | {"settings": {"loss": "fused"}})
    fusions = {
        release: read_arguments(words_of(plan, release)).get("--cross-entropy-fusion-impl") for release in RELEASES
    }
    unfused = a_plan(JOB | {"settings": {"loss": "unfused"}})

    assert fusions == {"0.14": "te", "0.16": "te", "0.17": "te", "0.18": "native", "0.19": "native", "main": "native"}
    (note,) = [one for one in to_megatron_lm(plan, "0.19").notes if "fused loss" in one]
    assert f"{unfused.step_seconds:.3f} s instead of {plan.step_seconds:.3f} s" in note
    assert "cluster.framework=megatron-lm-0.19" in note
    assert not [one for one in to_megatron_lm(plan, "0.17").notes if "fused loss" in one]


def test_a_plan_that_its_release_s_own_loss_does_not_fit_is_refused():
    """FP32 logits of 8,192 tokens and 128,256 words take 4 bytes each more: 3.9 GiB, where 1.7 are left."""
    job = JOB | {
        "settings": {"loss": "fused"},
        "cluster": {"device": "h100-80gb-sxm", "num_devices": 16, "memory_gib": 24},
    }
    plan = a_plan(job, tp=1, pp=1, dp=16, sharding="weights", recompute="full", cuda_graphs="none")
    assert 0 < plan.headroom_bytes < 4e9

    with pytest.raises(SpecError, match=r"fused loss is refused, and with Megatron-LM's own one the plan takes"):
        to_megatron_lm(plan, "0.18")


STASH = ("--moe-paged-stash", "--moe-expert-rank-capacity-factor", "--use-transformer-engine-op-fuser")


def test_experts_in_one_graph_come_with_their_options():
    """Core 0.18.2 has them (transformer_config.py:876,1140,1515), 0.17.1 has not and refuses the plan."""
    decisions = {"tp": 1, "ep": 8, "etp": 1, "token_dispatcher": "hybridep", "cuda_graphs": "full_iteration"}
    plan = a_plan(MIXTRAL, **decisions)
    modules = a_plan(MIXTRAL, **{**decisions, "cuda_graphs": "attn"})

    for release in ("0.18", "0.19", "main"):
        assert read_arguments(words_of(plan, release)).keys() >= {*STASH}
        assert not {*STASH} & read_arguments(words_of(modules, release)).keys()
    for release in ("0.16", "0.17"):
        with pytest.raises(SpecError, match=r"one CUDA graph only from core 0\.18"):
            to_megatron_lm(plan, release)


def test_experts_in_one_graph_keep_their_activations():
    """Core 0.18.2 refuses to offload what the paged stash holds (transformer_config.py:1691)."""
    decisions = {"pp": 2, "tp": 1, "ep": 8, "activation_offload": True, "token_dispatcher": "hybridep"}

    assert to_megatron_lm(a_plan(MIXTRAL, **decisions, cuda_graphs="none"))
    with pytest.raises(SpecError, match="activations are not offloaded where a whole iteration is one CUDA graph"):
        to_megatron_lm(a_plan(MIXTRAL, **decisions, cuda_graphs="full_iteration"))


def test_a_costed_release_that_refuses_the_plan_is_no_other_one():
    """Megatron-FSDP has CUDA graphs from core 0.18 on: the file is not silently written for that one."""
    job = JOB | {"cluster": {**JOB["cluster"], "framework": "megatron-lm-0.17"}}
    plan = a_plan(job, dp=16, sharding="weights", cuda_graphs="attn+mlp")

    with pytest.raises(SpecError) as error:
        to_megatron_lm(plan)

    assert str(error.value).splitlines() == [
        "framework-version: Megatron Core 0.17, which is costed, refuses this plan:",
        "  - CUDA graphs go together with Megatron-FSDP only from core 0.18 (Megatron-Bridge 26.06) on.",
        "These take it: 0.18, 0.19, main (--framework-version).",
    ]


@pytest.mark.parametrize(("framework", "release", "head"), read_table("megatron_releases")["heads"])
def test_the_file_says_which_release_it_is_for(framework, release, head):
    """With the one that was costed, where it is another one, and the options that may differ there."""
    job = JOB | {"cluster": {**JOB["cluster"], "framework": framework}}
    graphs = "none" if release == "0.14" else "attn+mlp"
    exported = to_megatron_lm(a_plan(job, cuda_graphs=graphs))

    lines = exported.files["megatron-args.txt"].splitlines()
    assert exported.version == release
    assert [line for line in lines if line.startswith("#") and "TODO" not in line] == head


def test_a_graph_with_overlapped_experts_is_for_newer_releases():
    """Core up to 0.17 refuses both together (transformer_config.py:1898 of 0.16.1, 2143 of 0.17.1)."""
    job = MIXTRAL | {"cluster": {**MIXTRAL["cluster"], "framework": "megatron-bridge-26.06"}}
    plan = a_plan(job, ep=8, token_dispatcher="hybridep", cuda_graphs="full_iteration", ep_overlap=True)

    assert to_megatron_lm(plan).version == "main"
    with pytest.raises(SpecError, match=r"up to core 0\.17 one CUDA graph of the iteration excludes overlapped expert"):
        to_megatron_lm(plan, "0.17")


# --- without a release -----------------------------------------------------------------------------------------


def test_the_release_that_was_costed_is_written_for():
    """Else the newest one that takes the plan as it is costed, else the newest one that takes it."""
    frameworks = {
        "megatron-lm-0.14": "0.14",
        "megatron-lm-0.17": "0.17",
        "megatron-lm-0.18": "0.18",
        "megatron-lm-0.19": "0.19",
        "megatron-lm-main": "main",
        "megatron-bridge-26.06": "0.17",  # its loss is Transformer Engine's, which 0.18 and later refuse
    }
    found = {
        name: to_megatron_lm(
            a_plan(JOB | {"cluster": {**JOB["cluster"], "framework": name}}, cuda_graphs="none")
        ).version
        for name in frameworks
    }

    assert found == frameworks


def test_the_first_note_is_about_releases():
    """The one that is written for, those that take the plan, and why others do not."""
    plain, graphs = a_plan(cuda_graphs="none"), a_plan(cuda_graphs="attn+mlp")

    assert to_megatron_lm(plain).notes[0] == (
        "For Megatron Core 0.17; --framework-version writes it for 0.14, 0.16, 0.18, 0.19, main, too."
    )
    assert to_megatron_lm(graphs, "0.19").notes[0] == (
        "For Megatron Core 0.19; --framework-version writes it for 0.16, 0.17, 0.18, main, too. "
        "Not 0.14: In Megatron-LM up to core 0.14 a CUDA graph holds the whole iteration, or attention alone."
    )


@pytest.mark.parametrize("target", TARGETS)
def test_an_unknown_version_is_told_the_known_ones(target):
    """Of every target, before anything else is refused."""
    with pytest.raises(SpecError, match=r"framework-version: '0\.4' is no version of .* Known: "):
        export(a_plan(), target, "0.4")
