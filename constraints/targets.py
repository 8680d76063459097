"""Refusals of a target of ``planner export``: of a job, and of a strategy for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from math import inf
from typing import Any

from constraints import MEGATRON_LM_RULES, MEMORY_RULES, PHYSICS_RULES, TARGET_RULES, find_violations, violated_by_ranks
from constraints.rule import FieldValues, Rule, reason, sentence
from constraints.rules import physics, targets
from constraints.rules.exports import EXPORTS
from costmodel import catalog
from costmodel.catalog.releases import Release, release_of
from costmodel.errors import SpecError
from costmodel.facts.device import Cluster
from costmodel.facts.fields import NARROW
from costmodel.facts.framework import OptimizerOffload, Settings
from costmodel.lowering.framework import (
    MUON,
    NARROW_WEIGHTS,
    OF_MUON,
    loss_of,
    storage_precision,
    unfuse_loss,
)
from costmodel.record import replace
from costmodel.step.estimate import Estimate, device_bytes, estimate
from costmodel.strategy import Decision, Sharding, StageLayout, Strategy, TokenDispatcher
from costmodel.tables import Facts, tabulate

IN_16_BITS: Mapping[str, Any] = {"first_layers_bf16": 0, "last_layers_bf16": 0, "fp8_attention": False}
"""Settings of a job whose layers all compute in 16 bits."""


def effective_settings(facts: Facts, strategy: Strategy) -> Settings:
    """
    Complete the settings of a strategy for a job.

    Missing settings have the defaults of the formulas, settings without effect the defaults of ``Settings``. 8-bit
    weights count in 8-bit recipes only, numbers of SMs with a dispatcher of its own kernels, and 16-bit gradients are
    those of the recipe. Settings of optimizer offload count where states are offloaded, those of Muon with it, and
    threads where they are fewer than the cores.
    """
    cluster, precision = facts.cluster, facts.workload.precision
    behaviour = cluster.device.behaviour
    communication, host, memory = behaviour.communication, behaviour.host, behaviour.memory
    defaults = Settings(
        gradient_dtype="fp32",
        weight_dtype="recipe",
        moments_dtype="fp32",
        fp8_param_gather=False,
        first_layers_bf16=0,
        last_layers_bf16=0,
        fp8_attention=False,
        shared_expert_overlap=communication.shared_expert_overlap,
        delay_wgrad=False,
        communication_sms=communication.communication_sms,
        cp_comm_type=communication.cp_comm_type,
        optimizer_group=behaviour.optimizer.sharding_ranks or "all",
        optimizer="adam",
        muon_tp_mode=behaviour.optimizer.muon_tp_mode,
        muon_num_ns_steps=behaviour.optimizer.muon_num_ns_steps,
        kernels="fused" if behaviour.kernels.fused_kernels else "eager",
        attention="flash" if behaviour.kernels.fused_attention else "unfused",
        loss=loss_of(memory),
        loss_chunks=memory.loss_chunks,
        allocator=memory.allocator,
        launches="blocking" if host.launch_blocking else "asynchronous",
        composition="step",
    )
    whole = replace(cluster.settings.fill_from(defaults), mtp_layers=len(facts.model.mtp_layers))
    group, layers = whole.optimizer_group, whole.offloaded_layers
    is_one_group = (
        strategy.sharding == Sharding.NONE or not isinstance(group, int) or group >= strategy.dp * strategy.cp
    )
    every = not strategy.activation_offload or (layers or 0) >= facts.model.num_layers
    is_half = precision.compute == "fp16" and whole.gradient_dtype == "bf16"
    return replace(
        whole,
        gradient_dtype="fp16" if is_half else whole.gradient_dtype,
        fp8_param_gather=bool(whole.fp8_param_gather) and precision.compute in NARROW_WEIGHTS,
        shared_expert_overlap=bool(whole.shared_expert_overlap) and facts.model.has_shared_experts,
        communication_sms=whole.communication_sms if strategy.token_dispatcher > TokenDispatcher.ALLTOALL else None,
        cp_comm_type=whole.cp_comm_type if strategy.cp > 1 else None,
        cp_a2a_ranks=communication.cp_a2a_ranks if strategy.cp > 1 else None,
        offloaded_layers=None if every else layers,
        optimizer_group="all" if is_one_group else group,
        **({} if whole.optimizer in MUON else dict.fromkeys(OF_MUON)),
        **({} if precision.compute in NARROW else IN_16_BITS),
        **_offload_settings(cluster, strategy),
    )


def _offload_settings(cluster: Cluster, strategy: Strategy) -> dict[str, Any]:
    offload = cluster.device.behaviour.offload if strategy.optimizer_offload else OptimizerOffload()
    cores = cluster.device.host_processors.threads or inf
    every = offload.host_threads is None or offload.host_threads >= cores
    return {
        "offloaded_states": offload.offloaded_states,
        "offloaded_masters": offload.offloaded_masters,
        "offload_overlap": offload.offload_overlap,
        "host_threads": None if every else offload.host_threads,
    }


# --- a job -------------------------------------------------------------------------------------------------


def require_job(facts: Facts, target: str) -> None:
    """
    Refuse a precision or a model that a target does not have, whatever the strategy.

    Raises
    ------
    SpecError
        With the entry of the job, and the precisions that the target has.
    """
    _require_precision(facts, target)
    EXPORTS[target].require_model(facts)


def _require_precision(facts: Facts, target: str) -> None:
    own, precision = EXPORTS[target], facts.workload.precision
    is_known = precision.name in own.precisions
    if not is_known or _has_own_bytes(facts):
        text = own.other_precision.format(name=precision.name, own=" with bytes of its own" if is_known else "")
        raise SpecError("training.precision", text, own.precision_hint.format(known=" or ".join(own.precisions)))


def _has_own_bytes(facts: Facts) -> bool:
    """Tell whether a precision differs from the catalog's of its name, with the bytes that follow from the settings."""
    precision = facts.workload.precision
    return storage_precision(catalog.precision(precision.name), facts.cluster.settings) != precision


def require_software(facts: Facts, target: str) -> None:
    """
    Refuse jobs for several sites, on devices with software of their own, and with parts that a target has not.

    Raises
    ------
    SpecError
        With the entry of the job.
    """
    cluster, lengths = facts.cluster, facts.workload.lengths
    if cluster.sites is not None:
        hint = "Drop cluster.sites to export the plan of one site; what joins them is beyond the target."
        raise SpecError("cluster.sites", f"is nothing that {target} launches by itself.", hint)
    device, framework = cluster.device, cluster.framework
    if framework is not None and not catalog.runs_on(framework, device.architecture):
        problem = f"{target} does not run on {device.name}: {framework.name} stands for software that no file knows."
        raise SpecError(
            "target", problem, "The plan's degrees and settings are those to start from in its own software."
        )
    if lengths is not None and lengths.rank_tokens is not None and not target.startswith("megatron"):
        problem = f"{target} has no dynamic context parallelism: all sequences are split over the cp ranks."
        raise SpecError("training.max_seqlen_per_dp_cp_rank", problem, "Plan again without the entry.")


# --- a strategy --------------------------------------------------------------------------------------------


def find_refusals(facts: Facts, strategy: Strategy, target: str) -> dict[str, str]:
    """Return reasons by field that a target refuses of a strategy: decisions, and settings as ``settings.<name>``."""
    refusals, decisions = EXPORTS[target].fields, _decisions(strategy)
    found: dict[str, str] = {}
    for name, value in _values(facts, strategy):
        for one in refusals.get(name, ()):
            if not (value in one.values if isinstance(one, FieldValues) else tabulate(one, facts, decisions)):
                why = one.reason if isinstance(one, FieldValues) else reason(one)
                found.setdefault(name, why.replace("{value}", _spell(value)))
    return found


def _decisions(strategy: Strategy) -> dict[str, Any]:
    """Return the decisions of a strategy, its layout among them."""
    return {**strategy.decisions(), "layout": strategy.layout}


def list_refusals(facts: Facts, strategy: Strategy, refused: Mapping[str, str]) -> str:
    """List the refused fields of a strategy, a line each, with value and reason."""
    values = dict(_values(facts, strategy))
    return "".join(f"\n  - {name} = {_spell(values[name])}: {why}" for name, why in refused.items())


def _values(facts: Facts, strategy: Strategy) -> Iterator[tuple[str, Any]]:
    effective = effective_settings(facts, strategy)
    yield from ((one.name, getattr(strategy, one.name)) for one in fields(Strategy))
    yield from ((f"settings.{one.name}", getattr(effective, one.name)) for one in fields(Settings))


def _spell(value: object) -> str:
    """Spell a decision as job files do."""
    if isinstance(value, StageLayout):
        return "its own stages"
    return value.text if isinstance(value, Decision) else str(value).lower()


HINT = "Plan again for it (search.target), or with search.pin, search.allow or search.forbid keeping to what it can."

SETTINGS_HINT = "Plan again with other settings; what the job does not say is as cluster.framework has it{known}."


def _require_strategy(facts: Facts, strategy: Strategy, target: str) -> None:
    """Refuse a strategy that a target cannot run, with all refused fields and the reasons."""
    name, refused = EXPORTS[target].name, find_refusals(facts, strategy, target)
    if refused:
        framework = facts.cluster.framework
        other = SETTINGS_HINT.format(known="" if framework is None else f" ({framework.name})")
        of_settings = [one for one in refused if "." in one]
        hint = " ".join([HINT] * (len(refused) > len(of_settings)) + [other] * bool(of_settings))
        lines = list_refusals(facts, strategy, refused)
        raise SpecError("strategy", f"{name} cannot express this plan:{lines}\n{hint}")
    if target.startswith("megatron"):
        asked = [rule for rule in (*TARGET_RULES[target], *PHYSICS_RULES) if not _is_our_own(rule)]
        others = [rule for rule in asked if rule not in MEGATRON_LM_RULES]
        broken = tuple(violated_by_ranks(facts, strategy, rules=others))
        if broken:
            sentences = " ".join(dict.fromkeys(map(sentence, broken)))
            raise SpecError("strategy", f"{name} cannot run this plan, which breaks: {sentences}")


def require_expressible(facts: Facts, strategy: Strategy, target: str) -> None:
    """
    Refuse a job and a strategy that a target cannot run, whatever its release.

    Raises
    ------
    SpecError
        With the entry of the job, or all refused fields of the strategy, and the reasons.
    """
    if not EXPORTS[target].strategy_first:
        _require_precision(facts, target)
    _require_strategy(facts, strategy, target)
    require_job(facts, target)


def _is_our_own(rule: Rule) -> bool:
    """Tell whether a rule is the planner's own: on memory, profiles, groups in nodes or empty virtual stages."""
    return rule in (
        physics.tp_groups_tile_the_nodes,
        physics.virtual_stages_hold_something,
        physics.profile_has_measured_the_shapes,
        *MEMORY_RULES,
    )


# --- releases of Megatron-LM and Megatron-Bridge -------------------------------------------------------------
MEGATRON_RELEASES = ("0.14", "0.16", "0.17", "0.18", "0.19", "main")
"""Releases of Megatron Core that exports know."""

BRIDGE_RELEASES = ("0.3.1", "0.5", "0.6")
"""Releases of Megatron-Bridge that exports know; the last two (containers 26.06 and 26.08) have no package."""

FIRSTS: Mapping[str, Mapping[str, tuple[tuple[int, ...], ...]]] = {
    "megatron-bridge": {"0.3.1": ((0,), (20,)), "0.5": ((0, 5), (26, 6)), "0.6": ((0, 6), (26, 8))},
    "megatron-lm": {"0.3.1": ((0,),), "0.5": (), "0.6": ((0, 18),)},
    "megatron-core": {"0.3.1": ((0,),), "0.5": (), "0.6": ((0, 18),)},
}
"""Releases by stack from which on each version is written: by versions, and by months of containers."""

BY_RELEASE = {
    "megatron-lm": MEGATRON_LM_RULES,
    "megatron-bridge": (*MEGATRON_LM_RULES, targets.bridge_overlaps_ep_outside_one_graph),
}
"""Rules that hold in some releases only."""

OWN_LOSS = targets.cores_from_0_18_compute_the_loss_themselves


def name_of_release(cluster: Cluster) -> str:
    """Name of the release that a cluster runs, as the job has it; empty where the job names none."""
    return cluster.unknown_release or (cluster.framework.name if cluster.framework else "")


def release_number(release: str) -> tuple[float, ...]:
    """Number of a release of Megatron Core, with main after all others."""
    return (inf,) if release == MEGATRON_RELEASES[-1] else tuple(float(part) for part in release.split("."))


def find_costed_release(cluster: Cluster) -> str | None:
    """Release of Megatron Core that a cluster runs; None: unknown to exports, or another stack."""
    number = targets.core_release(cluster)
    return (
        None if number is None else next((one for one in MEGATRON_RELEASES if release_number(one) == number[:2]), None)
    )


def bridge_release(cluster: Cluster) -> str:
    """Release of Megatron-Bridge that a cluster runs, or else the newest known one that is not newer."""
    found, packaged = release_of(name_of_release(cluster)), BRIDGE_RELEASES[0]
    if found is None or found.stack not in FIRSTS:
        return packaged
    firsts = FIRSTS[found.stack]
    known = (name for name in BRIDGE_RELEASES if any(_reaches(found, first) for first in firsts[name]))
    return max(known, default=packaged)


def _reaches(found: Release, first: tuple[int, ...]) -> bool:
    return found.number >= first and (found.scheme == "month") == (first[0] >= 20)


def find_broken_rules(facts: Facts, strategy: Strategy, target: str, release: str) -> tuple[Rule, ...]:
    """Return the rules of a release that a strategy breaks."""
    on_release = replace(facts, cluster=replace(facts.cluster, unknown_release=f"{target}-{release}"))
    return tuple(violated_by_ranks(on_release, strategy, rules=BY_RELEASE[target]))


def estimate_own_loss(facts: Facts, strategy: Strategy) -> Estimate:
    """Estimate a strategy with Megatron-LM's own loss instead of Transformer Engine's fused one."""
    return facts.compute_once((estimate_own_loss, strategy), lambda: estimate(_unfuse_loss(facts), strategy))


def _unfuse_loss(facts: Facts) -> Facts:
    cluster = facts.cluster
    settings = replace(cluster.settings, loss="unfused")
    return replace(facts, cluster=replace(cluster, device=unfuse_loss(cluster.device), settings=settings))


def require_release(facts: Facts, strategy: Strategy, target: str, asked: Sequence[str] | None = None) -> None:
    """
    Refuse a strategy that no release of Megatron-LM or Megatron-Bridge among some can run.

    Parameters
    ----------
    facts, strategy
        The job and the strategy.
    target
        The target.
    asked
        Releases of the target; None: the costed one, or any where exports do not know it.

    Raises
    ------
    SpecError
        With the reasons of the first one, and the releases that take the strategy.
    """
    known = BRIDGE_RELEASES if target == "megatron-bridge" else MEGATRON_RELEASES
    if asked is None:
        own = bridge_release(facts.cluster) if target == "megatron-bridge" else find_costed_release(facts.cluster)
        asked = [*reversed(known)] if own is None else [own]
    refusals = [_refusals_of_release(facts, strategy, target, release) for release in asked]
    if all(refusals):
        taking = [release for release in known if not _refusals_of_release(facts, strategy, target, release)]
        hint = f"These take it: {', '.join(taking)} (--framework-version)." if taking else "No release takes it."
        lines = "".join(f"\n  - {why}" for why in refusals[0])
        problem = f"{EXPORTS[target].name} {asked[0]} refuses this plan:{lines}\n{hint}"
        raise SpecError("framework-version", problem)


def _refusals_of_release(facts: Facts, strategy: Strategy, target: str, release: str) -> list[str]:
    broken = find_broken_rules(facts, strategy, target, release)
    if target == "megatron-bridge":
        return list(map(sentence, broken))
    on_release = replace(facts, cluster=replace(facts.cluster, unknown_release=f"{target}-{release}"))
    broken += find_violations(on_release, _decisions(strategy), rules=targets.OPTION_RULES)
    return [sentence(rule) for rule in broken if rule is not OWN_LOSS or not _has_room(facts, strategy)]


def _has_room(facts: Facts, strategy: Strategy) -> bool:
    """Tell whether a strategy fits with Megatron-LM's own loss, or does not fit as it is costed either."""
    most = facts.cluster.device.memory_bytes

    def has_room() -> bool:
        return device_bytes(_unfuse_loss(facts), strategy) <= most or device_bytes(facts, strategy) > most

    return facts.compute_once((_has_room, strategy), has_room)


def find_refusal(facts: Facts, strategy: Strategy, target: str) -> str | None:
    """Return the first reason why a target cannot run a strategy; None: it can."""
    return facts.compute_once((find_refusal, target, strategy), lambda: _find_refusal(facts, strategy, target))


def _find_refusal(facts: Facts, strategy: Strategy, target: str) -> str | None:
    try:
        require_software(facts, target)
        require_expressible(facts, strategy, target)
        if target in BY_RELEASE:
            require_release(facts, strategy, target)
    except SpecError as error:
        lines = [line[4:] for line in error.problem.splitlines() if line.startswith("  - ")]
        return lines[0] if lines else f"{error.where}: {error.problem}"
    return None


def find_first_refusals(facts: Facts, strategy: Strategy) -> dict[str, str | None]:
    """Return for every target the first reason why it cannot run a strategy; None: it can."""
    return {target: find_refusal(facts, strategy, target) for target in EXPORTS}
