"""
Recipes of Megatron-Bridge's package, run by Python with stand-ins for what they import, against what is read.

Needs ``megatron-bridge==0.3.1``, of which nothing but the recipes is imported.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import sys
from importlib import metadata
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest

from costmodel.errors import SpecError
from planner.frameworks.imports.bridge import library
from planner.frameworks.imports.bridge.overrides import bridge_job
from tests.cases import read_table

READ = ("megatron.bridge.recipes", "megatron.bridge.training.flex_dispatcher_backend")
"""Modules that are run as they are; their packages' own files are not."""

STANDING_IN = ("megatron", "nemo_run", "torch", "transformers")

DEGREES = read_table("bridge_fields")["sizes"]


class Recorded:
    """An object that keeps what is set, and has everything else."""

    def __init__(self, _name: str = "", **entries: object) -> None:
        """With what a call gave it."""
        self.__dict__.update({"recorded_name": _name, **entries})

    def __getattr__(self, name: str) -> Recorded:
        """Something of that name, the same each time."""
        if name.startswith("__"):
            raise AttributeError(name)
        found = Recorded(f"{self.recorded_name}.{name}")
        self.__dict__[name] = found
        return found

    def __call__(self, *arguments: object, **entries: object) -> object:
        """A new one; a decorator returns its function."""
        if len(arguments) == 1 and callable(arguments[0]) and not isinstance(arguments[0], Recorded):
            return arguments[0]
        return Recorded(f"{self.recorded_name}()", recorded_arguments=arguments, **entries)

    def __iter__(self) -> object:
        """A pair, such as an optimizer and its schedule."""
        return iter((Recorded("first", **self.__dict__), Recorded("second", **self.__dict__)))

    def __getitem__(self, _: object) -> Recorded:
        return self

    def __or__(self, _: object) -> Recorded:
        return self

    __ror__ = __or__

    def __float__(self) -> float:
        return 1.0

    def __int__(self) -> int:
        return 1


class StandIn(ModuleType):
    """A module that has anything."""

    __path__ = ()

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return TORCH if name == "torch" else Recorded(name)


TORCH = Recorded("torch")
H100 = Recorded("H100", major=9, name="NVIDIA H100")


class Finder(MetaPathFinder, Loader):
    """Stand-ins for whatever recipes import besides each other."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Recipes from their files, other parts of NVIDIA's and PyTorch's packages made up."""
        file = self._root.joinpath(*name.split(".")).with_suffix(".py")
        if name.startswith(READ) and file.is_file():
            return importlib.util.spec_from_file_location(name, file)
        return ModuleSpec(name, self, is_package=True) if name.split(".")[0] in STANDING_IN else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """One that has anything; of torch always the same things, and one device."""
        module = StandIn(spec.name)
        if spec.name == "torch":
            TORCH.cuda = Recorded("torch.cuda", get_device_properties=lambda number: H100)
            module.__dict__.update({name: getattr(TORCH, name) for name in ("bfloat16", "float32", "float16", "cuda")})
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run."""


def ran(root: str, places: dict[str, str]) -> dict[str, dict[str, str]]:
    """The fields of recipes by name that Python sets, as the table writes them."""
    for name in [name for name in sys.modules if name.split(".")[0] in ("megatron", "torch")]:
        del sys.modules[name]
    sys.meta_path.insert(0, Finder(Path(root)))
    return {name: plain(getattr(importlib.import_module(module), name)()) for name, module in places.items()}


def plain(config: Recorded) -> dict[str, str]:
    """Values that were set, by section and field."""
    found: dict[str, str] = {}
    for section, values in vars(config).items():
        if isinstance(values, str):
            found[section] = values
        for name, value in vars(values).items() if isinstance(values, Recorded) else ():
            if isinstance(value, Recorded) and value.recorded_name.startswith("torch."):
                found[f"{section}.{name}"] = value.recorded_name
            elif not isinstance(value, Recorded):
                found[f"{section}.{name}"] = library.write_override(value)
    return found


@pytest.fixture(scope="module")
def oracle():
    """What Python sets in every recipe of the table, and the table."""
    try:
        distribution = metadata.distribution("megatron-bridge")
    except metadata.PackageNotFoundError:
        pytest.skip("megatron-bridge is not installed")
    table = library._table()
    if f"Megatron-Bridge {distribution.version}" not in {one.source for one in table.values()}:
        pytest.skip("the table is of another release")
    root = Path(str(distribution.locate_file("")))
    places = {}
    for file in root.glob("megatron/bridge/recipes/*/*.py"):
        module = ".".join(file.relative_to(root).with_suffix("").parts)
        text = file.read_text()
        places |= {name: module for name in table if f"def {name}()" in text}
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(ran, (str(root), places)), table


def test_every_field_is_what_python_sets(oracle):
    """Of all recipes without arguments; nothing but what is marked as open differs."""
    ran_fields, table = oracle
    assert len(ran_fields) > 50

    wrong = {
        (name, field): (value, fields.get(field))
        for name, fields in ran_fields.items()
        for field, value in table[name].fields.items()
        if value != library.OPEN and field in fields and fields[field] != value
    }
    missing = {
        (name, field)
        for name, fields in ran_fields.items()
        for field, value in table[name].fields.items()
        if value != library.OPEN and field not in fields and field.partition(".")[0] in ("model", "train")
    }

    assert wrong == {}
    assert missing == set()


def test_jobs_have_the_degrees_that_python_sets(oracle):
    """Degrees, batches, precision and recomputation of every recipe that is imported; of known models nearly all."""
    ran_fields, _ = oracle
    imported, refused = {}, {}
    for name in ran_fields:
        try:
            imported[name] = job_of(name)
        except SpecError as error:
            refused[name] = str(error)
    known = {name for name in ran_fields if "is no model that is known" not in refused.get(name, "")}

    assert len(imported) >= 0.9 * len(known)
    for name, job in imported.items():
        fields, strategy = ran_fields[name], job["strategy"]
        said = {ours: fields.get(field, "1") for ours, field in DEGREES.items()}
        assert {ours: strategy[ours] for ours in DEGREES} == {
            ours: int(text) if text.isdecimal() else 1 for ours, text in said.items()
        }, name
        assert job["training"]["global_batch_size"] == int(fields["train.global_batch_size"]), name
        granularity = fields.get("model.recompute_granularity", "null")
        assert (strategy["recompute"] != "none" or "layout" in strategy) == (granularity != "null"), name
        eights = "fp8" in fields.get("mixed_precision", "")
        assert job["training"]["precision"].startswith("fp8" if eights else "bf16"), name


def job_of(name):
    """On as few devices as it takes."""
    for number in (8, 64, 256, 1024, 2048):
        try:
            return bridge_job({}, name, ["cluster.device=h100-80gb-sxm", f"cluster.num_devices={number}"], {}).document
        except SpecError as error:
            last = error
    raise last
