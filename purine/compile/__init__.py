"""Fused ops as kernels: TorchInductor, rewrites of what it is given, and Triton kernels."""
