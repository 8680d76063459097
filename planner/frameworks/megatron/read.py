"""Import of arguments of Megatron-LM as a job that can be estimated and compared."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from constraints import FRAMEWORK_RULES, MEMORY_RULES, PHYSICS_RULES, find_violations, sentence
from costmodel import catalog
from costmodel.errors import SpecError
from costmodel.record import record
from costmodel.strategy import Strategy
from costmodel.tables import Facts
from costmodel.validation import shown
from planner.frameworks.megatron.checks import (
    RECENT,
    RELEASES_OF,
    drop_without_effect,
    refuse_contradictions,
)
from planner.frameworks.megatron.model import PATTERN, STAGED_PATTERN, read_model, translate_pattern
from planner.frameworks.megatron.options import WHERE, WORDS, Arguments, options, read_arguments, split_words
from planner.frameworks.megatron.releases import RELEASES, lacking
from planner.frameworks.megatron.settings import PRECISIONS, context_exchange, read_group, read_settings
from planner.frameworks.megatron.stages import uneven_stages
from planner.frameworks.megatron.strategy import DEGREES, read_strategy
from planner.frameworks.whole_entries import split_sections
from planner.jobs.cluster import device_of, device_path
from planner.jobs.document import apply_override, read_mapping
from planner.jobs.problem import load
from planner.jobs.strategy_file import complete_strategy, read_given, strategy_entries

DATA = WORDS["read"]

CLUSTER = {"device": "h100-80gb-sxm", "num_devices": 64}
"""Entries that no argument sets, with example values."""

HALF = "Or say training.precision=bf16, where another script adds it."


@record(frozen=True, kw_only=True, slots=True)
class Imported:
    """
    Job that was read from arguments.

    Parameters
    ----------
    document
        The job as plain data with its strategy, in the form that :func:`planner.load` takes.
    notes
        Options that were left out and values that were assumed, a sentence each.
    """

    document: Mapping[str, Any]
    notes: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Write the job as YAML, with the notes on top."""
        body: str = yaml.safe_dump(
            dict(self.document), sort_keys=False, allow_unicode=True, width=100, default_flow_style=None
        )
        return "".join(f"# {note}\n" for note in self.notes) + body

    def add_notes(self, *notes: str) -> Imported:
        """Return the same job with further notes in front of its own."""
        return Imported(document=self.document, notes=(*notes, *self.notes))


def from_megatron_lm(
    arguments: str | Sequence[str], overrides: Sequence[str] = (), environment: Mapping[str, str] | None = None
) -> Imported:
    """
    Read arguments of ``pretrain_gpt.py``.

    Parameters
    ----------
    arguments
        Text of a command line or shell script, or its words.
    overrides
        Entries of the job as ``key=value``; ``cluster.device`` and ``cluster.num_devices`` are required.
    environment
        Environment variables, where the arguments are words.

    Raises
    ------
    SpecError
        If an option is unknown, missing, or contradicts another one or the model, or if an entry of the job is wrong.
    """
    if isinstance(arguments, str):
        words, variables = split_words(arguments)
    else:
        words, variables = list(arguments), dict(environment or {})
    if not words:
        raise SpecError(WHERE, "hold no option such as --num-layers.")
    overrides, written = split_sections(overrides), read_arguments(words)
    given, remarks = drop_without_effect(written)
    found, more = translate_pattern(given)
    said = {**found, **{name: given[name] for name in ("--num-layers",) if name in given}}
    remarks = (*remarks, *more, *refuse_contradictions(said, variables, _judging(overrides, written)))
    entry, assumed = read_model(found)
    document: dict[str, Any] = {"model": entry, "cluster": {}, "training": _training(found)}
    settings, of_settings = read_settings(found, variables, found["--num-layers"])
    for override in overrides:
        apply_override(document, override)
    _require(document)
    if "--hybrid-context-parallel" in found and "sequence_lengths" in document["training"]:
        most = found.get("--max-seqlen-per-dp-cp-rank")
        document["training"].setdefault("max_seqlen_per_dp_cp_rank", most)
    own = document.pop("settings", None) or {}
    framework = _framework(document, {**settings, **own}, written)
    document["cluster"] = {**framework, **document["cluster"]}
    document["settings"] = {**settings, **own}
    facts = load(document).facts
    strategy, notes = _strategy(found, facts, document.get("strategy") or {})
    document["settings"] = {**settings, "optimizer_group": read_group(found, strategy), **own}
    document["strategy"] = strategy_entries(facts, strategy)
    load(document)
    notes = (*notes, *uneven_stages(strategy, facts.model), *_forbidden(facts, strategy))
    remarks = (*_note_release(framework), *remarks, *assumed, *of_settings, *notes)
    return Imported(
        document=document, notes=(*remarks, *_exchange(found, facts), *_packing(found, facts), *_note_uncosted(found))
    )


def _strategy(found: Arguments, facts: Facts, own: Mapping[str, Any]) -> tuple[Strategy, tuple[str, ...]]:
    """Read the strategy of arguments with the command's decisions; dp takes the remaining devices."""
    of_degrees = {option: own[name] for name, option in DEGREES.items() if name in own}
    strategy, notes = read_strategy({**found, **of_degrees}, facts)
    if own.keys() <= {*DEGREES}:
        return strategy, notes
    follows = {"layout", "group"} if {"vpp", "layout", "schedule"} & own.keys() else set()
    kept = {name: value for name, value in strategy_entries(facts, strategy).items() if name not in follows}
    changed = complete_strategy(facts, read_given({**kept, **own}))
    if changed.num_devices != facts.cluster.num_devices:
        problem = f"tp * cp * pp * dp = {changed.num_devices}, cluster.num_devices is {facts.cluster.num_devices}."
        raise SpecError("strategy", problem, f"Write cluster.num_devices={changed.num_devices}, or change a degree.")
    return changed, notes


PLAIN = "megatron-lm-"
"""Prefix of plain releases of Megatron-LM, whose defaults are those of its parser, not of a recipe."""


def release_for(device: object, loss: object, among: str | tuple[str, ...] = PLAIN) -> str | None:
    """
    Return the newest plain release of Megatron-LM for a job.

    Parameters
    ----------
    device
        Device of the job.
    loss
        Setting ``loss`` of the job, which not every release has; with several values or none any release matches.
    among
        Beginnings of the names of releases to choose among.

    Returns
    -------
    str or None
        Name of the release; None: none runs on the device, or it has its own software.
    """
    if not isinstance(device, (str, Mapping)):
        return None
    path = device_path(device, Path())
    known = device_of(dict(device) if isinstance(device, Mapping) else device if path is None else read_mapping(path))
    own = known.framework
    if own is not None and (own.startswith(PLAIN) or own == "mofa"):
        return None
    fitting = [
        name
        for name in catalog.frameworks()
        if name.startswith(among)
        and (own is not None or catalog.runs_on(catalog.framework(name), known.architecture))
        and (not isinstance(loss, str) or loss in catalog.framework(name).setting_values.get("loss", (loss,)))
    ]
    return max(fitting, key=lambda name: catalog.framework(name).since, default=None)


def _judging(overrides: Sequence[str], written: Arguments) -> tuple[str, ...]:
    """Return the releases whose parsers check the arguments: of the framework that is named, else recent ones."""
    given: dict[str, Any] = {}
    for override in overrides:
        if override.partition("=")[0].partition(".")[0] == "cluster":
            apply_override(given, override)
    cluster = given.get("cluster")
    if not isinstance(cluster, Mapping):
        return ()
    named = cluster.get("framework", release_for(cluster.get("device"), None))
    releases = RELEASES_OF.get(named, ()) if isinstance(named, str) else ()
    is_open = releases and "framework" not in cluster and releases[-1] in RECENT
    return tuple(_knowing(RECENT, written)) or RECENT if is_open else releases


def _knowing(releases: Sequence[str], written: Arguments) -> Iterator[str]:
    """Yield the releases that have all of the written options and choices."""
    return (one for one in releases if not any(lacking(written, one)))


def _framework(document: Mapping[str, Any], settings: Mapping[str, Any], written: Arguments) -> dict[str, str]:
    """
    Return a plain release of Megatron-LM that has the settings, where the job names no framework itself.

    It is the newest of the catalog on the device, or the first one after it that has all of the written options.
    """
    if "framework" in document["cluster"]:
        return {}
    name = release_for(document["cluster"]["device"], settings["loss"])
    own = RELEASES_OF.get(name or "", ())
    first = next(_knowing(RELEASES[RELEASES.index(own[0]) :], written), own[0]) if own else None
    return {} if name is None else {"framework": name if first in (None, *own) else f"{PLAIN}{first}"}


def _forbidden(facts: Facts, strategy: Strategy) -> Iterator[str]:
    """Yield a note for each broken rule: Megatron-LM refuses the strategy, or runs another one."""
    rules = [rule for rule in (*FRAMEWORK_RULES, *PHYSICS_RULES) if rule not in MEMORY_RULES]
    for rule in find_violations(facts, strategy.decisions(), rules=rules):
        yield f"Megatron-LM does not run this as it is: {sentence(rule)}"


def _note_release(framework: Mapping[str, str]) -> Iterator[str]:
    for name in framework.values():
        first = "the first one that has all of these options"
        why = "the newest one that runs this on the device" if name in catalog.frameworks() else first
        hint = "Add cluster.framework=NAME for another one of planner catalog frameworks."
        yield f"No argument says the release: {name} is assumed, {why}. {hint}"


def _require(document: Mapping[str, Any]) -> None:
    """Refuse a job without the entries that arguments or the command must set."""
    cluster, training = document["cluster"], document["training"]
    for name, example in CLUSTER.items():
        if name not in cluster:
            raise SpecError(f"cluster.{name}", "is no argument of Megatron-LM.", f"Add cluster.{name}={example}.")
    missing = {"sequence_length": "--seq-length", "global_batch_size": "--global-batch-size"}
    for name, option in missing.items():
        if name not in training:
            raise SpecError(f"{WHERE}.{option}", "is required but missing.", f"Or add training.{name}=...")
    if "tokens" not in training:
        hint = "Or say how long the training is: training.tokens=1e12."
        raise SpecError(f"{WHERE}.--train-iters", "is required but missing, and so is --train-samples.", hint)


# --- training ----------------------------------------------------------------------------------------------


def _training(arguments: Arguments) -> dict[str, Any]:
    length = arguments.get("--seq-length", arguments.get("--encoder-seq-length"))
    batch = arguments.get("--global-batch-size")
    iterations, samples = arguments.get("--train-iters"), arguments.get("--train-samples")
    sequences = samples if samples is not None else iterations * batch if iterations and batch else None
    return {
        **({"global_batch_size": batch} if batch else {}),
        **({"sequence_length": length} if length else {}),
        **({"tokens": sequences * length} if sequences and length else {}),
        **_evaluations(arguments),
        "precision": _precision(arguments),
    }


EVALUATIONS = {"--eval-interval": "evaluation_interval_steps", "--eval-iters": "evaluation_steps"}
"""Entries of the training by options; if one of them is given, Megatron-LM's defaults of the others are the job's."""


def _evaluations(arguments: Arguments) -> dict[str, Any]:
    """Return the entries of evaluations that options describe; none where they have no steps."""
    given = {entry: arguments[name] for name, entry in EVALUATIONS.items() if name in arguments}
    return given if all(value > 0 for value in given.values()) else {}


def _precision(arguments: Arguments) -> str:
    narrow = {name: arguments.get(name) for name in ("--fp8-format", "--fp4-format")}
    formats = [name for name, value in narrow.items() if value]
    half = "--fp16" if "--fp16" in arguments else "--bf16"
    if half not in arguments:
        raise SpecError(f"{WHERE}.--bf16", "is required, or --fp16: training in FP32 is not costed.", HALF)
    if not formats:
        return half.removeprefix("--")
    recipe = formats[0].replace("format", "recipe")
    wanted = arguments.get(recipe, {"--fp8-recipe": "delayed", "--fp4-recipe": "nvfp4"}[recipe])
    names = [name for name, entries in PRECISIONS.items() if entries.get(recipe) == wanted]
    if not names:
        raise SpecError(f"{WHERE}.{recipe}", f"is {shown(wanted)}, which is no precision of the catalog.")
    return names[0]


# --- what is left out --------------------------------------------------------------------------------------


def _note_uncosted(arguments: Arguments) -> Iterator[str]:
    """Yield notes on options that are not costed, first those that may matter."""
    known = options()
    others = [name for name in arguments if known[name].in_import != "read"]
    harmless = [name for name in others if known[name].in_import == "free" or known[name].group in DATA.without_cost]
    mattering = [name for name in others if name not in harmless]
    harmless += [name for name, is_so in SO_ANYWAY.items() if name in arguments and is_so(arguments)]
    if mattering:
        yield f"Not costed: {', '.join(mattering)}."
    if harmless:
        yield f"Without influence on a step's cost: {', '.join(sorted(harmless))}."
    if "--num-experts" in arguments and "--moe-grouped-gemm" not in arguments:
        yield "Without --moe-grouped-gemm experts are computed one after another: costed as grouped."
    if (kernels := arguments.get("--transformer-impl", TE)) != TE:
        yield f"--transformer-impl {kernels}: costed as Transformer Engine's kernels."
    if "--no-gradient-accumulation-fusion" in arguments:
        yield "--no-gradient-accumulation-fusion: costed as if matmuls added to the gradients themselves."
    if "--spec" in arguments and STAGED_PATTERN not in arguments and PATTERN not in arguments:
        yield f"--spec {' '.join(arguments['--spec'])}: costed as the layers that the other options describe."
    if "--recompute-num-layers" in arguments and arguments.get("--recompute-method") == "uniform":
        number = arguments["--recompute-num-layers"]
        if number > 1:
            yield f"--recompute-num-layers {number}: costed as if each layer were recomputed by itself."


TE = "transformer_engine"

STATES = ("--exp-avg-dtype", "--exp-avg-sq-dtype", "--main-grads-dtype", "--optimizer-cpu-offload")
"""Options that need the precision-aware optimizer."""

SO_ANYWAY: Mapping[str, Callable[[Arguments], bool]] = {
    "--accumulate-allreduce-grads-in-fp32": lambda given: "--bf16" in given,
    "--add-qkv-bias": lambda given: "--disable-bias-linear" not in given,
    **dict.fromkeys(EVALUATIONS, lambda given: not _evaluations(given)),
    "--ffn-hidden-size": lambda given: "--moe-ffn-hidden-size" in given and not _has_dense(given),
    "--kv-channels": lambda given: "--multi-latent-attention" in given,
    "--max-position-embeddings": lambda given: _is_rotary(given),
    "--moe-enable-deepep": lambda given: given.get("--moe-flex-dispatcher-backend", "deepep") == "deepep",
    "--qk-layernorm": lambda given: "--multi-latent-attention" in given,
    "--recompute-activations": lambda given: given.get("--recompute-granularity") == "selective",
    "--use-rotary-position-embeddings": lambda given: given.get("--position-embedding-type") == "rope",
    "--use-precision-aware-optimizer": lambda given: not {*STATES} & {*given},
}
"""Options that change nothing if certain others are given (megatron/training/arguments.py, validate_args)."""


def _has_dense(arguments: Arguments) -> bool:
    pattern = str(arguments.get("--moe-layer-freq", 1))
    return int(pattern) > 1 if pattern.isdecimal() else "0" in re.sub(r"\*\d+", "", pattern)


def _is_rotary(arguments: Arguments) -> bool:
    kind = arguments.get("--position-embedding-type", "learned_absolute")
    return kind != "learned_absolute" or "--use-rotary-position-embeddings" in arguments


def _packing(arguments: Arguments, facts: Facts) -> Iterator[str]:
    """Yield notes where attention ends at documents, whose lengths are no argument, and on sizes without effect."""
    sizes, most = "--hierarchical-context-parallel-sizes", "--max-seqlen-per-dp-cp-rank"
    if sizes in arguments and facts.cluster.settings.cp_a2a_ranks is None:
        yield f"{sizes}: no effect without context parallelism of --cp-comm-type a2a+p2p."
    if most in arguments and "--hybrid-context-parallel" not in arguments:
        yield f"{most}: no effect without --hybrid-context-parallel."
    named = [name for name in ("--reset-attention-mask", "--hybrid-context-parallel") if name in arguments]
    if named and facts.workload.lengths is None:
        yield (
            f"{', '.join(named)}: attention stays within documents, whose lengths no argument says. Costed as one "
            "sequence per sample; training.sequence_lengths={4k: 70, 32k: 30} says them."
        )


def _exchange(arguments: Arguments, facts: Facts) -> Iterator[str]:
    """Yield a note where ``--cp-comm-type`` differs from the framework's context-parallel communication."""
    given, costed = arguments.get("--cp-comm-type", ["p2p"]), context_exchange(facts.cluster)
    said = {kind.replace("allgather", "all_gather") for kind in given}
    if arguments.get("--context-parallel-size", 1) > 1 and said != {costed}:
        whose = "by default " if "--cp-comm-type" not in arguments else ""
        yield f"--cp-comm-type is {whose}{' '.join(given)}: costed as {costed}, as cluster.framework has it."
