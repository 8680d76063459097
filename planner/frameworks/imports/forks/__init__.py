"""Import of options of Megatron-LM's forks and older releases, with the meaning that they have there."""
