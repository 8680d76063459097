"""Megatron-LM and Megatron-Bridge."""
