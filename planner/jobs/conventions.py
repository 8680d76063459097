"""Conventions of a report's figures: numbers of the model, the peak of MFU, and the source of operator times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from costmodel.facts.fields import Dtype
from costmodel.lowering import embedding_operators, head_operators, layer_operators, mtp_operators
from costmodel.models.flops import AttentionConvention, model_flops_per_token
from costmodel.models.parameters import active_parameters, mtp_parameters, parameters, whole_shape
from costmodel.tables import Facts
from costmodel.timing.source import operator_times
from costmodel.timing.work import Operator


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSummary:
    """
    Key numbers of the trained model.

    Parameters
    ----------
    name, source
        Name of the model, and source of its numbers.
    is_text_part
        True for the text part of a multimodal model.
    num_layers
        Number of layers, without multi-token prediction.
    parameters, active_parameters, mtp_parameters
        Number of all; of those that one token meets; of those of multi-token prediction, counted in neither.
    flops_per_token
        FLOPs of forward and backward pass, with multi-token prediction, in the report's attention convention.
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
    Conventions of a report's figures.

    Parameters
    ----------
    peak_dtype, peak_flops
        Dense peak to which MFU and HFU refer.
    peak_bf16_flops
        Dense bf16 peak, for any precision; None: the device has none.
    attention
        ``full``: the scores that the causal mask hides count as FLOPs; ``causal``: they do not.
    operator_times
        Source of each operator's time.
    """

    peak_dtype: Dtype
    peak_flops: float
    peak_bf16_flops: float | None
    attention: AttentionConvention
    operator_times: Mapping[str, str]


def conventions_of(facts: Facts) -> Conventions:
    """Return the conventions of a job's figures."""
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
    """Yield each operator at least once, in the order of a forward pass; samples know it by dtype and framework."""
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
    """Return the key numbers of a job's model."""
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
