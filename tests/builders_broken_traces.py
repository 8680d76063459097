"""Traces in which something is wrong: circles, missing events, two clocks; each made of a step that is right."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from random import Random
from typing import Any, TypeAlias

from tests.builders_kineto import document, event

Event: TypeAlias = dict[str, Any]

MAIN, BACKWARD = (100, 100), (100, 200)
COMPUTE, COMMUNICATION, COPIES = 7, 20, 21
STEP = 1000
"""Microseconds of a step."""


def two_threads(num_steps: int = 3) -> list[Event]:
    """
    Steps of a millisecond: two threads, three streams, events, a copy that is waited for, an update.

    The main thread launches the forward pass, the other one the backward pass with an all-reduce on a stream that waits
    for an event; then the loss is copied to pageable memory, and the device is synchronised.
    """
    found: list[Event] = []
    for number in range(num_steps):
        found += _step(STEP * number, 100 * number)
    return found


def _step(at: int, first: int) -> list[Event]:
    found = [event("user_annotation", f"ProfilerStep#{first // 100}", at, STEP)]
    for layer in range(4):
        found += _layer(at, first, layer)
    found += [
        event("cuda_runtime", "cudaEventRecord", at + 460, 3, on=BACKWARD, correlation=first + 30),
        _call("cudaStreamWaitEvent", at + 465, 3, first + 31, BACKWARD),
        _stream_waits(at + 466, first + 31, first + 30),
        _call("cudaLaunchKernel", at + 470, 5, first + 32, BACKWARD),
        _kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", at + 560, 100, first + 32, COMMUNICATION),
        _call("cudaStreamSynchronize", at + 480, 190, first + 33, BACKWARD),
        _call("cudaMemcpyAsync", at + 700, 40, first + 34, MAIN),
        event(
            "gpu_memcpy",
            "Memcpy DtoH (Device -> Pageable)",
            at + 715,
            10,
            on=(0, COPIES),
            device=0,
            stream=COPIES,
            correlation=first + 34,
            bytes=4,
        ),
        _call("cudaStreamSynchronize", at + 741, 3, first + 35, MAIN),
        event("user_annotation", "Optimizer.step#Adam.step", at + 750, 60),
        event("cpu_op", "aten::_foreach_add_", at + 755, 50, External_id=first + 36),
        _call("cudaLaunchKernel", at + 760, 5, first + 36, MAIN),
        _kernel("multi_tensor_apply_kernel_adam", at + 770, 120, first + 36, COMPUTE),
        _call("cudaDeviceSynchronize", at + 800, 100, first + 37, MAIN),
    ]
    return found


def _stream_waits(ts: float, call: int, record: int) -> Event:
    """A stream waits for what another one had been given when an event was recorded."""
    one = event("cuda_sync", "Stream Wait Event", ts, 1, on=(0, COMMUNICATION), stream=COMMUNICATION, correlation=call)
    names = {"kind": "cuda_sync_kind", "stream": "wait_on_stream", "record": "wait_on_cuda_event_record_corr_id"}
    one["args"] |= {names["kind"]: one["name"], names["stream"]: COMPUTE, names["record"]: record}
    return one


def _layer(at: int, first: int, layer: int) -> list[Event]:
    """A forward and a backward kernel, joined by a sequence number; backward kernels follow each other after 2 us."""
    here, back = at + 20 + 50 * layer, at + 250 + 50 * layer
    shapes = {"Input_Dims": [[64, 64], [64, 64]], "Input_type": ["c10::BFloat16", "c10::BFloat16"]}
    return [
        event(
            "cpu_op",
            "aten::linear",
            here,
            30,
            Sequence_number=first + layer,
            Fwd_thread_id=0,
            **shapes,
            External_id=first + layer,
        ),
        event("cpu_op", "aten::mm", here + 1, 28, External_id=first + layer, **shapes),
        _call("cudaLaunchKernel", here + 5, 5, first + layer, MAIN),
        _kernel("gemm_forward", here + 15, 40, first + layer, COMPUTE),
        event(
            "cpu_op",
            "autograd::engine::evaluate_function: LinearBackward0",
            back,
            40,
            on=BACKWARD,
            Sequence_number=first + 3 - layer,
            Fwd_thread_id=1,
            External_id=first + 10 + layer,
        ),
        event("cpu_op", "aten::mm", back + 2, 30, on=BACKWARD, External_id=first + 10 + layer, **shapes),
        _call("cudaLaunchKernel", back + 5, 5, first + 10 + layer, BACKWARD),
        _kernel("gemm_backward", at + 265 + 62 * layer, 80 if layer == 3 else 60, first + 10 + layer, COMPUTE),
    ]


def _call(name: str, ts: float, dur: float, correlation: int, on: tuple[int, int]) -> Event:
    return event("cuda_runtime", name, ts, dur, on=on, correlation=correlation, External_id=correlation)


def _kernel(name: str, ts: float, dur: float, correlation: int, stream: int) -> Event:
    return event(
        "kernel",
        name,
        ts,
        dur,
        on=(0, stream),
        device=0,
        stream=stream,
        correlation=correlation,
        External_id=correlation,
    )


# --- what is wrong -----------------------------------------------------------------------------------------


def _on_device(one: Event) -> bool:
    return one["cat"] in ("kernel", "gpu_memcpy")


def _is_call(one: Event) -> bool:
    return one["cat"] == "cuda_runtime"


def _moved(events: list[Event], chosen: Callable[[Event], bool], law: Callable[[float], float]) -> list[Event]:
    return [{**one, "ts": law(one["ts"])} if chosen(one) else one for one in events]


def overlapping_kernels(events: list[Event], random: Random) -> list[Event]:
    """Kernels of one stream run beside each other."""
    return [{**one, "dur": 10 * one["dur"]} if _on_device(one) and random.random() < 0.5 else one for one in events]


def reversed_streams(events: list[Event], random: Random) -> list[Event]:
    """Kernels begin in the opposite order of their launches."""
    return [{**one, "ts": 3 * STEP - one["ts"]} if _on_device(one) else one for one in events]


def shuffled_kernels(events: list[Event], random: Random) -> list[Event]:
    """Kernels begin anywhere."""
    return _moved(events, _on_device, lambda when: random.randrange(3 * STEP))


def device_clock_behind(events: list[Event], random: Random) -> list[Event]:
    """Kernels end before they are launched."""
    return _moved(events, _on_device, lambda when: when - 700)


def device_clock_ahead(events: list[Event], random: Random) -> list[Event]:
    """Calls return long before what they wait for has ended."""
    return _moved(events, _on_device, lambda when: when + 5000)


def device_clock_drifts(events: list[Event], random: Random) -> list[Event]:
    """The device counts three microseconds for two."""
    return _moved(events, _on_device, lambda when: 1.5 * when)


def threads_of_two_clocks(events: list[Event], random: Random) -> list[Event]:
    """The second thread is 300 us behind the first one."""
    return _moved(events, lambda one: (one["pid"], one["tid"]) == BACKWARD, lambda when: when - 300)


def reused_correlations(events: list[Event], random: Random) -> list[Event]:
    """Numbers are used again and again."""
    return _renumbered(events, lambda number: number % 7)


def shuffled_correlations(events: list[Event], random: Random) -> list[Event]:
    """Calls and kernels are joined at random."""
    return _renumbered(events, lambda number: random.randrange(300))


def _renumbered(events: list[Event], law: Callable[[int], int]) -> list[Event]:
    found = deepcopy(events)
    for one in found:
        if "correlation" in one["args"]:
            one["args"]["correlation"] = law(one["args"]["correlation"])
    return found


def missing_launches(events: list[Event], random: Random) -> list[Event]:
    """Half of the calls were not recorded."""
    return [one for one in events if not _is_call(one) or random.random() < 0.5]


def no_calls(events: list[Event], random: Random) -> list[Event]:
    """No call was recorded."""
    return [one for one in events if not _is_call(one)]


def missing_kernels(events: list[Event], random: Random) -> list[Event]:
    """Half of the kernels were not recorded."""
    return [one for one in events if not _on_device(one) or random.random() < 0.5]


def missing_anything(events: list[Event], random: Random) -> list[Event]:
    """Each third event was not recorded."""
    return [one for one in events if random.random() < 0.67]


def without_records(events: list[Event], random: Random) -> list[Event]:
    """Nobody recorded the events that streams wait for."""
    return [one for one in events if one["name"] != "cudaEventRecord"]


def records_of_later(events: list[Event], random: Random) -> list[Event]:
    """Streams wait for events that are recorded in the next step."""
    found = deepcopy(events)
    for one in found:
        if one["cat"] == "cuda_sync":
            one["args"]["wait_on_cuda_event_record_corr_id"] += 100
            one["args"]["wait_on_stream"] = random.choice((COMPUTE, COMMUNICATION, COPIES))
    return found


def negative_durations(events: list[Event], random: Random) -> list[Event]:
    """Events end before they begin."""
    return [{**one, "dur": -one["dur"]} if random.random() < 0.3 else one for one in events]


def launches_beyond_their_step(events: list[Event], random: Random) -> list[Event]:
    """The last launches of the main thread last for minutes."""
    return [{**one, "dur": 1e8} if _is_call(one) and one["ts"] % STEP == 760 else one for one in events]


def no_durations(events: list[Event], random: Random) -> list[Event]:
    """Everything happens at once."""
    return [{**one, "ts": 0, "dur": 0} for one in events]


def duplicates(events: list[Event], random: Random) -> list[Event]:
    """Each event is there twice."""
    return [*events, *deepcopy(events)]


def one_thread_for_all(events: list[Event], random: Random) -> list[Event]:
    """Threads of both kinds have one number."""
    return [{**one, "tid": 100} if one["tid"] == 200 else one for one in events]


def threads_that_wait_for_each_other(events: list[Event], random: Random) -> list[Event]:
    """Operators of twenty threads begin where those of others pause."""
    return [{**one, "tid": random.choice(range(100, 120))} if one["pid"] == 100 else one for one in events]


def everything_waits(events: list[Event], random: Random) -> list[Event]:
    """Half of the calls wait for the device, a stream or an event, whatever they launched."""
    names = ("cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaEventSynchronize", "cudaStreamWaitEvent")
    return [{**one, "name": random.choice(names)} if _is_call(one) and random.random() < 0.5 else one for one in events]


def host_alone(events: list[Event], random: Random) -> list[Event]:
    """Only operators, and messages of Gloo that nothing starts."""
    gloo = [event("user_annotation", "gloo:all_reduce", at, 200 + at % 7) for at in range(0, 3 * STEP, 90)]
    return [*(one for one in events if one["cat"] in ("cpu_op", "user_annotation")), *gloo]


def messages_alone(events: list[Event], random: Random) -> list[Event]:
    """Messages of Gloo and steps, nothing else."""
    return [one for one in host_alone(events, random) if one["cat"] == "user_annotation"]


def names_of_rocm(events: list[Event], random: Random) -> list[Event]:
    """HIP's calls, whose copies wait for themselves."""
    found = deepcopy(events)
    for one in found:
        if _is_call(one):
            one["name"] = one["name"].replace("cudaMemcpyAsync", "hipMemcpyWithStream").replace("cuda", "hip")
    return found


def graphs(events: list[Event], random: Random) -> list[Event]:
    """Launches are those of CUDA graphs, several kernels of each."""
    found = deepcopy(events)
    for one in found:
        if one["name"] == "cudaLaunchKernel":
            one["name"] = "cudaGraphLaunch"
    return _renumbered(found, lambda number: number // 4 * 4)


def steps_inside_each_other(events: list[Event], random: Random) -> list[Event]:
    """Marks of steps overlap."""
    return [{**one, "dur": 2500} if one["name"].startswith("ProfilerStep") else one for one in events]


def one_stream_for_all(events: list[Event], random: Random) -> list[Event]:
    """All kernels on one stream, overlapping."""
    found = deepcopy(events)
    for one in found:
        if _on_device(one):
            one["tid"] = one["args"]["stream"] = COMPUTE
    return found


def kernels_of_threads(events: list[Event], random: Random) -> list[Event]:
    """Kernels stand on the process of the host."""
    return [{**one, "pid": 100, "tid": 100} if _on_device(one) else one for one in events]


KINDS: tuple[Callable[[list[Event], Random], list[Event]], ...] = (
    overlapping_kernels,
    reversed_streams,
    shuffled_kernels,
    device_clock_behind,
    device_clock_ahead,
    device_clock_drifts,
    threads_of_two_clocks,
    reused_correlations,
    shuffled_correlations,
    missing_launches,
    no_calls,
    missing_kernels,
    missing_anything,
    without_records,
    records_of_later,
    negative_durations,
    launches_beyond_their_step,
    no_durations,
    duplicates,
    one_thread_for_all,
    threads_that_wait_for_each_other,
    everything_waits,
    host_alone,
    messages_alone,
    names_of_rocm,
    graphs,
    steps_inside_each_other,
    one_stream_for_all,
    kernels_of_threads,
)
"""What may be wrong with a trace, each by itself; the first one that is right is :func:`two_threads`."""


def broken(seed: int, num_kinds: int) -> str:
    """The text of a trace with several things wrong at once; of each fifth the end is missing."""
    random = Random(seed)
    events = two_threads()
    for kind in random.sample(KINDS, num_kinds):
        events = kind(events, random)
    text = json.dumps(document(events))
    return text if seed % 5 else text[: len(text) * 2 // 3]
