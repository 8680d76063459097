"""What a strategy costs: time and memory of any strategy, with any source of operator times."""

from costmodel.former_names import install

install()
