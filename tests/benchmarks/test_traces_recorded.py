"""Recorded steps: configurations that can run, an index that is read back, folders that are none."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.small_transformers.configurations import weight_shapes
from benchmarks.traces.__main__ import main, recorded_lines
from benchmarks.traces.predicting import lines as prediction_lines
from benchmarks.traces.predicting import predictions
from benchmarks.traces.recorded.configurations import TracedConfiguration, traced_configurations, traced_job_of
from benchmarks.traces.recorded.folder import Index, Recording, Stay, Steps, read_recorded, write_index
from costmodel.errors import SpecError
from planner.jobs.problem import load
from tests.benchmarks.test_small_transformers import needs_torch, on_two_ranks
from tests.cases import in_one_case

SMALL = TracedConfiguration(
    name="small",
    num_layers=2,
    hidden_size=32,
    num_heads=4,
    num_kv_heads=4,
    ffn_hidden_size=48,
    vocab_size=64,
    sequence_length=16,
    mbs=1,
    num_microbatches=2,
)


def steps(*by_rank: tuple[float, ...], others: tuple[float, ...], pace: float = 0.04) -> Steps:
    """Some steps of each rank."""
    return Steps(seconds=by_rank, processor=by_rank, others=others, pace=(pace,) * len(by_rank))


def stay(plain: Steps, profiled: Steps, number: int = 1) -> Stay:
    """A round of as many ranks as the steps are of."""
    ranks = range(len(plain.seconds))
    return Stay(
        began=1e9 + number,
        plain=plain,
        profiled=profiled,
        traces=tuple(f"small/round-{number}-rank-{rank}.json.gz" for rank in ranks),
        peak_bytes=tuple(300 * 2**20 + number for _ in ranks),
        idle_bytes=tuple(200 * 2**20 for _ in ranks),
    )


QUIET = stay(steps((1.0, 1.2), others=(0.0, 0.1)), steps((1.3,), others=(0.2,)))
LOUD = stay(steps((1.1, 4.0), others=(0.05, 0.9)), steps((1.1,), others=(0.8,)), number=2)


def a_folder(folder: Path, *stays: Stay, one: TracedConfiguration = SMALL) -> Index:
    """An index, written, and the files that it names."""
    index = Index(
        device="a processor",
        software="torch",
        num_cores=1,
        recordings={one.name: Recording(configuration=one, stays=stays)},
    )
    write_index(folder, index)
    (folder / "small").mkdir(exist_ok=True)
    for trace in (trace for each in stays for trace in each.traces):
        (folder / trace).touch()
    return index


class TestConfigurations:
    def test_they_cover_what_is_predicted(self):
        """At least 24: one rank, two data-parallel ones, a pipeline; each change by itself from some other."""
        every = traced_configurations()

        assert len(every) >= 24
        assert {(one.dp, one.pp) for one in every} == {(1, 1), (2, 1), (1, 2)}
        for ranks in ((1, 1), (2, 1), (1, 2)):
            of_them = [one for one in every if (one.dp, one.pp) == ranks]
            assert {one.num_layers for one in of_them} == {2, 4, 8}
            assert {one.sequence_length for one in of_them} == {256, 512}
            assert {one.hidden_size for one in of_them} == {256, 384}
            assert len({one.num_microbatches for one in of_them}) > 1
            assert {one.annotations for one in of_them} >= {"all", "none"}

    @in_one_case("one", traced_configurations(), ids=lambda one: one.name)
    def test_each_is_a_job_of_the_planner(self, one):
        """With as many ranks and layers."""
        problem = load(traced_job_of(one, "h100-80gb-sxm", precision="bf16"), name=one.name)

        assert problem.facts.model.num_layers == one.num_layers
        assert problem.facts.cluster.num_devices == one.num_ranks

    def test_stages_have_all_layers(self):
        """Four layers on two stages: 0 and 1, 2 and 3."""
        one = replace(SMALL, num_layers=4, pp=2)

        assert [list(one.layers_of(stage)) for stage in (0, 1)] == [[0, 1], [2, 3]]

    @in_one_case(
        ("change", "where"),
        [
            ({"pp": 2, "num_layers": 3}, r"small\.pp"),
            ({"pp": 2, "dp": 2}, r"small\.pp"),
            ({"num_heads": 3}, r"small\.num_heads"),
            ({"recompute": "full"}, "small"),
            ({"annotations": "some"}, r"annotations"),
            ({}, "small twice"),  # files are called by their names
        ],
    )
    def test_what_cannot_run_is_refused(self, tmp_path, change, where):
        """By name."""
        path = tmp_path / "some.yaml"
        names = ("name", "num_layers", "hidden_size", "num_heads", "num_kv_heads", "ffn_hidden_size", "vocab_size")
        entry = {name: getattr(SMALL, name) for name in (*names, "sequence_length", "mbs")} | change
        path.write_text(json.dumps([entry] * (1 if change else 2)), encoding="utf-8")

        with pytest.raises(SpecError, match=where):
            traced_configurations(path)


class TestFolder:
    def test_an_index_is_read_back(self, tmp_path):
        """As it was written."""
        index = a_folder(tmp_path, QUIET, LOUD)

        assert read_recorded(tmp_path) == index

    def test_quiet_steps_count(self, tmp_path):
        """Of four steps the three during which others had little: 1.0, 1.1 and 1.2 s, not the 4.0 s."""
        index = a_folder(tmp_path, LOUD, QUIET)
        plain = index.plain("small")

        assert (plain.seconds, plain.num_steps) == (1.1, 3)
        assert plain.spread == pytest.approx(0.05 / 1.1)
        assert plain.others == pytest.approx(0.05)
        assert index.recordings["small"].quietest == QUIET

    def test_steps_of_a_slow_machine_are_scaled_by_its_pace(self, tmp_path):
        """A reference step of 60 instead of 40 ms: 1.5 s are 1.0 s. At the median pace of both, 50 ms, 1.25 s each."""
        slow = stay(steps((1.5, 1.5), others=(0.0, 0.0), pace=0.06), steps((1.5,), others=(0.0,)))
        fast = stay(steps((1.0, 1.0), others=(0.0, 0.0), pace=0.04), steps((1.0,), others=(0.0,)), number=2)
        index = a_folder(tmp_path, slow, fast)

        assert index.pace == pytest.approx(0.05)
        assert index.plain("small").seconds == pytest.approx(1.25)
        assert index.plain("small").spread == pytest.approx(0.0)
        assert index.plain("small").unscaled_seconds == 1.25

    def test_ranks_wait_for_one_another(self):
        """A step of 1.0 s on one and 1.2 s on the other rank is one of 1.1 s."""
        assert steps((1.0,), (1.2,), others=(0.0,)).over_ranks == pytest.approx((1.1,))

    def test_a_folder_without_index_says_how_to_record_one(self, tmp_path):
        """With the command."""
        with pytest.raises(SpecError, match=r"cannot be read.*--record"):
            read_recorded(tmp_path)

    @in_one_case("text", ["", "{", "[]", '{"device": "x"}', "\x00"])
    def test_what_is_no_index_is_refused(self, tmp_path, text):
        """Whatever it is."""
        (tmp_path / "index.json").write_text(text, encoding="utf-8")

        with pytest.raises(SpecError, match=r"index\.json"):
            read_recorded(tmp_path)

    def test_a_missing_trace_is_named(self, tmp_path):
        """By its path."""
        a_folder(tmp_path, QUIET)
        (tmp_path / "small" / "round-1-rank-0.json.gz").unlink()

        with pytest.raises(SpecError, match=r"round-1-rank-0\.json\.gz: is named by the index"):
            read_recorded(tmp_path)

    @pytest.mark.parametrize(
        ("stays", "problem"),
        [
            ((), "has no rounds"),
            ((QUIET,), "not one entry for each of 2 ranks"),
            ((stay(steps((1.0,), (1.0, 1.1), others=(0.0,)), steps((1.0,), (1.0,), others=(0.0,))),), "as many steps"),
        ],
    )
    def test_what_does_not_fit_together_is_refused(self, tmp_path, stays, problem):
        """Rounds, ranks and steps."""
        a_folder(tmp_path, *stays, one=replace(SMALL, pp=2))

        with pytest.raises(SpecError, match=problem):
            read_recorded(tmp_path)

    def test_it_is_printed(self, tmp_path):
        """A line for each configuration; of two rounds, three steps count."""
        a_folder(tmp_path, QUIET, LOUD)
        *_, line = recorded_lines(tmp_path)

        assert line.split() == ["small", "1100.0", "1100.0", "4.5%", "5%", "3", "+9.1%", "300"]


class TestPredictions:
    def test_a_prediction_is_scaled_by_the_base(self, tmp_path):
        """
        Steps of 1.1 s replay as 1.3 s; twice the layers as 2.6 s, which makes 2.2 s.

        Measured are 2.0 s: 10 % too much.
        """
        index = a_folder(tmp_path, QUIET, LOUD)
        deeper = replace(SMALL, name="deeper", num_layers=4)
        own = stay(steps((2.0,), others=(0.0,)), steps((2.2,), others=(0.0,)))
        others = {"deeper": Recording(configuration=deeper, stays=(own,))}
        index = replace(index, recordings={**index.recordings, **others})
        (row,) = predictions(index, tmp_path, "small", lambda _, __, target: 0.65 * target.num_layers)

        assert (row.target, row.changed) == ("deeper", ("layers",))
        assert row.seconds == pytest.approx(2.2)
        assert row.error == pytest.approx(0.1)
        *_, whole = prediction_lines([row])
        assert whole.split() == ["all", "1", "10.0%", "10.0%", "10.0%", "+10.0%"]

    def test_a_base_that_was_not_recorded_is_refused(self, tmp_path):
        """With a name that is close."""
        index = a_folder(tmp_path, QUIET)

        with pytest.raises(SpecError, match=r"smal: was not recorded.*small"):
            predictions(index, tmp_path, "smal", lambda *_: 1.0)


@needs_torch
class TestSteps:
    def test_a_pipeline_has_the_gradients_of_one_rank(self, tmp_path):
        """Each stage of its own weights, over gloo."""
        assert_same_gradients(tmp_path, replace(SMALL, pp=2), SMALL)

    def test_data_parallel_ranks_have_the_gradients_of_one_with_both_batches(self, tmp_path):
        """Micro-batches of both, averaged by DistributedDataParallel."""
        assert_same_gradients(tmp_path, replace(SMALL, dp=2), replace(SMALL, num_microbatches=4))


def assert_same_gradients(folder: Path, spread: TracedConfiguration, alone: TracedConfiguration) -> None:
    """Of all weights, whichever rank has them."""
    import torch

    by_rank = on_two_ranks(gradients_of, str(folder / "store"), spread)
    expected = gradients_of(0, "", alone)
    assert {name for found in by_rank for name in found} == set(weight_shapes(alone)) == expected.keys()
    for name, gradient in (pair for found in by_rank for pair in found.items()):
        assert torch.allclose(torch.tensor(expected[name]), torch.tensor(gradient), atol=1e-6)


def gradients_of(rank: int, store: str, one: TracedConfiguration) -> dict[str, list]:
    """Gradients that a rank has, as numbers, which processes can hand over; without a store, it is alone."""
    from torch import distributed

    from benchmarks.traces.recorded.recording import RankTraining

    if store:
        distributed.init_process_group("gloo", rank=rank, world_size=2, store=distributed.FileStore(store, 2))
    training = RankTraining(one, rank)
    training.gradients()
    if store:
        distributed.destroy_process_group()
    weights = training.module.module.weights if one.dp > 1 else training.module.weights
    return {name: weight.grad.tolist() for name, weight in weights.items()}


MISSING = {**dict.fromkeys(("replay", "speed", "recorded"), "SKIPPED: "), "replay --traces none": "no folder none"}


@pytest.mark.parametrize(("options", "answer"), MISSING.items())
def test_a_part_without_its_traces_is_not_ok(options, answer, monkeypatch, capsys):
    """It says what it needs; a run of nothing else ends with 1, and a folder that is not there with 2."""
    monkeypatch.setattr("sys.argv", ["traces", "--only", *options.split()])

    assert main() == (1 if answer == "SKIPPED: " else 2)
    said = "".join(capsys.readouterr())
    assert answer in said
    assert "ok" not in said.replace(",", " ").split()
