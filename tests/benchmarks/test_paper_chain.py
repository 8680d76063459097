"""The whole chain from sampled operators to a step: its time line, its parts, its tables."""

from __future__ import annotations

import csv
import re

import numpy as np
import pytest

from benchmarks.operators.groups import DATA, linear_groups, read_linear_layers
from benchmarks.paper_chain import __main__ as command
from benchmarks.paper_chain import chain, report
from benchmarks.paper_chain import operators as sampling
from benchmarks.paper_chain.runs import COMPONENTS, STEP, measured_runs
from costmodel import catalog
from costmodel.errors import SpecError
from costmodel.lowering import layer_operators
from costmodel.lowering.shape import layer_shape
from costmodel.pipelines.simulator import simulate
from costmodel.strategy import Schedule
from costmodel.timing.sampled_source import Rates, SampledTimes
from costmodel.timing.work import MatmulSize, Operator
from planner.measure.calibrate.constants import table as calibrated
from tests.builders_runs import project_table
from tests.cases import in_one_case


def rated():
    """Operators of a machine at plain rates, nothing learned: 100 TFLOP/s, 1 TB/s."""
    rates = Rates(flops_per_second=1e14, bytes_per_second=1e12, smallest_seconds=0.0)
    times = SampledTimes(rates=rates, processes=(), lowest=np.zeros(9), highest=np.full(9, 40.0))
    return sampling.SampledOperators(
        linears={(name, each): times for name in sampling.LINEARS for each in sampling.PASSES},
        memory_bandwidth=1e12 / sampling.STREAMING_FRACTION,
        attention_flops=1e14,
        num_processors=108,
    )


NETWORK = sampling.SampledNetwork(
    bytes_per_second={(kind, crosses): 1e10 for kind in ("all_reduce", "all_gather", "send") for crosses in (0, 1)}
)


@pytest.fixture(scope="module", autouse=True)
def table_read_once():
    """The table of measured runs is read once for all tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("benchmarks.paper_chain.runs.read_table", project_table)
        yield


@pytest.fixture(scope="module")
def runs():
    """The ten runs."""
    return measured_runs()[0]


def parts(run, **changes):
    """A run's parts at plain rates."""
    given = {"partitions_activations": False, "host_seconds": 0.0, **changes}
    return chain.composed(run.case.facts, run.case.strategy, rated(), NETWORK, **given)


# --- the time line -----------------------------------------------------------------------------------------


def instructions(stage, stages, microbatches):
    """A stage's meetings and passes as DeepSpeed's ``TrainSchedule`` lists them, each parity with its own formula."""

    def pass_of(turn):
        half, odd = turn // 2, turn % 2
        if odd == stage % 2:
            return True, half - stage // 2
        return False, half - stages + (stage + 1) // 2 if not odd else half - stages + 1 + stage // 2

    def is_valid(turn):
        return turn >= 0 and 0 <= pass_of(turn)[1] < microbatches

    for turn in range(2 * (microbatches + stages - 1)):
        is_forward = pass_of(turn)[0]
        other = stage - 1 if is_forward else stage + 1
        if 0 <= other < stages:
            yield from [("meet", other)] * (is_valid(turn) + is_valid(turn - 1))
        if is_valid(turn):
            yield ("forward" if is_forward else "backward", stage)


def played(forward, backward, hop, microbatches):
    """Ends of stages whose instructions are played one by one: a meeting begins when both are there."""
    stages = len(forward)
    waiting = [list(instructions(stage, stages, microbatches)) for stage in range(stages)]
    clock = [0.0] * stages
    while any(waiting):
        for stage in range(stages):
            while waiting[stage] and waiting[stage][0][0] != "meet":
                clock[stage] += {"forward": forward, "backward": backward}[waiting[stage].pop(0)[0]][stage]
        for stage in range(1, stages):
            if waiting[stage][:1] == [("meet", stage - 1)] and waiting[stage - 1][:1] == [("meet", stage)]:
                clock[stage] = clock[stage - 1] = max(clock[stage], clock[stage - 1]) + hop
                waiting[stage].pop(0), waiting[stage - 1].pop(0)
    return clock


class TestTimeLine:
    """DeepSpeed's 1F1B, whose neighbours meet."""

    @in_one_case("stages", [1, 2, 3, 4, 7])
    @in_one_case("microbatches", [1, 3, 16])
    def test_instructions_played_one_by_one_end_at_the_same_times(self, stages, microbatches):
        """Random stages and transfers."""
        draw = np.random.default_rng(stages * 100 + microbatches)
        forward, backward, hop = draw.random(stages), 3 * draw.random(stages), 0.2 * draw.random()
        ends = chain.last_backward_ends(forward, backward, hop_seconds=hop, num_microbatches=microbatches)

        assert ends == pytest.approx(played(forward, backward, hop, microbatches))

    @in_one_case("stages", [1, 2, 4, 8])
    def test_equal_stages_without_transfers_are_plain_1f1b(self, stages):
        """(m + p - 1) (F + B), a stage a backward pass after the next; the cost model agrees."""
        ends = chain.last_backward_ends([1.0] * stages, [3.0] * stages, hop_seconds=0.0, num_microbatches=16)
        timeline = simulate(
            Schedule.ONE_F_ONE_B,
            forward=np.full(stages, 1.0),
            backward=np.full(stages, 3.0),
            weight=np.zeros(stages),
            pp=stages,
            vpp=1,
            num_microbatches=16,
        )

        assert ends.max() == timeline.seconds == 4.0 * (16 + stages - 1)
        assert np.diff(ends) == pytest.approx(-3.0)


# --- sampled times -----------------------------------------------------------------------------------------


class TestCollectives:
    """Rates of samples as times."""

    def test_bytes_on_the_wire_over_who_sends_at_once(self):
        """Rings across nodes, a mesh inside a node, a single sender."""
        seconds = NETWORK.collective_seconds

        assert seconds("all_reduce", 8e10, 8, 8) == pytest.approx(2 * 7 / 8 * 8)
        assert seconds("all_reduce", 8e10, 8, 2) == pytest.approx(2 * 7 / 8 * 8 / 4)
        assert seconds("all_gather", 4e10, 4, 1) == pytest.approx(3 / 4 * 4 / 3)
        assert seconds("send", 1e10, 2, 2) == pytest.approx(1.0)
        assert seconds("all_reduce", 1e10, 1, 1) == 0.0

    @pytest.mark.parametrize(
        ("cluster", "kind", "low", "high"),
        [
            ("Perlmutter", ("all_reduce", False), 60e9, 80e9),
            ("Perlmutter", ("all_reduce", True), 1.1e9, 1.3e9),
            ("Vista", ("all_reduce", True), 45e9, 50e9),
            ("Vista", ("send", True), 33e9, 42e9),
        ],
    )
    def test_rates_of_the_clusters(self, cluster, kind, low, high):
        """NVLinks of a mesh, a network without its plug-in, InfiniBand of 50 GB/s."""
        assert low < sampling.sampled_network(cluster).bytes_per_second[kind] < high

    def test_what_was_not_sampled_is_refused(self):
        """A cluster that the table lacks; a node of one device."""
        with pytest.raises(SpecError, match="no hardware starts with 'Frontier'"):
            sampling.sampled_network("Frontier")
        with pytest.raises(SpecError, match="no samples of all_reduce inside a node"):
            sampling.sampled_network("Vista").collective_seconds("all_reduce", 1e6, 2, 1)


class TestOperators:
    """Linears by samples, all else by what is known without the machine."""

    def test_a_linear_takes_its_matmuls_and_adds_to_its_gradients(self):
        """Twice the work backward, and six bytes per weight."""
        linear = Operator(name="up", kind="matmul", size=MatmulSize(m=4096, n=4096, k=4096), parameters=1e9)
        forward = 2 * 4096**3 / 1e14

        assert rated().forward_seconds(linear) == pytest.approx(forward)
        assert rated().backward_seconds(linear) == pytest.approx(2 * forward + sampling.ACCUMULATED_BYTES * 1e9 / 1e12)

    def test_scores_are_slower_than_copies(self):
        """By their share of the bandwidth; gaps beside."""
        copy, scores = (Operator(name="some", kind=kind, bytes=1e12, kernels=0) for kind in ("copy", "scores"))

        assert rated().forward_seconds(copy) == pytest.approx(1.0)
        assert rated().forward_seconds(scores) == pytest.approx(sampling.STREAMING_FRACTION / sampling.SCORES_FRACTION)

    def test_fractions_are_those_of_before_any_measured_run(self):
        """The centres of the calibration's priors."""
        priors = {
            (field, name): entry.prior[name] if isinstance(entry.prior, dict) else entry.prior
            for entry in calibrated()["calibrations"]
            for field in entry.fields
            for name in entry.of
            if entry.prior is not None
        }

        assert {
            name: priors["attention_efficiency", name] for name in sampling.ATTENTION_FRACTION
        } == sampling.ATTENTION_FRACTION
        assert priors["score_efficiency", "ampere"] == sampling.SCORES_FRACTION
        assert priors["kernel_gap_seconds", "ampere"] == sampling.GAP_SECONDS

    def test_the_streaming_fraction_is_that_of_large_additions(self):
        """On an A100, over its datasheet."""
        table = read_linear_layers(DATA / "linear_layers.csv.gz")
        group = next(one for one in linear_groups(table[table.device == "a100"]) if one.name == "residual_add")
        large = group.shapes.nbytes > 1e8
        reached = np.median(group.shapes.nbytes[large] / group.seconds[large])

        assert reached / catalog.device("a100-80gb-sxm").memory_bandwidth == pytest.approx(
            sampling.STREAMING_FRACTION, abs=5e-3
        )
        assert large.sum() == 1664

    def test_samples_of_hidden_sizes_are_left_out(self, monkeypatch):
        """Of every linear, both passes; the others stay."""
        seen = []
        monkeypatch.setattr(
            "benchmarks.paper_chain.operators.learn_operator",
            lambda shapes, seconds, families: seen.append(set(families)),
        )
        sampling.learned_linears.__wrapped__("GH200-120GB (Vista)", frozenset({4096, 6144}))

        assert len(seen) == len(sampling.LINEARS) * len(sampling.PASSES)
        assert all(not families & {"4096", "6144"} and len(families) == 11 for families in seen)

    @pytest.mark.slow
    def test_a_device_without_samples_is_refused(self, runs):
        """By its name."""
        with pytest.raises(SpecError, match="'H100' has none of linear1 forward"):
            sampling.sampled_operators(runs[0].case.facts.cluster.device, "H100")


# --- composition -------------------------------------------------------------------------------------------


class TestComposition:
    """Encoders, stages and a step."""

    def test_an_encoder_is_its_operators_and_sums(self, runs):
        """GPT-NeoX-20B: one sum forward; backward the forward pass again, and two sums."""
        run = runs[0]
        facts, strategy = run.case.facts, run.case.strategy
        shape = layer_shape(
            facts.model, facts.cluster, facts.workload, tp=4, cp=1, ep=1, etp=1, mbs=4, sequence_parallel=False
        )
        operators = layer_operators(facts.model.layers[0], shape)
        summed = 2 * 3 / 4 * 2 * 4 * 2048 * 6144 / (3 * 1e10)
        found = parts(run)
        forward = sum(rated().forward_seconds(one) for one in operators) + summed
        backward = sum(rated().backward_seconds(one) for one in operators) + 2 * summed

        assert (int(strategy.tp), found.num_microbatches) == (4, 16)
        assert found.tp_allreduce == pytest.approx(summed)
        assert found.encoder_forward == pytest.approx(forward)
        assert found.encoder_backward == pytest.approx(forward + backward)

    def test_stages_have_layers_and_ends(self, runs):
        """11, 12, 12 and 9 layers; the middle has nothing else."""
        found = parts(runs[0])

        assert found.forward[1:3] == pytest.approx(12 * found.encoder_forward)
        assert found.backward[1:3] == pytest.approx(12 * found.encoder_backward)
        assert found.forward[0] > 11 * found.encoder_forward
        assert found.forward[3] > 9 * found.encoder_forward

    def test_gradients_and_weights_of_a_stage(self, runs):
        """Twelve layers of 12 h^2 parameters and some, in 16 bits, on a quarter of the ranks; an eighth is updated."""
        found, weights = parts(runs[0]), 12 * 12 * 6144**2 / 4

        assert found.dp_allreduce[1] == pytest.approx(2 * 7 / 8 * 2 * weights / 1e10, rel=1e-3)
        assert found.dp_allgather == pytest.approx(found.dp_allreduce / 2)
        assert found.adam[1] == pytest.approx(chain.UPDATE_BYTES * weights / 8 / 1e12, rel=1e-3)

    def test_the_host_and_gathered_inputs_make_encoders_longer(self, runs):
        """The host once forward and twice backward; a gather only backward."""
        plain, hosted = parts(runs[0]), parts(runs[0], host_seconds=chain.HOST_SECONDS, partitions_activations=True)

        assert hosted.encoder_forward - plain.encoder_forward == pytest.approx(chain.HOST_SECONDS)
        assert hosted.encoder_backward - plain.encoder_backward == pytest.approx(
            2 * chain.HOST_SECONDS + plain.tp_gather
        )

    def test_a_step_by_hand(self):
        """Two stages, one micro-batch, no transfers: the second one waits for the first one's gradients."""
        found = chain.Parts(
            encoder_forward=1.0,
            encoder_backward=2.0,
            forward=np.array([1.0, 1.0]),
            backward=np.array([2.0, 2.0]),
            tp_allreduce=0.0,
            tp_gather=0.0,
            hop=0.0,
            dp_allreduce=np.array([0.5, 0.25]),
            dp_allgather=np.array([0.1, 0.2]),
            adam=np.array([0.01, 0.02]),
            num_microbatches=1,
        )

        assert found.ready == pytest.approx([6.5, 4.25])
        assert found.update == pytest.approx([0.11, 2.25 + 0.22])
        assert found.step == pytest.approx(6.5 + 0.22) == found.components()[STEP]

    def test_measured_parts_put_together_come_close_to_measured_steps(self, runs):
        """What is left of the error is that of the parts: 1.5 % in the mean, at most 4 %."""
        errors = [
            chain.from_components(
                run.measured, pp=int(run.case.strategy.pp), num_microbatches=parts(run).num_microbatches
            ).step
            / run.measured[STEP]
            - 1
            for run in runs
        ]

        assert np.mean(np.abs(errors)) < 0.015
        assert np.max(np.abs(errors)) < 0.04


# --- the tables --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def found():
    """All runs, predicted once; nothing is learned, which takes minutes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "sampled_operators", lambda device, gpu, *, without: rated())
        return list(report.predicted(*measured_runs()))


class TestTables:
    """What the command prints."""

    @pytest.fixture(autouse=True)
    def predicted_once(self, monkeypatch, found):
        """The command prints these predictions of the runs that it chooses."""
        of_run = {one.run.folder: one for one in found}
        monkeypatch.setattr(command, "predicted", lambda runs, _: [of_run[one.folder] for one in runs])

    @pytest.mark.slow
    def test_every_row_is_there(self, capsys):
        """200 components and ten steps, a line each; rates that are no machine's fail the checks."""
        code = command.main([])
        printed = capsys.readouterr().out.splitlines()
        with COMPONENTS.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        found = (re.match(r"  .{26} *([\d.]+) +[\d.]+ +[+-]", line) for line in printed)
        values = [float(one[1]) for one in found if one]

        assert len(rows) == 200
        assert values == pytest.approx([float(row["measured_us"]) / 1e3 for row in rows], abs=0.0051)
        assert sum(line.startswith(("Perlmutter", "Vista")) for line in printed) == 20
        assert code == 1
        assert printed[-1].endswith("checks failed.")

    def test_one_machine(self, capsys):
        """The other one is not in its tables."""
        command.main(["--machine", "Vista"])
        printed = capsys.readouterr().out

        assert "mean of Vista" in printed
        assert "Perlmutter" not in printed

    def test_the_papers_mean_errors_are_those_that_it_states(self, found):
        """4.98 % on Perlmutter and 9.38 % on Vista."""
        for machine, stated in (("Perlmutter", 0.0498), ("Vista", 0.0938)):
            errors = [abs(one.paper_error(STEP)) for one in found if one.run.machine == machine]
            assert np.mean(errors) == pytest.approx(stated, abs=1e-4)


class TestRuns:
    """What is read."""

    def test_runs_are_of_the_table_of_measured_runs(self, runs):
        """Ten layouts with their repeats; only one is not there."""
        assert len(runs) == 10
        assert [run.label for run in runs if run.case.run.step_seconds is None] == [
            "Perlmutter llama-13b pp 4 tp 8 dp 2"
        ]
        for run in runs:
            assert run.case.run.step_seconds in (None, pytest.approx(run.measured[STEP], rel=1e-4))
        assert sum(len(run.repeats) for run in runs) == 4

    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            ("folder,gpu\n", "lacks the columns model, config"),
            (
                "folder,gpu,model,config,component,measured_us,predicted_us\nvista/llemma_7B_16_1/91703,a,b,c,d,much,1\n",
                "'much' is no number",
            ),
            (
                "folder,gpu,model,config,component,measured_us,predicted_us\nvista/x/1,a,b,c,d,1,1\n",
                "the run vista/x/1",
            ),
        ],
    )
    def test_a_broken_file_is_refused(self, tmp_path, text, problem):
        """With what is wrong in it."""
        path = tmp_path / "components.csv"
        path.write_text(text)

        with pytest.raises(SpecError, match=problem):
            measured_runs(path)
