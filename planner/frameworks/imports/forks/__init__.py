"""Options of Megatron-LM's forks and older releases, with the meaning that they had there."""
