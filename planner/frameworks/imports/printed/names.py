"""Arguments of Megatron-LM by their names in print and in saved files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from costmodel.errors import SpecError
from planner.frameworks.imports.arguments import other_options
from planner.frameworks.imports.documents import read_rows
from planner.frameworks.megatron.options import TABLE, options
from planner.frameworks.megatron.releases import RELEASES
from planner.frameworks.megatron.releases import TABLE as RELEASED

NAMES = Path(__file__).parent / "names.csv"
"""
Table of names that Megatron-LM prints (core 0.14 to main of 2026-08-22, and older ones), each with its option.

``defaults`` are values without an effect, separated by ``;``, or ``=`` with the name whose value is the default.
``why`` is the source of names without an option.
"""

NEEDED = (
    *("num_layers", "hidden_size", "num_attention_heads", "micro_batch_size", "global_batch_size"),
    *("tensor_model_parallel_size", "pipeline_model_parallel_size", "world_size", "bf16", "fp16"),
)
"""Names that every release prints."""

SINCE_2023 = (
    *("context_parallel_size", "expert_model_parallel_size", "num_experts", "sequence_parallel", "fp8"),
    *("use_distributed_optimizer", "overlap_grad_reduce", "recompute_granularity", "recompute_method"),
    *("num_layers_per_virtual_pipeline_stage", "group_query_attention", "swiglu", "normalization"),
    *("position_embedding_type", "untie_embeddings_and_output_weights", "seq_length", "ffn_hidden_size"),
)
"""Names that every release with context or expert parallelism prints (end of 2023 on)."""

KNOWN_BY = ("context_parallel_size", "expert_model_parallel_size")
SINCE_2024 = ("moe_grouped_gemm", "moe_router_topk", "qk_layernorm", "yaml_cfg", "expert_tensor_parallel_size")
"""Names of core 0.5 on, each of which tells a release that prints the first one as well."""

MOST_NAMED = 6
"""Missing names in a message."""

BEFORE = ("recompute_granularity", "activations_checkpoint_method", "checkpoint_activations")
"""Names of recomputation, newest first; every release prints one of them."""


@cache
def _rows() -> Mapping[str, Mapping[str, str]]:
    return {row["name"]: row for row in read_rows(NAMES)}


def name_of(option: str, name: str = "") -> str | None:
    """Return the printed name of an option, or the name itself; None: there is none."""
    if name:
        return name if name in _rows() else None
    return next((row["name"] for row in _rows().values() if option and row["option"] == option), None)


def is_read(name: str) -> bool:
    """Tell whether a name may hold a value that an import reads."""
    option = _rows()[name]["option"] if name in _rows() else f"--{name.replace('_', '-')}"
    known = options().get(option)
    return name == "world_size" or option in other_options() or (known is not None and known.in_import == "read")


def words_of(content: Mapping[str, str]) -> list[str]:
    """
    Convert arguments by name to words of a command line, without defaults.

    >>> words_of({"bf16": "True", "add_bias_linear": "False", "recompute_modules": "['mlp', 'moe']", "fp8": "None"})
    ['--bf16', '--disable-bias-linear', '--recompute-modules', 'mlp', 'moe']
    """
    # Releases of 2022 and 2023 print one layer, their default, where no method counts any.
    unset = {"recompute_num_layers"} if content.get("recompute_method", "None") == "None" else set()
    return [word for name in content if name not in unset for word in _words(name, content[name], content)]


def _words(name: str, text: str, content: Mapping[str, str]) -> list[str]:
    row = _rows().get(name) or {"option": f"--{name.replace('_', '-')}", "defaults": "", "why": ""}
    option, defaults = options().get(row["option"]), row["defaults"].split(";")
    values = _values(text, is_single=option is not None and option.nargs not in ("+", "*"))
    derived = [content.get(default[1:]) for default in defaults if default.startswith("=")]
    if row["why"] or text in ("None", *defaults, *derived) or " ".join(values) in defaults:
        return []
    if (option is None or option.nargs == "0") and text in ("True", "False"):
        return [row["option"]] if (text == "False") == ("True" in defaults) else []
    return [row["option"], *values]


def _values(text: str, *, is_single: bool) -> list[str]:
    """Read printed values of Python: a list, a type of torch, a member of an enumeration."""
    plain = re.sub(r"<\w+\.(\w+): [^>]*>", r"\1", text)
    inner = plain[1:-1].split(", ") if re.fullmatch(r"[\[(].*[\])]", plain) else [plain]
    names = [re.sub(r"^[A-Z]\w+\.(?=[a-z]\w*$)", "", part.strip("'\"")) for part in inner]
    values = [DTYPES.get(name, name) for name in names]
    if is_single and plain[:1] in ("[", "("):
        return ["[{}]".format(",".join(values)) if plain[:1] == "[" else ",".join(values)]
    return values


DTYPES = {f"torch.{name}": short for name, short in (("float32", "fp32"), ("bfloat16", "bf16"), ("float16", "fp16"))}

ZERO = ("none", "optimizer", "gradients", "weights")
PADDED = re.compile(r"padded vocab \(size: (\d+)\)")


def entries_of(content: Mapping[str, str], text: str) -> dict[str, str]:
    """Return entries of the job from printed values of Megatron-LM or a fork that have no option."""
    found = {"cluster.num_devices": content["world_size"]}
    vocabulary = set(PADDED.findall(text))
    if content.get("vocab_size", "None") == "None" and len(vocabulary) == 1:
        found["model.vocab_size"] = vocabulary.pop()
    stage = content.get("zero_stage", "0").partition(".")[0]
    if content.get("deepspeed") == "True" and stage in ("1", "2", "3"):
        found["strategy.sharding"] = ZERO[int(stage)]
    return found


def is_arguments(content: Any) -> bool:
    """Tell whether a document holds arguments of Megatron-LM by name."""
    return isinstance(content, Mapping) and {"tensor_model_parallel_size", "num_layers", "world_size"} <= {*content}


def whole_arguments(content: Mapping[str, Any], place: str) -> dict[str, str]:
    """
    Return the texts of arguments, if all that every release prints are there and the degrees fill the world size.

    Raises
    ------
    SpecError
        If some are missing.
    """
    values = {
        name: one["value"] if isinstance(one, Mapping) and "value" in one else one for name, one in content.items()
    }
    texts = {name: str(value) for name, value in values.items()}
    newer = SINCE_2024[:1] if {*SINCE_2024} & {*texts} else ()
    since = SINCE_2023 if newer or {*KNOWN_BY} & {*texts} else () if {*BEFORE} & {*texts} else BEFORE[:1]
    needed = dict.fromkeys((*NEEDED, *since, *newer, *_names_of_release(texts)))
    missing = [name for name in needed if name not in texts]
    if missing:
        more = f" and {len(missing) - MOST_NAMED} more" if len(missing) > MOST_NAMED else ""
        named = f"{', '.join(missing[:MOST_NAMED])}{more}"
        raise SpecError(place, f"has arguments without {named}: some are missing.", "Give all of them.")
    world = 1
    for name in ("tensor_model_parallel", "pipeline_model_parallel", "context_parallel", "data_parallel"):
        world *= _number(texts, f"{name}_size")
    if "data_parallel_size" in texts and world != _number(texts, "world_size"):
        problem = f"has degrees of {world} ranks, and world_size {texts['world_size']}: some are missing."
        raise SpecError(place, problem, "Give all of them.")
    return texts


UNPRINTED = ("recompute_activations", "cuda_graph_scope_deprecated")
"""Names that Megatron-LM's own check removes before it prints (megatron/training/arguments.py, validate_args)."""


def _names_of_release(content: Mapping[str, str]) -> list[str]:
    """
    Return the names of options that are read and that every release prints which may have printed these names.

    The newest name tells the release, or a state of the branch since the release before it. Of releases before the
    second one of the parsers' table nothing is known.
    """
    spans = {row["option"]: (row["since"], row["until"]) for row in read_rows(RELEASED) if not row["choice"]}
    names = {row["dest"]: row["flags"].split()[0] for row in read_rows(TABLE) if row["dest"] in _rows()}
    always = (RELEASES[0], RELEASES[-1])
    known = {name: tuple(map(RELEASES.index, spans.get(option, always))) for name, option in names.items()}
    newest = max((known[name][0] for name in content if name in known), default=0)
    every = [name for name, (since, until) in known.items() if newest and since < newest <= until]
    return [name for name in every if options()[names[name]].in_import == "read" and name not in UNPRINTED]


def _number(content: Mapping[str, str], name: str) -> int:
    text = content.get(name, "1")
    return int(text) if text.isdecimal() else 1
