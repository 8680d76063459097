"""PyTorch's caching allocator played over steps: what it holds beyond tensors."""
