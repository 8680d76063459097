"""A replay as JSON: whole nanoseconds, so that parts add up to what they are parts of."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, TypeAlias

from costmodel.traces.iterations import Iteration
from costmodel.traces.processors import ProcessorUse
from planner.traces.replay.report import RankReplay, ReplayReport, Side, difference

Plain: TypeAlias = dict[str, Any]

NUM_SHARES = 100
"""Parts of an iteration of which JSON has the share of processors."""


def replay_json(report: ReplayReport) -> str:
    """The document as strict JSON."""
    return json.dumps(replay_document(report), indent=2, ensure_ascii=False, allow_nan=False)


def replay_document(report: ReplayReport) -> Plain:
    """What a replay says, as plain data."""
    whole = report.replayed.iteration
    return {
        "sources": list(report.sources),
        "num_tasks": len(report.graph.tasks),
        "num_dependencies": len(report.graph.edges),
        "measured_nanoseconds": report.measured.iteration,
        "replayed_nanoseconds": whole,
        "difference_fraction": report.difference,
        "ranks": [_rank(one) for one in report.ranks],
        "critical_path": {
            "rank": report.path_rank,
            "nanoseconds": whole,
            "parts": [
                {**asdict(part), "fraction": part.nanoseconds / whole if whole else 0.0} for part in report.path_parts
            ],
        },
        "doubts": list(report.doubts),
    }


def _rank(one: RankReplay) -> Plain:
    return {
        "rank": one.rank,
        "iteration": one.iterations.index(one.iteration),
        "iterations": [_iteration(each) for each in one.iterations],
        "difference_fraction": difference(one.measured.nanoseconds, one.replayed.nanoseconds),
        "without_events_nanoseconds": one.without_events,
        "sum_of_tasks_nanoseconds": one.sum_of_tasks,
        "measured": _side(one.measured),
        "replayed": _side(one.replayed),
    }


def _iteration(one: Iteration) -> Plain:
    return {"name": one.name, "host_nanoseconds": one.duration, "found": one.found}


def _side(side: Side) -> Plain:
    return {
        "nanoseconds": side.nanoseconds,
        "breakdown_nanoseconds": asdict(side.breakdown),
        "tracks": [
            {
                **asdict(use.track),
                "num_tasks": use.num_tasks,
                "computation_nanoseconds": use.computation,
                "communication_nanoseconds": use.communication,
            }
            for use in side.streams
        ],
        "processors": None if side.processors is None else _processors(side.processors),
    }


def _processors(use: ProcessorUse) -> Plain:
    shares: Sequence[float] = use.shares.reshape(NUM_SHARES, -1).mean(axis=1).tolist()
    return {
        "mean_fraction": use.mean,
        "num_kernels": use.num_kernels,
        "num_kernels_left_out": use.num_unknown,
        "nanoseconds_left_out": use.unknown_nanoseconds,
        "fractions": [round(share, 4) for share in shares],
    }
