"""What is read of a trace: times, names, launches, sizes, communication, and what stands beside the events."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import numpy as np
import pytest

from costmodel.errors import SpecError
from planner.measure.traces.events import UNKNOWN, Blocks, Category, Device, Message, Operands, Track, Wait
from planner.measure.traces.reading import read_recordings, read_trace, runs_of
from planner.measure.traces.reading.messages import find_communication
from tests.builders_kineto import SENT, a_step, distributed, event, kernel, launch, operator, write_file
from tests.cases import in_one_case


def read(tmp_path, events, *, name="trace.json", indent=None, **top):
    """A trace of some events."""
    return read_trace(write_file(tmp_path / name, events, indent=indent, **top))


class TestTimes:
    def test_whole_nanoseconds_since_the_first_event(self, tmp_path):
        """1020.250 us - 1000 us are 20,250 ns."""
        trace = read(tmp_path, a_step(), baseTimeNanoseconds=1_000_000_000)

        assert trace.events.start.tolist() == [0, 10_000, 15_000, 20_250]
        assert trace.events.duration.tolist() == [100_000, 20_500, 3_000, 40_125]
        assert trace.begin == 1_000_000_000 + 1_000_000

    @pytest.mark.parametrize("ts", ["1740461679479712.345", '"1740461679479712.345"'])
    def test_digits_that_no_float_has(self, ts, tmp_path):
        """A float of 1.7e15 microseconds is right to a quarter of a microsecond."""
        path = tmp_path / "trace.json"
        path.write_text(f'[{{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":1,"ts":{ts},"dur":1e-3}}]')

        trace = read_trace(path)

        assert trace.begin == 1_740_461_679_479_712_345
        assert trace.events.duration.tolist() == [1]

    def test_the_longer_of_two_that_start_together_comes_first(self, tmp_path):
        events = [operator("inner", 5, 1), operator("outer", 5, 9), operator("before", 4, 1)]

        trace = read(tmp_path, events)

        assert [trace.name_of(row) for row in range(3)] == ["before", "outer", "inner"]

    def test_what_ends_before_it_begins_takes_no_time(self, tmp_path):
        trace = read(tmp_path, [*a_step(), operator("aten::add", 1050, -3)])

        assert trace.events.duration.min() == 0
        assert any("1 event was taken as without duration" in doubt for doubt in trace.doubts)


class TestEvents:
    def test_categories_of_old_and_new_releases_and_of_rocm(self, tmp_path):
        names = ["cpu_op", "Operator", "cuda_runtime", "hip_runtime", "Runtime", "Kernel", "Memcpy", "gpu_memset"]
        trace = read(tmp_path, [event(name, "x", place, 1) for place, name in enumerate(names)])

        assert trace.events.category.tolist() == [0, 0, 1, 1, 1, 2, 3, 4]

    def test_flows_counters_functions_and_foreign_categories_are_dropped(self, tmp_path):
        others = [
            {"ph": "s", "id": 1, "pid": 100, "tid": 100, "ts": 1, "cat": "ac2g", "name": "ac2g"},
            {"ph": "C", "name": "memory", "pid": 1, "ts": 1, "args": {}},
            {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": "python"}},
            event("python_function", "train.py(3): step", 1, 5),
            event("python_function", "nn.Module: Linear_0", 1, 5),
            event("overhead", "Instrumentation", 1, 5),
        ]

        trace = read(tmp_path, others)

        assert trace.names == ("nn.Module: Linear_0",)
        assert trace.events.category.tolist() == [Category.MODULE]

    def test_threads_and_streams(self, tmp_path):
        trace = read(tmp_path, [operator("a", 1, 1, on=(8, 9)), kernel("k", 2, 1, stream=9)])

        assert trace.tracks == (Track("thread", "8", "9"), Track("stream", "0", "9"))
        assert trace.events.track.tolist() == [0, 1]

    def test_what_joins_events(self, tmp_path):
        trace = read(tmp_path, [operator("a", 1, 5, Sequence_number=12, Fwd_thread_id=1, External_id=4), *a_step()])
        row = trace.names.index("a")

        assert trace.events.sequence[0] == 12
        assert trace.events.forward_thread[0] == 1
        assert trace.events.external[0] == 4
        assert trace.name_of(0) == trace.names[row] == "a"
        assert trace.events.correlation.tolist() == [UNKNOWN, UNKNOWN, UNKNOWN, 9, 9]

    def test_numbers_that_are_written_as_text(self, tmp_path):
        trace = read(tmp_path, [launch("1", "2", "77", External_id="3")])

        assert (trace.events.correlation[0], trace.events.external[0]) == (77, 3)

    def test_shapes_and_lists_of_tensors(self, tmp_path):
        sizes, types = [[8, 4], [[2], [3, 3]], []], ["c10::BFloat16", "TensorList", "Scalar"]
        trace = read(tmp_path, [operator("a", 1, 5, Input_Dims=sizes, Input_type=types)])

        assert trace.operands == (
            Operands(((8, 4), (2,), (3, 3), ()), ("c10::BFloat16", "TensorList", "TensorList", "Scalar")),
        )

    def test_blocks_and_bytes(self, tmp_path):
        on_stream = {"on": (0, 7), "device": 0, "stream": 7}
        trace = read(
            tmp_path,
            [
                kernel("k", 1, 1, grid=[8, 16, 5], block=[128, 1, 1], blocks_per_SM=4.85),
                event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 3, 1, bytes=4096, **on_stream),
            ],
        )

        assert trace.blocks == (Blocks(640, 128, 4.85),)
        assert trace.events.nbytes.tolist() == [UNKNOWN, 4096]

    @in_one_case(
        ("kind", "arguments", "expected"),
        [
            ("Context Sync", {"stream": -1}, Wait("device")),
            ("Stream Sync", {"stream": 7}, Wait("stream", "7")),
            ("Event Sync", {"wait_on_stream": 4294967295}, Wait("event")),
            (
                "Stream Wait Event",
                {"stream": 24, "wait_on_stream": 20, "wait_on_cuda_event_record_corr_id": 1385},
                Wait("stream_event", "20", 1385),
            ),
        ],
    )
    def test_waits(self, kind, arguments, expected, tmp_path):
        one = event("cuda_sync", kind, 1, 1, on=(0, arguments.get("stream", -1)))
        one["args"] = {"cuda_sync_kind": kind, "correlation": 3, **arguments}

        trace = read(tmp_path, [one])

        assert trace.waits == (expected,)
        assert trace.events.wait.tolist() == [0]


class TestCommunication:
    def test_a_kernel_says_it_itself(self, tmp_path):
        one = kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 1, 1)
        one["args"] |= SENT

        trace = read(tmp_path, [one])

        assert trace.messages == (
            Message(
                operation="all_reduce",
                group="7",
                description="DATA_PARALLEL_GROUP",
                ranks=(0, 2, 4, 6),
                num_ranks=4,
                elements_in=1000,
                elements_out=1000,
                dtype="BFloat16",
                library="nccl",
            ),
        )

    def test_the_operator_around_the_launch_says_it(self, tmp_path):
        around = operator("record_param_comms", 1, 50)
        around["args"] |= SENT
        later = operator("record_param_comms", 60, 50)
        later["args"] |= SENT | {"Collective name": "broadcast"}

        trace = read(tmp_path, [around, launch(20, 3, 9), later, kernel("ncclDevKernel_Generic", 70, 9, correlation=9)])

        on_stream = trace.events.category == Category.KERNEL
        assert trace.messages[trace.events.message[on_stream][0]].operation == "all_reduce"

    def test_the_name_alone_says_it(self, tmp_path):
        trace = read(tmp_path, [kernel("ncclKernel_ReduceScatter_RING_LL_Sum_float(ncclWork*)", 1, 1)])

        assert trace.messages == (Message(operation="reduce_scatter", library="nccl"),)

    def test_waiting_is_no_communication(self, tmp_path):
        one = operator("record_param_comms", 1, 1)
        one["args"] |= SENT | {"Collective name": "wait"}

        assert read(tmp_path, [one]).messages == ()

    def test_ranks_that_are_cut_are_those_of_the_group(self, tmp_path):
        one = kernel("ncclDevKernel_Generic", 1, 1)
        one["args"] |= SENT | {"Process Group Ranks": "[0, 1, ...]"}

        trace = read(tmp_path, [one], **distributed(0, 4, groups={"7": [0, 1, 2, 3]}))

        assert trace.messages[0].ranks == (0, 1, 2, 3)

    def test_ranks_that_are_cut_have_a_first_and_a_distance(self, tmp_path):
        one = kernel("ncclDevKernel_Generic", 1, 1)
        one["args"] |= SENT | {"Process Group Ranks": "[0, ...]", "Global rank start": 1, "Global rank stride": 8}

        assert read(tmp_path, [one]).messages[0].ranks == (1, 9, 17, 25)

    def test_gloo_says_its_name_and_its_operands(self, tmp_path):
        around = operator("c10d::send", 1, 50, Concrete_Inputs=["", "", "1", "0"])
        sent = event("user_annotation", "gloo:send", 5, 40, Input_Dims=[[10, 100]], Input_type=["float"])

        trace = read(tmp_path, [around, sent], **distributed(0, 2, groups={"0": [0, 1]}))

        assert trace.messages == (Message("send", "0", "", (0, 1), 2, 1000, 1000, "float", peer=1, library="gloo"),)

    @in_one_case(
        ("name", "expected"),
        [
            ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", ("nccl", "all_gather")),
            ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*)", ("nccl", "")),
            ("void deep_ep::intranode::dispatch<8, 768, 8192>(int4*)", ("deepep", "dispatch")),
            ("void dpsk::ep::internode::cached_notify<false>(int)", ("deepep", "notify")),
            ("void deep_ep::internode_ll::combine<true, 7168>(void*)", ("deepep", "combine")),
            ("hybrid_ep::dispatch_kernel<int>", ("hybrid_ep", "dispatch")),
            ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>", ("custom_all_reduce", "all_reduce")),
            ("void aiter::cross_device_reduce_2stage<float, 8>", ("custom_all_reduce", "all_reduce")),
            ("void c10d::symmetric_memory::multimem_all_gather_kernel<8>", ("symmetric_memory", "all_gather")),
            ("two_shot_all_reduce_kernel<c10::BFloat16>", ("symmetric_memory", "all_reduce")),
            ("userbuffers_fp16_sum_inplace_gpu_rr_rs_oop", ("transformer_engine", "")),
            ("nvshmemi_barrier_on_stream_kernel_threadgroup", ("nvshmem", "barrier")),
            ("mscclKernel_Sum_half_Simple", ("msccl", "")),
            ("ampere_sgemm_128x64_nn", None),
            ("void at::native::reduce_kernel<512, 1>", None),
            ("void dpsk::permute_dispatch_layout", None),
        ],
    )
    def test_names(self, name, expected):
        assert find_communication(name, of="kernels") == expected


class TestBesideTheEvents:
    @pytest.mark.parametrize(
        "devices", ["[{'id': 0, 'name': 'NVIDIA H100', 'numSms': 132, 'totalGlobalMem': 80}]", None]
    )
    def test_devices_as_a_list_or_as_text(self, devices, tmp_path):
        plain = [{"id": 0, "name": "NVIDIA H100", "numSms": 132, "totalGlobalMem": 80}]

        trace = read(tmp_path, a_step(), deviceProperties=devices or plain)

        assert trace.devices == (Device("NVIDIA H100", 132, 80),)

    def test_code_in_a_text_is_not_run(self, tmp_path):
        trace = read(tmp_path, a_step(), deviceProperties="__import__('os').abort()")

        assert trace.devices == ()

    def test_rank_and_groups(self, tmp_path):
        trace = read(tmp_path, a_step(), **distributed(3, 8, groups={"dp": [3, 7]}))

        assert (trace.rank, trace.world_size, trace.groups) == (3, 8, {"dp": (3, 7)})

    def test_they_may_stand_behind_the_events(self, tmp_path):
        path = tmp_path / "trace.json"
        path.write_text(json.dumps({"traceEvents": a_step(), **distributed(1, 2)}))

        assert read_trace(path).rank == 1

    def test_a_bare_list_of_events(self, tmp_path):
        path = tmp_path / "trace.json"
        path.write_text(json.dumps(a_step()))

        assert len(read_trace(path).events) == 4


class TestLayouts:
    """Files that other programs have written anew hold the same trace, however long they are."""

    @staticmethod
    def events():
        """More than is read at once; some hold what stands between two events, and a text that looks like it."""
        choice = random.Random(1)
        return [
            operator(
                choice.choice(["aten::mm", 'a "},{" b', "été\n"]),
                place * 3,
                choice.randrange(3),
                nested=[{"a": 1}, {"b": 2}],
            )
            if place % 7
            else {"ph": "f", "id": place, "pid": 1, "tid": 1, "ts": 5, "cat": "ac2g", "name": "ac2g"}
            for place in range(2_000)
        ]

    @pytest.mark.sampled(3)
    @pytest.mark.parametrize("indent", [None, 0, 2])
    @pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
    @pytest.mark.parametrize("packed", [False, True])
    def test_same_trace(self, indent, separators, packed, tmp_path):
        events = self.events()
        devices = [{"id": place, "name": "H100"} for place in range(8)]
        text = json.dumps({"traceEvents": events, "deviceProperties": devices}, indent=indent, separators=separators)
        path = tmp_path / "trace"
        path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())

        trace = read_trace(path)
        used = [one for one in events if one["ph"] == "X"]

        assert [trace.name_of(row) for row in range(len(trace.events))] == [one["name"] for one in used]
        assert trace.events.duration.tolist() == [one["dur"] * 1000 for one in used]
        assert len(trace.devices) == 8

    def test_progress_rises_to_the_end(self, tmp_path):
        shown = []

        read_trace(write_file(tmp_path / "trace.json", self.events()), progress=shown.append)

        assert shown == sorted(shown)
        assert shown[-1] == 1.0


def test_a_table_holds_only_what_columns_name(tmp_path):
    """Every number in a column has an entry in its table, and every entry is used."""
    trace = read(tmp_path, [*a_step(), operator("record_param_comms", 1, 1, Input_Dims=[[1]], Input_type=["float"])])

    for column, table in (("name", trace.names), ("track", trace.tracks), ("operands", trace.operands)):
        places = getattr(trace.events, column)
        assert np.unique(places[places != UNKNOWN]).tolist() == list(range(len(table)))


class TestRecordings:
    def test_ranks_that_were_recorded_together_are_a_run(self, tmp_path):
        """Rank 0 of a run alone, both of a later one, and one that says no rank; in another order."""
        paths = {}
        for name, rank, at in (("early", 0, 0), ("late0", 0, 9_000), ("late1", 1, 9_050), ("alone", None, 0)):
            top = distributed(rank=rank, world_size=2) if rank is not None else {}
            paths[name] = write_file(tmp_path / f"{name}.json", [operator("aten::mm", at, 100)], **top)

        traces = read_recordings([paths[name] for name in ("late1", "early", "late0", "alone")])
        runs = runs_of(traces)

        assert sorted([Path(trace.source).stem for trace in run] for run in runs) == [
            ["alone"],
            ["early"],
            ["late0", "late1"],
        ]
        with pytest.raises(SpecError, match="is named twice"):
            read_recordings([paths["early"], paths["early"]])
