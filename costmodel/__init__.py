"""Cost of a strategy: time and memory of any strategy, with any source of operator times."""

import logging

from costmodel.former_names import install

install()
logging.getLogger(__name__).addHandler(logging.NullHandler())
