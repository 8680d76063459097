"""The model of a job: names, files, descriptions, and what differs from one of them."""

import json
from pathlib import Path

import pytest

from costmodel import catalog
from planner.jobs.cluster import Changes, apply_changes, read, read_whole
from planner.jobs.problem import load
from tests.planner.test_job import JOBS, a_job
from tests.planner.test_job import LLAMA as CONFIG

LLAMA = catalog.model("llama3-8b")


def model_of(**entry):
    """The model of a job that starts from Llama 3 8B."""
    return load(a_job(model={"base": "llama3-8b", **entry})).facts.model


def test_a_base_alone_is_the_model():
    """Nothing differs."""
    assert model_of() == LLAMA


def test_fewer_layers_are_the_first_ones():
    """Of DeepSeek-V3's layers the first three are dense, what follows has experts."""
    model = load(a_job(model={"base": "deepseek-v3", "num_layers": 4})).facts.model
    known = catalog.model("deepseek-v3")

    assert model.layers == known.layers[:4]
    assert [layer == known.layers[0] for layer in model.layers] == [True, True, True, False]
    assert model.mtp_layers == known.mtp_layers


def test_every_attention_gets_as_many_heads():
    """All 32 layers with 32 key-value heads instead of 8: MHA."""
    model = model_of(num_kv_heads=32)

    assert {layer.attention.num_kv_heads for layer in model.layers} == {32}
    assert {layer.attention.num_heads for layer in model.layers} == {32}


def test_latent_attention_has_no_key_value_heads():
    """Nothing to change, and nothing is."""
    known = catalog.model("deepseek-v3")

    assert apply_changes(known, Changes(num_kv_heads=1)) == known


def test_embeddings_positions_and_predictions_differ():
    """Each by itself; a prediction is like the last layer where the model has none."""
    model = model_of(tied_embeddings=True, learned_positions=2048, mtp_layers=2)

    assert (model.tied_embeddings, model.learned_positions) == (True, 2048)
    assert model.mtp_layers == (LLAMA.layers[-1],) * 2


@pytest.mark.parametrize("base", [CONFIG, {"base": "llama3-8b", "num_layers": 8}], ids=["inline", "changed"])
def test_a_base_may_be_described(base):
    """In Hugging Face's keys, or itself with changes."""
    model = load(a_job(model={"base": base, "num_layers": 2})).facts.model

    assert model.num_layers == 2


def test_a_base_may_be_a_file(tmp_path):
    """Relative to the job; the file is among those that were read, and the job holds its content afterwards."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    job = a_job(model={"base": "config.json", "num_layers": 3})

    problem = load(job, folder=tmp_path)

    assert problem.facts.model.num_layers == 3
    assert problem.sources == (tmp_path / "config.json",)
    assert load(problem.document).facts.model.layers == problem.facts.model.layers


def test_a_folder_is_its_config():
    """As models lie on the hub; a name of the catalog is no file."""
    assert read(str(JOBS / "llama-3.1-405b"), Path()).num_layers == 126
    assert read("llama3-8b", Path()) is LLAMA
    assert read_whole("llama3-8b", JOBS)[2] is None
    assert read_whole("llama-3.1-405b", JOBS)[2] == JOBS / "llama-3.1-405b" / "config.json"


def test_a_type_may_stand_outside_of_the_part_for_text(tmp_path):
    """Multimodal configs name it once, beside ``text_config``, or only inside."""
    inner = {name: value for name, value in CONFIG.items() if name != "model_type"}
    for number, config in enumerate(({"model_type": "llama", "text_config": inner}, {"text_config": CONFIG})):
        path = tmp_path / f"{number}.json"
        path.write_text(json.dumps(config))

        assert load(a_job(model=str(path))).facts.model.num_layers == 4
