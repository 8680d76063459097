"""What is measured is what the table says: counted by torch's own counter, compared with its autograd; on the CPU."""

from __future__ import annotations

import math
import time

import pytest

torch = pytest.importorskip("torch", reason="the extra 'sample' is not installed")

from torch.nn import functional  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from costmodel.errors import SpecError  # noqa: E402
from planner.measure.sample.bench import Bench, moved_bytes  # noqa: E402
from planner.measure.sample.kernels import attention  # noqa: E402
from planner.measure.sample.run import (  # noqa: E402
    MEASURED,
    Sampler,
    sample_operators,
)
from planner.measure.sample.samples import OPERATORS, Point, Sizes, Timing  # noqa: E402
from planner.measure.sample.table import read_samples  # noqa: E402
from tests.builders_samples import QUICK, shorten_runs  # noqa: E402

MATMUL = {"batch": 3, "m": 24, "n": 16, "k": 8}
HEADS = {"heads": 4, "kv_heads": 2, "qk_head_dim": 16, "v_head_dim": 16, "causal": True}
ROWS = {"rows": 32, "width": 64, "experts": 8, "top_k": 2}
MESSAGE = {"nbytes": 4096, "ranks": 2, "nodes": 1}
SIZES = {**MATMUL, **HEADS, **ROWS, **MESSAGE, "sequences": 2, "queries": 32, "keys": 32}


class RecordingBench(Bench):
    """A bench that makes one set of inputs and remembers them."""

    def __init__(self) -> None:
        super().__init__(torch, "cpu")
        self.cache_bytes = 2**16
        self.made: list = []

    def tensor(self, *sizes: int, dtype: str, grad: bool = False):
        """Remembered."""
        self.made.append(super().tensor(*sizes, dtype=dtype, grad=grad))
        return self.made[-1]

    def cycle_inputs(self, make, nbytes, *, share=1):
        """Once."""
        return super().cycle_inputs(make, 2**40, share=share)


@pytest.fixture(scope="module")
def sampler() -> Sampler:
    """On the CPU, with a cache so small that few inputs are made."""
    made = Sampler("cpu")
    made.bench.cache_bytes = 2**16
    return made


def a_point(operator: str, pass_: str = "forward", dtype: str = "fp32", **changes: object) -> Point:
    """A small one with all sizes that it needs."""
    given = {name: SIZES[name] for name in OPERATORS[operator].needs}
    return Point(operator=operator, pass_=pass_, dtype=dtype, sizes=Sizes(**given | changes))


def flops_of(work) -> int:
    """What torch counts of one call."""
    with FlopCounterMode(display=False) as counter:
        work.calls[0]()
    return counter.get_total_flops()


EVERY = [
    (name, pass_)
    for name in MEASURED
    for pass_ in OPERATORS[name].passes
    if name not in ("host_adam", "host_to_device", "device_to_host", "graph_launch")
]


@pytest.mark.parametrize(("operator", "pass_"), EVERY)
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_every_operator_is_measured(sampler, operator, pass_, dtype):
    """Each pass on a CPU, in 16 and 32 bits, takes more than nothing and less than a second."""
    timing = sampler.measure(a_point(operator, pass_, dtype), QUICK)

    assert isinstance(timing, Timing), timing
    assert 0 < timing.seconds < 1
    assert timing.repeats >= 3


@pytest.mark.parametrize("pass_", ["forward", "dgrad", "wgrad"])
@pytest.mark.parametrize(
    ("operator", "flops"),
    # 2 m n k of 24 x 16 x 8; three of them; the rows of all three groups together
    [("matmul", 6144), ("batched_matmul", 3 * 6144), ("grouped_matmul", 6144)],
)
def test_matmuls_have_the_flops_of_their_sizes(operator, flops, pass_):
    """Every pass multiplies as much: counted by torch."""
    assert flops_of(MEASURED[operator](RecordingBench(), a_point(operator, pass_))) == flops


@pytest.mark.parametrize(("pass_", "matmuls"), [("forward", 2), ("backward", 4)])
def test_attention_has_the_flops_of_its_sizes(pass_, matmuls):
    """
    Forward 2 matmuls of 2 * 4 * 32 * 32 scores of width 16, backward two for each of them.

    In torch's plain kernels, since it counts those of its fused ones on GPUs alone; it counts no mask.
    """
    with sdpa_kernel(SDPBackend.MATH):
        work = attention(RecordingBench(), a_point("attention", pass_, kv_heads=4))

        assert flops_of(work) == matmuls * 2 * (2 * 4 * 32 * 32) * 16


@pytest.mark.parametrize("operator", ["rms_norm", "swiglu", "rotary", "softmax", "residual", "embedding"])
def test_what_only_moves_bytes_multiplies_nothing(operator):
    """Counted by torch."""
    assert flops_of(MEASURED[operator](RecordingBench(), a_point(operator))) == 0


def test_gradients_of_a_matmul_are_those_of_a_linear():
    """Against autograd's of ``F.linear``."""
    found = {}
    for pass_ in ("dgrad", "wgrad"):
        bench = RecordingBench()
        result = MEASURED["matmul"](bench, a_point("matmul", pass_)).calls[0]()
        found[pass_] = (result, *bench.made)
    by_input, w, g = found["dgrad"]
    by_weight, x, other_g = found["wgrad"]
    leaf_x, leaf_w = x.clone().requires_grad_(), w.clone().requires_grad_()

    functional.linear(leaf_x, leaf_w).backward(g)
    torch.testing.assert_close(by_input, leaf_x.grad)
    leaf_w.grad = None
    functional.linear(leaf_x, leaf_w).backward(other_g)
    torch.testing.assert_close(by_weight, leaf_w.grad)


def test_rows_are_divided_among_experts():
    """24 rows of 3 experts: the first 8 by the first weight; their gradient is that of those rows alone."""
    bench = RecordingBench()
    results = MEASURED["grouped_matmul"](bench, a_point("grouped_matmul")).calls[0]()
    x, w = bench.made

    torch.testing.assert_close(torch.cat(list(results)), torch.cat([x[:8] @ w[0].T, x[8:16] @ w[1].T, x[16:] @ w[2].T]))
    gradients = MEASURED["grouped_matmul"](RecordingBench(), a_point("grouped_matmul", "wgrad")).calls[0]()
    assert [tuple(one.shape) for one in gradients] == [(16, 8)] * 3


@pytest.mark.parametrize("pass_", ["forward", "dgrad", "wgrad"])
def test_one_kernel_is_the_loop(monkeypatch, pass_):
    """What GPUs compute in one kernel, by the library's own version for CPUs, against expert by expert."""
    if not hasattr(functional, "grouped_mm"):
        pytest.skip("this torch has no grouped matmul for CPUs")
    point = Point(operator="grouped_matmul", pass_=pass_, dtype="bf16", sizes=Sizes(batch=3, m=72, n=64, k=32))
    loop = MEASURED["grouped_matmul"](RecordingBench(), point).calls[0]()
    monkeypatch.setattr("planner.measure.sample.kernels.has_grouped_kernel", lambda *_: True)

    kernel = MEASURED["grouped_matmul"](RecordingBench(), point).calls[0]()

    torch.testing.assert_close(kernel, torch.stack(list(loop)) if pass_ == "wgrad" else torch.cat(list(loop)))


@pytest.mark.parametrize("causal", [True, False])
def test_a_window_masks_what_is_far(causal):
    """Query i reads tokens i - 2 to i; without causality also i + 2: scores by hand, one query at a time."""
    bench = RecordingBench()
    point = a_point("attention", queries=8, keys=8, window=3, causal=causal, v_head_dim=8)
    result = attention(bench, point).calls[0]()
    query, key, value = (one.transpose(1, 2).double() for one in bench.made)

    for index in range(8):
        read = slice(max(0, index - 2), index + 1 if causal else index + 3)
        keys, values = (one[:, :, read].repeat_interleave(2, dim=1) for one in (key, value))
        scores = (query[:, :, index : index + 1] @ keys.transpose(-1, -2) / 4).softmax(-1)  # the root of 16
        torch.testing.assert_close(result[:, :, index : index + 1].double(), scores @ values, rtol=1e-4, atol=1e-4)


def test_experts_get_equally_many_tokens():
    """32 tokens with 2 of 8 experts each: 64 rows in the order of experts, every token twice."""
    bench = RecordingBench()
    result = MEASURED["permutation"](bench, a_point("permutation")).calls[0]()
    (tokens,) = bench.made

    sources = [int((tokens == row).all(dim=1).nonzero()[0]) for row in result.detach()]

    assert result.shape == (64, 64)
    assert sorted(sources) == sorted([*range(32)] * 2)
    assert sources[:8] == [0, 4, 8, 12, 16, 20, 24, 28]  # token t has the experts 2 t and 2 t + 1, of 8


@pytest.mark.parametrize("operator", ["matmul", "batched_matmul", "grouped_matmul", "attention", "swiglu", "residual"])
def test_bytes_are_those_of_inputs_and_results(operator):
    """Tensors of the call, as torch sizes them."""
    bench = RecordingBench()
    point = a_point(operator, kv_heads=4) if operator == "attention" else a_point(operator)
    result = MEASURED[operator](bench, point).calls[0]()
    results = result if isinstance(result, list) else [result]

    assert sum(one.nbytes for one in (*bench.made, *results)) == moved_bytes(point)


def test_inputs_are_larger_than_the_cache():
    """Of a cache of 1 MB, 2.5 times as much in calls of 96 KB: 28 of them, on memory of their own."""
    bench = Bench(torch, "cpu")
    bench.cache_bytes = 2**20
    seen = set()

    def make():
        made = bench.tensor(24 * 1024, dtype="fp32")
        seen.add(made.data_ptr())
        return lambda: made.sum()

    work = bench.cycle_inputs(make, 96 * 1024)

    assert len(work.calls) == math.ceil(2.5 * 2**20 / (96 * 1024)) == 27
    assert len(seen) >= 24


@pytest.mark.parametrize(
    ("point", "reason"),
    [
        (a_point("matmul", dtype="fp8"), "operators in fp8 are not measured"),
        (a_point("matmul", m=10**7, n=10**7), "GiB are free"),
        (a_point("graph_launch"), "CUDA graphs need a GPU"),
        (a_point("host_adam", n=1000), "the device is the host"),
        (a_point("host_to_device"), "the device is the host"),
        (a_point("all_reduce"), "needs 2 processes on 1 hosts, and there are 1"),
        (a_point("attention", keys=64), "causal attention is measured with as many queries as keys"),
        (a_point("attention", heads=3), "query heads are no multiple of the key-value heads"),
        (Point(operator="copy", pass_="forward", dtype="bf16", sizes=Sizes(nbytes=8), beside="matmul"), "on a GPU"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_cannot_be_measured_has_a_reason(sampler, point, reason):
    """And no traceback."""
    skipped = sampler.measure(point)

    assert isinstance(skipped, str)
    assert reason in skipped


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), "out of memory"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"), "out of memory"),
        (RuntimeError("No available kernel. Aborting execution.\nstack"), "does not run it: No available kernel"),
        (NotImplementedError("'topk' not implemented for 'Half'"), "does not run it: 'topk' not implemented"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_the_library_refuses_has_a_reason(sampler, monkeypatch, error, reason):
    """Its own first line, or that memory was short."""

    def fails(bench, point):
        raise error

    monkeypatch.setattr("planner.measure.sample.run.MEASURED", {"matmul": fails})

    assert reason in sampler.measure(a_point("matmul"))


@pytest.mark.parametrize("device", ["tpu", "cuda:7"])
def test_other_devices_are_refused(device):
    """By what is allowed."""
    with pytest.raises(SpecError, match="expected cuda or cpu"):
        Sampler(device)


def test_the_machine_says_its_threads(sampler):
    """A CPU's times depend on them."""
    assert f"{torch.get_num_threads()} threads" in sampler.machine.software
    assert torch.__version__ in sampler.machine.software
    assert sampler.machine.device


def test_a_real_run_on_the_cpu(tmp_path, monkeypatch):
    """Some points are measured; a second run of the same knows them and goes on."""
    path, lines = tmp_path / "samples.csv", []
    started = time.monotonic()

    with monkeypatch.context() as patches:
        shorten_runs(patches, 4)
        first = sample_operators(path, budget_seconds=50, device="cpu", progress=lines.append)
    shorten_runs(monkeypatch, 6)
    second = sample_operators(path, budget_seconds=50, device="cpu")

    assert time.monotonic() - started < 60
    assert first.measured >= 2
    assert first.known == 0
    assert second.known == first.measured
    assert second.measured > 0
    assert len(read_samples(path)) == first.measured + second.measured
    assert len(lines) >= first.measured
    rates = [2 * 512**3 / one.timing.seconds for one in read_samples(path) if one.point.operator == "matmul"]
    assert all(1e8 < rate < 1e14 for rate in rates)
