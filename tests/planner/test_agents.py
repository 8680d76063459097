"""The MCP server: worked cases by the official client, schemas of both sides, and hostile calls."""

from __future__ import annotations

import json
import re
import sys
import time

import pytest

anyio = pytest.importorskip("anyio")
mcp = pytest.importorskip("mcp")
jsonschema = pytest.importorskip("jsonschema")

from planner.agents.server import CallError, PlannerServer  # noqa: E402
from planner.agents.tools import SKILL  # noqa: E402
from planner.cli import main  # noqa: E402
from tests.sources import ROOT  # noqa: E402

JOB = {
    "model": "llama3-8b",
    "cluster": {"device": "h100-80gb-sxm", "num_devices": 8},
    "training": {"global_batch_size": 64, "sequence_length": "8k", "tokens": "1T"},
}
SECRET = "canary-7f3a"
MOST_SECONDS = 20
"""No call takes longer, however hostile."""


@pytest.fixture
def folder(tmp_path):
    """A served folder with a job, a script and links out of it; beside it a secret that no call may read."""
    root = tmp_path / "served"
    root.mkdir()
    (tmp_path / "secret.yaml").write_text(f"model: {SECRET}\n")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "_name_or_path": SECRET}))
    (root / "job.yaml").write_text(json.dumps(JOB))
    (root / "today.sh").write_text((ROOT / "tests/data/launches/dense.sh").read_text())
    (root / "runs.csv").write_text("".join((ROOT / "benchmarks/agents/runs.csv").open().readlines()[:2]))
    (root / "link.yaml").symlink_to(tmp_path / "secret.yaml")
    (root / "out").symlink_to(tmp_path)
    (root / "steals.yaml").write_text(json.dumps({**JOB, "model": str(tmp_path / "config.json")}))
    (root / "steals_device.yaml").write_text(
        json.dumps({**JOB, "cluster": {"device": "../secret.yaml", "num_devices": 8}})
    )
    (root / "steals.sh").write_text(
        f"source {tmp_path}/secret.yaml\ntorchrun pretrain_gpt.py $(cat {tmp_path}/secret.yaml)\n"
    )
    (root / "yaml.py").write_text("raise SystemExit('a module of the served folder was imported')\n")
    return root


async def ask(client, name, /, **arguments):
    """Call a tool; both sides hold against its schemas."""
    tools = {one.name: one for one in (await client.list_tools()).tools}
    jsonschema.Draft202012Validator(tools[name].input_schema).validate(arguments)
    result = await client.call_tool(name, arguments)
    assert not result.is_error, result.content[0].text
    jsonschema.Draft202012Validator(tools[name].output_schema).validate(result.structured_content)
    return result.structured_content


async def worked_cases(client):
    """The five cases of the skill, smaller."""
    best = await ask(client, "plan", job=JOB, top=2)
    assert best["status"] == "optimal"
    assert best["plans"][0]["step_time_seconds"] <= best["plans"][1]["step_time_seconds"]
    assert best["plans"][0]["num_devices"] == 8
    flags = await ask(client, "export", report=best["whole"], number=2, target="megatron-lm", launch="slurm")
    tp = re.match(r"TP(\d+) ", best["plans"][1]["line"])
    assert f"--tensor-model-parallel-size {tp[1] if tp else 1}" in next(iter(flags["files"].values()))
    assert any("#SBATCH --nodes=1" in text for text in flags["files"].values())  # 8 GPUs are one node

    changes = ["cluster.device=h100-80gb-sxm", "training.tokens=1T"]
    today = await ask(client, "import", file="today.sh", changes=changes)
    assert (today["job"]["strategy"]["tp"], today["job"]["strategy"]["pp"]) == (2, 2)  # of the script
    gain = await ask(client, "compare", job="today.sh", changes=changes)
    assert gain["saved_fraction"] >= 0

    none = await ask(client, "plan", job=JOB, changes=["model=llama3-70b"])
    # Weights and gradients alone: 70.6e9 parameters x 4 bytes / 8 GPUs = 35 GB, with optimizer states over 80 GB.
    assert (none["status"], none["plans"]) == ("infeasible", [])
    assert none["reasons"]

    why = await ask(client, "explain", job="job.yaml", changes=["TP8"])
    assert why["slower_seconds"] > 0

    fewest = await ask(client, "advise", job=JOB, changes=["training.tokens=10B"], sizes=[8], days=20)
    assert fewest["points"][fewest["answer"] - 1]["num_devices"] == 8
    assert fewest["is_proven"]

    ours = await ask(client, "calibrate", runs="runs.csv", name="ours")
    assert "name: ours" in ours["device_file"]
    part = await ask(client, "read", reference=best["whole"], pointer="/plans/0/strategy/dp")
    assert f"DP{part['value']} " in best["plans"][0]["line"]
    assert "yes" in (await ask(client, "support", model="llama3-8b", device="h100"))["tables"][0]["rows"][0]


@pytest.mark.slow
def test_worked_cases_by_the_official_client(folder):
    """Over stdin and stdout, in a folder with a module that must not be imported."""
    words = ["-m", "planner", "serve", "--mcp", "--root", str(folder), "--time-limit", "60", "--processes", "1"]
    command = mcp.StdioServerParameters(
        command=sys.executable, args=words, env={"PYTHONPATH": str(ROOT)}, cwd=str(ROOT)
    )

    async def run():
        async with mcp.Client(mcp.stdio_client(command)) as client:
            await worked_cases(client)
            skill = (await client.read_resource("planner://skill")).contents[0].text
            assert "Five worked cases" in skill

    anyio.run(run)


@pytest.mark.slow
def test_clients_of_this_machine_over_http(folder):
    """All tools; a request with another host's name (DNS rebinding) is refused."""
    import socket
    import subprocess

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [sys.executable, "-m", "planner", "serve", "--mcp", "--root", str(folder), "--port", str(port)]
    words += ["--processes", "1"]
    with subprocess.Popen(words, cwd=ROOT, stderr=subprocess.PIPE) as server:
        try:
            assert f"http://127.0.0.1:{port}/mcp".encode() in server.stderr.readline()

            async def run():
                for _ in range(100):
                    with socket.socket() as one:
                        if one.connect_ex(("127.0.0.1", port)) == 0:
                            break
                    await anyio.sleep(0.1)
                async with mcp.Client(f"http://127.0.0.1:{port}/mcp") as client:
                    found = await ask(client, "support", model="llama3-8b", device="h100")
                    assert found["tables"][0]["rows"][0][0] == "h100-80gb-sxm"
                async with await anyio.connect_tcp("127.0.0.1", port) as other:
                    head = b"POST /mcp HTTP/1.1\r\nHost: evil.example\r\nContent-Type: application/json\r\n"
                    await other.send(head + b"Content-Length: 2\r\n\r\n{}")
                    assert b" 421 " in await other.receive()

            anyio.run(run)
        finally:
            server.terminate()


PATH_LINES = r"""
/etc/passwd /proc/self/environ ../secret.yaml ../config.json link.yaml out/secret.yaml out/config.json ~/.ssh/id_rsa
./../secret.yaml job.yaml/../../secret.yaml //etc//passwd /dev/zero /dev/stdin out file:///etc/passwd ..\secret.yaml
http://127.0.0.1:1/x.yaml
"""
PATHS = (*PATH_LINES.split(), "secret.yaml\0.yaml", "steals.yaml", "steals_device.yaml")
INJECTION_LINES = """; cat ../secret.yaml
$(cat ../secret.yaml)
`id`
--output=x
-o
model=../config.json
model=/etc/passwd
cluster.device=../secret.yaml
cluster.device=out/secret.yaml
search.candidates=../secret.yaml
training.tokens=1e400
training.tokens=.nan
training.tokens.__class__=1
model=!!python/object:os.system
__class__=1"""
INJECTIONS = (*INJECTION_LINES.splitlines(), "a\nb=c")
SIZES = (
    {"job": {**JOB, "top": 10_000}},
    {"job": JOB, "top": 10_000},
    {"job": JOB, "top": -1},
    {"job": JOB, "changes": ["tp=1"] * 10_000},
    {"job": {**JOB, "model": "x" * 2_000_000}},
    {"job": {**JOB, "model": "x" * 200_000}},
    {"job": {**JOB, "cluster": {"device": "h100", "num_devices": 10**30}}},
    {"job": {**JOB, "cluster": {"device": "h100", "num_devices": -8}}},
    {"job": {**JOB, "training": {**JOB["training"], "global_batch_size": 10**18}}},
    {"job": {**JOB, "training": {**JOB["training"], "sequence_length": 10**15}}},
    {"job": {**JOB, "extra": {str(n): n for n in range(50_000)}}},
    {"job": {**JOB, "settings": {"x": ["a"] * 200_000}}},
    {"job": {**JOB, "reliability": [[[[[[]]]]]]}},
    {"job": JOB, "seconds": 0},
    {"job": JOB, "unknown": 1},
    {"job": []},
    {"job": None},
    {},
    {"job": JOB, "changes": "TP8"},
    {"job": {**JOB, "search": {"candidates": "../secret.yaml"}}},
    {"job": {**JOB, "model": {"model_type": "llama", "num_hidden_layers": 10**12}}},
)
OTHERS = (
    ("export", {"report": "planner://answers/../../etc/passwd", "target": "megatron-lm"}),
    ("export", {"report": "file:///etc/passwd", "target": "megatron-lm"}),
    ("read", {"reference": "planner://answers/000000000000"}),
    ("read", {"reference": "/etc/passwd"}),
    ("read", {"reference": "planner://schemas/../job"}),
    ("read", {"reference": "planner://schemas/job", "pointer": "/properties/nothing"}),
    ("read", {"reference": "planner://schemas/job", "pointer": "/required/-1"}),
    ("read", {"reference": "planner://schemas/job", "pointer": "/required/\u0661"}),
    ("plan", {"job": {**JOB, "search": {"pin": json.loads('{"a":' * 900 + "1" + "}" * 900)}}}),
    ("plan", {"job": {**JOB, "cluster": {"device": {"base": "h100", "calibration": {"samples": "../secret.yaml"}}}}}),
    ("import", {"file": "today.sh", "variables": {"BASH_ENV": "/etc/passwd"}}),
    ("read", {"reference": "planner://schemas/job"}),  # 280 KB at once
    ("support", {}),
    ("support", {"model": "../config.json"}),
    ("support", {"device": "../secret.yaml"}),
    ("advise", {"job": JOB, "devices": ["../secret.yaml"]}),
    ("advise", {"job": JOB, "prices": "out/secret.yaml"}),
    ("advise", {"job": JOB, "prices": "/etc/passwd"}),
    ("advise", {"job": JOB, "sizes": [*range(1, 10_000)]}),
    ("advise", {"job": JOB, "sizes": [0]}),
    ("advise", {"job": JOB, "aim": "; id"}),
    ("advise", {"job": JOB, "by": "2020-01-01"}),
    ("advise", {"job": JOB, "budget": -1}),
    ("advise", {"job": JOB, "days": 1e999}),
    ("calibrate", {"runs": "../secret.yaml"}),
    ("calibrate", {"runs": "runs.csv", "name": "../../x"}),
    ("calibrate", {"runs": "runs.csv", "models": "link.yaml"}),
    ("import", {"file": "steals.sh", "changes": ["cluster.device=h100"]}),
    ("import", {"file": "today.sh", "variables": {str(n): "x" for n in range(100)}}),
    ("no_such_tool", {}),
    ("__init__", {}),
    ("work", {"job": JOB}),
)
HOSTILE = (
    *((tool, {"job": path}) for path in PATHS for tool in ("plan", "estimate", "explain", "compare")),
    *(("plan", {"job": {**JOB, "model": path}}) for path in PATHS[:-2]),
    *(("import", {"file": path}) for path in PATHS),
    *(("plan", {"job": JOB, "changes": [word]}) for word in INJECTIONS),
    *(("estimate", {"job": "job.yaml", "changes": [word]}) for word in INJECTIONS),
    *((tool, arguments) for arguments in SIZES for tool in ("plan", "explain")),
    *OTHERS,
)


async def refusals(root, calls):
    """Make calls at once; return for each its error, or its answer, and the longest time."""
    server = PlannerServer(root, seconds=15, processes=1)
    found, longest = [], [0.0]

    async def one(name, arguments):
        begin = time.monotonic()
        try:
            found.append((name, arguments, None, json.dumps(await server.call(name, arguments))))
        except CallError as error:
            found.append((name, arguments, str(error), ""))
        longest.append(time.monotonic() - begin)

    async def several(some):
        for name, arguments in some:
            await one(name, arguments)

    async with anyio.create_task_group() as group:
        for start in range(2):
            group.start_soon(several, calls[start::2])
    server.close()
    return found, max(longest)


@pytest.mark.slow
def test_hostile_calls_are_refused(folder):
    """Paths, links, injections, sizes, references: all are refused, in time, without the secret."""
    found, longest = anyio.run(refusals, folder, HOSTILE)
    assert len(HOSTILE) >= 200
    assert [(name, str(arguments)[:200]) for name, arguments, error, _ in found if error is None] == []
    assert [error for *_, error, text in found if SECRET in error + text] == []
    assert [error for *_, error, _ in found if "Traceback" in error or "Error:" in error or "worker" in error] == []
    assert longest < MOST_SECONDS


@pytest.mark.slow
def test_an_endless_job_ends_in_time(folder):
    """The time limit of a call holds for its worker, whatever the job says; the server goes on."""
    wide = {**JOB, "model": "deepseek-v3", "cluster": {"device": "b200", "num_devices": 4096}}
    wide["search"] = {"time_limit_seconds": 100_000, "evidence": "any"}

    async def run():
        server = PlannerServer(folder, seconds=0.05, processes=1)
        begin = time.monotonic()
        with pytest.raises(CallError, match=r"took longer than the server's 0\.05 s"):
            await server.call("explain", {"job": wide})
        assert time.monotonic() - begin < 5
        with pytest.raises(CallError, match="There is no tool"):
            await server.call("x", {})
        server.close()

    anyio.run(run)


@pytest.mark.slow
def test_a_thousand_plans_at_once_are_refused(folder):
    """A few wait, the others are told to ask again; nothing piles up."""

    async def run():
        server, errors = PlannerServer(folder, seconds=2, processes=1), []

        async def one():
            try:
                await server.call("plan", {"job": "job.yaml"})
            except CallError as error:
                errors.append(str(error))

        async with anyio.create_task_group() as group:
            for _ in range(1_000):
                group.start_soon(one)
        server.close()
        assert sum("run or wait already" in error for error in errors) == 1_000 - 64

    anyio.run(run)


@pytest.mark.slow
def test_a_port_in_use_is_refused(capsys):
    """The message names the port."""
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]

        assert main(["serve", "--mcp", "--port", str(port), "--processes", "1"]) == 2

    assert f"127.0.0.1:{port} cannot be used: Address already in use" in capsys.readouterr().err


def test_a_folder_that_is_none_is_refused(capsys):
    """Before anything is served."""
    assert main(["serve", "--mcp", "--root", "no/such/folder"]) == 2
    assert "there is no folder 'no/such/folder'" in capsys.readouterr().err


def test_the_skill_lies_in_the_package(capsys):
    """The command prints its folder; its front matter has a name and a description, as agents expect."""
    assert main(["catalog", "skill"]) == 0
    assert capsys.readouterr().out.strip() == str(SKILL.parent)
    assert re.match(r"---\nname: planner\ndescription: .{80,1024}\n---\n", SKILL.read_text(encoding="utf-8"))
    assert (ROOT / "skills" / "planner" / "SKILL.md").read_text() == SKILL.read_text()


@pytest.mark.slow
def test_tools_have_schemas_that_hold():
    """Each is a JSON Schema of an object, and all of them together are short enough to be read first."""
    from planner.agents.tools import tools

    for tool in tools().values():
        jsonschema.Draft202012Validator.check_schema(tool.arguments)
        jsonschema.Draft202012Validator.check_schema(tool.answer)
        assert tool.arguments["type"] == tool.answer["type"] == "object"
    assert len(json.dumps([tool.arguments for tool in tools().values()])) < 32_768  # some 8,000 tokens
