"""The joint model: rules as constraints, cost tables, memory, the objective and its cut."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from ortools.sat.python import cp_model

from constraints import joint
from constraints.cp_sat import Capacity
from constraints.joint import PART, SIZE, CostTables, JointModel, Part
from constraints.limits import Bound, limit_rules, nodes_rule
from constraints.rule import sentence
from constraints.rules import physics
from costmodel.errors import SpecError
from costmodel.strategy import DECISIONS, FLAGS
from costmodel.tables import tabulate
from planner.search import space as spaces
from planner.search.domains import all_values
from planner.search.space import build_space
from tests.builders import a_model, a_moe_model
from tests.builders_problem import a_problem
from tests.cases import in_one_case

MOST_MORE = 1_000
"""Strategies more that are counted; of a rule without which there are more others say enough."""

FEW = {
    "recompute": (0, 2, 20),
    "activation_offload": (0,),
    "optimizer_offload": (0,),
    "cuda_graphs": (0, 1),
    "cp": (1, 2),
}
"""What keeps a space small enough to be counted; of recomputation none, all, and attention cores with norms."""

PROBLEMS = {
    "dense": a_problem(a_model(num_layers=4), num_devices=8, allow=FEW | {"recompute": (0, 20)}),
    "experts": a_problem(a_moe_model(num_layers=2), num_devices=4, allow=FEW, pin={"recompute": 0, "cp": 1}),
    "physics": a_problem(
        a_model(num_layers=2), num_devices=4, allow=FEW, pin={"cuda_graphs": 0}, framework_rules=False
    ),
    "limits": a_problem(
        a_model(num_layers=2),
        num_devices=16,
        allow=FEW,
        limits=(
            Bound(names=("tp", "pp"), relation="<=", number=4),
            Bound(names=("num_microbatches",), relation=">=", number=4),
        ),
        forbid=({"recompute": 2, "dp_overlap": 1},),
    ),
    "fewer devices": a_problem(a_model(num_layers=2), allow=FEW, pin={"cuda_graphs": 0}, max_devices=6),
}


class Counter(cp_model.CpSolverSolutionCallback):
    """Every solution, as values of the decisions."""

    def __init__(self, variables):
        super().__init__()
        self.variables = [variables[name] for name in DECISIONS]
        self.found = set()

    def on_solution_callback(self):
        """Note one."""
        self.found.add(tuple(self.value(variable) for variable in self.variables))


def solutions(problem, rules):
    """Every strategy that CP-SAT finds in a model of rules alone."""
    joint = JointModel([Part(facts=problem.facts, rules=rules)], all_values(problem))
    if not joint.variables:
        return set()
    solver, counter = cp_model.CpSolver(), Counter(joint.variables)
    solver.parameters.enumerate_all_solutions = True
    solver.parameters.num_workers = 1
    assert solver.solve(joint.model, counter) in (cp_model.OPTIMAL, cp_model.INFEASIBLE)
    return counter.found


def enumerated(space):
    """Every strategy of a space."""
    row, *physics = np.nonzero(space.allowed[space.feature_class])
    columns = {name: values[row] for name, values in space.rows.items()}
    columns |= {name: values[at] for (name, values), at in zip(space.features.items(), physics, strict=True)}
    return set(zip(*(columns[name].astype(int).tolist() for name in DECISIONS), strict=True))


def rules_of(problem):
    """The rules of a problem, memory apart."""
    rules = build_space(problem).rules
    return (*rules.rows, *rules.mixed)


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_model_holds_the_rules_and_nothing_else(name):
    """Its solutions are the strategies that the rules leave of all combinations, as arrays filter them."""
    problem = PROBLEMS[name]

    found = solutions(problem, rules_of(problem))

    assert found == enumerated(build_space(problem))
    assert len(found) > 100


@pytest.mark.slow
@pytest.mark.parametrize(("name", "first"), [("experts", 1), ("limits", 0)])
def test_a_rule_that_is_left_out_of_the_model_is_noticed(name, first, monkeypatch):
    """The model then has strategies more, each of which only this rule forbids: at least five of every second rule."""
    problem = PROBLEMS[name]
    rules, every = build_space(problem).rules, enumerated(build_space(problem))
    asked = rules_of(problem)
    needed = set()
    for rule in asked[first::2]:
        fewer = {part: tuple(one for one in getattr(rules, part) if one is not rule) for part in ("rows", "mixed")}
        left = replace(rules, **fewer)
        monkeypatch.setattr(spaces, "problem_rules", lambda _, left=left: left)
        more = enumerated(build_space(problem)) - every
        if more and len(more) < MOST_MORE:
            found = solutions(problem, [one for one in asked if one is not rule])
            assert every | more <= found
            columns = dict(zip(DECISIONS, np.array(sorted(found - every)).T, strict=True))
            columns |= {flag: columns[flag].astype(bool) for flag in FLAGS}
            broken = [one for one in asked if not np.all(tabulate(one, problem.facts, columns))]
            assert broken == [rule]
            needed.add(sentence(rule))
    assert len(needed) >= 5, needed


def test_rules_that_exclude_each_other_leave_nothing():
    """tp * pp is 2 at least, tp * pp * cp is 1: with one value left of each decision the first one holds for none."""
    bounds = (
        Bound(names=("tp", "pp"), relation=">=", number=2),
        Bound(names=("tp", "pp", "cp"), relation="<=", number=1),
    )
    rules = limit_rules(pin={}, allow={}, forbid=(), limits=bounds)

    made = JointModel([a_part(*rules)], {"tp": [1, 2], "pp": [1, 2], "cp": [1, 2]})

    assert solved(made)[0] == cp_model.INFEASIBLE


def test_the_world_size_is_a_product():
    """Of 16 devices tp * cp * pp * dp is all of them; without the rule it is not."""
    problem = PROBLEMS["limits"]
    rules = rules_of(problem)

    found = solutions(problem, rules)
    without = solutions(problem, [rule for rule in rules if rule is not physics.degrees_multiply_to_the_devices])

    assert {tp * cp * pp * dp for tp, cp, pp, dp, *_ in found} == {16}
    assert {tp * cp * pp * dp for tp, cp, pp, dp, *_ in without} > {16}


def test_a_wide_world_size_is_posted_as_a_product(monkeypatch):
    """With no room for tables the product stands for the table of the degrees, and other rules for what occurs."""
    monkeypatch.setattr(joint, "MAX_CELLS", 1)

    for tp, fits in ((2, True), (3, False)):
        made = JointModel(
            [a_part(physics.degrees_multiply_to_the_devices, physics.tp_overlap_needs_tp)],
            {"tp": [tp, 8], "cp": [1, 2], "pp": [1, 2], "dp": [1, 2], "tp_overlap": [0, 1]},
            tables(tp=tp, cp=2, pp=2, dp=1, tp_overlap=1),
            cut=10,
        )
        status, _ = solved(made)
        assert (status == cp_model.OPTIMAL) is fits
        assert any(one.name == SIZE and one.has_int_prod() for one in made.model.proto.constraints)


# --- costs -------------------------------------------------------------------------------------------------


def tables(device=1, host=0, ticks=5, **decisions):
    """One combination with one step time."""
    return CostTables(
        combinations={name: np.array([value]) for name, value in decisions.items()},
        device_mebibytes=np.array([device]),
        host_mebibytes=np.array([host]),
        combination=np.array([0]),
        others={},
        ticks=np.array([ticks]),
    )


def two_combinations():
    """Of the faster one's two strategies, the fastest has no overlap; its memory is larger, too."""
    return CostTables(
        combinations={"tp": np.array([1, 2]), "mbs": np.array([1, 2])},
        device_mebibytes=np.array([100, 200]),
        host_mebibytes=np.array([0, 7]),
        combination=np.array([0, 1, 1]),
        others={"tp_overlap": np.array([0, 0, 1])},
        ticks=np.array([30, 10, 20]),
    )


def a_part(*rules, device=1, host=1, **settings):
    """A part of a model, with little memory."""
    capacity = Capacity(device_mebibytes=device, host_mebibytes=host)
    return Part(facts=a_problem().facts, rules=rules, capacity=capacity, settings=settings)


def solved(made):
    """Status and solver."""
    solver = cp_model.CpSolver()
    return solver.solve(made.model), solver


@in_one_case(
    ("device", "host", "cut", "rules", "ticks"),
    [
        (200, 7, 30, (), 10),
        (199, 7, 30, (), 30),
        (200, 6, 30, (), 30),
        (199, 7, 29, (), None),
        (200, 7, 9, (), None),
        (200, 7, 30, (physics.tp_overlap_needs_tp,), 10),
    ],
)
def test_the_fastest_within_memory_and_cut_is_chosen(device, host, cut, rules, ticks):
    """Device memory, host memory and the cut each leave out what is beyond them."""
    two = two_combinations()

    made = JointModel([a_part(*rules, device=device, host=host)], two.domains, two, cut=cut)

    status, solver = solved(made)
    assert (solver.objective_value if status == cp_model.OPTIMAL else None) == ticks


def test_a_rule_forbids_what_the_cost_tables_hold():
    """Overlap with tp 1 is in the table, and no solution."""
    wrong = tables(tp=1, tp_overlap=1)

    for rules, status in (((), cp_model.OPTIMAL), ((physics.tp_overlap_needs_tp,), cp_model.INFEASIBLE)):
        made = JointModel([a_part(*rules)], wrong.domains, wrong, cut=10)
        assert solved(made)[0] == status


def test_what_a_constraint_is_called_is_the_rule_s_sentence():
    """Whoever reads a written model finds the rules by their words."""
    problem = PROBLEMS["limits"]

    made = JointModel([Part(facts=problem.facts, rules=rules_of(problem))], all_values(problem))

    names = [constraint.name for constraint in made.model.proto.constraints]
    assert "search.limits: tp * pp is at most 4." in names
    assert sentence(physics.degrees_multiply_to_the_devices) in names
    assert set(DECISIONS) <= {variable.name for variable in made.model.proto.variables}


def test_a_value_that_no_integer_variable_holds_is_named():
    """64 bits are what the solver has."""
    with pytest.raises(SpecError, match=r"mbs.*36893488147419103232"):
        JointModel([a_part()], {"tp": [1], "mbs": [2**65]})


# --- several parts -----------------------------------------------------------------------------------------


def of_parts(*, ticks, **decisions):
    """One combination in two parts, each with its own step."""
    one = tables(**decisions)
    combinations = {name: np.repeat(values, 2) for name, values in one.combinations.items()}
    return replace(
        one,
        combinations=combinations | {PART: np.arange(2)},
        device_mebibytes=np.ones(2, dtype=np.int64),
        host_mebibytes=np.ones(2, dtype=np.int64),
        combination=np.arange(2),
        ticks=np.array(ticks),
    )


@in_one_case(
    ("parts", "expected"),
    [
        (([], []), (5, "bf16")),
        (([], [physics.tp_overlap_needs_tp]), (7, "fp32")),
        (([physics.tp_overlap_needs_tp], []), (5, "bf16")),
        (([physics.tp_overlap_needs_tp], [physics.tp_overlap_needs_tp]), None),
    ],
)
def test_a_rule_of_one_part_forbids_nothing_in_another(parts, expected):
    """The second part's step is shorter; its rule leaves the first part's, and a rule of both leaves nothing."""
    both, dtypes = of_parts(tp=1, tp_overlap=1, ticks=[7, 5]), ("fp32", "bf16")
    each = [a_part(*rules, gradient_dtype=dtype) for rules, dtype in zip(parts, dtypes, strict=True)]

    made = JointModel(each, both.domains, both, cut=10)

    status, solver = solved(made)
    found = None
    if status == cp_model.OPTIMAL:
        found = (solver.objective_value, dtypes[solver.value(made.variables["gradient_dtype"])])
        assert solver.value(made.variables["gradient_dtype"]) == solver.value(made.variables[PART])
    assert found == expected


def test_a_rule_that_one_part_has_twice_is_not_one_of_two_parts():
    """A limit that a job says twice is posted once, and in its part alone: the other part keeps its shorter step."""
    both, wide = of_parts(tp=1, tp_overlap=1, ticks=[7, 5]), {"tp": [1, 2], "tp_overlap": [0, 1], PART: [0, 1]}
    twice = a_part(physics.tp_overlap_needs_tp, physics.tp_overlap_needs_tp)

    made = JointModel([twice, a_part()], wide, both, cut=10)

    assert solved(made)[1].objective_value == 5


def test_each_part_has_memory_of_its_own():
    """The faster part lacks a mebibyte."""
    both = of_parts(tp=1, tp_overlap=1, ticks=[7, 5])

    made = JointModel([a_part(), a_part(device=0)], both.domains, both, cut=10)

    assert solved(made)[1].objective_value == 7


def test_the_number_of_devices_is_a_variable():
    """On 8 devices in one part and on 1 to 3 nodes of 2 in the other, of which 2 * 3 are the product of the degrees."""
    degrees = {"cp": 1, "pp": 1}
    both = of_parts(tp=2, dp=3, **degrees, ticks=[7, 5])
    whole = a_part(physics.degrees_multiply_to_the_devices)
    fewer = a_part(nodes_rule(range(1, 4), 2))

    too_few = a_part(nodes_rule(range(1, 3), 2))

    for parts, size in (([whole, fewer], 6), ([whole, whole], None), ([whole, too_few], None)):
        made = JointModel(parts, both.domains, both, cut=10)
        status, solver = solved(made)
        assert (solver.value(made.variables[SIZE]) if status == cp_model.OPTIMAL else None) == size
