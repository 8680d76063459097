"""One random input: files that are wrong, and the command that reads them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random

from benchmarks.random_inputs import values
from benchmarks.random_inputs.mutations import bytes_changed, csv_changed, json_changed, script_changed, yaml_changed
from benchmarks.random_inputs.seeds import FILES, seeds

OUTPUT = "written.out"
"""Name of the file that a command may write."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """
    A command and its input.

    Parameters
    ----------
    kind
        Kind of the mistake.
    words
        Words of the command line.
    files
        Content by name; they lie in the folder in which the command runs.
    stdin
        Standard input, which it may read instead.
    """

    kind: str
    words: tuple[str, ...]
    files: Mapping[str, bytes] = field(default_factory=dict)
    stdin: bytes = b""


Change = Callable[[Random, bytes], bytes]

JOB = FILES["job.yaml"]


def _changed(random: Random, data: bytes, change: Change) -> bytes:
    """Wrong by its entries, by its bytes, or both."""
    if random.random() < 0.7:
        data = change(random, data)
    return bytes_changed(random, data) if random.random() < 0.4 else data


READING = (
    ("estimate",),
    ("estimate",),
    ("estimate", "--format", "json"),
    ("plan", "--time-limit", "1"),
    ("explain", "--time-limit", "1"),
)
"""Commands that read a job."""

KEYS = "tp top training.tokens search.pin.pp cluster.num_devices model.num_layers settings.optimizer a.b.c"
DECISIONS = ("tp=2", "pp=2", "mbs=1", "recompute=full", "ep=2", "vpp=2", "cp=2", "tp=3", "schedule=zb")


def _word(random: Random) -> str:
    """``key=value`` that may be anything."""
    key = random.choice((*KEYS.split(), values.text(random)))
    return f"{key}={values.text(random)}"


def _argument(text: str) -> str:
    """Remove NUL characters, which a system cannot hand to a program."""
    return text.replace("\x00", "")


def _words(random: Random) -> tuple[str, ...]:
    some = tuple(random.choice((*DECISIONS, _word(random))) for _ in range(random.choice((0, 0, 1, 2))))
    return tuple(map(_argument, some))


def job(random: Random) -> Trial:
    """A job file, or standard input."""
    text = _changed(random, random.choice(seeds().jobs), yaml_changed)
    command, *options = random.choice(READING)
    if random.random() < 0.1:
        return Trial(kind="job", words=(command, "-", *options, *_words(random)), stdin=text)
    return Trial(kind="job", words=(command, "job.yaml", *options, *_words(random)), files={"job.yaml": text})


def config(random: Random) -> Trial:
    """A ``config.json``, alone or as a job's model."""
    text = _changed(random, random.choice(seeds().configs), json_changed)
    if random.random() < 0.7:
        return Trial(kind="config", words=("catalog", "models", "config.json"), files={"config.json": text})
    whole = JOB.replace(JOB.splitlines()[0], b"model: config.json")
    return Trial(kind="config", words=("estimate", "job.yaml"), files={"config.json": text, "job.yaml": whole})


def script(random: Random) -> Trial:
    """A shell script that starts a training."""
    text = _changed(random, random.choice(seeds().scripts), script_changed)
    entries = ("cluster.device=h100", "cluster.num_devices=16", "training.tokens=1B", _word(random))
    words = ("import", "script.sh", *map(_argument, random.sample(entries, 2)))
    if random.random() < 0.2:
        words = (*words, "--set", _argument(f"{values.text(random)}={values.text(random)}"))
    return Trial(kind="script", words=words, files={"script.sh": text})


def launch(random: Random) -> Trial:
    """Another file that a framework starts with."""
    ending, data = random.choice(seeds().launches)
    change: Change = {".json": json_changed, ".yaml": yaml_changed}.get(ending, script_changed)
    name = f"launch{ending}"
    words = ("import", name, "cluster.device=h100", "cluster.num_devices=16")
    return Trial(kind="launch", words=words, files={name: _changed(random, data, change)})


ONE_LINE = "plan llama3-8b 8xh100-80gb-sxm --batch 64 --sequence 4k --tokens 1B --time-limit 1"


def options(random: Random) -> Trial:
    """Words of a command line, each of which may be anything."""
    line = random.choice(values.COMMAND_LINES) if random.random() < 0.9 else ONE_LINE
    words = line.split()
    for _ in range(random.choice((1, 1, 2, 3))):
        place = random.randrange(len(words))
        match random.randrange(4):
            case 0 if place:
                words[place : place + 1] = []
            case 1:
                words.insert(place + 1, values.text(random))
            case 2 if place:
                words[place] += values.text(random)
            case _:
                words[place if place else random.randrange(len(words))] = values.text(random)
    files = {"plan.json": seeds().plan, "results.jsonl": seeds().results, "trace.json": seeds().trace}
    files |= {"script.sh": seeds().scripts[0], "runs.csv": seeds().runs, "config.json": FILES["config.json"]}
    return Trial(kind="options", words=tuple(map(_argument, words)), files=files)


def device(random: Random) -> Trial:
    """A device file."""
    text = _changed(random, seeds().device, yaml_changed)
    whole = JOB.replace(b"device: h100-80gb-sxm", b"device: ./device.yaml")
    return Trial(kind="device", words=("estimate", "job.yaml"), files={"device.yaml": text, "job.yaml": whole})


def candidates(random: Random) -> Trial:
    """A list of strategies."""
    whole = JOB.replace(b"search: {stages: even,", b"search: {stages: even, candidates: ./list.csv,")
    files = {"list.csv": _changed(random, FILES["list.csv"], csv_changed), "job.yaml": whole}
    return Trial(kind="candidates", words=("plan", "job.yaml", "--time-limit", "1"), files=files)


def runs(random: Random) -> Trial:
    """A table of measured runs."""
    text = _changed(random, seeds().runs, csv_changed)
    return Trial(kind="runs", words=("calibrate", "runs.csv", "-o", OUTPUT), files={"runs.csv": text})


def samples(random: Random) -> Trial:
    """A table of samples."""
    text = _changed(random, seeds().samples, csv_changed)
    return Trial(kind="samples", words=("fit", "samples.csv", "-o", OUTPUT), files={"samples.csv": text})


def saved(random: Random) -> Trial:
    """A report that was saved."""
    target = random.choice(("megatron-lm", "megatron-bridge", "torchtitan", "deepspeed", "accelerate"))
    words = random.choice((("export", "plan.json", "--target", target), ("explain", "plan.json", "plan.json")))
    return Trial(kind="saved plan", words=words, files={"plan.json": _changed(random, seeds().plan, json_changed)})


def results(random: Random) -> Trial:
    """Lines of a batch."""
    first, second = seeds().results.splitlines(keepends=True)
    text = json_changed(random, first) + b"\n" + second
    text = bytes_changed(random, text) if random.random() < 0.4 else text
    words = ("top", "results.jsonl", "--format", random.choice(("table", "json", "csv")))
    return Trial(kind="results", words=words, files={"results.jsonl": text})


def overrides(random: Random) -> Trial:
    """Rows of a batch; the job stays so small that each is planned at once."""
    files = {"rows.csv": _changed(random, FILES["rows.csv"], csv_changed), "job.yaml": JOB}
    words = ("batch", "job.yaml", "--overrides", "rows.csv", "-o", OUTPUT, "--processes", "1", "--timeout", "15")
    return Trial(kind="overrides", words=words, files=files)


def small_runs(random: Random) -> Trial:
    """Runs of a job cut down."""
    files = {"small.yaml": _changed(random, FILES["small.yaml"], yaml_changed), "job.yaml": JOB}
    return Trial(kind="small runs", words=("trace", "project", "small.yaml", "--job", "job.yaml"), files=files)


def trace(random: Random) -> Trial:
    """A profiler trace."""
    text = _changed(random, seeds().trace, json_changed)
    command = random.choice((("read", "trace.json"), ("replay", "trace.json"), ("what-if", "trace.json", "layers=2")))
    return Trial(kind="trace", words=("trace", *command), files={"trace.json": text})


KINDS: Mapping[Callable[[Random], Trial], int] = {
    job: 30,
    config: 20,
    script: 18,
    launch: 6,
    options: 10,
    device: 4,
    candidates: 2,
    runs: 3,
    samples: 2,
    saved: 2,
    results: 1,
    overrides: 1,
    small_runs: 1,
    trace: 2,
}
"""Makers of inputs of each kind, with their share in a hundred."""


def trial_of(seed: int, number: int) -> Trial:
    """The input of a number, the same in every process."""
    random = Random(f"{seed}:{number}")
    (make,) = random.choices(list(KINDS), weights=list(KINDS.values()))
    return make(random)
