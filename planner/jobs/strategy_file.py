"""A given strategy and the settings with several values: read, checked, and completed with the framework's recipes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, fields
from itertools import groupby, product
from math import prod
from typing import Any, TypeAlias

from costmodel import catalog
from costmodel.errors import SpecError, alternatives
from costmodel.facts.calibration import Constants
from costmodel.facts.device import Cluster
from costmodel.facts.framework import MANY, MODULES, Framework, Settings, feature_of, lacks
from costmodel.facts.model import Model
from costmodel.lowering.framework import find_absent_features, framework_stages
from costmodel.pipelines.stages import settle_layout, stage_layout
from costmodel.record import record
from costmodel.strategy import (
    DECISIONS,
    ENUMS,
    FLAGS,
    MODULES_OF,
    OVERLAPS,
    V_SHAPED,
    Recompute,
    Schedule,
    Sharding,
    StageLayout,
    Strategy,
    Vocabulary,
    decision_text,
    default_microbatch_group,
)
from costmodel.tables import Facts, num_microbatches
from costmodel.validation import build, shown
from planner.jobs.document import (
    MAX_DEGREE,
    decision_value,
    decision_values,
    entry_path,
    plain_value,
    require_entry,
    require_one_of,
)

Value: TypeAlias = bool | int | float | str
"""A value of a setting."""

ANY = "any"
"""Word for all values that the framework's release has."""

CHOOSABLE = (
    "gradient_dtype",
    "moments_dtype",
    "fp8_param_gather",
    "shared_expert_overlap",
    "offloaded_layers",
    "offloaded_states",
    "offloaded_masters",
    "offload_overlap",
    "optimizer_group",
    "muon_tp_mode",
    "cp_comm_type",
    "cp_a2a_ranks",
    "loss",
    "loss_chunks",
)
"""Settings that may have several values; the others describe the trained model or the software."""

WITHOUT_ANY = ("offloaded_layers", "optimizer_group", "muon_tp_mode", "cp_a2a_ranks")
"""Settings among them of which no release says all values: they take a list, not ``any``."""

MOST_COMBINATIONS = 32
"""Largest number of combinations of settings in one job: each has costs of its own to tabulate."""

OF_OPTIMIZER_OFFLOAD = ("offloaded_states", "offloaded_masters", "offload_overlap")
"""Settings that have an effect only with optimizer offload."""

OFFLOAD_OF = {**dict.fromkeys(OF_OPTIMIZER_OFFLOAD, "optimizer_offload"), "offloaded_layers": "activation_offload"}
"""Settings of offload, and their decision."""

ALL_THE_SAME = "To cost it nevertheless: search.framework_rules: false."


def split(settings: object) -> tuple[Any, dict[str, Any]]:
    """
    Split settings into those with one value, and those with several values or ``any``.

    >>> split({"loss": "fused", "gradient_dtype": ["fp32", "bf16"], "offloaded_states": "any"})
    ({'loss': 'fused'}, {'gradient_dtype': ['fp32', 'bf16'], 'offloaded_states': 'any'})
    """
    if not isinstance(settings, Mapping):
        return settings, {}
    known = {one.name for one in fields(Settings)}
    several = {name: value for name, value in settings.items() if name in known and _is_open(value)}
    for name, value in several.items():
        if name not in CHOOSABLE:
            problem = f"takes one value, got {shown(value)}."
            raise SpecError(f"settings.{name}", problem, f"Several may be given of {', '.join(CHOOSABLE)}.")
    return {name: value for name, value in settings.items() if name not in several}, several


def _is_open(value: object) -> bool:
    return isinstance(value, list) or value == ANY


def combine_settings(
    several: Mapping[str, Any], framework: Framework, *, framework_rules: bool
) -> tuple[dict[str, Value], ...]:
    """
    Combine settings with several values, in the order in which the job gives them.

    Parameters
    ----------
    several
        Lists of values, or ``any``, by setting.
    framework
        Framework of the job, whose entry lists values of settings.
    framework_rules
        True where values that the framework lacks are refused.

    Raises
    ------
    SpecError
        If a list is empty, names a value twice, or an unknown one. Also if the values for ``any`` are not known, or the
        combinations are too many.
    """
    values = {name: tuple(_read_values(name, given, framework, framework_rules)) for name, given in several.items()}
    number = prod(map(len, values.values()))
    if number > MOST_COMBINATIONS:
        product_of = " x ".join(f"{len(own)} of {name}" for name, own in values.items() if len(own) > 1)
        problem = f"{product_of} make {number:,} combinations, more than {MOST_COMBINATIONS}."
        raise SpecError("settings", problem, "Give fewer values, or plan in several jobs (planner batch).")
    every = (dict(zip(values, chosen, strict=True)) for chosen in product(*values.values()))
    return tuple(one for one in every if _matters(one, values))


def _matters(chosen: Mapping[str, Value], values: Mapping[str, tuple[Value, ...]]) -> bool:
    """Tell whether near ranks have an effect; without, only their first number is kept."""
    if not {"cp_comm_type", "cp_a2a_ranks"} <= {*chosen}:
        return True
    return chosen["cp_comm_type"] == "a2a+p2p" or chosen["cp_a2a_ranks"] == values["cp_a2a_ranks"][0]


def _read_values(name: str, given: Any, framework: Framework, framework_rules: bool) -> Iterator[Value]:
    where, having = f"settings.{name}", framework.setting_values.get(name)
    if framework_rules and name in OFFLOAD_OF and lacks(framework, OFFLOAD_OF[name], 1):
        problem = f"has several values, but {framework.name} has no {OFFLOAD_OF[name]}."
        raise SpecError(where, problem, f"Give one value. {ALL_THE_SAME}")
    if given == ANY:
        if name in WITHOUT_ANY:
            problem = f"takes no {ANY}: the catalog lists its values for no release, {framework.name} included."
            raise SpecError(where, problem, "Give a list of values.")
        if having is None:
            problem = f"is any, but the catalog does not know which values {framework.name} has."
            raise SpecError(where, problem, "Give a list of values.")
        yield from having
        return
    if not given:
        raise SpecError(where, "is an empty list.", f"Give one value, a list of several, or {ANY}.")
    seen: list[Value] = []
    for index, value in enumerate(given):
        read = read_value(name, value, f"{where}.{index}")
        if read in seen:
            raise SpecError(f"{where}.{index}", f"names {shown(value)} a second time.")
        if framework_rules and len(given) > 1 and not has_value(framework, name, read):
            _refuse(framework, name, read, f"{where}.{index}")
        seen.append(read)
        yield read


def read_value(name: str, value: Any, where: str) -> Value:
    """
    Read one value of a setting.

    Raises
    ------
    SpecError
        If the setting has no such value; ``where`` is the path of the setting.
    """
    if value is None or _is_open(value):
        raise SpecError(where, f"expected a value of {name}, got {shown(value)}.")
    try:
        read: Value = getattr(build(Settings, {name: value}, "settings"), name)
    except SpecError as error:
        raise SpecError(where, error.problem, error.hint) from None
    return read


def has_value(framework: Framework, name: str, value: Value) -> bool:
    """
    Tell whether a framework's release has a value of a setting, as far as its entry lists values.

    Two listed numbers include those between them. Values of its recipes are included as well.
    """
    having = framework.setting_values.get(name)
    if having is None or value in having or value == getattr(framework.settings, name):
        return True
    return not isinstance(value, (bool, str)) and len(having) > 1


def _refuse(framework: Framework, name: str, value: Value, where: str) -> None:
    own = alternatives([value_text(one) for one in framework.setting_values[name]])
    having = [one for one in catalog.frameworks() if value in catalog.framework(one).setting_values.get(name, ())]
    others = f" These have it: {', '.join(having)} (cluster.framework)." if having else ""
    problem = f"{framework.name} has no {name} {shown(value)} (allowed: {own})."
    raise SpecError(where, problem, f"{others} {ALL_THE_SAME}".strip())


def keep_effective(
    settings: Mapping[str, Value], *, optimizer_offload: bool, activation_offload: bool
) -> dict[str, Value]:
    """Return the settings that matter to a strategy: those of offload only if something is offloaded."""
    offloads = {"optimizer_offload": optimizer_offload, "activation_offload": activation_offload}
    return {name: value for name, value in settings.items() if name not in OFFLOAD_OF or offloads[OFFLOAD_OF[name]]}


def value_text(value: Value) -> str:
    """
    Write a value of a setting as on a command line.

    >>> value_text(True), value_text("bf16"), value_text(0.5)
    ('true', 'bf16', '0.5')
    """
    return value if isinstance(value, str) else shown(value)


def text_of(settings: Mapping[str, Value]) -> str:
    """
    Write settings as on a command line.

    >>> text_of({"gradient_dtype": "bf16", "offloaded_masters": True})
    'gradient_dtype=bf16 offloaded_masters=true'
    """
    return " ".join(f"{name}={value_text(value)}" for name, value in settings.items())


LAYOUT = "layout"
"""The entry of a strategy that is no decision: its stages."""

FOLLOWING = ("num_microbatches",)
"""Columns of a report that follow from the decisions of a strategy."""

ENTRIES = (*DECISIONS, LAYOUT, *FOLLOWING)
"""Names with which job files, lists, rows and reports write a strategy."""

AS_DEALT: Mapping[str, tuple[int, ...]] = {}
"""Layout of the stages that the decisions alone mean, without the framework's own division of layers."""

COUNTS = ("layers", "full_layers")
"""Entries of a layout that count layers; they may be written as a sum."""

SUM = re.compile(r"\d{1,6}(x\d{1,4})?(\+\d{1,6}(x\d{1,4})?)*")
"""Numbers joined by ``+``, each with ``x`` and its repetitions."""

MOST_STAGES = 4096
"""Largest number of virtual stages in a layout; no model has as many layers."""


@record(frozen=True, kw_only=True, slots=True)
class StrategyFile:
    """
    A strategy as a file or a job gives it, in part or whole.

    Parameters
    ----------
    decisions
        Values by name.
    layout
        ``layers`` of each virtual stage, and the entries of :class:`costmodel.strategy.StageLayout` of each pipeline
        rank. Missing entries follow from the decisions (:data:`AS_DEALT`: all of them). None: no stages are given, the
        framework's own are used.
    settings
        Values of settings for which the job gives several.
    """

    decisions: Mapping[str, int] = field(default_factory=dict)
    layout: Mapping[str, tuple[int, ...]] | None = None
    settings: Mapping[str, Value] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """True where nothing is given."""
        return not self.decisions and self.layout is None and not self.settings

    @property
    def names(self) -> tuple[str, ...]:
        """Decisions that are given, ``layout`` among them where stages are."""
        return (*self.decisions, *(() if self.layout is None else (LAYOUT,)))

    @property
    def stage_degrees(self) -> dict[str, int]:
        """Degrees that follow from given layers, where they are not given: pp * vpp is the number of virtual stages."""
        pp, vpp, layers = self.decisions.get("pp"), self.decisions.get("vpp"), (self.layout or {}).get("layers")
        if layers is None:
            return {}
        if pp is None:
            return {"pp": max(1, len(layers) // (vpp or 1)), "vpp": vpp or 1}
        return {"vpp": max(1, len(layers) // pp)} if vpp is None else {}

    def override(self, base: StrategyFile) -> StrategyFile:
        """
        Return these entries over those of another strategy.

        Layers of a strategy with another pp or vpp are not taken over; those that are given without pp are, and refused
        later where their number does not match. Nor is dp with other degrees, since it follows from them.
        """
        decisions = {**base.decisions, **self.decisions}
        if "dp" not in self.decisions and any(
            decisions.get(name, 1) != base.decisions.get(name, 1) for name in ("tp", "cp", "pp")
        ):
            decisions.pop("dp", None)
        own = {**base.decisions, **base.stage_degrees}
        same = all(decisions.get(name, own.get(name)) == own.get(name) for name in ("pp", "vpp") if name in own)
        taken = base.layout if same or "pp" not in base.decisions else None
        return StrategyFile(
            decisions=decisions,
            layout=taken if self.layout is None else self.layout,
            settings={**base.settings, **self.settings},
        )


# --- reading -----------------------------------------------------------------------------------------------


def read_given(entries: Mapping[str, Any], where: str = "strategy") -> StrategyFile:
    """
    Read a strategy as a job file, a report or a command line writes it.

    >>> read_given({"tp": 8, "recompute": "full", "layout": {"layers": [1, 2, 1]}})
    StrategyFile(decisions={'recompute': <Recompute.FULL: 2>, 'tp': 8}, layout={'layers': (1, 2, 1)}, settings={})
    >>> read_given({"layout": "5+6x3+5+4"}).layout
    {'layers': (5, 6, 6, 6, 5, 4)}

    Raises
    ------
    SpecError
        If a name or a value is wrong.
    """
    for name in entries:
        require_entry(name, ENTRIES, where)
    return StrategyFile(
        decisions=decision_values({name: value for name, value in entries.items() if name in DECISIONS}, where),
        layout=read_layout(entries[LAYOUT], f"{where}.{LAYOUT}") if LAYOUT in entries else None,
    )


def read_layout(entries: object, where: str) -> Mapping[str, tuple[int, ...]]:
    """
    Read the stages of a strategy: a mapping, or the layers of the virtual stages; None gives :data:`AS_DEALT`.

    Raises
    ------
    SpecError
        If a name or a value is wrong.
    """
    if entries is None:
        return AS_DEALT
    if _is_count(entries) or isinstance(entries, str):
        return {"layers": _values("layers", entries, where)}
    if not isinstance(entries, Mapping):
        problem = "expected a mapping such as {layers: [3, 4, 4, 3]} or layers such as 3+4x2+3"
        raise SpecError(where, f"{problem}, got {shown(entries)}.")
    for name in entries:
        require_entry(name, (one.name for one in fields(StageLayout)), where, "entry")
    if "layers" not in entries:
        raise SpecError(f"{where}.layers", "is required but missing.")
    return {name: _values(name, values, f"{where}.{name}") for name, values in entries.items()}


def _values(name: str, values: object, where: str) -> tuple[int, ...]:
    if name in COUNTS and (_is_count(values) or isinstance(values, str)):
        return _read_sum(str(values), where)
    if not isinstance(values, (list, tuple)) or not values:
        text = "a list such as [3, 4, 4, 3] or text such as 3+4x2+3" if name in COUNTS else "a list"
        raise SpecError(where, f"expected {text}, got {shown(values)}.")
    return tuple(_value(name, value, f"{where}.{index}") for index, value in enumerate(values))


def _value(name: str, value: object, where: str) -> int:
    if name in DECISIONS:
        return decision_value(name, value, where)
    if not isinstance(value, int) or not _is_count(value):
        raise SpecError(where, f"expected a number of layers, got {shown(value)}.")
    return value


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _read_sum(text: str, where: str) -> tuple[int, ...]:
    if not SUM.fullmatch(text):
        raise SpecError(where, f"expected layers such as 3+4x2+3, got {shown(text)}.")
    pairs = [(int(count), int(times or 1)) for count, _, times in (part.partition("x") for part in text.split("+"))]
    if not 0 < sum(times for _, times in pairs) <= MOST_STAGES:
        raise SpecError(where, f"has no stage or more than {MOST_STAGES}: {shown(text)}.")
    return tuple(count for count, times in pairs for _ in range(times))


def apply_layout(given: Mapping[str, tuple[int, ...]], strategy: Strategy, model: Model) -> Strategy:
    """
    Return a strategy with its given layout in canonical form.

    Raises
    ------
    SpecError
        If the layout does not match the strategy's pipeline and the model.
    """
    where, stages, usual = "strategy.layout", strategy.pp * strategy.vpp, stage_layout(strategy, model)
    layers = given.get("layers", usual.layers)
    if len(layers) != stages:
        raise SpecError(f"{where}.layers", f"has {len(layers)} virtual stages, pp * vpp = {stages}.")
    if sum(layers) != model.num_layers:
        raise SpecError(f"{where}.layers", f"holds {sum(layers)} layers, {model.name} has {model.num_layers}.")
    ranks = [name for name in given if name != "layers"]
    for name in ranks:
        if len(given[name]) != strategy.pp:
            count = len(given[name])
            raise SpecError(f"{where}.{name}", f"has {count} values, one for each of pp = {strategy.pp} ranks.")
    for rank, full in enumerate(given.get("full_layers", ())):
        if full > (own := sum(layers[rank :: strategy.pp])):
            raise SpecError(f"{where}.full_layers.{rank}", f"is {full}, more than the {own} layers of the rank.")
    layout = StageLayout(
        layers=layers,
        recompute=tuple(map(Recompute, given.get("recompute", usual.recompute))),
        full_layers=given.get("full_layers", usual.full_layers),
        activation_offload=tuple(map(bool, given.get("activation_offload", usual.activation_offload))),
    )
    settled = settle_layout(strategy, model, layout)
    is_usual = strategy.schedule == Schedule.ONE_F_ONE_B and strategy.vocabulary == Vocabulary.ENDS
    if settled.layout is not None and not is_usual:
        raise SpecError(where, "stages that differ are costed in schedule 1f1b with vocabulary ends only.")
    return settled


# --- writing -----------------------------------------------------------------------------------------------


def layers_text(layers: Sequence[int]) -> str:
    """
    Write the layers of virtual stages as a sum; equal neighbours are counted.

    >>> layers_text([5, 6, 6, 6, 5, 4]), layers_text([8] * 4), layers_text([32])
    ('5+6x3+5+4', '8x4', '32')
    """
    runs = [(count, len(list(same))) for count, same in groupby(layers)]
    return "+".join(f"{count}x{times}" if times > 1 else str(count) for count, times in runs)


def layout_entries(strategy: Strategy, model: Model) -> dict[str, list[Any]]:
    """Write the stages of a strategy as in a job file: layers, and entries of ranks that differ from the decisions."""
    layout = stage_layout(strategy, model)
    usual = {
        "recompute": strategy.recompute,
        "full_layers": 0,
        "activation_offload": strategy.activation_offload,
    }
    unlike = {name: getattr(layout, name) for name, own in usual.items() if {*getattr(layout, name)} != {own}}
    return {"layers": list(layout.layers), **{name: _plain(name, values) for name, values in unlike.items()}}


def _plain(name: str, values: Sequence[int]) -> list[Any]:
    return [decision_text(name, value) if name == "recompute" else value for value in values]


def plain_decisions(strategy: Strategy) -> dict[str, Any]:
    """Write every decision of a strategy as in a job file."""
    return {name: plain_value(name, int(value)) for name, value in strategy.decisions().items()}


UNKNOWN = Framework(name="unknown", strategy={"sequence_parallel": True, "sharding": "optimizer"}, whole_experts=True)

"""Defaults of an unknown framework."""

ALWAYS_SAID = ("dp", "mbs", "sharding", "recompute", "cuda_graphs", *OVERLAPS)

"""
Decisions that make a strategy whole; with expert parallelism also ``token_dispatcher``.

A whole strategy gets the defaults of :func:`completed` for its other decisions. If one of these decisions is missing, a
search chooses it.
"""


def is_whole(given: StrategyFile) -> bool:
    """Tell whether a strategy is whole: its missing decisions have their defaults and are not open to a search."""
    is_sent = given.decisions.get("ep", 1) > 1
    return {*ALWAYS_SAID, *(("token_dispatcher",) if is_sent else ())} <= {*given.decisions}


def complete_strategy(facts: Facts, given: StrategyFile, max_devices: int | None = None) -> Strategy:
    """
    Complete some decisions to a whole strategy.

    ``dp`` takes the devices that the other degrees leave. ``group`` is ``pp`` with interleaved stages. Other degrees
    are 1. Features follow the framework's recipes (``planner catalog FRAMEWORK``), each only where it has an effect.
    Without recipes sequence parallelism is on and optimizer states are sharded. Stages are the given ones, or those
    that the framework makes.

    Parameters
    ----------
    facts
        Model, cluster and workload of the job.
    given
        Values by name, as :func:`planner.jobs.document.decision_value` returns them, and the given stages.
    max_devices
        Devices that ``dp`` may fill; default: all of them.

    Raises
    ------
    SpecError
        If the stages do not match this pipeline and model, or the strategy cannot be costed for this job.
    """
    framework = facts.cluster.framework or UNKNOWN
    defaults = _defaults(framework if framework.strategy else UNKNOWN, facts)
    degrees = _degrees(facts, given.decisions, framework, max_devices)
    chosen = {**dict.fromkeys(ENUMS, 0), **degrees, **_features(facts, degrees, defaults, given.decisions)}
    kinds: dict[str, Callable[[int], Any]] = {**ENUMS, **dict.fromkeys(FLAGS, bool)}
    whole = {**chosen, **given.decisions}
    strategy = Strategy(**{name: kinds.get(name, int)(whole[name]) for name in DECISIONS})
    require_cost(facts, strategy)
    layout = _deal_stages(facts, framework, strategy) if given.layout is None else given.layout
    return apply_layout(layout, strategy, facts.model)


def _defaults(framework: Framework, facts: Facts) -> dict[str, int]:
    """Return the decisions of the framework's recipes for the job's precision."""
    recipe = {**framework.strategy, **framework.strategy_by_precision.get(facts.workload.precision.name, {})}
    return decision_values(recipe, "cluster.framework.strategy")


def _degrees(facts: Facts, given: Mapping[str, int], framework: Framework, max_devices: int | None) -> dict[str, int]:
    degrees = {name: int(given.get(name, 1)) for name in ("tp", "cp", "pp", "ep", "etp", "vpp", "mbs")}
    if given.get("schedule") in V_SHAPED and "vpp" not in given:
        degrees["vpp"] = 2
    devices = facts.cluster.num_devices if max_devices is None else max_devices
    dp = int(given.get("dp", devices // (degrees["tp"] * degrees["cp"] * degrees["pp"])))
    if "etp" not in given and not framework.whole_experts:
        degrees["etp"] = _expert_tp(degrees, dp)
    return {**degrees, "dp": dp, "group": int(default_microbatch_group(pp=degrees["pp"], vpp=degrees["vpp"]))}


def _expert_tp(degrees: Mapping[str, int], dp: int) -> int:
    """Megatron-LM's default: experts are split like attention where the ranks of a stage hold such groups."""
    tp, ep = degrees["tp"], degrees["ep"]
    return 1 if ep == 1 or (tp * degrees["cp"] * dp) % (ep * tp) else tp


def _features(
    facts: Facts, degrees: Mapping[str, int], defaults: Mapping[str, int], given: Mapping[str, int]
) -> dict[str, int]:
    """Return the features that recipes switch on, each only where it has an effect."""
    tp, replicas = degrees["tp"], degrees["dp"] * degrees["cp"]
    sequence_parallel = tp > 1 and bool(defaults.get("sequence_parallel", False) or facts.model.has_experts)
    in_sequence = bool(given.get("sequence_parallel", sequence_parallel))
    interleaves = degrees["pp"] > 1 and degrees["vpp"] > 1
    useful = {
        "tp_overlap": tp > 1 and in_sequence,
        "cp_overlap": degrees["cp"] > 1 and facts.cluster.settings.cp_comm_type not in ("all_gather", "a2a"),
        "ep_overlap": degrees["ep"] > 1,
        "pp_overlap": interleaves,
        "dp_overlap": replicas > 1,
    }
    flags = {name: bool(defaults.get(name, False)) and does for name, does in useful.items()}
    if given.get("schedule") in V_SHAPED:
        flags["pp_overlap"] = interleaves
    return {
        **dict.fromkeys(FLAGS, 0),
        "sequence_parallel": sequence_parallel,
        "schedule": Schedule.ONE_F_ONE_B,
        "vocabulary": Vocabulary.ENDS,
        "sharding": Sharding(defaults.get("sharding", Sharding.NONE)) if replicas > 1 else Sharding.NONE,
        "recompute": Recompute(defaults.get("recompute", Recompute.NONE)),
        **flags,
    }


def _deal_stages(facts: Facts, framework: Framework, strategy: Strategy) -> Mapping[str, tuple[int, ...]]:
    """Return the framework's own stages of a pipeline whose first and last stage hold embedding and head."""
    if strategy.pp == 1 or strategy.vocabulary != Vocabulary.ENDS or strategy.schedule != Schedule.ONE_F_ONE_B:
        return AS_DEALT
    sizes = framework_stages(framework, facts.model.num_layers, strategy.pp * strategy.vpp)
    return {"layers": sizes} if sizes else AS_DEALT


# --- and back ----------------------------------------------------------------------------------------------
def strategy_entries(facts: Facts, strategy: Strategy) -> dict[str, Any]:
    """Write a strategy as a job file has it: every decision, and stages that differ from the framework's own."""
    decisions = plain_decisions(strategy)
    if strategy.layout is None and complete_strategy(facts, StrategyFile(decisions=strategy.decisions())) == strategy:
        return decisions
    return {**decisions, LAYOUT: layout_entries(strategy, facts.model)}


def require_cost(facts: Facts, strategy: Strategy) -> None:
    """
    Refuse a strategy that no formula covers.

    The rules forbid it as well, but a report of broken rules needs a cost.
    """
    num_devices, stage_devices = strategy.num_devices, strategy.tp * strategy.cp * strategy.dp
    if strategy.dp < 1:
        raise SpecError(
            "strategy.dp",
            f"nothing is left for it: tp * cp * pp = {strategy.tp * strategy.cp * strategy.pp} of "
            f"{facts.cluster.num_devices} devices.",
        )
    if num_devices > MAX_DEGREE:
        raise SpecError("strategy", f"takes {num_devices:.4g} devices, at most {MAX_DEGREE:.0e} are estimated.")
    if num_microbatches(facts.workload, dp=strategy.dp, mbs=strategy.mbs) < 1:
        raise SpecError(
            "strategy.mbs",
            f"dp * mbs = {strategy.dp * strategy.mbs} sequences are more than the global batch of "
            f"{facts.workload.global_batch_size}.",
        )
    if strategy.pp * strategy.vpp > facts.model.num_layers + 2:
        raise SpecError(
            "strategy.pp",
            f"pp * vpp = {strategy.pp * strategy.vpp} virtual stages are more than {facts.model.num_layers} layers, "
            f"embedding and head can fill.",
        )
    if strategy.ep * strategy.etp > stage_devices:
        raise SpecError(
            "strategy.ep",
            f"ep * etp = {strategy.ep * strategy.etp} ranks share experts, a pipeline stage has only tp * cp * dp = "
            f"{stage_devices}.",
        )


MONTH = re.compile(r"\d{4}-(0[1-9]|1[0-2])")

"""Form of the month in which an entry began."""


def require_sound(framework: Framework, where: str) -> None:
    """
    Refuse an entry with a name or value that nothing reads.

    Parameters
    ----------
    framework
        A framework with correct types.
    where
        Dotted path of the entry.

    Raises
    ------
    SpecError
        For the first unknown name or value.
    """
    if framework.since and not MONTH.fullmatch(framework.since):
        raise SpecError(f"{where}.since", f"expected a month such as '2026-04', got {shown(framework.since)}.")
    if framework.kernels_of is not None:
        require_one_of(framework.kernels_of, catalog.framework_names(), f"{where}.kernels_of", "no framework")
    for name, values in framework.features.items():
        require_one_of(name, DECISIONS, entry_path(f"{where}.features", name))
        for index, value in enumerate(values):
            _require_feature(name, value, f"{where}.features.{name}.{index}")
    for name, known in framework.setting_values.items():
        require_one_of(name, CHOOSABLE, entry_path(f"{where}.setting_values", name), "no setting with several values")
        for index, one in enumerate(known):
            read_value(name, one, f"{where}.setting_values.{name}.{index}")
    _require_recipes(framework, where)
    for key in framework.factors:  # a constant, of all architectures or of the one behind an @
        name, at, architecture = key.partition("@")
        place = entry_path(f"{where}.factors", key)
        require_one_of(name, (one.name for one in fields(Constants)), place, "no constant of a calibration")
        if at:
            require_one_of(architecture, catalog.architectures(), place, "no architecture")


def _require_feature(name: str, value: str, where: str) -> None:
    """
    Refuse a value that features cannot have.

    Allowed are a name, true or false, a number or any above 1, and a set of modules or any set.
    """
    if (value == MODULES and name in MODULES_OF) or (value == MANY and name not in (*ENUMS, *FLAGS)):
        return
    if name in FLAGS:
        require_one_of(value, ("true", "false"), where, f"no value of {name}")
    elif name in ENUMS and name not in MODULES_OF:
        require_one_of(value, (member.text for member in ENUMS[name]), where, f"no value of {name}")
    else:
        decision_value(name, int(value) if value.isdecimal() else value, where)


# --- recipes -----------------------------------------------------------------------------------------------
def _require_recipes(framework: Framework, where: str) -> None:
    """Refuse unknown precisions, and unknown decisions of their recipes."""
    _require_precision(framework.precision, f"{where}.precision")
    for name in framework.settings_by_precision:
        _require_precision(name, entry_path(f"{where}.settings_by_precision", name))
    _require_strategy(framework.strategy, f"{where}.strategy")
    for name, decisions in framework.strategy_by_precision.items():
        place = entry_path(f"{where}.strategy_by_precision", name)
        _require_precision(name, place)
        _require_strategy(decisions, place)
    if framework.recompute_if_needed is not None:
        decision_value("recompute", framework.recompute_if_needed, f"{where}.recompute_if_needed")


def _require_precision(name: str, where: str) -> None:
    require_one_of(name, catalog.precisions(), where, "no precision")


def _require_strategy(decisions: Mapping[str, bool | int | str], where: str) -> None:
    for name, value in decisions.items():
        require_one_of(name, DECISIONS, entry_path(where, name))
        decision_value(name, value, f"{where}.{name}")


# --- what a job asks for -----------------------------------------------------------------------------------
def require_features(cluster: Cluster, decisions: Mapping[str, int | tuple[int, ...]], where: str) -> None:
    """
    Refuse values of decisions that the cluster's framework lacks.

    Parameters
    ----------
    cluster
        The cluster that the job runs on.
    decisions
        One value by decision, or several of which the framework must have one.
    where
        Dotted path of the entry that gives them.

    Raises
    ------
    SpecError
        With the frameworks that have the feature.
    """
    framework = cluster.framework
    if framework is None:
        return
    for name, given in decisions.items():
        values = given if isinstance(given, tuple) else (given,)
        if all(lacks(framework, name, value) for value in values):
            text = decision_text(name, values[0])
            if name in find_absent_features(cluster.device):
                device = cluster.device
                kind = "the host's own processors" if device.host_link == "none" else f"of {device.silicon.name}"
                why = "Its host_link is 'none'." if device.host_link == "none" else "Only CUDA and ROCm have graphs."
                problem = f"there is no {name} '{text}' on {device.name}, {kind}."
                raise SpecError(f"{where}.{name}", problem, f"{why} {ALL_THE_SAME}")
            having = catalog.releases_with_feature(name, feature_of(name, values[0]))
            hint = f"These have it: {', '.join(having)} (cluster.framework). {ALL_THE_SAME}" if having else ALL_THE_SAME
            raise SpecError(f"{where}.{name}", f"{framework.name} has no {name} '{text}'.", hint)
