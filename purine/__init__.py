"""Purine: a whole training job as one bipartite graph, run by an event-driven dispatcher."""

from purine import _environment as _environment
from purine import data, graph, ops, optimize, parallel, solvers, zoo
from purine.autodiff import backward
from purine.errors import PurineError
from purine.graph import Blob, Builder, Graph, Location, Op, State
from purine.importers.caffe import from_caffe, from_caffe_solver
from purine.importers.torch import from_torch
from purine.ops import Net, check
from purine.optimize import evaluation, fuse, inference, join, layout, mixed, prune, recompute
from purine.parallel import to_device
from purine.runtime.run import Result, Run, compute
from purine.runtime.trace import Trace

__all__ = [
    "Blob",
    "Builder",
    "Graph",
    "Location",
    "Net",
    "Op",
    "PurineError",
    "Result",
    "Run",
    "State",
    "Trace",
    "backward",
    "check",
    "compute",
    "data",
    "evaluation",
    "from_caffe",
    "from_caffe_solver",
    "from_torch",
    "fuse",
    "graph",
    "inference",
    "join",
    "layout",
    "mixed",
    "ops",
    "optimize",
    "parallel",
    "prune",
    "recompute",
    "solvers",
    "to_device",
    "zoo",
]

__version__ = "0.1.0"
