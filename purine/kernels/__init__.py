"""Triton kernels for GPUs. They know nothing of graphs; importing one needs Triton."""
