"""Import of arguments of training scripts in the style of Hugging Face's Trainer, which complete a configuration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from costmodel.errors import SpecError
from costmodel.record import record
from costmodel.validation import shown
from planner.frameworks.imports.named import model_named
from planner.frameworks.shell.text import unknown_names

MODEL = ("--model_name_or_path", "--model_name", "--model", "--config_name", "--model-name-or-path")
LENGTH = (
    *("--max_seq_length", "--max_seq_len", "--max_length", "--model_max_length", "--block_size"),
    *("--cutoff_len", "--seq_length", "--seq_len", "--sequence_length"),
)
MICRO_BATCH = ("--per_device_train_batch_size", "--per-device-train-batch-size", "--micro_batch_size")
ACCUMULATION = ("--gradient_accumulation_steps", "--gradient-accumulation-steps")
STEPS = ("--max_steps", "--max_train_steps")
RECOMPUTE = ("--gradient_checkpointing", "--gradient-checkpointing")
TRUE, FALSE = ("", "true", "1", "yes"), ("false", "0", "no")


@record(frozen=True, slots=True)
class Trainer:
    """
    Arguments of a training script; None: not given.

    Parameters
    ----------
    model
        Entry ``model`` of a job.
    sequence_length, micro_batch, accumulation, steps
        Tokens of a sequence, sequences per device and micro-batch, micro-batches per step, and steps.
    half
        ``bf16`` or ``fp16``.
    recomputes
        True where all layers are recomputed.
    """

    model: Any = None
    sequence_length: int | None = None
    micro_batch: int | None = None
    accumulation: int | None = None
    steps: int | None = None
    half: str | None = None
    recomputes: bool | None = None

    def document(self) -> dict[str, Any]:
        """Return entries of a job."""
        model = {} if self.model is None else {"model": self.model}
        length = {} if self.sequence_length is None else {"sequence_length": self.sequence_length}
        return {**model, "training": length}


def trainer_of(words: Sequence[str]) -> Trainer:
    """
    Read the arguments of a script.

    >>> trainer_of(["--model_name_or_path", "Qwen/Qwen3-8B", "--bf16", "True", "--max_seq_length=4096"])
    Trainer(model='qwen3-8b', sequence_length=4096, micro_batch=None, accumulation=None, steps=None, half='bf16', \
recomputes=None)

    Raises
    ------
    SpecError
        If a number is invalid, or unknown.
    """
    given: dict[str, str] = {}
    for place, word in enumerate(words):
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            following = words[place + 1] if place + 1 < len(words) else ""
            given[name] = value if equals else "" if following.startswith("--") else following
    model = next((given[option] for option in MODEL if option in given), None)
    halves = [half for half in ("bf16", "fp16") if _is_true(given, (f"--{half}",))]
    mixed = given.get("--mixed_precision")
    return Trainer(
        model=None if model is None else model_named(model),
        sequence_length=_number(given, LENGTH),
        micro_batch=_number(given, MICRO_BATCH),
        accumulation=_number(given, ACCUMULATION),
        steps=_number(given, STEPS),
        half=halves[0] if halves else mixed if mixed in ("bf16", "fp16") else None,
        recomputes=_is_true(given, RECOMPUTE) if any(option in given for option in RECOMPUTE) else None,
    )


def _is_true(given: dict[str, str], options: Sequence[str]) -> bool:
    for option in options:
        if option in given:
            return given[option].lower() not in FALSE
    return False


def _number(given: dict[str, str], options: Sequence[str]) -> int | None:
    for option in options:
        text = given.get(option)
        if text is None or text.startswith("-"):
            continue
        names = unknown_names(text)
        if names:
            raise SpecError(option, f"is ${names[0]}, which the script leaves open.", f"Add --set {names[0]}=VALUE.")
        if not text.isdecimal():
            raise SpecError(option, f"expected a whole number, got {shown(text)}.")
        return int(text)
    return None
