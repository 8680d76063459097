"""``strategy.*`` of a collected row: its layout and features, and what of them there is no formula for."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.inputs import read_yaml
from benchmarks.measured_runs.columns import Row
from costmodel import catalog
from costmodel.catalog.releases import release_of as release_named
from costmodel.errors import SpecError, did_you_mean
from costmodel.lowering.framework import SLOTS_AT_ENDS
from costmodel.strategy import MODULES, TokenDispatcher

WORDS = read_yaml(Path(__file__).with_name("words.yaml"))
PRECISIONS, DTYPES, SHARDINGS = (WORDS[name] for name in ("precisions", "dtypes", "shardings"))
SCHEDULES, VOCABULARIES = WORDS["schedules"], WORDS["vocabularies"]
RECOMPUTES, NAMES = WORDS["recomputes"], WORDS["modules"]

"""Words of rows and what they mean."""

GRADIENTS = (
    ("notes", re.compile(r"BF16[ _][oO]ptimizer with fp32 grad accumulation"), "bf16+fp32"),
    ("framework", re.compile(r"BF16_Optimizer"), "bf16+fp32"),
    ("notes", re.compile(r"grad_sync_dtype=bf16"), "bf16"),
    ("notes", re.compile(r"fp32 grad accumulation"), "fp32"),
)

"""Words on gradients: DeepSpeed's ``BF16_Optimizer`` adds up in FP32 beside the 16-bit gradients."""

WITHOUT_MTP = re.compile(r"w/o MTP")

OFFLOADED_LAYERS = re.compile(r"^activations:(\d+)layers$")

"""Word of the column ``offload`` for layers whose activations go to the host."""

OFFLOADED_STATES = re.compile(r"^optimizer:(\d+)%(\+overlap)?$")

"""Its words for the part of the optimizer states that is there, and for transfers beside the host's update."""

ZERO_GROUP = re.compile(r"-tp\d+-z(-?\d+)-")

"""Size, by a part of the ids of InternEvo, of the group that shares optimizer states; -1: all."""

NOT_COMPILED = re.compile(r"^bf16; ")

"""First words of the notes of torchtitan's rows where they do not say ``bf16+compile``."""

FLASH_ATTENTION = re.compile(r"flash attention")

"""Words of the source of an architecture where its configuration chooses it (GPT-NeoX, ``attention_config``)."""

SUMS_OF_PARTS = "vtrain-single-"

"""First characters of the ids of vTrain's runs on one node (README.md)."""


def training(row: Row) -> dict[str, object]:
    """The work of a step."""
    return {
        "training.global_batch_size": row.count_or_none("gbs"),
        "training.sequence_length": row.count_or_none("seq_len"),
    }


def precision(row: Row) -> dict[str, object]:
    """The catalog's recipe."""
    dtype = row.word("dtype")
    if dtype and dtype not in PRECISIONS:
        raise SpecError("dtype", f"'{dtype}' is no known recipe.", did_you_mean(dtype, PRECISIONS))
    return {"training.precision": PRECISIONS[dtype] if dtype else None}


def states(row: Row) -> dict[str, object]:
    """Gradients, optimizer states, weights in 8 bits."""
    in_fp32 = row.flag_or_none("grad_reduce_in_fp32")
    noted = next((dtype for column, words, dtype in GRADIENTS if words.search(row.text(column))), None)
    return {
        "settings.gradient_dtype": noted if in_fp32 is None else {True: "fp32", False: "bf16"}[in_fp32],
        "settings.moments_dtype": row.choice("exp_avg_dtype", DTYPES),
        "settings.fp8_param_gather": row.flag_or_none("fp8_param_gather"),
        "settings.optimizer": row.word("optimizer_name"),
        "settings.optimizer_group": _optimizer_group(row),
        **_offloaded_states(row),
    }


def _offloaded_states(row: Row) -> dict[str, object]:
    """Part of them in host memory: FP32 weights only of an optimizer that the row says to be precision-aware."""
    stated = OFFLOADED_STATES.search(row.word("offload"))
    if not stated:
        return {}
    return {
        "settings.offloaded_states": int(stated.group(1)) / 100,
        "settings.offloaded_masters": row.flag_or_none("precision_aware_optimizer"),
        "settings.offload_overlap": stated.group(2) is not None,
    }


def _optimizer_group(row: Row) -> int | str | None:
    stated = row.noted(ZERO_GROUP, "id")
    if not stated:
        return None
    return int(stated) if int(stated) > 0 else "all"


def layers(row: Row) -> dict[str, object]:
    """Multi-token prediction, layers whose activations go to the host."""
    num_mtp = row.count_or_none("mtp_layers", least=0)
    if num_mtp is None and WITHOUT_MTP.search(row.text("notes")):
        num_mtp = 0
    offloaded = OFFLOADED_LAYERS.search(row.word("offload"))
    return {
        "settings.mtp_layers": num_mtp,
        "settings.offloaded_layers": int(offloaded.group(1)) if offloaded else None,
    }


def experts(row: Row) -> dict[str, object]:
    """Settings of layers of experts."""
    return {
        "settings.shared_expert_overlap": row.flag_or_none("shared_expert_overlap"),
        "settings.delay_wgrad": row.flag_or_none("delay_wgrad"),
        "settings.communication_sms": row.count_or_none("comm_sms"),
    }


def kernels(row: Row, model: Mapping[str, Any]) -> dict[str, object]:
    """Kernels that ran, if not the framework's usual ones; True for parts that were timed alone."""
    is_eager = row.word("framework").startswith("torchtitan") and NOT_COMPILED.search(row.text("notes"))
    return {
        "settings.kernels": "eager" if is_eager else None,
        "settings.attention": "flash" if FLASH_ATTENTION.search(str(model.get("where"))) else None,
        "settings.composition": "parts" if is_profiled_per_layer(row) else None,
    }


def is_profiled_per_layer(row: Row) -> bool:
    """Return True if its step is a sum of layers that were timed alone (README.md)."""
    return row.text("id").startswith(SUMS_OF_PARTS)


FRAMEWORKS = read_yaml(Path(__file__).with_name("frameworks.yaml"))

RELEASE = r"(\d\d\.\d\d(?:\.\d\d)?)"

RELEASES = (
    ("source_ref", re.compile(rf"\({RELEASE} NeMo Container")),
    ("source_ref", re.compile(rf"performance-summary \({RELEASE}, ")),
    ("id", re.compile(rf"^mb-{RELEASE}-")),
    ("framework", re.compile(rf"\b{RELEASE}\b")),
    ("notes", re.compile(rf"container NeMo {RELEASE}\b")),
    ("notes", re.compile(rf"^NeMo {RELEASE}")),
    ("source_ref", re.compile(rf"dgxc-benchmarking@.*\([^()]*? {RELEASE} (?:BF16|FP8)")),
    ("source_ref", re.compile(r"dgxc-benchmarking@v(\d\d\.\d\d)")),
)

"""
Columns and patterns that state the release of a row's container, the surest first.

Titles of dgxc-benchmarking name the container if it is not that of their own month; further digits of its tags are
of the recipes, not of the container.
"""

BUILD = re.compile(r"\s*[@(+]")

"""Text between a framework's name and what it was built of."""


def entry_of(row: Row) -> str:
    """The catalog's name of a row's framework; empty if it has none."""
    found = framework_of(row)
    if "release" not in found:
        entry = str(found.get("entry", ""))
        return _stated(row.text("framework"), entry) or entry
    return f"{found['entry']}-{release_of(row) or found['release']}"


def _stated(framework: str, entry: str) -> str:
    """
    The release that a row's name of its framework has itself, of the same stack and counted alike; else empty.

    >>> _stated("Megatron-LM 0.19 @0a1b2c", "megatron-lm-0.17"), _stated("Megatron-LM (Core)", "megatron-lm-0.17")
    ('megatron-lm-0.19', '')
    """
    own, known = release_named(BUILD.split(framework)[0]), release_named(entry)
    if own is None or known is None or (own.stack, own.scheme) != (known.stack, known.scheme):
        return ""
    return f"{own.stack}-{'.'.join(map(str, own.number))}"


def framework_of(row: Row) -> Mapping[str, Any]:
    """The entry of the table that fits a row; empty if none does."""
    return next((one for one in FRAMEWORKS if _fits(one, row)), {})


def release_of(row: Row) -> str:
    """The container's release, if the row tells it."""
    return next((release for column, pattern in RELEASES if (release := row.noted(pattern, column))), "")


def _fits(one: Mapping[str, Any], row: Row) -> bool:
    starts = tuple(start.lower() for start in one["starts"])
    is_in_time = "until" not in one or "" < row.text("date") < one["until"]
    return row.word("framework").startswith(starts) and is_in_time and one.get("noted", "") in row.text("notes")


GIGABIT = 1e9 / 8

SITES = read_yaml(Path(__file__).with_name("sites.yaml"))

PER_NODE = (
    re.compile(r"(\d+)x ?(?:[\w-]+ )?(\d+) ?Gb(?:/s)? (?:\w+ )?per node"),
    re.compile(r"inter-node (\d+) Gb/s"),
)

"""Words of notes on the network of a node: its links, or all of it."""

PER_DEVICE = re.compile(r"(\d+)Gb/s RDMA per GPU")


def cluster(row: Row) -> dict[str, object]:
    """Software that ran it."""
    site = site_of(row)
    stated = _stated_bandwidth(row)
    return {
        "cluster.device": site.get("device") or device_name(row.text("gpu")),
        "cluster.scale_up_bandwidth": site.get("scale_up_bandwidth"),
        "cluster.internode_bandwidth": site.get("internode_bandwidth") if stated is None else stated,
        "cluster.framework": entry_of(row),
    }


def sizes(row: Row) -> dict[str, object]:
    """Number of devices, and their network."""
    return {
        "cluster.num_devices": row.count_or_none("n_gpus"),
        "cluster.devices_per_node": row.count_or_none("gpus_per_node"),
        "cluster.scale_up_size": row.count_or_none("nvlink_domain"),
    }


def device_name(gpu: str) -> str:
    """
    The catalog's name of a device; what it does not know keeps its own.

    >>> device_name("H100-80g-SXM"), device_name("h800-80g-sxm"), device_name("npu-9")
    ('h100-80gb-sxm', 'h800', 'npu-9')
    """
    found = catalog.find_unique_device(gpu)
    return found.device if found else gpu


def _plain(name: str) -> str:
    return re.sub(r"(\d)gb\b", r"\1g", name.lower())


def site_of(row: Row) -> Mapping[str, Any]:
    """The site of a row's source, if its network is known; empty else."""
    return next((site for site in SITES if _is_at(row, site)), {})


def _is_at(row: Row, site: Mapping[str, Any]) -> bool:
    return (
        row.text("source").startswith(site["source"])
        and site.get("in_id", "") in row.word("id")
        and site.get("gpu", _plain(row.text("gpu"))) == _plain(row.text("gpu"))
    )


def _stated_bandwidth(row: Row) -> float | None:
    """Nominal bytes per second of one device to other nodes, where the notes say."""
    notes = row.text("notes")
    for pattern in PER_NODE:
        if stated := pattern.search(notes):
            return math.prod(map(float, stated.groups())) * GIGABIT / _devices_per_node(row)
    stated = PER_DEVICE.search(notes)
    return float(stated.group(1)) * GIGABIT if stated else None


def _devices_per_node(row: Row) -> int:
    """As the row says; else as the catalog's device has them, one if it is not there."""
    name = device_name(row.text("gpu"))
    known = catalog.device(name).devices_per_node if catalog.find_unique_device(name) else 1
    return row.count_or_none("gpus_per_node") or known


NOTED = re.compile(r"pp_layout=([^\s;]+)")

"""Megatron-LM's ``--pipeline-model-parallel-layout`` in a row's notes."""

GROUP = re.compile(r"\(([^)]*)\)\*(\d{1,3})(?!\d)")

REPEATED = re.compile(r"(\w)\*(\d{1,3})(?!\d)")

"""Repetitions; nobody has thousands of stages."""


def printed_stages(layout: str) -> tuple[int, ...]:
    """
    Layers of each virtual stage; embedding, head and multi-token prediction (``E``, ``L``, ``m``) are not counted.

    >>> printed_stages("Et*4|(t*4|)*2tmL"), printed_stages("")
    ((4, 4, 4, 1), ())
    """
    if not layout:
        return ()
    for pattern in (GROUP, REPEATED):
        layout = pattern.sub(lambda found: found.group(1) * int(found.group(2)), layout)
    return tuple(stage.count("t") for stage in layout.split("|"))


MOST_CHUNKS = "max (1 layer per chunk)"

"""Entry of ``vp`` in the Zero-Bubble rows."""

SCHEDULE = re.compile(r"schedule ([\w-]+)")

V_SHAPED = ("v_half",)

"""Schedules with two chunks per rank, each sent on while the other is computed."""

HEAD_METHOD = re.compile(r"method (?!not )(\w+)")

EVERY_OTHER = "every_other_matmul"

MODULES_SAID = "modules:"

FIRST_LAYERS = re.compile(r"^full:(\d+)$")

"""The first layers of each chunk in full (Megatron-LM, ``recompute_num_layers`` with ``block``)."""

OPTIMIZER_OFFLOADS = ("optimizer", "optimizer:cpu")

OVERLAPS = frozenset({"tp", "pp", "ep", "dp_grad", "dp_param", "fsdp_prefetch"})

"""Words of the column ``overlaps``."""

OF_DATA = frozenset({"dp_grad", "dp_param", "fsdp_prefetch"})

DISPATCHERS = tuple(one.text for one in reversed(TokenDispatcher))

"""An all-to-all last: notes that name another one too are of that."""

GRAPHED = ("attn", "mlp", "moe", "moe_router", "moe_preprocess", "mamba")

"""Modules that a graph is captured of, in Megatron-LM's names and the order in which they are written."""

WHOLE_STEPS = ("full_iteration", "local:full_iteration", "yes")

GRAPHS_OF_MODULES = "transformer_engine:"

GRAPHS_OF_LAYERS = "local (a graph per layer"

TOKEN_DROP = re.compile(r"token[- ]?drop(?!less)")


def degrees(row: Row) -> dict[str, object]:
    """
    The parallel degrees, as far as the row has them.

    Raises
    ------
    SpecError
        If they do not multiply to the devices.
    """
    stated = {name: row.count_or_none(name) for name in ("tp", "cp", "pp", "dp", "ep", "etp")}
    devices, others = row.count_or_none("n_gpus"), row.degree("tp") * row.degree("cp") * row.degree("pp")
    if devices is not None and devices % others:
        raise SpecError("n_gpus", f"{devices} is not a multiple of tp x cp x pp = {others}.")
    if devices is not None and stated["dp"] not in (None, devices // others):
        raise SpecError("dp", f"is {stated['dp']}, but n_gpus / (tp x cp x pp) gives {devices // others}.")
    return {f"strategy.{name}": degree for name, degree in stated.items()}


def microbatch(row: Row) -> dict[str, object]:
    """Sequences per micro-batch; torchtitan's pipelines print the local batch of as many micro-batches as ranks."""
    mbs, pp = row.count_or_none("mbs"), row.degree("pp")
    if mbs is not None and pp > 1 and row.word("framework").startswith("torchtitan"):
        mbs = max(mbs // pp, 1)
    return {"strategy.mbs": mbs}


def pipeline(row: Row, num_layers: int | None) -> dict[str, object]:
    """Schedule, place of the vocabulary, chunks."""
    schedule, method = row.noted(SCHEDULE), row.noted(HEAD_METHOD)
    return {
        "strategy.schedule": SCHEDULES.get(schedule, "1f1b") if schedule else None,
        "strategy.vocabulary": VOCABULARIES.get(method, "ends") if method else None,
        "strategy.vpp": _chunks(row, num_layers),
    }


def _chunks(row: Row, num_layers: int | None) -> int | None:
    """Chunks per pipeline rank, as stated or as the printed stages have them."""
    if SCHEDULES.get(row.noted(SCHEDULE)) in V_SHAPED:
        return 2
    if row.text("vp") == MOST_CHUNKS:
        return -(-(num_layers + SLOTS_AT_ENDS) // row.degree("pp")) if num_layers else None
    stated = row.count_or_none("vp")
    if stated is not None:
        return stated if row.degree("pp") > 1 else 1
    stages = _stages(row)
    return max(len(stages) // row.degree("pp"), 1) if stages else None


def layout(row: Row, num_layers: int | None) -> dict[str, object]:
    """
    Stages that the row prints, or whose first layers it recomputes.

    Raises
    ------
    SpecError
        If the printed stages are not those of the pipeline or the model.
    """
    stages, vpp = _stages(row), _chunks(row, num_layers) or 1
    num_stages = row.degree("pp") * vpp
    if stages and (len(stages) != num_stages or num_layers not in (None, sum(stages))):
        problem = f"prints {len(stages)} stages of {sum(stages)} layers; the row has {num_stages} of {num_layers}."
        raise SpecError("pp_layout", problem)
    first = FIRST_LAYERS.search(row.word("recompute"))
    if first is None:
        return {"strategy.layout": _layout(stages) if stages else None}
    stages = stages or _deal_stages(num_layers or 0, num_stages)
    if not stages:
        raise SpecError("recompute", f"'{row.word('recompute')}' of stages that differ needs 'pp_layout'.")
    # The first of each chunk; of each rank, all of its chunks together.
    num, pp = int(first.group(1)), row.degree("pp")
    full = [sum(min(num, held) for held in stages[rank::pp]) for rank in range(pp)]
    return {"strategy.layout": _layout(stages, full)}


def _deal_stages(num_layers: int, num_stages: int) -> tuple[int, ...]:
    """Equal stages, or equal ones in which the embedding and the loss count as a layer each; empty: neither divides."""
    if num_layers and num_layers % num_stages == 0:
        return (num_layers // num_stages,) * num_stages
    size, rest = divmod(num_layers + SLOTS_AT_ENDS, num_stages)
    return () if rest or num_stages < 2 else (size - 1, *(size,) * (num_stages - 2), size - 1)


def _stages(row: Row) -> tuple[int, ...]:
    return printed_stages(row.text("pp_layout") or row.noted(NOTED))


def _layout(stages: tuple[int, ...], full_layers: list[int] | None = None) -> str:
    entries = {"layers": list(stages), **({"full_layers": full_layers} if full_layers else {})}
    return "{" + ", ".join(f"{name}: {values}" for name, values in entries.items()) + "}"


def sharding(row: Row) -> dict[str, object]:
    """
    Read which states data-parallel ranks shard.

    A source that names ZeRO-2 with a pipeline reduces gradients once per step, as with ZeRO-1 (MegaScale, arXiv
    2402.15627, section 3.2); DeepSpeed's, which does so for every micro-batch, refuses pipelines (``PipelineEngine``).
    """
    stated = row.choice("optimizer", SHARDINGS)
    if stated == "gradients" and row.degree("pp") > 1:
        stated = "optimizer"
    is_alone = row.replicas * row.degree("cp") == 1
    return {"strategy.sharding": "none" if stated and is_alone else stated}


def sequence_parallel(row: Row, *, has_experts: bool) -> dict[str, object]:
    """As stated; experts on tensor-parallel ranks demand it."""
    stated = row.flag_or_none("sp")
    return {"strategy.sequence_parallel": None if stated is None else row.degree("tp") > 1 and (stated or has_experts)}


def recompute(row: Row) -> dict[str, object]:
    """
    Read which modules are recomputed.

    Layers that were timed alone were not recomputed, though their rows have what another file says (README.md).

    Raises
    ------
    SpecError
        For an unknown entry.
    """
    said = row.word("recompute")
    if not said or is_profiled_per_layer(row):
        return {}
    if said.startswith(MODULES_SAID):
        return {"strategy.recompute": _modules(said.removeprefix(MODULES_SAID))}
    if said == "selective" and row.word("framework").startswith("torchtitan"):
        return {"strategy.recompute": EVERY_OTHER}
    if FIRST_LAYERS.search(said):
        return {"strategy.recompute": "none"}
    return {"strategy.recompute": row.choice("recompute", RECOMPUTES)}


def _modules(said: str) -> str:
    modules = said.split("+")
    if unknown := [module for module in modules if module not in NAMES]:
        raise SpecError("recompute", f"unknown module '{unknown[0]}'.", did_you_mean(unknown[0], NAMES))
    named = {NAMES[module] for module in modules}
    return "+".join(module for module in MODULES if module in named)


def offload(row: Row) -> dict[str, object]:
    """Read what is offloaded to host memory; anything without a formula counts as kept on the device."""
    said = row.word("offload")
    if not said:
        return {}
    return {
        "strategy.activation_offload": bool(OFFLOADED_LAYERS.search(said)),
        "strategy.optimizer_offload": _offloads_optimizer(said),
    }


def _offloads_optimizer(said: str) -> bool:
    return said in OPTIMIZER_OFFLOADS or OFFLOADED_STATES.search(said) is not None


def overlaps(row: Row, num_layers: int | None, *, has_experts: bool) -> dict[str, object]:
    """
    Read which communication overlaps; a V-shaped schedule sends one chunk while the other is computed.

    A row that says anything says it of all but the context-parallel exchange, which the column does not have.
    """
    said = _overlaps(row)
    is_v_shaped = SCHEDULES.get(row.noted(SCHEDULE)) in V_SHAPED and row.degree("pp") > 1
    if not row.word("overlaps"):
        return {"strategy.pp_overlap": True} if is_v_shaped else {}
    chunks = _chunks(row, num_layers) or 1
    is_split = sequence_parallel(row, has_experts=has_experts)["strategy.sequence_parallel"] is not False
    return {
        "strategy.tp_overlap": "tp" in said and row.degree("tp") > 1 and is_split,
        "strategy.ep_overlap": "ep" in said and row.degree("ep") > 1,
        "strategy.pp_overlap": is_v_shaped or ("pp" in said and row.degree("pp") > 1 and chunks > 1),
        "strategy.dp_overlap": bool(said & OF_DATA) and row.replicas * row.degree("cp") > 1,
    }


def _overlaps(row: Row) -> set[str]:
    return {part.strip() for part in re.split("[;,]", row.word("overlaps")) if part.strip()} - {"none"}


def token_dispatcher(row: Row) -> dict[str, object]:
    """As the column says, also where nobody knows it: the nearest relative stands for it. Else as the notes do."""
    if stated := row.text("token_dispatcher"):
        word = row.word("token_dispatcher")
        return {"strategy.token_dispatcher": word if word in DISPATCHERS else stated}
    notes = row.word("notes")
    return {"strategy.token_dispatcher": next((name for name in DISPATCHERS if name in notes), None)}


def cuda_graphs(row: Row, *, has_experts: bool) -> dict[str, object]:
    """
    Read which parts of a step CUDA graphs capture.

    Raises
    ------
    SpecError
        For an unknown entry.
    """
    said = row.word("cuda_graph")
    if said in ("", "none stated"):
        return {}
    if said == "none":
        return {"strategy.cuda_graphs": "none"}
    if said in WHOLE_STEPS:
        return {"strategy.cuda_graphs": "full_iteration"}
    if said.startswith(GRAPHS_OF_LAYERS):
        # Megatron-Core's own graphs capture whole layers; those with experts only where tokens are dropped and padded,
        # as the notes of those rows say (``tokendrop``).
        return {"strategy.cuda_graphs": "attn+moe" if has_experts else "attn+mlp"}
    modules = said.removeprefix(GRAPHS_OF_MODULES).split("+")
    if unknown := [module for module in modules if module not in GRAPHED]:
        raise SpecError("cuda_graph", f"unknown entry '{unknown[0]}'.", did_you_mean(unknown[0], GRAPHED))
    return {"strategy.cuda_graphs": "+".join(module for module in GRAPHED if module in modules)}


def not_modelled(row: Row) -> dict[str, object]:
    """List the parts of a row that the cost model has no formula for, in the words of the report."""
    return {"not_modelled": "; ".join(_missing(row))}


def _missing(row: Row) -> Iterator[str]:
    schedule, method, offloaded = row.noted(SCHEDULE), row.noted(HEAD_METHOD), row.word("offload")
    if schedule and schedule not in SCHEDULES:
        yield f"schedule {schedule}: as 1F1B"
    if method and method not in VOCABULARIES:
        yield f"vocabulary-parallel head ({method}): as on the last rank"
    is_modelled = offloaded in ("", "none") or _offloads_optimizer(offloaded) or OFFLOADED_LAYERS.search(offloaded)
    if not is_modelled:
        yield "offload of single modules: as none" if offloaded.startswith("activations") else "offload: as none"
    if unknown := sorted(_overlaps(row) - OVERLAPS):
        yield f"overlap of {', '.join(unknown)}: as none"
    if TOKEN_DROP.search(row.text("notes")):
        yield "token drop: as balanced and dropless"
    if row.flag_or_none("force_balance") is False:
        yield "routing that nothing balances: as balanced"
