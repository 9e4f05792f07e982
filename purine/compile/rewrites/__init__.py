"""Rewrites of a recorded step, made before TorchInductor compiles it."""
