"""Export to and import from Megatron-LM and Megatron-Bridge."""
