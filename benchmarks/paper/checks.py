"""
MoFa's printed numbers as checks, in the order of the table that lists them.

A check compares each printed number with the project's own and keeps the worst; it holds when every row agrees.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, TypeAlias

from benchmarks.paper import rows
from costmodel import catalog
from costmodel.facts.device import Cluster
from costmodel.facts.reliability import Reliability
from costmodel.facts.workload import Workload
from costmodel.models.flops import flops_per_second_per_device, model_flops_per_token
from costmodel.pipelines.schedules import busy_seconds, interleaved_bubble_seconds
from costmodel.pipelines.stages import stages
from costmodel.step.data_parallel import dp_seconds, update_seconds
from costmodel.step.estimate import estimate
from costmodel.step.layer import layer_parts, steady_parts
from costmodel.step.layouts import average_rank, strategy_seconds
from costmodel.step.rank_time import (
    LAID_OUT_BY,
    all_ranks_seconds,
    edge_seconds,
    ep_fill_seconds,
    idle_waiting_seconds,
    pp_seconds,
    rank_seconds,
    waiting_seconds,
)
from costmodel.strategy import Strategy
from costmodel.tables import Facts, largest, microbatches
from planner.jobs.checkpoints import schedule_checkpoints, schedule_every


class Basis(StrEnum):
    """Relation of a check's printed numbers to the constants behind ours."""

    COMPUTED = "computed, constants fitted to none of these numbers"
    FITTED = "computed, constants fitted to these tables"
    LITERATURE = "computed, beside other literature"
    PRINTED = "printed beside printed, not counted"


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """
    One printed number and ours.

    Parameters
    ----------
    label
        Name of the row.
    printed, reached
        The two numbers.
    tolerance
        Largest difference allowed.
    """

    label: str
    printed: float
    reached: float
    tolerance: float

    @property
    def error(self) -> float:
        """Distance between the two."""
        return abs(self.reached - self.printed)

    @property
    def holds(self) -> bool:
        """True if they agree; rounding of the last bit is forgiven."""
        return self.error <= self.tolerance * (1 + 1e-9)


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """
    One line of the benchmark.

    Parameters
    ----------
    name, unit
        Compared quantity; unit of the error.
    basis
        Data that the constants behind ours are fitted to.
    comparisons
        Every row of it.
    """

    name: str
    unit: str
    basis: Basis
    comparisons: tuple[Comparison, ...]

    @property
    def holds(self) -> bool:
        """True if every row agrees."""
        return all(comparison.holds for comparison in self.comparisons)

    @property
    def worst(self) -> Comparison:
        """The row that uses most of its tolerance."""
        return max(self.comparisons, key=lambda one: one.error / one.tolerance if one.tolerance else one.error)


Numbers: TypeAlias = Iterable[tuple[str, float, float]]
"""Label of each row, number that is printed, ours."""


def compare(name: str, unit: str, basis: Basis, numbers: Numbers, tolerance: float | Callable[[float], float]) -> Check:
    """Make a check of rows; the tolerance is that of all, or follows from the printed number."""
    allowed = tolerance if callable(tolerance) else lambda _: tolerance
    return Check(
        name=name,
        unit=unit,
        basis=basis,
        comparisons=tuple(
            Comparison(label=label, printed=printed, reached=float(reached), tolerance=allowed(printed))
            for label, printed, reached in numbers
        ),
    )


def all_checks() -> Iterator[Check]:
    """Every check, in the order of the paper's numbers as tests."""
    yield from table5_checks()
    yield section_541_check()
    yield flops_check()
    yield memory_check()
    yield printed_parts_check()
    yield tp_check()
    yield pp_check()
    yield ep_check()
    yield from column_checks()
    yield from step_checks()
    yield from table5_step_checks()
    yield chunks_check()


# --- fault tolerance ---------------------------------------------------------------------------------------


def table5_checks() -> Iterator[Check]:
    """Table 5: steps, total time with both repair times, ETTR as printed (truncated)."""
    printed = list(rows.table(5).itertuples())
    measured = [(row, _table5_schedule(row, mttr_seconds=row.MTTR_s)) for row in printed]
    fitted = [(row, _table5_schedule(row, mttr_seconds=121.1018 + 0.1039877 * row.n_gpu)) for row in printed]
    steps = ((_table5_label(row), row.N_steps, schedule.num_steps) for row, schedule in measured)
    yield compare("Table 5: number of steps (37)", "steps", Basis.COMPUTED, steps, 0)
    for name, basis, tolerance, schedules in (
        ("the printed", Basis.COMPUTED, 1.5, measured),
        ("the fitted", Basis.FITTED, 0.03, fitted),
    ):
        totals = [(_table5_label(row), row.T_total_s, schedule.total_seconds) for row, schedule in schedules]
        yield compare(f"Table 5: total time (36)-(39), {name} MTTR", "s", basis, totals, tolerance)
    ettr = [(_table5_label(row), row.ETTR_pct, _truncated_per_cent(schedule.ettr)) for row, schedule in measured]
    yield compare("Table 5: ETTR (40), truncated as printed", "%", Basis.COMPUTED, ettr, 1e-9)


def section_541_check() -> Check:
    """5.4.1: the optimal interval and its ETTR at 32 nodes."""
    cluster = Cluster(device=catalog.equip_device("mofa-b"), num_devices=256)
    workload = _steps_workload(10**6)
    reliability = Reliability(failures_per_node_day=0.01, mttr_seconds=60, checkpoint_seconds=2)
    schedule = schedule_checkpoints(cluster, workload, reliability, step_seconds=28)
    numbers = (("K*", 37, schedule.interval_steps), ("ETTR", 99.59, _truncated_per_cent(schedule.ettr)))
    return compare("5.4.1: optimal interval (44) and its ETTR", "steps, %", Basis.COMPUTED, numbers, 1e-9)


def _table5_schedule(row: Any, *, mttr_seconds: float) -> Any:
    device = catalog.equip_device("mofa-a" if row.gpu == "A" else "mofa-b")
    cluster = Cluster(device=rows.with_nodes_of(device, int(row.gpus_per_node)), num_devices=int(row.n_gpu))
    reliability = Reliability(
        failures_per_node_day=row.fail_per_node_day / 100, mttr_seconds=mttr_seconds, checkpoint_seconds=row.T_ckpt_s
    )
    workload = rows.workload(int(row.gbs), sequence_length=rows.TABLE5_SEQUENCE_LENGTH)
    return schedule_every(
        cluster, workload, reliability, step_seconds=row.T_step_model_s, interval_steps=int(row.K_steps)
    )


def _table5_label(row: Any) -> str:
    return f"{row.model} on {row.n_gpu}"


def _steps_workload(num_steps: int) -> Workload:
    """A training of so many steps of one token."""
    return Workload(global_batch_size=1, sequence_length=1, tokens=num_steps, precision=catalog.precision("mofa"))


def _truncated_per_cent(fraction: float) -> float:
    return math.floor(fraction * 10_000) / 100


# --- one step ----------------------------------------------------------------------------------------------


def flops_check() -> Check:
    """Tables 6 and 9: TFLOPS from the printed step time."""
    return Check(
        name="Tables 6, 9: TFLOPS from the step time (15)",
        unit="TFLOPS",
        basis=Basis.COMPUTED,
        comparisons=tuple(_flops_comparison(label, row) for label, row in _llama_rows(6, 9)),
    )


def _flops_comparison(label: str, row: Any) -> Comparison:
    facts = rows.llama_facts(int(row.n_gpu), int(row.gbs))
    per_token = model_flops_per_token(facts.model, facts.workload.sequence_length, "full")
    reached = flops_per_second_per_device(
        facts.cluster, facts.workload, flops_per_token=per_token, step_seconds=row.T_step
    )
    rounding = 0.005 + row.TFLOPS * 0.005 / row.T_step
    return Comparison(label=label, printed=row.TFLOPS, reached=float(reached) / 1e12, tolerance=rounding)


def memory_check() -> Check:
    """Tables 6 and 7: memory of the first rank."""
    six = [(label, row, rows.table6_strategy(row)) for label, row in _llama_rows(6)]
    seven = [(f"Table 7, {row.n_gpu}", row, rows.table7_strategy(row)) for row in rows.table(7).itertuples()]
    numbers = (
        (
            label,
            row.mem_GiB,
            estimate(rows.llama_facts(int(row.n_gpu), int(row.gbs)), strategy).ranks[0].device_bytes / 2**30,
        )
        for label, row, strategy in (*six, *seven)
    )
    return compare("Tables 6, 7: memory (4)-(6), (25), (27), (33)", "GiB", Basis.FITTED, numbers, 0.005)


def printed_parts_check() -> Check:
    """Tables 6, 8 and 9: the printed parts add up to the printed step: a step has no part that is not modelled."""
    dense = [(label, row, row.T_comp + row.T_tp) for label, row in _llama_rows(6, 9)]
    experts = [(label, row, row.T_comp + row.T_ep) for label, row in _table8_rows()]
    numbers = ((label, row.T_step, first + row.T_pp + row.T_dp + row.T_opt) for label, row, first in (*dense, *experts))
    name = "Tables 6, 8, 9: the step is the sum of its printed parts (14)"
    return compare(name, "s", Basis.PRINTED, numbers, 0.02)


def tp_check() -> Check:
    """Tables 6 and 9: the TP column is m + (p - 1) / v stage times of exposed communication, overlapped a quarter."""
    numbers = ((label, row.T_tp, _tp_column(facts, strategy)) for label, row, facts, strategy in _llama_strategies())
    return compare("Tables 6, 9: TP column (9)-(12), (20)", "s", Basis.FITTED, numbers, 0.01)


def _tp_column(facts: Facts, strategy: Strategy) -> float:
    layers = facts.model.num_layers / strategy.pp
    return _stage_times(facts, strategy) * layers * float(layer_parts(facts, strategy.decisions()).tp.sum())


def _stage_times(facts: Facts, strategy: Strategy) -> float:
    m = facts.workload.global_batch_size / (strategy.dp * strategy.mbs)
    return m + (strategy.pp - 1) / strategy.vpp


def pp_check() -> Check:
    """Tables 6 and 9: the PP column is 2 (p v - 1) hops, the steady phase is hidden."""
    numbers = ((label, row.T_pp, _part(facts, strategy, "pp")) for label, row, facts, strategy in _llama_strategies())
    return compare("Tables 6, 9: PP column (9)-(12), (23)", "s", Basis.FITTED, numbers, 0.01)


def ep_check() -> Check:
    """Table 8: the EP column is exposed in warm-up and cool-down only, and decays by 0.9 per doubling."""
    numbers = (
        (label, row.T_ep, _ep_column(rows.deepseek_facts(row), rows.table8_strategy(row)))
        for label, row in _table8_rows()
    )
    return compare("Table 8: EP column (3), (22)", "s", Basis.FITTED, numbers, 0.01)


def _ep_column(facts: Facts, strategy: Strategy) -> float:
    decisions = strategy.decisions()
    whole, parts = average_rank(facts, decisions), layer_parts(facts, decisions)
    stage = float((whole.all_layers * parts.ep).sum()) / strategy.pp
    return _stage_times(facts, strategy) * stage + float(ep_fill_seconds(decisions, whole, parts))


def column_checks() -> Iterator[Check]:
    """Tables 6, 8 and 9: the DP and optimizer columns."""
    dense = list(_llama_strategies())
    experts = [(label, row, _table8_ending(row)) for label, row in _table8_rows()]
    for name, part, column, place in (
        ("DP column (24)", "dp", "T_dp", 0),
        ("optimizer column (26), (28)", "optimizer", "T_opt", 1),
    ):
        ours = [(label, getattr(row, column), _part(facts, strategy, part)) for label, row, facts, strategy in dense]
        theirs = [(label, getattr(row, column), ending[place]) for label, row, ending in experts]
        name = f"Tables 6, 8, 9: {name}"
        of_dense = compare(name, "s", Basis.FITTED, ours, 0.01)
        of_experts = compare(name, "s", Basis.FITTED, theirs, 0.03)
        yield replace(of_dense, comparisons=of_dense.comparisons + of_experts.comparisons)


def _table8_ending(row: Any) -> tuple[float, float]:
    """Data-parallel and optimizer seconds of the first rank with contiguous stages."""
    facts, decisions = rows.deepseek_facts(row), rows.table8_strategy(row).decisions()
    layers_in_order = stages(facts.model, pp=decisions["pp"], vpp=1)
    found = dp_seconds(facts, decisions, layers_in_order), update_seconds(facts, decisions, layers_in_order)
    return float(found[0][..., 0]), float(found[1][..., 0])


def table5_step_checks() -> Iterator[Check]:
    """
    Table 5: modelled steps of its dense models; chunks are not printed and taken with two layers, as in Table 6.

    GPU A's matmul rate is assumed from this table's TFLOPS. The step of DeepSeek-V3, with mbs 1, is left out: the
    profile has rates of mbs 2 alone.
    """
    printed = list(rows.table(5).itertuples())
    large = next(row for row in printed if row.model.startswith("LLaMA3"))
    strategy = rows.llama_strategy(large, optimizer="cpu", vpp=8, mbs=1)
    seconds = _formula_seconds(rows.llama_facts(int(large.n_gpu), int(large.gbs)), strategy)
    own = [_step_numbers(_table5_label(large), large.T_step_model_s, seconds)]
    yield compare("Table 5: step of LLaMA3-405B with the profile of Tables 6, 9", "%", Basis.COMPUTED, own, 1.0)
    others = (_llama2_numbers(row) for row in printed if row.model.startswith("LLaMA2"))
    yield compare("Table 5: steps of LLaMA2-70B, one rate for all", "%", Basis.FITTED, others, 4.0)


def _llama2_numbers(row: Any) -> tuple[str, float, float]:
    facts = Facts(
        model=catalog.model("mofa-llama2-70b"),
        cluster=Cluster(device=catalog.equip_device("mofa-a"), num_devices=int(row.n_gpu)),
        workload=rows.workload(int(row.gbs), sequence_length=rows.TABLE5_SEQUENCE_LENGTH),
    )
    strategy = rows.llama_strategy(row, optimizer="dist", vpp=5, mbs=int(row.mbs), tp_overlap=False)
    return _step_numbers(_table5_label(row), row.T_step_model_s, _formula_seconds(facts, strategy))


def step_checks() -> Iterator[Check]:
    """Tables 6, 7, 8 and 9: whole steps with the fitted profiles of GPU B, by the formulas, as the paper has them."""
    dense = (
        _step_numbers(label, row.T_step, _formula_seconds(facts, strategy))
        for label, row, facts, strategy in _llama_strategies()
    )
    yield compare("Tables 6, 9: whole step with the fitted profile", "%", Basis.FITTED, dense, 0.1)
    experts = (_step_numbers(label, row.T_step, _contiguous_step_seconds(row)) for label, row in _table8_rows())
    yield compare("Table 8: whole step with the fitted profile", "%", Basis.FITTED, experts, 0.1)
    large = (_table7_numbers(row) for row in rows.table(7).itertuples() if row.n_gpu > 64)
    yield compare("Table 7: whole step; 128 and 256 GPUs were never fitted", "%", Basis.COMPUTED, large, 2.0)


def _formula_seconds(facts: Facts, strategy: Strategy) -> float:
    """
    A step whose bubble is the paper's (12), which lets every rank wait for the mean of the others.

    The planner simulates such a pipeline pass by pass, as its first and last chunks are not like the others.
    """
    decisions = strategy.decisions()
    layers_in_order = stages(facts.model, **{name: decisions[name] for name in LAID_OUT_BY})
    parts = layer_parts(facts, decisions)
    ranks = rank_seconds(facts, decisions, layers_in_order, parts.total)
    given = (facts, decisions, layers_in_order, parts, ranks)
    of_formula = idle_waiting_seconds(*given) + edge_seconds(facts, decisions)
    return float(strategy_seconds(facts, strategy) + of_formula - waiting_seconds(*given))


def _contiguous_step_seconds(row: Any) -> float:
    """
    A row of Table 8 with the paper's simplification: the parameters of contiguous stages although chunks interleave.

    Its chunks do not wait for each other, and every rank exposes the all-to-alls of the mean rank. Its optimizer and
    data-parallel columns are those of the first rank with the first 64 / p - 1 layers.
    """
    facts, strategy = rows.deepseek_facts(row), rows.table8_strategy(row)
    decisions = strategy.decisions()
    layers_in_order = stages(facts.model, pp=decisions["pp"], vpp=1)
    steady = steady_parts(facts, decisions).total
    slowest = largest(rank_seconds(facts, decisions, layers_in_order, steady))
    every = all_ranks_seconds(facts, decisions, layers_in_order, steady)
    pipeline = busy_seconds(slowest, num_microbatches=microbatches(facts, decisions)) + interleaved_bubble_seconds(
        slowest, every, vpp=decisions["vpp"]
    )
    beside = edge_seconds(facts, decisions) + pp_seconds(facts, decisions, layers_in_order)
    return float(pipeline + beside) + _ep_column(facts, strategy) + sum(_table8_ending(row))


def _step_numbers(label: str, printed_seconds: float, seconds: float) -> tuple[str, float, float]:
    """In per cent of the printed step."""
    return label, 100.0, 100 * seconds / printed_seconds


def _table7_numbers(row: Any) -> tuple[str, float, float]:
    facts = rows.llama_facts(int(row.n_gpu), int(row.gbs))
    per_token = model_flops_per_token(facts.model, facts.workload.sequence_length, "full")
    seconds = (
        facts.workload.global_batch_size * facts.workload.sequence_length * per_token / row.n_gpu / row.TFLOPS / 1e12
    )
    ours = _formula_seconds(facts, rows.table7_strategy(row))
    return _step_numbers(f"Table 7, {row.n_gpu}", seconds, ours)


def chunks_check() -> Check:
    """Fig. 6 and 5.5.1: 405B on 2,048 GPUs is fastest with v = 8; v = 16 trades 0.8 s of bubble for 2.7 of hops."""
    row = next(row for row in rows.table(6).itertuples() if row.n_gpu == 2048 and row.gbs == 512)
    facts = rows.llama_facts(2048, 512)
    by_chunks = {
        vpp: estimate(facts, rows.llama_strategy(row, optimizer="dist", vpp=vpp, dp_overlap=True))
        for vpp in (1, 2, 4, 8, 16)
    }
    best = min(by_chunks, key=lambda vpp: by_chunks[vpp].step_seconds)
    parts = {vpp: {part.name: part.exposed_seconds for part in ours.breakdown} for vpp, ours in by_chunks.items()}
    return Check(
        name="Fig. 6, 5.5.1: best v, and v = 16 against v = 8",
        unit="chunks, s",
        basis=Basis.COMPUTED,
        comparisons=(
            Comparison(label="best v", printed=8, reached=best, tolerance=0),
            Comparison(label="PP, v 8 to 16", printed=2.7, reached=parts[16]["pp"] - parts[8]["pp"], tolerance=0.1),
            Comparison(
                label="bubble, v 8 to 16", printed=-0.8, reached=parts[16]["bubble"] - parts[8]["bubble"], tolerance=0.1
            ),
        ),
    )


# --- rows --------------------------------------------------------------------------------------------------


def _llama_rows(*numbers: int) -> Iterator[tuple[str, Any]]:
    for number in numbers:
        for row in rows.table(number).itertuples():
            yield f"Table {number} row {row.Index + 1}", row


def _table8_rows() -> Iterator[tuple[str, Any]]:
    for row in rows.table(8).itertuples():
        yield f"Table 8 row {row.Index + 1}", row


def _llama_strategies() -> Iterator[tuple[str, Any, Facts, Strategy]]:
    by_table: dict[int, Callable[[Any], Strategy]] = {6: rows.table6_strategy, 9: rows.table9_strategy}
    for number, strategy in by_table.items():
        for label, row in _llama_rows(number):
            facts = rows.llama_facts(int(row.n_gpu), int(row.gbs), optimized=_is_optimized(row))
            yield label, row, facts, strategy(row)


def _is_optimized(row: Any) -> bool:
    """Tell whether Table 9 raised the slow attention operator in this row."""
    return getattr(row, "attention_outlier", "base") == "optimized"


def _part(facts: Facts, strategy: Strategy, name: str) -> float:
    return next(part.exposed_seconds for part in estimate(facts, strategy).breakdown if part.name == name)
