"""Import of recipes of Megatron-Bridge and NeMo: by name, by overrides, as Python."""
