"""Published results to compare a plan with: the best measured run, and the nearest layout."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planner.report.records.record import Figure, Record, entry
from planner.report.records.strategy import StrategyRecord

if TYPE_CHECKING:
    from planner.verbs.recipes import JudgedLayout


class BestRunRecord(Record):
    """The best published run of the job's model, device and bits, else of the nearest model, beside the prediction."""

    id: str = entry("Its id among the project's measured runs.", "record.id")
    label: str = entry("The project and release.", "record.label")
    source: str = entry("Its publisher.", "record.source")
    framework: str = entry("Its software, as the catalog calls it; empty where it has none.", "record.framework")
    date: str = entry("Date of publication.", "record.date")
    model: str = entry("Its model, as the project's measured runs call it.", "record.model")
    same_model: bool = entry("True if it is of the job's model; otherwise it is of the nearest model on such devices.")
    device: str = entry("Its device.", "record.device")
    mfu: Figure = entry("Its model FLOP/s over the dense peak, causal attention.", "record.mfu")
    precision: str = entry("Its precision recipe.", "record.precision")
    sequence_length: int = entry("Tokens of a sequence.", "record.sequence_length")
    num_devices: int = entry("Devices.", "record.num_devices")
    tokens_per_second_per_gpu: Figure = entry(
        "Measured tokens per second and device.", "record.tokens_per_second_per_device"
    )
    notes: str = entry("Conditions that flatter the run; empty: none.", "record.notes")
    comparable_tokens_per_second_per_gpu: Figure = entry(
        "Its rate converted to the job's tokens by model FLOP/s; by MFU where the model is another.", "comparable_rate"
    )
    same_sequence: bool = entry("True if its sequences are as long as the job's.")
    step_time_seconds: Figure = entry("A step of the job at that rate.", "record_step_seconds")
    above_fraction: Figure = entry("Prediction over the published rate, minus 1.")
    is_recent: bool = entry("True if a run that compares is of a release at most a year older than the costed one.")
    is_doubtful: bool = entry("True if the prediction is so far above it that it is doubted.")


class PublishedLayoutRecord(Record):
    """A published layout as a strategy of the job."""

    title: str = entry("The name that reports give it.", "layout.title")
    recipe: str = entry("The id of its recipe: planner compare JOB.yaml --recipe ID.", "layout.recipe.id")
    name: str = entry("The recipe's name where it is published.", "layout.recipe.name")
    source: str = entry("The project, tag and file that publish it.", "layout.recipe.source")
    release: str = entry("The one of its releases that is nearest to the job's.", "layout.release")
    notes: list[str] = entry("Changes that were made to it for the job.")
    strategy: StrategyRecord = entry("The decisions.")
    step_time_seconds: Figure = entry("Its step by the planner's own estimate.", "report.plan.step_seconds")
    peak_memory_bytes: Figure = entry("Its peak.", "report.plan.estimate.device_bytes")
    slower_fraction: Figure = entry("Time by which its step is longer than the first plan's, as a fraction of that.")
    broken_rules: list[str] = entry("Sentences of the rules that forbid it.")
    outside: list[str] = entry("Why the job's search does not try it; empty: it does.")

    @classmethod
    def build(cls, judged: JudgedLayout | None, step_seconds: float) -> PublishedLayoutRecord | None:
        """Build the record of a judged layout, compared with the first plan's step."""
        if judged is None:
            return None
        return cls.read(
            judged,
            notes=list(judged.layout.notes),
            strategy=StrategyRecord.build(judged.layout.problem, judged.layout.strategy),
            slower_fraction=judged.report.plan.step_seconds / step_seconds - 1,
            broken_rules=list(judged.report.broken_rules),
            outside=list(judged.outside),
        )
