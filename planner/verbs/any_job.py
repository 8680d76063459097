"""A job in any form: a job file, a job in one line, a launch script of a framework, or a saved plan."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from pathlib import Path

from costmodel.errors import SpecError
from costmodel.record import record
from costmodel.strategy import Strategy
from costmodel.validation import require_type
from planner.frameworks.imports.job import import_job, is_foreign, read_variables
from planner.jobs.document import Document, read_document, read_text
from planner.jobs.entries import OPTIONS
from planner.jobs.line import is_line, is_word, read_decisions
from planner.jobs.one_line import CLUSTER, one_line
from planner.jobs.problem import Problem, load, split_overrides
from planner.results import EstimateReport, PlanReport
from planner.verbs.compare import Comparison, Side, compare_with_plan, plan_for_comparison, side_of
from planner.verbs.plan import MAX_BYTES, estimate, judge_strategy, read_plan

ENDINGS = (".yaml", ".yml", ".json", ".toml", ".sh", ".bash", ".slurm", ".sbatch", ".txt")
"""Suffixes of files; no cluster in one word ends so."""

HINT = "Put a job of several words in quotation marks: 'llama3-70b 512xh100 --batch 1024 --sequence 8k --tokens 15T'."


@record(frozen=True, kw_only=True, slots=True)
class AnyJob:
    """
    A job with its strategy, in whatever form it was given.

    Parameters
    ----------
    name
        Name or text of the job as it was given.
    problem
        The job, with its own strategy.
    decisions
        Decisions that were given besides the job.
    strategy
        Whole strategy of a saved plan.
    notes
        Entries that were left out or assumed when the job was read, a sentence each.
    sources
        Files that were read.
    """

    name: str
    problem: Problem
    decisions: Mapping[str, object] = field(default_factory=dict)
    strategy: Strategy | None = None
    notes: tuple[str, ...] = ()
    sources: tuple[Path, ...] = ()

    def report(self) -> EstimateReport | PlanReport:
        """Estimate the strategy, or plan the job where no strategy is given."""
        if self.strategy is not None:
            return judge_strategy(self.problem, self.strategy)
        given = self.problem.given
        if self.decisions or not given.is_empty:
            return estimate(self.problem, self.decisions)
        return plan_for_comparison(self.problem)

    def side(self) -> Side:
        """Return the job as a side of a comparison; errors as in :func:`planner.verbs.compare.side_of`."""
        return side_of(self.report(), self.name, self.notes)

    def compare_with_plan(self) -> Comparison:
        """Compare the strategy with the recommended plan."""
        given = self.report()
        if not isinstance(given, EstimateReport):
            hint = "Give the job a 'strategy', or decisions such as TP8 PP4."
            raise SpecError(self.name, "has no strategy to compare the recommended plan with.", hint)
        return compare_with_plan(self.problem, given)


def is_job(word: str) -> bool:
    """Tell whether a word of a command line is a whole job: a file, or several words in quotation marks."""
    words = word.split()
    if not words or "=" in words[0] or CLUSTER.fullmatch(word) or is_line(word):
        return False
    return len(words) > 1 or word.lower().endswith(ENDINGS) or os.path.isfile(word)


def read_any(
    text: str, entries: Sequence[str] = (), variables: Mapping[str, str] | None = None, limits: Sequence[str] = ()
) -> AnyJob:
    """
    Read a job in any form.

    Parameters
    ----------
    text
        A file, or words of a command. A file may have ``key=value``, ``--set NAME=VALUE`` (of a script) or ``--number
        N`` (of a report). A model and a cluster may have ``--batch``, ``--sequence`` and ``--tokens``.
    entries
        Further ``key=value``, which may be for several jobs; none of them changes a saved plan.
    variables
        Values of variables that scripts read from their environment.
    limits
        Entries of the search.

    Raises
    ------
    SpecError
        If the text is no job, or has unknown words.

    >>> job = read_any("llama3-8b 8xh100 --batch 64 --sequence 8k --tokens 1T tp=2")
    >>> job.problem.facts.workload.sequence_length, job.decisions
    (8192, {'tp': 2})
    """
    require_type(text, str, "job", "a file or words as text")
    words, own, options = _words(text)
    overrides, decisions = split_overrides([*entries, *own])
    path = Path(words[0])
    if len(words) > 1:
        _require_options(text, options, "a model and a cluster", *OPTIONS)
        document = one_line(words[0], words[1], {name: options[name] for name in OPTIONS if name in options})
        return _job(text, document, [*overrides, *limits], decisions)
    if path.suffix.lower() == ".json" and _is_report(path):
        _require_options(text, options, "a saved plan", "number")
        return _read_saved(text, path, own, options.get("number", "1"))
    if is_foreign(path):
        _require_options(text, options, "a script", "set")
        given = {**(variables or {}), **read_variables(options.get("set", "").split("\n") if "set" in options else [])}
        try:
            imported = import_job(path, overrides, given)
        except SpecError as error:
            raise SpecError(f"{text}: {error.where}", error.problem, error.hint) from None
        problem = load(imported.document, limits, name=path.stem)
        decided = read_decisions(decisions, overrides)
        return AnyJob(name=text, problem=problem, decisions=decided, notes=imported.notes, sources=(path,))
    _require_options(text, options, "a job file")
    return _job(text, read_document(path), [*overrides, *limits], decisions)


def _job(name: str, document: Document, overrides: Sequence[str], decisions: Sequence[str]) -> AnyJob:
    problem = load(document, overrides)
    return AnyJob(name=name, problem=problem, decisions=read_decisions(decisions, overrides), sources=problem.sources)


def _read_saved(name: str, path: Path, own: Sequence[str], number: str) -> AnyJob:
    if own:
        raise SpecError(name, f"is a saved plan, which {own[0]} cannot change.", "Give the job file instead.")
    if not number.isdecimal() or len(number) > 9:
        raise SpecError("--number", f"expected a whole number, got '{number[:80]}'.")
    saved = read_plan(path, int(number))
    return AnyJob(name=name, problem=saved.problem, strategy=saved.plan.strategy, sources=(path,))


def _is_report(path: Path) -> bool:
    """Tell whether a file is a JSON report of this planner; other readers refuse a file that is no JSON."""
    text = read_text(path, MAX_BYTES)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(content, dict) and "format_version" in content


def _require_options(text: str, options: Iterable[str], form: str, *known: str) -> None:
    """Refuse options that only jobs of another form have."""
    for name in options:
        if name not in known:
            hint = "Entries such as training.sequence_length=8192 change a job."
            raise SpecError(text[:80], f"--{name} is no option of {form}.", hint)


def _words(text: str) -> tuple[list[str], list[str], dict[str, str]]:
    """Split a text into plain words, ``key=value`` and values of options; several ``--set`` are joined by newlines."""
    if os.path.isfile(text):
        return [text], [], {}
    try:
        parts = shlex.split(text)
    except ValueError as error:
        raise SpecError(text[:80], f"cannot be split into words: {error}.") from None
    words, entries, options = list[str](), list[str](), dict[str, str]()
    left = iter(parts)
    for part in left:
        if part.startswith("--"):
            name, equals, value = part[2:].partition("=")
            if name not in (*OPTIONS, "set", "number"):
                raise SpecError(text[:80], f"no job has the option --{name}.", HINT)
            value = value if equals else next(left, "")
            options[name] = f"{options[name]}\n{value}" if name == "set" and name in options else value
        else:
            (entries if "=" in part or is_word(part) else words).append(part)
    if not 1 <= len(words) <= 2 or (len(words) == 1 and not is_job(words[0])):
        raise SpecError(text[:80], "is no job.", HINT)
    return words, entries, options
