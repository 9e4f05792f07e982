"""Transforms that keep a graph's results and change its cost."""

from purine.optimize.prune import evaluation, inference, prune

__all__ = ["evaluation", "inference", "prune"]
