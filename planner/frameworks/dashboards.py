"""A plan's expected figures with the measured ones of a run: rules of Prometheus, a dashboard of Grafana, W&B."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import yaml

from costmodel.record import record
from planner.frameworks.target import Export, subject
from planner.uncertainty.peaks import peak_interval

if TYPE_CHECKING:
    from planner.results import Plan

WAIT = "15m"
"""Time for which a figure must be outside of its bounds before an alert: a slow step or two are no fault."""


@record(frozen=True, kw_only=True, slots=True)
class Expected:
    """
    An expected figure with the bounds outside of which an alert is due.

    Parameters
    ----------
    name, title, unit
        Name in rules and files, title of its panel, unit of Grafana's field.
    query
        Figure of the run in PromQL.
    value, low, high
        Expected figure, and ends of its interval.
    is_bad
        Side that is bad: ``high`` or ``low``.
    """

    name: str
    title: str
    unit: str
    query: str
    value: float
    low: float
    high: float
    is_bad: str

    @property
    def alert(self) -> str:
        """The bad side as a condition in PromQL."""
        return f"{self.query} > {self.high:.6g}" if self.is_bad == "high" else f"{self.query} < {self.low:.6g}"


def list_expected_figures(plan: Plan) -> tuple[Expected, ...]:
    """
    Return the figures that a run shows: step, tokens per second and device, MFU, and memory, with their intervals.

    Tokens per second and MFU are constants over the step; so their bounds are those of the step.
    """
    step, ends, cluster, workload = plan.step_seconds, plan.interval, plan.cluster, plan.facts.workload
    tokens = workload.global_batch_size * workload.sequence_length / plan.strategy.num_devices
    peak = cluster.device.memory_bytes - plan.headroom_bytes
    least, most = peak_interval(cluster, device_bytes=peak)
    return (
        Expected(
            name="step_seconds",
            title="Seconds per step",
            unit="s",
            query="training_step_seconds",
            value=step,
            low=ends.low_seconds,
            high=ends.high_seconds,
            is_bad="high",
        ),
        Expected(
            name="tokens_per_second_per_device",
            title="Tokens per second and device",
            unit="short",
            query="training_tokens_per_second_per_device",
            value=tokens / step,
            low=tokens / ends.high_seconds,
            high=tokens / ends.low_seconds,
            is_bad="low",
        ),
        Expected(
            name="mfu",
            title="MFU",
            unit="percentunit",
            query="training_mfu",
            value=plan.mfu,
            low=plan.mfu * step / ends.high_seconds,
            high=plan.mfu * step / ends.low_seconds,
            is_bad="low",
        ),
        Expected(
            name="device_memory_bytes",
            title="Memory of the fullest device",
            unit="bytes",
            query="max(DCGM_FI_DEV_FB_USED) * 1048576",
            value=peak,
            low=least,
            high=most,
            is_bad="high",
        ),
    )


NOTES = (
    "TODO: names that begin with 'training_' stand for your exporter's metrics; MFU is a fraction.",
    "DCGM_FI_DEV_FB_USED is dcgm-exporter's, in MiB, with the CUDA context.",
)


def to_prometheus(plan: Plan) -> Export:
    """Write expected figures as recording rules, and an alert outside of the bad end of each interval."""
    every = list_expected_figures(plan)
    records = [
        {"record": f"planner:{one.name}:{bound}", "expr": f"vector({value:.6g})"}
        for one in every
        for bound, value in (("expected", one.value), ("low", one.low), ("high", one.high))
    ]
    alerts = [
        {
            "alert": f"Planner{''.join(word.capitalize() for word in one.name.split('_'))}",
            "expr": one.alert,
            "for": WAIT,
            "labels": {"severity": "warning"},
            "annotations": {
                "summary": f"{one.title} outside of the plan's interval",
                "description": f"Expected {one.value:.4g} ({one.low:.4g} to {one.high:.4g}): {subject(plan)}.",
            },
        }
        for one in every
    ]
    rules = {"groups": [{"name": "planner", "interval": "1m", "rules": [*records, *alerts]}]}
    text = f"# {subject(plan)}\n{yaml.safe_dump(rules, sort_keys=False, width=120)}"
    return Export(target="Prometheus", files={"planner.rules.yaml": text}, notes=NOTES)


def to_grafana(plan: Plan) -> Export:
    """Write a dashboard: a panel for each figure, with its expected value and bounds as lines."""
    panels = [_panel(number, one) for number, one in enumerate(list_expected_figures(plan))]
    dashboard = {
        "title": f"Plan: {plan.facts.model.name}",
        "description": subject(plan),
        "tags": ["pretraining-planner"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "1m",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [{"name": "datasource", "type": "datasource", "query": "prometheus"}]},
        "panels": panels,
    }
    return Export(target="Grafana", files={"planner.dashboard.json": _json(dashboard)}, notes=NOTES)


def _panel(number: int, one: Expected) -> dict[str, Any]:
    bad, good = "red", "green"
    steps = [
        {"value": None, "color": good if one.is_bad == "high" else bad},
        {"value": one.low, "color": good},
        {"value": one.high, "color": bad if one.is_bad == "high" else good},
    ]
    source = {"type": "prometheus", "uid": "${datasource}"}
    lines = (("measured", one.query), *((bound, f"vector({getattr(one, at):.6g})") for bound, at in BOUNDS))
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": one.title,
        "gridPos": {"x": 0, "y": 8 * number, "w": 24, "h": 8},
        "datasource": source,
        "fieldConfig": {
            "defaults": {
                "unit": one.unit,
                "min": 0,
                "thresholds": {"mode": "absolute", "steps": steps},
                "custom": {"thresholdsStyle": {"mode": "line"}},
            },
            "overrides": [],
        },
        "targets": [
            {"refId": chr(ord("A") + place), "datasource": source, "expr": query, "legendFormat": legend}
            for place, (legend, query) in enumerate(lines)
        ],
    }


BOUNDS = (("expected", "value"), ("low", "low"), ("high", "high"))
"""Lines plotted with the measured one, and the figures that they show."""

LOGGED = {
    "megatron": {"step_seconds": "iteration-time"},
    "torchtitan": {
        "step_seconds": "time_metrics/end_to_end(s)",
        "tokens_per_second_per_device": "throughput(tps)",
    },
}
"""
Names under which frameworks log figures to W&B.

Megatron-LM, ``megatron/training/training.py`` (``training_log``); torchtitan, ``torchtitan/components/metrics.py``.
"""

WATCH = '''"""Lines of the plan with a run's own, and alerts outside its bounds: watch(run, metrics)."""

import json
import pathlib

PLAN = json.loads(pathlib.Path(__file__).with_name("wandb.planned.json").read_text())


def watch(run, metrics):
    """Log the expected figures with what a step has logged; alert where one is outside of its bad bound."""
    for name, planned in PLAN.items():
        measured = metrics.get(planned["logged_as"])
        if measured is None:
            continue
        run.log({f"planned/{name}/{bound}": planned[bound] for bound in ("expected", "low", "high")}, commit=False)
        is_bad = measured > planned["high"] if planned["bad"] == "high" else measured < planned["low"]
        if is_bad:
            text = f"{measured:.4g}, expected {planned['expected']:.4g} ({planned['low']:.4g} to {planned['high']:.4g})"
            run.alert(title=f"{name} outside of the plan", text=text, wait_duration=900)
'''


def to_wandb(plan: Plan) -> Export:
    """Write expected figures as JSON under the names that the framework logs, and a function that watches a run."""
    framework = plan.cluster.framework
    names: Mapping[str, str] = next(
        (own for line, own in LOGGED.items() if framework is not None and framework.name.startswith(line)), {}
    )
    planned = {
        one.name: {
            "logged_as": names.get(one.name, one.name),
            "expected": one.value,
            "low": one.low,
            "high": one.high,
            "bad": one.is_bad,
        }
        for one in list_expected_figures(plan)
    }
    unknown = [name for name in planned if name not in names]
    notes = tuple(f"TODO: 'logged_as' of {name} is the name under which your run logs it." for name in unknown)
    return Export(target="W&B", files={"wandb.planned.json": _json(planned), "wandb_planned.py": WATCH}, notes=notes)


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, indent=2) + "\n"


WRITERS: Mapping[str, Callable[[Plan], Export]] = {
    "prometheus": to_prometheus,
    "grafana": to_grafana,
    "wandb": to_wandb,
}
"""Writer of each of :data:`planner.frameworks.DASHBOARDS`."""
