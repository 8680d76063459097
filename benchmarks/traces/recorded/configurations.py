"""Small transformers whose steps are recorded: on one rank, two data-parallel ones, or a pipeline of two."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Literal

import yaml

from benchmarks.small_transformers.configurations import Configuration, job_of
from costmodel.errors import SpecError
from costmodel.facts.fields import Count
from costmodel.record import strict_record
from costmodel.validation import build

FILE = Path(__file__).parent / "configurations.yaml"

MOST_RANKS = 2
"""Most ranks of a configuration: each needs a core."""

BUCKET_MB = 4.0
"""
Gradients that DistributedDataParallel reduces at once.

By default 25 MiB, which is more than all gradients of such small models: they would be one bucket, reduced behind the
backward pass, and nothing would overlap.
"""


@strict_record(frozen=True, kw_only=True, slots=True)
class TracedConfiguration(Configuration):
    """
    A transformer, how its step is spread over ranks, and how it is recorded.

    Parameters
    ----------
    pp
        Stages of the pipeline, a process each; layers are split evenly, the embedding is on the first one, the head
        on the last.
    optimizer
        AdamW as one kernel (``fused``), or one of each operation over lists of tensors (``foreach``).
    annotations
        Annotations of the training loop: ``all`` (steps, phases and layers of the forward pass), ``steps``
        (``ProfilerStep#`` alone) or ``none``.
    """

    pp: Count = 1
    optimizer: Literal["fused", "foreach"] = "fused"
    annotations: Literal["all", "steps", "none"] = "all"

    @property
    def num_ranks(self) -> int:
        """Processes."""
        return self.dp * self.pp

    @property
    def layers_per_stage(self) -> int:
        """Layers of each rank."""
        return self.num_layers // self.pp

    def layers_of(self, stage: int) -> range:
        """Indices of the layers that a stage has."""
        return range(stage * self.layers_per_stage, (stage + 1) * self.layers_per_stage)


def traced_configurations(path: Path = FILE) -> tuple[TracedConfiguration, ...]:
    """
    All configurations of a file.

    Raises
    ------
    SpecError
        If one of them is wrong or appears twice.
    """
    entries = yaml.safe_load(path.read_text(encoding="utf-8"))
    found = tuple(build(TracedConfiguration, one, f"{path.name}.{number}") for number, one in enumerate(entries))
    for one in found:
        _require_possible(one)
    twice = [name for name, number in Counter(one.name for one in found).items() if number > 1]
    if twice:
        raise SpecError(path.name, f"has {', '.join(twice)} twice.")
    return found


def _require_possible(one: TracedConfiguration) -> None:
    if one.hidden_size % one.num_heads or one.head_dim % 2 or one.num_heads % one.num_kv_heads:
        raise SpecError(f"{one.name}.num_heads", "heads must divide the width, key-value heads the heads.")
    if one.num_ranks > MOST_RANKS:
        raise SpecError(f"{one.name}.pp", f"makes {one.num_ranks} ranks with dp = {one.dp}, of at most {MOST_RANKS}.")
    if one.num_layers % one.pp:
        raise SpecError(f"{one.name}.pp", f"must divide the {one.num_layers} layers, got {one.pp}.")
    if one.num_experts or one.recompute != "none":
        raise SpecError(one.name, "experts and recomputation are not recorded.")


def traced_job_of(one: TracedConfiguration, device: str, *, precision: str = "fp32") -> dict[str, Any]:
    """
    The job whose step was recorded.

    Parameters
    ----------
    one
        The configuration.
    device
        Name of the catalog or path of a device file: the core that one rank has.
    precision
        Precision of the step, as a job's ``training.precision``.
    """
    job = job_of(one, device, precision=precision)
    job["cluster"]["num_devices"] = one.num_ranks
    job["strategy"] |= {"pp": one.pp, "dp_overlap": one.dp > 1}
    return job
