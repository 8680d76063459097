"""Fused attention, forward and backward: causal or full, windows by a mask, grouped heads, unequal widths of a head."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from planner.measure.sample.bench import Bench, Tensor, Work, moved_bytes, score_bytes
from planner.measure.sample.ranks import Group
from planner.measure.sample.samples import Point, Sizes
from planner.measure.sample.timing import Call, UnavailableError

MASK_BYTES = 3

"""Bytes per query and key of a mask: booleans, and values that kernels add to 16-bit scores."""


def attention(bench: Bench, point: Point) -> Work:
    """
    Measure ``scaled_dot_product_attention`` with tensors in the order of projections: token, head, element.

    On a GPU only fused kernels run, since scores in memory are another operator. A window is a mask and takes the time
    of all keys: torch's fused kernels skip no part of a mask.
    """
    sizes = point.sizes
    queries, keys, width = sizes.queries or 0, sizes.keys or 0, sizes.qk_head_dim or 0
    _require_runnable(bench, point)
    function = _attention(bench, sizes)

    def make_heads(tokens: int, heads: int | None, width: int) -> Tensor:
        laid = bench.tensor(sizes.sequences or 0, tokens, heads or 0, width, dtype=point.dtype)
        return laid.transpose(1, 2).detach().requires_grad_()

    def run(*inputs: Tensor) -> Tensor:
        with _kernels(bench):
            return function(*inputs)

    def make() -> Call:
        query, key = make_heads(queries, sizes.heads, width), make_heads(keys, sizes.kv_heads, width)
        value = make_heads(keys, sizes.kv_heads, sizes.v_head_dim or 0)
        with _kernels(bench):
            if point.pass_ == "backward":
                return bench.backward(function, query, key, value)
        return partial(run, query, key, value)

    return bench.cycle_inputs(make, moved_bytes(point))


def _kernels(bench: Bench) -> AbstractContextManager[Any]:
    """Return a context that allows only fused kernels on a GPU."""
    if not bench.is_gpu:
        return nullcontext()
    from torch.nn.attention import SDPBackend, sdpa_kernel

    names = ("FLASH_ATTENTION", "CUDNN_ATTENTION", "EFFICIENT_ATTENTION")
    chosen: AbstractContextManager[Any] = sdpa_kernel([getattr(SDPBackend, name) for name in names])
    return chosen


def _attention(bench: Bench, sizes: Sizes) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    function = bench.torch.nn.functional.scaled_dot_product_attention
    named: dict[str, Any] = {"is_causal": bool(sizes.causal)}
    if _is_windowed(sizes):
        named = {"attn_mask": _window(bench, sizes)}
    if sizes.heads != sizes.kv_heads:
        named["enable_gqa"] = True
    return lambda query, key, value: function(query, key, value, **named)


def _window(bench: Bench, sizes: Sizes) -> Tensor:
    """Return a mask, True where a query may read: itself and earlier tokens within the window."""
    torch = bench.torch
    distance = torch.arange(sizes.queries, device=bench.device)[:, None] - torch.arange(sizes.keys, device=bench.device)
    window = sizes.window or 0
    return (distance >= 0 if sizes.causal else distance > -window) & (distance < window)


def _is_windowed(sizes: Sizes) -> bool:
    return sizes.window is not None and sizes.window < (sizes.keys or 0)


def _require_runnable(bench: Bench, point: Point) -> None:
    sizes = point.sizes
    if sizes.causal and sizes.queries != sizes.keys:
        raise UnavailableError("causal attention is measured with as many queries as keys")
    if (sizes.heads or 0) % (sizes.kv_heads or 1):
        raise UnavailableError("query heads are no multiple of the key-value heads")
    if _is_windowed(sizes):
        bench.require_memory(MASK_BYTES * (sizes.queries or 0) * (sizes.keys or 0))
    if not bench.is_gpu and (_is_windowed(sizes) or sizes.qk_head_dim != sizes.v_head_dim):
        bench.require_memory(score_bytes(point))


GROUPED_CAPABILITY = (9, 0)

"""Compute capability from which on torch has grouped matmuls as one kernel (PyTorch, ``grouped_mm``: SM90)."""


def matmul(bench: Bench, point: Point) -> Work:
    """
    Measure a linear layer without bias, ``y = x w^T``.

    The gradient of its input is ``g w``, that of its weight ``g^T x``, as autograd computes them for ``F.linear``.
    """
    m, n, k = _sizes(point.sizes)
    linear = bench.torch.nn.functional.linear
    return _products(
        bench,
        point,
        ((m, k), (n, k), (m, n)),
        forward=lambda x, w, g: linear(x, w),
        dgrad=lambda x, w, g: g @ w,
        wgrad=lambda x, w, g: g.t() @ x,
    )


def batched_matmul(bench: Bench, point: Point) -> Work:
    """Measure products of activations, ``y = a b``; dgrad is the gradient of ``a``, wgrad that of ``b``."""
    (m, n, k), batch = _sizes(point.sizes), point.sizes.batch or 1
    return _products(
        bench,
        point,
        ((batch, m, k), (batch, k, n), (batch, m, n)),
        forward=lambda a, b, g: a @ b,
        dgrad=lambda a, b, g: g @ b.transpose(1, 2),
        wgrad=lambda a, b, g: a.transpose(1, 2) @ g,
    )


def grouped_matmul(bench: Bench, point: Point) -> Work:
    """
    Measure the linear layers of local experts, with rows divided as evenly as possible.

    They are one kernel where the library and the device have it (:func:`has_grouped_kernel`), else a loop over the
    experts.
    """
    (m, n, k), groups = _sizes(point.sizes), point.sizes.batch or 1
    counts = [m // groups + (index < m % groups) for index in range(groups)]
    multiply = _call_grouped_kernel if has_grouped_kernel(bench, point.dtype) else _loop_over_groups
    grouped = multiply(bench, counts)
    return _products(
        bench,
        point,
        ((m, k), (groups, n, k), (m, n)),
        forward=lambda x, w, g: grouped(x, w.transpose(1, 2)),
        dgrad=lambda x, w, g: grouped(g, w),
        wgrad=lambda x, w, g: grouped(g.t(), x),
    )


def has_grouped_kernel(bench: Bench, dtype: str = "bf16") -> bool:
    """Return True if grouped matmuls are one kernel here."""
    if not bench.is_gpu or dtype != "bf16" or _find_grouped_matmul(bench) is None:
        return False
    return bool(bench.torch.cuda.get_device_capability() >= GROUPED_CAPABILITY)


def _find_grouped_matmul(bench: Bench) -> Any:
    public = getattr(bench.torch.nn.functional, "grouped_mm", None)
    return public or getattr(bench.torch, "_grouped_mm", None)


def _call_grouped_kernel(bench: Bench, counts: list[int]) -> Callable[[Tensor, Tensor], Tensor]:
    torch, function = bench.torch, _find_grouped_matmul(bench)
    ends = torch.tensor(counts, device=bench.device).cumsum(0).to(torch.int32)
    return lambda left, right: function(left, right, offs=ends)


def _loop_over_groups(bench: Bench, counts: list[int]) -> Callable[[Tensor, Tensor], Tensor]:
    """Multiply, for each group, rows of ``left`` by its matrix; or columns of ``left`` by its rows of ``right``."""

    def multiply(left: Tensor, right: Tensor) -> Tensor:
        if right.dim() == 2:
            pieces = zip(left.split(counts, dim=1), right.split(counts), strict=True)
        else:
            pieces = zip(left.split(counts), right.unbind(), strict=True)
        return [one @ other for one, other in pieces]

    return multiply


def _sizes(sizes: Sizes) -> tuple[int, int, int]:
    return sizes.m or 0, sizes.n or 0, sizes.k or 0


_READS = {"forward": (True, True, False), "dgrad": (False, True, True), "wgrad": (True, False, True)}

"""Inputs, weights and gradients that a pass reads."""


def _products(bench: Bench, point: Point, shapes: tuple[tuple[int, ...], ...], **passes: Callable[..., object]) -> Work:
    """Measure the function of a pass; inputs that it does not read are None."""
    reads = list(zip(_READS[point.pass_], shapes, strict=True))

    def make() -> Call:
        given = (bench.tensor(*shape, dtype=point.dtype) if is_read else None for is_read, shape in reads)
        return partial(passes[point.pass_], *given)

    return bench.cycle_inputs(make, moved_bytes(point))


def rms_norm(bench: Bench, point: Point) -> Work:
    """Measure RMSNorm with a weight."""
    rows, width = _rows(point)
    function = bench.torch.nn.functional.rms_norm
    return _work(bench, point, lambda x, weight: function(x, (width,), weight), (rows, width), (width,))


def layer_norm(bench: Bench, point: Point) -> Work:
    """Measure LayerNorm with weight and bias."""
    rows, width = _rows(point)
    function = bench.torch.nn.functional.layer_norm
    shapes = (rows, width), (width,), (width,)
    return _work(bench, point, lambda x, weight, bias: function(x, (width,), weight, bias), *shapes)


def rotary(bench: Bench, point: Point) -> Work:
    """Measure rotary position of the two halves of each head, kernel by kernel as in eager code."""
    torch, sizes = bench.torch, point.sizes
    rows, width = sizes.rows or 0, sizes.qk_head_dim or 0
    cosine, sine = (bench.tensor(rows, 1, width, dtype=point.dtype) for _ in range(2))

    def rotate(x: Tensor) -> Tensor:
        left, right = x.chunk(2, dim=-1)
        return x * cosine + torch.cat((-right, left), dim=-1) * sine

    return _work(bench, point, rotate, (rows, sizes.heads or 0, width))


def swiglu(bench: Bench, point: Point) -> Work:
    """Measure SwiGLU of one input of twice the width."""
    rows, width = _rows(point)
    silu = bench.torch.nn.functional.silu

    def gate_rows(x: Tensor) -> Tensor:
        gate, up = x.chunk(2, dim=-1)
        return silu(gate) * up

    return _work(bench, point, gate_rows, (rows, 2 * width))


def gelu(bench: Bench, point: Point) -> Work:
    """Measure GELU with the tanh approximation."""
    function = bench.torch.nn.functional.gelu
    return _work(bench, point, lambda x: function(x, approximate="tanh"), _rows(point))


def squared_relu(bench: Bench, point: Point) -> Work:
    """Measure the square of ReLU."""
    return _work(bench, point, lambda x: bench.torch.relu(x).square(), _rows(point))


def softmax(bench: Bench, point: Point) -> Work:
    """Measure softmax of each row."""
    return _work(bench, point, lambda x: x.softmax(dim=-1), _rows(point))


def cross_entropy(bench: Bench, point: Point) -> Work:
    """Measure the loss of logits, in fp32 as in training code."""
    rows, width = _rows(point)
    function, targets = bench.torch.nn.functional.cross_entropy, bench.integers(width, rows)
    return _work(bench, point, lambda x: function(x.float(), targets), (rows, width))


def embedding(bench: Bench, point: Point) -> Work:
    """Measure the look-up of tokens in a vocabulary; its backward pass writes a gradient of the whole vocabulary."""
    (rows, width), vocabulary = _rows(point), point.sizes.n or 0
    function, tokens = bench.torch.nn.functional.embedding, bench.integers(vocabulary, rows)
    return _work(bench, point, lambda weight: function(tokens, weight), (vocabulary, width))


def residual(bench: Bench, point: Point) -> Work:
    """Measure the addition after a block; its backward pass only passes gradients on and takes no time."""
    return _work(bench, point, lambda x, y: x + y, _rows(point), _rows(point))


def top_k(bench: Bench, point: Point) -> Work:
    """Measure the router: softmax of the logits in fp32, then the top k."""
    rows, experts, best = point.sizes.rows or 0, point.sizes.experts or 0, point.sizes.top_k or 0
    return _work(bench, point, lambda x: x.float().softmax(dim=-1).topk(best, dim=-1)[0], (rows, experts))


def permutation(bench: Bench, point: Point) -> Work:
    """Measure copies of tokens in the order of their experts, balanced; backward sums the copies of a token."""
    rows, width = _rows(point)
    experts, best = point.sizes.experts or 1, point.sizes.top_k or 0
    torch = bench.torch
    first = torch.arange(rows, device=bench.device) * best
    chosen = (first[:, None] + torch.arange(best, device=bench.device)) % experts
    order = chosen.flatten().argsort(stable=True) // max(best, 1)
    return _work(bench, point, lambda x: x.index_select(0, order), (rows, width))


def _rows(point: Point) -> tuple[int, int]:
    return point.sizes.rows or 0, point.sizes.width or 0


def _work(bench: Bench, point: Point, function: Callable[..., Any], *shapes: tuple[int, ...]) -> Work:
    """Measure a function of inputs with gradients, or its backward pass."""

    def make() -> Call:
        made = [bench.tensor(*shape, dtype=point.dtype, grad=True) for shape in shapes]
        return bench.backward(function, *made) if point.pass_ == "backward" else partial(function, *made)

    return bench.cycle_inputs(make, moved_bytes(point))


TINY = 1024

"""Elements of a kernel whose time is only that of its launch."""


def adam(bench: Bench, point: Point) -> Work:
    """Measure one step of AdamW on all parameters of the device, in one kernel."""
    return bench.cycle_inputs(lambda: _step(bench, bench.device, point), moved_bytes(point))


def host_adam(bench: Bench, point: Point) -> Work:
    """Measure one step of AdamW on the host's processors, with states in its memory."""
    if not bench.is_gpu:
        raise UnavailableError("the device is the host, whose updates adam measures")
    return Work(calls=[_step(bench, "cpu", point)], on_host=True)


def _step(bench: Bench, device: str, point: Point) -> Call:
    number, dtype = point.sizes.n or 0, bench.dtype(point.dtype)
    parameter = bench.torch.zeros(number, dtype=dtype, device=device, requires_grad=True)
    parameter.grad = bench.torch.full_like(parameter, 1e-3)
    step: Call = bench.torch.optim.AdamW([parameter], lr=1e-4, fused=True).step
    step()  # the first one makes the moments
    return step


def copy(bench: Bench, point: Point) -> Work:
    """Measure a copy within the device's memory."""
    number = _elements(bench, point)

    def make() -> Call:
        source, target = bench.tensor(number, dtype=point.dtype), bench.own(number, dtype=point.dtype)
        return lambda: target.copy_(source)

    return bench.cycle_inputs(make, moved_bytes(point))


def host_to_device(bench: Bench, point: Point) -> Work:
    """Measure a copy from the host's pinned memory to the device."""
    return _copy_over_link(bench, point, to_device=True)


def device_to_host(bench: Bench, point: Point) -> Work:
    """Measure a copy from the device to the host's pinned memory."""
    return _copy_over_link(bench, point, to_device=False)


def _copy_over_link(bench: Bench, point: Point, *, to_device: bool) -> Work:
    if not bench.is_gpu:
        raise UnavailableError("the device is the host, whose copies copy measures")
    number = _elements(bench, point)

    def make() -> Call:
        ours = bench.own(number, dtype=point.dtype)
        hosts = bench.torch.empty(number, dtype=ours.dtype, pin_memory=True).zero_()
        source, target = (hosts, ours) if to_device else (ours, hosts)
        return lambda: target.copy_(source, non_blocking=True)

    return Work(calls=[make()])


def _elements(bench: Bench, point: Point) -> int:
    itemsize: int = bench.dtype(point.dtype).itemsize
    return max(1, (point.sizes.nbytes or 0) // itemsize)


def launch(bench: Bench, point: Point) -> Work:
    """Measure a chain of tiny kernels from its first launch by the host to its end."""
    chain, number = _chain(bench, point)
    return Work(calls=[chain], share=number, on_host=True)


def graph_launch(bench: Bench, point: Point) -> Work:
    """Measure the same chain as one CUDA graph."""
    if not bench.is_gpu:
        raise UnavailableError("CUDA graphs need a GPU")
    torch = bench.torch
    chain, number = _chain(bench, point)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        chain()
    torch.cuda.synchronize()
    graph: Any = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        chain()
    return Work(calls=[graph.replay], share=number)


def _chain(bench: Bench, point: Point) -> tuple[Call, int]:
    number = point.sizes.n or 0
    numbers: Tensor = bench.own(TINY, dtype=point.dtype)

    def chain() -> None:
        for _ in range(number):
            numbers.add_(1.0)

    return chain, number


WAYS = 2

"""Messages of a call of ``send``: there and back, so that each waits for the one before, as in a pipeline."""


def all_reduce(bench: Bench, point: Point, group: Group) -> Work:
    """Measure an in-place sum of all ranks' tensors."""
    return _collective(bench, point, group, group.dist.all_reduce, 1)


def all_gather(bench: Bench, point: Point, group: Group) -> Work:
    """Measure gathering the parts of all ranks into the whole tensor."""
    gather = _find_function(group, "all_gather_single", "all_gather_into_tensor")
    return _collective(bench, point, group, gather, 1, len(group.members))


def reduce_scatter(bench: Bench, point: Point, group: Group) -> Work:
    """Measure scattering the parts of the sum of all tensors."""
    scatter = _find_function(group, "reduce_scatter_single", "reduce_scatter_tensor")
    return _collective(bench, point, group, scatter, len(group.members), 1)


def all_to_all(bench: Bench, point: Point, group: Group) -> Work:
    """Measure the exchange of equal parts between all ranks."""
    return _collective(bench, point, group, group.dist.all_to_all_single, 1, 1)


def broadcast(bench: Bench, point: Point, group: Group) -> Work:
    """Measure sending the first rank's tensor to all."""
    return _collective(bench, point, group, partial(group.dist.broadcast, src=group.members[0]), 1)


def send(bench: Bench, point: Point, group: Group) -> Work:
    """Measure a message from the first rank to the other, which sends it back."""
    first, second = group.members
    steps = (group.dist.send, group.dist.recv) if group.is_first else (group.dist.recv, group.dist.send)
    other = second if group.is_first else first

    def there_and_back(tensor: Tensor, *, group: Any) -> None:
        for step in steps:
            step(tensor, other, group=group)

    return _collective(bench, point, group, there_and_back, 1, share=WAYS)


def _collective(
    bench: Bench, point: Point, group: Group, call: Callable[..., object], *parts: int, share: int = 1
) -> Work:
    """Measure a call with the group, on tensors that are the whole tensor, or equal parts of it."""
    return bench.cycle_inputs(
        lambda: partial(call, *_tensors(bench, point, *parts), group=group.group), moved_bytes(point), share=share
    )


def _tensors(bench: Bench, point: Point, *parts: int) -> list[Tensor]:
    """Return tensors of zeros: the whole tensor, or equal parts of it."""
    nbytes, ranks, dtype = point.sizes.nbytes or 0, point.sizes.ranks or 1, bench.dtype(point.dtype)
    if nbytes % (ranks * dtype.itemsize):
        raise UnavailableError("the bytes do not divide into equal parts of whole elements")
    number = nbytes // dtype.itemsize
    return [bench.torch.zeros(number // part, dtype=dtype, device=bench.device) for part in parts]


def _find_function(group: Group, *names: str) -> Any:
    """Return a function of the library under the newest name that this version has."""
    return next(getattr(group.dist, name) for name in names if hasattr(group.dist, name))
