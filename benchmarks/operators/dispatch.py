"""Times of token dispatch learned from published bandwidths, on ranks and on devices that were left out."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmarks.operators.baselines import Unseen, joined, score
from benchmarks.operators.communication import facts
from benchmarks.operators.dispatch_law import PAYLOADS, Exchanges, learn_dispatch
from benchmarks.operators.groups import DATA
from costmodel.timing.gaussian_process import Rows
from planner.measure.fit.law import Measured

HIDDEN_SIZE, TOP_K, RANKS_PER_NODE = 7168, 8, 8
"""Facts of all rows: elements of a token, experts that it visits, devices of a node on InfiniBand."""

TOKEN_BYTES = {"fp8": HIDDEN_SIZE + 4 * HIDDEN_SIZE / 128, "bf16": 2.0 * HIDDEN_SIZE}
"""Bytes of a token; in eight bits with a scale in 32 bits for every 128 elements."""

RIDGE = 0.1
"""Ridge on the interpolation's slopes, without which one or two samples give a line no slope."""


def exchanges() -> Measured[Exchanges]:
    """Rows of ``dispatch.csv``."""
    table = pd.read_csv(DATA / "dispatch.csv")
    devices = facts()["dispatch"]
    is_combine, is_fp8 = (table.op == "combine").to_numpy(), (table.dtype == "fp8").to_numpy()
    payloads = np.select(
        [is_combine, is_fp8], [PAYLOADS.index("combine"), PAYLOADS.index("fp8")], PAYLOADS.index("bf16")
    )
    ranks = table.ranks.to_numpy(dtype=float)
    measured = Exchanges(
        implementations=table.implementation.to_numpy(dtype=str),
        devices=table.gpu.to_numpy(dtype=str),
        payloads=payloads,
        ranks=ranks,
        nodes=np.where(table.bottleneck == "infiniband", ranks / RANKS_PER_NODE, 1.0),
        processors=table.sms.to_numpy(dtype=float),
        token_bytes=np.where(is_fp8, TOKEN_BYTES["fp8"], TOKEN_BYTES["bf16"]),
        top_k=np.full(len(table), float(TOP_K)),
        includes_call=(table.timed == "api").to_numpy(),
        link_bandwidth=np.array([devices[name]["links"] * 1e9 for name in table.gpu]),
        network_bandwidth=np.array([devices[name]["network"] * 1e9 for name in table.gpu]),
    )
    return Measured(calls=measured, seconds=1 / (table.gb_per_s.to_numpy() * 1e9))


def by_ranks(of: Exchanges) -> NDArray[np.str_]:
    """Fold of each row: its number of ranks."""
    return np.array([f"{ranks:.0f} ranks" for ranks in of.ranks])


def by_device(of: Exchanges) -> NDArray[np.str_]:
    """Fold of each row: its implementation on its device."""
    pairs = zip(of.implementations.tolist(), of.devices.tolist(), strict=True)
    return np.array([f"{implementation} on {device}" for implementation, device in pairs])


def left_out(samples: Measured[Exchanges], fold_of: Callable[[Exchanges], NDArray[np.str_]]) -> Unseen:
    """Errors on each fold by laws that know the others."""
    folds = fold_of(samples.calls)
    return joined(
        [_errors(samples[folds != fold], samples[folds == fold], fold) for fold in sorted(set(folds.tolist()))]
    )


def _errors(known: Measured[Exchanges], unseen: Measured[Exchanges], fold: str) -> Unseen:
    times, rows = learn_dispatch(known), unseen.calls
    seconds = {
        "interpolated": _interpolated(known, rows),
        "forest": _forest(known, rows),
        "law": times.law(rows),
        "learned": times.seconds(rows, 1.0),
    }
    groups = np.full(len(unseen), fold)
    return score(unseen.seconds, seconds, times.relative_deviation(rows), system="token exchanges", groups=groups)


def _interpolated(known: Measured[Exchanges], wanted: Exchanges) -> Rows:
    """A plane of logarithms over ranks and processors, through the samples that are most alike."""
    of = known.calls
    seconds = np.empty(len(wanted))
    for row in range(len(wanted)):
        alike = (of.leaves == wanted.leaves[row]) & (of.payloads == wanted.payloads[row])
        alike &= of.includes_call == wanted.includes_call[row]
        same = alike & (of.implementations == wanted.implementations[row]) & (of.devices == wanted.devices[row])
        choices = (same, alike, of.leaves == wanted.leaves[row])
        some = next(mask for mask in choices if np.sum(mask) > 1)
        shape = np.column_stack([np.ones(int(np.sum(some))), np.log2(of.ranks[some]), np.log2(of.processors[some])])
        design = np.vstack([shape, RIDGE * np.eye(3)[1:]])
        values = np.concatenate([np.log(known.seconds[some]), np.zeros(2)])
        plane = np.linalg.lstsq(design, values, rcond=None)[0]
        here = np.array([1.0, np.log2(wanted.ranks[row]), np.log2(wanted.processors[row])])
        seconds[row] = np.exp(here @ plane)
    return seconds


def _forest(known: Measured[Exchanges], wanted: Exchanges) -> Rows:
    """A random forest of ranks, processors, payload, timing, level, implementation and device."""
    from sklearn.ensemble import RandomForestRegressor

    names = sorted({*known.calls.implementations.tolist(), *known.calls.devices.tolist()})

    def features(of: Exchanges) -> Rows:
        named = [(of.implementations == name) | (of.devices == name) for name in names]
        columns = [np.log2(of.ranks), np.log2(of.processors), of.payloads, of.includes_call, of.leaves, *named]
        return np.column_stack(columns).astype(float)

    forest = RandomForestRegressor(100, random_state=0, n_jobs=2)
    forest.fit(features(known.calls), np.log(known.seconds))
    seconds: Rows = np.exp(forest.predict(features(wanted)))
    return seconds
