"""Exports for the releases of Megatron-LM: each is written in its own words, or refused by name."""

from __future__ import annotations

import csv
import re
from functools import cache
from pathlib import Path

import pytest

from costmodel.errors import SpecError
from planner import export
from planner.frameworks import TARGETS
from planner.frameworks.megatron.lm import to_megatron_lm
from planner.frameworks.megatron.options import options, read_arguments, split_words
from planner.frameworks.megatron.releases import RELEASES, TABLE, in_release, spelled
from planner.plan import Plan
from tests.builders_megatron import hybrid_plans, megatron_plans
from tests.planner.test_megatron_lm import JOB, a_plan, assert_same, imported

NUM_PLANS = 100

FLAGS = Path(__file__).parents[3] / "shared" / "data" / "megatron"
"""Options of the tags, as their own parsers list them."""

FILES = {
    "0.14": "flags_0.14.0",
    "0.16": "flags_0.16.0",
    "0.17": "flags_0.17.1",
    "0.19": "flags_0.19.0",
    "main": "flags",
}


def words_of(plan: Plan, release: str | None = None) -> list[str]:
    """The arguments for a release."""
    return split_words(to_megatron_lm(plan, release).files["megatron-args.txt"])[0]


@cache
def plans() -> list[Plan]:
    """Random ones, as every release is asked for."""
    return [*megatron_plans(NUM_PLANS, seed=4), *hybrid_plans(NUM_PLANS // 5, seed=4)]


@cache
def exports(release: str) -> list[tuple[Plan, list[str]]]:
    """Plans that a release takes, with their arguments; the rest it refuses for options that it has not."""
    found, refusals = [], []
    for plan in plans():
        try:
            found.append((plan, words_of(plan, release)))
        except SpecError as refused:
            refusals.append(str(refused))
    assert all(f"Megatron Core {release} has not what this plan needs:" in refusal for refusal in refusals)
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


# --- against the parsers of the tags ---------------------------------------------------------------------------


def choices(text: str) -> set[str]:
    """Choices as the parsers of the tags, or that of main, write them; of signals they are not said."""
    if "AttnBackend" in text:
        return set(re.findall(r"AttnBackend\.(\w+)", text))
    if "Signals" in text:
        return set()
    return set(re.findall(r"[\w-]+", text)) if text.startswith(("(", "[")) else {one for one in text.split("|") if one}


def parser(release: str) -> dict[str, dict[str, str]]:
    """The rows of a release's options, by spelling."""
    path = FLAGS / f"{FILES[release]}.csv"
    if not path.exists():
        pytest.skip("the options of the tags (../shared/data/megatron) are not here")
    with path.open(encoding="utf-8", newline="") as lines:
        return {flag: row for row in csv.DictReader(lines) for flag in row["flags"].split() if flag.startswith("--")}


@pytest.mark.parametrize("release", RELEASES)
def test_the_parser_of_a_release_knows_what_is_written_for_it(release):
    """Every option, its choices, and the number of its values; a third of the plans at least is taken."""
    known, taken = parser(release), exports(release)

    for _, words in taken:
        for name, values in by_option(words).items():
            row = known[name]
            allowed = choices(row["choices"])
            most = {"0": 0, "": 1}.get(row["nargs"], len(values))
            assert (len(values) > 0) == (row["nargs"] != "0"), name
            assert len(values) <= most, name
            assert not allowed or allowed >= {*values}, name

    assert len(taken) >= NUM_PLANS // 3


def test_the_table_is_what_the_parsers_of_the_tags_say():
    """Each option and choice that some of them lack has the first and the last one that has it."""
    rows = {release: parser(release) for release in RELEASES}
    spans = {}
    for name in sorted({name for one in rows.values() for name in one}):
        having = [release for release in RELEASES if name in rows[release]]
        if len(having) < len(RELEASES):
            spans[name, ""] = having[0], having[-1]
        allowed = {release: choices(rows[release][name]["choices"]) for release in having}
        for choice in set().union(*allowed.values()) if all(allowed.values()) else ():
            those = [release for release in having if choice in allowed[release]]
            if those != having:
                spans[name, choice] = those[0], those[-1]

    with TABLE.open(encoding="utf-8", newline="") as lines:
        table = {(row["option"], row["choice"]): (row["since"], row["until"]) for row in csv.DictReader(lines)}

    assert table == spans


# --- with what is shipped --------------------------------------------------------------------------------------


@pytest.mark.parametrize("release", RELEASES)
def test_what_is_written_for_a_release_comes_back(release):
    """An import of its words is the same plan; none is an option or a choice of other releases only."""
    with TABLE.open(encoding="utf-8", newline="") as lines:
        rows = [row for row in csv.DictReader(lines) if release not in spanned(row)]
    others = {f"{row['option']} {row['choice']}".strip() for row in rows}

    for plan, words in exports(release):
        assert_same(imported(plan, release), plan)
        written = by_option(words)
        assert not others & {*written, *(f"{name} {one}" for name, values in written.items() for one in values)}


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
    assert graphs["0.19"] == graphs["main"] == {"--cuda-graph-impl": "full_iteration"}


def test_what_a_release_lacks_is_refused_by_name():
    """With the first release that has it, of each and of all."""
    entries = {"--bf16": True, "--cuda-graph-impl": "transformer_engine", "--cuda-graph-scope": ["attn", "mlp"]}
    entries |= {"--optimizer": "dist_muon"}

    with pytest.raises(SpecError) as error:
        in_release(entries, "0.14")

    assert str(error.value).splitlines() == [
        "framework-version: Megatron Core 0.14 has not what this plan needs:",
        "  - --cuda-graph-impl needs core 0.16 or later",
        "  - --optimizer dist_muon needs core 0.16 or later",
        "The first one that has all is 0.16.",
    ]
    assert in_release(entries, "0.16") == spelled(entries, "0.16") == entries


def test_the_first_note_is_about_releases():
    """The least one and what needs it; those that need other words; the one that was asked for."""
    plain, graphs = a_plan(cuda_graphs="none"), a_plan(cuda_graphs="attn+mlp")
    gpt_oss = a_plan({**JOB, "model": "gpt-oss-20b"}, cuda_graphs="none")

    assert to_megatron_lm(plain).notes[0] == "Needs Megatron Core 0.14 or later."
    assert to_megatron_lm(gpt_oss).notes[0].startswith("Needs Megatron Core 0.16 or later: --quick-geglu, ")
    assert to_megatron_lm(graphs).notes[0] == (
        "Needs Megatron Core 0.16 or later: --cuda-graph-impl. "
        "For 0.19, main add --framework-version, which spells it otherwise."
    )
    assert to_megatron_lm(graphs, "0.19").notes[0] == "The options are those of Megatron Core 0.19."


@pytest.mark.parametrize("target", TARGETS)
def test_an_unknown_version_is_told_the_known_ones(target):
    """Of every target, before anything else is refused."""
    with pytest.raises(SpecError, match=r"framework-version: '0\.4' is no version of .* Known: "):
        export(a_plan(), target, "0.4")
