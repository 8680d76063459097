"""Every model of the catalog: readable, sourced, and as large as published."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

import costmodel
from costmodel.catalog import LOADER
from costmodel.facts.model import Model
from costmodel.models.description import model_from_entry
from costmodel.models.flops import active_parameters, parameters
from tests.builders import read_config
from tests.cases import in_one_case

MODELS = sorted((Path(costmodel.__file__).parent / "catalog" / "models").glob("*.yaml"))
CONFIGS = Path(__file__).parents[1] / "data" / "hf_configs"
RENAMED = {
    "llama-2-7b": "llama2-7b", "llama-2-70b": "llama2-70b", "llama-3-8b": "llama3-8b", "llama-3-70b": "llama3-70b",
    "llama-3.1-405b": "llama3-405b",
}  # fmt: skip


def entry(path: Path) -> dict[str, Any]:
    """The mapping in a catalog file."""
    loaded: dict[str, Any] = yaml.load(path.read_text(), Loader=LOADER)
    return loaded


def catalog_model(name: str) -> Model:
    """The catalog's model of that name."""
    (path,) = (path for path in MODELS if path.stem == name)
    return model_from_entry(entry(path), name, name)


@in_one_case("path", MODELS, ids=lambda path: path.stem)
def test_every_file_is_a_model_with_a_source(path: Path):
    """The file is called what the model is called, and says where its numbers come from."""
    model = model_from_entry(entry(path), path.stem, "")

    assert model.name == path.stem
    assert len(entry(path)["source"]) > len("arXiv 0000.00000")


@pytest.mark.slow
@in_one_case("path", sorted(CONFIGS.glob("*.json")), ids=lambda path: path.stem)
def test_the_catalog_holds_the_models_of_the_configs(path: Path):
    """The same layers from the short YAML and from the full config.json."""
    config, entered = read_config(path), catalog_model(RENAMED.get(path.stem, path.stem))

    assert (entered.layers, entered.mtp_layers) == (config.layers, config.mtp_layers)
    assert parameters(entered) == parameters(config)


@in_one_case(
    ("name", "total", "active"),
    [
        ("llama2-13b", 13_015_864_320, 13_015_864_320),
        ("gpt3-175b", 174.6e9, 174.6e9),
        ("moonlight-16b-a3b", 15.29e9 + 0.67e9, 2.24e9 + 0.67e9),
        ("qwen2-57b-a14b", 57.4e9, 14.2e9),
        ("nemotron-h-8b", 8.1e9, 8.1e9),
        ("nemotron-3-nano-30b-a3b", 31.6e9, 3.6e9),
        ("nemotron-3-super-120b-a12b", 120.6e9, 12.7e9),
    ],
)
def test_models_without_a_config_here_have_their_published_size(name: str, total: float, active: float):
    """
    Cards and papers: 13,015,864,320; 174.6B (2104.04473); 15.29B, 2.24B active, without embeddings (2502.16982).

    Nemotron-H: 8.1B (2504.03624); Nemotron 3: 31.6B, 3.6B active; 120.6B, 12.7B active.
    """
    model = catalog_model(name)

    assert parameters(model) == pytest.approx(total, rel=0.004)
    assert active_parameters(model) == pytest.approx(active, rel=0.006)


def test_mofa_counts_slots_as_layers():
    """P_layer = 2 h^2 + 2 h H_kv + 3 h g in 128 slots, V h twice (equations.md, Table 2 and equation (6))."""
    layer = 2 * 16384**2 + 2 * 16384 * 16 * 128 + 3 * 16384 * 53248

    assert parameters(catalog_model("mofa-llama3-405b")) == 128 * layer + 2 * 128000 * 16384
