"""Import of configurations of other tools: every key has a meaning, or a reason to be ignored or refused."""
