"""Where jobs come from, what they are called, and what tells them apart."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path

import pytest

from costmodel.errors import SpecError
from planner.batch.jobs import JobSet, make_job, read_axis
from tests.cases import in_one_case, read_table

CASES = read_table("batch_jobs")

JOB = """
model: llama3-8b
cluster: {device: h100-80gb-sxm, num_devices: 8}
training: {global_batch_size: 64, sequence_length: 4096, tokens: 1e9}
"""


@pytest.fixture
def job(tmp_path):
    """A job file in an empty folder."""
    path = tmp_path / "small.yaml"
    path.write_text(JOB)
    return path


def keys(*arguments, **options):
    """The hashes of a set of jobs."""
    return [one.key for one in JobSet(*arguments, **options)]


# --- sweeps ---------------------------------------------------------------------------------------------------


@in_one_case(
    ("text", "values"),
    [
        ("512,1024,2048", (512, 1024, 2048)),
        ("64..8192", (64, 128, 256, 512, 1024, 2048, 4096, 8192)),
        ("64..200", (64, 128)),
        ("8..8", (8,)),
        ("64..512..192", (64, 256, 448)),
        ("1,4..16", (1, 4, 8, 16)),
        ("[1, 2]", ([1, 2],)),
        ("[1, 2],[4]", ([1, 2], [4])),
        ('{pp: ">= 16", tp: 8}', ({"pp": ">= 16", "tp": 8},)),
        ("'a,b',c", ("a,b", "c")),
        ("none", ("none",)),
        ("../8b,8b/..", ("../8b", "8b/..")),
    ],
)
def test_values_of_a_sweep(text, values):
    """Commas outside brackets and quotes part values; ranges double or step."""
    assert read_axis(f"search.x={text}") == ("search.x", values)


@in_one_case(("assignment", "message"), CASES["sweeps"])
def test_wrong_sweeps_say_what_is_wrong(assignment, message):
    """Each with its key."""
    with pytest.raises(SpecError) as refused:
        read_axis(assignment)

    assert message in str(refused.value)


# --- sources --------------------------------------------------------------------------------------------------


def test_a_folder_times_rows_times_a_sweep(tmp_path, job):
    """Two files, two rows and three sizes are twelve jobs; names and overrides say which is which."""
    (tmp_path / "other.yml").write_text(JOB)
    rows = tmp_path / "rows.csv"
    rows.write_text("name,training.global_batch_size,search.pin.tp\nbig,128,\nslow,64,4\n")

    jobs = JobSet([tmp_path], rows=rows, assignments=["cluster.num_devices=8..32", "top=2"])

    made = list(jobs)
    assert len(jobs) == len(made) == 12
    assert made[0].name == "other big cluster.num_devices=8"
    assert made[-1].name == "small slow cluster.num_devices=32"
    assert made[-1].overrides == {
        "training.global_batch_size": 64,
        "search.pin.tp": 4,
        "cluster.num_devices": 32,
        "top": 2,
    }
    assert made[0].overrides == {"training.global_batch_size": 128, "cluster.num_devices": 8, "top": 2}
    assert made[-1].document["search"] == {"pin": {"tp": 4}}
    assert made[0].source == str(tmp_path / "other.yml")
    assert len({one.key for one in made}) == 12


def test_jobs_are_made_as_they_are_asked_for(job):
    """A hundred thousand of them cost nothing before."""
    begin = time.monotonic()

    jobs = JobSet([job], assignments=["training.tokens=1..100000..1"])

    assert len(jobs) == 100_000
    assert [one.overrides["training.tokens"] for one in itertools.islice(jobs, 2)] == [1, 2]
    assert time.monotonic() - begin < 5


def test_what_is_wrong_with_one_job_is_its_own(tmp_path, job):
    """A file that is no YAML, a row with too many cells and an override of nothing are mistakes of their jobs."""
    (tmp_path / "broken.yaml").write_text("model: [")
    rows = tmp_path / "rows.csv"
    rows.write_text("cluster.num_devices\n8\n8,9\n")

    of_files = {one.source: one.mistake for one in JobSet([tmp_path])}
    of_rows = [one.mistake for one in JobSet([job], rows=rows)]
    [nothing] = JobSet([job], assignments=["model.x=1"])

    assert "is not YAML" in of_files[str(tmp_path / "broken.yaml")]
    assert of_files[str(job)] is None
    assert of_rows == [None, f"{rows}, line 3: has 2 cells, the header 1."]
    assert "model: is 'llama3-8b' and has no entries of its own." in nothing.mistake


@pytest.mark.parametrize(("sources", "options", "message"), CASES["sources"])
def test_sources_that_make_no_batch_are_refused(sources, options, message, tmp_path, job, monkeypatch):
    """Before anything is planned."""
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    Path("none.csv").write_text("top\n")
    Path("twice.csv").write_text("top,top\n1,2\n")
    Path("binary.csv").write_bytes(b"\xff\xfe\n")

    with pytest.raises(SpecError) as refused:
        JobSet(sources, **options)

    assert message in str(refused.value)


def test_a_bound_may_be_raised(job):
    """Who wants more says so."""
    assert len(JobSet([job], assignments=["training.tokens=1..200000..1"], max_jobs=200_000)) == 200_000


# --- content --------------------------------------------------------------------------------------------------


def test_the_same_job_has_the_same_hash_wherever_it_lies(tmp_path, job):
    """Neither the folder nor comments nor the order of entries count."""
    other = tmp_path / "elsewhere"
    other.mkdir()
    reordered = "# a comment\n" + "\n".join(reversed(JOB.strip().splitlines())) + "\n"
    (other / "small.yaml").write_text(reordered)

    assert keys([job]) == keys([other / "small.yaml"])


def test_whatever_a_job_says_changes_its_hash(tmp_path, job):
    """An override, a number, a name."""
    before = keys([job])
    overridden = keys([job], assignments=["top=2"])
    (tmp_path / "renamed.yaml").write_text(JOB)
    renamed = keys([tmp_path / "renamed.yaml"])
    job.write_text(JOB.replace("64", "128"))

    assert len({*before, *overridden, *renamed, *keys([job])}) == 4


@pytest.mark.parametrize(
    ("entry", "name"),
    [("model", "config.json"), ("cluster.device", "mine.yaml"), ("search.candidates", "mine.csv")],
)
def test_files_that_a_job_names_are_part_of_it(entry, name, tmp_path, job):
    """A device that was calibrated anew makes other jobs, though their files did not change."""
    named = tmp_path / name
    assignment = f"{entry}=./{name}"
    missing = keys([job], assignments=[assignment])
    named.write_text("one")
    one = keys([job], assignments=[assignment])
    named.write_text("another")

    assert len({*missing, *one, *keys([job], assignments=[assignment])}) == 3


def test_another_version_of_the_planner_plans_anew(job, monkeypatch):
    """Its figures may differ."""
    before = keys([job])
    monkeypatch.setattr("planner.batch.jobs.version", lambda: "99.0")

    assert keys([job]) != before


def test_jobs_of_a_library_are_mappings_too(job):
    """What is said is what counts."""
    said = {"model": "llama3-8b", "cluster": {"num_devices": 8}}

    one, wrong, file = map(make_job, (said, {"model": object()}, str(job)))

    assert json.loads(json.dumps(one.document)) == said
    assert one.name == "job"
    assert "expected text, a number" in wrong.mistake
    assert (file.name, file.mistake) == ("small", None)
