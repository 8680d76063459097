"""Import of Megatron-LM's arguments as settings of the framework, and the release that they are for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from costmodel import catalog
from costmodel.errors import SpecError
from costmodel.strategy import Sharding, Strategy
from planner.frameworks.megatron.options import WHERE, Arguments
from planner.frameworks.megatron.settings import NUM_SMS
from planner.jobs.cluster import device_of, device_path
from planner.jobs.document import read_mapping

RELEASES = "megatron-lm-"
"""Prefix of plain releases of Megatron-LM, whose defaults are those of its parser, not of a recipe."""

MOMENTS = ("--exp-avg-dtype", "--exp-avg-sq-dtype")


def release_for(device: object, loss: object, among: str | tuple[str, ...] = RELEASES) -> str | None:
    """
    Return the newest plain release of Megatron-LM for a job.

    Parameters
    ----------
    device
        Device of the job.
    loss
        Setting ``loss`` of the job, which not every release has; with several values or none any release matches.
    among
        Beginnings of the names that may be.

    Returns
    -------
    str or None
        Name of the release; None: none runs on the device, or it has its own software.
    """
    if not isinstance(device, (str, Mapping)):
        return None
    path = device_path(device, Path())
    known = device_of(dict(device) if isinstance(device, Mapping) else device if path is None else read_mapping(path))
    own = known.framework
    if own is not None and (own.startswith(RELEASES) or own == "mofa"):
        return None
    fitting = [
        name
        for name in catalog.frameworks()
        if name.startswith(among)
        and (own is not None or catalog.runs_on(catalog.framework(name), known.architecture))
        and (not isinstance(loss, str) or loss in catalog.framework(name).setting_values.get("loss", (loss,)))
    ]
    return max(fitting, key=lambda name: catalog.framework(name).since, default=None)


def read_settings(
    arguments: Arguments, variables: Mapping[str, str], num_layers: int
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """
    Return the settings of a job and notes on assumptions; optimizer groups are read by :func:`read_group`.

    Parameters
    ----------
    arguments
        Values by option.
    variables
        Environment variables.
    num_layers
        Layers of the model; all but one may be offloaded.
    """
    notes: list[str] = []
    settings = {
        "gradient_dtype": _gradient_dtype(arguments, notes),
        "moments_dtype": _moments_dtype(arguments, notes),
        "fp8_param_gather": "--fp8-param-gather" in arguments,
        "mtp_layers": arguments.get("--mtp-num-layers", 0),
        "shared_expert_overlap": "--moe-shared-expert-overlap" in arguments,
        "delay_wgrad": "--delay-wgrad-compute" in arguments,
        "optimizer": _optimizer(arguments, notes),
        "loss": _loss(arguments, notes),
        **_communication_sms(arguments, notes),
        **_offloaded_layers(arguments, num_layers),
        **_optimizer_offload(arguments, variables, notes),
        **_attention(arguments),
        **_allocator(variables),
        **({"launches": "blocking"} if variables.get("CUDA_LAUNCH_BLOCKING") == "1" else {}),
    }
    return settings, tuple(notes)


def read_group(arguments: Arguments, strategy: Strategy) -> int | str:
    """
    Number of data-parallel ranks of one distributed optimizer instance; ``all`` with one instance or no sharding.

    Raises
    ------
    SpecError
        If the ranks are no multiple of the instances (megatron/core/parallel_state.py:833, megatron-core 0.16.1).
    """
    name = "--num-distributed-optimizer-instances"
    instances: int = arguments.get(name, 1)
    ranks = strategy.dp * strategy.cp
    if strategy.sharding == Sharding.NONE or instances == 1:
        return "all"
    if ranks % instances:
        raise SpecError(f"{WHERE}.{name}", f"is {instances}; {ranks} replicas are no multiple of it.")
    return ranks // instances


def _gradient_dtype(arguments: Arguments, notes: list[str]) -> str:
    """
    Return the dtype of gradients.

    The default is FP32 for BF16 weights and FP16 for FP16 weights; Megatron-FSDP has an option of its own.

    References
    ----------
    Megatron-LM, megatron/training/arguments.py, validate_args: ``accumulate_allreduce_grads_in_fp32``.
    """
    own = arguments.get("--megatron-fsdp-main-grads-dtype", "auto")
    if own != "auto" and "--use-megatron-fsdp" in arguments:
        return str(own)
    if own != "auto":
        notes.append("--megatron-fsdp-main-grads-dtype: without --use-megatron-fsdp it says nothing.")
    if "--accumulate-allreduce-grads-in-fp32" in arguments:
        return "fp32"
    if "--fp16" in arguments:
        return "fp16"
    narrow = "--grad-reduce-in-bf16" in arguments or arguments.get("--main-grads-dtype") == "bf16"
    return "bf16" if narrow else "fp32"


def _moments_dtype(arguments: Arguments, notes: list[str]) -> str:
    given = [arguments.get(name, "fp32") for name in MOMENTS]
    if given in (["fp32"] * 2, ["bf16"] * 2):
        return str(given[0])
    costed = "fp32" if "fp32" in given else "bf16"
    notes.append(f"Moments are {' and '.join(given)}: costed as {costed}.")
    return costed


def _optimizer(arguments: Arguments, notes: list[str]) -> str:
    """Return the optimizer; Muon with the distributed optimizer is ``dist_muon``."""
    given = str(arguments.get("--optimizer", "adam"))
    if given in ("adam", "dist_muon"):
        return given
    if given == "muon" and "--use-distributed-optimizer" in arguments:
        return "dist_muon"
    notes.append(f"--optimizer {given}: costed as Adam, with two moments.")
    return "adam"


def _loss(arguments: Arguments, notes: list[str]) -> str:
    """Return the loss; the kind of fusion counts only with its switch, and ``native`` is the default."""
    implementation = arguments.get("--cross-entropy-fusion-impl", "native")
    if "--cross-entropy-loss-fusion" not in arguments:
        return "unfused"
    if implementation != "te":
        notes.append("--cross-entropy-fusion-impl native: costed as the unfused loss, in FP32 as well.")
    return "fused" if implementation == "te" else "unfused"


def _communication_sms(arguments: Arguments, notes: list[str]) -> dict[str, int]:
    """Return the number of SMs of the dispatcher's kernels; without an option it is the framework's, with a note."""
    if arguments.get("--moe-token-dispatcher-type") != "flex":
        return {}
    backend = arguments.get("--moe-flex-dispatcher-backend", "deepep")
    of_any = arguments.get("--moe-flex-dispatcher-num-sms")
    number = arguments.get(NUM_SMS.get(backend, ""), of_any)
    if number is not None:
        return {"communication_sms": number}
    if arguments.get("--expert-model-parallel-size", 1) > 1:
        notes.append(
            f"No option says the SMs of {backend}'s kernels: as many as cluster.framework has; "
            "settings.communication_sms=N says it."
        )
    return {}


def _offloaded_layers(arguments: Arguments, num_layers: int) -> dict[str, int]:
    """Return the number of offloaded layers; all but the last is the maximum, which a job does not write."""
    layers = arguments.get("--cpu-offloading-num-layers", 0)
    return {"offloaded_layers": layers} if 0 < layers < num_layers - 1 else {}


def _optimizer_offload(arguments: Arguments, variables: Mapping[str, str], notes: list[str]) -> dict[str, Any]:
    """Return optimizer offload; the parser's default is all states, and host threads are read only with offload."""
    if "--optimizer-cpu-offload" not in arguments:
        return {}
    threads = variables.get("OMP_NUM_THREADS", "")
    if not threads.isdecimal():
        notes.append("OMP_NUM_THREADS is not said: each rank's share of the host's cores; settings.host_threads=N.")
    return {
        "offloaded_states": arguments.get("--optimizer-offload-fraction", 1.0),
        "offload_overlap": "--overlap-cpu-optimizer-d2h-h2d" in arguments,
        **({"host_threads": int(threads)} if threads.isdecimal() and int(threads) else {}),
    }


def _allocator(variables: Mapping[str, str]) -> dict[str, Any]:
    """Return the setting of the allocator, where the environment has it."""
    value = variables.get("PYTORCH_CUDA_ALLOC_CONF", variables.get("PYTORCH_ALLOC_CONF"))
    if value is None:
        return {}
    return {"allocator": "expandable" if "expandable_segments:true" in value.lower() else "segments"}


def _attention(arguments: Arguments) -> dict[str, str]:
    backend = arguments.get("--attention-backend")
    unfused = backend in ("unfused", "local")
    return {} if backend is None else {"attention": "unfused" if unfused else "flash"}
