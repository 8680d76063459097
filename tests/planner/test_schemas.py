"""``planner catalog schemas``: each schema is one, is described, and is of one mind with what is really written."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import jsonschema
import pytest
import yaml

from costmodel import catalog
from planner import cli, estimate, load, plan, render
from planner.measure.sample.samples import Point, Sizes, Timing
from planner.measure.sample.table import SamplesFile
from planner.report.describe import LISTS, RECIPES
from planner.schema import SCHEMAS, list_text
from tests.builders_job import a_document
from tests.builders_samples import A_MACHINE, collective_points
from tests.cases import in_one_case
from tests.documents import page
from tests.schemas import row, valid, validator

JOB = a_document("llama3-8b", "8xh100-80gb-sxm", batch=64, sequence=4096, tokens=1e9, search={"stages": "even"}, top=2)


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What a command that succeeds writes to stdout."""
    assert cli.main(arguments) == 0
    return capsys.readouterr().out


def rows(text: str) -> list[dict[str, str]]:
    """Rows of CSV by column."""
    return list(csv.DictReader(text.splitlines()))


class TestSchemas:
    @pytest.mark.sampled(12)
    @pytest.mark.parametrize("name", SCHEMAS)
    def test_a_schema_is_printed(self, name, capsys):
        """With its dialect and a name of its own; the entries say what they mean, and not everything satisfies it."""
        schema = json.loads(printed(capsys, "catalog", "schemas", name))

        jsonschema.Draft202012Validator.check_schema(schema)
        assert (schema["$schema"], schema["$id"]) == (
            "https://json-schema.org/draft/2020-12/schema",
            f"urn:pretraining-planner:schema:{name}",
        )
        assert set(silent(schema)) <= {"name", "source"}
        assert {*re.findall(r'"#/\$defs/(\w+)"', json.dumps(schema))} <= schema.get("$defs", {}).keys()
        check = jsonschema.Draft202012Validator(schema)
        assert not check.is_valid(5)
        assert not check.is_valid({"no_such_entry": 1})

    def test_the_names_are_printed(self, capsys):
        """One a line, each with what it is of."""
        lines = printed(capsys, "catalog", "schemas").splitlines()

        assert [line.split()[0] for line in lines] == list(SCHEMAS)

    def test_an_unknown_name(self, capsys):
        """The message names the one that is meant."""
        assert cli.main(["catalog", "schemas", "batch-lines"]) == 2
        assert capsys.readouterr().err == "planner: schema: 'batch-lines' is none. Did you mean 'batch-line'?\n"

    def test_into_a_file(self, tmp_path, capsys):
        """Which other programs take."""
        assert printed(capsys, "catalog", "schemas", "job", "-o", str(tmp_path / "job.schema.json")) == ""
        assert json.loads((tmp_path / "job.schema.json").read_text())["title"] == "Pretraining job"

    def test_the_page_names_them(self):
        """As the command does."""
        assert list_text() in page("json")


def silent(part):
    """Entries of a schema, at every depth, that do not say what they mean."""
    if isinstance(part, dict):
        yield from (name for name, entry in part.get("properties", {}).items() if not entry.get("description"))
    for inner in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        yield from silent(inner)


class TestModels:
    @pytest.mark.slow
    @in_one_case("name", catalog.models())
    def test_models_of_the_catalog(self, name, capsys):
        """Dense ones, experts, latent and linear attention, Mamba, multi-token prediction."""
        valid("model", json.loads(printed(capsys, "catalog", "models", name, "--format", "json")))

    def test_a_count_as_text_is_none(self, capsys):
        """The schema says types, too."""
        found = json.loads(printed(capsys, "catalog", "models", "llama3-8b", "--format", "json"))

        assert not validator("model").is_valid({**found, "parameters": "8B"})


ENTRIES = ("h100", "a3-mega", "hopper", "bf16", "megatron-lm-0.14", "llama3-8b", "llama3-70b-64xh100-bf16-26.08")


class TestCatalog:
    @pytest.mark.slow
    def test_all_of_it(self, capsys):
        """Every list but that of recipes, which is long."""
        whole = valid("catalog", json.loads(printed(capsys, "catalog", "--format", "json")))

        assert [*whole, RECIPES] == [*LISTS]

    @pytest.mark.parametrize("name", [*LISTS, *ENTRIES])
    def test_a_list_or_an_entry(self, name, capsys):
        """An entry alone is a record; of a cloud's name it says what that leaves open."""
        valid("catalog", json.loads(printed(capsys, "catalog", name, "--format", "json")))

    def test_an_entry_has_figures(self, capsys):
        """Peaks are numbers."""
        found = json.loads(printed(capsys, "catalog", "h100-80gb-sxm", "--format", "json"))

        assert not validator("catalog").is_valid({**found, "peak_flops": {"bf16": "fast"}})


class TestRows:
    @pytest.mark.slow
    def test_a_report(self):
        """Plans of a search, and a given strategy."""
        texts = render(plan(load(JOB)), "csv"), render(estimate(load(JOB), {"tp": 2}), "csv")
        found = [valid("report-row", row(one)) for text in texts for one in rows(text)]

        assert len(found) == 3
        assert not validator("report-row").is_valid({**found[0], "mfu": "fast"})

    @pytest.mark.slow
    def test_a_batch(self, tmp_path, monkeypatch, capsys):
        """Its table, also of a job without a plan and with an override, and the ranking."""
        monkeypatch.chdir(tmp_path)
        Path("job.yaml").write_text(yaml.safe_dump(JOB))
        command = ["batch", "job.yaml", "-o", "out.jsonl", "--table", "all.csv", "--processes", "1"]
        assert cli.main([*command, "training.global_batch_size=64,7.5"]) == 1

        table = [valid("batch-row", row(one)) for one in rows(Path("all.csv").read_text())]
        ranked = [valid("top-row", row(one)) for one in rows(printed(capsys, "batch", "out.jsonl", "--format", "csv"))]

        assert {one["status"] for one in table} == {"optimal", "wrong_input"}
        assert table[0]["training.global_batch_size"] == 64
        assert [one["rank"] for one in ranked] == [1]
        assert not validator("top-row").is_valid({**ranked[0], "rank": 0})
        for name, one in (("batch-row", table[0]), ("top-row", ranked[0])):
            nonsense = validator(name).iter_errors(dict.fromkeys(one, "nonsense"))
            free = {"name", "source", "message", "framework", "framework_doubt", "device_note"}
            free |= {"training.global_batch_size", "currency", "gaps", "layout", "schedule", "vocabulary", "sharding"}
            free |= {"recompute", "token_dispatcher", "cuda_graphs", "line"}
            free |= {"days_interval", "step_time_interval_seconds"}
            assert {error.path[0] for error in nonsense} == one.keys() - free
            assert not validator(name).is_valid({**one, "tp_overlap": 5})
            assert not validator(name).is_valid({**one, "tp": 2.5})

    @pytest.mark.slow
    def test_samples(self, tmp_path):
        """The table that ``planner sample`` writes: a matmul, and a collective."""
        table = SamplesFile(tmp_path / "samples.csv", A_MACHINE)
        matmul = Point(operator="matmul", pass_="dgrad", dtype="fp8", sizes=Sizes(m=8, n=16, k=32))
        for point in (matmul, collective_points()[0]):
            table.add(point, Timing(seconds=1e-3, spread=0.01, repeats=7))

        first, second = (valid("sample-row", row(one)) for one in rows((tmp_path / "samples.csv").read_text()))

        assert (first["operator"], first["k"], first["ranks"]) == ("matmul", 32, None)
        assert second["ranks"] == 2
        assert not validator("sample-row").is_valid({**first, "pass": "sideways"})


def test_messages(tmp_path, capsys):
    """What is done, and what is wrong."""
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(JOB))
    for words in (["estimate", str(path), "tp=2"], ["plan", str(path)], ["plan", str(path), "top=0", "objective=x"]):
        cli.main([*words, "--log-json"])

    lines = [valid("log-line", json.loads(line)) for line in capsys.readouterr().err.splitlines()]

    assert {line["level"] for line in lines} >= {"info", "error"}
    assert len(lines[-1]["fields"]["mistakes"]) == 2


def test_init_names_the_schema_for_editors(tmp_path, capsys):
    """The first line is what YAML language servers look for: a file of this installation, which needs no network."""
    path = tmp_path / "job.yaml"
    line = ["init", "llama3-8b", "8xh100-80gb-sxm", "--batch", "64", "--sequence", "4k", "--tokens", "1B"]

    assert printed(capsys, *line, "-o", str(path)) == ""

    first, _, rest = path.read_text().partition("\n")
    address = first.removeprefix("# yaml-language-server: $schema=")
    assert Path(address.removeprefix("file://")).read_text() == printed(capsys, "catalog", "schemas", "job")
    assert rest == printed(capsys, *line)
    valid("job", yaml.safe_load(rest))
