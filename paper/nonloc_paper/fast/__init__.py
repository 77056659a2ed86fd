"""Triton kernels for the convolutions and norms of small networks."""
