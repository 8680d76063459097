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
names its replacement.

**Not stable.** All other modules and names of ``planner``, ``costmodel`` and ``constraints``, and the wording of
tables, pages and messages. Predicted figures move when the model gets better or is fitted to more runs, which
``CHANGELOG.md`` says. A plan that must stay is saved as JSON (:func:`read_plan`).

**Errors.** Errors that a user can cause are :class:`PlanningError`. Wrong input is a :class:`SpecError`, several
mistakes at once are :class:`SpecErrors`. A job for which no strategy fits gets an answer, not an error.
"""

from __future__ import annotations

import ast
import inspect
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # verbs, the records that they take and return, and errors
    from costmodel.errors import PlanningError as PlanningError
    from costmodel.errors import SpecError as SpecError
    from costmodel.errors import SpecErrors as SpecErrors
    from planner.advice.advise import Advice as Advice
    from planner.advice.advise import ClusterChoices as ClusterChoices
    from planner.advice.advise import advise as advise
    from planner.advice.prices import PriceList as PriceList
    from planner.advice.prices import read_prices as read_prices
    from planner.advice.records import advice_rows as advice_rows
    from planner.advice.render import render_advice as render_advice
    from planner.advice.wish import Wish as Wish
    from planner.batch.job_result import JobResult as JobResult
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
    from planner.frameworks.torchtitan import to_torchtitan as to_torchtitan
    from planner.jobs.problem import Problem as Problem
    from planner.jobs.problem import load as load
    from planner.notebooks import to_frame as to_frame
    from planner.report import render as render
    from planner.report import render_study as render_study
    from planner.report.section import Asked as Asked
    from planner.report.section import Screen as Screen
    from planner.results import EstimateReport as EstimateReport
    from planner.results import Plan as Plan
    from planner.results import PlanReport as PlanReport
    from planner.search.recipes import recipe_candidates as recipe_candidates
    from planner.search.recipes import recipes_for as recipes_for
    from planner.verbs.any_job import AnyJob as AnyJob
    from planner.verbs.any_job import read_any as read_any
    from planner.verbs.compare import Comparison as Comparison
    from planner.verbs.compare import compare as compare
    from planner.verbs.compare import compare_two as compare_two
    from planner.verbs.device_counts import PlansBySize as PlansBySize
    from planner.verbs.device_counts import SizedPlan as SizedPlan
    from planner.verbs.device_counts import plan_for_sizes as plan_for_sizes
    from planner.verbs.explain import Explanation as Explanation
    from planner.verbs.explain import explain as explain
    from planner.verbs.plan import estimate as estimate
    from planner.verbs.plan import plan as plan
    from planner.verbs.plan import read_plan as read_plan
    from planner.verbs.recipes import compare_recipe as compare_recipe
    from planner.verbs.recipes import judge_recipes as judge_recipes
    from planner.verbs.study import StudyReport as StudyReport
    from planner.verbs.study import study as study

    __version__: str

if TYPE_CHECKING:  # records inside those records
    from constraints.conflict import Conflict as Conflict
    from costmodel import catalog as catalog
    from costmodel.costs import TrainingCosts as TrainingCosts
    from costmodel.facts.device import Cluster as Cluster
    from costmodel.facts.reliability import Costs as Costs
    from costmodel.facts.reliability import RecoveryLevel as RecoveryLevel
    from costmodel.facts.reliability import Reliability as Reliability
    from costmodel.step.estimate import Estimate as Estimate
    from costmodel.strategy import Strategy as Strategy
    from costmodel.tables import Facts as Facts
    from planner.advice.advise import CutCell as CutCell
    from planner.advice.advise import FailedCell as FailedCell
    from planner.advice.points import ClusterPoint as ClusterPoint
    from planner.advice.prices import Offer as Offer
    from planner.batch.job_result import JobOutcome as JobOutcome
    from planner.batch.job_result import JobStatus as JobStatus
    from planner.batch.jobs import BatchJob as BatchJob
    from planner.frameworks.target import Program as Program
    from planner.jobs.checkpoints import CheckpointSchedule as CheckpointSchedule
    from planner.jobs.checkpoints import Conventions as Conventions
    from planner.jobs.checkpoints import ModelSummary as ModelSummary
    from planner.jobs.document import Document as Document
    from planner.jobs.limits import SearchLimits as SearchLimits
    from planner.jobs.problem import Alternative as Alternative
    from planner.jobs.problem import Machine as Machine
    from planner.jobs.strategy_file import StrategyFile as StrategyFile
    from planner.results import Displayed as Displayed
    from planner.search.alternatives import AlternativeOutcome as AlternativeOutcome
    from planner.search.alternatives import FewerDevices as FewerDevices
    from planner.search.branch_and_bound import Outcome as Outcome
    from planner.search.branch_and_bound import Status as Status
    from planner.search.certificate import Certificate as Certificate
    from planner.search.complete import CompletedBy as CompletedBy
    from planner.search.listed import CandidateListReport as CandidateListReport
    from planner.search.recipes import PublishedLayout as PublishedLayout
    from planner.search.recommendation import Recommendation as Recommendation
    from planner.uncertainty.counts import Gap as Gap
    from planner.uncertainty.features import Unproven as Unproven
    from planner.uncertainty.intervals import Interval as Interval
    from planner.uncertainty.intervals import TimedOperator as TimedOperator
    from planner.uncertainty.peaks import Chance as Chance
    from planner.uncertainty.records import BestRun as BestRun
    from planner.verbs.compare import Gain as Gain
    from planner.verbs.compare import Side as Side
    from planner.verbs.compare import Unlike as Unlike
    from planner.verbs.explain import Binding as Binding
    from planner.verbs.explain import Difference as Difference
    from planner.verbs.plan import SavedPlan as SavedPlan
    from planner.verbs.recipes import JudgedLayout as JudgedLayout
    from planner.verbs.study import Series as Series
    from planner.verbs.study_features import Feature as Feature


def _read_homes() -> tuple[dict[str, str], dict[str, str]]:
    """Return the module of each stable name: the two groups of imports for type checkers above are the lists."""
    blocks = [node for node in ast.parse(inspect.getsource(sys.modules[__name__])).body if isinstance(node, ast.If)]
    imports = ([node for node in block.body if isinstance(node, ast.ImportFrom)] for block in blocks[:2])
    first, second = ({one.name: f"{node.module}" for node in some for one in node.names} for some in imports)
    return first, second


_LISTED, _OTHERS = _read_homes()
_HOMES = _LISTED | _OTHERS

SHORT = sorted(_LISTED)
"""Names that ``planner`` lists itself."""

if not TYPE_CHECKING:  # type checkers take every name imported above
    __all__ = sorted([*_HOMES, "__version__"])


def __getattr__(name: str) -> Any:
    """Import a name when it is first asked for."""
    if name == "__version__":
        from costmodel.version import version

        return version()
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = import_module("costmodel.catalog") if name == "catalog" else getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the stable names, imported or not."""
    return sorted([*_HOMES, "__version__"])
