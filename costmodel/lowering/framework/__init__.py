"""What a framework changes: its settings, and how it deals layers to stages."""
