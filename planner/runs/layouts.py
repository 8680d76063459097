"""A row's layout and features as a complete strategy; what the cost model cannot express of it has a name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from constraints.divisibility import heads_split_over_tp, sequence_splits_over_cp
from constraints.experts import expert_degrees_need_experts, expert_groups_tile_a_stage, experts_split_over_ep
from constraints.microbatches import global_batch_splits_over_ranks
from constraints.topology import virtual_stages_hold_something
from costmodel.errors import SpecError
from costmodel.spec import Model
from costmodel.strategy import V_SHAPED, Recompute, Schedule, Sharding, Strategy, Vocabulary, usual_group
from costmodel.tables import Facts, tabulate
from planner.given import stage_layout
from planner.runs.architectures import Unpredictable
from planner.runs.facts import OFFLOADED_LAYERS
from planner.runs.software import Software, software_of
from planner.runs.stages import printed_stages
from planner.runs.table import Run

RULES = (
    global_batch_splits_over_ranks,
    heads_split_over_tp,
    sequence_splits_over_cp,
    expert_degrees_need_experts,
    experts_split_over_ep,
    expert_groups_tile_a_stage,
    virtual_stages_hold_something,
)
"""A layout that breaks one of these cannot have run."""

SHARDINGS = {
    "none": Sharding.NONE,
    "distributed": Sharding.OPTIMIZER,
    "zero1": Sharding.OPTIMIZER,
    "zero2": Sharding.GRADIENTS,
    "zero3": Sharding.WEIGHTS,
}
RECOMPUTES = {"none": Recompute.NONE, "selective": Recompute.of("core_attention"), "full": Recompute.FULL}
"""Selective recomputation is the attention core's (Korthikanti et al., arXiv 2205.05198), but for torchtitan."""

OVERLAPS = frozenset({"tp", "pp", "ep", "dp_grad", "dp_param", "fsdp_prefetch"})
"""Words of the column ``overlaps``."""

SCHEDULES = {
    "": Schedule.ONE_F_ONE_B,
    "1F1B": Schedule.ONE_F_ONE_B,
    "1F1B-I": Schedule.ONE_F_ONE_B,
    "ZB-1p": Schedule.ZB_H1,
    "ZB-2p": Schedule.ZB_2P,
    "V-Half": Schedule.V_HALF,
}
"""What notes call a schedule; the automatic ZB-1p idles as long as ZB-H1 (arXiv 2401.10241, Table 5)."""

VOCABULARIES = {
    "": Vocabulary.ENDS,
    "baseline": Vocabulary.ENDS,
    "redis": Vocabulary.REDISTRIBUTED,
    "vocab1": Vocabulary.VOCAB_1,
    "vocab2": Vocabulary.VOCAB_2,
    "interlaced": Vocabulary.INTERLACED,
}
"""What notes call the place of embedding and head (arXiv 2411.05288, section 6)."""

WHOLE_EXPERTS = "Megatron-Bridge"
"""Whose recipes have ``expert_tensor_parallel_size = 1`` (recalled); every row of it that has a cell says so."""

MODULES = "modules:"
NAMES = {
    "core_attn": "core_attention",
    "mla_up_proj": "qkv",
    "layernorm": "norms",
    "mlp": "mlp",
    "shared_experts": "shared_experts",
    "moe_act": "expert_activation",
    "moe": "experts",
}
"""Modules as the rows spell them: Megatron-LM's ``recompute_modules``."""


def strategy_of(run: Run, facts: Facts) -> Strategy:
    """
    The strategy of a row; where the row is silent, the framework's defaults.

    Raises
    ------
    SpecError
        If the layout is impossible, or a cell unknown.
    Unpredictable
        If the row did something else than a training step.
    """
    software = software_of(run)
    dp = run.num_devices // (run.tp * run.cp * run.pp)
    schedule = SCHEDULES.get(_noted(run, SCHEDULE), Schedule.ONE_F_ONE_B)
    vpp = 2 if schedule in V_SHAPED else _chunks(run, facts.model)
    sharding = _sharding(run, software)
    sequence_parallel = _sequence_parallel(run, software, facts.model)
    overlaps = _overlaps(run, software)
    strategy = Strategy(
        tp=run.tp,
        cp=run.cp,
        pp=run.pp,
        dp=dp,
        ep=run.ep,
        etp=_expert_tp(run, dp),
        vpp=vpp,
        group=int(usual_group(pp=run.pp, vpp=vpp)),
        mbs=_microbatch(run),
        sequence_parallel=sequence_parallel,
        schedule=schedule,
        vocabulary=VOCABULARIES.get(_noted(run, HEAD_METHOD), Vocabulary.ENDS),
        sharding=sharding if dp * run.cp > 1 else Sharding.NONE,
        recompute=_recompute(run, software),
        activation_offload=bool(OFFLOADED_LAYERS.search(run.offload)),
        optimizer_offload=False,
        tp_overlap="tp" in overlaps and run.tp > 1 and sequence_parallel,
        cp_overlap=software.ring_overlaps and run.cp > 1,
        ep_overlap="ep" in overlaps and run.ep > 1,
        pp_overlap=("pp" in overlaps or schedule in V_SHAPED) and run.pp > 1 and vpp > 1,
        dp_overlap=bool(overlaps & {"dp_grad", "dp_param", "fsdp_prefetch"}) and dp * run.cp > 1,
    )
    _require_possible(facts, strategy)
    return _laid_out(run, software, facts.model, strategy)


def _laid_out(run: Run, software: Software, model: Model, strategy: Strategy) -> Strategy:
    """The strategy with the stages that the row prints; else with those that its software deals."""
    sizes: tuple[int, ...] | None = printed_stages(run.notes)
    if not sizes and strategy.pp > 1 and strategy.vocabulary == Vocabulary.ENDS and software.stages:
        sizes = software.stages(model.num_layers, strategy.pp * strategy.vpp)
    return replace(strategy, layout=stage_layout({"layers": sizes}, strategy, model)) if sizes else strategy


def _require_possible(facts: Facts, strategy: Strategy) -> None:
    for rule in RULES:
        if not tabulate(rule, facts, strategy.decisions()):
            sentence = (rule.__doc__ or "").strip().splitlines()[0]
            raise SpecError("layout", f"is impossible. {sentence}")


def _chunks(run: Run, model: Model) -> int:
    """Chunks per pipeline rank; a row that is silent interleaves only as its printed pipeline layout says."""
    if run.vpp == 0:
        return -(-(model.num_layers + 2) // run.pp)
    if run.vpp is not None:
        return run.vpp if run.pp > 1 else 1
    return max(len(printed_stages(run.notes)) // run.pp, 1)


def _microbatch(run: Run) -> int:
    """Sequences per micro-batch; torchtitan's pipeline rows print the local batch of as many micro-batches as ranks."""
    if run.framework.startswith("torchtitan") and run.pp > 1:
        return max(run.mbs // run.pp, 1)
    return run.mbs


def _expert_tp(run: Run, dp: int) -> int:
    """As stated; else Megatron-LM's default, tp, where the ranks of a stage hold such groups, but for other recipes."""
    if run.etp is not None:
        return run.etp
    if run.framework.startswith(WHOLE_EXPERTS) or run.ep == 1 or (run.tp * run.cp * dp) % (run.ep * run.tp):
        return 1
    return run.tp


def _sequence_parallel(run: Run, software: Software, model: Model) -> bool:
    """As stated; experts on tensor-parallel ranks demand it."""
    stated = software.sequence_parallel if run.sequence_parallel is None else run.sequence_parallel
    return run.tp > 1 and (stated or model.has_experts)


def _sharding(run: Run, software: Software) -> Sharding:
    """
    As stated; else what the framework does.

    Who says ZeRO-2 of a pipeline reduces gradients once per step, as with ZeRO-1 (MegaScale, arXiv 2402.15627, section
    3.2); DeepSpeed's, which does so for every micro-batch, refuses pipelines (``PipelineEngine``).
    """
    if not run.optimizer:
        return software.sharding
    if run.optimizer not in SHARDINGS:
        raise SpecError("optimizer", f"unknown entry '{run.optimizer}'.", f"Known: {', '.join(SHARDINGS)}.")
    sharding = SHARDINGS[run.optimizer]
    return Sharding.OPTIMIZER if sharding == Sharding.GRADIENTS and run.pp > 1 else sharding


def _recompute(run: Run, software: Software) -> Recompute:
    """
    As stated, by module; else what the framework does.

    Layers that were timed alone were not recomputed, though their rows have what another file says
    (``benchmarks/measured_runs/README.md``).
    """
    if not run.recompute or run.is_sum_of_parts:
        return software.recompute
    if run.recompute.startswith(MODULES):
        modules = run.recompute.removeprefix(MODULES).split("+")
        if unknown := [module for module in modules if module not in NAMES]:
            raise SpecError("recompute", f"unknown module '{unknown[0]}'.", f"Known: {', '.join(NAMES)}.")
        return Recompute.of(*(NAMES[module] for module in modules))
    if run.recompute == "selective" and run.framework.startswith("torchtitan"):
        return Recompute.of("every_other_matmul")
    if run.recompute not in RECOMPUTES:
        raise SpecError("recompute", f"unknown entry '{run.recompute}'.", f"Known: {', '.join(RECOMPUTES)}.")
    return RECOMPUTES[run.recompute]


def _overlaps(run: Run, software: Software) -> set[str]:
    if not run.overlaps:
        return set(software.overlaps) - ({"tp"} if run.dtype in software.plain_tp_dtypes else set())
    return _stated_overlaps(run)


def _stated_overlaps(run: Run) -> set[str]:
    return {part.strip() for part in re.split("[;,]", run.overlaps) if part.strip()} - {"none"}


def require_a_step(run: Run) -> None:
    """
    Refuse what is no training step of the whole model.

    Raises
    ------
    Unpredictable
        For single layers and for adapters.
    """
    if run.kind == "component":
        raise Unpredictable("a single layer, not a training step")
    if run.kind == "finetune" and re.search(r"\b[qQ]?L[oO]RA\b|adapter|PEFT", run.notes):
        raise Unpredictable("fine-tuning of adapters: the cost model trains every parameter")


def variant_of(run: Run) -> tuple[str, ...]:
    """What of a row's layout a strategy cannot express; two layouts that differ in it are two."""
    return (_noted(run, SCHEDULE), run.recompute, run.offload)


SCHEDULE = re.compile(r"schedule ([\w-]+)")
HEAD_METHOD = re.compile(r"method (\w+)")


def _noted(run: Run, pattern: re.Pattern[str]) -> str:
    stated = pattern.search(run.notes)
    return stated.group(1) if stated else ""


# --- what is predicted as if it were something else ---------------------------------------------------------


def not_modelled(run: Run, facts: Facts, strategy: Strategy) -> tuple[str, ...]:
    """What of a row the cost model has no formula for today, in the words of the report."""
    return tuple(_missing(run, facts, strategy))


def _missing(run: Run, facts: Facts, strategy: Strategy) -> Iterator[str]:
    schedule, method = _noted(run, SCHEDULE), _noted(run, HEAD_METHOD)
    if schedule not in SCHEDULES:
        yield f"schedule {schedule}: as 1F1B"
    if method not in VOCABULARIES:
        yield f"vocabulary-parallel head ({method}): as on the last rank"
    if run.offload not in ("", "none") and not strategy.activation_offload:
        yield "offload of single modules: as none" if run.offload.startswith("activations") else "offload: as none"
    if unknown := sorted(_stated_overlaps(run) - OVERLAPS):
        yield f"overlap of {', '.join(unknown)}: as none"
    if "token drop" in run.notes:
        yield "token drop: as balanced and dropless"
    if strategy.sharding == Sharding.WEIGHTS and strategy.pp > 1:
        yield "sharded weights in a pipeline: outside the rules"
    if facts.model.num_layers % (strategy.pp * strategy.vpp) and software_of(run).stages is None:
        yield "uneven stages: in the cost model's own layout"
    if strategy.ep > 1 and facts.cluster.device.profile.expert_dispatch == "pairs":
        yield "token dispatcher not stated: as plain all-to-all"
