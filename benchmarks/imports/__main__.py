"""
``python -m benchmarks.imports FOLDER``: how many published scripts and configurations are imported, by kind.

The folder has folders of its own, such as ``megatron_examples`` (scripts), ``megatron_test_arguments`` (MODEL_ARGS),
``torchtitan`` (TOML) and ``dgxc`` (launch scripts of performance recipes, for each device and precision). The recipes
of Megatron-Bridge's package come from the planner's own table. Beside the folder stands ``recipes/dgxc.csv``,
whose layouts launches are compared with (``recipes.py``).

A folder with ``expected.csv`` is compared with its values, too (``expected.py``), and so are printed configurations
(``printed.py``).

``--mutations N`` imports N mutated files of the folder instead (``mutations.py``); ``--bash`` compares scripts with
Bash. ``--dropped`` takes each key out of each file of ``expected.csv`` instead (``dropped.py``).

Exits with 1 if less than nine of ten of the models and layers that the planner knows are imported. Left out are
examples, many of which are lists that other scripts complete.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from shutil import copy
from tempfile import TemporaryDirectory

from benchmarks.imports import dropped, expected, mutations, recipes
from costmodel.errors import SpecError
from planner import import_job
from planner.frameworks.imports.bridge.library import recipe_names
from planner.frameworks.imports.bridge.overrides import bridge_job

DEVICE_COUNTS = (None, 8, 64, 256, 512, 1024, 2048)
"""Devices that are tried, the script's own first."""

UNKNOWN = (
    "trains ",
    "describes ",
    "word pieces",
    "is no model that is known",
    "only GPT models",
    "the planner plans pretraining",
    "ends with an error after it says",
    "is not known here, and the script leaves the layout to it",
    "which may have another layout",
    "in mxfp8, which h100-80gb-sxm does not",
    "in which h100-80gb-sxm does not compute",
)
"""
Phrases of refusals: models and layers that the planner does not know, and launches that their script refuses itself or
for which the release that it names has no recipe.
"""

PERFORMANCE = "dgxc"
LEAST_SHARE = 0.9
BESIDE = ("deepseek_v3_671b.toml", "torchtitan/v0.2.2__deepseek_v3__deepseek_v3_671b.toml")
"""A file that a launch script of torchtitan names, and the published one that it is."""

DEVICES = ("gb300", "gb200", "b300", "b200", "h100")
PRECISIONS = ("fp8", "bf16", "nvfp4")


def main() -> int:
    """Import everything and count."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="published scripts and configurations, a folder for each kind")
    parser.add_argument("--mutations", type=int, default=0, metavar="N", help="import N mutated files instead")
    parser.add_argument("--seed", type=int, default=52, help="seed of the mutations")
    parser.add_argument("--bash", action="store_true", help="compare mutated scripts with Bash, in a container")
    parser.add_argument("--dropped", action="store_true", help="look for keys that are dropped in silence instead")
    given = parser.parse_args()
    folder = given.folder
    if given.dropped:
        return dropped.report(folder)
    if given.mutations:
        return mutations.run(folder, given.mutations, seed=given.seed, bash=given.bash)
    compared = list(expected.outcomes(folder)) if (folder / expected.TABLE).exists() else []
    apart = {outcome.folder for outcome in compared} | {expected.PRINTED}
    kinds = [kind for kind in sorted(folder.iterdir()) if kind.is_dir() and kind.name not in apart]
    shares = {kind.name: list(_outcomes(kind)) for kind in kinds}
    shares["Megatron-Bridge's package"] = [_of_recipe(name) for name in recipe_names()]
    print(f"{'kind':28} {'imported':>8} {'of known':>8} {'of all':>6}")
    low = False
    for kind, refusals in shares.items():
        known = [text for text in refusals if not any(part in text for part in UNKNOWN)]
        imported = sum(not text for text in refusals)
        low = low or (imported < LEAST_SHARE * len(known) and not kind.endswith("examples"))
        print(f"{kind:28} {imported:8} {len(known):8} {len(refusals):6}")
    print("\nReasons why others are not:")
    for text, number in Counter(text for refusals in shares.values() for text in refusals if text).most_common(30):
        print(f"{number:4} {text[:150]}")
    failed = recipes.report(folder.parent) if (folder.parent / recipes.TABLE).exists() else 0
    failed |= expected.report_printed(folder / expected.PRINTED) if (folder / expected.PRINTED).exists() else 0
    return int(low) | failed | (expected.report(compared) if compared else 0)


def _outcomes(kind: Path) -> Iterator[str]:
    for path in sorted(kind.iterdir()):
        if kind.name == PERFORMANCE:
            with TemporaryDirectory() as place:
                script = Path(copy(path, place))
                copy(kind.parent / BESIDE[1], Path(place) / BESIDE[0])
                for device, precision in product(DEVICES, PRECISIONS):
                    given = {"GPU_TYPE": device, "JOB_TOTAL_GPUS": "256", "DTYPE": precision}
                    yield _refusal(script, [f"cluster.device={device}"], given)
        else:
            yield _refusal(path, [f"cluster.device={'gb200' if 'gb200' in path.name else 'h100-80gb-sxm'}"], {})


def _refusal(path: Path, entries: Sequence[str], variables: Mapping[str, str]) -> str:
    """Return the reason why a file is not imported, on as few devices as it takes; empty if it is."""
    text = ""
    for number in DEVICE_COUNTS:
        count = [] if number is None else [f"cluster.num_devices={number}"]
        try:
            import_job(path, [*entries, *count], variables)
        except SpecError as error:
            text = str(error)
            if not any(word in f"{error.where} {error.problem}" for word in ("num_devices", "strategy", "tp * cp")):
                return text
        else:
            return ""
    return text


def _of_recipe(name: str) -> str:
    text = ""
    for number in DEVICE_COUNTS[1:]:
        try:
            bridge_job({}, name, ["cluster.device=h100-80gb-sxm", f"cluster.num_devices={number}"], {})
        except SpecError as error:
            text = str(error)
        else:
            return ""
    return text


if __name__ == "__main__":
    raise SystemExit(main())
