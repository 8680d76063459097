"""No key, option or entry that decides time or memory is dropped in silence, whatever reads it."""

from __future__ import annotations

import json
import re
import shutil

import pytest
import yaml

from benchmarks.imports.dropped import find_silent
from costmodel.errors import SpecError
from planner import import_job
from planner.frameworks.imports.arguments import other_options
from planner.frameworks.imports.bridge.library import options_by_field
from planner.frameworks.megatron.options import options
from tests.planner.test_imports import LAUNCHES
from tests.planner.test_imports_nested import MEGATRON, NEMO, NEMO_2
from tests.planner.test_imports_printed import ARGUMENTS, CONTAINER, TITAN, block, titan_json, titan_layer
from tests.planner.test_imports_tools import BESIDE, SAMPLES

DEVICE = "cluster.device=h100-80gb-sxm"
ON_64 = (DEVICE, "cluster.num_devices=64")

SCRIPT = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 8 --hidden-size 1024 --num-attention-heads 16 "
    "--seq-length 2048 --max-position-embeddings 2048 --micro-batch-size 1 --global-batch-size 64 --train-iters 10 "
    "--vocab-size 32000 --bf16 "
)
MODELS = {
    "dense": "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --use-distributed-optimizer",
    "experts": "--num-experts 8 --expert-model-parallel-size 4 --moe-grouped-gemm --moe-token-dispatcher-type flex",
}


OF_EXPERTS = re.compile("moe|expert")
"""Names of options and fields that are asked of models with and without experts; others are read alike by both."""


def job_or_message(path, text, entries):
    """The job and what is said beside it; a refusal is what is said."""
    path.write_text(text)
    try:
        found = import_job(path, entries)
    except SpecError as error:
        return None, str(error)
    return found.document, "\n".join(found.notes)


def values_of(name):
    """Words behind an option, none of them its default where it is a number."""
    option = options().get(name)
    if option is None:
        row = other_options()[name][0]
        return row["value"] or {"0": ""}.get(row["values"], "3")
    word = option.choices[-1] if option.choices else {"int": "3", "float": "0.5"}.get(option.type, "x")
    return " ".join([word] * (int(option.nargs) if option.nargs.isdecimal() else 1))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One place of all files, so that jobs differ in what is written alone."""
    return tmp_path_factory.mktemp("dropped")


@pytest.fixture(scope="module")
def plain(folder):
    """Jobs of scripts and of recipes as they are, imported once, by what is put into them."""
    jobs = {more: job_or_message(folder / "run.sh", f"{SCRIPT}{more}", [DEVICE])[0] for more in MODELS.values()}
    jobs |= {model: job_or_message(folder / "a.txt", OVERRIDES, [*ON_64, f"model={model}"])[0] for model in RECIPES}
    assert None not in jobs.values()
    return jobs


def is_named(name, said):
    """Tell if an option is among words, maybe by Megatron-LM's own name."""
    row = (other_options().get(name) or [{"meaning": "", "why": ""}])[0]
    own = options()[name].name if name in options() else name
    names = (name, own, *(row["why"].split() if row["meaning"] == "means" else ()))
    return any(re.search(rf"(?<![\w-]){re.escape(one)}(?![\w-])", said) for one in names)


def find_silent_options(names, more, plain, path):
    """Yield options that neither change the job nor are named: all at once first, since most are named in company."""
    given = " ".join(f"{name} {values_of(name)}" for name in names)
    job, said = job_or_message(path, f"{SCRIPT}{more} {given}", [DEVICE])
    left = [name for name in names if not is_named(name, said)]
    if len(names) == 1:
        yield from left if job == plain else ()
    elif job is None:  # one is refused
        for half in (names[: len(names) // 2], names[len(names) // 2 :]):
            yield from find_silent_options(half, more, plain, path)
    else:
        for name in left:
            yield from find_silent_options([name], more, plain, path)


OPTIONS, AT_ONCE = sorted({*options(), *other_options()}), 12


@pytest.mark.sampled(1)
@pytest.mark.parametrize("start", range(0, len(OPTIONS), AT_ONCE), ids=OPTIONS[::AT_ONCE])
def test_options_change_the_job_or_are_named(start, plain, folder):
    """Options of all releases and forks; those of experts with and without experts."""
    for more in MODELS.values():
        given = f"{SCRIPT}{more}".split()
        names = [
            name
            for name in OPTIONS[start : start + AT_ONCE]
            if name not in given and (more == MODELS["dense"] or OF_EXPERTS.search(name))
        ]
        found = find_silent_options(names, more, plain[more], folder / "run.sh") if names else ()

        assert list(found) == []


OVERRIDES = (LAUNCHES / "overrides.txt").read_text() + "model.expert_model_parallel_size=1\n"
GIVEN = ("optimizer.use_distributed_optimizer", "model.moe_grouped_gemm")
RECIPES = ["llama3-8b", "qwen3-30b-a3b"]
FIELDS = [field for field in options_by_field() if f"{field}=" not in OVERRIDES and field not in GIVEN]


@pytest.mark.sampled(20)
@pytest.mark.parametrize("field", FIELDS)
def test_a_field_of_a_recipe_changes_the_job_or_is_named(field, plain, folder):
    """The model that is named counts; sizes and switches that it does not have are said."""
    name = options_by_field()[field]
    values = ("true", "false") if options()[name].nargs == "0" else options()[name].choices or (values_of(name),)
    for model in RECIPES if OF_EXPERTS.search(field) else RECIPES[:1]:
        entries = [*ON_64, f"model={model}"]
        found = (job_or_message(folder / "a.txt", f"{OVERRIDES}{field}={value}\n", entries) for value in values)

        assert any(job != plain[model] or field in said or name in said for job, said in found)


def test_a_size_that_the_recipe_of_the_name_does_not_have_is_refused(tmp_path):
    """Two experts of a token instead of eight are another model; the command's model counts with a note."""
    text = (LAUNCHES / "overrides.txt").read_text() + "model.moe_router_topk=2\nmodel.expert_model_parallel_size=1\n"
    words = "scripts/training/run_recipe.py --recipe qwen3_30b_a3b_pretrain_config"
    (tmp_path / "run.sh").write_text(f"torchrun {words} {' '.join(text.split())}\n")
    (tmp_path / "a.txt").write_text(text)

    with pytest.raises(SpecError, match=r"model.moe_router_topk: is 2, the model that the configuration names has 8"):
        import_job(tmp_path / "run.sh", ON_64)
    notes = import_job(tmp_path / "a.txt", [*ON_64, "model=qwen3-30b-a3b"]).notes
    assert "Ignored (the model that is named counts): model.moe_router_topk." in notes


FILES = {
    "megatron.yaml": (MEGATRON, ON_64[1:]),
    "nemo_1.yaml": (NEMO, ()),
    "nemo_2.yaml": (NEMO_2, ()),
    "run_config.yaml": (yaml.safe_dump(CONTAINER), ("cluster.num_devices=16",)),
    "torchtitan.json": (json.dumps(TITAN), ("cluster.num_devices=16",)),
    "torchtitan_0.3.json": (titan_json([titan_layer()] * 2), ("cluster.num_devices=8",)),
    "args.json": (json.dumps(ARGUMENTS), ()),
    "train.log": ("\n".join([*block(), ""]), ()),
    **{path.name: (path.read_text(), BESIDE.get(path.name, ON_64[1:])) for path in SAMPLES.iterdir() if path.is_file()},
}
HERE = {
    "dense.sh": (),
    "deepspeed.sh": (),
    "accelerate.sh": (),
    "torchtitan.sh": (),
    "llama3_8b.toml": (),
    "model_args.yaml": ("cluster.num_devices=8",),
    "overrides.txt": ("model=llama3-8b", "cluster.num_devices=64"),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", [*FILES, *HERE])
def test_no_key_of_a_file_is_dropped_in_silence(name, tmp_path):
    """Each is taken out: another job, a refusal or a note; one with its default has that by another value."""
    if name in FILES:
        (tmp_path / name).write_text(FILES[name][0])
        shutil.copytree(SAMPLES / "primus", tmp_path / "primus")
    else:
        shutil.copytree(LAUNCHES, tmp_path, dirs_exist_ok=True)
    entries = (DEVICE, *(FILES.get(name) or (None, HERE[name]))[1])

    assert list(find_silent(tmp_path / name, entries, {})) == []


@pytest.mark.slow
def test_a_key_that_is_dropped_in_silence_is_found(tmp_path, monkeypatch):
    """The search itself: an import without its notes, of a switch that counts only with another one."""
    path = tmp_path / "run.sh"
    path.write_text(f"{SCRIPT} --num-query-groups 4 --optimizer-offload-fraction 0.5\n")
    assert list(find_silent(path, [DEVICE], {})) == []

    class Silent:
        """Outcome of an import without its notes."""

        def __init__(self, found):
            self.document, self.notes = found.document, ()

    monkeypatch.setattr("benchmarks.imports.dropped.import_job", lambda *given: Silent(import_job(*given)))
    assert list(find_silent(path, [DEVICE], {})) == ["--num-query-groups", "--optimizer-offload-fraction"]


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("neox.yml", ('"pipe-parallel-size": 2', '"pipe-parallel-size": 9999999999'), "is 9999999999, of 32 layers"),
        ("nemo_2.yaml", ("seq_length: 8192", "seq_length: 1e300"), "model.seq_length: expected a whole number"),
        ("run_config.yaml", ("- - embedding\n", "- - 7\n"), "has 7; expected embedding, decoder"),
    ],
)
def test_numbers_that_no_training_has_are_refused(name, change, message, tmp_path):
    """A pipeline of ten thousand million ranks took all memory, the others ended in tracebacks."""
    text, entries = FILES[name]
    assert change[0] in text
    (tmp_path / name).write_text(text.replace(*change))

    with pytest.raises(SpecError, match=message):
        import_job(tmp_path / name, [DEVICE, *entries])


def test_a_number_that_is_none_and_decides_nothing_is_no_matter(tmp_path):
    """Not a number differs from itself, as if it were given twice."""
    text = MEGATRON.replace("hidden_dropout: 0.0", "hidden_dropout: .nan")

    assert job_or_message(tmp_path / "a.yaml", text, ON_64)[0] is not None


def test_no_ranks_for_experts_are_refused(tmp_path):
    """A dense model's, too."""
    for more in MODELS.values():
        _, said = job_or_message(tmp_path / "run.sh", f"{SCRIPT}{more} --expert-model-parallel-size 0", [DEVICE])
        assert "strategy.ep: is 0, must be at least 1" in said
