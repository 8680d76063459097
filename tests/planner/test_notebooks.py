"""Reports in notebooks: one line as text, pages that load nothing, DataFrames, and the notebooks of the documents."""

from __future__ import annotations

import os
import re
import sys
from html import unescape

import pytest

from costmodel import catalog
from costmodel.errors import SpecError, SpecErrors
from costmodel.record import LONGEST_LINE, cut_line, record, write_out
from planner import (
    ClusterChoices,
    advise,
    compare,
    estimate,
    explain,
    launched,
    load,
    plan,
    plan_for_sizes,
    plan_many,
    read_any,
    recipes_for,
    study,
    to_frame,
    to_megatron_lm,
)
from planner.report.table_csv import COLUMNS
from tests.cases import in_one_case
from tests.sources import ROOT


@pytest.fixture(scope="module")
def answers():
    """One of each report."""
    job = load(ROOT / "benchmarks/jobs/llama3-8b-8xh100.yaml")
    report = plan(job)
    return {
        "plan": report,
        "estimate": estimate(job, "TP8"),
        "explain": explain(job),
        "compare": compare(job, "TP8"),
        "sizes": plan_for_sizes(job.document, num_nodes=range(1, 3)),
        "none": plan(load(job.document, ["model=llama3-405b"])),
        "batch": next(iter(plan_many([job.document], processes=1))),
        "study": study(job, "batch", {"batch": [64, 128]}),
        "advise": advise(job, ClusterChoices(devices=("h100",), sizes=(8, 16))),
        "any": read_any(str(ROOT / "benchmarks/jobs/llama3-8b-8xh100.yaml")),
        "export": to_megatron_lm(report.plans[0]),
        "launch": launched(report.plans[0], to_megatron_lm(report.plans[0]), "slurm"),
        "layout": recipes_for(load(ROOT / "benchmarks/jobs/llama3-405b-2048xh100.yaml"))[0],
    }


def inside(thing, depth=3):
    """Yield a record and those in its fields and properties."""
    yield thing
    if depth and hasattr(type(thing), "__dataclass_fields__"):
        names = [
            *type(thing).__dataclass_fields__,
            *(n for n, v in vars(type(thing)).items() if isinstance(v, property)),
        ]
        for name in names:
            value = getattr(thing, name) if not name.startswith("_") else None
            for one in value if isinstance(value, tuple) else (value,):
                yield from inside(one, depth - 1)


@pytest.mark.slow
def test_every_public_object_is_one_line(answers):
    """Two hundred characters: jobs had 48,115 and reports 1,386,296."""
    things = [one for answer in answers.values() for one in inside(answer) if hasattr(one, "__dataclass_fields__")]
    things += [catalog.device("h100"), catalog.model("llama3-70b"), catalog.framework("megatron-bridge-26.06")]
    things += [ClusterChoices(devices=tuple(catalog.devices())), SpecErrors([SpecError("a", "x" * 500)] * 9)]
    things += [SpecError("model", "x" * 500, "Did you mean " * 90)]
    texts = {(type(one).__name__, repr(one)) for one in things}

    assert len({name for name, _ in texts}) > 60
    assert [name for name, text in texts if len(text) > 200 or "\n" in text] == []
    assert LONGEST_LINE == 200


@pytest.mark.slow
def test_a_line_says_what_matters(answers):
    """The model, the cluster, the end of the search, and the best plan's figures."""
    assert re.match(
        r"PlanReport\(llama3-8b on 8 x h100-80gb-sxm, optimal, 3 plans: 1\d\.\d+ s, 7\d\.\d GiB, MFU 5\d",
        repr(answers["plan"]),
    )
    assert "infeasible, 0 plans)" in repr(answers["none"])
    assert repr(answers["estimate"]).startswith("EstimateReport(llama3-8b on 8 x h100-80gb-sxm, allowed: ")


def test_a_long_text_keeps_its_last_character():
    """It is closed as it was opened, and has no line breaks."""
    assert cut_line(f"A({'x' * 500})") == f"A({'x' * 194}...)"
    assert cut_line("a\n  b") == "a b"


def test_records_that_differ_behind_the_cut_are_told_apart_as_whole_text():
    """Calibration groups runs of one configuration by their facts."""

    @record(frozen=True, kw_only=True)
    class Long:
        text: str

    one, other = (Long(text="x" * 200 + end + "x" * 200) for end in "ab")

    assert repr(one) == repr(other)
    assert write_out(one) != write_out(other)
    assert write_out((one, {"a": one})) == write_out((Long(text=one.text), {"a": Long(text=one.text)}))


FRAME = re.compile(r'<iframe title="planner" sandbox="allow-scripts" style="[^"]*" srcdoc="([^"]*)"></iframe>')


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["plan", "estimate", "explain", "compare", "sizes", "none", "batch", "study", "advise"]
)
def test_every_answer_is_shown_and_has_rows(answers, name):
    """
    A page, a table or text; nothing that fits is a row of a batch only.

    A whole page is in a frame, which may run its scripts and nothing else; its policy allows no source.
    """
    shown = answers[name]._repr_html_()

    assert len(answers[name].to_frame()) >= (name != "none")
    if name not in ("explain", "sizes", "batch"):
        page = unescape(FRAME.fullmatch(shown)[1])
        assert page.startswith("<!doctype html>")
        assert "default-src 'none'" in page
        assert not re.search(r'(?:src|href)="https?:', page)
    else:
        assert shown.startswith({"explain": "<pre>"}.get(name, "<table"))
        assert name != "sizes" or shown.count("<tr>") == 3  # a header and two sizes


@pytest.mark.slow
def test_frames_have_a_row_for_each_plan(answers):
    """Columns are those of the CSV output; numbers are numbers."""
    frame = answers["plan"].to_frame()

    assert [*frame.columns] == [*COLUMNS]
    assert frame.step_time_seconds.tolist() == pytest.approx([one.step_seconds for one in answers["plan"].plans])
    assert answers["estimate"].to_frame().tp.tolist() == [8]
    assert len(answers["compare"].to_frame()) == 2
    assert answers["sizes"].to_frame().num_devices.tolist() == [8, 16]
    assert answers["explain"].to_frame().constraint[0] == "device memory"
    assert len(answers["none"].to_frame()) == 0
    assert to_frame([answers["plan"], answers["estimate"]]).tp.tolist()[-1] == 8


@pytest.mark.slow
def test_results_of_a_batch_are_a_frame(answers):
    """A row for each plan; a job without one has a row, too."""
    job = answers["plan"].problem.document
    frame = to_frame(plan_many([job, {**job, "model": "no-such-model"}], processes=1))

    assert frame.status.value_counts().to_dict() == {"optimal": 3, "wrong_input": 1}


@in_one_case("wrong", [None, "report", 3, [1]])
def test_a_frame_of_something_else_is_refused(wrong):
    """The message names what was seen."""
    with pytest.raises(SpecError, match="expected a report or several"):
        to_frame(wrong)


@pytest.mark.slow
def test_the_notebooks_of_the_documents_run(tmp_path):
    """Top to bottom, in an empty folder, each without the names of the one before."""
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    command = tmp_path / "bin" / "planner"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m planner "$@"\n')
    command.chmod(0o755)
    path = {"PATH": f"{command.parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "IPYTHONDIR": str(tmp_path)}
    whole, parts = nbformat.v4.new_notebook(), {}
    # A batch has a worker for each processor that its process may use, and each of them imports the planner.
    whole.cells.append(nbformat.v4.new_code_cell("import os\nos.sched_setaffinity(0, [min(os.sched_getaffinity(0))])"))
    for file in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        parts[file.name] = nbformat.read(file, as_version=4).cells
        assert all(not cell.get("outputs") for cell in parts[file.name]), f"{file.name} has outputs: they grow old"
        whole.cells += [nbformat.v4.new_code_cell("%reset -f"), *parts[file.name]]
    client = nbclient.NotebookClient(whole, timeout=60, resources={"metadata": {"path": str(tmp_path)}})

    client.execute(env={**os.environ, **path})

    assert len(parts) == 3
    for name, cells in parts.items():
        shown = [one for cell in cells for one in cell.get("outputs", ()) if "text/html" in one.get("data", {})]
        assert shown, f"{name} shows no page and no table"
