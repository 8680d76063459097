"""Which shapes are measured: a job's own, counted by hand, first; in an order that may stop anywhere; within memory."""

from __future__ import annotations

from planner.jobs.problem import load
from planner.measure.sample.bench import least_flops, moved_bytes, needed_bytes
from planner.measure.sample.samples import OPERATORS, Point, Sizes
from planner.measure.sample.shapes import (
    MOST_FLOPS,
    JobShapes,
    device_points,
    filling_points,
    job_points,
    job_shapes,
    points_to_measure,
    spread_out,
)
from tests.builders import a_latent_model, a_model, a_moe_model
from tests.builders_cluster import a_device, achieved
from tests.builders_job import a_document
from tests.builders_problem import a_problem
from tests.cases import in_one_case

GB = 10**9


HALF = {"attention_efficiency": 0.5, "memory_efficiency": 0.5}


def llama(*, settings: dict[str, str] | None = None, **limits: object) -> JobShapes:
    """Llama-3-8B with 8,192 tokens on eight devices of a node."""
    job: dict[str, object] = {
        "model": "llama3-8b",
        "cluster": {"device": "h100-80gb-sxm", "num_devices": 8},
        "training": {"global_batch_size": 128, "sequence_length": 8192, "tokens": 100e9, "precision": "bf16"},
        **({"search": limits} if limits else {}),
        **({"settings": settings} if settings else {}),
    }
    return job_shapes(load(job))


def sizes(shapes: JobShapes, name: str, pass_: str = "forward") -> set[Sizes]:
    """Those of an operator of the model."""
    return {point.sizes for point in shapes.groups[name, pass_]}


def test_matmuls_of_a_job_are_those_that_one_counts():
    """
    Llama-3-8B: width 4096, 32 and 8 heads of 128, feed-forward 14336 with a gate, tp 1 to 8, 8,192 tokens times 1 to 4.

    Queries, keys and values are (32 + 2 * 8) * 128 = 6144 wide, gate and up 28672; each is a t-th of it.
    """
    tokens, ways = (8192, 16384, 32768), (1, 2, 4, 8)

    shapes = llama()

    assert sizes(shapes, "qkv") == {Sizes(m=m, n=6144 // tp, k=4096) for m in tokens for tp in ways}
    assert sizes(shapes, "output_projection") == {Sizes(m=m, n=4096, k=4096 // tp) for m in tokens for tp in ways}
    assert sizes(shapes, "up") == {Sizes(m=m, n=28672 // tp, k=4096) for m in tokens for tp in ways}
    assert sizes(shapes, "down") == {Sizes(m=m, n=4096, k=14336 // tp) for m in tokens for tp in ways}
    assert sizes(shapes, "up", "wgrad") == sizes(shapes, "up", "dgrad") == sizes(shapes, "up")


def test_attention_and_rows_of_a_job_are_those_that_one_counts():
    """Heads are split over tp; norms by sequence parallelism, too, so that tp 1 to 8 and mbs 1 to 4 have 6 sizes."""
    shapes = llama(settings={"kernels": "eager"})

    assert sizes(shapes, "core_attention", "backward") == {
        Sizes(
            sequences=mbs,
            queries=8192,
            keys=8192,
            heads=32 // tp,
            kv_heads=8 // tp,
            qk_head_dim=128,
            v_head_dim=128,
            causal=True,
        )
        for mbs in (1, 2, 4)
        for tp in (1, 2, 4, 8)
    }
    assert sizes(shapes, "norms") == {Sizes(rows=1024 * 2**power, width=4096) for power in range(6)}
    assert sizes(shapes, "activation") == {
        Sizes(rows=8192 * mbs, width=14336 // tp) for mbs in (1, 2, 4) for tp in (1, 2, 4, 8)
    }
    assert Sizes(rows=8192, heads=40, qk_head_dim=128) in sizes(shapes, "rotary")
    assert {one.operator for one in shapes.points} >= {"rms_norm", "swiglu", "residual", "cross_entropy", "embedding"}
    assert shapes.unknown == ()


def test_pinned_degrees_are_the_only_ones():
    """A job that pins tp and mbs has one size of each linear."""
    shapes = llama(pin={"tp": 4, "mbs": 2})

    assert sizes(shapes, "qkv") == {Sizes(m=16384, n=1536, k=4096)}


def test_fused_kernels_are_not_measured():
    """Megatron-LM's rotation and gated activation are kernels of its own: no function of PyTorch is one of them."""
    shapes = llama()

    assert {"rotary", "activation", "loss"} <= set(shapes.unknown)
    assert {one.operator for one in shapes.points} == {"matmul", "attention", "rms_norm", "residual"}


def test_experts_are_grouped_by_device():
    """Four experts of width 24, two per token, of 2 sequences of 64 tokens: 256 rows over 4, 2 or 1 local experts."""
    device = a_device(**achieved(torch_functions=True, matmul_efficiency={"bf16": 0.5}, **HALF))
    shapes = job_shapes(a_problem(a_moe_model(), device=device, pin={"tp": 1, "mbs": 2}))

    assert sizes(shapes, "expert_down") == {Sizes(batch=experts, m=256, n=32, k=24) for experts in (1, 2, 4)}
    assert sizes(shapes, "top_k") == {Sizes(rows=128, experts=4, top_k=2)}
    assert sizes(shapes, "dispatch") == {Sizes(rows=128, width=32, experts=4, top_k=2)}


def test_latent_attention_has_unequal_widths():
    """Keys have a part with and one without position, values have neither."""
    (attention,) = {
        (one.qk_head_dim, one.v_head_dim)
        for one in sizes(
            job_shapes(a_problem(a_latent_model(qk_nope_head_dim=16, qk_rope_head_dim=8))), "core_attention"
        )
    }

    assert attention[0] == 24
    assert attention[0] != attention[1]


def test_what_nothing_measures_is_named():
    """A recurrence and the convolution before it are in no table; the linears around them are."""
    job = a_document("nemotron-h-8b", "8xh100-80gb-sxm", batch=128, sequence=8192, tokens=100e9)

    shapes = job_shapes(load(job))

    assert {"scan", "convolution"} <= set(shapes.unknown)
    assert "matmul" in {one.operator for one in shapes.points}


def test_sizes_that_do_not_divide_are_none():
    """Of 4 heads none is split over 8 ranks; the feed-forward of 48 is."""
    shapes = job_shapes(a_problem(pin={"mbs": 1}))

    assert {one.heads for one in sizes(shapes, "core_attention")} == {4, 2, 1}
    assert {one.k for one in sizes(shapes, "down")} == {48, 24, 12, 6}


def test_windows_are_not_measured():
    """A mask would be, which skips nothing; a window as long as the sequence is none."""
    short, long = (job_shapes(a_problem(a_model(window=size), pin={"mbs": 1, "tp": 1})) for size in (16, 64))

    assert "core_attention" in short.unknown
    assert {one.keys for one in sizes(long, "core_attention")} == {64}


def test_a_jobs_points_begin_with_one_of_each():
    """Whoever stops after the first round has every operator and pass; the largest matmul's come first."""
    shapes = llama()
    points = job_points(shapes)

    first = points[: len(shapes.groups)]

    assert {(point.operator, point.pass_) for point in first} == {(one.operator, one.pass_) for one in shapes.points}
    assert points[0].sizes in sizes(shapes, "up")
    assert set(points) == shapes.points
    assert len(points) == len(set(points))


def test_each_beginning_of_the_order_covers_the_range():
    """Of 15 sizes the middle one comes first, then the quarters."""
    order = spread_out(range(15))

    assert order[:3] == [7, 3, 11]
    assert sorted(order) == list(range(15))


@in_one_case("number", [1, 2, 3, 7, 8, 100])
def test_no_size_is_lost_in_the_order(number):
    """Whatever their number."""
    assert sorted(spread_out(range(number))) == list(range(number))


def test_filling_points_cover_the_space():
    """Each eighth of each logarithmic range of a matmul's sizes has some; of eight points one is odd."""
    matmuls = [one.sizes for one in filling_points() if one.operator == "matmul" and one.pass_ == "forward"]
    eighths = {min(7, int(8 * (size.m.bit_length() - 7) / 10)) for size in matmuls}

    assert eighths == set(range(8))
    assert sum(size.m % 64 != 0 for size in matmuls) in range(4, 9)
    assert all(size.m % 2 for size in matmuls if size.m % 64)


def test_filling_points_are_whole_rows():
    """Every operator that only moves bytes, each pass, and all sizes that the table asks for."""
    points = list(filling_points())

    assert {one.operator for one in points} >= {name for name, kind in OPERATORS.items() if "rows" in kind.needs}
    assert all(set(OPERATORS[one.operator].needs) <= set(one.sizes.applicable) for one in points)
    assert all(one.pass_ in OPERATORS[one.operator].passes for one in points)
    assert max(map(least_flops, points)) <= MOST_FLOPS["cuda"]


def test_points_fit_the_memory():
    """Of 2 GB none takes more than half; the order is device, job, fill."""
    shapes = job_shapes(a_problem())

    points = points_to_measure(shapes, 2 * GB)

    assert max(map(needed_bytes, points)) <= GB
    assert len(points) == len(set(points))
    device, job = device_points(), shapes.points
    ranks = [0 if one in device else 1 if one in job else 2 for one in points]
    assert ranks == sorted(ranks)
    assert set(ranks) == {0, 1, 2}


HEADS = {"sequences": 2, "queries": 8, "keys": 8, "heads": 4, "kv_heads": 1, "qk_head_dim": 16, "v_head_dim": 8}


def a_point(operator: str, pass_: str = "forward", **given: int) -> Point:
    """In 16 bits."""
    return Point(operator=operator, pass_=pass_, dtype="bf16", sizes=Sizes(**given))


@in_one_case(
    ("point", "flops", "nbytes"),
    [
        (a_point("matmul", m=2, n=3, k=5), 2 * 2 * 3 * 5, 2 * (2 * 5 + 3 * 5 + 2 * 3)),
        (a_point("batched_matmul", batch=7, m=2, n=3, k=5), 7 * 60, 7 * 62),
        (a_point("grouped_matmul", batch=2, m=8, n=3, k=5), 2 * 8 * 3 * 5, 2 * (8 * 5 + 2 * 15 + 8 * 3)),
        # 2 sequences * 4 heads * 8 * 8 scores, each 2 * (16 + 8) FLOPs, of which a causal mask leaves half;
        # queries and output of 4 heads, keys and values of 1.
        (a_point("attention", **HEADS, causal=True), 2 * 4 * 64 * 48 // 2, 2 * 2 * 8 * (4 + 1) * 24),
        (a_point("swiglu", rows=4, width=8), 0, 2 * 3 * 32),
        (a_point("copy", nbytes=1000), 0, 2000),
    ],
)
def test_what_a_point_computes_and_moves(point, flops, nbytes):
    """Sums on paper."""
    assert (least_flops(point), moved_bytes(point)) == (flops, nbytes)
