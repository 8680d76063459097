"""
``python -m benchmarks.serve``: seconds of ``planner serve`` for one user, and for fifty at once on two processes.

Every question is a new one: Llama-3-70B on 512 GPUs with another batch. While fifty users ask, a worker is killed.
Exits with 1 if an answer is lost, one user waits longer than the limits, or workers take more memory than theirs.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlencode

import numpy as np

from benchmarks.output import conclude
from benchmarks.random_inputs.watch import processor_seconds

NUM_ALONE, NUM_USERS, NUM_EACH = 20, 50, 2
MOST_P50_SECONDS, MOST_P95_SECONDS = 1.5, 4.0
"""Limits of one user's answers on an idle machine."""

MOST_WORKER_BYTES = 600e6
START_SECONDS, WAIT_SECONDS = 60.0, 300.0


def main() -> int:
    """Serve, ask and print; return 1 if an answer is lost or a limit exceeded, else 0."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = (sys.executable, "-m", "planner", "serve", "--port", str(port), "--processes", "2")
    server = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        _await_start(port)
        return conclude(_judge(port, server.pid))
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(WAIT_SECONDS)


def _judge(port: int, server: int) -> Iterator[str]:
    """Print the figures; yield a sentence about each that is too large."""
    _ask(port, 511)  # both workers have started
    before = _processor_seconds(server)
    alone = [_ask(port, 512 * 2 + number) for number in range(NUM_ALONE)]
    spent = (_processor_seconds(server) - before) / NUM_ALONE
    p50, p95 = (float(np.quantile([seconds for seconds, _ in alone], share)) for share in (0.5, 0.95))
    print(f"One user, {NUM_ALONE} questions: p50 {p50:.2f} s, p95 {p95:.2f} s; processor time {spent:.2f} s each.")
    if p50 > MOST_P50_SECONDS or p95 > MOST_P95_SECONDS:
        yield f"one user waits {p50:.2f} s (limit {MOST_P50_SECONDS:g}), p95 {p95:.2f} s (limit {MOST_P95_SECONDS:g})."
    with ThreadPoolExecutor(NUM_USERS) as users:
        asked = [users.submit(_ask, port, 2048 + number) for number in range(NUM_USERS * NUM_EACH)]
        time.sleep(2.0)
        killed = max(_workers(server), key=lambda worker: worker[1])[0]
        os.kill(killed, signal.SIGKILL)
        every = [one.result() for one in asked]
    p50, p95 = (float(np.quantile([seconds for seconds, _ in every], share)) for share in (0.5, 0.95))
    lost = sum(not text for _, text in (*alone, *every))
    most = max(size for _, size in _workers(server))
    print(
        f"{NUM_USERS} users, {len(every)} questions, a worker killed: p50 {p50:.2f} s, p95 {p95:.2f} s, {lost} lost; "
        f"largest worker {most / 1e6:.0f} MB."
    )
    if lost:
        yield f"{lost} of {len(alone) + len(every)} answers are lost."
    if most > MOST_WORKER_BYTES:
        yield f"a worker takes {most / 1e6:.0f} MB (limit {MOST_WORKER_BYTES / 1e6:.0f})."


def _ask(port: int, batch: int) -> tuple[float, str]:
    """Return the seconds of one answer, and the answer; empty if it has no plan."""
    job = {"model": "llama3-70b", "device": "h100", "devices": 512, "batch": batch, "sequence": "8k", "tokens": "15T"}
    began = time.perf_counter()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/answer?{urlencode(job)}", timeout=WAIT_SECONDS) as response:
        text = response.read().decode()
    return time.perf_counter() - began, text if "tokens/s/GPU" in text or "No strategy" in text else ""


def _await_start(port: int) -> None:
    """Wait until the server answers."""
    for _ in range(int(START_SECONDS * 10)):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1.0).close()
            return
        except OSError:
            time.sleep(0.1)
    raise SystemExit("the server did not start.")


def _processor_seconds(server: int) -> float:
    """Return the processor time of the server and its workers, which other programs do not change."""
    return sum(processor_seconds(process) for process in (server, *(worker for worker, _ in _workers(server))))


def _workers(server: int) -> list[tuple[int, float]]:
    """Return the processes below the server, each with its resident bytes."""
    found, parents = [], {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            parents[int(folder.name)] = int(fields[1]), int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
        except OSError:
            continue
    for process, (parent, size) in parents.items():
        if parent == server:
            found.append((process, float(size)))
    return found


if __name__ == "__main__":
    sys.exit(main())
