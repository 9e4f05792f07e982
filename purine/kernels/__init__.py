"""Triton kernels for GPUs. They know nothing of graphs; importing one needs Triton.

Arguments of kernels in capitals are constants of the compilation.
"""
