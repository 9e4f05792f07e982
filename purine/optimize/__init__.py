"""Transforms that keep a graph's results and change its cost."""

from purine.optimize.prune import evaluation, inference, prune
from purine.optimize.recompute import recompute

__all__ = ["evaluation", "inference", "prune", "recompute"]
