"""How often a job fails, and what recovery and checkpoints cost."""

from __future__ import annotations

from pydantic.dataclasses import dataclass

from costmodel.facts.fields import STRICT, Fraction, NotNegative


@dataclass(frozen=True, kw_only=True, slots=True, config=STRICT)
class RecoveryLevel:
    """
    One way to recover from a failure.

    Parameters
    ----------
    name
        ``process``, ``pod``, ``job``.
    probability
        Fraction of the failures that this level recovers.
    seconds
        Seconds from the failure to the next step.
    """

    name: str
    probability: Fraction
    seconds: NotNegative


@dataclass(frozen=True, kw_only=True, slots=True, config=STRICT)
class Reliability:
    """
    How often the job fails, and what recovery and checkpoints cost.

    Parameters
    ----------
    failures_per_node_day
        Mean number of failures of one node in 86,400 s.
    mttr_seconds
        Mean seconds to repair: from failure to training again.
    checkpoint_seconds
        Seconds of training lost per checkpoint.
    init_seconds
        Seconds from the start of the job to its first step.
    write_seconds
        Seconds from the start of a checkpoint until it is on storage, beside the training: the shortest interval
        between two.
    """

    failures_per_node_day: NotNegative
    mttr_seconds: NotNegative
    checkpoint_seconds: NotNegative
    init_seconds: NotNegative = 0.0
    write_seconds: NotNegative = 0.0
