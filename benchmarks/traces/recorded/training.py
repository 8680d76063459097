"""A training step of one rank as frameworks write it: modules, DistributedDataParallel, 1F1B, AdamW, annotations."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias

from benchmarks.small_transformers.transformer import (
    LEARNING_RATE,
    Tensor,
    embedded,
    head_logits,
    layer_output,
    random_batch,
    random_weights,
    rotations,
)
from benchmarks.traces.recorded.configurations import BUCKET_MB, TracedConfiguration
from planner.measure.traces.change import Layout

Mark: TypeAlias = Callable[[str], AbstractContextManager[Any]]
"""Annotation of a part of a step, by its name."""


def annotated(text: str) -> AbstractContextManager[Any]:
    """A stretch of the trace with a name."""
    import torch

    return torch.profiler.record_function(text)  # type: ignore[no-any-return]


class RankTraining:
    """
    What a rank has of a model, its optimizer, and its part of one batch, which every step trains on.

    Parameters
    ----------
    one
        The configuration.
    rank
        Number of the process: a data-parallel rank or a stage of the pipeline.
    """

    def __init__(self, one: TracedConfiguration, rank: int) -> None:
        import torch

        self.one = one
        self.stage, replica = (rank, 0) if one.pp > 1 else (0, rank)
        self._mark: Mark = annotated if one.annotations == "all" else nullcontext
        self.module = stage_module(one, self.stage, self._mark)
        self._replicated = one.dp > 1
        if self._replicated:
            self.module = torch.nn.parallel.DistributedDataParallel(self.module, bucket_cap_mb=BUCKET_MB)
        chosen = {one.optimizer: True}
        self._optimizer = torch.optim.AdamW(self.module.parameters(), lr=LEARNING_RATE, **chosen)
        self.batch = random_batch(one)[replica * one.num_microbatches :][: one.num_microbatches]

    def step(self) -> None:
        """One step from old weights to new ones."""
        self.gradients()
        with self._mark("optimizer"):
            self._optimizer.step()
            self._optimizer.zero_grad(set_to_none=True)

    def gradients(self) -> None:
        """Gradients of all ranks' micro-batches, averaged."""
        if self.one.pp > 1:
            self._pipeline()
            return
        for number in range(self.one.num_microbatches):
            is_last = number == self.one.num_microbatches - 1
            with nullcontext() if is_last or not self._replicated else self.module.no_sync():
                self._backward(self._forward(self.batch[number][0], number))

    def _forward(self, x: Tensor, number: int) -> Tensor:
        """Loss of a micro-batch, as a part of the step's; of stages before the last, what goes to the next one."""
        from torch.nn import functional

        with self._mark("forward"):
            y = self.module(x)
            if self.stage < self.one.pp - 1:
                return y
            return functional.cross_entropy(y, self.batch[number][1]) / self.one.num_microbatches

    def _backward(self, y: Tensor, gradient: Tensor | None = None) -> None:
        with self._mark("backward"):
            y.backward(gradient)

    # --- a pipeline ----------------------------------------------------------------------------------------

    def _pipeline(self) -> None:
        """
        What a stage sends goes out with the next receive, and is waited for.

        As Megatron-LM does without overlap (``send_forward_recv_backward`` and its siblings).
        """
        is_first, is_last = self.stage == 0, self.stage == self.one.pp - 1
        inputs: dict[int, Tensor] = {}
        outputs: dict[int, Tensor] = {}
        leaving: tuple[Tensor, int] | None = None
        layout = Layout(num_layers=self.one.num_layers, num_microbatches=self.one.num_microbatches, pp=self.one.pp)
        for direction, _, number in layout.passes(self.stage):
            if direction == "forward":
                received = self._exchanged(leaving, None if is_first else self.stage - 1)
                inputs[number] = self.batch[number][0] if is_first else received.requires_grad_()
                outputs[number] = self._forward(inputs[number], number)
                leaving = None if is_last else (outputs[number].detach(), self.stage + 1)
            else:
                gradient = self._exchanged(leaving, None if is_last else self.stage + 1)
                self._backward(outputs.pop(number), gradient)
                gradient_of_input = inputs.pop(number).grad
                leaving = None if is_first else (gradient_of_input, self.stage - 1)
        self._exchanged(leaving, None)

    def _exchanged(self, leaving: tuple[Tensor, int] | None, source: int | None) -> Tensor:
        """What comes from another stage, while something leaves; both are waited for."""
        import torch
        from torch import distributed

        operations, arriving = [], None
        if leaving is not None:
            operations.append(distributed.P2POp(distributed.isend, *leaving))
        if source is not None:
            arriving = torch.empty(self.one.rows, self.one.hidden_size)
            operations.append(distributed.P2POp(distributed.irecv, arriving, source))
        if operations:
            for work in distributed.batch_isend_irecv(operations):
                work.wait()
        return arriving


def stage_module(one: TracedConfiguration, stage: int, mark: Mark) -> Any:
    """
    The part of a model that a stage has, as a module of torch.

    Parameters
    ----------
    one, stage
        The configuration, and which stage of its pipeline.
    mark
        What each layer's forward pass runs under, as ``layer 0``, ``layer 1``, ...
    """
    import torch

    is_first, is_last = stage == 0, stage == one.pp - 1
    layers = one.layers_of(stage)
    starts = tuple(f"layers.{index}." for index in layers)
    starts += ("embedding",) * is_first + ("final_norm", "head") * is_last
    drawn = random_weights(one)

    class Stage(torch.nn.Module):  # type: ignore[misc]
        """Embedding, layers and head, as far as the stage has them."""

        def __init__(self) -> None:
            super().__init__()
            self.weights = {
                name: torch.nn.Parameter(weight.detach()) for name, weight in drawn.items() if name.startswith(starts)
            }
            for name, weight in self.weights.items():
                self.register_parameter(name.replace(".", "_"), weight)
            self.turned = rotations(one, drawn["final_norm"])

        def forward(self, x: Tensor) -> Tensor:
            """Logits of tokens; between stages, what goes from one to the next."""
            if is_first:
                x = embedded(self.weights, x)
            for index in layers:
                with mark(f"layer {index}"):
                    x = layer_output(self.weights, one, index, x, self.turned)
            return head_logits(self.weights, x) if is_last else x

    return Stage()
