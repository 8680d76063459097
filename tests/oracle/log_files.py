"""
Logs that the frameworks' own code writes on a CPU, on a clock of ours; ``python -m tests.oracle.log_files`` keeps them.

Megatron-Bridge's ``training_log``, torchtitan's ``MetricsProcessor.log`` and ``log_validation``, DeepSpeed's
``ThroughputTimer`` and transformers' ``PrinterCallback`` are called as their trainers call them; what they ask a GPU
for is given. ``tests/data/logs/README.md`` says which files these are.
"""

from __future__ import annotations

import contextlib
import io
import logging
import math
import re
import sys
from types import SimpleNamespace
from unittest import mock

from benchmarks.exports.bridge_recipes import _import_bridge
from tests.planner.test_plan_logs import FOLDER, GIB, STEPS, TOKENS, seconds

TIME = "2026-08-22 10:00:00"


def bridge(*, skipped=(), start=0, stop=20, batch=128):
    """Steps of one start of Megatron-Bridge, whose losses are NaN where steps are skipped."""
    import torch

    _import_bridge()
    from megatron.bridge.training.utils import train_utils

    clock = SimpleNamespace(step=start)
    on_cpu = mock.MagicMock(wraps=torch)
    on_cpu.tensor = lambda values, dtype, device: torch.tensor(values, dtype=dtype)
    on_cpu.float = torch.float
    on_cpu.distributed = SimpleNamespace(get_rank=lambda group=None: 0)
    peaks = {"allocated_bytes.all.peak": 60 * GIB, "reserved_bytes.all.peak": 65 * GIB, "num_alloc_retries": 0}
    on_cpu.cuda = SimpleNamespace(memory_stats=lambda: peaks)
    timer = SimpleNamespace(elapsed=lambda barrier: seconds(clock.step - start))

    class Timers:
        def __call__(self, name):
            return timer

        def log(self, names, normalizer):
            pass

    config = mock.MagicMock()
    config.logger = SimpleNamespace(
        timing_log_level=0, log_timers_to_tensorboard=False, log_interval=1, log_throughput=True, memory_keys=None,
        log_throughput_to_tensorboard=False,
    )  # fmt: skip
    config.train = SimpleNamespace(micro_batch_size=1, train_iters=20)
    config.data_parallel_size, config.profiling = batch // 16, None
    config.model = SimpleNamespace(num_moe_experts=None, mtp_num_layers=None)
    given = {
        "torch": on_cpu,
        "get_pg_collection": lambda model: mock.MagicMock(),
        "reduce_max_stat_across_model_parallel_group": lambda value, mp_group: value,
        "get_num_microbatches": lambda: 16,
        "num_floating_point_operations": lambda config, batch: 8e15,
        "get_world_size_safe": lambda: 8,
        "print_rank_last": print,
        "report_theoretical_memory": lambda *arguments, **options: None,
    }
    totals, report = {}, True
    print(f"Starting training loop at iteration {start}")
    with mock.patch.multiple(train_utils, **given):
        for step in range(start + 1, stop + 1):
            clock.step = step
            state = SimpleNamespace(
                timers=Timers(), energy_monitor=None, tensorboard_logger=None, wandb_logger=None, mlflow_logger=None,
                train_state=SimpleNamespace(step=step, consumed_train_samples=step * batch, skipped_train_samples=0),
            )  # fmt: skip
            is_skipped = step in skipped
            loss = {"lm loss": torch.tensor([math.nan if is_skipped else 10.1])}
            report = train_utils.training_log(
                loss, totals, 3e-4, None, 1.0, report, int(is_skipped), None if is_skipped else 1.5, None, None, config,
                state, [], [],
            )  # fmt: skip


def titan(*, ranks=1, color=True, nan=(), tokens=TOKENS):
    """Steps of torchtitan, of several ranks that write into one file, with a validation at the end."""
    from torchtitan.components import metrics
    from torchtitan.tools import logging as own_logging

    logging.disable(logging.NOTSET)  # which an import of Megatron-Bridge may have changed
    own_logging.init_logger()
    clock = [0.0]
    each = []
    for rank in range(ranks):
        peaks = SimpleNamespace(
            max_active_gib=60.0 - rank, max_active_pct=75.0, max_reserved_gib=65.0 - rank, max_reserved_pct=81.2,
            num_alloc_retries=0, num_ooms=0,
        )  # fmt: skip
        each.append(
            SimpleNamespace(
                config=SimpleNamespace(log_freq=1), time_last_log=0.0, num_flops_per_token=1e10, gpu_peak_flops=989e12,
                has_quantization=False, data_loading_times=[0.1], logger=SimpleNamespace(log=lambda values, step: None),
                device_memory_monitor=SimpleNamespace(
                    get_peak_stats=lambda peaks=peaks: peaks, reset_peak_stats=lambda: None
                ),
                color=metrics.Color() if color else metrics.NoColor(),
                parallel_dims=SimpleNamespace(non_data_parallel_size=2),
            )
        )  # fmt: skip
    with mock.patch.object(metrics.time, "perf_counter", side_effect=lambda: clock[0]):
        metrics.logger.info("Training starts at step 1")
        for step in STEPS:
            clock[0] += seconds(step)
            for own in each:
                own.data_loading_times.append(0.1)
                own.ntokens_since_last_log = tokens / 4  # of one of 4 data-parallel ranks of 2 devices
                loss = math.nan if step in nan else 7.1
                metrics.MetricsProcessor.log(own, step, loss, loss, loss / 5)
        clock[0] += 1.0
        each[0].ntokens_since_last_log = tokens
        metrics.MetricsProcessor.log_validation(each[0], 7.0, 20)


def deepspeed():
    """Steps of DeepSpeed's engine."""
    from deepspeed.utils import timer

    clock = [0.0]
    accelerator = mock.MagicMock()
    accelerator.memory_allocated.return_value = accelerator.max_memory_allocated.return_value = 60 * GIB
    with (
        mock.patch.object(timer.time, "time", side_effect=lambda: clock[0]),
        mock.patch.object(timer, "get_accelerator", return_value=accelerator),
    ):
        own = timer.ThroughputTimer(SimpleNamespace(enabled=True, synchronized=False), 128, steps_per_output=1)
        own.logging = print
        for step in STEPS:
            own.start()
            clock[0] += seconds(step)
            own.stop(global_step=True)


def trainer():
    """Steps of transformers' Trainer."""
    from transformers.trainer_callback import PrinterCallback

    state = SimpleNamespace(is_local_process_zero=True)
    for step in STEPS:
        logs = {"loss": 10.1, "grad_norm": 1.5, "learning_rate": 3e-4, "epoch": step / 100}
        PrinterCallback().on_log(None, state, None, logs=logs)


def write(function, **options):
    """Return the text that a function writes to standard output, with one time of the clock."""
    stream = io.StringIO()
    root = logging.getLogger()
    handlers = [*root.handlers]
    with contextlib.redirect_stdout(stream):
        function(**options)
    root.handlers[:] = handlers
    return re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", TIME, re.sub(r"(:\d\d),\d{3} ", r"\1,000 ", stream.getvalue()))


def bridge_restarted():
    """Return a run that was ended at step 9, and restarted from the checkpoint of step 8."""
    return write(bridge, stop=9) + "srun: Job step aborted\n" + write(bridge, start=8)


def srun(text):
    """Label lines as ``srun --label`` does."""
    return "".join(f"7: {line}\n" for line in text.splitlines())


def torchrun(text):
    """Label lines as ``torchrun --tee`` does, rank by rank."""
    return "".join(f"[default{n % 2}]:{line}\n" for n, line in enumerate(text.splitlines()))


MADE = {
    "bridge-0.3.1.log": lambda: write(bridge),
    "bridge-0.3.1-skipped.log": lambda: write(bridge, skipped=(7, 9)),
    "bridge-0.3.1-restarted.log": lambda: srun(bridge_restarted()),
    "torchtitan-0.3.0.log": lambda: write(titan),
    "torchtitan-0.3.0-ranks.log": lambda: torchrun(write(titan, ranks=2, color=False)),
    "torchtitan-0.3.0-nan.log": lambda: write(titan, color=False, nan=(12, 13)),
    "deepspeed-0.19.8.log": lambda: write(deepspeed),
    "transformers-5.23.log": lambda: write(trainer),
}
"""Text of each kept file that a framework's own code writes."""

if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, make in MADE.items():
        (FOLDER / name).write_text(make(), encoding="utf-8")
        print(name, file=sys.stderr)
