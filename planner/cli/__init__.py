"""
The command line: parse, call one verb, print. Results go to stdout, progress and complaints to stderr.

Nothing heavier than argparse is imported before a command runs, so that ``planner --help`` answers at once.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from costmodel.errors import PlanningError, SpecError
from planner.cli.batch import add_batch, add_top, ranking

DISTRIBUTION = "pretraining-planner"

EXIT_WRONG_INPUT = 2
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141
EXIT_CODES = """exit codes:
  0  a plan was found and proven optimal
  1  nothing fits: no strategy satisfies all rules
  2  wrong input
  3  the time limit came before the proof
"""
EXPLANATION_EXIT_CODES = """exit codes:
  0  explained: why this plan, why nothing fits, or why not the given strategy
  2  wrong input
  3  the time limit came before the proof, or before all was explained
"""
CALIBRATION_EXIT_CODES = """exit codes:
  0  a calibration was fitted and written
  1  the same, but rows of the file were refused
  2  wrong input
  4  too few or contradictory runs: nothing was fitted or written
"""
COMPARISON_EXIT_CODES = """exit codes:
  0  compared with the proven best plan
  1  nothing fits: there is no plan to compare with
  2  wrong input
  3  the time limit came before the proof
"""
EXIT_ROWS_REFUSED = 1
EXIT_UNFIT = 4

EXPORT_TARGETS = ("megatron-lm", "megatron-bridge", "torchtitan", "deepspeed", "accelerate")
LAUNCHERS = ("torchrun", "slurm", "kubernetes")
UNUSED_STRATEGY = "plan does not use the job's strategy (estimate and compare do); search.pin holds decisions fixed."
"""What is said where a job gives one all the same."""

MAX_DRIFT_FRACTION = 0.01
"""A recorded step that this version of the planner predicts more differently is worth a warning."""

REPORT_FORMATS = ("table", "json", "csv", "markdown", "html")
TEXT_FORMATS = ("table", "json")
EXPLANATION_FORMATS = ("table", "json", "markdown")
ATTENTION_CONVENTIONS = ("full", "causal")
PATIENCE_SECONDS = 1.0


def main(argv: Sequence[str] | None = None) -> int:
    """
    Run one command and return its exit code.

    Parameters
    ----------
    argv
        Arguments without the program's name; those of the process by default.
    """
    try:
        arguments = _parse(sys.argv[1:] if argv is None else argv)
        code: int = arguments.run(arguments)
        sys.stdout.flush()
        return code
    except PlanningError as error:
        print(f"planner: {error}", file=sys.stderr)
        return EXIT_WRONG_INPUT
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else EXIT_WRONG_INPUT
    except KeyboardInterrupt:
        print("planner: interrupted.", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        _silence_stdout()
        return EXIT_BROKEN_PIPE


def _silence_stdout() -> None:
    """Keep the interpreter from complaining when it flushes a pipe that nobody reads."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):
        sys.stdout = None


# --- parsing -----------------------------------------------------------------------------------------------


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    """Options and ``key=value`` may come in any order, which argparse alone does not allow."""
    parser = _parser()
    arguments, rest = parser.parse_known_args(argv)
    if not hasattr(arguments, "run"):
        parser.print_help()
        raise SystemExit(0)
    unknown = [word for word in rest if word.startswith("-") or "=" not in word]
    if unknown or (rest and not hasattr(arguments, "assignments")):
        parser.error(f"unrecognized arguments: {' '.join(unknown or rest)}")
    if rest:
        arguments.assignments = [*arguments.assignments, *rest]
    return arguments


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="planner",
        description="Chooses how to split an LLM pretraining job over a cluster, proves it optimal, "
        "and schedules its checkpoints.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    _add_plan(commands)
    _add_estimate(commands)
    _add_explain(commands)
    _add_compare(commands)
    _add_import(commands)
    _add_export(commands)
    _add_model(commands)
    _add_catalog(commands)
    _add_calibrate(commands)
    add_batch(commands)
    _add_top(commands)
    return parser


class _Version(argparse.Action):
    """Look the version up only when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        """Print and stop."""
        from importlib.metadata import PackageNotFoundError, version

        try:
            print(f"planner {version(DISTRIBUTION)}")
        except PackageNotFoundError:
            print("planner, not installed: running from its sources")
        parser.exit()


def _add_plan(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "plan",
        help="choose the fastest strategies for a job",
        description="Chooses the fastest strategies for a job and proves that nothing allowed is faster.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_job(parser, "change an entry of the job, such as training.global_batch_size=512 or search.pin.tp=8")
    parser.add_argument("--top", metavar="K", help="how many plans to report (default: the job's 'top', or 1)")
    parser.add_argument(
        "--all-variants",
        action="store_true",
        help="report the best strategies whatever they have in common, not one per combination of tp, cp, pp, dp, ep",
    )
    parser.add_argument("--time-limit", metavar="S", help="seconds until the best plan so far is reported")
    _add_output(parser, REPORT_FORMATS)
    parser.set_defaults(run=_run_plan)


def _add_estimate(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "estimate",
        help="time and memory of one given strategy",
        description="Costs one given strategy, also where a rule forbids it, and says which rule does.",
    )
    _add_job(parser, "a decision such as tp=8 or recompute=full, or a job entry such as training.sequence_length=8192")
    _add_output(parser, REPORT_FORMATS)
    parser.set_defaults(run=_run_estimate)


def _add_explain(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "explain",
        help="why this plan, why nothing fits, why not another strategy",
        description="Without decisions: which constraints hold the best plan back and by how much, or why nothing "
        "fits and what would. With decisions such as tp=8 pp=4 (a whole strategy or a part of one): why it is not the "
        "plan: the rules that forbid it, the memory that it lacks and on which rank, or how much slower it is and "
        "where. The job's time limit holds for the whole explanation.",
        epilog=EXPLANATION_EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_job(parser, "a decision such as tp=8 or recompute=full, or a job entry such as training.sequence_length=8192")
    parser.add_argument("--time-limit", metavar="S", help="seconds until what is known so far is reported")
    _add_output(parser, EXPLANATION_FORMATS)
    parser.set_defaults(run=_run_explain)


def _add_compare(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "compare",
        help="what the best plan gains over a given strategy",
        description="The job's own strategy, or decisions such as tp=8 pp=4, against the best plan: step, memory, days "
        "and GPU-hours, where the time goes, and the rules that the given strategy breaks.",
        epilog=COMPARISON_EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_job(parser, "a decision such as tp=8 or recompute=full, or a job entry such as training.sequence_length=8192")
    parser.add_argument("--time-limit", metavar="S", help="seconds until the best plan so far is compared with")
    _add_output(parser, EXPLANATION_FORMATS)
    parser.set_defaults(run=_run_compare)


def _add_import(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "import",
        help="a job file from the arguments of Megatron-LM that somebody runs",
        description="Reads arguments of Megatron-LM's pretrain_gpt.py, one line or a shell script without variables, "
        "and writes the job with its strategy, which 'estimate' and 'compare' take. What no argument says comes as "
        "key=value: cluster.device=h100-80gb-sxm cluster.num_devices=64.",
    )
    parser.add_argument("arguments", metavar="ARGS.txt", type=Path, help="file with the arguments")
    parser.add_argument("assignments", metavar="key=value", nargs="*", help="an entry of the job")
    parser.add_argument("--force", action="store_true", help="overwrite the output file")
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="write to a file instead of stdout")
    parser.set_defaults(run=_run_import)


def _add_export(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "export",
        help="a plan of a JSON report as the flags and files that start it",
        description="Writes a plan of a JSON report (planner plan JOB.yaml --format json -o plan.json) as the "
        "configuration of a training framework. What the framework cannot express is refused by name with the reason. "
        "Without -o the main file goes to stdout (with --launch: the launch file), what one should know to stderr.",
    )
    parser.add_argument("plan", metavar="PLAN.json", type=Path, help="the report")
    parser.add_argument("--target", metavar="NAME", required=True, help=", ".join(EXPORT_TARGETS))
    parser.add_argument("--number", metavar="N", default="1", help="which plan of the report, from 1 (default: 1)")
    parser.add_argument("--launch", metavar="HOW", help=f"also what starts it: {', '.join(LAUNCHERS)}")
    parser.add_argument("--force", action="store_true", help="overwrite files in the folder")
    parser.add_argument("-o", "--output", metavar="DIR", type=Path, help="write all files to a folder")
    parser.set_defaults(run=_run_export)


def _add_model(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("model", help="the architecture as it was read, with its parameters and FLOPs")
    parser.add_argument("model", metavar="NAME_OR_CONFIG", help="catalog name, or path of a Hugging Face config.json")
    parser.add_argument(
        "--sequence-length", metavar="S", default="4096", help="tokens per sequence for the FLOPs (default: 4096)"
    )
    parser.add_argument(
        "--attention",
        choices=ATTENTION_CONVENTIONS,
        default="full",
        help="whether scores that the causal mask hides count as FLOPs: full (default) or causal",
    )
    _add_output(parser, TEXT_FORMATS)
    parser.set_defaults(run=_run_model)


def _add_catalog(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "catalog", help="the known devices, calibrations, frameworks, models and precisions, with their sources"
    )
    parser.add_argument(
        "entry",
        metavar="WHAT",
        nargs="?",
        help="devices, calibrations, frameworks, models, precisions, or the name of one",
    )
    _add_output(parser, TEXT_FORMATS)
    parser.set_defaults(run=_run_catalog)


def _add_calibrate(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "calibrate",
        help="fit the constants of a device to own measured runs",
        description="Fits the calibration of a device to measured runs, with the catalog's as prior; says how far it "
        "is off on runs that it was not fitted to, and which runs to measure next. The file that it writes is a device "
        "of a job: cluster: {device: ./my-cluster.yaml}.",
        epilog=CALIBRATION_EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--runs",
        metavar="CSV",
        type=Path,
        required=True,
        help="measured runs; columns are keys of a job file (planner/runs/README.md)",
    )
    parser.add_argument("--models", metavar="YAML", type=Path, help="architectures by the names in the runs' 'model'")
    parser.add_argument("--device", metavar="NAME", help="device of the catalog to start from (default: the runs' own)")
    parser.add_argument("--force", action="store_true", help="overwrite the output file")
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, required=True, help="device file to write (YAML)")
    parser.set_defaults(run=_run_calibrate)


def _add_top(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = add_top(commands)
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="write to a file instead of stdout")
    parser.set_defaults(run=_run_top)


def _add_job(parser: argparse.ArgumentParser, assignments_help: str) -> None:
    parser.add_argument("job", metavar="JOB.yaml", type=Path, help="the job file")
    parser.add_argument("assignments", metavar="key=value", nargs="*", help=assignments_help)


def _add_output(parser: argparse.ArgumentParser, formats: Sequence[str]) -> None:
    parser.add_argument("--format", choices=formats, default="table", help="output format (default: table)")
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="write to a file instead of stdout")


# --- commands ----------------------------------------------------------------------------------------------


def _run_plan(arguments: argparse.Namespace) -> int:
    overrides = list(arguments.assignments)
    if arguments.top is not None:
        overrides.append(f"top={arguments.top}")
    if arguments.all_variants:
        overrides.append("variants=all")
    if arguments.time_limit is not None:
        overrides.append(f"search.time_limit_seconds={arguments.time_limit}")
    with _progress(f"planning {arguments.job}"):
        from planner.jobs.problem import load
        from planner.plan import plan
        from planner.report import render

        problem = load(arguments.job, overrides)
        _check_output(arguments.output, problem.sources)
        report = plan(problem)
        text = render(report, arguments.format)
    if problem.given.decisions or problem.given.layout:
        print(f"planner: {UNUSED_STRATEGY}", file=sys.stderr)
    _write(text, arguments.output)
    return int(report.exit_code)


def _run_estimate(arguments: argparse.Namespace) -> int:
    return _run_on_a_strategy(arguments, "estimating", "planner.plan", "estimate")


def _run_explain(arguments: argparse.Namespace) -> int:
    return _run_on_a_strategy(arguments, "explaining", "planner.explanation.explain", "explain")


def _run_compare(arguments: argparse.Namespace) -> int:
    return _run_on_a_strategy(arguments, "comparing", "planner.explanation.compare", "compare")


def _run_on_a_strategy(arguments: argparse.Namespace, doing: str, home: str, verb: str) -> int:
    """Call the verb of a module with the job and the decisions that the command line gives."""
    from importlib import import_module

    with _progress(f"{doing} {arguments.job}"):
        from planner.jobs.problem import load, read_decisions, split_overrides
        from planner.report import render

        overrides, decisions = split_overrides(arguments.assignments)
        if getattr(arguments, "time_limit", None) is not None:
            overrides.append(f"search.time_limit_seconds={arguments.time_limit}")
        problem = load(arguments.job, overrides)
        _check_output(arguments.output, problem.sources)
        report = getattr(import_module(home), verb)(problem, read_decisions(decisions))
        text = render(report, arguments.format)
    _write(text, arguments.output)
    return int(report.exit_code)


def _run_import(arguments: argparse.Namespace) -> int:
    _check_output(arguments.output, (arguments.arguments,))
    _require_new(arguments.output, force=arguments.force)
    with _progress(f"importing {arguments.arguments}"):
        from planner.frameworks.megatron.read import from_megatron_lm
        from planner.jobs.document import read_text

        imported = from_megatron_lm(read_text(arguments.arguments), arguments.assignments)
    _write(imported.text, arguments.output)
    return 0


def _run_export(arguments: argparse.Namespace) -> int:
    with _progress(f"exporting {arguments.plan}"):
        from planner.frameworks import export
        from planner.frameworks.folder import write_files
        from planner.frameworks.launch import launched
        from planner.saved_plan import read_plan

        recorded = read_plan(arguments.plan, _whole_number(arguments.number, "--number"))
        exported = export(recorded.plan, arguments.target)
        if arguments.launch is not None:
            exported = launched(recorded.plan, exported, arguments.launch)
    if abs(recorded.drift_fraction) > MAX_DRIFT_FRACTION:
        change = f"{recorded.drift_fraction:+.1%}"
        print(f"planner: this version predicts another step than the report has: {change}.", file=sys.stderr)
    environment = [f"environment: {name}={value}" for name, value in exported.environment.items()]
    if arguments.output is None:
        _write(list(exported.files.values())[0 if arguments.launch is None else -1], None)
    else:
        with _file_errors(arguments.output):
            written = write_files(arguments.output, exported.files, force=arguments.force)
        _write("\n".join(map(str, written)), None)
    for line in (*environment, *exported.notes):
        print(f"planner: {line}", file=sys.stderr)
    return 0


def _whole_number(text: str, where: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise SpecError(where, f"expected a whole number, got {text[:80]!r}.")
    return int(text)


def _run_model(arguments: argparse.Namespace) -> int:
    with _progress(f"reading {arguments.model}"):
        from planner.describe import describe_model, json_text, model_text

        described = describe_model(arguments.model, arguments.sequence_length, arguments.attention)
    model = Path(arguments.model)
    _check_output(arguments.output, (model, model / "config.json"))
    _write({"table": model_text, "json": json_text}[arguments.format](described), arguments.output)
    return 0


def _run_catalog(arguments: argparse.Namespace) -> int:
    with _progress("reading the catalog"):
        from planner.describe import catalog_text, describe_catalog, json_text

        described = describe_catalog(arguments.entry)
    _check_output(arguments.output, ())
    _write({"table": catalog_text, "json": json_text}[arguments.format](described), arguments.output)
    return 0


def _run_calibrate(arguments: argparse.Namespace) -> int:
    _check_output(arguments.output, [path for path in (arguments.runs, arguments.models) if path])
    _require_new(arguments.output, force=arguments.force)
    with _progress(f"calibrating on {arguments.runs}"):
        from planner.calibration.calibrate import Unfit, calibrate, device_text
        from planner.calibration.wording import calibration_text
        from planner.runs.jobs import references

        known = references(arguments.models, arguments.runs.parent)
        try:
            found = calibrate(arguments.runs, known, name=arguments.output.stem, base=arguments.device)
        except Unfit as error:
            print(f"planner: {error}", file=sys.stderr)
            return EXIT_UNFIT
    _write(device_text(found.device), arguments.output)
    _write(calibration_text(found, str(arguments.output)), None)
    return EXIT_ROWS_REFUSED if found.refused else 0


def _run_top(arguments: argparse.Namespace) -> int:
    _check_output(arguments.output, arguments.results)
    _write(ranking(arguments), arguments.output)
    return 0


# --- output ------------------------------------------------------------------------------------------------


def _check_output(path: Path | None, inputs: Sequence[Path]) -> None:
    """Refuse a file that cannot be written before the work begins, and one that was read."""
    if path is None:
        return
    with _file_errors(path):
        if path.is_dir():
            raise SpecError(str(path), "is a directory, expected a file to write to.")
        if not path.parent.is_dir():
            raise SpecError(str(path), f"there is no folder '{path.parent}' to write to.")
        if any(_same_file(path, source) for source in inputs):
            raise SpecError(str(path), "is what this command reads; it is not overwritten.", "Name another file.")


def _require_new(path: Path | None, *, force: bool) -> None:
    """Refuse to overwrite a file that nobody asked to overwrite."""
    if path is not None and path.exists() and not force:
        raise SpecError(str(path), "exists already.", "Name another file, or add --force.")


@contextmanager
def _file_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise SpecError(str(path)[:200], f"cannot be written: {reason}.") from None


def _same_file(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except (OSError, ValueError):
        return False


def _write(text: str, path: Path | None) -> None:
    text = text if text.endswith("\n") else f"{text}\n"
    if path is None:
        encoding = sys.stdout.encoding or "utf-8"
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
        return
    with _file_errors(path):
        _write_file(text, path.resolve())


def _write_file(text: str, path: Path) -> None:
    """Write beside the file and rename, so that nobody ever finds half of it."""
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
        return
    draft = path.with_name(f".{path.name[:100]}.{os.getpid()}.tmp")
    try:
        draft.write_text(text, encoding="utf-8", errors="backslashreplace")
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def _progress(task: str) -> Iterator[None]:
    """Say on stderr what takes longer than a second: one line in a log, a running clock in a terminal."""
    from threading import Event, Thread

    done = Event()
    clock = Thread(target=_tell_progress, args=(task, done), daemon=True)
    clock.start()
    try:
        yield
    finally:
        done.set()
        clock.join()


def _tell_progress(task: str, done: object) -> None:
    from threading import Event
    from time import monotonic

    assert isinstance(done, Event)
    begin = monotonic()
    if done.wait(PATIENCE_SECONDS):
        return
    if not sys.stderr.isatty():
        print(f"planner: {task} ...", file=sys.stderr, flush=True)
        return
    while True:
        print(f"\rplanner: {task} ... {monotonic() - begin:.0f} s ", end="", file=sys.stderr, flush=True)
        if done.wait(PATIENCE_SECONDS):
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            return


if __name__ == "__main__":
    sys.exit(main())
