"""Arguments of Megatron-LM by their names in print and in saved files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from costmodel.errors import SpecError
from costmodel.validation import shown
from planner.frameworks.imports.arguments import megatron_job, other_options
from planner.frameworks.imports.bridge.library import LAYERS, options_by_field
from planner.frameworks.imports.documents import read_rows, read_words
from planner.frameworks.imports.finish import newest, release_assumed
from planner.frameworks.megatron.bridge import NEGATED
from planner.frameworks.megatron.options import TABLE, options
from planner.frameworks.megatron.read import Imported
from planner.frameworks.megatron.releases import RELEASES
from planner.frameworks.megatron.releases import TABLE as RELEASED

DATA = read_words("printed.names")

NAMES = Path(__file__).parent / "names.csv"
"""
Table of names that Megatron-LM prints (core 0.14 to main of 2026-08-22, and older ones), each with its option.

``defaults`` are values without an effect, separated by ``;``, or ``=`` with the name whose value is the default.
``why`` is the source of names without an option.
"""

NEEDED = DATA["needed"]
"""Names that every release prints."""

SINCE_2023 = DATA["since_2023"]
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


TARGET = "megatron.bridge.training.config.ConfigContainer"

COSTLY_SECTIONS = ("dist", "rng", "optimizer", "ddp", "comm_overlap", "model", "mixed_precision", "train")
"""Sections with fields that change the cost of a step; of equal names the last one with a value counts."""

WHOLE_SECTIONS = ("model", "train", "optimizer", "ddp")
"""Sections that every container has, written in the order of their names."""

RENAMED = DATA["renamed"]
"""Arguments of Megatron-LM by fields of another name."""

ACTIVATIONS = {
    ("silu", True): "swiglu",
    ("quick_gelu", True): "quick_geglu",
    ("squared_relu", False): "squared_relu",
    ("gelu", False): "",
}
"""Arguments by the activation function, gated or not."""

TOGETHER = ("activation_func", "gated_linear_unit", "_target_")
"""Fields that are read together."""

GRAPHS = ("full_iteration", "attn", "mlp", "moe", "moe_router", "moe_preprocess", "mamba", "full_iteration_inference")
MEMBERS = DATA["members"]
"""Members of enumerations, which are written as numbers from 1 (megatron/core/transformer/enums.py)."""

DECIDES = ("parallel", "recompute", "offload", "pipeline")
HARMLESS = DATA["harmless"]
"""Parts of names of fields that repeat other fields."""


def is_container(content: Any) -> bool:
    """Tell whether a document is a ConfigContainer."""
    return isinstance(content, Mapping) and content.get("_target_") == TARGET


def container_job(content: Mapping[str, Any], overrides: Sequence[str], place: str) -> Imported:
    """
    Import a configuration with all of its fields.

    Raises
    ------
    SpecError
        If a section is missing, if a field that decides a degree, the stages, recomputation or offloading is not known,
        or as ``megatron_job``.
    """
    missing = [name for name in WHOLE_SECTIONS if not isinstance(content.get(name), Mapping)]
    if missing:
        problem = f"is a configuration without {', '.join(missing)}: it is cut."
        raise SpecError(place, problem, "Give all lines of it.")
    found: dict[str, Any] = {}
    strange: list[str] = []
    for section in COSTLY_SECTIONS:
        fields = content.get(section)
        for name, value in fields.items() if isinstance(fields, Mapping) else ():
            if name in TOGETHER:
                continue
            argument, value = _argument(section, name, _plain(value))
            if argument is None:
                strange += _strange(f"{section}.{name}", name, value)
            elif value is not None:
                found[argument] = value
    found |= dict(_more(found, content))
    entries = [
        *([] if any(entry.startswith("cluster.framework=") for entry in overrides) else [_framework()]),
        *overrides,
    ]
    imported = megatron_job(words_of({name: str(value) for name, value in found.items()}), entries, {})
    notes = list(release_assumed(newest("megatron-bridge-"), overrides))
    length, data = found.get("seq_length"), content.get("dataset")
    given = data.get("sequence_length", data.get("seq_length")) if isinstance(data, Mapping) else None
    if given not in (None, length):
        notes.append(f"dataset.sequence_length is {given}; read is model.seq_length, {length}.")
    if strange:
        notes.append(f"Not read, no options of Megatron-LM: {', '.join(strange)}.")
    return imported.add_notes(*notes)


def _framework() -> str:
    return f"cluster.framework={newest('megatron-bridge-')}"


def _plain(value: Any) -> Any:
    """Return a plain value; of a function, a type or a member of an enumeration its name."""
    if isinstance(value, list):
        return [_plain(one) for one in value]
    target = str(value.get("_target_")) if isinstance(value, Mapping) else ""
    members, chosen = MEMBERS.get(target.rpartition(".")[2]), value.get("_args_") if target else None
    if members is not None and isinstance(chosen, list) and chosen and chosen[0] in range(1, len(members) + 1):
        return members[chosen[0] - 1]
    return value if not target else target if target in DTYPES else target.rpartition(".")[2]


def _argument(section: str, name: str, value: Any) -> tuple[str | None, Any]:
    """Return the argument for a field, and its value."""
    option = options_by_field().get(f"{section}.{name}")
    if option in NEGATED and name_of(option) != name and isinstance(value, bool):
        return name_of(option), not value
    known = RENAMED.get(name, name)
    return (known, value) if name_of("", known) else (name_of(option or ""), value)


def _strange(path: str, name: str, value: Any) -> list[str]:
    if value in (None, False) or isinstance(value, Mapping):
        return []
    if any(part in name for part in DECIDES) and name not in HARMLESS:
        raise SpecError(
            path, f"is {shown(value)}, a field that is not known here, and may say what matters.", "Take it out."
        )
    return [path]


def _more(found: Mapping[str, Any], content: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield arguments that several fields determine together."""
    model = content["model"]
    function, gated = str(_plain(model.get("activation_func"))), bool(model.get("gated_linear_unit"))
    if (function, gated) not in ACTIVATIONS and function != "None":
        problem = f"is {shown(function)}, {'' if gated else 'not '}gated, which Megatron-LM has no option for."
        raise SpecError("model.activation_func", problem)
    yield from ((name, True) for name in filter(None, (ACTIVATIONS.get((function, gated)),)))
    if found.get("num_query_groups") not in (None, found.get("num_attention_heads")):
        yield "group_query_attention", True
    if found.get("bf16") and found.get("accumulate_allreduce_grads_in_fp32") is False:
        yield "grad_reduce_in_bf16", True
    yield "max_position_embeddings", found.get("seq_length")
    layout = found.get("pipeline_model_parallel_layout")
    if layout is not None:
        yield "num_virtual_stages_per_pipeline_rank", None
    if isinstance(layout, list):
        stages = [stage if isinstance(stage, list) else [stage] for stage in layout]
        if strange := [layer for stage in stages for layer in stage if layer not in LAYERS]:
            problem = f"has {shown(strange[0])}; expected {', '.join(LAYERS)}."
            raise SpecError("model.pipeline_model_parallel_layout", problem)
        yield "pipeline_model_parallel_layout", "|".join("".join(LAYERS[layer] for layer in stage) for stage in stages)
