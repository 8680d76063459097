"""
``python -m benchmarks.exports --megatron DIR``: whether the frameworks' own parsers take what is exported.

DIR has the sources of releases of Megatron-LM (``core_v0.18.2.tar.xz``, a checkout called ``main``). Random jobs are
planned for Megatron-LM, half as many for no target, and each plan is exported for every release there and without a
release. An export is accepted by the parser of its release, or refused by the export with the reason. Anything else
exits with 1, and so do fewer than five of six plans for Megatron-LM accepted by core 0.18 or later, and a table that
a parser contradicts. The configurations of a folder (``--configs``; those of the tests) are exported too: the model
that a parser makes of them must have their facts and parameters. ``--bridge`` puts plans on top of the recipes of
megatron-bridge 0.3.1, where that is installed.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from benchmarks.exports.bridge_recipes import CONFIGS, RECIPES, Given, checked
from benchmarks.exports.configs import ask_models, exports_for
from benchmarks.exports.jobs import random_jobs
from benchmarks.exports.releases import Answers, ask_parser, find_sources
from benchmarks.inputs import read_rows
from costmodel.errors import PlanningError, SpecError
from planner import export, load, plan
from planner.frameworks.megatron.releases import RELEASES, TABLE
from planner.results import Plan

LEAST_SHARE = 5 / 6
"""Share of the plans that the release which they are costed with takes, and each newer one."""

COSTED = "0.18"
"""The release that plans for Megatron-LM are costed with; older ones lack what they use."""

NUM_EXAMPLES = 6
WIDTH = 160


def main() -> int:
    """Plan, export, ask the parsers, count."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megatron", type=Path, metavar="DIR", help="sources of releases of Megatron-LM")
    parser.add_argument("--python", default=sys.executable, help="an interpreter that has torch (default: this one)")
    parser.add_argument(
        "--configs", type=Path, metavar="DIR", default=CONFIGS, help="files of models (default: the tests')"
    )
    parser.add_argument("--bridge", action="store_true", help="also megatron-bridge 0.3.1, which must be installed")
    parser.add_argument("--plans", type=int, default=120, help="plans, two of a job (default: 120)")
    parser.add_argument("--seed", type=int, default=0, help="what the jobs are drawn from (default: 0)")
    arguments = parser.parse_args()
    wrong = False
    if arguments.megatron is not None:
        with tempfile.TemporaryDirectory() as scratch:
            sources = find_sources(arguments.megatron, Path(scratch))
            for target, number in (("megatron-lm", arguments.plans), (None, arguments.plans // 2)):
                print(f"{number} plans for {target or 'no target'}:", flush=True)
                plans = [*_plans(arguments.seed, target, number)]
                wrong |= _ask_releases(plans, sources, arguments.python, LEAST_SHARE if target else 0.0)
            wrong |= ask_models(arguments.configs, sources, arguments.python)
    if arguments.bridge:
        wrong |= _ask_bridge([*_plans(arguments.seed + 2, "megatron-bridge", arguments.plans)])
    return int(wrong)


def _plans(seed: int, target: str | None, number: int) -> Iterator[Plan]:
    """Plans of random jobs; jobs that the target refuses, with the reason, and those that do not fit are left out."""

    def every() -> Iterator[Plan]:
        for job in random_jobs(seed, target):
            try:
                yield from plan(load(job), certified=False).plans
            except PlanningError:
                continue

    yield from islice(every(), number)


def _ask_releases(plans: Sequence[Plan], sources: dict[str, Path], python: str, least_share: float) -> bool:
    """Print what each release says of the plans; return whether one contradicts the export."""
    wrong = False
    made = {version: exports_for(plans, version) for version in (None, *sources)}
    for version, (exports, refusals) in made.items():
        by_release = [version] if version is not None else sorted({one.version for _, one in exports})
        errors: list[str] = []
        for release in by_release:
            if release in sources:
                answers = ask_parser(sources[release], [one for one in exports if one[1].version == release], python)
                errors += answers.errors
                wrong |= version is not None and _contradicts_table(release, answers)
        accepted = errors.count("")
        is_older = version is not None and RELEASES.index(version) < RELEASES.index(COSTED)
        few = accepted < least_share * len(plans) and not is_older
        wrong |= few or accepted < len(errors)
        chosen = "" if version is not None else f" ({', '.join(by_release)})"
        print(
            f"{version or 'default'}{chosen}: {accepted} of {len(plans)} accepted, {len(errors) - accepted} refused by "
            f"the parser, {len(refusals)} by the export{', too few' if few else ''}",
            flush=True,
        )
        _show("the parser", [error for error in errors if error])
        _show("the export", refusals)
    return wrong


def _contradicts_table(release: str, answers: Answers) -> bool:
    """Print options and choices of which the table says something else than the parser."""
    wrong = False
    for row in read_rows(TABLE):
        span = RELEASES[RELEASES.index(row["since"]) : RELEASES.index(row["until"]) + 1]
        choices = answers.options.get(row["option"])
        there = choices is not None and (not row["choice"] or not choices or row["choice"] in choices)
        if there != (release in span) and (choices or not row["choice"]):
            wrong = True
            print(f"  releases.csv: {row['option']} {row['choice']} is {'' if there else 'not '}in {release}")
    return wrong


def _ask_bridge(plans: Sequence[Plan]) -> bool:
    """Print what Megatron-Bridge says of plans of models that it has a recipe for; return whether it refuses one."""
    given, refusals = [], []
    for one in plans:
        if one.facts.model.name not in RECIPES:
            continue
        try:
            made = export(one, "megatron-bridge", "0.3.1")
        except SpecError as refused:
            refusals.append(str(refused))
            continue
        words = shlex.split(made.files["bridge-overrides.txt"], comments=True)
        given.append(Given(one.facts.model.name, words, words, dict(made.environment), one.cluster.num_devices))
    errors = [one.complaint for one in checked(given)]
    accepted = errors.count("")
    print(
        f"megatron-bridge 0.3.1: {accepted} of {len(errors) + len(refusals)} accepted, {len(errors) - accepted} "
        f"refused by its checks, {len(refusals)} by the export"
    )
    _show("its checks", [error for error in errors if error])
    _show("the export", refusals)
    return accepted < len(errors)


def _show(who: str, reasons: Sequence[str]) -> None:
    for text, number in Counter(reasons).most_common(NUM_EXAMPLES):
        print(f"  {number:4} refused by {who}: {' '.join(text.split())[:WIDTH]}")


if __name__ == "__main__":
    sys.exit(main())
