"""Transforms that keep a graph's results, to rounding, and change its cost."""

from purine.optimize.fuse import fuse
from purine.optimize.join import join
from purine.optimize.layout import layout
from purine.optimize.mixed import mixed
from purine.optimize.prune import evaluation, inference, prune
from purine.optimize.recompute import recompute

__all__ = ["evaluation", "fuse", "inference", "join", "layout", "mixed", "prune", "recompute"]
