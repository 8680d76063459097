"""From operators to a step: encoder, stages, pipeline, gradients, update, as GPT-NeoX on DeepSpeed runs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.paper_chain.operators import SampledNetwork, SampledOperators
from costmodel.errors import SpecError
from costmodel.lowering import (
    embedding_communications,
    embedding_operators,
    head_communications,
    head_operators,
    layer_communications,
    layer_operators,
)
from costmodel.lowering.framework import framework_stages
from costmodel.lowering.shape import Shape, layer_shape
from costmodel.strategy import Strategy
from costmodel.tables import Facts
from costmodel.timing.work import Communication, Operator


def last_backward_ends(
    forward: Sequence[float], backward: Sequence[float], *, hop_seconds: float, num_microbatches: int
) -> NDArray[np.float64]:
    r"""
    Seconds from the start of a step until each stage has ended its last backward pass; shape (stages,).

    DeepSpeed's stages do forward and backward passes by turns, neighbours opposite ones. Before its forward pass a
    stage meets the one before it: it sends the gradient of its last backward pass and receives the next activation.
    Both wait for each other and for the transfers, one after the other. With :math:`E_k(s)` for the end of turn k of
    stage s, whose forward pass it is, of duration :math:`F_s`, and n transfers of h seconds:

    .. math:: M_k = \max(E_{k-1}(s - 1), E_{k-1}(s)) + n h, \quad
              E_k(s) = M_k + F_s, \quad E_k(s - 1) = M_k + B_{s-1}

    A micro-batch so takes a stage in the middle F + B + 4 h.

    Parameters
    ----------
    forward, backward
        Seconds of a forward and of a backward pass of each stage, recomputation in the latter.
    hop_seconds
        h: seconds of one transfer.
    num_microbatches
        Micro-batches of a step.

    References
    ----------
    DeepSpeed, ``runtime/pipe/schedule.py``, ``TrainSchedule.steps``.

    Examples
    --------
    >>> last_backward_ends([1.0, 1.0], [2.0, 2.0], hop_seconds=0.0, num_microbatches=3).tolist()
    [12.0, 10.0]
    """
    stages = len(forward)
    clock = np.zeros(stages)

    def is_busy(turn: int, stage: int) -> bool:
        return turn >= 0 and 0 <= _microbatch(turn, stage, stages) < num_microbatches

    for turn in range(2 * (num_microbatches + stages - 1)):
        for stage in range(1, stages):
            if _is_forward(turn, stage) and (
                transfers := is_busy(turn, stage) + is_busy(turn - 1, stage)  # an activation, and a gradient
            ):
                clock[stage - 1 : stage + 1] = max(clock[stage - 1], clock[stage]) + transfers * hop_seconds
        for stage in range(stages):
            if is_busy(turn, stage):
                clock[stage] += forward[stage] if _is_forward(turn, stage) else backward[stage]
    return clock


def _is_forward(turn: int, stage: int) -> bool:
    return (turn + stage) % 2 == 0


def _microbatch(turn: int, stage: int, stages: int) -> int:
    """Number of the micro-batch of a turn: its passes move down the pipeline one stage a turn, then back."""
    started = stage if _is_forward(turn, stage) else 2 * stages - 1 - stage
    return (turn - started) // 2


Seconds = NDArray[np.float64]

HOST_SECONDS = 0.7e-3
"""
Seconds of the host per pass of a layer: eager layers launch no faster than 0.6 to 0.8 ms (vTrain's smallest models on
any number of devices, ``planner/measure/calibrate/constants.yaml``).
"""

UPDATE_BYTES = 52.0
"""
Bytes per parameter of an update: its gradient cast to 32 bits (6), read for the norm (4), scaled (8); Adam reads four
numbers of 4 bytes and writes three (28); weights cast back (6).
"""

GATHERS = (1, 2)
"""
Gathers of what a stage receives in parts, in a forward and in a backward pass: its input; its output once more, and the
output's gradient (DeepSpeed, ``runtime/pipe/engine.py``, ``PartitionedTensor.to_full``, recalled).
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """
    Seconds of the parts of one step.

    Parameters
    ----------
    encoder_forward, encoder_backward
        One layer's forward pass; its forward pass again and its backward pass.
    forward, backward
        Passes of each stage, without what it waits for; shape (stages,).
    tp_allreduce, tp_gather, hop
        The sum of a layer's output over tensor-parallel ranks; the gather of what a stage receives; a transfer to the
        next stage.
    dp_allreduce, dp_allgather, adam
        Sum of a stage's gradients, gather of its weights, update of a rank's share; shape (stages,).
    num_microbatches
        Micro-batches of a step.
    """

    encoder_forward: float
    encoder_backward: float
    forward: Seconds
    backward: Seconds
    tp_allreduce: float
    tp_gather: float
    hop: float
    dp_allreduce: Seconds
    dp_allgather: Seconds
    adam: Seconds
    num_microbatches: int

    @property
    def ready(self) -> Seconds:
        """Seconds from the start of a step until the gradients of each stage are summed; shape (stages,)."""
        forward, backward = self.forward.copy(), self.backward.copy()
        forward[1:] += GATHERS[0] * self.tp_gather
        backward[:-1] += GATHERS[1] * self.tp_gather
        ends = last_backward_ends(
            forward.tolist(), backward.tolist(), hop_seconds=self.hop, num_microbatches=self.num_microbatches
        )
        ready: Seconds = ends + self.dp_allreduce
        return ready

    @property
    def update(self) -> Seconds:
        """
        Seconds of each stage from its own summed gradients to the gathered weights; shape (stages,).

        The norm of all gradients makes every stage wait for the last of them, then each updates its share.
        """
        update: Seconds = self.ready.max() - self.ready + self.adam + self.dp_allgather
        return update

    @property
    def step(self) -> float:
        r"""
        Seconds of the whole step.

        .. math:: T = \max_s (E_s + T_{reduce, s}) + \max_s (T_{Adam, s} + T_{gather, s})
        """
        return float(self.ready.max() + (self.adam + self.dp_allgather).max())

    def components(self) -> dict[str, float]:
        """The parts by the paper's names; its middle stage is the second one."""
        stages: dict[str, Seconds] = {
            "stage_fwd": self.forward,
            "stage_bwd": self.backward,
            "update": self.update,
            "dp_allreduce": self.dp_allreduce,
            "dp_allgather": self.dp_allgather,
        }
        places = {"first": 0, "middle": 1, "last": -1}
        return {
            "encoder_fwd": self.encoder_forward,
            "encoder_bwd": self.encoder_backward,
            **{f"{name}[{place} stage]": float(of[at]) for name, of in stages.items() for place, at in places.items()},
            "pp_p2p": self.hop,
            "mp_allreduce": self.tp_allreduce,
            "1F1B_max_optimizer": self.step,
        }


def composed(
    facts: Facts,
    strategy: Strategy,
    operators: SampledOperators,
    network: SampledNetwork,
    *,
    partitions_activations: bool,
    host_seconds: float = HOST_SECONDS,
) -> Parts:
    r"""
    The parts of a step of plain 1F1B with full recomputation and sharded optimizer states.

    A layer's forward pass is its operators one after the other, its all-reduces and the host, whose work for a layer
    nothing hides: GPT-NeoX waits for the device before and after each layer (``synchronize_each_layer``). Backward the
    layer's forward pass comes first. With v, w for operators forward and backward, c for collectives, H for the host:

    .. math:: T_F = \sum v + \sum c_F + H, \qquad T_B = T_F + \sum w + \sum c_B + H

    Parameters
    ----------
    facts, strategy
        Facts of the run, and its degrees.
    operators, network
        Sampled times of the machine.
    partitions_activations
        True if each tensor-parallel rank keeps a share of the layers' inputs, and gathers them to recompute.
    host_seconds
        H.
    """
    tp, dp, pp = int(strategy.tp), int(strategy.dp), int(strategy.pp)
    shape = layer_shape(
        facts.model, facts.cluster, facts.workload, tp=tp, cp=1, ep=1, etp=1, mbs=strategy.mbs, sequence_parallel=False
    )
    groups = _Groups(network=network, tp=tp, dp=dp, per_node=facts.cluster.device.devices_per_node)
    hidden = shape.activation_bytes * float(shape.tokens) * shape.hidden_size
    layer, first, last = _modules(facts, shape)
    encoder_forward = layer.forward(operators, groups) + host_seconds
    gathered = groups.over_tp("all_gather", hidden) if partitions_activations else 0.0
    encoder_backward = gathered + encoder_forward + layer.backward(operators, groups) + host_seconds
    layers = np.array(_layers_per_stage(facts, pp), dtype=float)
    ends = np.eye(pp)[[0, -1]]  # which stage has the embedding, and which the head
    weights = layers * layer.parameters + np.array([first.parameters, last.parameters]) @ ends
    nbytes = shape.activation_bytes * weights
    return Parts(
        encoder_forward=encoder_forward,
        encoder_backward=encoder_backward,
        forward=layers * encoder_forward + np.array([one.forward(operators, groups) for one in (first, last)]) @ ends,
        backward=layers * encoder_backward
        + np.array([one.backward(operators, groups) for one in (first, last)]) @ ends,
        tp_allreduce=groups.over_tp("all_reduce", hidden),
        tp_gather=groups.over_tp("all_gather", hidden),
        hop=network.collective_seconds("send", hidden / tp, 2, 2),
        dp_allreduce=np.array([groups.over_dp("all_reduce", one) for one in nbytes]),
        dp_allgather=np.array([groups.over_dp("all_gather", one) for one in nbytes]),
        adam=np.array([operators.streaming_seconds(UPDATE_BYTES * one / dp) for one in weights]),
        num_microbatches=int(facts.workload.global_batch_size // (dp * strategy.mbs)),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Groups:
    """Groups that sum and gather: tensor-parallel ranks are neighbours, data-parallel ones are tp apart."""

    network: SampledNetwork
    tp: int
    dp: int
    per_node: int

    def over_tp(self, kind: str, nbytes: float) -> float:
        return self.network.collective_seconds(kind, nbytes, self.tp, -(-self.tp // self.per_node))

    def over_dp(self, kind: str, nbytes: float) -> float:
        together = min(max(self.per_node // self.tp, 1), self.dp)
        return self.network.collective_seconds(kind, nbytes, self.dp, self.dp // together)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Module:
    """A layer, or an end of the model: what it computes and what its tensor-parallel ranks sum."""

    operators: Sequence[Operator]
    communications: Sequence[Communication]

    def forward(self, times: SampledOperators, groups: _Groups) -> float:
        summed = sum(one.forward * groups.over_tp("all_reduce", float(one.nbytes)) for one in self._sums)
        return sum(times.forward_seconds(one) for one in self.operators) + summed

    def backward(self, times: SampledOperators, groups: _Groups) -> float:
        summed = sum(one.backward * groups.over_tp("all_reduce", float(one.nbytes)) for one in self._sums)
        return sum(times.backward_seconds(one) for one in self.operators) + summed

    @property
    def _sums(self) -> list[Communication]:
        return [one for one in self.communications if one.group == "tp" and one.kind == "all_reduce"]

    @property
    def parameters(self) -> float:
        return sum(float(one.parameters) for one in self.operators)


def _modules(facts: Facts, shape: Shape) -> tuple[_Module, _Module, _Module]:
    """A layer, the embedding, and the head with its norm and loss."""
    model, layer = facts.model, facts.model.layers[0]
    return (
        _Module(operators=layer_operators(layer, shape), communications=layer_communications(layer, shape)),
        _Module(operators=embedding_operators(model, shape), communications=embedding_communications(shape)),
        _Module(operators=head_operators(model, shape), communications=head_communications(shape)),
    )


def _layers_per_stage(facts: Facts, pp: int) -> tuple[int, ...]:
    framework = facts.cluster.framework
    dealt = framework_stages(framework, facts.model.num_layers, pp) if framework else None
    if dealt is None:
        raise SpecError("strategy.pp", f"{pp} stages: GPT-NeoX cannot deal {facts.model.num_layers} layers to them.")
    return dealt


def from_components(measured: Mapping[str, float], *, pp: int, num_microbatches: int) -> Parts:
    """
    The parts of a step as they were measured, to see what putting them together alone adds to the error.

    All stages between the ends are the one measured. The last stage's sum of gradients is at most the first one's:
    beyond, it waits for other replicas.

    Parameters
    ----------
    measured
        Seconds by the paper's names.
    pp, num_microbatches
        Stages; micro-batches of a step.
    """

    def stages(name: str) -> Seconds:
        first, middle, last = (measured[f"{name}[{place} stage]"] for place in ("first", "middle", "last"))
        return np.array([first, *[middle] * (pp - 2), last])

    allreduce = stages("dp_allreduce")
    return Parts(
        encoder_forward=measured["encoder_fwd"],
        encoder_backward=measured["encoder_bwd"],
        forward=stages("stage_fwd"),
        backward=stages("stage_bwd"),
        tp_allreduce=measured["mp_allreduce"],
        tp_gather=measured["mp_allreduce"] / 2,  # a ring gathers what it has summed in as many bytes again
        hop=measured["pp_p2p"],
        dp_allreduce=np.minimum(allreduce, [*allreduce[:-1], allreduce[0]]),
        dp_allgather=stages("dp_allgather"),
        adam=np.zeros(pp),
        num_microbatches=num_microbatches,
    )
