"""Published results to compare a plan with: the best measured run, and the nearest layout."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planner.report.records.record import Figure, Record
from planner.report.records.strategy import StrategyRecord

if TYPE_CHECKING:
    from planner.uncertainty.records import BestRun
    from planner.verbs.recipes import JudgedLayout


class BestRunRecord(Record):
    """
    The best published run of the job's model, device and bits, else of the nearest model, beside the prediction.

    Parameters
    ----------
    id
        Its id among the project's measured runs.
    label
        The project and release.
    source
        Its publisher.
    framework
        Its software, as the catalog calls it; empty where it has none.
    date
        Date of publication.
    model
        Its model, as the project's measured runs call it.
    same_model
        True if it is of the job's model; otherwise it is of the nearest model on such devices.
    device
        Its device.
    mfu
        Its model FLOP/s over the dense peak, causal attention.
    precision
        Its precision recipe.
    sequence_length
        Tokens of a sequence.
    num_devices
        Devices.
    tokens_per_second_per_gpu
        Measured tokens per second and device.
    notes
        Conditions that flatter the run; empty: none.
    comparable_tokens_per_second_per_gpu
        Its rate converted to the job's tokens by model FLOP/s; by MFU where the model is another.
    same_sequence
        True if its sequences are as long as the job's.
    step_time_seconds
        A step of the job at that rate.
    above_fraction
        Prediction over the published rate, minus 1.
    is_recent
        True if a run that compares is of a release at most a year older than the costed one.
    is_doubtful
        True if the prediction is so far above it that it is doubted.
    """

    id: str
    label: str
    source: str
    framework: str
    date: str
    model: str
    same_model: bool
    device: str
    mfu: Figure
    precision: str
    sequence_length: int
    num_devices: int
    tokens_per_second_per_gpu: Figure
    notes: str
    comparable_tokens_per_second_per_gpu: Figure
    same_sequence: bool
    step_time_seconds: Figure
    above_fraction: Figure
    is_recent: bool
    is_doubtful: bool

    @classmethod
    def build(cls, best: BestRun | None) -> BestRunRecord | None:
        """Build the record of the best run, if there is one."""
        if best is None:
            return None
        return cls.read(
            best,
            best.record,
            tokens_per_second_per_gpu=best.record.tokens_per_second_per_device,
            comparable_tokens_per_second_per_gpu=best.comparable_rate,
            step_time_seconds=best.record_step_seconds,
        )


class PublishedLayoutRecord(Record):
    """
    A published layout as a strategy of the job.

    Parameters
    ----------
    title
        The name that reports give it.
    recipe
        The id of its recipe: planner compare JOB.yaml --recipe ID.
    name
        The recipe's name where it is published.
    source
        The project, tag and file that publish it.
    release
        The one of its releases that is nearest to the job's.
    notes
        Changes that were made to it for the job.
    strategy
        The decisions.
    step_time_seconds
        Its step by the planner's own estimate.
    peak_memory_bytes
        Its peak.
    slower_fraction
        Time by which its step is longer than the first plan's, as a fraction of that.
    broken_rules
        Sentences of the rules that forbid it.
    outside
        Why the job's search does not try it; empty: it does.
    """

    title: str
    recipe: str
    name: str
    source: str
    release: str
    notes: list[str]
    strategy: StrategyRecord
    step_time_seconds: Figure
    peak_memory_bytes: Figure
    slower_fraction: Figure
    broken_rules: list[str]
    outside: list[str]

    @classmethod
    def build(cls, judged: JudgedLayout | None, step_seconds: float) -> PublishedLayoutRecord | None:
        """Build the record of a judged layout, compared with the first plan's step."""
        if judged is None:
            return None
        layout, plan = judged.layout, judged.report.plan
        return cls.read(
            layout,
            layout.recipe,
            judged,
            judged.report,
            recipe=layout.recipe.id,
            strategy=StrategyRecord.build(layout.problem, layout.strategy),
            step_time_seconds=plan.step_seconds,
            peak_memory_bytes=plan.estimate.device_bytes,
            slower_fraction=plan.step_seconds / step_seconds - 1,
        )
