"""Parts that all targets share: options for each decision and setting, refusals, and the files of an export."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import field, fields
from typing import TYPE_CHECKING, Any, TypeAlias

from constraints.rules.exports import EXPORTS
from constraints.targets import effective_settings, require_expressible
from costmodel.errors import SpecError, did_you_mean
from costmodel.facts.framework import Settings
from costmodel.facts.model import Model
from costmodel.models.numerics import NAMES
from costmodel.record import record
from costmodel.strategy import CudaGraphs, Strategy
from costmodel.validation import shown

if TYPE_CHECKING:
    from planner.results import Plan


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
        Environment variables that every process needs, besides those that the files set themselves.
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
        True where the main file holds options, quoted for a shell, that come after the words.
    todo
        Part that the user has to provide.
    """

    words: tuple[str, ...]
    launcher: str = "torchrun"
    has_options: bool = False
    todo: str = ""


Entries: TypeAlias = dict[str, Any]

"""Options of a target with their values."""

OptionsOf: TypeAlias = "Callable[[Plan, Any], Entries]"

"""A function that returns the options of a plan for one field of the strategy or of the settings, and its value."""

Write: TypeAlias = "str | Mapping[Any, Entries] | OptionsOf"

"""Option that takes the value of a field, options by value, or a function of both."""

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

    write: Write
    read: str | Reader | None = None

    def value(self, options: Entries, known: Known, notes: list[str]) -> Any:
        """Read the value of the field; None where the options do not say it."""
        read = self.read or (self.write if isinstance(self.write, str) else None)
        return options.get(read, 1) if isinstance(read, str) else read(options, known, notes) if read else None


def reads_switch(option: str) -> Reader:
    """Return a reader of a field that is true where a target's switch is given."""
    return lambda options, known, notes: option in options


FIELDS = (*(one.name for one in fields(Strategy)), *(f"settings.{one.name}" for one in fields(Settings)))

"""Decisions and settings that every target must express or refuse."""

OF_OTHERS = frozenset(
    f"settings.{name}"
    for names in (
        ("allocator", "launches", "host_threads"),  # variables of the environment
        ("mtp_layers", "kernels", "attention", "loss", "loss_chunks"),  # the user's own model, told by a note
        ("muon_tp_mode", "muon_num_ns_steps"),  # refused with Muon
    )
    for name in names
)

"""Settings that the options of a target need not have."""

NO_NAME = re.compile(r"[^\w .,:+()-]")

"""Characters that could end a comment or a text."""


def switch(*options: str) -> Mapping[Any, Entries]:
    """Return the options of a field that take no value; without them the field is false."""
    return {True: dict.fromkeys(options, True), False: {}}


def write_entries(plan: Plan, target: str, table: Mapping[str, Write]) -> Entries:
    """
    Write all options of a target for the strategy and the settings of a plan.

    Parameters
    ----------
    plan
        The plan.
    target
        The target.
    table
        Options of each field that has some; the target's rules refuse other values, or another file or the user's own
        code has them.

    Raises
    ------
    SpecError
        If it refuses the precision, the model or fields: names all of them, with the reasons.
    """
    require_expressible(plan.facts, plan.strategy, target)
    forgotten = {*FIELDS} - {*table, *EXPORTS[target].fields} - OF_OTHERS
    assert not forgotten, f"{target} has no entry for {sorted(forgotten)}"
    effective, entries = effective_settings(plan.facts, plan.strategy), Entries()
    for name in FIELDS:
        section, _, setting = name.rpartition(".")
        value, write = getattr(effective if section else plan.strategy, setting), table.get(name)
        if not write:
            continue
        one = (
            {write: value}
            if isinstance(write, str)
            else write[value]
            if isinstance(write, Mapping)
            else write(plan, value)
        )
        doubled = [option for option in one.keys() & entries.keys() if one[option] != entries[option]]
        assert not doubled, f"two fields of a plan say different things of {doubled}"
        entries |= one
    return entries


def num_sharing_groups(plan: Plan) -> int:
    """Return the number of groups of data-parallel ranks that share optimizer states each."""
    group, ranks = effective_settings(plan.facts, plan.strategy).optimizer_group, plan.strategy.dp * plan.strategy.cp
    return ranks // group if isinstance(group, int) else 1


def variables(plan: Plan) -> dict[str, str]:
    """Environment variables that processes of every target need."""
    settings = effective_settings(plan.facts, plan.strategy)
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
    settings = effective_settings(plan.facts, plan.strategy)
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
def num_microbatches(plan: Plan) -> int:
    """Micro-batches per pipeline and step."""
    return plan.facts.workload.global_batch_size // (plan.strategy.dp * plan.strategy.mbs)


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
