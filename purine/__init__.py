"""Purine: a whole training job as one bipartite graph, run by an event-driven dispatcher.

Names are imported when they are first asked for, so that `import purine` and the help of the
command line come at once: most of what is behind them needs torch, which takes seconds to import.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from purine.machine import environment as _environment  # noqa: F401  (before torch)

if TYPE_CHECKING:
    from purine import analysis, data, graph, kinds, optimize, parallel, solvers, zoo
    from purine.analysis.infer import check, with_batch
    from purine.autodiff import backward
    from purine.errors import PurineError
    from purine.graph import Blob, Builder, Graph, Location, Op, State
    from purine.importers.caffe import from_caffe, from_caffe_solver
    from purine.importers.torch import from_torch
    from purine.kinds.net import Net
    from purine.optimize.fuse import fuse
    from purine.optimize.join import join
    from purine.optimize.layout import layout
    from purine.optimize.mixed import mixed
    from purine.optimize.prune import evaluation, inference, prune
    from purine.optimize.recompute import recompute
    from purine.placement.place import to_device
    from purine.recipe import compose
    from purine.runtime.compute import compute
    from purine.runtime.result import Result
    from purine.runtime.run import Run
    from purine.trace.trace import Trace

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
    "analysis",
    "backward",
    "check",
    "compose",
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
    "kinds",
    "layout",
    "mixed",
    "optimize",
    "parallel",
    "prune",
    "recompute",
    "solvers",
    "to_device",
    "with_batch",
    "zoo",
]

__version__ = "0.1.0"

_PACKAGES = ("analysis", "data", "graph", "kinds", "optimize", "parallel", "solvers", "zoo")
_NAMES = {
    "purine.analysis.infer": ("check", "with_batch"),
    "purine.autodiff": ("backward",),
    "purine.errors": ("PurineError",),
    "purine.graph": ("Blob", "Builder", "Graph", "Location", "Op", "State"),
    "purine.importers.caffe": ("from_caffe", "from_caffe_solver"),
    "purine.importers.torch": ("from_torch",),
    "purine.kinds.net": ("Net",),
    "purine.optimize": (
        *("evaluation", "fuse", "inference", "join", "layout", "mixed", "prune", "recompute"),
    ),
    "purine.parallel": ("to_device",),
    "purine.recipe": ("compose",),
    "purine.runtime.compute": ("compute",),
    "purine.runtime.result": ("Result",),
    "purine.runtime.run": ("Run",),
    "purine.trace.trace": ("Trace",),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}
"""The module of each public name that is not a package."""


if not TYPE_CHECKING:  # a type checker tells misspelt names by the imports above

    def __getattr__(name: str) -> object:
        if name in _PACKAGES:
            return import_module(f"purine.{name}")
        if name not in _HOMES:
            raise AttributeError(f"module 'purine' has no attribute {name!r}")
        value = getattr(import_module(_HOMES[name]), name)
        globals()[name] = value  # asked once
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
