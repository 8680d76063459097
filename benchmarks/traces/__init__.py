"""Whether what is learned from traces of training steps is right."""
