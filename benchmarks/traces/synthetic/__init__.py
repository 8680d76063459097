"""
Traces of all ranks of a training job on GPUs, made rather than recorded, and what is true of them.

Nothing here learns from traces: a machine of threads and streams runs the steps, so that whoever reads the traces and
builds, replays or changes graphs of them can be compared with it to the nanosecond.
"""

from benchmarks.traces.synthetic.machine import Lags
from benchmarks.traces.synthetic.recipe import Recipe, Work
from benchmarks.traces.synthetic.truth import Made, make

__all__ = ["Lags", "Made", "Recipe", "Work", "make"]
