"""Cost of a strategy: time and memory of any strategy, with any source of operator times."""

import logging

logging.getLogger(__name__).addHandler(logging.NullHandler())
