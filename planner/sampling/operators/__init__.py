"""What is measured: each operator as calls of torch, on inputs of its own."""
