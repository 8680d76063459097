"""Jobs that say nothing but what they must: a model, a cluster, a batch."""

from __future__ import annotations

from typing import Any

from costmodel import catalog

TOKENS = 1e12

JOBS: tuple[tuple[str, str, int, int, int], ...] = (
    ("gpt2-xl", "v100-32gb-sxm", 4, 128, 1024),
    ("llama3-8b", "h100-80gb-sxm", 8, 128, 8192),
    ("llama2-13b", "a100-40gb-sxm", 32, 256, 4096),
    ("llama3-8b", "v100-32gb-sxm", 32, 256, 2048),
    ("llama3-70b", "h100-80gb-sxm", 192, 1024, 8192),
    ("llama3-70b", "h100-80gb-sxm", 512, 1024, 8192),
    ("llama3-405b", "h100-80gb-sxm", 2048, 2048, 8192),
    ("llama3-405b", "h100-80gb-sxm", 16384, 2048, 8192),
    ("qwen3-30b-a3b", "h100-80gb-sxm", 16, 512, 4096),
    ("mixtral-8x7b", "a100-80gb-sxm", 64, 512, 4096),
    ("gpt-oss-120b", "gb200", 256, 1024, 4096),
    ("qwen3-235b-a22b", "b200", 128, 1024, 4096),
    ("deepseek-v3", "h100-80gb-sxm", 2048, 8192, 4096),
    ("nemotron-h-56b", "h200", 256, 768, 8192),
    ("nemotron-3-nano-30b-a3b", "h100-80gb-sxm", 64, 768, 8192),
)
"""Model, device, number of devices, sequences per step, tokens per sequence: dense, with experts, hybrid."""


def document(model: str, device: str, num_devices: int, batch: int, length: int, **entries: Any) -> dict[str, Any]:
    """One of them as a job, with more entries."""
    training: dict[str, Any] = {"global_batch_size": batch, "sequence_length": length, "tokens": TOKENS}
    if "bf16" not in catalog.device(device).peak_flops:
        training["precision"] = "fp16"
    return {"model": model, "cluster": {"device": device, "num_devices": num_devices}, "training": training, **entries}
