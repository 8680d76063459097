"""Plans exported to be measured, and the logs of their runs: steps, seconds, memory, and what cannot be read."""

from __future__ import annotations

import csv
import gzip
import io
import re
import subprocess
from types import SimpleNamespace

import pytest

from costmodel.errors import SpecError
from planner import load, plan, read_plan, render
from planner.cli import main
from planner.jobs.run_jobs import Run, read, references
from planner.measure.calibrate import advice
from planner.measure.plans.collect import collect
from planner.measure.plans.job_array import export_array
from planner.measure.plans.logs import read_logs
from planner.measure.runs.predictions import Prediction, predictions
from tests.builders_job import a_document
from tests.cases import in_one_case
from tests.sources import ROOT

FOLDER = ROOT / "tests" / "data" / "logs"
STEPS = range(1, 21)
GIB, MIB, GB = 2**30, 2**20, 10**9


def seconds(step):
    """The first steps are slower; the others alternate around 2.5 s."""
    return 30.0 if step == 1 else 4.0 if step <= 5 else 2.5 + (0.1 if step % 2 else -0.1)


def megatron(step, batch=128, stamp=" [2026-08-22 10:00:00.123456]", more=""):
    """``training_log`` of megatron/training/training.py, main of 2026-08-22."""
    text = stamp
    text += f" iteration {step:8d}/{20:8d} |"
    text += f" consumed samples: {step * batch:12d} |"
    text += more
    text += f" elapsed time per iteration (ms): {seconds(step) * 1000:.1f} |"
    text += f" throughput per GPU (TFLOP/s/GPU): {412.3:.1f} |"
    text += f" learning rate: {3e-4:.6E} |"
    text += f" global batch size: {batch:5d} |"
    text += " {}: {:.6E} |".format("lm loss", 10.1)
    text += f" loss scale: {1.0:.1f} |"
    text += f" grad norm: {1.234:.3f} |"
    text += f" number of skipped iterations: {0:3d} |"
    return text + f" number of nan iterations: {0:3d} |"


def megabytes(rank, allocated, reserved):
    """``report_memory`` of megatron/training/utils."""
    text = "(after 2 iterations) memory (MB)"
    text += f" | allocated: {12000.0:.2f}"
    text += f" | max allocated: {allocated / MIB:.2f}"
    text += f" | reserved: {15000.0:.2f}"
    text += f" | max reserved: {reserved / MIB:.2f}"
    return f"[Rank {rank}] {text}"


TOKENS = 128 * 8192
"""Figures of a step."""


def lines(*parts):
    """Return the text of lines."""
    return "\n".join(parts) + "\n"


PEAK = megabytes(0, 60 * GIB, 65 * GIB)
LOGS = {
    "Megatron-LM, main": lines("using world size: 8", *map(megatron, STEPS), PEAK),
    "Megatron-LM, without times": lines(*(megatron(n, stamp="") for n in STEPS), PEAK),
    "Megatron-LM, a launcher's labels": lines(*(f"0: [default7]:{megatron(n)}" for n in STEPS), PEAK),
    "Megatron-LM, memory of several ranks": lines(
        *map(megatron, STEPS), megabytes(0, 50 * GIB, 55 * GIB), megabytes(4, 60 * GIB, 65 * GIB)
    ),
    "Megatron-LM, begun again": lines(
        *map(megatron, range(1, 9)), "Signal 15 (SIGTERM) received", *map(megatron, STEPS), PEAK
    ),
    "Windows' ends of lines": lines(*map(megatron, STEPS), PEAK).replace("\n", "\r\n"),
    "bytes that are no text": lines(*map(megatron, STEPS), "\udcff\udc80", PEAK),
}


@in_one_case("name", LOGS)
def test_logs_are_read(name, tmp_path):
    """Steps behind the fifth, whose median is 2.4 or 2.5 or 2.6 s; the highest peak of all ranks."""
    path = tmp_path / "run.log"
    path.write_bytes(LOGS[name].encode("utf-8", "surrogateescape"))
    found = read_logs([path])
    step = found.step_seconds or TOKENS / found.tokens_per_second_per_device / 8

    # Steps 6 to 20 alternate between 2.4 and 2.6 s; eight of fifteen are even.
    assert step == pytest.approx(2.4, rel=2e-3)
    assert found.num_steps == 15
    assert found.reserved_bytes == pytest.approx(65 * GIB, rel=1e-4)
    assert found.allocated_bytes in (None, pytest.approx(60 * GIB, rel=1e-4))
    assert found.doubts == ()
    assert not found.is_out_of_memory


READ = {  # number of steps behind the first ones, of the file's 20, and the beginnings of doubts
    "bridge-0.3.1.log": (15, ()),
    "bridge-0.3.1-skipped.log": (13, ("2 lines with skipped steps", "2 lines have losses")),
    "bridge-0.3.1-restarted.log": (11, ()),  # 6 to 9, then 14 to 20
    "torchtitan-0.3.0.log": (15, ()),
    "torchtitan-0.3.0-ranks.log": (15, ()),
    "torchtitan-0.3.0-nan.log": (15, ("2 lines have losses",)),
    "megatron-lm-core_r0.16.0.log": (15, ()),
    "megatron-lm-v3.0.log": (15, ()),
    "megatron-deepspeed-bigscience.log": (15, ()),
    "torchtitan-2024.log": (15, ()),
}
REFUSED = {"deepspeed-0.19.8.log": "DeepSpeed", "transformers-5.23.log": "transformers' Trainer"}


@in_one_case("name", READ)
def test_kept_logs_are_read(name):
    """Logs of three frameworks, most of them written by their own code (tests/data/logs/README.md)."""
    found = read_logs([FOLDER / name])
    num_steps, doubts = READ[name]

    # 2.4 and 2.6 s alternate, and there are more of the first. Rates are printed as whole numbers.
    assert (found.step_seconds or TOKENS / found.tokens_per_second_per_device / 8) == pytest.approx(2.4, rel=1e-4)
    assert found.num_steps == num_steps
    assert found.reserved_bytes == pytest.approx(65 * GIB, rel=1e-4)
    assert found.allocated_bytes == (None if "torchtitan" in name else pytest.approx(60 * GIB, rel=1e-4))
    assert found.global_batch_size == (None if "torchtitan" in name else 128)
    assert all(said.startswith(begin) for said, begin in zip(found.doubts, doubts, strict=True))


def test_every_kept_log_is_read_or_refused_by_name():
    """None lies there unused."""
    assert {path.name for path in FOLDER.glob("*.log")} == READ.keys() | REFUSED.keys()
    for name, framework in REFUSED.items():
        with pytest.raises(SpecError, match=f"has steps of {framework}, which are not read"):
            read_logs([FOLDER / name])


def test_logs_of_ranks_and_of_a_restart_in_files_of_their_own_are_one_run(tmp_path):
    """The first steps of each start are left out; memory is of all ranks."""
    first = lines("training ...", *map(megatron, range(1, 10)))
    second = lines("training ...", *(megatron(n).replace("2400.0", "9999.0") for n in range(9, 14)), megatron(14))
    (tmp_path / "a.log").write_text(first)
    (tmp_path / "b.log").write_text(second)
    (tmp_path / "rank0.log").write_text(PEAK)
    found = read_logs(sorted(tmp_path.iterdir()))

    # Steps 6 to 9 take 2.4, 2.6, 2.4, 2.6 s; of the restart at 8 step 14 alone is behind five others, 2.4 s.
    assert (found.step_seconds, found.num_steps) == (2.4, 5)
    assert found.allocated_bytes == pytest.approx(60 * GIB, rel=1e-4)


def test_a_run_that_dies_of_memory_later_is_measured_with_a_doubt(tmp_path):
    """A peak before the end is no peak of the whole run."""
    (tmp_path / "run.log").write_text(LOGS["Megatron-LM, main"] + "torch.OutOfMemoryError: CUDA out of memory.\n")
    found = read_logs([tmp_path / "run.log"])

    assert (found.step_seconds, found.is_out_of_memory) == (2.4, False)
    assert found.doubts[0].startswith("it ran out of memory after its first step")


def test_a_rate_of_few_tokens_is_doubted(tmp_path):
    """Half a token of 20 is 2.5 %."""
    text = (FOLDER / "torchtitan-0.3.0-ranks.log").read_text()
    (tmp_path / "run.log").write_text(re.sub(r"tps: [\d,]+", "tps: 20", text))

    assert read_logs([tmp_path / "run.log"]).doubts == ("its 20 tokens/s are printed as whole numbers, up to 2% off",)


def test_a_line_that_was_cut_says_nothing(tmp_path):
    """Cut anywhere, its number is never read as a smaller one."""
    whole, last = lines(*map(megatron, range(1, 12))), megatron(12) + PEAK
    path = tmp_path / "run.log"
    for end in range(0, len(last), 7):
        path.write_text(whole + last[:end])
        found = read_logs([path])
        assert found.step_seconds in (2.4, 2.6, 2.5)
        assert found.reserved_bytes in (None, pytest.approx(65 * GIB, rel=1e-4))
    titan = (FOLDER / "torchtitan-0.3.0.log").read_text()
    path.write_text(titan[: titan.index("tps", titan.index("step: 12")) + 8])
    assert read_logs([path]).num_steps == 6  # 6 to 11


def test_a_packed_log_that_grows_is_read_as_far_as_it_goes(tmp_path):
    """Some launchers pack what they write."""
    path = tmp_path / "run.log.gz"
    path.write_bytes(gzip.compress(LOGS["Megatron-LM, main"].encode())[:-12])

    assert read_logs([path]).step_seconds == pytest.approx(2.4)


def test_lines_every_ten_steps_leave_out_the_first_one(tmp_path):
    """A line has the mean of ten steps: that of 10 has the first one in it."""
    path = tmp_path / "run.log"
    path.write_text(lines(megatron(10).replace(": 2400.0", ": 9000.0"), megatron(20)))

    assert read_logs([path]).step_seconds == 2.4


def test_first_steps_alone_are_doubted(tmp_path):
    """The last one is taken."""
    path = tmp_path / "run.log"
    path.write_text(lines(megatron(1), megatron(2)))
    found = read_logs([path])

    assert found.step_seconds == 4.0
    assert found.doubts[0].startswith("only first steps were logged")


@in_one_case(
    ("text", "message"),
    [
        ("", "has no whole line of a step"),
        (" iteration        1/      20 | consumed samples", "has no whole line of a step"),
        ("Training epoch 0, iteration 5/99 | train_step_timing in s: 7.2", "has steps of NeMo,"),
        ("iteration: 10 / 100 | consumed_tokens: 1M | elapsed_time_per_iteration_ms: 1.2K |", "nanotron"),
        ("completed step: 5, seconds: 3.201, TFLOP/s/device: 190.1, loss: 9.1", "MaxText"),
        ("[batch=10/100]: Train throughput/device/tokens_per_sec: 4000", "Composer"),
        ("2026-01-01 | INFO | step 10 | epoch 0 | loss 2.1 | mem 40.10 GiB | tps 12345", "NeMo AutoModel"),
        (megatron(7).replace("skipped iterations:   0", "skipped iterations:   1"), "all with skipped"),
        (':::MLLOG {"key": "tracked_stats"}', "MLPerf"),
    ],
)
def test_logs_of_other_frameworks_are_refused_by_name(text, message, tmp_path):
    """With what is known."""
    (tmp_path / "run.log").write_text(text)

    with pytest.raises(SpecError, match=message) as refused:
        read_logs([tmp_path / "run.log"])
    assert "Megatron-LM, Megatron-Bridge or torchtitan" in str(refused.value)


# --- plans that are measured -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """A JSON report of three plans."""
    path = tmp_path_factory.mktemp("report") / "plan.json"
    path.write_text(render(plan(load(ROOT / "benchmarks/jobs/llama3-8b-8xh100.yaml")), "json"))
    return path


@pytest.fixture
def array(report, tmp_path, capsys):
    """The folder of an exported array."""
    folder = tmp_path / "launch"
    words = ["--number", "1,2,3", "--steps", "20", "--array", "--launch", "slurm", "-o", str(folder)]
    assert main(["export", str(report), "--target", "megatron-lm", *words]) == 0
    capsys.readouterr()
    return folder


@pytest.mark.slow
def test_an_array_runs_each_plan_in_its_folder(array):
    """Bash runs the tasks as Slurm would; each trains 20 steps, logs every one and saves nothing."""
    script = (array / "array.sbatch").read_text()

    assert "#SBATCH --array=1,2,3\n#SBATCH --output=plan-%a.log\n" in script
    for number in (1, 2, 3):
        arguments = (array / f"plan-{number}" / "megatron-args.txt").read_text()
        assert "--train-iters 20\n" in arguments
        assert "--save-interval 21\n" in arguments
        assert "--log-interval 1\n" in arguments
        (array / f"plan-{number}" / "job.sbatch").write_text(f"echo task of {number} in $(basename $PWD)")
        done = subprocess.run(
            ["bash", "array.sbatch"], cwd=array, env={"SLURM_ARRAY_TASK_ID": str(number), "PATH": "/usr/bin:/bin"},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert done.stdout == f"task of {number} in plan-{number}\n"


def test_rows_of_an_array_are_the_plans(array, report):
    """A row that is read back costs as its plan does."""
    rows = [*predictions(read(array / "runs.csv"), references(None, array))]

    assert all(isinstance(row, Prediction) for row in rows)
    for number, row in enumerate(rows, start=1):
        saved = read_plan(report, number)
        assert row.run.id == f"plan-{number}"
        assert row.step_seconds == pytest.approx(saved.plan.step_seconds, rel=1e-9)
        assert row.device_bytes == pytest.approx(saved.plan.estimate.device_bytes, rel=1e-9)


@pytest.mark.slow
def test_an_array_of_an_own_model_on_an_own_device(tmp_path):
    """The table names a model of the file beside it, the device in a cell; torchtitan's metrics are of every step."""
    own = {"num_layers": 4, "hidden_size": 1024, "num_heads": 8, "ffn_hidden_size": 4096, "vocab_size": 32000}
    job = a_document(own, "2xh100-80gb-sxm", batch=16, sequence=2048, tokens=1e9, search={"target": "torchtitan"})
    job["cluster"] |= {"device": {"base": "h100-80gb-sxm", "memory_bytes": 7e10}}
    report = tmp_path / "plan.json"
    report.write_text(render(plan(load(job)), "json"))
    saved = read_plan(report, 1)

    files = export_array({1: saved}, "torchtitan", None, "slurm", 20).files
    (tmp_path / "runs.csv").write_text(files["runs.csv"])
    (tmp_path / "models.yaml").write_text(files["models.yaml"])
    (row,) = predictions(read(tmp_path / "runs.csv"), references(tmp_path / "models.yaml", tmp_path))

    assert row.step_seconds == pytest.approx(saved.plan.step_seconds, rel=1e-9)
    assert "metrics=replace(config.metrics, log_freq=1)" in files["plan-1/torchtitan_recipe.py"]
    compile(files["plan-1/torchtitan_recipe.py"], "recipe", "exec")


def test_arrays_are_of_few_plans_of_one_size(report):
    """Slurm's tasks have equally many nodes."""
    saved = read_plan(report, 1)
    other = SimpleNamespace(strategy=SimpleNamespace(num_devices=16))

    with pytest.raises(SpecError, match="--number: at most 32 plans are exported at once, got 33"):
        export_array(dict.fromkeys(range(33), saved), "megatron-lm", None, "slurm", 20)
    with pytest.raises(SpecError, match=r"different numbers of devices: 1: 8, 2: 16\. Tasks of an array"):
        export_array({1: saved, 2: SimpleNamespace(plan=other)}, "megatron-lm", None, "slurm", 20)


def test_jobs_of_kubernetes_have_names_of_their_own(report, tmp_path):
    """One file, a TrainJob for each plan, the second plan in the second."""
    import yaml

    plans = {number: read_plan(report, number) for number in (1, 2)}
    files = export_array(plans, "megatron-lm", None, "kubernetes", 20).files
    jobs = [*yaml.safe_load_all(files["plans.yaml"])]

    assert [job["metadata"]["name"] for job in jobs] == ["llama3-8b-plan-1", "llama3-8b-plan-2"]
    assert "--log-interval 1" in jobs[1]["spec"]["trainer"]["args"][0]


@pytest.mark.slow
def test_calibrate_says_which_plan_won(array, tmp_path, capsys, monkeypatch):
    """Logs of the array fill the table; plan 2 is the fastest: 2.4 s, the next one 2.6 s, 8.3 % longer."""
    for number, factor in ((1, 2.6), (2, 2.4), (3, 3.0)):
        text = lines(*map(megatron, STEPS)).replace(": 2400.0 |", f": {factor * 5540:.1f} |")
        text = text.replace(": 2600.0 |", f": {factor * 5540:.1f} |")
        (array / f"plan-{number}.log").write_text(text + PEAK)
    output = tmp_path / "mine.yaml"
    monkeypatch.setattr(advice, "MOST_CANDIDATES", 4)

    assert main(["calibrate", str(array / "runs.csv"), "--logs", str(array), "-o", str(output)]) == 0
    said = capsys.readouterr().out
    assert "plan-2 won: plan-1, the next one, takes 8.3% longer per sequence." in said
    assert "3 runs of h100-80gb-sxm fitted" in said
    rows = [row for row in read(tmp_path / "mine-runs.csv") if isinstance(row, Run)]
    assert [row.step_seconds for row in rows] == pytest.approx([14.404, 13.296, 16.62])
    assert {(row.peak_memory_gib, row.memory_kind) for row in rows} == {(60.0, "allocated")}
    assert output.exists()


def test_a_run_out_of_memory_is_a_row_of_its_kind(array, capsys):
    """It is a measurement, too."""
    (array / "plan-1.log").write_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n")
    text, notes, _ = collect(array / "runs.csv", array)
    rows = {row["id"]: row for row in csv.DictReader(io.StringIO(text))}

    assert rows["plan-1"]["kind"] == "oom"
    assert rows["plan-2"]["kind"] == "planned"
    assert notes[0] == "plan-1: ran out of memory before its first step."


def test_logs_of_plan_1_are_not_those_of_plan_10(array):
    """A name ends where a letter or digit does not go on."""
    (array / "plan-10.log").write_text(LOGS["Megatron-LM, main"])

    with pytest.raises(SpecError, match="begins with the id of a planned run"):
        collect(array / "runs.csv", array)


def test_a_log_of_another_batch_is_refused(array):
    """It belongs to another run."""
    (array / "plan-1.log").write_text(lines(*(megatron(n, batch=256) for n in STEPS)))

    with pytest.raises(SpecError, match="steps of 256 sequences, its row of 128"):
        collect(array / "runs.csv", array)
    with pytest.raises(SpecError, match=r"--logs: there is no folder '.*nowhere'"):
        collect(array / "runs.csv", array / "nowhere")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--number", "1,2", "-o", "x"], "several plans are exported as one job"),
        (["--number", "1,x", "--array", "--launch", "slurm", "-o", "x"], "expected a whole number from 1, got 'x'"),
        (["--number", "1,2", "--array", "--launch", "slurm"], "writes several files"),
        (["--number", "1,2", "--array", "-o", "x"], "needs a launcher that queues jobs"),
        (["--number", "1,2", "--array", "--launch", "torchrun", "-o", "x"], "needs a launcher that queues jobs"),
        (["--number", "1", "--array", "--launch", "slurm", "--steps", "2", "-o", "x"], "must be at least 8"),
        (["--number", "1,99", "--array", "--launch", "slurm", "-o", "x"], "99"),
    ],
)
def test_wrong_arrays_are_refused(words, message, report, capsys):
    """Before anything is written."""
    assert main(["export", str(report), "--target", "megatron-lm", *words]) == 2
    assert message in capsys.readouterr().err


def test_programs_that_log_themselves_are_refused(report):
    """DeepSpeed and Accelerate leave the loop to the user."""
    with pytest.raises(SpecError, match="logged by the user's own program"):
        export_array({1: read_plan(report, 1)}, "deepspeed", None, "slurm", 20)
