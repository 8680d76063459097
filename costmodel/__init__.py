"""Cost of a strategy: time and memory of any strategy, with any source of operator times."""

import logging

logging.getLogger(__name__).addHandler(logging.NullHandler())

MIB_BYTES, GIB_BYTES = 2**20, 2**30
