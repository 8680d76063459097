"""Kept logs are what the frameworks' own code writes today."""

from __future__ import annotations

import re
from importlib.util import find_spec

import pytest

from tests.planner.test_plan_logs import FOLDER

pytest.importorskip("torch")
pytest.importorskip("transformers")
PACKAGES = {"bridge": "megatron", "torchtitan": "torchtitan", "deepspeed": "deepspeed", "transformers": "transformers"}


def read_steps(text):
    """Return the lines of steps and memory; others depend on the machine."""
    return [line for line in text.splitlines() if re.search(r"iteration|step: |memory|SamplesPerSec=|'loss'", line)]


@pytest.mark.parametrize(
    "name",
    [
        *("bridge-0.3.1", "bridge-0.3.1-skipped", "torchtitan-0.3.0", "torchtitan-0.3.0-ranks"),
        *("deepspeed-0.19.8", "transformers-5.23"),
    ],
)
def test_a_kept_log_is_what_the_framework_writes(name):
    """On a clock of ours."""
    if find_spec(PACKAGES[name.partition("-")[0]]) is None:
        pytest.skip("the framework is not installed")
    from tests.oracle.log_files import MADE

    assert read_steps(MADE[f"{name}.log"]()) == read_steps((FOLDER / f"{name}.log").read_text())
