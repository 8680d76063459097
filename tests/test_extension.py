"""Where a new thing goes, CONTRIBUTING.md says: with what it names touched and nothing else, the new thing works."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator
from contextlib import suppress
from itertools import chain, islice

import pytest

from costmodel import catalog
from tests import extension_examples as examples
from tests.builders_extension import SCHEMAS, Extended, copied, rows, say

ESTIMATE = "estimate job.yaml --format json"

Extend = Callable[..., Extended]
"""Makes a copy that may be touched where rows of the table say."""

Steps = Generator[tuple[str | tuple[str, ...], ...], list[str], None]
"""Trial of a row: touches a copy, yields commands, and looks at their answers."""

numbers = json.loads
"""Read a report, or another answer in JSON."""


def schema_of(copy: Extended) -> str:
    """The schema of the job file."""
    assert copy.has_schema, "The row says nothing of the schemas."
    return copy.text("planner/job.schema.json")


# --- the catalog -----------------------------------------------------------------------------------------------


def device(extend: Extend) -> Steps:
    """A copy of the H200 with another memory is a device of the catalog, of jobs and of the schema."""
    copy = extend("device")
    copy.like(
        "costmodel/catalog/devices/x200.yaml", "costmodel/catalog/devices/h200.yaml", name="x200", memory_bytes="2e+11"
    )

    known, report = yield ("catalog devices", f"{ESTIMATE} cluster.device=x200")

    assert "x200" in known
    assert numbers(report)["cluster"]["memory_bytes"] == 2e11
    assert '"x200"' in schema_of(copy)


def model_of_a_known_family(extend: Extend) -> Steps:
    """Llama 3 8B with half of its layers, as a file of the catalog."""
    copy = extend("model of a known family")
    known = copy.text("costmodel/catalog/models/llama3-8b.yaml")
    half = known.replace("name: llama3-8b", "name: llama-half").replace("layers: 32", "layers: 16")
    copy.write("costmodel/catalog/models/llama-half.yaml", half)

    (report,) = yield (f"{ESTIMATE} model=llama-half",)

    assert numbers(report)["model"]["num_layers"] == 16
    assert '"llama-half"' in schema_of(copy)


def model_family(extend: Extend) -> Steps:
    """Like Llama with tied embeddings: each of 2 layers has 4 x 64 x 64 + 2 x 64 + 3 x 64 x 128 parameters."""
    copy = extend("model family")
    copy.add("costmodel/models/families.yaml", ("families:\n", "  yak: {tied: true}\n"))
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4}
    config = {"model_type": "yak", **sizes, "intermediate_size": 128, "vocab_size": 1000, "hidden_act": "silu"}
    (copy.folder / "config.json").write_text(json.dumps(config))

    (described,) = yield ("catalog models config.json --format json",)

    assert numbers(described)["family"] == "yak"
    assert numbers(described)["parameters"] == 2 * (4 * 64 * 64 + 2 * 64 + 3 * 64 * 128) + 64 + 1000 * 64


def precision(extend: Extend) -> Steps:
    """A recipe of FP8, and one of a new number format with its peak and its efficiency."""
    copy = extend("precision")
    recipe = (
        "weight_bytes: 2, gradient_bytes: 4, optimizer_bytes: 12, parameter_gather_bytes: 2, activation_bytes: 2, "
        "linear_input_bytes: 1, cast_bytes: 3, source: a test"
    )
    copy.edit(
        "costmodel/catalog/precisions.yaml",
        ("\nmofa:\n", f"\nfp8_own: {{compute: fp8, {recipe}}}\nmxfp6: {{compute: mxfp6, {recipe}}}\nmofa:\n"),
    )
    copy.edit("costmodel/facts/fields.py", ('"nvfp4"]', '"nvfp4", "mxfp6"]'))
    copy.edit("costmodel/catalog/devices/b200.yaml", ("nvfp4: 9.0e+15", "nvfp4: 9.0e+15, mxfp6: 6.0e+15"))
    copy.edit("costmodel/catalog/calibrations/blackwell.yaml", ("nvfp4: 0.7516", "nvfp4: 0.7516, mxfp6: 0.7"))

    eight, six = yield (
        f"{ESTIMATE} training.precision=fp8_own",
        f"{ESTIMATE} training.precision=mxfp6 cluster.device=b200",
    )

    assert (numbers(eight)["training"]["precision"], numbers(six)["training"]["precision"]) == ("fp8_own", "mxfp6")
    assert '"mxfp6"' in schema_of(copy)


def release_of_a_framework(extend: Extend) -> Steps:
    """A release that extends another one, and one that behaves like it."""
    copy = extend("release of a framework")
    copy.write(
        "costmodel/catalog/frameworks/megatron-bridge-27.01.yaml",
        "name: megatron-bridge-27.01\ndescription: next\nreleases: [megatron-bridge-27.02]\nsince: 2027-01\n"
        "extends: megatron-bridge-26.06\nkernels_of: megatron-bridge-26.04\nfeatures: {cuda_graphs: [none]}\n",
    )

    known, report = yield (
        "catalog megatron-bridge-27.01 --format json",
        "plan job.yaml --format json cluster.framework=megatron-bridge-27.02",
    )

    assert "megatron-bridge-27.01" in known
    assert numbers(report)["cluster"]["framework"] == "megatron-bridge-27.02"
    assert numbers(report)["plans"][0]["strategy"]["cuda_graphs"] == "none"
    assert '"megatron-bridge-27.02"' in schema_of(copy)


def gpu_generation(extend: Extend) -> Steps:
    """A generation after Rubin with a device, a calibration and the dispatchers of its framework."""
    copy = extend("GPU generation", "device")
    for folder, known in (("architectures", "hopper"), ("calibrations", "hopper")):
        path = f"costmodel/catalog/{folder}"
        copy.like(f"{path}/feynman.yaml", f"{path}/{known}.yaml", name="feynman")
    copy.like(
        "costmodel/catalog/devices/f100.yaml",
        "costmodel/catalog/devices/h200.yaml",
        name="f100",
        architecture="feynman",
        calibration="feynman",
    )
    copy.edit(
        "costmodel/catalog/frameworks/megatron-core-0.14.yaml",
        ("blackwell-rtx, rubin]", "blackwell-rtx, rubin, feynman]"),
    )
    copy.edit(
        "constraints/rules/frameworks.py",
        ('"hopper", "blackwell", "rubin")', '"hopper", "blackwell", "rubin", "feynman")'),
    )

    estimated, planned = yield (
        f"{ESTIMATE} cluster.device=f100 model=qwen3-30b-a3b ep=8 token_dispatcher=hybridep mbs=1",
        "plan job.yaml --format json cluster.device=f100",
    )

    assert numbers(estimated)["broken_rules"] == []
    assert numbers(planned)["cluster"]["framework"] == catalog.default_framework(catalog.device("h200"))
    assert '"feynman"' in schema_of(copy)


def setting_of_a_framework(extend: Extend) -> Steps:
    """Dropout as a setting keeps masks; a framework that always has it exports no word."""
    copy = extend("setting of a framework", codes=(0, 2))
    copy.add(
        "costmodel/facts/framework.py",
        ("a sum of layers that a profiler timed alone.\n", "    dropout\n        Whether residuals have dropout.\n"),
        ('    composition: Literal["step", "parts"] | None = None\n', "    dropout: Flag | None = None\n"),
    )
    copy.add(
        "costmodel/lowering/framework.py",
        (
            '        kernels["fused_attention"] = settings.attention == "flash"\n',
            "    if settings.dropout:\n        memory.update(PARTS_DROPOUT)\n",
        ),
    )
    copy.edit("planner/frameworks/target.py", ('("muon_tp_mode", ', '("dropout", "muon_tp_mode", '))

    plain, dropping, *_ = yield (
        ESTIMATE,
        f"{ESTIMATE} settings.dropout=true",
        "plan job.yaml --format json -o plan.json",
        *(f"export plan.json --target {name}" for name in ("megatron-lm", "megatron-bridge", "torchtitan")),
        *(f"export plan.json --target {name}" for name in ("deepspeed", "accelerate")),
    )

    assert numbers(dropping)["peak_memory_bytes"] > numbers(plain)["peak_memory_bytes"]
    assert '"Whether residuals have dropout."' in schema_of(copy)


# --- the cost model --------------------------------------------------------------------------------------------


def layer_kind(extend: Extend) -> Steps:
    """A mixer of two linears of width 1024 in a pattern: 2 x 64 x 1024 parameters of each such layer."""
    copy = extend("layer kind")
    examples.a_layer_kind(copy)
    examples.its_width(copy)
    examples.its_letter(copy)
    sizes = "hidden_size: 64, num_heads: 4, vocab_size: 1000, ffn_hidden_size: 128, mixing_width: 1024"
    model = f"{{{sizes}, num_layers: 4, pattern: 'X-*-'}}"

    report, planned, uneven = yield (
        f'{ESTIMATE} "model={model}"',
        f'plan job.yaml --format json "model={model}"',
        f'{ESTIMATE} "model={model}" model.mixing_width=1023 tp=2',
    )

    blocks = 2 * 64 * 1024 + 2 * (3 * 64 * 128) + 4 * 64 * 64
    assert numbers(report)["model"]["parameters"] == blocks + 4 * 64 + 64 + 2 * 1000 * 64
    assert numbers(planned)["status"] == "optimal"
    assert numbers(uneven)["broken_rules"] == ["Each tensor-parallel rank owns an equal part of every mixing block."]
    assert '"mixing_width"' in schema_of(copy)


def source_of_operator_times(extend: Extend) -> Steps:
    """Twice the times of the theoretical roofline: computation takes twice as long."""
    copy = extend("source of operator times")
    copy.write(
        "costmodel/timing/doubled.py",
        "class DoubledTimes:\n    def __init__(self, times):\n        self.times = times\n\n"
        "    def forward_seconds(self, operator):\n        return 2 * self.times.forward_seconds(operator)\n\n"
        "    def backward_seconds(self, operator):\n        return 2 * self.times.backward_seconds(operator)\n\n"
        "    def launch_seconds(self, operator):\n        return self.times.launch_seconds(operator)\n\n"
        '    def origin(self, operator):\n        return "doubled"\n',
    )
    copy.edit("costmodel/facts/calibration.py", ('times: Literal["roofline",', 'times: Literal["doubled", "roofline",'))
    copy.add(
        "costmodel/timing/source.py",
        (
            "import MeasuredTimes, build_modified_roofline, theoretical_roofline\n",
            "from costmodel.timing.doubled import DoubledTimes\n",
        ),
        (
            "        return theoretical_roofline(device, compute_dtype, cuda_graphs=cuda_graphs)\n",
            '    if device.constants.times == "doubled":\n'
            "        return DoubledTimes(theoretical_roofline(device, compute_dtype))\n",
        ),
    )
    device = "cluster.device={{base: h100-80gb-sxm, calibration: {{base: hopper, times: {}}}}}"

    plain, doubled = (
        numbers(text)["breakdown"][0]
        for text in (yield tuple(f'{ESTIMATE} "{device.format(times)}"' for times in ("roofline", "doubled")))
    )

    assert plain["name"] == "compute"
    assert doubled["exposed_seconds"] == pytest.approx(2 * plain["exposed_seconds"], rel=1e-3)


def formula_or_a_rival_of_one(extend: Extend) -> Steps:
    """Failures that grow with the square of the nodes: 16 times as many on 4 nodes as on one."""
    copy = extend("formula, or a rival of one")
    copy.edit("costmodel/reliability.py", ("return cluster.num_nodes * rel", "return cluster.num_nodes**2 * rel"))

    one, four = yield (ESTIMATE, f"{ESTIMATE} cluster.num_devices=32")

    per_day = [run["num_failures"] / run["days"] for run in (numbers(text)["training_run"] for text in (one, four))]
    assert per_day[1] == pytest.approx(16 * per_day[0], rel=0.01)


def decision_a_feature(extend: Extend) -> Steps:
    """Gradients sent in half of their bytes: searched, in the report, forbidden without replicas, and exported."""
    copy = extend("decision (a feature)", codes=(0, 2))
    examples.a_decision(copy)
    examples.its_rules(copy)
    examples.its_answers(copy)

    planned, broken, _, *exported = yield (
        "plan job.yaml --format json search.pin.dp_overlap=false search.pin.sharding=optimizer",
        f"{ESTIMATE} tp=8 dp=1 half_gradients=true",
        "plan job.yaml --format json -o own.json",
        *(f"export own.json --target {name}" for name in ("megatron-lm", "torchtitan", "deepspeed", "accelerate")),
    )

    assert numbers(planned)["plans"][0]["strategy"]["half_gradients"]
    assert "Only replicas halve gradients." in numbers(broken)["broken_rules"]
    assert any(exported)
    assert '"half_gradients"' in schema_of(copy)


def token_dispatcher(extend: Extend) -> Steps:
    """NCCL's experts send as HybridEP does: searched, exported to Megatron-LM, and read back by their own name."""
    copy = extend("token dispatcher")
    examples.a_dispatcher(copy)
    experts = "cluster.framework=megatron-lm-0.19 model=qwen3-30b-a3b search.evidence=any search.pin={}"
    pins = " ".join(f"search.pin.{entry}" for entry in ("ep=8", "mbs=1", "cuda_graphs=none", "token_dispatcher={}"))

    known, added, *_, read = yield (
        f"plan job.yaml --format json {experts} {pins.format('hybridep')}",
        f"plan job.yaml --format json {experts} {pins.format('ncclep')}",
        f"plan job.yaml --format json {experts} {pins.format('ncclep')} settings.communication_sms=16 -o sent.json",
        "export sent.json --target megatron-lm -o own",
        "import own/megatron-args.txt cluster.device=h100-80gb-sxm cluster.num_devices=8 training.tokens=1e9",
    )

    arguments = copy.text("own/megatron-args.txt")
    times = [numbers(text)["plans"][0]["step_time_seconds"] for text in (known, added)]
    assert times[0] == times[1]
    assert "--moe-flex-dispatcher-backend ncclep" in arguments
    assert "--moe-flex-dispatcher-num-sms 16" in arguments
    assert "token_dispatcher: ncclep" in read
    assert "communication_sms: 16" in read
    assert '"ncclep"' in schema_of(copy)


def pipeline_schedule(extend: Extend) -> Steps:
    """A schedule that is ZB-H1 by another name takes as long and as much memory."""
    copy = extend("pipeline schedule")
    examples.a_schedule(copy)
    framework = "cluster.framework=zero-bubble-2023 search.pin={} tp=1 pp=4 dp=2 sharding=none"

    known, lazy, chunks = yield (
        f"{ESTIMATE} {framework} schedule=zb_h1",
        f"{ESTIMATE} {framework} schedule=lazy",
        f"{ESTIMATE} {framework} schedule=lazy vpp=2",
    )

    same = ("step_time_seconds", "peak_memory_bytes", "broken_rules")
    assert [numbers(lazy)[name] for name in same] == [numbers(known)[name] for name in same]
    assert any("one chunk per rank" in rule for rule in numbers(chunks)["broken_rules"])
    assert '"lazy"' in schema_of(copy)


# --- rules -----------------------------------------------------------------------------------------------------


def rule_of_the_mathematics_or_the_hardware(extend: Extend) -> Steps:
    """A rule that wants at least 4 ranks is kept by the search, named by the explanation, and seen by the estimate."""
    copy = extend("rule of the mathematics or the hardware", codes=(0, 1))
    examples.a_rule(copy, "physics.tp_is_wide", "PHYSICS_RULES", "Four ranks share each matmul.")

    planned, explained, estimated = yield (
        "plan job.yaml --format json search.pin={mbs:\\ 1} search.allow.tp=[2,4]",
        "explain job.yaml --format json tp=2",
        f"{ESTIMATE} tp=2",
    )

    assert numbers(planned)["plans"][0]["strategy"]["tp"] == 4
    assert "Four ranks share each matmul." in explained
    assert numbers(estimated)["broken_rules"] == ["Four ranks share each matmul."]


def refusal_of_a_framework(extend: Extend) -> Steps:
    """What a framework refuses is forbidden unless the job wants no framework's rules."""
    copy = extend("refusal of a framework", codes=(0, 1))
    text = "Tensor-parallel ranks are at least four (file.py:1)."
    examples.a_rule(copy, "frameworks.four_ranks", "FRAMEWORK_RULES", text)

    refused, allowed = yield (
        "plan job.yaml --format json search.preferences=false",
        "plan job.yaml --format json search.preferences=false search.framework_rules=false",
    )

    assert text in refused
    assert numbers(allowed)["plans"][0]["strategy"]["tp"] == 2


def preference_of_the_search(extend: Extend) -> Steps:
    """The search keeps it unless the job wants none; the estimate of what breaks it is allowed and says so."""
    copy = extend("preference of the search")
    text = "The search splits matmuls over four ranks (search.preferences)."
    examples.a_rule(copy, "physics.tp_is_wide", "PREFERENCE_RULES", text)

    free_of_rules = "search.framework_rules=false"  # beside them is a refusal
    planned = "plan job.yaml --format json search.pin={mbs:\\ 1} search.allow.tp=[2,4]"
    kept, free, estimated = yield (
        f"{planned} {free_of_rules}",
        f"{planned} {free_of_rules} search.preferences=false",
        f"{ESTIMATE} tp=2 search.evidence=any {free_of_rules}",
    )

    assert [numbers(one)["plans"][0]["strategy"]["tp"] for one in (kept, free)] == [4, 2]
    assert numbers(estimated)["allowed"] is True
    assert numbers(estimated)["broken_preferences"] == [text]


# --- jobs and reports ------------------------------------------------------------------------------------------


def entry_of_the_job_file(extend: Extend) -> Steps:
    """Days between failures of the whole job: 2 on one node are half a failure per node and day."""
    copy = extend("entry of the job file")
    copy.edit(
        "planner/jobs/entries.py",
        ("    failures_per_node_day\n", "    days_between_failures\n        Mean days.\n    failures_per_node_day\n"),
        (
            "    failures_per_node_day: NotNegative",
            "    days_between_failures: Positive | None = None\n    failures_per_node_day: NotNegative",
        ),
    )
    copy.edit(
        "planner/jobs/problem.py",
        (
            '"failures_per_node_day": section.failures_per_node_day,',
            '"failures_per_node_day": section.failures_per_node_day if section.days_between_failures is None '
            "else 1 / section.days_between_failures / facts.cluster.num_nodes,",
        ),
    )

    (report,) = yield (f"{ESTIMATE} reliability.days_between_failures=2",)

    assert numbers(report)["reliability"]["failures_per_node_day"] == 0.5
    assert '"Mean days."' in schema_of(copy)


def figure_in_the_report(extend: Extend) -> Steps:
    """Weeks of the training are in the JSON, its schema, the CSV, the console and the page."""
    copy = extend("figure in the report", "entry of the job file")
    copy.add(
        "planner/report/records/plan.py",
        ("    days\n        Total time.\n", "    weeks\n        Total time in weeks.\n"),
        ("    days: Figure\n", "    weeks: Figure = read_from(lambda plan: plan.schedule.days / 7)\n"),
    )
    copy.edit("planner/report/table_csv.py", ('"days", "gpu_hours")', '"days", "weeks", "gpu_hours")'))

    report, table, page = yield (ESTIMATE, ESTIMATE.replace("json", "csv"), ESTIMATE.replace("json", "html"))

    run = numbers(report)["training_run"]
    assert run["weeks"] == pytest.approx(run["days"] / 7)
    assert ",weeks," in table
    assert '"weeks"' in page
    assert '"Total time in weeks."' in copy.text("planner/report/report.schema.json")


def report_format(extend: Extend) -> Steps:
    """A format of one line."""
    copy = extend("report format")
    copy.write(
        "planner/report/line.py",
        "from planner.report.records.reports import report_record\n\n\n"
        "def line_text(report):\n"
        '    return f"{report_record(report).step_time_seconds:.1f} s\\n"\n',
    )
    copy.edit(
        "planner/report/__init__.py",
        (
            '("short", "table", "json", "csv", "markdown", "html")',
            '("short", "table", "json", "csv", "markdown", "html", "line")',
        ),
        (
            '    raise SpecError("format", LACKED[format], "Use table, markdown or json.")',
            '    if format == "line":\n'
            "        from planner.report.line import line_text\n\n        return line_text(whole)\n"
            '    raise SpecError("format", LACKED[format], "Use table, markdown or json.")',
        ),
    )

    report, line = yield (ESTIMATE, ESTIMATE.replace("json", "line"))

    assert line.strip() == f"{numbers(report)['step_time_seconds']:.1f} s"


def export_target(extend: Extend) -> Steps:
    """A target that writes degrees is known to the command and to Python."""
    copy = extend("export target", "public name")
    copy.write(
        "planner/frameworks/degrees.py",
        "from planner.frameworks.target import FIELDS, Export, Program, write_entries\n\n"
        'PROGRAM = Program(words=("train.py",))\n'
        'TABLE = {**dict.fromkeys(FIELDS, {}), "tp": "tp"}\n\n\n'
        "def to_degrees(plan, version=None):\n"
        '    said = write_entries(plan, "degrees", TABLE)\n'
        '    return Export(target="Degrees", files={"degrees.txt": str(said)})\n',
    )
    own = 'Target(name="Degrees", fields={}, precisions=("bf16",), other_precision="")'
    copy.add(
        "constraints/rules/exports.py",
        ("EXPORTS: Mapping[str, Target] = {\n", f'    "degrees": {own},\n'),
    )
    copy.add("planner/frameworks/__init__.py", ("TARGETS = {\n", '    "degrees": "planner.frameworks.degrees",\n'))
    copy.add(
        "planner/api.py",
        (
            "    from planner.frameworks.accelerate import to_accelerate as to_accelerate\n",
            "    from planner.frameworks.degrees import to_degrees as to_degrees\n",
        ),
    )

    _, known, launched, imported = yield (
        "plan job.yaml --format json -o target.json",
        "export target.json --target degrees",
        "export target.json --target degrees --launch torchrun",
        ("-c", "from planner import to_degrees; print(to_degrees.__name__)"),
    )

    assert known.strip() == "{'tp': 2}"
    assert "train.py" in launched
    assert imported == "to_degrees\n"


def command(extend: Extend) -> Steps:
    """A command is in the help and runs."""
    copy = extend("command")
    copy.write(
        "planner/cli/greet.py",
        'def add_greet_options(parser):\n    parser.add_argument("whom")\n\n\n'
        'def run_greet(arguments):\n    print(f"Hello, {arguments.whom}.")\n    return 0\n',
    )
    copy.add("planner/cli/__init__.py", ("COMMANDS = {\n", '    "greet": ("planner.cli.greet", "say hello"),\n'))

    shown, greeting = yield ("--help", "greet world")

    assert "say hello" in shown
    assert greeting == "Hello, world.\n"


def option_of_a_command(extend: Extend) -> Steps:
    """An option changes the job before it is planned."""
    copy = extend("option of a command")
    copy.add(
        "planner/cli/plan.py",
        (
            '    add_time_limit(parser, "the best plan so far is reported")\n',
            '    parser.add_argument("--most", type=int)\n',
        ),
    )
    known = "        problem = load_pinned(arguments)\n"
    most = '        arguments.assignments.extend([f"search.max_devices={arguments.most}"] * bool(arguments.most))\n'
    copy.edit("planner/cli/plan.py", (known, f"{most}{known}"))

    (report,) = yield ("plan job.yaml --most 4 --format json",)

    assert numbers(report)["job"]["max_devices"] == 4


def public_name(extend: Extend) -> Steps:
    """The number of devices of a plan's sizes, from the package itself."""
    copy = extend("public name")
    known = "    from costmodel.strategy import Strategy as Strategy\n"
    copy.add("planner/api.py", (known, "    from costmodel.strategy import DECISIONS as DECISIONS\n"))

    (name,) = yield (("-c", "from planner import DECISIONS; print(DECISIONS[0])"),)

    assert name == "tp\n"


# --- batches and benchmarks ------------------------------------------------------------------------------------


def entry_of_a_batch_s_lines(extend: Extend) -> Steps:
    """A figure of the plan's record is in the line, and jobs are ranked by it."""
    copy = extend("entry of a batch's lines")
    copy.edit("planner/batch/work.py", ('    "mfu",\n', '    "mfu",\n    "hardware_tflops_per_gpu",\n'))
    copy.add("planner/batch/choices.py", ("METRICS = {\n", '    "hardware": ("hardware_tflops_per_gpu", -1),\n'))

    _, ranked = yield ("batch job.yaml --processes 1 -o own.jsonl", "batch own.jsonl --by hardware --format json")

    line = json.loads(copy.text("own.jsonl"))
    assert line["plans"][0]["hardware_tflops_per_gpu"] > 0
    assert str(line["plans"][0]["hardware_tflops_per_gpu"]) in ranked


def backend_of_batches(extend: Extend) -> Steps:
    """A backend that does each job at once, in the same process."""
    copy = extend("backend of batches")
    copy.write(
        "planner/batch/executors/here.py",
        "from concurrent.futures import Future\n\nfrom planner.batch.work import plan_job\n\n\n"
        "class HereWorkerPool:\n    capacity = 1\n\n"
        "    def __init__(self, make_workers, *, scheduler, processes=None):\n        pass\n\n"
        "    def submit(self, job):\n        done = Future()\n        done.set_result(plan_job(job))\n"
        "        return done\n\n"
        "    def close(self):\n        pass\n",
    )
    copy.edit("planner/batch/choices.py", ('(LOCAL, "dask", "ray")', '(LOCAL, "dask", "ray", "here")'))

    yield ("batch job.yaml --backend here -o here.jsonl",)

    assert json.loads(copy.text("here.jsonl"))["status"] == "optimal"


def example_job(extend: Extend) -> Steps:
    """A job file is all that a job needs."""
    copy = extend("example job")
    (copy.folder / "benchmarks/jobs").mkdir(parents=True)
    copy.write("benchmarks/jobs/own.yaml", copy.text("job.yaml"))

    (report,) = yield ("plan benchmarks/jobs/own.yaml --format json",)

    assert numbers(report)["job"]["name"] == "own"


# --- the table -------------------------------------------------------------------------------------------------

TOGETHER: dict[str, tuple[Callable[[Extend], Steps], ...]] = {
    "catalog and releases": (
        *(device, model_of_a_known_family, model_family, precision, gpu_generation, layer_kind),
        source_of_operator_times,
        *(release_of_a_framework, setting_of_a_framework, token_dispatcher, pipeline_schedule),
    ),
    "decision and reports": (
        *(decision_a_feature, report_format, command, option_of_a_command, public_name, example_job),
        *(entry_of_the_job_file, figure_in_the_report, export_target, entry_of_a_batch_s_lines, backend_of_batches),
    ),
    "rule": (rule_of_the_mathematics_or_the_hardware, formula_or_a_rival_of_one),
    "refusal": (refusal_of_a_framework, preference_of_the_search),
}
"""Rows that are tried in one copy, since neither sees the other."""

OTHERWISE = {
    "measured run": "what it changes is the table of benchmarks, which tests/benchmarks/test_conversion.py reads",
    "fitted constant": "a fit to all measured runs takes minutes",
    "plot on the page": "a script draws it, in a browser: tests/planner/test_page.py",
    "benchmark": "it is outside of the packages and runs for minutes",
    "tool for agents": "a server answers it: tests/planner/test_agents.py",
    "framework whose logs are read": "its logs are read in tests/planner/test_plan_logs.py",
}
"""Rows that cannot be shown so, and why."""


@pytest.mark.slow
@pytest.mark.parametrize("together", TOGETHER.values(), ids=TOGETHER)
def test_rows_say_all_that_a_new_thing_touches(together, tmp_path):
    """Extended as several rows say, each touching what its own names, one copy of the packages does all of it."""
    folder = copied(tmp_path)
    copies = []

    def extend(*things: str, codes: tuple[int, ...] = (0,)) -> Extended:
        copies.append(Extended(folder, *things, codes=codes))
        return copies[-1]

    begun = [try_row(extend) for try_row in together]
    commands = [next(steps) for steps in begun]
    schemas = [SCHEMAS] * any(copy.has_schema for copy in copies)
    answers = iter(say(folder, *schemas, *chain(*commands))[len(schemas) :])
    for steps, copy, asked in zip(begun, copies, commands, strict=True):
        with suppress(StopIteration):
            steps.send(copy.texts([*islice(answers, len(asked))]))


def test_every_row_is_shown():
    """A new row of the table comes with its test."""
    tried = {try_row.__name__ for together in TOGETHER.values() for try_row in together}
    others = {thing: re.sub(r"\W+", "_", thing.lower()).strip("_") for thing in rows()}

    assert tried == {name for thing, name in others.items() if thing not in OTHERWISE}
    assert OTHERWISE.keys() < others.keys()
