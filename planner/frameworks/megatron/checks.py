"""Options of Megatron-LM that exclude or need each other, as its own parser says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

from constraints.rules.frameworks import MEGATRON_MODULES
from costmodel.errors import SpecError
from costmodel.strategy import GRAPH_MODULES
from planner.frameworks.megatron.options import WHERE, Arguments
from planner.frameworks.megatron.settings import OFFLOADED

Complaint: TypeAlias = tuple[str, str]
"""An option, and what is wrong with it."""


def refuse_contradictions(arguments: Arguments, variables: Mapping[str, str]) -> None:
    """
    Refuse what Megatron-LM refuses of options alone; the rules of strategies are asked by an estimate.

    References
    ----------
    Megatron-LM, megatron/training/arguments.py, validate_args, and megatron/core/transformer/transformer_config.py,
    ``__post_init__`` (of megatron-core 0.16.1), moe/moe_layer.py:101 and optimizer/optimizer_config.py:375 there.

    Raises
    ------
    SpecError
        For the first contradiction.
    """
    for check in CHECKS:
        for name, problem in check(arguments):
            raise SpecError(f"{WHERE}.{name}", problem)
    if "--use-torch-fsdp2" in arguments and variables.get("CUDA_DEVICE_MAX_CONNECTIONS") == "1":
        raise SpecError(f"{WHERE}.CUDA_DEVICE_MAX_CONNECTIONS", "is 1; --use-torch-fsdp2 needs more connections.")


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
        ("--grad-reduce-in-bf16", "--accumulate-allreduce-grads-in-fp32"),
    )
    for one, other in pairs:
        if one in arguments and other in arguments:
            yield one, f"is given with {other}; they exclude each other."


def _needing(arguments: Arguments) -> Iterator[Complaint]:
    needs = (
        ("--overlap-param-gather", ("--use-distributed-optimizer", "--use-megatron-fsdp")),
        ("--overlap-param-gather", ("--overlap-grad-reduce",)),
        ("--optimizer-cpu-offload", ("--use-precision-aware-optimizer",)),
        ("--use-precision-aware-optimizer", ("--use-distributed-optimizer", "--use-megatron-fsdp")),
        ("--delay-wgrad-compute", ("--overlap-moe-expert-parallel-comm",)),
        ("--fp8-param-gather", ("--fp8-format",)),
        ("--fp8-param-gather", ("--use-distributed-optimizer", "--use-megatron-fsdp", "--use-torch-fsdp2")),
        ("--reuse-grad-buf-for-mxfp8-param-ag", ("--fp8-param-gather",)),
        ("--offload-modules", ("--fine-grained-activation-offloading",)),
        ("--fine-grained-activation-offloading", ("--offload-modules",)),
        ("--recompute-method", ("--recompute-granularity",)),
        ("--recompute-num-layers", ("--recompute-granularity",)),
    )
    for name, others in needs:
        if name in arguments and not any(other in arguments for other in others):
            yield name, f"needs {' or '.join(others)}."


def _recompute(arguments: Arguments) -> Iterator[Complaint]:
    """``--recompute-activations`` is another word for selective recomputation."""
    granularity, method = arguments.get("--recompute-granularity"), "--recompute-method"
    number, short = arguments.get("--recompute-num-layers"), "--recompute-activations"
    if short in arguments:
        if granularity == "full":
            yield short, "is given with --recompute-granularity full; it means selective."
        for name in (method, "--recompute-num-layers"):
            if name in arguments:
                yield name, f"is given with {short}, which means selective recomputation and has none."
    if granularity == "full" and method not in arguments:
        yield method, "is required with --recompute-granularity full: uniform or block."
    if granularity == "full" and (number is None or number < 1):
        yield "--recompute-num-layers", "is required with --recompute-granularity full, at least 1."
    if granularity == "selective":
        for name in (method, "--recompute-num-layers"):
            if name in arguments:
                yield name, "is given with --recompute-granularity selective, which has none."
    if granularity == "full" and "--overlap-moe-expert-parallel-comm" in arguments:
        yield "--recompute-granularity", "is full; --overlap-moe-expert-parallel-comm excludes that."


def _modules(arguments: Arguments) -> Iterator[Complaint]:
    known = {
        "--recompute-modules": tuple(MEGATRON_MODULES.values()),
        "--offload-modules": (*OFFLOADED, "fused_group_mlp"),
    }
    for name, modules in known.items():
        for module in arguments.get(name, ()):
            if module not in modules:
                yield name, f"has no module '{module}'; it has {', '.join(modules)}."
    offloaded = arguments.get("--offload-modules", ())
    if "attn_proj" in offloaded and "core_attn" not in offloaded:
        yield "--offload-modules", "has attn_proj without core_attn, whose output it is."


def _offloading(arguments: Arguments) -> Iterator[Complaint]:
    name = "--cpu-offloading-num-layers"
    if not arguments.get(name, 0):
        return
    if arguments.get("--pipeline-model-parallel-size", 1) > 1:
        yield name, "excludes pipelines."
    if "--recompute-granularity" in arguments or "--recompute-activations" in arguments:
        yield name, "excludes recomputation."
    if arguments[name] >= arguments.get("--num-layers", arguments[name] + 1):
        yield name, f"is {arguments[name]}; at least one layer must stay."


def _experts(arguments: Arguments) -> Iterator[Complaint]:
    name, experts = "--expert-model-parallel-size", arguments.get("--num-experts")
    ranks = arguments.get(name, 1)
    if experts is not None and experts < 1:
        yield "--num-experts", f"is {experts}, must be at least 1."
    elif ranks > 1 and experts is None:
        yield name, f"is {ranks}, which needs experts: --num-experts."
    elif ranks > 1 and experts is not None and experts % ranks:
        yield name, f"is {ranks}: its ranks own equally many whole experts, of which there are {experts}."


def _context(arguments: Arguments) -> Iterator[Complaint]:
    sizes = "--hierarchical-context-parallel-sizes"
    if "a2a+p2p" in arguments.get("--cp-comm-type", ()) and sizes not in arguments:
        yield sizes, "is required with --cp-comm-type a2a+p2p."


def _graphs(arguments: Arguments) -> Iterator[Complaint]:
    for name in ("--cuda-graph-modules", "--cuda-graph-scope"):
        for module in arguments.get(name, ()):
            if module not in (*GRAPH_MODULES, "full", "full_iteration"):
                yield name, f"has no module '{module}'; it has {', '.join(GRAPH_MODULES)}, full_iteration."
    if arguments.get("--cuda-graph-impl") == "full_iteration" and (
        "--no-check-for-nan-in-loss-and-grad" not in arguments
    ):
        yield "--cuda-graph-impl", "is full_iteration, which needs --no-check-for-nan-in-loss-and-grad."


def _optimizers(arguments: Arguments) -> Iterator[Complaint]:
    """
    Narrow moments are the precision-aware optimizer's, which is Adam (optimizer_config.py:375, muon.py:190).

    Muon beside the distributed optimizer was ``dist_muon`` alone in megatron-core 0.16.1; later releases launch it as
    ``--optimizer muon --use-distributed-optimizer`` (their functional tests ``..._dist_muon_param_layout``).
    """
    aware = "--use-precision-aware-optimizer"
    for name in ("--exp-avg-dtype", "--exp-avg-sq-dtype", "--main-grads-dtype"):
        if arguments.get(name, "fp32") != "fp32" and aware not in arguments:
            yield name, f"is {arguments[name]}, which needs {aware}."
    optimizer = arguments.get("--optimizer", "adam")
    if aware in arguments and optimizer != "adam":
        yield "--optimizer", f"is {optimizer}; {aware} is Adam's."
    if "muon" in optimizer:
        layered = ("--use-distributed-optimizer",) if optimizer == "dist_muon" else ()
        for name in (*layered, "--use-megatron-fsdp", "--use-torch-fsdp2", "--fp16"):
            if name in arguments:
                yield "--optimizer", f"is {optimizer}, which excludes {name}."


def _multi_token_prediction(arguments: Arguments) -> Iterator[Complaint]:
    positions = arguments.get("--position-embedding-type", "learned_absolute")
    is_rotary = "--use-rotary-position-embeddings" in arguments
    if arguments.get("--mtp-num-layers") and positions not in ("rope", "none") and not is_rotary:
        yield "--mtp-num-layers", f"needs --position-embedding-type rope or none, not {positions}."


def _shared_experts(arguments: Arguments) -> Iterator[Complaint]:
    name = "--moe-shared-expert-overlap"
    if name not in arguments or "--moe-shared-expert-intermediate-size" not in arguments:
        return
    if arguments.get("--moe-token-dispatcher-type", "allgather") != "alltoall":
        yield name, "works with --moe-token-dispatcher-type alltoall only."
    if "shared_experts" in arguments.get("--recompute-modules", ()):
        yield name, "excludes that shared_experts are recomputed."


def _instances(arguments: Arguments) -> Iterator[Complaint]:
    name = "--num-distributed-optimizer-instances"
    if arguments.get(name, 1) < 1:
        yield name, f"is {arguments[name]}, must be at least 1."


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
    _shared_experts,
    _multi_token_prediction,
    _instances,
)
"""What may be wrong with options, one function each."""
