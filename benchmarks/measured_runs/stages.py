"""Stages of a pipeline as a row prints them: Megatron-LM's layout syntax."""

from __future__ import annotations

import re

NOTED = re.compile(r"pp_layout=([^\s;]+)")
"""Megatron-LM's ``--pipeline-model-parallel-layout`` in a row's notes."""

GROUP = re.compile(r"\(([^)]*)\)\*(\d{1,3})(?!\d)")
REPEATED = re.compile(r"(\w)\*(\d{1,3})(?!\d)")
"""Repetitions; nobody has thousands of stages."""


def printed_stages(layout: str) -> tuple[int, ...]:
    """
    Layers of each virtual stage; embedding, head and multi-token prediction (``E``, ``L``, ``m``) are not counted.

    >>> printed_stages("Et*4|(t*4|)*2tmL"), printed_stages("")
    ((4, 4, 4, 1), ())
    """
    if not layout:
        return ()
    for pattern in (GROUP, REPEATED):
        layout = pattern.sub(lambda found: found.group(1) * int(found.group(2)), layout)
    return tuple(stage.count("t") for stage in layout.split("|"))
