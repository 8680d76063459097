"""Rules of micro-batches: the global batch divides into them."""

from __future__ import annotations

from constraints.rule import Holds, Ints
from costmodel.facts.workload import Workload


def global_batch_splits_over_ranks(workload: Workload, *, dp: Ints, mbs: Ints) -> Holds:
    """The global batch divides evenly into micro-batches of mbs sequences on dp ranks."""
    return workload.global_batch_size % (dp * mbs) == 0


def microbatches_fill_the_pipeline(*, num_microbatches: Ints, pp: Ints) -> Holds:
    """
    The search gives each data-parallel rank at least as many micro-batches as pipeline ranks (search.preferences).

    Fewer leave ranks idle all the time, but run (vTrain's measurements with Megatron-DeepSpeed, pp 4 and two of them).

    References
    ----------
    MoFa, arXiv 2511.09837, the constraints of equation (42).
    """
    return num_microbatches >= pp
