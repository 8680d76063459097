"""Names of the studies, which the command line knows before it loads the rest."""

from __future__ import annotations

from collections.abc import Mapping

FEATURES = "features"

STUDIES: Mapping[str, str] = {
    FEATURES: "what each feature of the plan gains, alone and last, and what each other one would cost",
    "schedule": "VPP, pipeline ranks and micro-batches",
    "reliability": "checkpoint interval, failures, nodes, time to repair and checkpoint time",
    "scale": "number of devices, with the same batch and with a batch in proportion",
    "nodes": "devices of a scale-up domain",
    "network": "bandwidth between nodes and inside a scale-up domain",
    "batch": "sequences per step",
    "sequence": "tokens per sequence",
    "sites": "bandwidth between sites, local steps, number of sites",
}
"""Names of the studies, with their subjects."""
