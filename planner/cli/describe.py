"""``planner model``, ``planner catalog``, ``planner support``, ``planner schema``: what the planner knows."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from planner.cli.arguments import TEXT_FORMATS, add_output, add_output_file, describe
from planner.cli.output import check_output, progress, screen_of, write
from planner.report.section import PLAIN, Section

ATTENTION_CONVENTIONS = ("full", "causal")


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``planner model``."""
    parser.add_argument(
        "model", metavar="NAME_OR_CONFIG", help="catalog name, path of a config.json, or name on the Hugging Face hub"
    )
    parser.add_argument(
        "--sequence-length",
        metavar="S",
        default="4096",
        help="tokens per sequence for the FLOPs, such as 8k (default: 4096)",
    )
    parser.add_argument(
        "--attention",
        choices=ATTENTION_CONVENTIONS,
        default="full",
        help="whether scores that the causal mask hides count as FLOPs: full (default) or causal",
    )
    add_output(parser, TEXT_FORMATS)


def add_catalog_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``planner catalog``."""
    parser.add_argument(
        "entry",
        metavar="WHAT",
        nargs="?",
        help="devices, aliases, calibrations, architectures, frameworks, models, precisions, recipes, or one's name",
    )
    parser.add_argument(
        "only",
        metavar="WORD",
        nargs="*",
        help="of recipes: only those of a model, device, precision or release, such as 'recipes llama3-70b h100'",
    )
    add_output(parser, TEXT_FORMATS)


def add_support_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``planner support``."""
    describe(
        parser,
        "Asks each export target for a job on one node, as 'planner plan' with search.target would. Runs are the "
        "measured ones that intervals and fits know. Degrees and settings have rules of their own: 'planner explain'.",
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        nargs="?",
        help="catalog name or path of a config.json: its answers on every device (default: all families)",
    )
    parser.add_argument(
        "--device", metavar="NAME", help="answers on this device alone (default: h100-80gb-sxm, and all)"
    )
    add_output_file(parser)


def add_schema_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``planner schema``."""
    describe(parser, "Prints the JSON Schema of what programs read and write; without a name, which there are.")
    parser.add_argument("name", metavar="NAME", nargs="?", help="job, report, batch-line, or another of the list")
    add_output_file(parser)


def run_model(arguments: argparse.Namespace) -> int:
    """Describe a model."""
    with progress(f"reading {arguments.model}"):
        from planner.report.describe import align_rows, describe_model, json_text, model_rows

        described = describe_model(arguments.model, arguments.sequence_length, arguments.attention)
    model = Path(arguments.model)
    check_output(arguments.output, (model, model / "config.json"))
    rows = model_rows(described)
    whole = json_text(described) if arguments.format == "json" else align_rows(rows)
    write(_terminal_text(arguments, [Section(title=arguments.model, rows=tuple(rows))]) or whole, arguments.output)
    return 0


def run_catalog(arguments: argparse.Namespace) -> int:
    """Describe the catalog, or an entry."""
    with progress("reading the catalog"):
        from planner.report.describe import catalog_tables, catalog_text, describe_catalog, json_text, leaves

        described = describe_catalog(arguments.entry, arguments.only)
    check_output(arguments.output, ())
    tables = [
        Section(title=name, header=tuple(rows[0]) if rows else (), rows=tuple(tuple(row.values()) for row in rows))
        for name, rows in catalog_tables(described)
    ] or [Section(title=arguments.entry or "", rows=tuple(leaves(described)))]
    whole = json_text(described) if arguments.format == "json" else catalog_text(described)
    write(_terminal_text(arguments, tables) or whole, arguments.output)
    return 0


def run_support(arguments: argparse.Namespace) -> int:
    """Print what is planned, exported, measured and refused."""
    check_output(arguments.output, ())
    with progress("asking the targets"):
        from planner.report.console import sections_text
        from planner.report.support import support_sections

        sections = support_sections(arguments.model, arguments.device)
    write(sections_text(sections, screen_of(arguments.output)), arguments.output)
    return 0


def run_schema(arguments: argparse.Namespace) -> int:
    """Print a schema, or the list."""
    check_output(arguments.output, ())
    with progress("making the schema"):
        from planner.schema import list_text, schema_text

        text = list_text() if arguments.name is None else schema_text(arguments.name)
    write(text, arguments.output)
    return 0


def _terminal_text(arguments: argparse.Namespace, sections: Sequence[Section]) -> str:
    """Format sections for a terminal; return an empty text for a pipe, where other programs get a line per entry."""
    screen = screen_of(arguments.output)
    if arguments.format == "json" or screen is PLAIN:
        return ""
    from planner.report.console import sections_text

    return sections_text(sections, screen)
