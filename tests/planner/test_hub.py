"""Names on the Hugging Face hub: the cache of its tools, as they lay it out, and the catalog's names."""

import re

import pytest

from costmodel import catalog
from costmodel.errors import SpecError
from planner.jobs.config_file import cache_folder, find_cached_config, is_hub_name
from tests.cases import in_one_case

NAME = "some-lab/Some-Model-7B"


def cached(folder, *revisions, main=None, name=NAME):
    """A cache with a model in some revisions."""
    model = folder / f"models--{name.replace('/', '--')}"
    for revision in revisions:
        (model / "snapshots" / revision).mkdir(parents=True)
        (model / "snapshots" / revision / "config.json").write_text("{}")
    if main:
        (model / "refs").mkdir()
        (model / "refs" / "main").write_text(main)
    return {"HF_HUB_CACHE": str(folder)}


def test_main_is_read(tmp_path):
    """Whatever else the cache has."""
    found = find_cached_config(NAME, cached(tmp_path, "abc", "def", main="abc"))

    assert found is not None
    assert found.parent.name == "abc"


def test_the_only_revision_is_read(tmp_path):
    """Somebody downloaded one by its commit."""
    assert find_cached_config(NAME, cached(tmp_path, "def")).parent.name == "def"


def test_several_revisions_are_ambiguous(tmp_path):
    """The user says which."""
    with pytest.raises(SpecError, match=r"in 2 revisions, none of which is 'main'\. Give the path of one"):
        find_cached_config(NAME, cached(tmp_path, "abc", "def"))


@pytest.mark.parametrize("main", ["../../../elsewhere", "zzz", "\xe9"])
def test_what_a_reference_names_stays_in_the_cache(tmp_path, main):
    """A revision that is not there, or no revision at all."""
    assert find_cached_config(NAME, cached(tmp_path, "abc", main=main)).parent.name == "abc"


def test_nothing_is_cached(tmp_path):
    """An empty cache, and none."""
    assert find_cached_config(NAME, {"HF_HUB_CACHE": str(tmp_path)}) is None
    assert find_cached_config(NAME, {"HF_HOME": str(tmp_path / "nowhere")}) is None


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({"HF_HUB_CACHE": "/a", "HF_HOME": "/b"}, "/a"),
        ({"HF_HOME": "/b", "XDG_CACHE_HOME": "/c"}, "/b/hub"),
        ({"XDG_CACHE_HOME": "/c"}, "/c/huggingface/hub"),
    ],
)
def test_where_the_cache_is(environment, folder):
    """As the documentation of huggingface_hub says: HF_HUB_CACHE, else hub in HF_HOME, else in the user's cache."""
    assert str(cache_folder(environment)) == folder


def test_the_cache_is_in_the_home_folder_otherwise():
    """Without any variable."""
    assert cache_folder({}).parts[-3:] == (".cache", "huggingface", "hub")


@in_one_case("name", ["../model", "a/../b", "a/b/c", "model", "a/config.json", "a/job.yaml", "", "/a/b", "~/a"])
def test_paths_are_no_names(name):
    """A name on the hub has an owner and a model."""
    assert not is_hub_name(name)


def test_hub_names_are_those_of_models_and_of_their_sources():
    """Each names a model of the catalog, and what a source says is among them."""
    names = catalog.hub_names()

    assert all(map(is_hub_name, names))
    assert set(names.values()) <= set(catalog.models())
    for model in catalog.models():
        for alias in re.findall(r"huggingface\.co/([\w.-]+/[\w.-]+)", catalog.model(model).source):
            assert names[alias] == model
