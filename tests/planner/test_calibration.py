"""Constants fitted: by hand where a sum can be done by hand, and found again where they are known."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import pytest
import yaml

from benchmarks.accuracy.catalog_files import with_numbers
from benchmarks.accuracy.jobs import UNEXPLAINED, share_work, source_weights
from benchmarks.accuracy.left_out.intervals import inside, spreads
from costmodel import catalog
from costmodel.errors import SpecError
from costmodel.strategy import CudaGraphs, TokenDispatcher
from planner import load
from planner.jobs.run_jobs import References
from planner.measure.calibrate.advice import narrow_covariance
from planner.measure.calibrate.cases import folds_of, group_of
from planner.measure.calibrate.constants import (
    MOST_PER_FRAMEWORK,
    Entry,
    calibration_fields,
    constants,
    prior_factors,
    read,
    replace_constants,
    table,
)
from planner.measure.calibrate.fit import REACH, Priors, covariance, fit
from planner.uncertainty.counts import Gap, list_gaps
from planner.uncertainty.intervals import (
    COVERAGE,
    FEWEST_GROUPS,
    Error,
    Kind,
    Spread,
    Unseen,
    find_weighted_quantile,
    intervals,
    kind_of,
    noise_fraction,
    size_of,
    spread_of,
    step_interval,
    unseen_of,
)
from tests.builders import a_model
from tests.builders_cluster import a_cluster, a_strategy
from tests.builders_job import a_document
from tests.cases import in_one_case
from tests.costmodel.strategies import MOE, the_facts

NOISE = 0.02


def linear(matrix: Any) -> tuple[Any, Any]:
    """Logarithms and derivatives of rows that depend on constants linearly."""
    return (lambda logs: matrix @ logs), (lambda logs, before: matrix)


def priors(*, mean: float = 0.0, sigma: float = NOISE, lower: float = -1.0, upper: float = 1.0) -> Priors:
    """Of one constant."""
    return Priors(mean=np.array([mean]), sigma=np.array([sigma]), lower=np.array([lower]), upper=np.array([upper]))


# --- the fit -----------------------------------------------------------------------------------------------


def test_a_row_and_a_prior_as_certain_meet_halfway():
    """Minimum of the loss of x - 0.06 and of x^2, both over 0.02^2: just below 0.03; its width is 0.02 / sqrt(2)."""
    matrix, measured, weights = np.array([[1.0]]), np.array([0.06]), np.ones(1)

    fitted = fit(*linear(matrix), measured, weights=weights, priors=priors())
    width = np.sqrt(covariance(fitted.jacobian, weights, priors(), NOISE))

    pull = (0.06 - fitted.logs) / (1 + ((0.06 - fitted.logs) / REACH) ** 2) ** 2
    assert fitted.logs == pytest.approx([0.03], abs=1e-3)
    assert fitted.logs == pytest.approx(pull, abs=1e-5)
    assert width[0, 0] == pytest.approx(0.02 / np.sqrt(2))


def test_physical_bounds_hold():
    """A row asks for 0.06 with a weight that drowns the prior; physics allows 0.01."""
    fitted = fit(*linear(np.array([[1.0]])), np.array([0.06]), weights=np.full(1, 100.0), priors=priors(upper=0.01))

    assert fitted.logs == pytest.approx([0.01])


def test_an_absurd_row_pulls_the_weaker_the_farther_it_is_off():
    """Rows at 0, 0 and far off: where the sum of the pulls r / (1 + (r / s)^2)^2 is zero."""
    matrix, weights, wide = np.ones((3, 1)), np.ones(3), priors(sigma=10.0, lower=-10, upper=10)

    near, far = (fit(*linear(matrix), np.array([0.0, 0.0, off]), weights=weights, priors=wide) for off in (0.5, 5.0))

    assert near.logs == pytest.approx([0.5 / (1 + (0.5 / REACH) ** 2) ** 2 / 2], abs=5e-4)
    assert far.logs == pytest.approx([0.0], abs=5e-4)


def test_a_run_narrows_what_it_depends_on():
    """A constant known to 50 % and a run of it measured to 5 %: precisions add up; the other constant stays."""
    narrowed = narrow_covariance(np.array([1.0, 0.0]), np.diag([0.5**2, 0.1**2]), 0.05)

    assert narrowed[0, 0] == pytest.approx(1 / (1 / 0.5**2 + 1 / 0.05**2))
    assert narrowed[1, 1] == pytest.approx(0.01)


# --- the table of constants --------------------------------------------------------------------------------


def test_constants_are_few_and_none_belongs_to_a_source():
    """At most 100 for all calibrations, at most 6 for a framework."""
    frameworks = [one.framework for one in constants(frameworks=True) if one.framework]

    assert len(constants()) <= 100
    assert max(frameworks.count(name) for name in frameworks) <= MOST_PER_FRAMEWORK


@in_one_case("constant", constants(frameworks=True), ids=lambda constant: constant.name)
def test_every_constant_is_physical_and_in_the_catalog(constant):
    """Its prior lies inside its bounds, its field exists in its calibration or framework, and its source is said."""
    assert constant.lower < constant.prior < constant.upper
    assert constant.source
    if constant.framework:
        assert catalog.framework(constant.framework).kernels_of in (None, constant.framework)
    else:
        assert calibration_fields(constant)


def test_tables_name_entries_of_the_catalog():
    """A misspelt calibration would never be fitted."""
    known = table()
    entry = Entry(fields=("step_seconds",), of=("hoper",), prior=1.0, lower=0.5, upper=2.0, sigma=0.1, source="a guess")

    assert {name for one in known["calibrations"] for name in one.of} <= set(catalog.calibrations())
    assert {name for one in known["frameworks"] for name in one.of} <= set(catalog.frameworks())
    with pytest.raises(SpecError, match="'hoper' is not a calibration"):
        constants({"calibrations": (entry,), "frameworks": ()})


def test_a_framework_with_too_many_constants_is_refused():
    """Seven of six."""
    entry = Entry(
        fields=("step_seconds",), of=("torchtitan-0.1",) * 7, lower=0.5, upper=2.0, sigma=0.1, source="a guess"
    )

    with pytest.raises(SpecError, match=r"'torchtitan-0\.1' has 7 constants, a framework has at most 6"):
        constants({"calibrations": (), "frameworks": (entry,)})


def test_a_constant_is_written_where_its_calibration_has_it():
    """Volta knows no BF16; Hopper has both, which share one constant."""
    by_name = {one.name: one for one in constants()}

    assert calibration_fields(by_name["matmul_efficiency.bf16 of volta"]) == ("matmul_efficiency.fp16",)
    assert calibration_fields(by_name["matmul_efficiency.bf16 of hopper"]) == (
        "matmul_efficiency.bf16",
        "matmul_efficiency.fp16",
    )
    assert read(catalog.calibration("hopper").constants, "no_such_field") is None


def test_values_of_constants_reach_the_references():
    """By calibration and dotted name, by framework and name; what was there stays."""
    chosen = {one.name: one for one in constants(frameworks=True)}
    matmul, factor = chosen["matmul_efficiency.bf16 of hopper"], chosen["matmul_efficiency@hopper under nemo-24.07"]

    first = replace_constants(References(), [matmul], [0.5])
    both = replace_constants(first, [factor], [0.9])

    assert first.fitted.constants == {"hopper": {"matmul_efficiency.bf16": 0.5, "matmul_efficiency.fp16": 0.5}}
    assert first.fitted.factors is None  # The catalog's.
    assert both.fitted.constants == first.fitted.constants
    assert both.fitted.factors == {"nemo-24.07": {"matmul_efficiency@hopper": 0.9}}


def test_priors_of_factors_are_those_that_are_not_one():
    """
    SimuMax's matmuls at 0.85; NeMo's kernels of 2023 at 50.7 / 58.3; MLPerf's; attention of runs with 1M tokens.

    The first releases on Blackwell take 5.6 % longer than later ones: 1 / 1.056.
    """
    kernels = dict.fromkeys(("matmul", "attention", "elementwise"), round(50.7 / 58.3, 2))
    of_2023 = {f"{name}_efficiency@hopper": factor for name, factor in kernels.items()}

    of_mlperf = {"attention_efficiency@blackwell": 1.25, "elementwise_efficiency@blackwell": 1.3}

    assert prior_factors() == {
        "megatron-lm-0.14": {"matmul_efficiency@blackwell": 0.85},
        "accelerate-1.15": {"attention_efficiency@hopper": 1.36},
        "megatron-core-0.14": {"matmul_efficiency@blackwell": round(1 / 1.056, 3)},
        "nemo-23.09": of_2023,
        "nemo-mlperf-25.09": of_mlperf,
    }


@in_one_case(
    ("name", "setting", "touches"),
    [
        ("matmul_efficiency.fp8 of hopper", {}, False),
        ("matmul_efficiency.fp8 of hopper", {"dtype": "fp8"}, True),
        ("matmul_efficiency.bf16 of hopper", {"dtype": "fp8"}, True),
        ("matmul_efficiency.bf16 of ampere", {}, False),
        ("matmul_efficiency@hopper under nemo-24.07", {}, False),
        ("matmul_efficiency@hopper under nemo-24.07", {"kernels": "nemo-24.07"}, True),
        ("matmul_efficiency@hopper under nemo-24.07", {"kernels": "nemo-24.07", "architecture": "ampere"}, False),
        ("model_scales.4096x128 of hopper", {}, True),
        ("model_scales.4096x128 of hopper", {"size": "4096x0"}, False),
        ("model_scales.4096x128 of blackwell", {}, False),
    ],
)
def test_what_a_row_can_depend_on(name, setting, touches):
    """Its device's calibration, its framework's kernels, its dtype and 16 bits, which every recipe has."""
    (constant,) = [one for one in constants(frameworks=True) if one.name == name]
    row = {"calibrations": ("hopper",), "kernels": "megatron-core-0.14", "architecture": "hopper", "dtype": "bf16"}
    row |= {"size": "4096x128"}

    assert constant.touches(**{**row, **setting}) is touches


def a_case(source: str, model: str, num_devices: int, row: str = "") -> Any:
    """What a group is made of."""
    run = SimpleNamespace(id=row, source=source, model=model, device="device", num_devices=num_devices)
    return SimpleNamespace(run=run)


def test_groups_are_left_out_whole():
    """Rows of one group share a fold, and the groups of a source are spread over all folds."""
    cases = [a_case("paper", f"model-{number % 10}", 8) for number in range(30)]

    folds = folds_of(cases, 5)

    assert {
        len({fold for one, fold in zip(cases, folds, strict=True) if group_of(one) == group})
        for group in map(group_of, cases)
    } == {1}
    assert sorted(np.bincount(folds).tolist()) == [6] * 5


def test_a_source_weighs_as_the_root_of_its_rows():
    """Sixteen rows weigh four times one; a row that is left out neither weighs nor counts."""
    large = [a_case("large", "model", 8, f"row-{number}") for number in range(17)]
    cases = [*large, a_case("small", "model", 8, "one")]

    weights = source_weights(cases, without={"row-3"}) ** 2 * UNEXPLAINED**2

    assert weights[3] == 0.0
    assert weights[:-1].sum() == pytest.approx(4.0)
    assert weights[-1] == pytest.approx(1.0)


def test_work_is_shared_in_order_and_errors_come_back():
    """Two processes, five pieces; an error in one of them is raised where the results are awaited."""
    assert share_work(lambda index: index**2, 5, 2) == [0, 1, 4, 9, 16]
    with pytest.raises(ZeroDivisionError):
        share_work(lambda index: 1 // index, 2, 2)


# --- files -------------------------------------------------------------------------------------------------

CALIBRATION_TEXT = """# A comment.
name: ours
constants:
  matmul_efficiency: {bf16: 0.7, fp8: 0.6}
  link_efficiency:
    nvlink: 0.8  # of the nominal
  kernel_gap_seconds: 5.0e-06
sources:
  kernel_gap_seconds: 'assumption'
  link_efficiency: >-
    two
    lines
"""


def test_only_the_fitted_numbers_of_a_file_change():
    """Comments, order and everything else stay; a new field goes to the end of its mapping."""
    numbers = {
        "constants.link_efficiency.nvlink": 0.85,
        "constants.matmul_efficiency.fp8": 0.65,
        "constants.kernel_gap_seconds": 7e-6,
        "constants.new_seconds": 1e-3,
    }

    text = with_numbers(CALIBRATION_TEXT, numbers, {"link_efficiency": "fitted", "new_seconds": "fitted too"})

    assert text.startswith("# A comment.\nname: ours\n")
    assert "    nvlink: 0.85  # of the nominal\n" in text
    assert yaml.safe_load(text) == {
        "name": "ours",
        "constants": {
            "matmul_efficiency": {"bf16": 0.7, "fp8": 0.65},
            "link_efficiency": {"nvlink": 0.85},
            "kernel_gap_seconds": 7e-6,
            "new_seconds": 1e-3,
        },
        "sources": {"kernel_gap_seconds": "assumption", "link_efficiency": "fitted", "new_seconds": "fitted too"},
    }


def test_a_file_without_numbers_gets_them():
    """A framework that had settings alone: factors and their sources are added behind."""
    text = with_numbers("name: old\nsettings:\n  a: true\n", {"factors.b": 0.8}, {"factors.b": "fitted"})

    assert yaml.safe_load(text) == {
        "name": "old",
        "settings": {"a": True},
        "factors": {"b": 0.8},
        "sources": {"factors.b": "fitted"},
    }


def test_a_number_that_has_no_place_is_refused():
    """There is no mapping of this name."""
    with pytest.raises(SpecError, match=r"constants\.spines\.nvlink: is not in the file"):
        with_numbers(CALIBRATION_TEXT, {"constants.spines.nvlink": 1.0}, {})


@pytest.mark.parametrize("name", ["volta", "ampere", "hopper", "blackwell", "hopper-500w", "mofa-b"])
def test_numbers_written_anew_are_the_same(name):
    """One number of a catalog's file written with another value changes that, and nothing else of it."""
    from benchmarks.accuracy.catalog_files import CATALOG

    before = (CATALOG / "calibrations" / f"{name}.yaml").read_text(encoding="utf-8")
    said = yaml.safe_load(before)
    field, value = next((key, value) for key, value in said.get("constants", {}).items() if isinstance(value, float))

    after = yaml.safe_load(with_numbers(before, {f"constants.{field}": 0.123}, {}))

    assert after == {**said, "constants": {**said["constants"], field: 0.123}}
    assert value != 0.123


# --- intervals ---------------------------------------------------------------------------------------------


def test_quantile_of_groups_that_weigh_the_same():
    """Half of the weight lies below the value whose weight's middle is there: one row of 0 against three of 1/3."""
    values = np.array([0.0, 1.0, 1.0, 1.0])

    assert find_weighted_quantile(values, np.array([1.0, 1 / 3, 1 / 3, 1 / 3]), 0.25) == 0.0
    assert find_weighted_quantile(values, np.array([1.0, 1 / 3, 1 / 3, 1 / 3]), 0.75) == 1.0


def errors(device: str, count: int, size: float) -> list[Error]:
    """One error for each group, evenly from -size to size."""
    kind = Kind(device=device, model="dense", scale="one node")
    return [Error(kind=kind, group=(device, n), log=size * (2 * n / (count - 1) - 1)) for n in range(count)]


def test_intervals_fall_back_to_broader_kinds():
    """Nine groups of hopper have their own errors; devices that nobody measured share those of all dense runs."""
    found = spreads([*errors("hopper", 9, 0.1), *errors("volta", 2, 0.5)])

    own = spread_of(found, Kind(device="hopper", model="dense", scale="one node"))
    fallen_back = spread_of(found, Kind(device="ampere", model="dense", scale="one node"))

    assert FEWEST_GROUPS == 8
    assert own.kind == Kind(device="hopper", model="dense", scale="one node")
    assert (fallen_back.kind, fallen_back.groups) == (Kind(model="dense", scale="one node"), 11)


def test_few_groups_widen_what_they_fall_back_to():
    """Two groups of volta, 0.5 off on either side: their interval reaches that far, though most runs are 0.1 off."""
    found = spreads([*errors("hopper", 40, 0.1), *errors("volta", 2, 0.5)])

    few = spread_of(found, Kind(device="volta", model="dense", scale="one node"))

    assert (few.groups, few.lower, few.upper) == (2, -0.5, 0.5)


def test_interval_of_evenly_spread_errors():
    """99 errors from -1 to 1: the level 0.8 * 100 / 99 leaves 0.808 of them inside, hence +-0.808 * 99 / 98."""
    (spread, *_) = spreads(errors("hopper", 99, 1.0))

    assert spread.upper == pytest.approx(0.8 * 100 / 99 * 99 / 98, abs=2e-4)
    assert spread.lower == pytest.approx(-spread.upper)


def test_what_no_fit_had_seen_has_errors_of_its_own():
    """Runs of unseen models are four times as far off; those of seen ones are not told apart from them by mistake."""
    seen = errors("hopper", 20, 0.1)
    unseen = [replace(one, kind=replace(one.kind, unseen="model"), log=4 * one.log) for one in seen]
    found = spreads([*seen, *unseen])
    kind = Kind(device="hopper", model="dense", scale="one node")

    assert spread_of(found, kind).upper < 0.1
    assert spread_of(found, replace(kind, unseen="model")).upper == pytest.approx(
        4 * spread_of(found, kind).upper, abs=1e-3
    )
    assert spread_of(found, replace(kind, device="volta", unseen="model")).kind.unseen == "model"
    assert inside(found, replace(unseen[1], log=0.3))
    assert not inside(found, replace(seen[1], log=0.3))


def test_a_job_is_unseen_by_its_release_and_the_size_of_its_model():
    """A release that ran on such devices and a model of a measured size: nothing; else each, and both."""
    model, other = a_model(), a_model(hidden_size=64)
    release = catalog.framework_of("megatron-bridge-26.04", "a test")
    cluster = replace(a_cluster(architecture="hopper"), framework=release)
    known = replace(intervals(), releases={"hopper": (release.name,)}, models={"hopper": (size_of(model),)})

    assert size_of(model) == (model.hidden_size, 0)
    assert unseen_of(model, cluster, known) == ("nothing",)
    assert unseen_of(model, replace(cluster, framework=replace(release, name=f"{release.name}, changed")), known) == (
        "nothing",
    )
    assert unseen_of(model, replace(cluster, unknown_release="megatron-bridge-27.01"), known) == ("software",)
    assert unseen_of(other, cluster, known) == ("model",)
    assert unseen_of(other, replace(cluster, framework=None), known) == ("software", "model")


def test_an_interval_has_the_wider_ends_of_all_that_is_unseen():
    """Nothing of the test model on its device was measured: other software and other models."""
    interval = step_interval(a_model(), a_cluster(), step_seconds=10.0)
    kinds = [kind_of(a_model(), a_cluster(), unseen=unseen) for unseen in ("software", "model")]
    found = [spread_of(intervals().steps, kind) for kind in kinds]

    assert interval.high_seconds == pytest.approx(10 * np.exp(max(one.upper for one in found)))
    assert interval.low_seconds == pytest.approx(10 * np.exp(min(one.lower for one in found)))
    assert "than those of the fit" in interval.basis


def test_every_prediction_has_an_interval():
    """Around the prediction, also on devices without measured runs of their own; layouts are told apart more finely."""
    model, cluster = a_model(), a_cluster()

    interval = step_interval(model, cluster, step_seconds=10.0)

    assert interval.low_seconds < 10.0 < interval.high_seconds
    assert "measured runs" in interval.basis
    assert 0 < noise_fraction(model, cluster) < 1


def test_a_calibrated_device_has_intervals_of_its_own():
    """Nine left-out errors from -4 to 4 %: level 0.8 * 10 / 9 leaves 1/18 outside on each side: the outermost."""
    own = tuple(0.01 * n for n in range(-4, 5))

    interval = step_interval(a_model(), a_cluster(left_out_errors={"dense": own}), step_seconds=10.0)

    assert interval.low_seconds == pytest.approx(10 * np.exp(-0.04), rel=1e-3)
    assert interval.high_seconds == pytest.approx(10 * np.exp(0.04), rel=1e-3)
    assert interval.basis == "9 runs of test-device"


@pytest.mark.parametrize(
    ("own", "slower"),
    [((), 1.0), ((-0.01, 0.01, 2.0), 1.0), ((np.log(2.0),) * 3, 2.0)],
    ids=["none", "one odd", "twice as slow"],
)
def test_a_few_own_errors_move_the_slow_end(own, slower):
    """Too few for quantiles: by their median alone, and only where that is outside of the interval of others."""
    usual, found = (
        step_interval(a_model(), a_cluster(left_out_errors={"dense": errors}), step_seconds=1.0) for errors in ((), own)
    )

    assert found.low_seconds == usual.low_seconds
    assert found.high_seconds == pytest.approx(slower * usual.high_seconds)
    assert ("3 runs of test-device" in found.basis) == (slower > 1)


def test_stored_intervals_are_of_many_runs():
    """Every kind has enough groups, or as a device's own few is wider than all; there is one for everything."""
    (everything,) = (one for one in intervals().steps if one.kind == Kind())
    stored: tuple[Spread, ...] = (*intervals().steps, *intervals().differences)

    few = [one for one in stored if one.groups < FEWEST_GROUPS and one.kind.unseen == "nothing"]

    assert all(one.upper - one.lower > everything.upper - everything.lower for one in few)
    assert {Kind(unseen=unseen) for unseen in get_args(Unseen)} <= {one.kind for one in intervals().steps}
    assert {Kind()} <= {one.kind for one in intervals().steps} & {one.kind for one in intervals().differences}
    assert 0 < COVERAGE < 1


def a_gap(dimension: str, *, runs: int = 0, beyond: float = 1.0) -> Gap:
    """Something that measured runs have shown as often."""
    return Gap(dimension=dimension, value="a value", runs=runs, sentence="a sentence", beyond=beyond)


def test_intervals_are_wider_where_nothing_was_measured():
    """Three features that no run has: twice as wide; one run or a measured size changes nothing, 10 times it does."""
    model, cluster = a_model(), a_cluster()

    def ends(*gaps: Gap) -> np.ndarray:
        found = step_interval(model, cluster, step_seconds=1.0, gaps=gaps)
        return np.log([found.low_seconds, found.high_seconds])

    three = [a_gap(name) for name in ("optimizer_offload", "cp", "schedule")]

    np.testing.assert_allclose(ends(*three), 2 * ends(), rtol=1e-9)
    np.testing.assert_allclose(ends(a_gap("cp", runs=1)), ends())
    np.testing.assert_allclose(ends(a_gap("num_devices", runs=5, beyond=10.0)), np.sqrt(2) * ends(), rtol=1e-9)
    assert "3 things that no run shows" in step_interval(model, cluster, step_seconds=1.0, gaps=three).basis


def test_a_run_without_tuning_may_take_more_than_twice_as_long():
    """One more error of the slow end, ln 2.25, beside that of comparable runs; the fast end stays."""
    usual = step_interval(a_model(), a_cluster(), step_seconds=1.0)
    untuned = step_interval(a_model(), a_cluster(), step_seconds=1.0, gaps=[a_gap("tuning", runs=3)])

    assert untuned.low_seconds == usual.low_seconds
    assert np.log(untuned.high_seconds) == pytest.approx(np.hypot(np.log(usual.high_seconds), np.log(2.25)))
    assert "without tuning" in untuned.basis


def test_errors_of_no_population_are_refused():
    """A device that names another kind of runs says which there are."""
    own = {"base": "h100-80gb-sxm", "name": "mine", "left_out_errors": {"sparse": [0.1]}}

    with pytest.raises(SpecError, match="left_out_errors") as caught:
        load(
            a_document("llama3-8b", "8xh100-80gb-sxm", batch=16, sequence=4096, tokens=1e9)
            | {"cluster": {"device": own, "num_devices": 8}}
        )
    assert "moe" in str(caught.value)


def test_own_errors_count_for_runs_of_their_population():
    """Runs of dense models say nothing of how slow untuned runs with experts are, nor the other way round."""
    tuning = [a_gap("tuning", runs=3)]
    dense, slow = {"dense": (0.0,) * 9}, {"untuned": (0.8,) * 9}

    def interval(errors, gaps=()):
        return step_interval(a_model(), a_cluster(left_out_errors=errors), step_seconds=1.0, gaps=gaps)

    assert interval(dense, tuning) == interval({}, tuning)
    assert interval(slow) == interval({})
    assert interval(slow, tuning).high_seconds == pytest.approx(np.exp(0.8))


@in_one_case(
    ("changes", "is_plain"),
    [
        ({}, True),
        ({"mbs": 2}, False),
        ({"ep": 1}, False),
        ({"token_dispatcher": TokenDispatcher.DEEPEP}, False),
        ({"cuda_graphs": CudaGraphs.of("attn")}, False),
    ],
)
def test_ordinary_runs_with_experts_have_none_of_what_makes_recipes_fast(changes, is_plain):
    """All-to-all, micro-batches of one sequence, no graphs: each alone is what tuned recipes have too."""
    plain = {"ep": 4, "dp": 4, "mbs": 1, "token_dispatcher": TokenDispatcher.ALLTOALL, "cuda_graphs": CudaGraphs.NONE}

    gaps = list_gaps(the_facts(MOE), a_strategy(**(plain | changes)))

    assert any(gap.dimension == "tuning" for gap in gaps) is is_plain


def test_an_unseen_release_never_narrows_an_interval():
    """Its errors stand beside those of comparable runs: the wider ends count."""
    release = catalog.framework_of("megatron-bridge-26.04", "a test")
    cluster = replace(a_cluster(architecture="hopper"), framework=release)
    seen = step_interval(a_model(), cluster, step_seconds=1.0)
    unseen = step_interval(a_model(), replace(cluster, unknown_release="megatron-bridge-27.01"), step_seconds=1.0)

    assert unseen.low_seconds <= seen.low_seconds
    assert unseen.high_seconds >= seen.high_seconds
