"""Published operator times as groups of samples: one kind of operator on one device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from costmodel import catalog
from costmodel.errors import SpecError
from costmodel.timing.gaussian_process import Rows
from costmodel.timing.sampled_source import Shapes, attention_shapes, matmul_shapes, streaming_shapes

DATA = Path(__file__).parent / "data"

CATALOG_NAMES = {
    "a100": "a100-80gb-sxm",
    "h100": "h100-80gb-sxm",
    "A100-SXM4-80GB (Perlmutter)": "a100-80gb-sxm",
    "GH200-120GB (Vista)": "gh200-96gb",
    "A100-PCIe-80GB": "a100-80gb-pcie",
    "B200-SXM": "b200",
}
"""Names of the catalog of the devices of published tables: their datasheets are those of the plain roofline."""

UNKNOWN_PROCESSORS = 108
"""Processors of a device that no catalog has; tiles are dealt to about as many on most."""

MATMULS = ("qkv_projection", "output_projection", "mlp_up", "mlp_down")

STREAMING_BYTES = {"rms_norm": 4.0, "residual_add": 6.0, "rope": 4.0, "gated_activation": 6.0, "embedding": 4.0}
"""Bytes read and written per element of a row in 16 bits: an input and a result, two inputs, or a gate beside."""

LINEAR_COLUMNS = ("device", "model", "op", "tokens", "tp", "rows", "inputs", "outputs", "milliseconds")


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """
    Samples of one kind of operator on one device.

    Parameters
    ----------
    device
        Name in the published table.
    kind
        ``matmul`` (multiplies), ``attention`` or ``other`` (only moves bytes).
    name
        Name of the operators that are learned together.
    operators
        Operator of each sample, by which errors are reported; shape (rows,).
    shapes, seconds, families
        As :func:`planner.measure.fit.operators.learn_operator` takes them.
    """

    device: str
    kind: str
    name: str
    operators: NDArray[np.str_]
    shapes: Shapes
    seconds: Rows
    families: NDArray[np.str_]

    def __getitem__(self, rows: NDArray[np.bool_] | NDArray[np.intp]) -> Group:
        """Some of the samples."""
        return replace(
            self, **{name: getattr(self, name)[rows] for name in ("operators", "shapes", "seconds", "families")}
        )

    def __len__(self) -> int:
        """Number of samples."""
        return len(self.seconds)


def num_processors(device: str) -> int:
    """Processors of a device by the catalog, or of a usual one."""
    if device not in CATALOG_NAMES:
        return UNKNOWN_PROCESSORS
    return catalog.device(CATALOG_NAMES[device]).num_processors or UNKNOWN_PROCESSORS


# --- single layers' parts (linear_layers.csv.gz) -----------------------------------------------------------


def read_linear_layers(path: Path) -> pd.DataFrame:
    """
    Rows of a table of layers' parts, the median of each key.

    Raises
    ------
    SpecError
        If columns are missing, or times are no positive numbers.
    """
    table = pd.read_csv(path)
    missing = [name for name in LINEAR_COLUMNS if name not in table]
    if missing:
        raise SpecError(str(path), f"lacks the columns {', '.join(missing)}.", f"It has: {', '.join(table.columns)}.")
    wrong = table.index[~(table.milliseconds > 0)]
    if len(wrong):
        where = f"{path}, row {wrong[0] + 2}, milliseconds"
        raise SpecError(where, f"{table.milliseconds[wrong[0]]} is no positive time.")
    unknown = sorted(set(table.op) - {*MATMULS, *STREAMING_BYTES})
    if unknown:
        allowed = ", ".join((*MATMULS, *STREAMING_BYTES))
        raise SpecError(f"{path}, op", f"{', '.join(unknown)}: not known.", f"Known are: {allowed}.")
    keys = [name for name in LINEAR_COLUMNS if name != "milliseconds"]
    medians: pd.DataFrame = table.groupby(keys, as_index=False, dropna=False).milliseconds.median()
    return medians


def linear_groups(table: pd.DataFrame) -> Iterator[Group]:
    """Matmuls of a device as one group, every other operator as its own; a model is a family."""
    for device, rows in table.groupby("device"):
        matmuls = rows[rows.op.isin(MATMULS)]
        if len(matmuls):
            shapes = matmul_shapes(
                matmuls.rows.to_numpy(),
                matmuls.outputs.to_numpy(),
                matmuls.inputs.to_numpy(),
                num_processors=num_processors(str(device)),
            )
            yield _group(str(device), "matmul", "matmul", matmuls, shapes)
        for name, own in rows[~rows.op.isin(MATMULS)].groupby("op"):
            each = STREAMING_BYTES[str(name)]
            shapes = streaming_shapes(own.rows.to_numpy(), own.inputs.to_numpy(), bytes_per_element=each)
            if name == "rope":
                shapes = shapes.add_features(np.log2(own.inputs.to_numpy() / _keys(own, rows)))
            yield _group(str(device), "other", str(name), own, shapes)


def _keys(rotations: pd.DataFrame, rows: pd.DataFrame) -> Rows:
    """Keys among the elements that a rotation changes: the projection also has values, as many as keys."""
    projected = rows[rows.op == "qkv_projection"].drop_duplicates(["model", "tp"]).set_index(["model", "tp"]).outputs
    rotated = rotations.inputs.to_numpy()
    outputs = projected.reindex(pd.MultiIndex.from_frame(rotations[["model", "tp"]])).to_numpy()
    keys: Rows = np.where(outputs > rotated, outputs - rotated, rotated / 2)
    return keys


def _group(device: str, kind: str, name: str, rows: pd.DataFrame, shapes: Shapes) -> Group:
    return Group(
        device=device,
        kind=kind,
        name=name,
        operators=rows.op.to_numpy(dtype=str),
        shapes=shapes,
        seconds=rows.milliseconds.to_numpy() * 1e-3,
        families=rows.model.to_numpy(dtype=str),
    )


# --- single matmuls and attention (gemm.csv.gz) ------------------------------------------------------------

NUM_SAMPLED = 24
"""Rows of an operator from which anything can be held out."""


def gemm_groups(path: Path) -> Iterator[Group]:
    """
    Sampled operators of arXiv 2509.22832 and matmuls of SimuMax, by device and operator.

    A family is a hidden size of the former; of the latter the weights' shape, or all sizes of an attention.
    """
    table = pd.read_csv(path)
    table["seconds"] = 2 * table.m * table.n * table.k / (table.TFLOPS * 1e12)
    for (device, name), rows in table.groupby(["gpu", "op"]):
        if len(rows) < NUM_SAMPLED:
            continue
        if str(name).startswith("linear"):
            yield from _of_paper(str(device), str(name), rows)
        elif name in ("matmul", "grouped_matmul"):
            yield _of_simumax(str(device), str(name), rows)
        elif name in ATTENTION:
            yield _attention(str(device), str(name), rows)


def _of_paper(device: str, name: str, rows: pd.DataFrame) -> Iterator[Group]:
    """Forward passes, and backward passes of the gradients of inputs and weights together."""
    shapes = _shapes(device, rows)
    families = rows.notes.str.extract(r"dim=(\d+)")[0].to_numpy(dtype=str)
    for label, pattern, work in (("forward", r"fwd ([\d.]+) us", 1), ("backward", r"= *([\d.]+) TFLOPS", 2)):
        found = rows.notes.str.extract(pattern)[0].astype(float).to_numpy()
        seconds = found * 1e-6 if work == 1 else 4 * (rows.m * rows.n * rows.k).to_numpy() / (found * 1e12)
        own = Shapes(flops=work * shapes.flops, nbytes=work * shapes.nbytes, features=shapes.features)
        operators = np.full(len(rows), f"{name} {label}")
        yield Group(
            device=device,
            kind="matmul",
            name=f"{name} {label}",
            operators=operators,
            shapes=own,
            seconds=seconds,
            families=families,
        )


PASSES = {
    "TN": "forward",
    "NN": "dgrad",
    "NT": "wgrad",
    "fwd": "forward",
    "bwd_grad_act": "dgrad",
    "bwd_grad_w": "wgrad",
}
"""Passes by the layout of a matmul's operands, or by the stage of a grouped one."""


def _of_simumax(device: str, name: str, rows: pd.DataFrame) -> Group:
    """All passes together, each with a feature of its own; weights' gradients in 32 bits are another pass."""
    stages = rows.notes.str.extract(r"(?:layout|stage) (\w+)")[0].map(PASSES)
    stages = (stages + np.where(rows.notes.str.contains("out fp32"), " in fp32", "")).to_numpy(dtype=str)
    groups = rows.notes.str.extract(r"groups (\d+)")[0].astype(float).fillna(1.0).to_numpy()
    shapes = _shapes(device, rows, groups)
    sizes = np.sort(rows[["m", "n", "k"]].to_numpy(), axis=1)
    families = [" ".join(f"{size:.0f}" for size in (*own, count)) for own, count in zip(sizes, groups, strict=True)]
    return Group(
        device=device,
        kind="matmul",
        name=name,
        operators=np.char.add(f"{name} ", stages),
        shapes=shapes.add_features(*(np.where(stages == each, 1.0, 0.0) for each in sorted(set(stages)))),
        seconds=rows.seconds.to_numpy() * groups,
        families=np.asarray(families),
    )


ATTENTION = {"sdp_fwd": "forward", "sdp_bwd": "backward"}
"""Passes of attention by the table's operator."""

ATTENTION_SIZES = {
    "sequences": "batch",
    "queries": "seq_len",
    "heads": "head_num",
    "kv_heads": "kv_head_num",
    "qk_head_dim": "qk_head_dim",
    "v_head_dim": "v_head_dim",
}
"""Sizes of attention by their names in the table's notes; all of it is causal."""


def _attention(device: str, name: str, rows: pd.DataFrame) -> Group:
    """Attention cores; by what FLOPs the published rates count is a factor of all of them, which is learned."""
    sizes = {
        size: rows.notes.str.extract(rf"\b{key}=(\d+)")[0].astype(float).to_numpy()
        for size, key in ATTENTION_SIZES.items()
    }
    shapes = attention_shapes(
        {**sizes, "keys": sizes["queries"], "causal": np.ones(len(rows))}, of_pass=ATTENTION[name], num_bytes=2.0
    )
    families = [" ".join(f"{size:.0f}" for size in own) for own in zip(*sizes.values(), strict=True)]
    return Group(
        device=device,
        kind="attention",
        name=f"attention {ATTENTION[name]}",
        operators=np.full(len(rows), f"attention {ATTENTION[name]}"),
        shapes=shapes,
        seconds=shapes.flops / (rows.TFLOPS.to_numpy() * 1e12),
        families=np.asarray(families),
    )


def _shapes(device: str, rows: pd.DataFrame, batch: Rows | float = 1.0) -> Shapes:
    return matmul_shapes(
        rows.m.to_numpy(), rows.n.to_numpy(), rows.k.to_numpy(), batch=batch, num_processors=num_processors(device)
    )
