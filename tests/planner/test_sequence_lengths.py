"""The entry training.sequence_lengths: histograms and files, and messages about bad ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from costmodel.errors import SpecError
from planner.frameworks import export
from planner.jobs.problem import load
from planner.verbs.plan import plan
from tests.cases import in_one_case


def a_job(lengths: Any, **training: Any) -> dict[str, Any]:
    """A small job whose samples of 32k tokens are packed."""
    entries = {"global_batch_size": 64, "sequence_length": "32k", "tokens": "1B", "sequence_lengths": lengths}
    return {
        "model": "llama3-8b",
        "cluster": {"device": "h100-80gb-sxm", "num_devices": 16},
        "training": {**entries, **training},
    }


def message_of(lengths: Any) -> str:
    """The refusal of some lengths."""
    with pytest.raises(SpecError) as caught:
        load(a_job(lengths))
    return str(caught.value)


def test_a_histogram_is_read_with_units():
    """Lengths may have units, counts may be shares, and names may be numbers."""
    lengths = load(a_job({"1k": 3, 2048: 0.5})).facts.workload.lengths

    assert lengths is not None
    assert (lengths.lengths, lengths.counts) == ((1024, 2048), (3.0, 0.5))


def test_a_yaml_file_may_name_lengths_by_numbers(tmp_path):
    """{4096: 1} is as good as {4k: 1}, and a file of lengths is found beside the job."""
    (tmp_path / "lengths.csv").write_text("length,count\n4096,2\n# long ones\n8k\n8192\n")
    job = "model: llama3-8b\ncluster: {device: h100-80gb-sxm, num_devices: 8}\n"
    job += "training: {global_batch_size: 64, sequence_length: 32k, tokens: 1B, sequence_lengths: LENGTHS}\n"
    found = []
    for name, entry in {"a": "{4096: 1, 8192: 1}", "b": "lengths.csv"}.items():
        (tmp_path / f"{name}.yaml").write_text(job.replace("LENGTHS", entry))
        found.append(load(tmp_path / f"{name}.yaml"))

    assert found[0].facts.workload.lengths == found[1].facts.workload.lengths.__class__(
        lengths=(4096, 8192), counts=(1.0, 1.0)
    )
    assert found[1].facts.workload.lengths.counts == (2.0, 2.0)
    assert found[1].document["training"]["sequence_lengths"] == {"4096": 2, "8192": 2}
    assert Path("lengths.csv") in [Path(one.name) for one in found[1].sources]


@pytest.mark.slow
def test_samples_of_one_sequence_are_the_job_without_the_entry():
    """Sequences as long as a sample are what a job without the entry has: the same facts, the same plan."""
    with_entry, without = load(a_job({"32k": 1})), load(a_job(None))

    assert with_entry.facts.workload == without.facts.workload
    assert plan(with_entry).plans[0].step_seconds == plan(without).plans[0].step_seconds


BAD = [
    ({"64k": 1}, "training.sequence_lengths.64k: is 65,536 tokens, more than a sample has"),
    ({"1k": 0}, "training.sequence_lengths.1k: expected a number or a share of sequences above 0, got 0."),
    ({"1k": -2}, "above 0, got -2."),
    ({"1k": True}, "training.sequence_lengths.1k: expected a number or a share of sequences, got true."),
    ({"1k": "many"}, "training.sequence_lengths.1k: expected"),
    ({"long": 1}, "training.sequence_lengths.long: expected a length in tokens such as 4k or 4096, got 'long'."),
    ({"0": 1}, "expected a length in tokens such as 4k or 4096, got '0'."),
    ({"1k": 1, 1024: 2}, "training.sequence_lengths.1024: names the length 1,024 a second time, after '1k'."),
    (dict.fromkeys(map(str, range(1, 16_386)), 1), "lengths.16385: is one length too many: at most 16,384 different"),
    ({}, "training.sequence_lengths: holds no length. Write {4k: 0.7, 32k: 0.3}."),
    ([1024, 2048], "training.sequence_lengths: expected"),
    ("no/such.csv", "no/such.csv"),
]


@in_one_case(("lengths", "message"), BAD)
def test_bad_lengths_are_refused(lengths, message):
    """The place, the value seen, and the values that are allowed."""
    assert message in message_of(lengths)


@in_one_case(
    ("text", "message"),
    [
        ("4096\n65536\n", "line 2: is 65,536 tokens, more than a sample has: training.sequence_length is 32,768."),
        ("4096,1,2\n", "line 1: expected 'LENGTH' or 'LENGTH,COUNT', got '4096,1,2'."),
        ("\n\n", "holds no length."),
        ("4096,-1\n", "line 1: expected a number or a share of sequences above 0, got '-1'."),
        ("4096 8192\n", "line 1: expected 'LENGTH' or 'LENGTH,COUNT', got '4096 8192'. Put a comma between."),
    ],
)
def test_bad_lines_of_a_file_are_refused(text, message, tmp_path):
    """File and line, the value seen, and the values that are allowed."""
    path = tmp_path / "lengths.txt"
    path.write_text(text)

    assert message in message_of(str(path))


def test_lengths_may_be_given_on_the_command_line():
    """An override names lengths by numbers as the job file does."""
    problem = load(a_job(None), ["training.sequence_lengths={1024: 3, 4k: 1}"])

    assert problem.facts.workload.lengths is not None
    assert problem.facts.workload.lengths.lengths == (1024, 4096)


def test_dynamic_context_parallelism_needs_lengths_and_is_exported():
    """Megatron-LM deals sequences by --hybrid-context-parallel; without lengths there is nothing to deal."""
    job = a_job({"1k": 60, "32k": 10}, max_seqlen_per_dp_cp_rank="8k")
    job["search"] = {"target": "megatron-lm"}
    job["cluster"]["framework"] = "megatron-lm-0.17"
    best = plan(load(job)).plans[0]
    lines = export(best, "megatron-lm").files["megatron-args.txt"].splitlines()

    assert best.strategy.pp == 1
    assert {"--hybrid-context-parallel", "--max-seqlen-per-dp-cp-rank 8192"} <= {*lines}
    assert any("cu_seqlens" in note for note in export(best, "megatron-lm").notes)
    with pytest.raises(SpecError, match="is 8,192 without training"):
        load(a_job(None, max_seqlen_per_dp_cp_rank="8k"))


@pytest.mark.slow
def test_packed_sequences_and_unmeasured_exchanges_are_named_as_unmeasured():
    """No measured run has either, so that the interval is wider and the answer says why."""
    job = a_job({"1k": 60, "32k": 10}) | {"settings": {"cp_comm_type": "a2a"}, "search": {"pin": {"cp": 2}}}
    with_both, without = plan(load(job)).plans[0], plan(load(a_job(None))).plans[0]
    found = {gap.dimension: gap.sentence for gap in with_both.gaps}

    assert found["sequence_lengths"] == "no measured run packs sequences of unequal lengths"
    assert found["cp_comm_type"] == "no measured run has context parallelism by a2a"
    assert not {"sequence_lengths", "cp_comm_type"} & {gap.dimension for gap in without.gaps}
