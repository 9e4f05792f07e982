"""Shared by the executor and the simulator: which thread serves which lane, and what a host waits
for from others. Pure data: no threads, no I/O and no kernels."""
