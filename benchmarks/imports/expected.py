"""
Published files against the values that their text holds: rows of a folder's ``expected.csv``.

Each row names a file and gives its tool, whether it is a complete pretraining of a decoder (``yes``, ``with_set`` with
what it ``needs``, ``no``), and the degrees, batches, sequence, precision, recomputation and devices in its text.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from benchmarks.accuracy.metrics import grouped
from benchmarks.inputs import read_rows, read_yaml
from costmodel.errors import SpecError
from planner import import_job, load
from planner.frameworks.megatron.read import Imported

DATA = read_yaml(__file__)
GIVEN = DATA["given"]


TABLE = "expected.csv"
DEVICE_COUNTS = (None, 8, 64, 16, 256, 1024, 2048)
"""Devices that are tried where the text leaves them open, the text's own first."""
LEAST_SHARE = 0.9
LEAST_SHARE_OF_ONE = 0.8
NAMED_ONLY = ("levanter", "olmo_core")
"""Folders of tools that are recognised and refused by name."""

VOCABULARY = "model.vocab_size=50304"
"""Entry that a user adds if only a tokenizer's files would tell the vocabulary."""

DEGREES = ("tp", "pp", "cp", "ep", "vpp", "mbs")


@dataclass(frozen=True)
class Outcome:
    """
    Outcome of one file's import.

    Parameters
    ----------
    refusal
        Message that refuses it; empty where it was imported.
    differences
        ``field: expected, got``, each where the job is not what the text says.
    """

    row: Mapping[str, str]
    refusal: str
    differences: tuple[str, ...] = ()

    @property
    def folder(self) -> str:
        """The first folder of the file's path."""
        return self.row["path"].split("/")[0]

    @property
    def is_importable(self) -> bool:
        """True if the table calls the file a pretraining, with all that it needs."""
        return self.row["importable"] in ("yes", "with_set")


def rows_of(folder: Path) -> Iterator[dict[str, str]]:
    """Yield the rows of the table."""
    yield from read_rows(folder / TABLE)


def outcomes(folder: Path) -> Iterator[Outcome]:
    """Import each file of the table, with what it needs."""
    for row in rows_of(folder):
        found = import_row(folder, row)
        if isinstance(found, str):
            yield Outcome(row, found)
        else:
            imported, (entries, _) = found
            is_count_given = any(entry.startswith("cluster.num_devices=") for entry in entries)
            yield Outcome(row, "", tuple(_differences(row, imported.document, is_count_given=is_count_given)))


Given: TypeAlias = tuple[list[str], dict[str, str]]
"""Entries of the job and variables of the script that the command says."""


def import_row(folder: Path, row: Mapping[str, str]) -> tuple[Imported, Given] | str:
    """Import a file with what it needs, which is returned as well; a text is the refusal."""
    refusal = ""
    for variables in _given(row):
        for number in DEVICE_COUNTS:
            entries = [f"cluster.device={_device(row)}", *_entries(row)]
            if number is not None:
                entries.append(f"cluster.num_devices={number}")
            for given in (entries, [*entries, VOCABULARY]):
                try:
                    return import_job(folder / row["path"], given, variables), (given, variables)
                except SpecError as error:
                    refusal = str(error)
                    if "vocab" not in f"{error.where} {error.hint}":
                        break
            if not re.search(r"num_devices|strategy|dp\b|devices", refusal):
                break
    return refusal


def _entries(row: Mapping[str, str]) -> Iterator[str]:
    """Entries of the job that say what a configuration leaves to its user."""
    if "micro-batch" in row["needs"]:
        yield "strategy.mbs=1"


def _device(row: Mapping[str, str]) -> str:
    if "MI355X" in row["path"]:
        return "mi355x"
    if "MI300X" in row["path"]:
        return "mi300x"
    if "gb300" in row["path"] or "gb200" in row["path"] or row["precision"] == "mxfp8":
        return "gb300" if "gb300" in row["path"] else "gb200"
    return "h100-80gb-sxm"


def _given(row: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Variables of a script: the words of its README's call, else usual values of what it needs."""
    call = re.search(r"call of the README: ([^;]*)", row["notes"])
    if call is not None:
        yield {str(number): word for number, word in enumerate(call[1].split(), 1)}
        return
    needs = [part.strip() for part in row["needs"].split(";")]
    positional = dict(re.findall(r"\$(\d+) (\w+)", row["needs"]))
    named = [part for part in needs if part in GIVEN]
    given = {number: GIVEN[name][0] for number, name in positional.items() if name in GIVEN}
    given |= {name: GIVEN[name][0] for name in named}
    if "launches" in row["needs"]:
        given["launch"] = "1"
    sizes = [number for number, name in positional.items() if name == "MODEL_SIZE"]
    for size in GIVEN["MODEL_SIZE"] if sizes else ("",):
        yield given | dict.fromkeys(sizes, size)


def _differences(row: Mapping[str, str], document: Mapping[str, Any], *, is_count_given: bool) -> Iterator[str]:
    """Fields in which the job is not what the text says; devices that were given are not compared."""
    got = values_of(document)
    if not is_count_given:
        got["n_gpus"] = str(document["cluster"]["num_devices"])
    for name, value in got.items():
        expected = row[name]
        if expected and value != expected and not (name == "num_layers" and "noop" in row["notes"]):
            yield f"{name}: {expected}, got {value}"


def values_of(document: Mapping[str, Any]) -> dict[str, str]:
    """Return what a table of expected values says of an imported job, by its columns."""
    model, strategy, training = load(document).facts.model, document["strategy"], document["training"]
    return {name: str(strategy[name]) for name in DEGREES} | {
        "num_layers": str(model.num_layers),
        "hidden_size": str(model.hidden_size),
        "gbs": str(training["global_batch_size"]),
        "seq_len": str(training["sequence_length"]),
        "precision": str(training.get("precision", "bf16")),
        "recompute": recompute_of(strategy),
    }


def recompute_of(strategy: Mapping[str, Any]) -> str:
    """A strategy's recomputation in the words of the table."""
    said = strategy.get("recompute", "none")
    if strategy.get("layout", {}).get("full_layers") or said == "full":
        return "full"
    return "none" if said in ("none", [], ()) else "selective"


def report(found: Sequence[Outcome]) -> int:
    """Print shares by folder, differences and refusals; 1 where a limit is missed or a value is wrong."""
    by_folder = grouped(found, lambda outcome: outcome.folder)
    print(f"\n{'folder':20} {'imported':>8} {'of':>4} {'taken wrongly':>13} {'wrong values':>12}")
    low, imported, total, wrong = False, 0, 0, 0
    for folder, of_folder in sorted(by_folder.items()):
        right = [outcome for outcome in of_folder if outcome.is_importable and folder not in NAMED_ONLY]
        taken = sum(not outcome.refusal for outcome in right)
        others = sum(not outcome.refusal for outcome in of_folder if outcome not in right)
        values = sum(bool(outcome.differences) for outcome in of_folder)
        low = low or taken < LEAST_SHARE_OF_ONE * len(right) or others > 0
        imported, total, wrong = imported + taken, total + len(right), wrong + values
        print(f"{folder:20} {taken:8} {len(right):4} {others:13} {values:12}")
    print(f"{'all':20} {imported:8} {total:4} {'':13} {wrong:12}")
    for outcome in found:
        for difference in outcome.differences:
            print(f"  {outcome.row['path']}: {difference}")
    print("\nRefusals:")
    for text, number in Counter(outcome.refusal for outcome in found if outcome.refusal).most_common():
        print(f"{number:4} {text[:220]}")
    return int(low or wrong > 0 or imported < LEAST_SHARE * total)


PRINTED = "printed"
"""Folder of printed and saved configurations, with a table of their values."""

DEVICES = ("cluster.device=h100-80gb-sxm", "cluster.num_devices=64")
"""Entries where nothing prints them; devices are the file's own where it does."""

OF_DEEPSPEED = ("model=llama3-8b", "training.sequence_length=1024")
"""Entries that DeepSpeed's configuration never has."""

PRECISIONS = {"bfloat16": "bf16"}
OPEN = ("", "-1")
"""Values that say nothing, or follow from the number of devices."""


def report_printed(folder: Path) -> int:
    """Print how many printed and saved configurations give their values, and what differs; 1 where one does."""
    found = {row["file"]: list(_problems(row, folder / row["file"])) for row in rows_of(folder)}
    print(
        f"\nPrinted and saved configurations that give their values: {list(found.values()).count([])} of {len(found)}."
    )
    for name, problems in found.items():
        for problem in problems:
            print(f"  {name}: {problem}")
    return int(any(found.values()))


def _problems(row: Mapping[str, str], path: Path) -> Iterator[str]:
    more = OF_DEEPSPEED if "DeepSpeed configuration" in row["what"] else ()
    count = row["n_gpus_or_note"].partition(" ")[0]
    devices = () if row["what"].startswith("printed arg") or more else DEVICES[1:]
    try:
        job = import_job(path, [*DEVICES[:1], *devices, *more]).document
    except SpecError as error:
        yield str(error)
        return
    is_counted = not devices and count.isdecimal()
    got = values_of(job) | {"n_gpus_or_note": str(job["cluster"]["num_devices"]) if is_counted else ""}
    for name, value in got.items():
        expected = PRECISIONS.get(
            row.get(name, ""), row.get(name, "") if name != "n_gpus_or_note" else count if value else ""
        )
        if expected not in (*OPEN, value):
            yield f"{name}: {expected}, got {value}"
