"""
Stable names for scripts and programs: ``from planner.api import load, plan``.

``__all__`` is the promise: the verbs, the records that they take and return, the errors, and the catalog. Nothing is
imported before it is used. ``from planner import load, plan`` gives the same verbs.

**Stable.** These names, the parameters of the functions, and the fields and properties of the records with their units.
Versions follow semantic versioning (semver.org): the last number of :data:`__version__` grows with corrections. As
long as the first one is 0, the middle one grows where something stable changes or goes; from 1.0 on the first one does.

**JSON.** Reports and the lines of a batch carry ``format_version``, which grows when an entry changes its name, unit or
meaning. New entries do not count: read the entries that you know and ignore the rest. Every output has a JSON Schema,
which ``planner catalog schemas NAME`` prints. An output without ``format_version`` keeps its entries as a stable name
does.

**Deprecation.** A stable name that will go warns with ``DeprecationWarning`` for at least one minor version before, and
names its replacement. An import of a module that moved names the new place.

**Not stable.** All other modules and names of ``planner``, ``costmodel`` and ``constraints``, and the wording of
tables, pages and messages. Predicted figures move when the model gets better or is fitted to more runs, which
``CHANGELOG.md`` says. A plan that must stay is saved as JSON (:func:`read_plan`).

**Errors.** Errors that a user can cause are :class:`PlanningError`. Wrong input is a :class:`SpecError`, several
mistakes at once are :class:`SpecErrors`. A job for which no strategy fits gets an answer, not an error.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from constraints.conflict import Conflict as Conflict
    from costmodel import catalog as catalog
    from costmodel.costs import TrainingCosts as TrainingCosts
    from costmodel.errors import PlanningError as PlanningError
    from costmodel.errors import SpecError as SpecError
    from costmodel.errors import SpecErrors as SpecErrors
    from costmodel.facts.device import Cluster as Cluster
    from costmodel.facts.reliability import Costs as Costs
    from costmodel.facts.reliability import RecoveryLevel as RecoveryLevel
    from costmodel.facts.reliability import Reliability as Reliability
    from costmodel.step.estimate import Estimate as Estimate
    from costmodel.strategy import Strategy as Strategy
    from costmodel.tables import Facts as Facts
    from planner.advice.advise import Advice as Advice
    from planner.advice.advise import ClusterChoices as ClusterChoices
    from planner.advice.advise import CutCell as CutCell
    from planner.advice.advise import FailedCell as FailedCell
    from planner.advice.advise import advise as advise
    from planner.advice.points import ClusterPoint as ClusterPoint
    from planner.advice.prices import Offer as Offer
    from planner.advice.prices import PriceList as PriceList
    from planner.advice.prices import read_prices as read_prices
    from planner.advice.records import advice_rows as advice_rows
    from planner.advice.render import render_advice as render_advice
    from planner.advice.wish import Wish as Wish
    from planner.batch.job_result import JobOutcome as JobOutcome
    from planner.batch.job_result import JobResult as JobResult
    from planner.batch.job_result import JobStatus as JobStatus
    from planner.batch.jobs import BatchJob as BatchJob
    from planner.batch.run import plan_many as plan_many
    from planner.frameworks import export as export
    from planner.frameworks.accelerate import to_accelerate as to_accelerate
    from planner.frameworks.deepspeed import to_deepspeed as to_deepspeed
    from planner.frameworks.imports.job import import_job as import_job
    from planner.frameworks.launch import launched as launched
    from planner.frameworks.megatron.bridge import to_megatron_bridge as to_megatron_bridge
    from planner.frameworks.megatron.lm import to_megatron_lm as to_megatron_lm
    from planner.frameworks.megatron.read import Imported as Imported
    from planner.frameworks.megatron.read import from_megatron_lm as from_megatron_lm
    from planner.frameworks.target import Export as Export
    from planner.frameworks.target import Program as Program
    from planner.frameworks.torchtitan import to_torchtitan as to_torchtitan
    from planner.jobs.checkpoints import CheckpointSchedule as CheckpointSchedule
    from planner.jobs.checkpoints import Conventions as Conventions
    from planner.jobs.checkpoints import ModelSummary as ModelSummary
    from planner.jobs.document import Document as Document
    from planner.jobs.limits import SearchLimits as SearchLimits
    from planner.jobs.problem import Alternative as Alternative
    from planner.jobs.problem import Machine as Machine
    from planner.jobs.problem import Problem as Problem
    from planner.jobs.problem import load as load
    from planner.jobs.strategy_file import StrategyFile as StrategyFile
    from planner.notebooks import to_frame as to_frame
    from planner.report import render as render
    from planner.report import render_study as render_study
    from planner.report.section import Asked as Asked
    from planner.report.section import Screen as Screen
    from planner.results import Displayed as Displayed
    from planner.results import EstimateReport as EstimateReport
    from planner.results import Plan as Plan
    from planner.results import PlanReport as PlanReport
    from planner.search.alternatives import AlternativeOutcome as AlternativeOutcome
    from planner.search.alternatives import FewerDevices as FewerDevices
    from planner.search.branch_and_bound import Outcome as Outcome
    from planner.search.branch_and_bound import Status as Status
    from planner.search.certificate import Certificate as Certificate
    from planner.search.complete import CompletedBy as CompletedBy
    from planner.search.listed import CandidateListReport as CandidateListReport
    from planner.search.recipes import PublishedLayout as PublishedLayout
    from planner.search.recipes import recipe_candidates as recipe_candidates
    from planner.search.recipes import recipes_for as recipes_for
    from planner.search.recommendation import Recommendation as Recommendation
    from planner.uncertainty.counts import Gap as Gap
    from planner.uncertainty.features import Unproven as Unproven
    from planner.uncertainty.intervals import Interval as Interval
    from planner.uncertainty.intervals import TimedOperator as TimedOperator
    from planner.uncertainty.peaks import Chance as Chance
    from planner.uncertainty.records import BestRun as BestRun
    from planner.verbs.any_job import AnyJob as AnyJob
    from planner.verbs.any_job import read_any as read_any
    from planner.verbs.compare import Comparison as Comparison
    from planner.verbs.compare import Gain as Gain
    from planner.verbs.compare import Side as Side
    from planner.verbs.compare import Unlike as Unlike
    from planner.verbs.compare import compare as compare
    from planner.verbs.compare import compare_two as compare_two
    from planner.verbs.device_counts import PlansBySize as PlansBySize
    from planner.verbs.device_counts import SizedPlan as SizedPlan
    from planner.verbs.device_counts import plan_for_sizes as plan_for_sizes
    from planner.verbs.explain import Binding as Binding
    from planner.verbs.explain import Difference as Difference
    from planner.verbs.explain import Explanation as Explanation
    from planner.verbs.explain import explain as explain
    from planner.verbs.plan import SavedPlan as SavedPlan
    from planner.verbs.plan import estimate as estimate
    from planner.verbs.plan import plan as plan
    from planner.verbs.plan import read_plan as read_plan
    from planner.verbs.recipes import JudgedLayout as JudgedLayout
    from planner.verbs.recipes import compare_recipe as compare_recipe
    from planner.verbs.recipes import judge_recipes as judge_recipes
    from planner.verbs.study import Series as Series
    from planner.verbs.study import StudyReport as StudyReport
    from planner.verbs.study import study as study
    from planner.verbs.study_features import Feature as Feature

    __version__: str

_NAMES = {
    "constraints.conflict": "; Conflict",
    "costmodel.costs": "; TrainingCosts",
    "costmodel.errors": "PlanningError SpecError SpecErrors",
    "costmodel.facts.device": "; Cluster",
    "costmodel.facts.reliability": "; Costs RecoveryLevel Reliability",
    "costmodel.step.estimate": "; Estimate",
    "costmodel.strategy": "; Strategy",
    "costmodel.tables": "; Facts",
    "planner.advice.advise": "Advice ClusterChoices advise; CutCell FailedCell",
    "planner.advice.points": "; ClusterPoint",
    "planner.advice.prices": "PriceList read_prices; Offer",
    "planner.advice.records": "advice_rows",
    "planner.advice.render": "render_advice",
    "planner.advice.wish": "Wish",
    "planner.batch.job_result": "JobResult; JobOutcome JobStatus",
    "planner.batch.jobs": "; BatchJob",
    "planner.batch.run": "plan_many",
    "planner.frameworks": "export",
    "planner.frameworks.accelerate": "to_accelerate",
    "planner.frameworks.deepspeed": "to_deepspeed",
    "planner.frameworks.imports.job": "import_job",
    "planner.frameworks.launch": "launched",
    "planner.frameworks.megatron.bridge": "to_megatron_bridge",
    "planner.frameworks.megatron.lm": "to_megatron_lm",
    "planner.frameworks.megatron.read": "Imported from_megatron_lm",
    "planner.frameworks.target": "Export; Program",
    "planner.frameworks.torchtitan": "to_torchtitan",
    "planner.jobs.checkpoints": "; CheckpointSchedule Conventions ModelSummary",
    "planner.jobs.document": "; Document",
    "planner.jobs.limits": "; SearchLimits",
    "planner.jobs.problem": "Problem load; Alternative Machine",
    "planner.jobs.strategy_file": "; StrategyFile",
    "planner.notebooks": "to_frame",
    "planner.report": "render render_study",
    "planner.report.section": "Asked Screen",
    "planner.results": "EstimateReport Plan PlanReport; Displayed",
    "planner.search.alternatives": "; AlternativeOutcome FewerDevices",
    "planner.search.branch_and_bound": "; Outcome Status",
    "planner.search.certificate": "; Certificate",
    "planner.search.complete": "; CompletedBy",
    "planner.search.listed": "; CandidateListReport",
    "planner.search.recipes": "recipe_candidates recipes_for; PublishedLayout",
    "planner.search.recommendation": "; Recommendation",
    "planner.uncertainty.counts": "; Gap",
    "planner.uncertainty.features": "; Unproven",
    "planner.uncertainty.intervals": "; Interval TimedOperator",
    "planner.uncertainty.peaks": "; Chance",
    "planner.uncertainty.records": "; BestRun",
    "planner.verbs.any_job": "AnyJob read_any",
    "planner.verbs.compare": "Comparison compare compare_two; Gain Side Unlike",
    "planner.verbs.device_counts": "PlansBySize SizedPlan plan_for_sizes",
    "planner.verbs.explain": "Explanation explain; Binding Difference",
    "planner.verbs.plan": "estimate plan read_plan; SavedPlan",
    "planner.verbs.recipes": "compare_recipe judge_recipes; JudgedLayout",
    "planner.verbs.study": "study StudyReport; Series",
    "planner.verbs.study_features": "; Feature",
}
"""
Verbs, the records that they take and return, and errors, by the module that defines them; after a semicolon records
inside those records.
"""

_HOMES = {name: home for home, names in _NAMES.items() for name in names.replace(";", "").split()}

SHORT = sorted(name for names in _NAMES.values() for name in names.partition(";")[0].split())
"""Names that ``planner`` lists itself."""

if not TYPE_CHECKING:  # type checkers take every name imported above
    __all__ = sorted([*_HOMES, "__version__", "catalog"])


def __getattr__(name: str) -> Any:
    """Import a name when it is first asked for."""
    if name == "__version__":
        from costmodel.version import version

        return version()
    if name == "catalog":
        return import_module("costmodel.catalog")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the stable names, imported or not."""
    return sorted([*_HOMES, "__version__", "catalog"])
