"""Confined workers: nothing outside of a folder is read or written, no network, no process, no secret of the server."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from costmodel.errors import SpecError
from planner.batch.executors.confined import MEMORY_BYTES, ConfinedPool, refuse_outside, unfold
from planner.batch.job_result import JobOutcome, JobStatus
from tests.cases import in_one_case
from tests.sources import ROOT

ATTEMPTS = {
    "read": lambda root: Path(root, "../secret.txt").read_text(),
    "read by a link": lambda root: Path(root, "link.txt").read_text(),
    "list": lambda root: os.listdir(".."),
    "write beside": lambda root: Path(root, "new.txt").write_text("x"),
    "write outside": lambda root: Path(root, "../new.txt").write_text("x"),
    "remove": lambda root: os.remove(Path(root, "own.txt")),
    "rename": lambda root: os.rename(Path(root, "own.txt"), Path(root, "other.txt")),
    "connect": lambda root: socket.create_connection(("127.0.0.1", 9), timeout=1),
    "start": lambda root: subprocess.run(["true"], check=True),
    "shell": lambda root: os.system("true"),
    "fork": lambda root: os.fork(),
    "environment": lambda root: os.environ["PLANNER_SECRET"],
    "environment by file": lambda root: Path("/proc/self/environ").read_text(),
    "memory": lambda root: bytearray(MEMORY_BYTES),
    "import": lambda root: __import__("served"),
}


def attempt(name, *, scratch):
    """Do in a worker what it may not, or what it may."""
    root = Path.cwd()
    try:
        done = ATTEMPTS[name](root) if name in ATTEMPTS else None
        if name == "allowed":
            (scratch / "kept.txt").write_text(Path("own.txt").read_text())
            done = (scratch / "kept.txt").read_text()
        if name == "die":
            os._exit(3)
    except BaseException as error:
        return JobOutcome(status=JobStatus.WRONG_INPUT, message=type(error).__name__)
    return JobOutcome(status=JobStatus.OPTIMAL, message=str(done))


@pytest.fixture(scope="module")
def pool(tmp_path_factory):
    """One worker, whose folder has a link out of it and a module."""
    outer = tmp_path_factory.mktemp("outer")
    root = outer / "served"
    root.mkdir()
    (outer / "secret.txt").write_text("canary")
    (root / "own.txt").write_text("own")
    (root / "served.py").write_text("raise SystemExit('imported')")
    (root / "link.txt").symlink_to(outer / "secret.txt")
    os.environ["PLANNER_SECRET"] = "canary"
    made = ConfinedPool(attempt, root=root, processes=1, seconds=60, modules=[__name__])
    try:
        yield made
    finally:
        made.close()
        del os.environ["PLANNER_SECRET"]


def test_a_worker_reads_its_folder_and_writes_another(pool):
    """The file of the served folder is copied."""
    assert pool.submit("allowed").result().message == "own"


@pytest.mark.parametrize("name", ATTEMPTS)
def test_a_worker_is_refused_the_rest(pool, name):
    """Each attempt ends with an error, and the worker lives on."""
    assert pool.submit(name).result().status == JobStatus.WRONG_INPUT


@pytest.mark.slow
def test_a_dead_worker_is_replaced_by_a_confined_one(pool):
    """It is tried twice, then the next question is answered, and still refused."""
    assert pool.submit("die").result().status == JobStatus.WORKER_DIED
    assert pool.submit("read").result().status == JobStatus.WRONG_INPUT


@pytest.mark.slow
def test_workers_import_nothing_of_the_folder_in_which_they_start(tmp_path):
    """Modules with the names of those that a starting worker needs lie there."""
    for name in ("joblib", "yaml", "pickle", "numpy", "signal"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported')")
    program = (
        "from pathlib import Path\nfrom planner.batch.executors.confined import ConfinedPool\n"
        "from tests.planner.test_confinement import attempt\nif __name__ == '__main__':\n"
        "    pool = ConfinedPool(attempt, root=Path.cwd(), processes=1, seconds=60, modules=[attempt.__module__])\n"
        "    print(pool.submit('none').result().message)\n    pool.close()\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "None\n"


@in_one_case(
    "value",
    [
        "/etc/passwd", "../x", "a/../../x", "~/x", "key=/etc/passwd", "cluster.framework={like: /etc/passwd}",
        "model='../x'", 'model="~/x"', "search.allow.tp=[1, {a: [../x]}]", {"a": ["../x"]}, {"/etc/passwd": 1}, "a\0b",
    ],
)  # fmt: skip
def test_a_path_out_of_the_folder_is_named_before_anything_is_opened(value, tmp_path):
    """Every spelling, alone, in entries, in YAML within them; the message does not say which exist."""
    with pytest.raises(SpecError, match="lies outside of the folder that may be read"):
        refuse_outside(unfold([value]) if isinstance(value, str) else value, tmp_path)


@in_one_case("value", ["llama3-8b", "meta-llama/Meta-Llama-3-8B", "a/b.yaml", "TP8", "key=[1, 2]", 7, None])
def test_names_and_paths_inside_are_let_pass(value, tmp_path):
    """Also a slash of the hub's names."""
    refuse_outside(value, tmp_path)
