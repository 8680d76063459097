"""Options of Megatron-LM that exclude or require each other, as its parser checks, and options without effect."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from math import prod
from typing import NamedTuple

from constraints.rules.frameworks import MEGATRON_MODULES
from costmodel.errors import SpecError
from costmodel.strategy import GRAPH_MODULES
from planner.frameworks.megatron.model import PATTERN, STAGED_PATTERN
from planner.frameworks.megatron.options import INFERENCE_SCOPE, WHERE, WORDS, Arguments
from planner.frameworks.megatron.releases import RELEASES
from planner.frameworks.megatron.settings import OFFLOADED

DATA = WORDS["checks"]

RELEASES_OF = {
    "megatron-lm-main": RELEASES[5:],
    "megatron-lm-0.19": RELEASES[4:5],
    "megatron-lm-0.18": RELEASES[3:4],
    "megatron-lm-0.17": RELEASES[2:3],
    "megatron-lm-0.14": RELEASES[:1],
    "megatron-lm-0.12": RELEASES[:1],
}
"""Releases whose parsers check the arguments, by framework of the catalog; recipes have none, and 0.16 none known."""

RECENT = RELEASES[2:]
"""Releases whose parsers check arguments that name no release."""

ALWAYS = ("", "")
"""Span of a contradiction in every release, and in recipes: the model or the optimizer cannot be built."""

OF_PARSERS = (RELEASES[0], RELEASES[-1])
"""Span of a contradiction that the parser of every release refuses, but no recipe."""

NEW_MODULES = {"gdn_norm_out": "0.18", "gdp_in_proj": "0.19", "gdp_qkv": "0.19", "mhc": "0.19"}
"""Modules of ``--recompute-modules`` that have no costs here, with the last release without them."""


class Complaint(NamedTuple):
    """
    Option that is refused, with the problem and the releases that refuse it.

    Parameters
    ----------
    option, problem
        Name of the option, and the rest of the sentence.
    span
        First and last release that refuses it; ``ALWAYS``: all, with or without a parser.
    """

    option: str
    problem: str
    span: tuple[str, str] = ALWAYS

    def refusing(self, releases: Sequence[str]) -> list[str]:
        """Return the given releases that refuse it."""
        first, last = (RELEASES.index(one) for one in self.span)
        return [one for one in releases if first <= RELEASES.index(one) <= last]


def refuse_contradictions(
    arguments: Arguments, variables: Mapping[str, str], releases: Sequence[str] = ()
) -> tuple[str, ...]:
    """
    Refuse options that Megatron-LM refuses by themselves; rules on strategies are checked by the estimate.

    Parameters
    ----------
    arguments
        Values by option.
    variables
        Environment variables.
    releases
        Releases whose parsers check the arguments; empty for a recipe, which has no parser.

    Returns
    -------
    tuple of str
        Contradictions that only some of the releases refuse, a sentence each.

    References
    ----------
    Megatron-LM, megatron/training/arguments.py, validate_args, of core 0.17.1, 0.18.2, 0.19.0 and main;
    megatron/core/transformer/transformer_config.py, ``__post_init__`` (lines of megatron-core 0.16.1),
    moe/moe_layer.py:101 and optimizer/optimizer_config.py:375 there.

    Raises
    ------
    SpecError
        For the first contradiction that every one of the releases refuses.
    """
    notes: list[str] = []
    for check in CHECKS:
        for complaint in check(arguments):
            name, problem, span = complaint
            refusing = list(releases) if span == ALWAYS else complaint.refusing(releases)
            if span == ALWAYS or (refusing and len(refusing) == len(releases)):
                raise SpecError(f"{WHERE}.{name}", problem)
            if refusing:
                notes.append(f"Megatron Core {_name_range(refusing)} refuses these options: {name} {problem}")
    if "--use-torch-fsdp2" in arguments and variables.get("CUDA_DEVICE_MAX_CONNECTIONS") == "1":
        raise SpecError(f"{WHERE}.CUDA_DEVICE_MAX_CONNECTIONS", "is 1; --use-torch-fsdp2 needs more connections.")
    return tuple(notes)


def _name_range(releases: Sequence[str]) -> str:
    """
    Name a range of consecutive releases.

    >>> _name_range(["0.18", "0.19", "main"]), _name_range(["0.16", "0.17"]), _name_range(["0.17"])
    ('0.18 and later', '0.16 to 0.17', '0.17')
    """
    if releases[-1] == RELEASES[-1]:
        return f"{releases[0]} and later" if len(releases) > 1 else releases[0]
    return releases[0] if len(releases) == 1 else f"{releases[0]} to {releases[-1]}"


# --- without effect ----------------------------------------------------------------------------------------


def drop_without_effect(arguments: Arguments) -> tuple[Arguments, tuple[str, ...]]:
    """
    Drop options that Megatron-LM accepts and ignores, and options that another one overrules.

    Returns
    -------
    tuple
        The options that have an effect, and a sentence for each of the others.

    References
    ----------
    Megatron-LM 0.17.1, megatron/training/arguments.py:498 (``--recompute-activations``), 1001
    (``--grad-reduce-in-bf16``), ``num_experts`` of 0; transformer/transformer_block.py:540 (recomputation in full).
    """
    counting, notes = dict(arguments), list[str]()
    for dropped, why in _find_dropped(counting):
        given = [name for name in dropped if name in counting]
        if given:
            notes.append(f"{', '.join(given)}: {why}")
        for name in given:
            del counting[name]
    return counting, tuple(notes)


Dropped = tuple[tuple[str, ...], str]
"""Options without effect, and the reason."""

RECOMPUTED = ("--recompute-method", "--recompute-num-layers")


def _granularity_beside_activations(arguments: Arguments) -> Dropped:
    full = arguments.get("--recompute-granularity") == "full"
    dropped = ("--recompute-granularity",) if full and "--recompute-activations" in arguments else ()
    return dropped, "overruled by --recompute-activations, which means selective."


def _no_granularity(arguments: Arguments) -> Dropped:
    selects = "--recompute-granularity" in arguments or "--recompute-activations" in arguments
    dropped = () if selects else (*RECOMPUTED, "--recompute-modules")
    return dropped, "without --recompute-granularity nothing is recomputed."


def _modules_beside_full(arguments: Arguments) -> Dropped:
    full = arguments.get("--recompute-granularity") == "full"
    return ("--recompute-modules",) if full else (), "--recompute-granularity full recomputes whole layers."


def _block_of_none(arguments: Arguments) -> Dropped:
    number, method = arguments.get("--recompute-num-layers"), arguments.get("--recompute-method")
    none = method == "block" and number is not None and number < 1
    dropped = ("--recompute-granularity", *RECOMPUTED) if none else ()
    return dropped, f"a block of {number} layers: none is recomputed."


def _no_experts(arguments: Arguments) -> Dropped:
    return ("--num-experts",) if arguments.get("--num-experts") == 0 else (), "0 experts: all layers are dense."


def _is_given(arguments: Arguments, name: str) -> bool:
    name, _, value = name.partition("=")
    given = arguments.get(name)
    return given == value if value else given is not None and not (name.endswith("-parallel-size") and given == 1)


def _find_dropped(arguments: Arguments) -> Iterator[Dropped]:
    """Yield options without effect, rule by rule, and then those that count only with others that are not given."""
    yield from (rule(arguments) for rule in WITHOUT_EFFECT)
    for patterns, others in DATA.counting_with:
        names = [name for name in arguments if any(fnmatchcase(name, one) for one in patterns.split("|"))]
        if names and not any(_is_given(arguments, other) for other in others):
            yield (
                tuple(names),
                f"without {' or '.join(others)} {'it has' if len(names) == 1 else 'they have'} no effect.",
            )


def _gradients_in_fp32(arguments: Arguments) -> Dropped:
    narrow = "--grad-reduce-in-bf16" in arguments and "--bf16" in arguments
    return ("--accumulate-allreduce-grads-in-fp32",) if narrow else (), "overruled by --grad-reduce-in-bf16."


def _graphs_of_inference(arguments: Arguments) -> Dropped:
    names = [name for name in ("--cuda-graph-modules", "--cuda-graph-scope") if name in arguments]
    alone = any(list(arguments[name]) == [INFERENCE_SCOPE] for name in names)
    dropped = ("--cuda-graph-impl", "--enable-cuda-graph", *names) if alone and not _is_te(arguments) else ()
    return dropped, f"{INFERENCE_SCOPE} captures nothing of a training."


def _is_te(arguments: Arguments) -> bool:
    return arguments.get("--cuda-graph-impl") == "transformer_engine" or "--external-cuda-graph" in arguments


WITHOUT_EFFECT: tuple[Callable[[Arguments], Dropped], ...] = (
    _granularity_beside_activations,
    _no_granularity,
    _modules_beside_full,
    _block_of_none,
    _no_experts,
    _gradients_in_fp32,
    _graphs_of_inference,
)
"""Rules on options without effect, one function each."""


# --- contradictions ----------------------------------------------------------------------------------------


def _exclusive(arguments: Arguments) -> Iterator[Complaint]:
    pairs = (
        ("--fp16", "--bf16"),
        ("--fp4-format", "--fp8-format"),
        ("--train-iters", "--train-samples"),
        ("--use-torch-fsdp2", "--use-megatron-fsdp"),
        ("--use-torch-fsdp2", "--use-distributed-optimizer"),
        ("--swiglu", "--squared-relu"),
        ("--swiglu", "--quick-geglu"),
        ("--fine-grained-activation-offloading", "--cpu-offloading-num-layers"),
        ("--moe-shared-expert-overlap", "--overlap-moe-expert-parallel-comm"),
        ("--enable-cuda-graph", "--external-cuda-graph"),
        ("--encoder-seq-length", "--seq-length"),
    )
    for one, other in pairs:
        if one in arguments and other in arguments:
            yield Complaint(one, f"is given with {other}; they exclude each other.")


def _needing(arguments: Arguments) -> Iterator[Complaint]:
    needs = (
        ("--overlap-param-gather", ("--use-distributed-optimizer", "--use-megatron-fsdp"), "dist_muon"),
        ("--overlap-param-gather", ("--overlap-grad-reduce",), ""),
        ("--optimizer-cpu-offload", ("--use-precision-aware-optimizer",), ""),
        ("--use-precision-aware-optimizer", ("--use-distributed-optimizer", "--use-megatron-fsdp"), ""),
        ("--delay-wgrad-compute", ("--overlap-moe-expert-parallel-comm",), ""),
        ("--fp8-param-gather", ("--fp8-format",), ""),
        ("--fp8-param-gather", ("--use-distributed-optimizer", "--use-megatron-fsdp", "--use-torch-fsdp2"), ""),
        ("--fine-grained-activation-offloading", ("--offload-modules",), ""),
    )
    for name, others, optimizer in needs:
        excused = optimizer and arguments.get("--optimizer") == optimizer
        if name in arguments and not excused and not any(other in arguments for other in others):
            yield Complaint(name, f"needs {' or '.join(others)}.")


def _recompute(arguments: Arguments) -> Iterator[Complaint]:
    """Check recomputation; ``--recompute-activations`` means selective recomputation."""
    granularity, method = arguments.get("--recompute-granularity"), "--recompute-method"
    number, short = arguments.get("--recompute-num-layers"), "--recompute-activations"
    if short in arguments:
        for name in RECOMPUTED:
            if name in arguments:
                yield Complaint(name, f"is given with {short}, which means selective recomputation and has none.")
    if granularity == "full" and method not in arguments:
        yield Complaint(method, "is required with --recompute-granularity full: uniform or block.")
    if granularity == "full" and number is None:
        yield Complaint("--recompute-num-layers", "is required with --recompute-granularity full, at least 1.")
    if granularity == "full" and number is not None and number < 1:
        yield Complaint("--recompute-num-layers", f"is {number}; uniform groups of layers need at least 1.")
    if granularity == "selective":
        for name in RECOMPUTED:
            if name in arguments:
                yield Complaint(name, "is given with --recompute-granularity selective, which has none.")
    if granularity == "full" and "--overlap-moe-expert-parallel-comm" in arguments:
        yield Complaint("--recompute-granularity", "is full; --overlap-moe-expert-parallel-comm excludes that.")


def _modules(arguments: Arguments) -> Iterator[Complaint]:
    known = {
        "--recompute-modules": (*MEGATRON_MODULES.values(), *NEW_MODULES),
        "--offload-modules": (*OFFLOADED, "fused_group_mlp", "gdp_qkv"),
    }
    for name, modules in known.items():
        for module in arguments.get(name, ()):
            if module not in modules:
                yield Complaint(name, f"has no module '{module}'; it has {', '.join(modules)}.")
    recomputed = arguments.get("--recompute-modules", ())
    for module in NEW_MODULES.keys() & {*recomputed}:
        problem = f"has {module}, which is newer."
        yield Complaint("--recompute-modules", problem, (RELEASES[0], NEW_MODULES[module]))
    needs = {"moe_act": "--moe-grouped-gemm", "mla_up_proj": "--multi-latent-attention"}
    for module, option in needs.items():
        if module in recomputed and option not in arguments:
            yield Complaint("--recompute-modules", f"has {module}, which needs {option}.", OF_PARSERS)
    offloaded = arguments.get("--offload-modules", ())
    if "attn_proj" in offloaded and "core_attn" not in offloaded:
        yield Complaint("--offload-modules", "has attn_proj without core_attn, whose output it is.")


def _offloading(arguments: Arguments) -> Iterator[Complaint]:
    name = "--cpu-offloading-num-layers"
    if not arguments.get(name, 0):
        return
    if arguments.get("--pipeline-model-parallel-size", 1) > 1:
        yield Complaint(name, "excludes pipelines.")
    if "--recompute-granularity" in arguments or "--recompute-activations" in arguments:
        yield Complaint(name, "excludes recomputation.")
    if arguments[name] >= arguments.get("--num-layers", arguments[name] + 1):
        yield Complaint(name, f"is {arguments[name]}; at least one layer must stay.")


def _experts(arguments: Arguments) -> Iterator[Complaint]:
    name, experts = "--expert-model-parallel-size", arguments.get("--num-experts")
    ranks = arguments.get(name, 1)
    if experts is not None and experts < 1:
        yield Complaint("--num-experts", f"is {experts}, must be at least 1.")
    elif ranks > 1 and experts is None:
        yield Complaint(name, f"is {ranks}, which needs experts: --num-experts.")
    elif ranks > 1 and experts is not None and experts % ranks:
        problem = f"is {ranks}: its ranks own equally many whole experts, of which there are {experts}."
        yield Complaint(name, problem)
    tp: int = arguments.get("--tensor-model-parallel-size", 1)
    etp: int = arguments.get("--expert-tensor-parallel-size", tp)
    if experts is not None and etp > 1 and "--disable-bias-linear" not in arguments:
        problem = f"is {etp}; experts with biases are not split: --disable-bias-linear."
        yield Complaint("--expert-tensor-parallel-size", problem, OF_PARSERS)
    if "--moe-enable-deepep" in arguments and arguments.get("--moe-token-dispatcher-type") != "flex":
        yield Complaint("--moe-enable-deepep", "needs --moe-token-dispatcher-type flex.")
    yield from _exchanges(arguments, ranks)


def _exchanges(arguments: Arguments, ranks: int) -> Iterator[Complaint]:
    name = "--overlap-moe-expert-parallel-comm"
    if name not in arguments:
        return
    if ranks == 1:
        yield Complaint(name, "needs --expert-model-parallel-size of at least 2.", OF_PARSERS)
    if arguments.get("--moe-token-dispatcher-type", "allgather") == "allgather":
        yield Complaint(name, "needs --moe-token-dispatcher-type alltoall or flex.", OF_PARSERS)


def _context(arguments: Arguments) -> Iterator[Complaint]:
    sizes = "--hierarchical-context-parallel-sizes"
    if "a2a+p2p" in arguments.get("--cp-comm-type", ()) and sizes not in arguments:
        yield Complaint(sizes, "is required with --cp-comm-type a2a+p2p.")
    ranks = arguments.get("--context-parallel-size", 1)
    levels = arguments.get(sizes, [ranks])
    if prod(map(int, levels)) != ranks:
        named = " x ".join(map(str, levels))
        yield Complaint(sizes, f"are {named}, whose product is not --context-parallel-size {ranks}.", OF_PARSERS)


def _graphs(arguments: Arguments) -> Iterator[Complaint]:
    impl, checked = arguments.get("--cuda-graph-impl"), "--no-check-for-nan-in-loss-and-grad" not in arguments
    for name in ("--cuda-graph-modules", "--cuda-graph-scope"):
        given = arguments.get(name, ())
        for module in given:
            if module not in (*GRAPH_MODULES, "full", "full_iteration", INFERENCE_SCOPE):
                yield Complaint(name, f"has no module '{module}'; it has {', '.join(GRAPH_MODULES)}, full_iteration.")
        if impl == "full_iteration" and {*given} - {"full", "full_iteration"}:
            yield Complaint(name, "is given with --cuda-graph-impl full_iteration, which has no modules.", OF_PARSERS)
        if "full_iteration" in given and _is_te(arguments):
            yield Complaint(name, "is full_iteration, which --cuda-graph-impl local alone captures.", OF_PARSERS)
        if INFERENCE_SCOPE in given and _is_te(arguments):
            problem = f"is {INFERENCE_SCOPE}, which excludes --cuda-graph-impl transformer_engine."
            yield Complaint(name, problem, ("0.18", RELEASES[-1]))
        if "full_iteration" in given and checked:
            since = "0.14" if impl == "local" else "0.18"
            problem = "is full_iteration, which needs --no-check-for-nan-in-loss-and-grad."
            yield Complaint(name, problem, (since, RELEASES[-1]))
    if impl == "full_iteration" and checked:
        yield Complaint("--cuda-graph-impl", "is full_iteration, which needs --no-check-for-nan-in-loss-and-grad.")


def _optimizers(arguments: Arguments) -> Iterator[Complaint]:
    """
    Check the optimizer.

    Moments below FP32 need the precision-aware optimizer, which is Adam (optimizer_config.py:375, muon.py:190).

    Muon with the distributed optimizer was ``dist_muon`` alone up to core 0.17; later releases launch it as
    ``--optimizer muon --use-distributed-optimizer``, and take ``dist_muon`` for that (arguments.py:1727 of main).
    """
    aware, until = "--use-precision-aware-optimizer", (RELEASES[0], "0.17")
    for name in ("--exp-avg-dtype", "--exp-avg-sq-dtype", "--main-grads-dtype"):
        if arguments.get(name, "fp32") != "fp32" and aware not in arguments:
            yield Complaint(name, f"is {arguments[name]}, which needs {aware}.")
    if arguments.get("--main-grads-dtype", "fp32") != "fp32" and "--accumulate-allreduce-grads-in-fp32" in arguments:
        problem = f"is {arguments['--main-grads-dtype']}; --accumulate-allreduce-grads-in-fp32 keeps them in fp32."
        yield Complaint("--main-grads-dtype", problem, OF_PARSERS)
    optimizer = arguments.get("--optimizer", "adam")
    if aware in arguments and optimizer != "adam":
        yield Complaint("--optimizer", f"is {optimizer}; {aware} is Adam's.")
    if "muon" in optimizer:
        alone = ("--overlap-grad-reduce", "--overlap-param-gather") if optimizer == "muon" else ()
        for name in ("--use-distributed-optimizer", *alone):
            if name in arguments:
                yield Complaint("--optimizer", f"is {optimizer}, which excludes {name}.", until)
        for name in ("--use-megatron-fsdp", "--use-torch-fsdp2", "--fp16"):
            if name in arguments:
                yield Complaint("--optimizer", f"is {optimizer}, which excludes {name}.")


def _multi_token_prediction(arguments: Arguments) -> Iterator[Complaint]:
    positions = arguments.get("--position-embedding-type", "learned_absolute")
    is_rotary = "--use-rotary-position-embeddings" in arguments
    if arguments.get("--mtp-num-layers") and positions not in ("rope", "none") and not is_rotary:
        yield Complaint("--mtp-num-layers", f"needs --position-embedding-type rope or none, not {positions}.")


def _check_shared_experts(arguments: Arguments) -> Iterator[Complaint]:
    name, kind = "--moe-shared-expert-overlap", arguments.get("--moe-token-dispatcher-type", "allgather")
    if name not in arguments or "--moe-shared-expert-intermediate-size" not in arguments:
        return
    if kind == "allgather":
        yield Complaint(name, "works with --moe-token-dispatcher-type alltoall only.")
    if kind == "flex":
        yield Complaint(name, "works with --moe-token-dispatcher-type alltoall only.", (RELEASES[0], "0.17"))
    if "shared_experts" in arguments.get("--recompute-modules", ()):
        yield Complaint(name, "excludes that shared_experts are recomputed.")


def _instances(arguments: Arguments) -> Iterator[Complaint]:
    name = "--num-distributed-optimizer-instances"
    if arguments.get(name, 1) < 1:
        yield Complaint(name, f"is {arguments[name]}, must be at least 1.")


def _stages(arguments: Arguments) -> Iterator[Complaint]:
    """
    Check interleaving, which needs a pipeline.

    It needs more than two ranks where sends are not overlapped (arguments.py:858).
    """
    pp, chunks = arguments.get("--pipeline-model-parallel-size", 1), "--num-virtual-stages-per-pipeline-rank"
    name = "--num-layers-per-virtual-pipeline-stage"
    layers = int(arguments.get("--num-layers", 0))
    if pp == 1 and int(arguments.get(name, layers)) < layers:
        yield Complaint(name, f"is {arguments[name]}, which needs --pipeline-model-parallel-size.", OF_PARSERS)
    if pp == 1 and arguments.get(chunks, 1) > 1:
        yield Complaint(chunks, f"is {arguments[chunks]}, which needs --pipeline-model-parallel-size.", OF_PARSERS)
    if pp == 2 and arguments.get(chunks, 1) > 1 and "--no-overlap-p2p-communication" in arguments:
        yield Complaint(chunks, "of two pipeline ranks excludes --no-overlap-p2p-communication.", OF_PARSERS)


def _hybrids(arguments: Arguments) -> Iterator[Complaint]:
    """Check hybrids, whose pattern sets the number of layers from 0.17 on (arguments.py:634)."""
    pattern, number = arguments.get(PATTERN), arguments.get("--num-layers")
    if pattern is not None and number is not None and len(pattern) != number:
        problem = f"is of {len(pattern)} layers, --num-layers says {number}."
        yield Complaint(STAGED_PATTERN, problem, (RELEASES[0], "0.16"))


def _lengths(arguments: Arguments) -> Iterator[Complaint]:
    name, length = "--max-position-embeddings", int(arguments.get("--seq-length", 0))
    if int(arguments.get(name, length)) < length:
        yield Complaint(name, f"is {arguments[name]}, fewer than the {length} tokens of a sequence.", OF_PARSERS)


def _losses(arguments: Arguments) -> Iterator[Complaint]:
    """Check the loss; Transformer Engine's is refused from 0.18 on (arguments.py, ``cross_entropy_fusion_impl``)."""
    name = "--cross-entropy-fusion-impl"
    if "--cross-entropy-loss-fusion" in arguments and arguments.get(name) == "te":
        yield Complaint(name, "is te, which is off since 0.18.", ("0.18", RELEASES[-1]))


CHECKS: tuple[Callable[[Arguments], Iterator[Complaint]], ...] = (
    _exclusive,
    _recompute,
    _needing,
    _modules,
    _offloading,
    _experts,
    _context,
    _graphs,
    _optimizers,
    _check_shared_experts,
    _multi_token_prediction,
    _instances,
    _stages,
    _hybrids,
    _lengths,
    _losses,
)
"""Checks of options, one function each."""
