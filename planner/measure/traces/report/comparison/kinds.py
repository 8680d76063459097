"""Names of the parts of a step, and members of each: operators of the cost model, lines of the breakdown, messages."""

from __future__ import annotations

import re
from collections.abc import Mapping

from costmodel.strategy import Strategy
from planner.measure.traces.events import Message

EXPERTS = "experts"

KINDS: Mapping[str, str] = {
    "embedding": r"embedding",
    "head and loss": r"head|loss|mtp_projection",
    "norms and residuals": r".*norms?|residuals",
    EXPERTS: r"expert_.*|shared_.*|router|top_k|sort|dispatch|combine|latent_(up|down)",
    "queries, keys, values": r"qkv|(q|k|v|kv|query|key|value).*|in_projection",
    "attention": r"core_attention|softmax|rotary|convolution|decay|scan|.*scores",
    "attention's output": r"output_projection|output_gate|context_output",
    "feed-forward": r"(up|down|gate|activation).*",
}
"""Parts of a step, and the cost model's operators in each; the first match counts."""

MODEL_PARTS: Mapping[str, str] = {
    "recompute": "recompute",
    "tp": "tp communication",
    "cp": "cp communication",
    "ep": "ep communication",
    "dp": "dp communication",
    "pp": "pp communication and bubble",
    "bubble": "pp communication and bubble",
    "offload": "copies to and from the host",
    "host": "host and idle",
    "optimizer": "gradient sums and optimizer",
}
"""Lines of the planner's breakdown, computation aside, by the parts that a trace can distinguish."""

RECOMPUTE, OPTIMIZER, COPIES, IDLE, OTHER = (
    "recompute",
    "gradient sums and optimizer",
    "copies to and from the host",
    "host and idle",
    "other",
)

GROUPS: Mapping[str, str] = {
    "tp": r"(?i)(^|[^a-z])tp([^a-z]|$)|tensor",
    "pp": r"(?i)(^|[^a-z])pp([^a-z]|$)|pipeline",
    "cp": r"(?i)(^|[^a-z])cp([^a-z]|$)|context",
    "ep": r"(?i)(^|[^a-z])ep([^a-z]|$)|expert",
    "dp": r"(?i)(^|[^a-z])dp([^a-z]|$)|data_parallel|ddp|fsdp|shard|replicate",
}
"""Patterns in the descriptions of process groups of Megatron-LM, torchtitan and DeepSpeed."""

KIND_OF_GROUP: Mapping[str, str] = {
    "send": "pp",
    "recv": "pp",
    "dispatch": "ep",
    "combine": "ep",
    "notify": "ep",
    "all_to_all": "ep",
}
"""Groups by operation, where no description names them."""


def kind_of(name: str) -> str:
    """
    Return the part of a step to which an operator of the cost model belongs.

    >>> kind_of("core_attention"), kind_of("down"), kind_of("mtp_norms")
    ('attention', 'feed-forward', 'norms and residuals')
    """
    return next((kind for kind, pattern in KINDS.items() if re.fullmatch(pattern, name)), OTHER)


def group_of(message: Message, strategy: Strategy) -> str:
    """
    Return the parallel group of a message; "" where it is unknown.

    It follows from the message's description, from its operation, or from the only degree of the strategy with its
    number of ranks.
    """
    for group, pattern in GROUPS.items():
        if re.search(pattern, message.description):
            return group
    if message.operation in KIND_OF_GROUP:
        return KIND_OF_GROUP[message.operation]
    degrees = {"tp": strategy.tp, "cp": strategy.cp, "ep": strategy.ep, "dp": strategy.dp, "pp": strategy.pp}
    fitting = [group for group, ranks in degrees.items() if ranks == message.num_ranks]
    several = [group for group, ranks in degrees.items() if ranks > 1]
    candidates = fitting if len(fitting) == 1 else several
    return candidates[0] if len(candidates) == 1 else ""
