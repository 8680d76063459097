"""The fit of the catalog: which constants the rows may determine, and what is written of the others."""

from __future__ import annotations

from collections import Counter
from shutil import copytree

import pytest
import yaml

from benchmarks.accuracy.catalog_files import CATALOG, MARK, write_catalog
from benchmarks.accuracy.fit import FEWEST_OTHERS, chosen_constants, rows_of_each, several_sources_tell, timed_cases
from costmodel import catalog
from planner.measure.calibrate.constants import Constant, constants, prior_factors
from tests.builders_runs import known, predicted, project_predictions, rows_of

BRIDGE = "megatron-bridge-26.04"


def constant_of(framework: str, field: str) -> Constant:
    """A framework's constant."""
    (found,) = [one for one in constants(frameworks=True) if (one.framework, one.fields[0]) == (framework, field)]
    return found


# --- which constants are fitted ----------------------------------------------------------------------------


def test_a_frameworks_constant_that_one_source_tells_alone_stays_at_its_prior(tmp_path):
    """Ten rows of one paper and two of another: two are fewer than three; with a third it is fitted."""
    constant = constant_of(BRIDGE, "matmul_efficiency@hopper")
    rows = [{"id": str(n), "cluster.framework": BRIDGE, "source": "first"} for n in range(10)]
    others = [{**row, "id": f"other {row['id']}", "source": "second"} for row in rows[:FEWEST_OTHERS]]
    timed = predicted(tmp_path, *rows, *others)

    assert FEWEST_OTHERS == 3
    assert not several_sources_tell(constant, timed[:10])
    assert not several_sources_tell(constant, timed[:12])
    assert several_sources_tell(constant, timed)
    assert constant not in chosen_constants(timed[:12], frameworks=True)
    assert constant in chosen_constants(timed, frameworks=True)


def test_releases_with_the_same_kernels_tell_of_one_constant(tmp_path):
    """Megatron-Core 0.16 has the kernels of Megatron-Bridge 26.04; Megatron-Core 0.14 has others."""
    constant = constant_of(BRIDGE, "matmul_efficiency@hopper")

    def log_event(framework: str) -> bool:
        rows = ({"id": str(n), "cluster.framework": framework, "source": f"paper {n}"} for n in range(5))
        return several_sources_tell(constant, predicted(tmp_path, *rows))

    assert log_event("megatron-core-0.16")
    assert not log_event("megatron-core-0.14")


def test_rows_of_another_architecture_tell_nothing_of_a_constant(tmp_path):
    """The constant is of Hopper, the rows are of Blackwell."""
    rows = (
        {"id": str(n), "cluster.framework": BRIDGE, "cluster.device": "gb200", "source": f"paper {n}"} for n in range(5)
    )

    timed = predicted(tmp_path, *rows)

    assert not several_sources_tell(constant_of(BRIDGE, "matmul_efficiency@hopper"), timed)


def test_constants_of_calibrations_are_always_fitted():
    """They have many sources, and priors where they have none."""
    assert set(chosen_constants([], frameworks=True)) == set(constants())


def test_rows_are_counted_by_what_they_tell_of(tmp_path):
    """An H200 has Hopper's calibration; its framework's kernels are Megatron-Bridge's."""
    timed = predicted(tmp_path, {}, {"id": "b", "cluster.device": "h200"})

    assert rows_of_each(timed) == Counter({"hopper": 2, f"hopper {timed[0].facts.model.size}": 2, BRIDGE: 2})


def test_only_rows_with_a_step_time_are_fitted(tmp_path):
    """Neither what ran out of memory, nor memory alone, nor what was refused."""
    rows = rows_of(
        tmp_path,
        {"id": "a"},
        {"id": "oom", "kind": "oom", "step_seconds": ""},
        {"id": "memory", "step_seconds": ""},
        {"id": "refused", "strategy.tp": "3"},
    )

    assert [one.run.id for one in timed_cases(rows, known())] == ["a"]


# --- what is written ---------------------------------------------------------------------------------------


def test_fitted_constants_are_written_with_their_origin(tmp_path):
    """One of a calibration in its units, one of a framework as a factor; other files stay as they are."""
    copytree(CATALOG, tmp_path / "catalog")
    (matmul,) = [one for one in constants() if one.name == "matmul_efficiency.bf16 of hopper"]
    factor = constant_of(BRIDGE, "matmul_efficiency@hopper")

    write_catalog(
        [matmul, factor], [0.5, 1.25], [0.02, 0.03], Counter(hopper=7), assumed={}, folder=tmp_path / "catalog"
    )

    hopper = yaml.safe_load((tmp_path / "catalog" / "calibrations" / "hopper.yaml").read_text())
    bridge = yaml.safe_load((tmp_path / "catalog" / "frameworks" / f"{BRIDGE}.yaml").read_text())
    assert [hopper["constants"]["matmul_efficiency"][dtype] for dtype in ("bf16", "fp16")] == [0.5, 0.5]
    assert hopper["sources"]["matmul_efficiency"].startswith(f"{MARK}: 16 bits: prior 0.7 +- 8%")
    assert "after 7 rows +- 2.0%" in hopper["sources"]["matmul_efficiency"]
    assert bridge["factors"]["matmul_efficiency@hopper"] == 1.25
    assert bridge["sources"]["factors.matmul_efficiency@hopper"].endswith("no rows: the prior +- 3.0%")
    changed = [
        path.name
        for path in (tmp_path / "catalog").rglob("*.yaml")
        if path.read_text() != (CATALOG / path.relative_to(tmp_path / "catalog")).read_text()
    ]
    assert sorted(changed) == ["hopper.yaml", f"{BRIDGE}.yaml"]


def test_a_factor_that_an_earlier_fit_wrote_does_not_stay_where_it_is_not_fitted(tmp_path):
    """The others were fitted with 1 in its place: shipped beside them, 0.94 would be nobody's fit."""
    copytree(CATALOG, tmp_path / "catalog")
    path = tmp_path / "catalog" / "frameworks" / "nemo-24.07.yaml"
    before = path.read_text()
    path.write_text(before.replace("sources:", "factors:\n  matmul_efficiency@hopper: 0.9381\nsources:"))
    stale = constant_of("nemo-24.07", "matmul_efficiency@hopper")
    silent = constant_of("nemo-24.07", "attention_efficiency@hopper")

    write_catalog([], [], [], Counter(), assumed={stale: 1.0, silent: 1.0}, folder=tmp_path / "catalog")

    written = yaml.safe_load(path.read_text())
    assert written["factors"] == {"matmul_efficiency@hopper": 1.0}
    assert "not fitted" in written["sources"]["factors.matmul_efficiency@hopper"]
    assert written["name"] == "nemo-24.07"


@pytest.mark.slow
def test_factors_in_the_catalog_are_those_that_several_sources_tell():
    """Of a constant that is not fitted, a framework's file has the prior or nothing."""
    timed = [one for one in project_predictions() if one.run.step_seconds is not None]
    fitted, priors = set(chosen_constants(timed, frameworks=True)), prior_factors()
    others = [one for one in constants(frameworks=True) if one.framework and one not in fitted]

    assert others
    for constant in others:
        factors = catalog.framework(constant.framework).factors
        for field in constant.fields:
            assumed = priors.get(constant.framework, {}).get(field, 1.0)
            assert factors.get(field, 1.0) == pytest.approx(assumed), constant.name


def test_every_factor_in_the_catalog_is_a_constant_of_the_table():
    """A factor that no fit would ever write again is no fit's."""
    fields = {(one.framework, field) for one in constants(frameworks=True) for field in one.fields}
    entries = (catalog.framework(name) for name in catalog.frameworks())

    assert {(one.kernels_of or one.name, field) for one in entries for field in one.factors} <= fields
