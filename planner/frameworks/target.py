"""Parts that all targets share: options for each decision and setting, refusals, and the files of an export."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import field, fields, replace
from math import inf
from typing import Any, Protocol, TypeAlias

from costmodel import catalog
from costmodel.errors import SpecError, did_you_mean
from costmodel.facts.device import Cluster
from costmodel.facts.fields import NARROW
from costmodel.facts.framework import OptimizerOffload, Settings
from costmodel.facts.model import Model
from costmodel.lowering.framework import MUON, NARROW_WEIGHTS, OF_MUON, loss_of, storage_precision
from costmodel.models.numerics import NAMES
from costmodel.record import record
from costmodel.strategy import CudaGraphs, Decision, Sharding, StageLayout, Strategy, TokenDispatcher
from costmodel.tables import Facts
from costmodel.validation import shown
from planner.jobs.checkpoints import CheckpointSchedule
from planner.uncertainty.intervals import Interval


class Chosen(Protocol):
    """Strategy for a job, without its costs."""

    @property
    def facts(self) -> Facts:
        """Model, workload and cluster."""

    @property
    def cluster(self) -> Cluster:
        """Cluster that it uses."""

    @property
    def strategy(self) -> Strategy:
        """Strategy that was chosen."""


class Plan(Chosen, Protocol):
    """Strategy for a job with its predicted costs and checkpoints."""

    @property
    def schedule(self) -> CheckpointSchedule:
        """Checkpoint interval and length of the training."""

    @property
    def checkpoint_seconds(self) -> float:
        """Training time that is lost per checkpoint, in seconds."""

    @property
    def write_seconds(self) -> float:
        """Time in seconds to write a checkpoint while training goes on; 0 where training waits."""

    @property
    def kept_checkpoints(self) -> int | None:
        """Number of newest checkpoints that are kept; None: all."""

    @property
    def step_seconds(self) -> float:
        """Time of one optimizer step, in seconds."""

    @property
    def mfu(self) -> float:
        """Model FLOPs over the peak that the job's conventions name."""

    @property
    def interval(self) -> Interval:
        """Interval in which the measured step time is expected."""

    @property
    def headroom_bytes(self) -> float:
        """Free memory of the fullest rank, in bytes; negative where the plan does not fit."""


def name_of_costed_release(plan: Plan) -> str:
    """Name of the release that a plan is costed with, as the job has it; empty where the job names none."""
    cluster = plan.cluster
    return cluster.unknown_release or (cluster.framework.name if cluster.framework else "")


@record(frozen=True, kw_only=True, slots=True)
class Export:
    """
    Files of a target that start a plan.

    Parameters
    ----------
    target
        Its name as it is written, such as DeepSpeed.
    files
        Texts by file name; the first one is the main one.
    environment
        Environment variables that every process needs, beside those that the files set themselves.
    notes
        Notes for the user of the files, such as choices that the target makes by itself.
    program
        Program of every process, where it is not the target's ``PROGRAM``.
    version
        Release of the target that the files are for, of ``VERSIONS`` of its module.
    """

    target: str
    files: Mapping[str, str]
    environment: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    program: Program | None = None
    version: str = ""


@record(frozen=True, kw_only=True, slots=True)
class Program:
    """
    Program that every process of a target runs.

    Parameters
    ----------
    words
        Its words; ``{file}`` is the main file of the export, ``{module}`` that without its suffix, ``{mbs}`` the
        sequences per micro-batch.
    launcher
        Launcher of the processes of a node: ``torchrun`` or ``accelerate``.
    has_options
        True where the main file holds options, quoted for a shell, that come behind the words.
    todo
        Part that the user has to provide.
    """

    words: tuple[str, ...]
    launcher: str = "torchrun"
    has_options: bool = False
    todo: str = ""


@record(frozen=True, slots=True)
class Unsupported:
    """Reason why a target cannot express the value of a decision or setting: one sentence with its source."""

    reason: str


Entries: TypeAlias = dict[str, Any]

"""Options of a target with their values."""

OptionsOf: TypeAlias = Callable[[Plan], Entries | Unsupported]

"""A function that returns the options of a target for one field of a strategy or of the settings."""


@record(frozen=True, slots=True)
class Choice:
    """
    Options of a target that has some values of a field.

    Parameters
    ----------
    options
        Options of each value.
    reason
        Reason why any other value is refused: one sentence with its source.
    """

    options: Mapping[Any, Entries]
    reason: str = ""


FieldOptions: TypeAlias = str | Choice | OptionsOf

"""Answer of a target for a field: the option that takes its value, options by value, or a function of the plan."""

Known: TypeAlias = Mapping[str, Any]

"""Values of fields that were read before, by name, and the ``model``."""

Reader: TypeAlias = Callable[[Entries, Known, list[str]], Any]

"""A function that reads a field from the options of a target; it may add notes. None: they do not say it."""


@record(frozen=True, slots=True)
class Entry:
    """
    Both directions of a field of a strategy or of the settings.

    Parameters
    ----------
    write
        Its options.
    read
        Option that has its value, 1 without it, or a function; None: the option of ``write``, or it is not read.
    """

    write: FieldOptions
    read: str | Reader | None = None

    def value(self, options: Entries, known: Known, notes: list[str]) -> Any:
        """Read the value of the field; None where the options do not say it."""
        read = self.read or (self.write if isinstance(self.write, str) else None)
        return options.get(read, 1) if isinstance(read, str) else read(options, known, notes) if read else None


def reads_switch(option: str) -> Reader:
    """Return a reader of a field that is true where a target's switch is given."""
    return lambda options, known, notes: option in options


@record(frozen=True, kw_only=True, slots=True)
class Answers:
    """
    Answers of a target for every field of a plan.

    Parameters
    ----------
    target
        Its name as it is written.
    decisions, settings
        Answers for every field of :class:`costmodel.strategy.Strategy` and of
        :class:`costmodel.facts.framework.Settings`.
    require_job
        Function that refuses models and precisions that the target does not have, whatever the strategy.
    """

    target: str
    decisions: Mapping[str, FieldOptions]
    settings: Mapping[str, FieldOptions]
    require_job: Callable[[Plan], object]


EVERY_FIELD = frozenset(one.name for one in fields(Strategy))

"""Decisions that every target must express or refuse."""

EVERY_SETTING = frozenset(one.name for one in fields(Settings))

"""Settings that every target must express or refuse."""

NO_NAME = re.compile(r"[^\w .,:+()-]")

"""Characters that could end a comment or a text."""

HINT = "Plan again for it (search.target), or with search.pin, search.allow or search.forbid keeping to what it can."

SETTINGS_HINT = "Plan again with other settings; what the job does not say is as cluster.framework has it{known}."


def only(value: object, reason: str) -> Choice:
    """Return the answer of a target that has one value only, and no option for it."""
    return Choice({value: {}}, reason)


def switch(*options: str) -> Choice:
    """Return the answer of a target with options that take no value; without them the field is false."""
    return Choice({True: dict.fromkeys(options, True), False: {}})


def no_options(plan: Plan) -> Entries:
    """Return no options: another file, the environment or the user's own code has the setting."""
    return {}


def entries_of(
    plan: Plan, target: str, decisions: Mapping[str, FieldOptions], settings: Mapping[str, FieldOptions]
) -> Entries:
    """
    Collect all options of a target for the strategy and the settings of a plan.

    Parameters
    ----------
    plan
        The plan.
    target
        The target's name, for messages.
    decisions
        Answers for every field of :class:`costmodel.strategy.Strategy`.
    settings
        Answers for every field of :class:`costmodel.facts.framework.Settings`.

    Raises
    ------
    SpecError
        If it refuses fields: names all of them, with the reasons.
    """
    assert decisions.keys() == EVERY_FIELD, f"{target} has no entry for {sorted(EVERY_FIELD ^ decisions.keys())}"
    assert settings.keys() == EVERY_SETTING, f"{target} has no entry for {sorted(EVERY_SETTING ^ settings.keys())}"
    found = _every_answer(plan, decisions, settings)
    refused = {name: one.reason for name, one in found.items() if isinstance(one, Unsupported)}
    if refused:
        lines = list_refusals(plan, refused)
        raise SpecError("strategy", f"{target} cannot express this plan:{lines}\n{_hint(plan, refused)}")
    entries: Entries = {}
    for one in found.values():
        assert isinstance(one, dict)
        doubled = [name for name in one.keys() & entries.keys() if one[name] != entries[name]]
        assert not doubled, f"two fields of a plan say different things of {doubled}"
        entries |= one
    return entries


def refusals(plan: Plan, answers: Answers) -> dict[str, str]:
    """Return reasons by field that a target refuses of a plan: decisions by name, settings as ``settings.<name>``."""
    found = _every_answer(plan, answers.decisions, answers.settings)
    return {name: one.reason for name, one in found.items() if isinstance(one, Unsupported)}


def list_refusals(plan: Plan, refused: Mapping[str, str]) -> str:
    """List the refused fields of a plan, a line each, with value and reason."""
    values = _values(plan)
    return "".join(f"\n  - {name} = {_spell(values[name])}: {reason}" for name, reason in refused.items())


def _values(plan: Plan) -> dict[str, Any]:
    effective = effective_settings(plan)
    values = {one.name: getattr(plan.strategy, one.name) for one in fields(Strategy)}
    return values | {f"settings.{one.name}": getattr(effective, one.name) for one in fields(Settings)}


def _every_answer(
    plan: Plan, decisions: Mapping[str, FieldOptions], settings: Mapping[str, FieldOptions]
) -> dict[str, Entries | Unsupported]:
    answers = {**decisions, **{f"settings.{name}": answer for name, answer in settings.items()}}
    return {name: _answer_options(plan, answers[name], value) for name, value in _values(plan).items()}


def _answer_options(plan: Plan, answer: FieldOptions, value: Any) -> Entries | Unsupported:
    if isinstance(answer, str):
        return {answer: value}
    if isinstance(answer, Choice):
        return answer.options[value] if value in answer.options else Unsupported(answer.reason)
    return answer(plan)


def _hint(plan: Plan, refused: Collection[str]) -> str:
    framework = plan.cluster.framework
    other = SETTINGS_HINT.format(known="" if framework is None else f" ({framework.name})")
    of_settings = [name for name in refused if "." in name]
    return " ".join([HINT] * (len(refused) > len(of_settings)) + [other] * bool(of_settings))


def _spell(value: object) -> str:
    """Spell a decision as job files do."""
    if isinstance(value, StageLayout):
        return "its own stages"
    return value.text if isinstance(value, Decision) else str(value).lower()


# --- settings of the framework ---------------------------------------------------------------------------

IN_16_BITS: Mapping[str, Any] = {"first_layers_bf16": 0, "last_layers_bf16": 0, "fp8_attention": False}
"""Settings of a job whose layers all compute in 16 bits."""


def effective_settings(plan: Plan) -> Settings:
    """
    Complete the settings of a plan.

    Missing settings have the defaults of the formulas, settings without effect the defaults of ``Settings``. 8-bit
    weights count in 8-bit recipes only, numbers of SMs with a dispatcher of its own kernels, and 16-bit gradients are
    those of the recipe. Settings of optimizer offload count where states are offloaded, those of Muon with it, and
    threads where they are fewer than the cores.
    """
    cluster, strategy, precision = plan.cluster, plan.strategy, plan.facts.workload.precision
    device = cluster.device
    defaults = Settings(
        gradient_dtype="fp32",
        weight_dtype="recipe",
        moments_dtype="fp32",
        fp8_param_gather=False,
        first_layers_bf16=0,
        last_layers_bf16=0,
        fp8_attention=False,
        shared_expert_overlap=device.behaviour.communication.shared_expert_overlap,
        delay_wgrad=False,
        communication_sms=device.behaviour.communication.communication_sms,
        cp_comm_type=device.behaviour.communication.cp_comm_type,
        optimizer_group=device.behaviour.optimizer.sharding_ranks or "all",
        optimizer="adam",
        muon_tp_mode=device.behaviour.optimizer.muon_tp_mode,
        muon_num_ns_steps=device.behaviour.optimizer.muon_num_ns_steps,
        kernels="fused" if device.behaviour.kernels.fused_kernels else "eager",
        attention="flash" if device.behaviour.kernels.fused_attention else "unfused",
        loss=loss_of(device.behaviour.memory),
        loss_chunks=device.behaviour.memory.loss_chunks,
        allocator=device.behaviour.memory.allocator,
        launches="blocking" if device.behaviour.host.launch_blocking else "asynchronous",
        composition="step",
    )
    whole = replace(cluster.settings.over(defaults), mtp_layers=len(plan.facts.model.mtp_layers))
    group, layers = whole.optimizer_group, whole.offloaded_layers
    is_one_group = (
        strategy.sharding == Sharding.NONE or not isinstance(group, int) or group >= strategy.dp * strategy.cp
    )
    every = not strategy.activation_offload or (layers or 0) >= plan.facts.model.num_layers
    is_half = precision.compute == "fp16" and whole.gradient_dtype == "bf16"
    return replace(
        whole,
        gradient_dtype="fp16" if is_half else whole.gradient_dtype,
        fp8_param_gather=bool(whole.fp8_param_gather) and precision.compute in NARROW_WEIGHTS,
        shared_expert_overlap=bool(whole.shared_expert_overlap) and plan.facts.model.has_shared_experts,
        communication_sms=whole.communication_sms if strategy.token_dispatcher > TokenDispatcher.ALLTOALL else None,
        cp_comm_type=whole.cp_comm_type if strategy.cp > 1 else None,
        cp_a2a_ranks=device.behaviour.communication.cp_a2a_ranks if strategy.cp > 1 else None,
        offloaded_layers=None if every else layers,
        optimizer_group="all" if is_one_group else group,
        **({} if whole.optimizer in MUON else dict.fromkeys(OF_MUON)),
        **({} if precision.compute in NARROW else IN_16_BITS),
        **_offload_settings(plan),
    )


def find_unused_entries(plan: Plan, document: Mapping[str, Any]) -> list[str]:
    """
    Find the entries of a job that its plan has no use for: settings, and packed sequences that fill a sample.

    Settings with several values are left out, as reports name the chosen one.
    """
    used, training = effective_settings(plan), document.get("training") or {}
    given = {name: value for name, value in (document.get("settings") or {}).items() if not isinstance(value, list)}
    own = {name: getattr(plan.cluster.settings, name) for name in given if given[name] != "any"}
    own.pop("gradient_dtype", None)  # 16 bits are those of the recipe
    strategy = plan.strategy
    if max(strategy.tp, strategy.etp) == 1 and strategy.sharding < Sharding.GRADIENTS:
        used = replace(used, muon_tp_mode=None)  # each rank has whole matrices
    unused = [f"settings.{name}" for name, value in own.items() if value and value != getattr(used, name)]
    if training.get("sequence_lengths") and plan.facts.workload.lengths is None:
        unused.append("training.sequence_lengths")
    return unused


def _offload_settings(plan: Plan) -> dict[str, Any]:
    device = plan.cluster.device
    offload = device.behaviour.offload if plan.strategy.optimizer_offload else OptimizerOffload()
    cores = device.host_processors.threads or inf
    every = offload.host_threads is None or offload.host_threads >= cores
    return {
        "offloaded_states": offload.offloaded_states,
        "offloaded_masters": offload.offloaded_masters,
        "offload_overlap": offload.offload_overlap,
        "host_threads": None if every else offload.host_threads,
    }


def num_sharing_groups(plan: Plan) -> int | None:
    """
    Number of groups of data-parallel ranks that share optimizer states each.

    None where groups differ in size, or separate ranks of one context-parallel group.
    """
    group, ranks = effective_settings(plan).optimizer_group, plan.strategy.dp * plan.strategy.cp
    if not isinstance(group, int):
        return 1
    return None if ranks % group or group % plan.strategy.cp else ranks // group


def hybrid_sharding(plan: Plan) -> Entries | Unsupported:
    """Answer of FSDP2's targets for groups that share states: the degrees of data parallelism express them."""
    if num_sharing_groups(plan) is None:
        return Unsupported(
            "Groups hold equally many replicas with all of their context-parallel ranks (a device mesh)."
        )
    return {}


def require_precision(plan: Plan, known: Collection[str], problem: str, hint: str = "Plan with {known}.") -> str:
    """
    Return the name of a plan's precision, or refuse one that the target does not have.

    Parameters
    ----------
    plan
        The plan.
    known
        Names that the target has, with the bytes that the catalog gives them.
    problem
        Message for any other one, with ``{name}``, and with ``{own}`` where it differs from the catalog in its bytes.
    hint
        Hint of the message, with the ``{known}`` ones.

    Raises
    ------
    SpecError
        If the target does not have it.
    """
    name = plan.facts.workload.precision.name
    if name in known and not _has_own_bytes(plan):
        return name
    own = " with bytes of its own" if name in known else ""
    raise SpecError("training.precision", problem.format(name=name, own=own), hint.format(known=" or ".join(known)))


def _has_own_bytes(plan: Plan) -> bool:
    """Tell whether a precision differs from the catalog's of its name, with the bytes that follow from the settings."""
    precision = plan.facts.workload.precision
    if precision.name not in catalog.precisions():
        return True
    return storage_precision(catalog.precision(precision.name), plan.cluster.settings) != precision


def variables(plan: Plan) -> dict[str, str]:
    """Environment variables that processes of every target need."""
    settings = effective_settings(plan)
    found = {"CUDA_LAUNCH_BLOCKING": "1"} if settings.launches == "blocking" else {}
    if settings.allocator == "expandable":
        found |= EXPANDABLE
        if plan.strategy.cuda_graphs != CudaGraphs.NONE:
            found |= BESIDE_GRAPHS
    threads = settings.host_threads or plan.cluster.device.host_processors.threads
    if plan.strategy.optimizer_offload and threads is not None:
        found |= {"OMP_NUM_THREADS": str(threads)}  # torchrun's own number is 1
    return found


EXPANDABLE = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}

BESIDE_GRAPHS = {"NCCL_GRAPH_REGISTER": "0"}

"""Variable that Megatron-Core requires with both (0.16.1, ``megatron/core/transformer/cuda_graphs.py:1415,1683``)."""

MODELS_OWN: dict[str, FieldOptions] = dict.fromkeys(
    ("mtp_layers", "kernels", "attention", "loss", "loss_chunks"), no_options
)

"""Settings that the code of the user's own model decides, not the target; :func:`model_notes` lists them."""

OFFLOADS_WHOLE = "Optimizer states alone do not leave the device."

NO_STEP = "A sum of layers profiled one by one is not a step that can be run."

LEFT_TO_THE_MODEL = "Counted with {what}: that is your model's code, which {target} does not choose."


def model_line(model: Model) -> str:
    """Describe in a line the facts of a model that the training script must build."""
    numerics, rotary = model.numerics, model.numerics.rotary
    said = {
        NAMES["norm_epsilon"]: numerics.norm_epsilon,
        NAMES["initializer_range"]: numerics.initializer_range,
        NAMES["attention_dropout"]: numerics.attention_dropout,
        NAMES["hidden_dropout"]: numerics.hidden_dropout,
        **({} if model.learned_positions or model.has_single_blocks else {NAMES["base"]: rotary and rotary.base}),
    }
    texts = (f"{name} = {'not known' if value is None else f'{value:g}'}" for name, value in said.items())
    scaled = f", rope_scaling = {rotary.scaling}" if rotary is not None and rotary.scaling != "default" else ""
    return f"build the model in the training script: {', '.join(texts)}{scaled}"


def model_notes(plan: Plan, target: str, *, writes_loss: bool = False) -> list[str]:
    """Return notes on costs of a plan that depend on the code of the user's own model, or on its own loss."""
    settings = effective_settings(plan)
    counted = {
        "norms and activations of several kernels each": settings.kernels == "eager",
        "attention that is not one kernel": settings.attention == "unfused",
        "Transformer Engine's fused loss on 16-bit logits": settings.loss == "fused",
        "a compiled loss": settings.loss == "compiled",
        f"logits in {settings.loss_chunks} chunks": settings.loss_chunks != 1 and not writes_loss,
        f"{settings.mtp_layers} layers of multi-token prediction": bool(settings.mtp_layers),
    }
    return [LEFT_TO_THE_MODEL.format(what=what, target=target) for what, is_so in counted.items() if is_so]


def require_version(version: str | None, target: str, known: Collection[str]) -> None:
    """
    Refuse a release of a framework that an export does not know; None is the release that it is written for.

    Raises
    ------
    SpecError
        If it is not known; the message lists the known ones.
    """
    if version is None or version in known:
        return
    those = f"Known: {', '.join(known)}."
    nearest = did_you_mean(version, known)
    hint = those if nearest == those else f"{nearest} {those}"
    raise SpecError("framework-version", f"{shown(version)} is no version of {target} that exports know.", hint)


TODO = "TODO: {}."

"""Line of a file for a value that the user has to fill in."""


def write_comments(lines: Iterable[str]) -> str:
    """Write lines as comments of a shell, of YAML and of Python; line breaks inside a name become blanks."""
    return "".join(f"# {' '.join(line.split())}\n" for line in lines)


# --- texts -------------------------------------------------------------------------------------------------
def num_microbatches(plan: Plan) -> int | None:
    """Micro-batches per pipeline and step; None where the batch is no multiple of them."""
    each = plan.strategy.dp * plan.strategy.mbs
    batch = plan.facts.workload.global_batch_size
    return None if batch % each else batch // each


def checkpoints(plan: Plan) -> str:
    """Return a note on the checkpoint interval of a plan."""
    wait = f"training waits {plan.checkpoint_seconds:.3g} s for each"
    writing = (
        f"; it is on storage after {plan.write_seconds:.3g} s, while training goes on" if plan.write_seconds else ""
    )
    kept = f", of which the newest {plan.kept_checkpoints} are kept" if plan.kept_checkpoints else ""
    return f"A checkpoint every {plan.schedule.interval_steps} steps{kept}, where {wait}{writing}."


def subject(plan: Plan) -> str:
    """Return model, devices and predicted step in a line that is safe as a comment, whatever the names are."""
    model, device = (NO_NAME.sub("?", name) for name in (plan.facts.model.name, plan.cluster.device.name))
    return f"{model} on {plan.strategy.num_devices:,} x {device}, {plan.step_seconds:.3f} s per step as predicted"
