"""A training step: micro-batches, gradients summed over ranks, AdamW."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.small_transformers.configurations import Configuration
from benchmarks.small_transformers.transformer import Tensor, logits_of, random_weights, rotations

LEARNING_RATE = 1e-4


class Training:
    """
    A model with its optimizer and one batch, which every step trains on.

    Parameters
    ----------
    one
        The configuration.
    rank
        Of the data-parallel ranks; more than one need a process group of torch.
    device, dtype
        Where, and in what the model computes.
    """

    def __init__(
        self,
        one: Configuration,
        *,
        rank: int = 0,
        device: str = "cpu",
        dtype: str = "float32",
    ) -> None:
        import torch

        self.one = one
        self.weights = random_weights(one, device=device, dtype=dtype)
        self.batch = random_batch(one, device=device)[rank * one.num_microbatches :][: one.num_microbatches]
        self._turned = rotations(one, self.weights["final_norm"])
        self._optimizer = torch.optim.AdamW(self.weights.values(), lr=LEARNING_RATE, fused=True)

    def step(self) -> None:
        """One step from old weights to new ones."""
        self.gradients()
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

    def gradients(self) -> float:
        """Gradients of all ranks' micro-batches, averaged; the mean loss of this rank's."""
        parts = self.one.num_microbatches * self.one.dp
        total = 0.0
        for tokens, targets in self.batch:
            loss = self.loss(tokens, targets)
            (loss / parts).backward()
            total += float(loss.detach())
        if self.one.dp > 1:
            self._sum_over_ranks()
        return total / self.one.num_microbatches

    def logits(self, tokens: Tensor) -> Tensor:
        """What the model says of each token's successor; shape (rows, vocab_size)."""
        return logits_of(self.weights, self.one, tokens, self._turned)

    def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy of a micro-batch."""
        from torch.nn import functional

        return functional.cross_entropy(self.logits(tokens).float(), targets)

    def _sum_over_ranks(self) -> None:
        """One flat tensor of all gradients, which they are views of behind it."""
        import torch
        from torch import distributed

        weights = list(self.weights.values())
        flat = torch.cat([weight.grad.flatten() for weight in weights])
        distributed.all_reduce(flat)
        for weight, piece in zip(weights, flat.split([one.numel() for one in weights]), strict=True):
            weight.grad = piece.view_as(weight)


def random_batch(one: Configuration, *, device: str = "cpu", seed: int = 1) -> Sequence[tuple[Tensor, Tensor]]:
    """Tokens and targets of every micro-batch of all ranks, each of shape (rows,); the same on every rank."""
    import torch

    generator = torch.Generator().manual_seed(seed)

    def drawn() -> Any:
        return torch.randint(one.vocab_size, (one.rows,), generator=generator).to(device)

    return [(drawn(), drawn()) for _ in range(one.num_microbatches * one.dp)]
