"""What holds for all tests, before a library of numbers is imported."""

import os

# One test process per core (pytest -n auto) computes already: threads of BLAS beside them take twice the processor
# time for the same matrices, and where others work on the machine, ten times as long.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")
