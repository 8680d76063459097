"""What starts an exported plan: scripts that a shell takes, directives and a TrainJob with the plan's numbers."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
from dataclasses import replace

import pytest
import yaml

from costmodel.errors import SpecError
from planner import load
from planner.frameworks import LAUNCHERS, TARGETS
from planner.frameworks.launch import launched
from planner.frameworks.target import Export
from planner.frameworks.torchtitan import to_torchtitan
from planner.results import Plan
from tests.builders_estimate import estimate_by_recipes as estimate
from tests.cases import in_one_case

JOB = {
    "model": "llama3-8b",
    "cluster": {"device": "h100-80gb-sxm", "num_devices": 16},
    "training": {"global_batch_size": 64, "sequence_length": 8192, "tokens": 1e11},
}
LAYOUT_OPTION, LAYOUT = "--pipeline-model-parallel-layout", "Et*7|t*9|t*9|t*7L"
OPTIONS = f"--bf16\n--recompute-modules mlp moe\n{LAYOUT_OPTION} '{LAYOUT}'\n"


def a_plan(num_devices: int = 16, device: str = "h100-80gb-sxm") -> Plan:
    """Llama-3-8B on as many GPUs."""
    cluster = {"device": device, "num_devices": num_devices}
    training = {**JOB["training"], "global_batch_size": max(64, num_devices)}
    return estimate(load({**JOB, "cluster": cluster, "training": training}), {}).plan


def a_sharded_plan() -> Plan:
    """One that torchtitan can express."""
    job = {**JOB, "settings": {"gradient_dtype": "fp32", "weight_dtype": "fp32", "loss": "unfused"}}
    return estimate(load(job), {"sharding": "weights", "dp_overlap": True}).plan


def an_export(target: str = "Megatron-LM") -> Export:
    """A main file with options, one of them with what a shell would take for a pipe, and a difficult variable."""
    variables = {"CUDA_DEVICE_MAX_CONNECTIONS": "1", "MESSAGE": "it's $HOME"}
    return Export(target=target, files={"options.txt": OPTIONS}, environment=variables)


def file_of(launcher: str, plan: Plan | None = None, export: Export | None = None) -> str:
    """The launch file alone."""
    return list(launched(plan or a_plan(), export or an_export(), launcher).files.values())[-1]


def script_of(launcher: str, export: Export | None = None) -> str:
    """What a shell runs of it."""
    text = file_of(launcher, export=export)
    return yaml.safe_load(text)["spec"]["trainer"]["args"][0] if launcher == "kubernetes" else text


@pytest.fixture
def run(tmp_path):
    """Run a script where the programs of a cluster print what they are called with."""
    tools = tmp_path / "bin"
    tools.mkdir()
    show = '#!/bin/bash\nprintf "<%s>" "$@"\necho "$MESSAGE"\n'
    for name, text in {
        "torchrun": show,
        "accelerate": show,
        "srun": '#!/bin/bash\nshift 2\nexec "$@"\n',
        "scontrol": "#!/bin/bash\necho node-a\necho node-b\n",
    }.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    (tmp_path / "options.txt").write_text(OPTIONS)

    def run(script: str, **variables: str) -> str:
        environment = {"PATH": f"{tools}:{os.environ['PATH']}", "MESSAGE": "it's $HOME", **variables}
        command = ["bash", "-c", script]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
        return done.stdout

    return run


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_shell_can_read_every_script(launcher, target):
    """``bash -n`` finds nothing wrong."""
    script = script_of(launcher, an_export(target))

    assert subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=False).stderr == ""


@pytest.mark.parametrize(
    ("launcher", "variables"),
    [
        ("torchrun", {"HEAD_NODE": "node-a"}),
        ("slurm", {"SLURM_JOB_NODELIST": "node-[a-b]", "SLURM_JOB_ID": "7"}),
        ("kubernetes", {}),
    ],
)
def test_options_arrive_as_they_are(run, launcher, variables):
    """Each word once, the layout with its bars; variables with their quotes and dollars."""
    out = run(script_of(launcher), **variables)

    assert f"<pretrain_gpt.py><--bf16><--recompute-modules><mlp><moe><{LAYOUT_OPTION}><{LAYOUT}>" in out
    assert out.endswith("it's $HOME\n")


def test_nodes_meet_at_the_first_one(run):
    """The first host of the allocation, at torchrun's port, under the number of the job."""
    out = run(script_of("slurm"), SLURM_JOB_NODELIST="node-[a-b]", SLURM_JOB_ID="7")

    assert "<--nnodes=2><--nproc-per-node=8><--rdzv-backend=c10d><--rdzv-endpoint=node-a:29500><--rdzv-id=7>" in out


def test_accelerate_starts_its_own_processes(run):
    """With the file that it reads and where the nodes meet; the batch size goes to the script."""
    export = Export(target="Accelerate", files={"accelerate.yaml": "num_machines: 2\n"})

    out = run(script_of("torchrun", export), HEAD_NODE="node-a")

    assert "<launch><--config_file><accelerate.yaml><--main_process_ip=node-a><--main_process_port=29500>" in out
    assert "<train.py><--per_device_train_batch_size><1>" in out


def test_a_head_node_is_asked_for(run):
    """Without it the script says what is missing."""
    with pytest.raises(subprocess.CalledProcessError) as error:
        run(script_of("torchrun"))

    assert "HEAD_NODE: the host name of one of the nodes" in error.value.stderr


def test_one_node_needs_no_meeting():
    """8 GPUs are one node; 4 are half of one."""
    assert "--standalone \\\n    --nproc-per-node=8" in file_of("torchrun", a_plan(8))
    assert "--nproc-per-node=4" in file_of("slurm", a_plan(4))
    assert "HEAD_NODE:?" not in file_of("torchrun", a_plan(8))


def test_slurm_gets_whole_nodes():
    """16 GPUs are two nodes of eight, with all their memory, a task each that starts the processes."""
    directives = re.findall(r"^#SBATCH (.*)$", file_of("slurm"), flags=re.MULTILINE)

    assert directives == [
        "--job-name=llama3-8b",
        "--nodes=2",
        "--ntasks-per-node=1",
        "--gpus-per-node=8",
        "--exclusive",
        "--mem=0",
    ]


def test_slurm_keeps_expert_groups_in_one_domain():
    """Experts over 64 of the 72 GPUs of a domain: 16 of its 18 nodes, though 288 nodes are 16 whole domains too."""
    cluster = {"device": "gb300", "num_devices": 1152}
    training = {**JOB["training"], "global_batch_size": 1152}
    job = load({**JOB, "model": "qwen3-235b-a22b", "cluster": cluster, "training": training})

    found = file_of("slurm", estimate(job, {"ep": 64, "pp": 1, "tp": 1, "cp": 1}).plan)

    assert "#SBATCH --segment=16\n" in found


@pytest.mark.parametrize(("num_devices", "segment"), [(64, 16), (144, 18), (512, 16), (4 * 37, None)])
def test_slurm_keeps_scale_up_domains_together(num_devices, segment):
    """NVLink domains of 72 are 18 nodes of 4: 16 nodes are one segment, 36 two of 18, 128 eight of 16, 37 none."""
    found = re.findall(r"^#SBATCH --segment=(\d+)$", file_of("slurm", a_plan(num_devices, "gb200")), flags=re.MULTILINE)

    assert found == ([str(segment)] if segment else [])


def test_kubernetes_gets_a_train_job():
    """Nodes, processes, GPUs, variables, and the files inside the script."""
    job = yaml.safe_load(file_of("kubernetes"))
    trainer = job["spec"]["trainer"]

    assert (job["apiVersion"], job["kind"]) == ("trainer.kubeflow.org/v1alpha1", "TrainJob")
    assert job["spec"]["runtimeRef"] == {"name": "torch-distributed"}
    assert (trainer["numNodes"], trainer["numProcPerNode"]) == (2, 8)
    assert trainer["resourcesPerNode"] == {"limits": {"nvidia.com/gpu": 8}}
    assert {"name": "MESSAGE", "value": "it's $HOME"} in trainer["env"]
    assert OPTIONS in trainer["args"][0]


@pytest.mark.parametrize(("name", "expected"), [("DeepSeek V3 (671B)", "deepseek-v3-671b"), ("...", "pretraining")])
def test_names_are_what_kubernetes_takes(name, expected):
    """Lower case, digits and hyphens."""
    plan = a_plan()
    named = replace(plan, facts=replace(plan.facts, model=replace(plan.facts.model, name=name)))

    assert yaml.safe_load(file_of("kubernetes", named))["metadata"] == {"name": expected}


def test_no_name_ends_a_comment():
    """A model may be called anything; a script runs nothing of it."""
    plan = a_sharded_plan()
    name = 'x\ntouch here\n"""; touch here'
    named = replace(plan, facts=replace(plan.facts, model=replace(plan.facts.model, name=name)))

    for launcher in LAUNCHERS:
        assert "touch here" not in [line.strip() for line in file_of(launcher, named).splitlines()]
    assert recipe_docstring(named).count("touch here") == 2


def recipe_docstring(plan: Plan) -> str:
    """The text at the beginning of the recipe, which Python reads as one."""
    (text,) = to_torchtitan(plan).files.values()
    return ast.get_docstring(ast.parse(text)) or ""


def test_what_is_left_to_do_is_listed():
    """Each TODO of the file is a note, once."""
    export = launched(a_plan(), an_export("DeepSpeed"), "kubernetes")

    assert [note.partition(":")[0] for note in export.notes] == ["TODO", "TODO"]
    assert "spec.trainer.image" in export.notes[1]


def test_devices_fill_nodes():
    """12 GPUs are no whole nodes of 8, and launchers start as many processes on each."""
    plan = estimate(load({**JOB, "cluster": {"device": "h100-80gb-sxm", "num_devices": 12}}), {"dp": 4, "pp": 3}).plan

    with pytest.raises(SpecError, match="12 devices do not fill nodes of 8 equally"):
        launched(plan, an_export(), "slurm")


NUMBERS_OF_GPUS = (1, 8, 16)
"""One GPU, a node, several nodes."""


@in_one_case("num_devices", NUMBERS_OF_GPUS)
@in_one_case("target", TARGETS)
@in_one_case("launcher", LAUNCHERS)
@pytest.mark.slow
def test_no_script_reads_what_it_does_not_set(launcher, target, num_devices):
    """
    Names in small letters are the script's own: each is assigned above its use (shellcheck's SC2154).

    Names in capitals are the environment's; those that the script assigns it also reads (SC2034).
    """
    text = file_of(launcher, a_plan(num_devices), an_export(target))
    script = yaml.safe_load(text)["spec"]["trainer"]["args"][0] if launcher == "kubernetes" else text
    lines = [line for line in script.splitlines() if not line.startswith("#")]
    set_at = {name: place for place, line in enumerate(lines) for name in re.findall(r"^([A-Za-z_]+)=", line)}
    read_at = [(name, place) for place, line in enumerate(lines) for name in re.findall(r"\$\{?([A-Za-z_]+)", line)]

    assert all(set_at.get(name, len(lines)) < place for name, place in read_at if name.islower())
    assert {*set_at} <= {name for name, _ in read_at}


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
@in_one_case("num_devices", NUMBERS_OF_GPUS)
@in_one_case("target", TARGETS)
@in_one_case("launcher", LAUNCHERS)
def test_shellcheck_finds_nothing(launcher, target, num_devices):
    """At its default severity, in the scripts of all launchers."""
    export = replace(an_export(target), environment={"CUDA_DEVICE_MAX_CONNECTIONS": "1"})
    text = file_of(launcher, a_plan(num_devices), export)
    script = f"#!/bin/bash\n{yaml.safe_load(text)['spec']['trainer']['args'][0]}" if launcher == "kubernetes" else text

    done = subprocess.run(["shellcheck", "-"], input=script, text=True, capture_output=True, check=False)

    assert done.stdout == ""
