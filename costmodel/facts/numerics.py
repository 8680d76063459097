"""Facts of a model that change its results and not its cost; None: not known."""

from __future__ import annotations

from typing import Literal

from pydantic.dataclasses import dataclass

from costmodel.facts.fields import STRICT, Count, Fraction, NotNegative, Positive


@dataclass(frozen=True, kw_only=True, slots=True, config=STRICT)
class Rotary:
    """
    Rotary position embedding.

    Parameters
    ----------
    base
        Base of the frequencies (``rope_theta``).
    fraction
        Share of a head's channels that are rotated.
    scaling
        Rule that changes frequencies for longer contexts, by its Hugging Face name; ``default``: none.
    parameters
        Numbers of that rule by their names there, sorted.
    """

    base: Positive | None = None
    fraction: Fraction | None = None
    scaling: str = "default"
    parameters: tuple[tuple[str, float], ...] = ()

    def parameter(self, name: str, default: float | None = None) -> float | None:
        """Return a number of the scaling; the default if it is absent."""
        return dict(self.parameters).get(name, default)


@dataclass(frozen=True, kw_only=True, slots=True, config=STRICT)
class Routing:
    """
    Choice of a token's experts, and the weights of their results.

    Parameters
    ----------
    score_function
        Function of the router's logits.
    normalizes
        True if the weights of the chosen experts add up to one before they are scaled.
    expert_bias
        True if a bias that balances the load is added to the scores that choose.
    num_groups, group_topk
        Groups of experts, and the number of them that a token's experts are in.
    ranks_groups_by
        ``two_best``: a group counts as much as its two best experts together; ``best``: as its best one.
    scaling_factor
        Factor of all weights.
    aux_loss, aux_loss_coefficient
        Kind and weight of the loss that balances the load.
    input_jitter
        Width of the noise that multiplies tokens.
    """

    score_function: Literal["softmax", "sigmoid"] | None = None
    normalizes: bool | None = None
    expert_bias: bool | None = None
    num_groups: Count | None = None
    group_topk: Count | None = None
    ranks_groups_by: Literal["two_best", "best"] = "two_best"
    scaling_factor: NotNegative | None = None
    aux_loss: Literal["aux_loss", "seq_aux_loss"] = "aux_loss"
    aux_loss_coefficient: NotNegative | None = None
    input_jitter: NotNegative = 0.0


@dataclass(frozen=True, kw_only=True, slots=True, config=STRICT)
class Numerics:
    """
    Facts of a model beside its sizes.

    Parameters
    ----------
    norm_epsilon
        Number that norms add to the variance.
    norm_weights_from_one
        True if a norm multiplies by one plus its weight, which begins at zero.
    initializer_range
        Standard deviation of the weights at the start.
    attention_dropout, hidden_dropout, embedding_dropout
        Probabilities of dropout: of scores, of the blocks' outputs, of the embedding.
    activation
        Non-linearity of the feed-forward, by its Hugging Face name.
    activation_limit
        Bound of the activation's input (gpt-oss); None: none.
    rotary, windowed_rotary
        Rotary embedding; the one of layers with a sliding window, if it differs.
    attention_softcap, logit_softcap
        Bounds of a hyperbolic tangent around scores and logits; None: none.
    score_scale
        Factor of the scores, if it is not the inverse root of a head's width.
    routing
        Choice of the experts; None: no experts, or not known.
    """

    norm_epsilon: NotNegative | None = None
    norm_weights_from_one: bool = False
    initializer_range: NotNegative | None = None
    attention_dropout: Fraction | None = None
    hidden_dropout: Fraction | None = None
    embedding_dropout: Fraction | None = None
    activation: str | None = None
    activation_limit: Positive | None = None
    rotary: Rotary | None = None
    windowed_rotary: Rotary | None = None
    attention_softcap: Positive | None = None
    logit_softcap: Positive | None = None
    score_scale: Positive | None = None
    routing: Routing | None = None
