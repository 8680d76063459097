"""Recipes of Megatron-Bridge: by name with overrides, and as Python that is read and never executed."""

from __future__ import annotations

import csv

import pytest

from costmodel.errors import SpecError
from planner import import_job, load
from planner.frameworks.imports.bridge import library
from planner.frameworks.imports.bridge.python_source import UNKNOWN, Function, read_module, result_of
from planner.frameworks.imports.documents import ROOM
from tests.cases import in_one_case

CLUSTER = ["cluster.device=h100-80gb-sxm", "cluster.num_devices=64"]

RECIPE = """
import os, subprocess
from megatron.bridge.recipes.llama import llama3_70b_pretrain_config as base
from megatron.bridge.training.config import ConfigContainer

os.system("touch {mark}")
open("{mark}", "w").write("ran")
DEGREES = {{"tensor_model_parallel_size": 8, "pipeline_model_parallel_size": 2}}


def _spread(model, **sizes):
    model.tensor_model_parallel_size = sizes["tensor_model_parallel_size"]
    model.pipeline_model_parallel_size = sizes.get("pipeline_model_parallel_size", 4)
    for name in subprocess.check_output("date"):
        model.recompute_num_layers = name


def ours() -> ConfigContainer:
    cfg = base()
    _spread(cfg.model, **DEGREES)
    cfg.model.virtual_pipeline_model_parallel_size = None
    cfg.model.pipeline_model_parallel_size = 2 if len(DEGREES) == 2 else 16
    cfg.model.recompute_granularity, cfg.model.recompute_method = "full", "uniform"
    cfg.model.recompute_num_layers = 1
    cfg.train.global_batch_size = 16 * 64
    cfg.train.micro_batch_size *= 2
    cfg.mixed_precision = "bf16_with_fp8_current_scaling_mixed"
    subprocess.run(["touch", "{mark}"])
    return cfg
"""


def imported(tmp_path, line, *entries):
    """The job of a script of one line."""
    script = tmp_path / "launch.sh"
    script.write_text(line)
    return import_job(script, [*CLUSTER[:1], *entries])


def test_overrides_stand_on_the_recipe(tmp_path):
    """The recipe's cp 2, pp 4 and batch of 512 (llama3.py in the package), the command's tp; a micro-batch of 1."""
    launch = "torchrun --nproc-per-node 8 --nnodes 8 run_recipe.py --recipe llama3_70b_pretrain"
    job = imported(tmp_path, f"{launch} model.tensor_model_parallel_size=8")
    strategy, training = job.document["strategy"], job.document["training"]

    assert [strategy[name] for name in ("tp", "cp", "pp", "vpp", "mbs")] == [8, 2, 4, 5, 1]
    assert (training["global_batch_size"], training["sequence_length"], training["precision"]) == (512, 8192, "bf16")
    assert strategy["recompute"] == "none"
    assert any("llama3_70b_pretrain_config (Megatron-Bridge 0.3.1)" in note for note in job.notes)


def test_a_recipe_needs_no_overrides(tmp_path):
    """DeepSeek-V3's stages are 4 layers each, but for the last with one (its layout for 16 ranks)."""
    job = imported(
        tmp_path, "torchrun --nproc-per-node 8 --nnodes 128 run_recipe.py --recipe deepseek_v3_pretrain_config"
    )
    strategy = job.document["strategy"]

    assert [strategy[name] for name in ("tp", "pp", "ep", "mbs")] == [2, 16, 64, 1]
    assert strategy["layout"]["layers"] == [4] * 15 + [1]
    assert job.document["settings"]["moments_dtype"] == "bf16"
    assert job.document["training"]["global_batch_size"] == 4096


@pytest.mark.parametrize("name", ["fp8_dot_product_attention", "fp8_multi_head_attention"])
def test_attention_in_fp8_is_a_setting(tmp_path, name):
    """The older option is costed as the newer one, and says so."""
    launch = "torchrun --nproc-per-node 8 --nnodes 8 run_recipe.py --recipe llama3_70b_pretrain"
    job = imported(
        tmp_path, f"{launch} mixed_precision=bf16_with_fp8_current_scaling_mixed mixed_precision.{name}=true"
    )

    assert job.document["settings"]["fp8_attention"] is True
    assert (f"mixed_precision.{name}: costed as mixed_precision.fp8_dot" in job.text) == (name[4:9] == "multi")


def test_a_precision_by_name_takes_the_place_of_the_recipes(tmp_path):
    """Current scaling keeps the gathered weights in FP8; NVIDIA's nano name means blocks all the same."""
    start = "torchrun --nproc-per-node 8 run_recipe.py --recipe llama3_8b_pretrain"

    current = imported(tmp_path, f"{start} mixed_precision=bf16_with_fp8_current_scaling_mixed").document
    blocks = imported(tmp_path, f"{start} mixed_precision=nanov2_bf16_with_fp8_current_scaling_mixed").document

    assert (current["training"]["precision"], current["settings"]["fp8_param_gather"]) == ("fp8_current", True)
    assert blocks["training"]["precision"] == "fp8_blockwise"
    wide = [[one["settings"][f"{end}_layers_bf16"] for end in ("first", "last")] for one in (current, blocks)]
    assert wide == [[1, 1], [2, 2]]  # megatron/bridge/training/mixed_precision.py:286 and 352


def test_a_recipe_of_ones_own_is_read(tmp_path):
    """What it sets on top of the package's; nothing of it is executed."""
    mark, path = tmp_path / "ran", tmp_path / "recipe.py"
    path.write_text(RECIPE.format(mark=mark))

    job = import_job(path, CLUSTER).document

    assert [job["strategy"][name] for name in ("tp", "cp", "pp", "vpp", "mbs")] == [8, 2, 2, 1, 2]
    assert (job["strategy"]["recompute"], job["training"]["precision"]) == ("full", "fp8_current")
    assert job["training"]["global_batch_size"] == 1024
    assert load(job).facts.model.name == "llama3-70b"
    assert not mark.exists()


@in_one_case(
    ("line", "message"),
    [
        (
            "cfg.model.tensor_model_parallel_size = int(os.environ['TP'])",
            "is something that only running the recipe would say",
        ),
        ("cfg.train.global_batch_size = 512 if torch.cuda.is_available() else 256", "only running the recipe"),
        ("cfg.mixed_precision = choose()", "is no precision that is known here"),
        ("spread_over_nodes(cfg.model)", "line 5: hands the configuration to 'spread_over_nodes', which is not read"),
        ("raise ValueError('no')", "raises an error"),
        ("cfg.model.pipeline_model_parallel_layout = [['decoder'] * 10**9]", "only running the recipe"),
        ("cfg.model.recompute_granularity = read_file()", "only running the recipe"),
        ("cfg = ours()", "nested too deeply"),
    ],
)
def test_what_only_running_says_is_refused(tmp_path, line, message):
    """A degree, a batch, a precision, recomputation; nothing is guessed."""
    path = tmp_path / "recipe.py"
    start = "import os, torch\nfrom megatron.bridge.recipes.llama.llama3 import llama3_8b_pretrain_config\n"
    path.write_text(f"{start}def ours():\n    cfg = llama3_8b_pretrain_config()\n    {line}\n    return cfg\n")

    with pytest.raises(SpecError, match=message):
        import_job(path, CLUSTER)


@in_one_case(
    ("text", "message"),
    [
        ("def ours(:", "is no Python"),
        ("x = 1", "holds no recipe"),
        ("def ours():\n    return 3", "holds no recipe"),
        ("def ours():\n    for i in range(10**12):\n        pass\n    return i", "holds no recipe"),
        ("(" * 500 + ")" * 500, "is no Python|holds no recipe"),
    ],
)
def test_what_is_no_recipe_says_so(tmp_path, text, message):
    """And what one looks like."""
    path = tmp_path / "recipe.py"
    path.write_text(text)

    with pytest.raises(SpecError, match=message):
        import_job(path, CLUSTER)


def test_fine_tuning_is_refused(tmp_path):
    """By the recipe's name."""
    with pytest.raises(SpecError, match="adapters"):
        imported(tmp_path, "torchrun --nproc-per-node 8 run_recipe.py --recipe llama3_8b_peft_config")


def test_python_is_followed_over_what_is_known():
    """Arithmetic, defaults, keywords, comprehensions and branches; what depends on something else is unknown."""
    source = (
        "SIZES = {(4, 1): [['a'] * 2] + [['b']] * 3}\n"
        "def helper(size, times=2, **others):\n"
        "    if size is None:\n        return 0\n"
        "    return size * times + others.get('more', 0) if False else size * times\n"
        "def ours():\n"
        "    low = [one * 2 for one in (1, 2)]\n"
        "    high = helper(3, times=4)\n"
        "    if unknown_thing():\n        high = 5\n"
        "    return (low, high, helper(7), len(SIZES[(4, 1)]), {**{'a': 1}, 'b': -2}, 'a' in {'a': 1})\n"
    )
    names = read_module(source, "example")

    found = result_of(names["ours"], "example")

    assert isinstance(names["helper"], Function)
    assert found[0] == [2, 4]
    assert found[1] is UNKNOWN
    assert found[2:] == (14, 4, {"a": 1, "b": -2}, True)


CHOICES = """
def ours(flag=None):
    size: int = 3
    table = {'a': 1}
    table['b'], table[unknown()] = size * 2, 9
    assert size
    return table, flag or size, size and table['b'], unknown() or 4, ours is not None, ours is None
def long():
    return [[(a, b) for a in range(4000)] for b in range(4000)]
"""
"""A recipe that chooses, and one that takes longer than any does."""


def test_choices_are_followed_as_python_does():
    """An entry of a table by an unknown key is none, and an unknown side of ``or`` leaves it unknown."""
    names = read_module(CHOICES, "example")

    table, either, both, maybe, is_made, is_none = result_of(names["ours"], "example")

    assert (table, either, both, is_made, is_none) == ({"a": 1, "b": 6}, 3, 6, True, False)
    assert maybe is UNKNOWN
    with pytest.raises(SpecError, match=r"example: is longer than a recipe that is read\."):
        result_of(names["long"], "example")


CALLS = """
from elsewhere import Model, Other, apply_flex_dispatcher_backend, copy, tune
def double(size=1, more=0):
    return 2 * size + more
def ours():
    model = Model(7, width=5)
    read = (double(**{'size': 3}), double(**Other), getattr(model, 'width'), getattr(model, 'depth', 9), int('12'))
    unread = (getattr(Other, 'depth', 9), int('11', base=2), copy.deepcopy(model), model.part(1, high=2))
    apply_flex_dispatcher_backend(model, moe_flex_dispatcher_backend='deepep')
    return read, unread, model
def odd():
    model, size = Model(width=5), 3
    apply_flex_dispatcher_backend(model, 'hybridep')
    return model, size(1), copy.deepcopy(), apply_flex_dispatcher_backend(Other)
def changed():
    tune(Model(width=5))
def changed_by_name():
    tune(config=Model(width=5))
"""
"""A recipe's source."""


def test_calls_are_followed_where_they_are_read():
    """Spread keywords (of something unknown none), ``getattr``, built-in functions, copies; others make things."""
    names = read_module(CALLS, "example")

    read, (unknown, base, copied, part), model = result_of(names["ours"], "example")

    assert list(read) == [6, 2, 5, 9, 12]
    assert unknown is UNKNOWN
    assert (base.name, base.fields, base.is_called) == ("int", {"base": 2}, True)
    assert copied is model
    assert (part.arguments, part.fields, part.is_called) == ((7, 1), {"high": 2}, True)
    assert (model.fields["width"], model.fields["moe_flex_dispatcher_backend"]) == (5, "deepep")


def test_calls_with_too_few_arguments_make_things():
    """A number cannot be called; a copy of nothing and a dispatcher without a backend are calls of unread functions."""
    model, called, copied, chosen = result_of(read_module(CALLS, "example")["odd"], "example")

    assert model.fields["moe_flex_dispatcher_backend"] == "hybridep"
    assert called is UNKNOWN
    assert (copied.name, copied.arguments, copied.is_called) == ("copy.deepcopy", (), True)
    assert (chosen.name, chosen.is_called) == ("apply_flex_dispatcher_backend", True)
    assert [one.name for one in chosen.arguments] == ["Other"]


def test_a_function_that_starts_the_training_is_for_its_configuration(tmp_path):
    """A main program hands its recipe to pretrain, and has no other value; NeMo-Run is not read."""
    start = "from megatron.bridge.recipes.llama.llama3 import llama3_8b_pretrain_config\n"
    main = "def main():\n    cfg = llama3_8b_pretrain_config()\n    cfg.model.tensor_model_parallel_size = 4\n"
    path = tmp_path / "train.py"
    path.write_text(f"{start}{main}    pretrain(config=cfg, forward_step_func=step)\n")

    assert import_job(path, CLUSTER).document["strategy"]["tp"] == 4
    nemo = "def main():\n    recipe = llm.llama3_8b.pretrain_recipe()\n    recipe.trainer.max_steps = 9\n"
    path.write_text(f"from nemo.collections import llm\nimport nemo_run as run\n{nemo}    run.run(recipe)\n")
    with pytest.raises(SpecError, match=r"no recipe that is known here.*For NeMo 2 give the run's run_config.yaml"):
        import_job(path, CLUSTER)


@pytest.mark.parametrize(("name", "line"), [("changed", 16), ("changed_by_name", 18)])
def test_an_unread_function_may_change_the_configuration(name, line):
    """Handed over as an argument or by keyword."""
    with pytest.raises(SpecError, match=f"line {line}: hands the configuration to 'tune', which is not read"):
        result_of(read_module(CALLS, "example")[name], "example")


def test_the_table_holds_facts_alone():
    """Names, a release, a model, and values of fields: 57 recipes of decoders of text, each once."""
    with (ROOM / "bridge/library.csv").open(newline="") as lines:
        rows = list(csv.DictReader(lines))

    assert len({row["recipe"] for row in rows}) == len(rows) > 50
    assert all("=" in field for row in rows for field in row["fields"].split())
    assert library.recipe_named("qwen3_235b_a22b").fields["model.expert_model_parallel_size"] == "8"
