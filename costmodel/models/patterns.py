"""Models whose layers are single blocks, Mamba, attention or feed-forward: one letter per layer (Nemotron-H)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

from costmodel.errors import SpecError, did_you_mean
from costmodel.facts.model import Experts, Layer, Mixer, Mlp

Block: TypeAlias = Mixer | Mlp | Experts

LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "experts"}
"""Letters of blocks in ``hybrid_override_pattern`` and in Megatron-LM's ssm/mamba_hybrid_layer_allocation.py."""

MTP_PATTERN = "*E"
"""Blocks of one layer of multi-token prediction: Nemotron 3, and the default of transformers' ``NemotronHConfig``."""


def single_blocks(
    pattern: str, build: Callable[[str], Block], where: str, *, norm: Literal["rms", "layer", "none"]
) -> tuple[Layer, ...]:
    """
    Build one layer per letter, each a norm and a block.

    Parameters
    ----------
    pattern
        Letters of ``LETTERS``.
    build
        Function that builds the block of a name in ``LETTERS``.
    where
        Dotted path of the pattern, for messages.
    norm
        As in :class:`costmodel.facts.model.Layer`.

    Raises
    ------
    SpecError
        If a letter is unknown.
    """
    for letter in pattern:
        if letter not in LETTERS:
            raise SpecError(where, f"unknown letter '{letter}'.", did_you_mean(letter, LETTERS))
    layers = {letter: _layer(build(LETTERS[letter]), norm=norm) for letter in dict.fromkeys(pattern)}
    return tuple(layers[letter] for letter in pattern)


def join_blocks(blocks: Sequence[Layer], where: str) -> Layer:
    """
    Join two single blocks into one layer, as multi-token prediction does: a token mixer, then a feed-forward.

    Raises
    ------
    SpecError
        If the blocks are of other kinds.
    """
    if len(blocks) != 2 or blocks[0].attention is None or blocks[1].feed_forward is None:
        raise SpecError(where, "must be one attention or Mamba block and one feed-forward, as in '*E'.")
    return Layer(attention=blocks[0].attention, feed_forward=blocks[1].feed_forward, norm=blocks[0].norm)


def _layer(block: Block, *, norm: Literal["rms", "layer", "none"]) -> Layer:
    if isinstance(block, Mlp | Experts):
        return Layer(attention=None, feed_forward=block, num_norms=1, norm=norm)
    return Layer(attention=block, feed_forward=None, num_norms=1, norm=norm)
