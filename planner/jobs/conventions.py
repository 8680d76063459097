"""What the figures of a report are about: the model in numbers, and what MFU and operator times refer to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from costmodel.facts.fields import Dtype
from costmodel.lowering import embedding_operators, head_operators, layer_operators, mtp_operators
from costmodel.models.flops import AttentionConvention, model_flops_per_token
from costmodel.models.parameters import active_parameters, mtp_parameters, parameters, whole_shape
from costmodel.operators.source import operator_times
from costmodel.operators.work import Operator
from costmodel.tables import Facts


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSummary:
    """
    What is trained, in numbers that people compare.

    Parameters
    ----------
    name, source
        What it is called and where its numbers come from.
    is_text_part
        Whether it is the text part of a multimodal model.
    num_layers
        Layers, multi-token prediction not counted.
    parameters, active_parameters, mtp_parameters
        All; those that one token meets; those of multi-token prediction, in neither.
    flops_per_token
        Forward and backward pass, multi-token prediction included, in the report's attention convention.
    """

    name: str
    source: str
    is_text_part: bool
    num_layers: int
    parameters: int
    active_parameters: int
    mtp_parameters: int
    flops_per_token: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Conventions:
    """
    The conventions of the figures of a report.

    Parameters
    ----------
    peak_dtype, peak_flops
        The dense peak that MFU and HFU refer to.
    peak_bf16_flops
        The dense bf16 peak, whatever the precision; None: the device has none.
    attention
        Whether the scores that the causal mask hides are counted as FLOPs (``full``) or not (``causal``).
    operator_times
        Who timed each operator.
    """

    peak_dtype: Dtype
    peak_flops: float
    peak_bf16_flops: float | None
    attention: AttentionConvention
    operator_times: Mapping[str, str]


def conventions_of(facts: Facts) -> Conventions:
    """The conventions of a job's figures."""
    device, dtype = facts.cluster.device, facts.workload.precision.compute
    times = operator_times(device, dtype)
    return Conventions(
        peak_dtype=dtype,
        peak_flops=device.peak_flops[dtype],
        peak_bf16_flops=device.peak_flops.get("bf16"),
        attention="causal" if device.behaviour.kernels.causal_attention else "full",
        operator_times={operator.name: times.origin(operator) for operator in _every_operator(facts)},
    )


def _every_operator(facts: Facts) -> Iterable[Operator]:
    """Each operator at least once, in the order of a forward pass; samples know it by dtype and framework."""
    model, device, compute = facts.model, facts.cluster.device, facts.workload.precision.compute
    shape = replace(whole_shape(model), compute_dtype=compute, wide_dtype=device.wide_dtype(compute))
    if device.constants.times == "sampled":
        shape = replace(shape, kernels=device.behaviour.kernels)
    yield from embedding_operators(model, shape)
    for layer in model.kinds:
        yield from layer_operators(layer, shape)
    yield from head_operators(model, shape)
    yield from mtp_operators(model, shape)


def model_summary(facts: Facts, conventions: Conventions) -> ModelSummary:
    """What a job trains."""
    model = facts.model
    return ModelSummary(
        name=model.name,
        source=model.source,
        is_text_part=model.is_text_part,
        num_layers=model.num_layers,
        parameters=parameters(model),
        active_parameters=active_parameters(model),
        mtp_parameters=mtp_parameters(model),
        flops_per_token=model_flops_per_token(model, facts.workload.sequence_length, conventions.attention),
    )
