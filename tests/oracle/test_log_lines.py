"""Lines of logs as the frameworks' own code writes them, read by the collector."""

from __future__ import annotations

import logging
import re
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

from planner.measure.plans.logs import read_logs
from tests.planner.test_plan_logs import GIB, STEPS, TOKENS, bridge, megatron, seconds

pytest.importorskip("torch")


def test_lines_of_torchtitan_are_read(tmp_path, monkeypatch, caplog):
    """``MetricsProcessor.log`` itself writes them, with colours, on a clock of ours."""
    metrics = pytest.importorskip("torchtitan.components.metrics")
    clock = [0.0]
    monkeypatch.setattr(metrics.time, "perf_counter", lambda: clock[0])
    peaks = SimpleNamespace(
        max_active_gib=60.0,
        max_active_pct=75.0,
        max_reserved_gib=65.0,
        max_reserved_pct=81.2,
        num_alloc_retries=0,
        num_ooms=0,
    )
    monitor = SimpleNamespace(get_peak_stats=lambda: peaks, reset_peak_stats=lambda: None)
    own = SimpleNamespace(
        config=SimpleNamespace(log_freq=1), time_last_log=0.0, num_flops_per_token=1e10, gpu_peak_flops=989e12,
        has_quantization=False, data_loading_times=[0.1], device_memory_monitor=monitor, color=metrics.Color(),
        logger=SimpleNamespace(log=lambda values, step: None), parallel_dims=SimpleNamespace(non_data_parallel_size=2),
    )  # fmt: skip
    with caplog.at_level(logging.INFO, metrics.logger.name):
        for step in STEPS:
            clock[0] += seconds(step)
            own.data_loading_times.append(0.1)
            own.ntokens_since_last_log = TOKENS / 4  # of one of 4 data-parallel ranks of 2 devices
            metrics.MetricsProcessor.log(own, step, 7.1, 7.2, 1.5)
    (tmp_path / "run.log").write_text(caplog.text)
    found = read_logs([tmp_path / "run.log"])

    assert TOKENS / found.tokens_per_second_per_device / 8 == pytest.approx(2.4, rel=1e-4)
    assert (found.num_steps, found.reserved_bytes) == (15, 65 * GIB)


def test_lines_of_megatron_bridge_have_the_parts_that_tests_write():
    """Each text that the collector reads stands in the source of ``training_log``, in the same order."""
    found = find_spec("megatron")
    places = [
        Path(one, "bridge/training/utils/train_utils.py") for one in (found.submodule_search_locations if found else ())
    ]
    files = [path for path in places if path.is_file()]
    if not files:
        pytest.skip("Megatron-Bridge is not installed")
    source = files[0].read_text()
    parts = (
        " iteration {:8d}/{:8d} |",
        " elapsed time per iteration (ms): {:.1f} |",
        " global batch size: {batch_size:5d} |",
    )

    assert sorted(map(source.index, parts)) == [source.index(part) for part in parts]
    assert all(text in source for text in ("Step Time : ", " memory (GB)", 'name.replace("bytes", "gigabytes")'))
    assert '"reserved_bytes.all.peak": "mem-max-reserved-bytes"' in source
    assert all(re.split(r"[{]", part)[0] in bridge(7) for part in parts)
    assert megatron(7).endswith("|")
