"""Effects of a framework on the lowering: its settings, and its assignment of layers to stages."""
