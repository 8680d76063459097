"""A job in one line, as a file with comments, from standard input; and all of its mistakes at once."""

import io
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from costmodel.errors import SpecError, SpecErrors, mistakes_of
from planner import cli
from planner.jobs.commented import rebase_paths, write_commented
from planner.jobs.document import Document, parse, read_document
from planner.jobs.entries import Job, kinds
from planner.jobs.one_line import cluster_entries, one_line
from planner.jobs.problem import load
from tests.cases import in_one_case, read_table
from tests.planner.test_job import LLAMA

NUMBERS = {"batch": "1024", "sequence": "8k", "tokens": "15T"}
OPTIONS = ["--batch", "1024", "--sequence", "8k", "--tokens", "15T"]

JOB = {
    "model": "llama3-70b",
    "cluster": {"device": "h100-80gb-sxm", "num_devices": 512},
    "training": {"global_batch_size": 1024, "sequence_length": 8192, "tokens": 15e12},
}


def problem_of(model="llama3-70b", cluster="512xh100-80gb-sxm", overrides=(), **numbers):
    """What a line means."""
    return load(one_line(model, cluster, NUMBERS | numbers), overrides)


def mistakes(model="llama3-70b", cluster="512xh100-80gb-sxm", numbers=None):
    """What is wrong with a line."""
    with pytest.raises(SpecError) as caught:
        load(one_line(model, cluster, NUMBERS if numbers is None else numbers))
    return [str(one) for one in mistakes_of(caught.value)]


@pytest.fixture
def no_hub(tmp_path, monkeypatch):
    """A Hugging Face cache without anything."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


@pytest.fixture
def config(tmp_path):
    """The file of a small model."""
    path = tmp_path / "tiny" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(LLAMA))
    return path


# --- one line --------------------------------------------------------------------------------------------------


def test_a_line_is_the_job_that_it_says():
    """The same facts as the file that a person would write."""
    facts = problem_of().facts

    assert facts == load(JOB).facts
    assert facts.workload.sequence_length == 8192


def test_entries_may_be_changed():
    """As those of a file."""
    assert problem_of(overrides=["training.sequence_length=4k", "search.pin.tp=8"]).search.pin == {"tp": 8}


@in_one_case(("text", "num_devices", "node", "domain"), read_table("one_line")["clusters"])
def test_clusters(text, num_devices, node, domain):
    """
    Nodes smaller than the device's own are NVLink domains, where its own node is one; racks stay whole.

    A machine that a cloud or a maker sells is not one device: a p5.48xlarge has eight H100.
    """
    cluster = load(one_line("llama3-8b", text, NUMBERS)).facts.cluster

    assert (cluster.num_devices, cluster.device.devices_per_node) == (num_devices, node)
    assert cluster.device.networks[0].num_peers == domain


@in_one_case(("text", "message"), read_table("one_line")["wrong_clusters"])
def test_wrong_clusters(text, message):
    """Each with the spelling that is right."""
    with pytest.raises(SpecError) as caught:
        cluster_entries(text)

    assert caught.value.where == "cluster"
    assert message in str(caught.value)


WRONG = read_table("one_line")["wrong"]


@in_one_case(("line", "messages"), WRONG)
def test_wrong_lines(line, messages):
    """Every mistake once, with its option, in the order of the line."""
    found = mistakes(**line)

    assert len(found) == len(messages)
    assert all(expected in message for expected, message in zip(messages, found, strict=True))


# --- models ----------------------------------------------------------------------------------------------------


def test_a_model_by_its_file(config):
    """The path of the file or of its folder."""
    for name in (config, config.parent):
        assert problem_of(str(name)).facts.model.name == "tiny"


def test_a_model_by_its_name_on_the_hub(no_hub):
    """The catalog has its architecture; what is planned again needs no cache."""
    problem = problem_of("meta-llama/Meta-Llama-3-70B")

    assert problem.facts == load(JOB).facts
    assert problem.document["model"] == "llama3-70b"


def test_the_cache_comes_first(no_hub):
    """What was downloaded is what is trained."""
    folder = no_hub / "models--meta-llama--Meta-Llama-3-70B" / "snapshots" / "abc"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(LLAMA))
    problem = problem_of("meta-llama/Meta-Llama-3-70B")

    assert problem.facts.model.num_layers == 4
    assert problem.facts.model.name == "Meta-Llama-3-70B"
    assert problem.sources == (folder / "config.json",)


def test_a_name_that_is_nowhere(no_hub):
    """How to get the file."""
    [message] = mistakes("some-lab/Some-Model")

    assert message.startswith(
        "model: 'some-lab/Some-Model' is no file, nor in the catalog, nor in the Hugging Face cache"
    )
    assert "Run 'hf download some-lab/Some-Model config.json', or give the path of a config.json." in message
    assert "Did you mean 'meta-llama/Meta-Llama-3-70B' or" in mistakes("meta-llama/Meta-Llama-3-70")[0]


# --- a file with comments --------------------------------------------------------------------------------------


def test_a_commented_file_is_the_same_job(tmp_path):
    """Facts, search and spelling; every entry of the record is there, given or commented out."""
    overrides = ["search.pin={tp: 8, recompute: none}", 'search.limits=["pp <= 4", "recompute != full"]', "top=5"]
    document = one_line("llama3-70b", "64x8xh100-80gb-sxm", NUMBERS)
    problem = load(document, overrides)
    path = tmp_path / "job.yaml"
    path.write_text(write_commented(document.entries, "A title: with, signs #1"))
    again = load(path)

    assert (again.facts, again.search, again.top) == (problem.facts, problem.search, problem.top)
    assert parse(path.read_text(), "job.yaml") == document.entries
    assert "  sequence_length: 8k\n" in path.read_text()
    assert all(f"{name}:" in path.read_text() for name in Job.__dataclass_fields__)


def test_what_is_commented_out_holds_without_it(tmp_path):
    """With every comment sign before an entry taken away the job is the same."""
    text = write_commented(one_line("llama3-70b", "512xh100-80gb-sxm", NUMBERS).entries, "All entries")
    entry = [line.replace("# ", "", 1) if is_entry(line) else line for line in text.splitlines()]
    path = tmp_path / "job.yaml"
    path.write_text("\n".join(entry))
    whole = read_document(path)

    assert {"settings", "reliability", "search", "strategy"} <= whole.entries.keys()
    assert (load(whole).facts, load(whole).search) == (problem_of().facts, problem_of().search)


@pytest.mark.parametrize("device", ["h100-80gb-sxm", "gb200", "mi300x", "tpu-v5p", "l40s"])
def test_init_shows_the_defaults_that_hold(device, tmp_path):
    """The framework, memory, bandwidths, the node: ``null`` says nothing; written out they are the same job."""
    path = tmp_path / "job.yaml"
    words = [f"64x{device}", "--batch", "64", "--sequence", "8k", "--tokens", "1T", "-o", str(path)]
    assert cli.main(["init", "llama3-8b", *words]) == 0
    text = path.read_text()

    before, reliability = facts_of(path), load(path).reliability
    names = ("framework", "precision", "devices_per_node", "scale_up_size", "memory_gib", "host_memory_gib")
    names += ("scale_up_bandwidth", "internode_bandwidth")
    for name in names:
        text, count = re.subn(rf"\n  # ({name}: (?!null))", r"\n  \1", text)
        assert count == 1, name
    text = text.replace("# reliability:", "reliability:").replace("#   mttr_seconds:", "  mttr_seconds:")
    path.write_text(text)
    assert facts_of(path) == before
    assert load(path).reliability == reliability


def facts_of(path):
    """The facts of a job, without the sources of what its file says."""
    facts = load(path).facts
    return facts.model, facts.workload, replace(facts.cluster, device=replace(facts.cluster.device, sources={}))


def is_entry(line):
    """A comment that is an entry, or a section that holds some."""
    words = line.replace("# ", "", 1).split(":")[0].strip()
    return line.lstrip().startswith("# ") and words.replace("_", "").isalpha() and words.islower() and ":" in line


@in_one_case("value", ["a: b", "#", "x, y", "8k", "yes", "null", "1e5", "'", '"', "[", "é", "~", "- a", "8.0"])
def test_any_text_survives(value):
    """What YAML would read otherwise is quoted."""
    job = {**JOB, "model": value, "search": {"pin": {value: value}, "limits": [value]}}

    assert parse(write_commented(job, "Texts"), "job.yaml") == job


def test_paths_follow_the_file(config, monkeypatch):
    """They are relative to the file that names them, those of the line to the working directory."""
    monkeypatch.chdir(config.parent)
    job = {"model": "config.json", "cluster": {"device": "h200"}, "search": {"candidates": "none.csv"}}
    moved = rebase_paths(job, Path("..") / "jobs")

    assert moved == {**job, "model": "../tiny/config.json"}


# --- the command line ------------------------------------------------------------------------------------------


def test_init_writes_what_plan_plans(tmp_path, capsys):
    """To a file that was not there, to stdout, and over a file with --force only."""
    path = tmp_path / "job.yaml"
    words = ["init", "llama3-70b", "512xh100-80gb-sxm", *OPTIONS, "search.pin.tp=8", "search.target=megatron-lm"]

    assert cli.main([*words, "-o", str(path)]) == 0
    assert cli.main(words) == 0
    assert capsys.readouterr().out == path.read_text().partition("\n")[2]  # behind the schema for editors
    assert (load(path).search.pin, load(path).search.target) == ({"tp": 8}, "megatron-lm")

    path.write_text("mine")
    assert cli.main([*words, "-o", str(path)]) == 2
    assert path.read_text() == "mine"
    assert f"planner: {path}: exists already. Name another file, or add --force." in capsys.readouterr().err
    assert cli.main([*words, "-o", str(path), "--force"]) == 0
    assert load(path).search.pin == {"tp": 8}


def test_init_writes_no_wrong_job(tmp_path, capsys):
    """A job that cannot be planned is not written."""
    path = tmp_path / "job.yaml"

    assert cli.main(["init", "llama3-70b", "h100x8", *OPTIONS, "-o", str(path)]) == 2
    assert cli.main(["init", "llama3-70b", *OPTIONS, "-o", str(path)]) == 2
    assert "CLUSTER: is missing." in capsys.readouterr().err
    assert not path.exists()


def test_the_model_of_a_file_stays_where_it_is(config, monkeypatch, capsys):
    """The job in another folder names it from there."""
    monkeypatch.chdir(config.parent.parent)
    Path("jobs").mkdir()

    assert cli.main(["init", "tiny", "8xh100-80gb-sxm", *OPTIONS, "-o", "jobs/job.yaml"]) == 0
    assert load("jobs/job.yaml").facts.model.name == "tiny"


@pytest.mark.parametrize(
    "words",
    [
        ["llama3-8b", "8xh100-80gb-sxm", "tp=2", "pp=1", "--batch", "1k", "--sequence", "8k", "--tokens", "1T"],
        ["--batch", "1k", "llama3-8b", "--sequence", "8k", "8xh100-80gb-sxm", "tp=2", "--tokens", "1T", "pp=1"],
    ],
)
def test_words_may_come_in_any_order(words, capsys):
    """Options between a model, a cluster and decisions; the report says what k is."""
    assert cli.main(["estimate", *words, "--format", "table"]) == 0

    shown = capsys.readouterr().out
    assert "1,000 x 8,192" in shown
    assert "sequence_length 8k is 8,192" in shown
    assert "k is 1,024 in sequence lengths, 1,000 elsewhere" in " ".join(shown.split())


@pytest.mark.parametrize(
    ("cluster", "said"),
    [("2xvr200-nvl144", "2 x vr200-nvl144 of 72 vr200 each are 144; tokens"), ("144xvr200", "units tokens")],
)
def test_the_report_says_what_machines_mean(cluster: str, said: str, capsys: pytest.CaptureFixture[str]):
    """A number before a rack's name counts racks, before a device's name devices."""
    words = ["llama3-8b", cluster, "tp=1", "pp=1", "--batch", "144", "--sequence", "4096", "--tokens", "1T"]
    assert cli.main(["estimate", *words, "--format", "table"]) == 0

    assert said in " ".join(capsys.readouterr().out.split())


def test_standard_input(monkeypatch, capsys, tmp_path):
    """A job file is read from it, and its mistakes have lines and columns, too."""
    text = write_commented(one_line("llama3-8b", "8xh100-80gb-sxm", NUMBERS).entries, "From a pipe")
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(text.encode())))
    assert cli.main(["estimate", "-", "tp=2", "pp=1"]) == 0
    assert "llama3-8b on 8 x h100-80gb-sxm" in capsys.readouterr().out

    for content, message in [
        (b"", "standard input: is empty."),
        (b"\xff", "standard input: is not text in UTF-8 (byte 0)."),
        (b"a" * (2**20 + 1), "standard input: is larger than 1024 KiB"),
        (b"model: x\ncluster: [", "standard input: is not YAML in line 3"),
        (
            text.replace("num_devices: 8", "num_devices: 8 k").encode(),
            "column 16: cluster.num_devices: expected a count",
        ),
    ]:
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(content)))
        assert cli.main(["estimate", "-", "tp=2"]) == 2
        assert message in capsys.readouterr().err


def test_a_job_may_be_json(tmp_path, capsys):
    """A JSON file with a cluster is a job, one without is a model that wants a cluster."""
    path = tmp_path / "job.json"
    training = {"global_batch_size": 64, "sequence_length": 4096, "tokens": 1e11}
    path.write_text(
        json.dumps({"model": "llama3-8b", "cluster": {"device": "h200", "num_devices": 8}, "training": training})
    )

    assert cli.main(["estimate", str(path), "tp=2", "--format", "json", "-q"]) == 0
    assert json.loads(capsys.readouterr().out)["strategy"]["tp"] == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["llama3-70b"], "llama3-70b: is no job file. After a model a cluster and three numbers are needed, such as:"),
        (["tiny/config.json", *OPTIONS], "tiny/config.json: is no job file."),
        (["llama3-8b", "8xh100-80gb-sxm", "8xh200", *OPTIONS], "8xh200: one cluster was given already."),
        (["job.yaml", "8xh100-80gb-sxm"], "'8xh100-80gb-sxm': expected key=value"),
        (["llama3-8b", "8xh100-80gb-sxm", "--batch", "1,000"], "planner: 3 mistakes:\n  --batch: training."),
    ],
)
def test_wrong_words(words, message, config, monkeypatch, capsys):
    """Exit code 2, one message."""
    monkeypatch.chdir(config.parent.parent)
    Path("job.yaml").write_text(write_commented(JOB, "A job"))

    assert cli.main(["plan", *words]) == 2
    assert message in capsys.readouterr().err


def test_options_change_a_job_file(tmp_path, monkeypatch, capsys):
    """As the entries that they stand for."""
    path = tmp_path / "job.yaml"
    path.write_text(write_commented({**JOB, "model": "llama3-8b"}, "A job"))

    assert (
        cli.main(["estimate", str(path), "tp=2", "pp=1", "--batch", "2k", "--sequence", "4k", "--format", "table"]) == 0
    )
    assert "2,000 x 4,096" in capsys.readouterr().out


# --- all mistakes at once --------------------------------------------------------------------------------------

WRONG_FILE = """\
model: llama3-70x
cluster:
  device: h1000
  num_devices: 512 GPUs
  framework: megatron-cor-0.16
training:
  global_batch_size: 1,000
  sequence_length: 8 k
  tokens: 1e3k
  precision: bf61
serch: {pin: {tp: 8}}
search:
  time_limit_seconds: 5m
  pin: {tpp: 8,
        pp: 0}
"""

PLACES = read_table("one_line")["places"]


def test_all_mistakes_of_a_file_with_their_places(tmp_path):
    """Names and numbers, sections and decisions, in the order of the file."""
    path = tmp_path / "job.yaml"
    path.write_text(WRONG_FILE)
    with pytest.raises(SpecErrors) as caught:
        load(path)
    found = [str(one) for one in caught.value.errors]

    assert len(found) == len(PLACES)
    for (line, column, message), error in zip(PLACES, found, strict=True):
        assert error.startswith(f"{path}, line {line}, column {column}: {message}")


def test_an_error_without_a_place_is_as_before():
    """Of a mapping, and of what the command line changes."""
    with pytest.raises(SpecError) as caught:
        load({**JOB, "top": 0})
    assert str(caught.value) == "top: must be at least 1, got 0."


def test_a_missing_entry_has_the_place_of_its_section(tmp_path):
    """Where it should be written."""
    path = tmp_path / "job.yaml"
    path.write_text("model: llama3-8b\ncluster:\n  device: h200\ntraining: {}\n")
    with pytest.raises(SpecError) as caught:
        load(path, ["training={global_batch_size: 8}"])

    assert [str(one).removeprefix(f"{path}, ") for one in mistakes_of(caught.value)] == [
        "line 2, column 1: cluster.num_devices: is required but missing.",
        "training.sequence_length: is required but missing.",
        "training.tokens: is required but missing.",
    ]


def test_numbers_keep_their_spelling(tmp_path):
    """Where a rule computes with what was written otherwise."""
    path = tmp_path / "job.yaml"
    path.write_text(write_commented(JOB, "A job").replace("15000000000000.0", "1e5"))
    with pytest.raises(SpecError, match=r"is 100000, less than one step of .* \(written 1e5\)\. Write the tokens"):
        load(path)


def test_a_long_list_of_mistakes_says_so():
    """The first twenty."""
    job = {**JOB, **{f"wrong{number}": 1 for number in range(50)}}
    with pytest.raises(SpecErrors, match=r"^the first 20 mistakes: ") as caught:
        load(Document(entries=job))

    assert "\n" not in str(caught.value)


# --- where units are read --------------------------------------------------------------------------------------


def test_kinds_say_what_each_number_counts():
    """By the annotations of the records."""
    assert kinds()["training.sequence_length"].name == "a sequence length"
    assert kinds()["cluster.memory_gib"].name == "GiB"
    assert "cluster.device" not in kinds()


UNITS = [
    ("reliability.mttr_seconds=4min", lambda problem: problem.reliability.mttr_seconds, 240),
    ("reliability.storage_bandwidth=500GB/s", lambda problem: problem.reliability.checkpoint.storage_bandwidth, 5e11),
    ("search.time_limit_seconds=2h", lambda problem: problem.search.time_limit_seconds, 7200),
    ("search.memory_headroom_gib=2048MiB", lambda problem: problem.search.memory_headroom_bytes, 2**31),
    ("cluster.memory_gib=64GiB", lambda problem: problem.facts.cluster.device.memory_bytes, 2**36),
    (
        "cluster.device={base: h200, memory_bytes: 100GB}",
        lambda problem: problem.facts.cluster.device.memory_bytes,
        1e11,
    ),
    ("cluster.num_devices=1k", lambda problem: problem.facts.cluster.num_devices, 1000),
    ("search.allow.mbs=[1, 1k]", lambda problem: problem.search.allow["mbs"], (1, 1000)),
    ("search.limits=[num_microbatches >= 1k]", lambda problem: problem.search.limits[0].number, 1000),
    ("strategy={mbs: 1k}", lambda problem: problem.given.decisions["mbs"], 1000),
]


@in_one_case(("assignment", "read", "value"), UNITS)
def test_units_of_a_job(assignment, read, value):
    """In each section, in the unit of the entry."""
    assert read(load(JOB, [assignment])) == value


def test_units_in_csv_files(tmp_path):
    """Variants of a batch, and the strategies of a list."""
    from planner.batch.jobs import JobSet

    job, rows, listed = tmp_path / "job.yaml", tmp_path / "rows.csv", tmp_path / "list.csv"
    job.write_text(write_commented(JOB, "A job"))
    rows.write_text('name,training.sequence_length,training.tokens\nlong,128k,2T\nwrong,"1,000",2T\n')
    listed.write_text("tp,mbs\n8,1k\n")
    long, wrong = JobSet([job], rows=rows)

    assert load(long.document).facts.workload.sequence_length == 131_072
    with pytest.raises(SpecError, match=r"got '1,000'\. Write 1000\."):
        load(wrong.document)
    assert load({**JOB, "search": {"candidates": str(listed)}}).search.candidates.rows == ({"tp": 8, "mbs": 1000},)


def test_units_in_measured_runs():
    """Cells of a job's entries, and measurements."""
    from planner.jobs.run_jobs import plain, positive_or_none

    assert plain("8k", "training.sequence_length") == 8192
    assert plain("8k", "training.global_batch_size") == 8000
    assert positive_or_none({"step_seconds": "1.5min"}, "step_seconds") == 90
    assert positive_or_none({"peak_memory_gib": "64GiB"}, "peak_memory_gib") == 64
    with pytest.raises(SpecError, match=r"training\.tokens: expected a count such as 15T, got '15 T'\. Write 15T\."):
        plain("15 T", "training.tokens")


def test_units_of_options(capsys, tmp_path):
    """Times and counts of commands; a mistake names the option."""
    assert cli._parse(["batch", "jobs", "-o", "out", "--timeout", "5min"]).timeout == 300
    for option, text in (("--timeout", "5m"), ("--processes", "two")):
        assert cli.main(["batch", str(tmp_path), "-o", str(tmp_path / "out"), option, text]) == 2
        assert f"planner: {option}: expected " in capsys.readouterr().err


def test_a_batch_in_tokens_is_noticed(capsys):
    """4M tokens are 488 sequences of 8k; as sequences a step would have 33 billion tokens."""
    cli.main(["plan", "llama3-8b", "64xh100", "--batch", "4M", "--sequence", "8k", "--tokens", "1T", "-q"])
    out = " ".join(capsys.readouterr().out.split())

    assert "batch 32.77 billion tokens per step are more than published trainings have" in out
    assert "4,000,000 tokens were 488" in out
