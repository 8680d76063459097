"""Samples and a device's file from traces."""

from __future__ import annotations

import re
import statistics
from pathlib import Path

import pytest
import yaml

from costmodel.errors import SpecError
from planner.cli import main
from planner.jobs.cluster import device_of
from planner.jobs.problem import load
from planner.measure.sample.samples import TRACED, Point, Sizes
from planner.measure.sample.table import read_samples
from planner.measure.traces.events import Category, Device, Operands, Trace
from planner.measure.traces.report.extraction import (
    DIVIDED,
    LEFT_OUT,
    LOWER_BOUND,
    MOST_OTHERS,
    ONLY_BESIDE,
    PROFILED,
    SEVERAL,
    extract_samples,
    fit_device_file,
    host_times,
    machine_of,
    measure_constants,
    missing_operators,
)
from planner.measure.traces.writing import write_trace
from tests.builders_job import a_document
from tests.builders_operators import GPU, NODE, SENDING, Recording, a_grid, a_linear_step, a_message, one_step

LINEAR = Point(operator="matmul", pass_="forward", dtype="bf16", sizes=Sizes(m=8, n=16, k=4))

FACTS = {
    "memory_bytes": 1.6e10,
    "memory_bandwidth": 1.0e10,
    "devices_per_node": 2,
    "networks": [{"name": "links", "num_peers": 2, "bandwidth": 1.0e9, "latency": 1.0e-5}],
}

SHAPES = ((64, 64), (128, 64), (64, 256), (256, 256))
"""Columns and inner dimensions of linears, in a step for each."""


def a_model_step(*, between: int = 1000, gelu: int = 0) -> Trace:
    """Linears of 1024 rows whose passes take a nanosecond for each 1000 FLOPs, and thread time between them."""
    made, now = Recording(), 1000
    for number, (n, k) in enumerate(SHAPES, start=1):
        duration = 2 * 1024 * n * k // 1000
        made.operator("aten::linear", now, duration, (1024, k), (n, k), sequence=number)
        now += duration + between
    if gelu:
        made.operator("aten::gelu", now, gelu, (1024, 1024), sequence=len(SHAPES) + 1)
        now += gelu + between
    for number, (n, k) in reversed(tuple(enumerate(SHAPES, start=1))):
        duration = 2 * 1024 * n * k // 1000
        made.operator(f"{NODE}LinearBackward0", now, 2 * duration, sequence=number, forward_thread=1)
        made.operator("aten::mm", now, duration, (n, 1024), (1024, k))
        made.operator("aten::mm", now + duration, duration, (1024, n), (n, k))
        now += 2 * duration + between
    made.step(0, now)
    return made.trace()


class TestSamples:
    """Rows of the table."""

    def test_a_row_is_the_median_of_all_times(self) -> None:
        """Three steps of 20, 20 and 22 ns."""
        traces = [a_linear_step().trace(), a_linear_step().trace(), a_linear_step().trace()]
        duration = traces[2].events.duration
        duration[duration == 20] = 22
        (found,) = (one for one in extract_samples(traces).samples if one.point == LINEAR)
        assert found.timing.seconds == pytest.approx(20e-9)
        assert found.timing.repeats == 3
        assert found.timing.spread == pytest.approx(1 / 2 / 20)
        assert found.machine.software == TRACED

    def test_the_share_that_became_samples(self) -> None:
        """All but 3 of 73 ns."""
        assert extract_samples([a_linear_step().trace()]).known_fraction == pytest.approx(70 / 73)

    def test_slowdown_beside_communication_is_not_in_the_samples(self) -> None:
        """10 ns alone, 12 beside an all-reduce; another size ran beside it alone, 24 ns that would have been 20."""
        made = one_step(1000, devices=(GPU,))
        message = a_message("all_reduce", elements=8, ranks=(0, 1))
        made.kernel("nccl", 200, 200, on=SENDING, message=message)
        times = ((100, 10, 16), (120, 10, 16), (210, 12, 16), (230, 12, 16), (250, 24, 32))
        for number, (start, duration, columns) in enumerate(times):
            made.operator("aten::linear", 10 * number, 8, (8, 4), (columns, 4))
            made.kernel("gemm", start, duration, call=10 * number + 2, number=number, blocks=a_grid(columns))
        found = extract_samples([made.trace()])
        seconds = {one.point.sizes.n: one.timing.seconds for one in found.samples if one.point.operator == "matmul"}
        assert seconds == {16: pytest.approx(10e-9), 32: pytest.approx(20e-9)}
        assert found.slowdown is not None
        assert found.slowdown[0] == pytest.approx(1.2)
        assert LEFT_OUT.format(number=2) in found.doubts
        assert ONLY_BESIDE.format(number=1) + DIVIDED.format(factor=1.2) in found.doubts

    def test_copies_of_pinned_memory_are_samples_of_the_link(self) -> None:
        """Pageable ones are of the host's own copies."""
        made = one_step(100, devices=(GPU,))
        made.add(Category.COPY, "Memcpy HtoD (Pinned -> Device)", 5, 10, on=SENDING, nbytes=1000)
        made.add(Category.COPY, "Memcpy HtoD (Pageable -> Device)", 20, 10, on=SENDING, nbytes=2000)
        (found,) = extract_samples([made.trace()]).samples
        assert (found.point.operator, found.point.sizes.nbytes) == ("host_to_device", 1000)
        assert (found.machine.device, found.machine.num_processors) == ("GPU X", 100)

    def test_collectives_of_all_ranks_and_of_one(self) -> None:
        """With both ranks the one that came last; with one the least of all repeats, and a sentence on it."""
        traces = []
        for rank, durations in enumerate(((30, 50), (12, 40))):
            made = one_step(200, rank=rank, devices=(GPU, GPU))
            for number, duration in enumerate(durations):
                message = a_message("all_reduce", elements=1000, ranks=(0, 1))
                made.kernel("nccl", 10 + 100 * number, duration, message=message)
            traces.append(made.trace())
        (both,) = extract_samples(traces).samples
        assert (both.point.operator, both.point.sizes.ranks, both.point.sizes.nodes) == ("all_reduce", 2, 1)
        assert both.timing.seconds == pytest.approx(statistics.median((12e-9, 40e-9)))
        alone = extract_samples(traces[:1])
        assert alone.samples[0].timing.seconds == pytest.approx(30e-9)
        assert LOWER_BOUND.format(number=1) in alone.doubts

    @pytest.mark.parametrize(("rank", "num_norms"), [(3, 32), (4, 33)])
    def test_a_job_says_what_a_rank_updates(self, rank: int, num_norms: int) -> None:
        """
        Half of Llama 3 8B's layers, half of their matrices, of which two replicas share the states; so of either end.

        A layer has queries and output of 4096 by 4096, keys and values of 1024, three matrices of 14336, two norms,
        which are not split; the last stage has one norm more.
        """
        made = one_step(100, rank=rank)
        made.operator("aten::_fused_adamw_", 10, 10, operands=Operands(((),) * 4, ("TensorList",) * 4))
        problem = load(
            a_document(
                "llama3-8b",
                "8xh100-80gb-sxm",
                batch=8,
                sequence=8192,
                tokens=1e9,
                strategy={"tp": 2, "pp": 2, "dp": 2, "sharding": "optimizer"},
            )
        )
        (found,) = extract_samples([made.trace()], problem).samples
        matrices = 2 * 4096 * 4096 + 2 * 1024 * 4096 + 3 * 14336 * 4096
        assert found.point.sizes.n == ((16 * matrices + 128256 * 4096) / 2 + num_norms * 4096) / 2

    @pytest.mark.slow
    def test_experts_are_known_whatever_the_router_sends_them(self) -> None:
        """37 rows for one of Mixtral's experts, to which the planner deals equally many; gate and up are one matrix."""
        made = one_step(100)
        made.operator("aten::linear", 10, 10, (37, 4096), (28672, 4096))
        problem = load(a_document("mixtral-8x7b", "8xh100-80gb-sxm", batch=8, sequence=4096, tokens=1e9))
        missing = missing_operators(problem, extract_samples([made.trace()]))
        assert "expert_up forward" not in missing
        assert {"expert_up dgrad", "expert_down forward", "output_projection forward"} <= set(missing)

    def test_traces_of_one_kind_of_device(self) -> None:
        """A table is of one machine."""
        traces = []
        for name in ("GPU X", "GPU Y"):
            made = Recording(rank=len(traces), devices=(Device(name=name, num_processors=1, memory_bytes=1),))
            made.kernel("k", 0, 10)
            traces.append(made.trace())
        with pytest.raises(SpecError, match="different devices: GPU X, GPU Y"):
            machine_of(traces)


class TestDeviceFile:
    """What ``planner plan`` computes with."""

    def test_times_of_the_trace_come_back(self) -> None:
        """Operators take what they took; the thread's time between them is shared among them."""
        trace = a_model_step()
        found = extract_samples([trace])
        fitted, constants = fit_device_file([trace], found, name="mine", facts=FACTS)
        assert fitted.entry["calibration"]["samples"]["origin"] == "trace"
        assert fitted.entry["calibration"]["times"] == "sampled"
        assert [name for name, _, _ in constants] == ["step_seconds"]
        (host,) = host_times([trace], found.by_trace)
        assert host.per_operator == pytest.approx(7000e-9 / 12)
        (one,) = (each for each in fitted.operators if (each.operator, each.of_pass) == ("matmul", "forward"))
        for line in one.rows.splitlines():
            m, n, k, seconds = (float(cell) for cell in line.split())
            assert seconds == pytest.approx(2 * m * n * k * 1e-12 + host.per_operator, rel=0.05)

    def test_the_time_of_the_host_is_in_no_rate_of_the_device(self) -> None:
        """An activation that reaches half of the bandwidth, with as much time of the thread before as behind it."""
        trace = a_model_step(between=10**6, gelu=2 * 2 * 1024 * 1024 * 1000 // 5000)
        fitted, _ = fit_device_file([trace], extract_samples([trace]), name="mine", facts=FACTS)
        assert fitted.entry["calibration"]["memory_efficiency"] == pytest.approx(0.5, rel=0.05)
        assert fitted.entry["calibration"]["kernel_gap_seconds"] < 1e-4

    def test_one_shape_is_enough_of_a_trace(self) -> None:
        """Times of its other shapes grow with the work."""
        trace = Recording()
        trace.step(0, 10**7)
        for number, (n, k) in enumerate(SHAPES):
            trace.operator("aten::linear", 10**6 * number, 2 * 1024 * n * k // 1000, (1024, k), (n, k))
        trace.operator("aten::gelu", 9 * 10**6, 5000, (64, 64))
        found = extract_samples([trace.trace()])
        fitted, _ = fit_device_file([trace.trace()], found, name="mine", facts=FACTS)
        (gelu,) = (one for one in fitted.operators if one.operator == "gelu")
        assert gelu.num_samples == 1
        assert not [name for name, _ in fitted.unlearned if name.startswith("gelu")]

    def test_slowdown_and_launches_of_a_gpu(self) -> None:
        """Constants that only a trace says, with how they were seen."""
        made = Recording(devices=(GPU,))
        message = a_message("all_reduce", elements=8, ranks=(0, 1))
        made.kernel("nccl", 200, 100, on=SENDING, message=message)
        for number, start in enumerate((0, 20, 40, 210, 240)):
            duration = 12 if start > 200 else 10
            made.kernel("norm", start, duration, call=start - 1 if start else 0, number=number + 1, blocks=a_grid(4))
        slowdown = extract_samples([made.trace()]).slowdown
        found = {name: value for name, value, _ in measure_constants([made.trace()], slowdown, ())}
        assert found["overlap_slowdown_compute"] == pytest.approx(1.2)
        assert found["launch_overhead_seconds"] == pytest.approx(statistics.median((20, 170, 30)) * 1e-9)


class TestCommand:
    """``planner trace extract``."""

    @pytest.fixture
    def trace(self, tmp_path: Path) -> str:
        """A file with one step."""
        path = tmp_path / "rank0.json.gz"
        write_trace(a_model_step(), path)
        return str(path)

    def test_a_table_and_a_device_that_jobs_take(
        self, trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The table reads back; the report says what came from the trace."""
        table, device, facts = tmp_path / "samples.csv", tmp_path / "mine.yaml", tmp_path / "facts.yaml"
        facts.write_text(yaml.safe_dump(FACTS))
        command = ["calibrate", trace, "-o", str(device), "--device", str(facts)]
        assert main(["trace", "extract", trace, "-o", str(table)]) == 0
        assert main(command) == 0
        said = capsys.readouterr().out
        assert "12 samples of host processors" in said
        assert "100.0% of the recorded computation became samples" in said
        assert PROFILED in said
        assert len(read_samples(table)) == 12
        entry = yaml.safe_load(device.read_text())
        assert entry["calibration"]["samples"]["origin"] == "trace"
        assert "under the profiler" in entry["calibration"]["sources"]["matmul_efficiency"]
        assert main(command) == 2
        assert main([*command, "--force"]) == 0

    def test_without_shapes_nothing_is_written(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """The message says how to record them."""
        made = one_step(100)
        made.operator("aten::mm", 0, 50)
        path, table = tmp_path / "rank0.json", tmp_path / "samples.csv"
        write_trace(made.trace(), path)
        assert main(["trace", "extract", str(path), "-o", str(table)]) == 2
        assert "record_shapes=True" in capsys.readouterr().err
        assert not table.exists()

    def test_what_is_wrong_with_a_trace_stands_in_the_message(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Events that end before they begin took no time: operators are known, but none of them computes."""
        made = one_step(100)
        made.operator("aten::gelu", 50, -10, (8, 4))
        path = tmp_path / "rank0.json"
        write_trace(made.trace(), path)
        assert main(["trace", "extract", str(path), "-o", str(tmp_path / "samples.csv")]) == 2
        assert "1 event was taken as without duration" in capsys.readouterr().err

    def test_constants_of_traces_without_shapes_on_top_of_a_known_device(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Without a base the message says why there is no device."""
        made = one_step(1000, devices=(GPU,))
        for number in range(3):
            made.operator("aten::mm", 50 * number, 20)
            made.kernel("gemm", 50 * number + 12, 10, call=50 * number + 2, number=number + 1)
        path, device = tmp_path / "rank0.json", tmp_path / "mine.yaml"
        write_trace(made.trace(), path)
        command = ["calibrate", str(path), "-o", str(device)]
        assert main(command) == 2
        said = capsys.readouterr()
        assert "have 0 forward matmuls" in said.err
        assert "record with torch.profiler.profile(record_shapes=True)" in said.err
        assert not device.exists()
        facts = tmp_path / "facts.yaml"
        facts.write_text("base: h100-80gb-sxm\nmemory_bytes: 7.0e+10\n")
        assert main([*command, "--device", str(facts)]) == 1
        assert "all operators" in capsys.readouterr().out
        known, base = device_of(yaml.safe_load(device.read_text())), device_of("h100-80gb-sxm")
        assert known.calibration is not None
        assert base.calibration is not None
        constants = known.calibration.constants
        assert (known.memory_bytes, constants.launch_overhead_seconds) == (7.0e10, pytest.approx(50e-9))
        assert constants.matmul_efficiency == base.calibration.constants.matmul_efficiency

    def test_known_operators_of_too_few_sizes_are_not_learned(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """All of the trace became samples, of one size: a device is written, and the exit code says what it lacks."""
        made = one_step(1000, devices=(GPU,))
        for number in range(3):
            made.operator("aten::mm", 50 * number, 20, (64, 64), (64, 64))
            made.kernel("gemm", 50 * number + 12, 10, call=50 * number + 2, number=number + 1)
        path, device = tmp_path / "rank0.json", tmp_path / "mine.yaml"
        write_trace(made.trace(), path)
        assert main(["calibrate", str(path), "-o", str(device), "--device", "h100-80gb-sxm"]) == 1
        said = capsys.readouterr()
        assert "all operators" in said.out
        assert "became samples" not in said.err
        assert device.exists()

    def test_traces_without_any_constant(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """A thread alone launches nothing, and its operator has no sizes: on top of no device does it say anything."""
        made = one_step(100)
        made.operator("aten::mm", 0, 50)
        path, facts = tmp_path / "rank0.json", tmp_path / "facts.yaml"
        write_trace(made.trace(), path)
        facts.write_text("base: h100-80gb-sxm\n")
        assert main(["calibrate", str(path), "-o", str(tmp_path / "mine.yaml"), "--device", str(facts)]) == 2
        assert "They show no other constants of a device, such as launches." in capsys.readouterr().err

    def test_what_became_no_sample_is_listed(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """The longest by name, 50 ns of others together; a message that does not say its size."""
        made = one_step(20_000, devices=(GPU,))
        made.operator("aten::gelu", 0, 10, (8, 4))
        made.kernel("gelu", 10, 100, call=5, number=1)
        for number in range(MOST_OTHERS + 5):
            made.kernel(f"kernel {number}", 1000 + 100 * number, 10 + 40 * (number < MOST_OTHERS))
        made.kernel("nccl", 15_000, 100, on=SENDING, message=a_message("all_reduce", elements=0, ranks=(0, 1)))
        path = tmp_path / "rank0.json"
        write_trace(made.trace(), path)
        main(["trace", "extract", str(path), "-o", str(tmp_path / "samples.csv")])
        said = capsys.readouterr().out
        share = 50 / (100 + 50 * MOST_OTHERS + 50)
        assert re.search(rf"5 other names +5 +{share:.2%}", said)
        assert re.search(r"all_reduce +1 +communication without a size", said)

    def test_several_runs_in_one_table(self, trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """Two recordings of a rank: each size of the first one twice, and one more of the second."""
        other, table = tmp_path / "another0.json", tmp_path / "samples.csv"
        write_trace(a_model_step(gelu=10_000), other)
        assert main(["trace", "extract", trace, str(other), "-o", str(table)]) == 0
        assert SEVERAL.format(number=2) in capsys.readouterr().out
        repeats = {one.point.operator: one.timing.repeats for one in read_samples(table)}
        assert repeats == {"matmul": 2, "gelu": 1}

    def test_mostly_unknown_computation_has_an_exit_code(self, tmp_path: Path) -> None:
        """A table is written all the same."""
        made = one_step(100)
        made.operator("aten::gelu", 0, 10, (8, 4))
        made.operator("aten::conv2d", 20, 60, (8, 4))
        path, table = tmp_path / "rank0.json", tmp_path / "samples.csv"
        write_trace(made.trace(), path)
        assert main(["trace", "extract", str(path), "-o", str(table)]) == 1
        assert len(read_samples(table)) == 1

    def test_operators_of_a_job_that_no_trace_has(
        self, trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Linears of other sizes are none of the job's."""
        job = tmp_path / "job.yaml"
        job.write_text(yaml.safe_dump(a_document("llama3-8b", "8xh100-80gb-sxm", batch=8, sequence=8192, tokens=1e9)))
        assert main(["trace", "extract", trace, "-o", str(tmp_path / "samples.csv"), "--job", str(job)]) == 0
        assert "operators of the job missing in all traces: " in capsys.readouterr().out
