"""Rules of context parallelism that depend on how its ranks exchange keys and values."""

from __future__ import annotations

from dataclasses import replace

from constraints.rules import frameworks
from costmodel.tables import tabulate
from tests.builders_cluster import a_cluster, a_strategy, achieved, facts
from tests.constraints.models import DENSE


def test_all_to_alls_of_context_parallelism_wait():
    """Only a ring's sends are behind the attention in any case: all-to-alls stand before and after it."""
    plain = a_cluster()
    kept = replace(plain.device.behaviour.memory, context_output=True)
    device = replace(plain.device, **achieved(plain.device, memory=kept))
    waits = a_strategy(cp=2).decisions()

    ring, all_to_all = (
        tabulate(frameworks.context_parallel_rings_overlap, facts(DENSE, cluster=cluster), waits)
        for cluster in (plain, replace(plain, device=device))
    )

    assert (bool(ring), bool(all_to_all)) == (False, True)
