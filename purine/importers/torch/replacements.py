"""Everything of torch and Python that `from_torch` replaces or sets while it traces a module.

`REPLACEMENTS` lists the attributes: what is replaced, by what, and why. All threads see them, and
in a thread that does not trace each calls what it replaced. Functions and attributes of `Tensor`
need no replacement: `AutogradMode` and `Branches` are modes, which torch keeps for each thread.

`tracing()` also sets what belongs to the whole process:

| setting                     | effect on other threads while a module is traced               |
|-----------------------------|-----------------------------------------------------------------|
| a lock                      | they wait to trace modules of their own                         |
| a filter of warnings        | none: it drops warnings of the tracing thread                   |
| a filter of torch's log     | none: it drops one message of the tracing thread                |
| lazy `GraphModule` code     | `torch.fx` compiles their new graphs when these are first called |
| garbage collector off       | cycles are collected afterwards; in traces it takes 1/6 of time |

torch itself marks the process as exporting (`torch.compiler.is_exporting()`) while it exports, and
the module that is imported must not be used by another thread meanwhile.
"""

from __future__ import annotations

import gc
import importlib
import logging
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from inspect import getattr_static

import torch
from torch import nn
from torch.autograd.function import _SingleLevelFunction
from torch.fx._lazy_graph_module import _use_lazy_graph_module
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils import rnn

from purine.importers.torch.autograd import enter_inference, exit_inference, run_backward
from purine.importers.torch.branches import PYTHON_DRAWS
from purine.importers.torch.layers import cumulative_batch_norm
from purine.importers.torch.modes import watch_training
from purine.importers.torch.packed import masked_layer, packed_sequence_init
from purine.importers.torch.rules import apply_function, define_ops
from purine.importers.torch.state import set_attribute
from purine.importers.torch.tracing import Trace

__all__ = ["REPLACEMENTS", "Replacement", "tracing"]


@dataclass(frozen=True, slots=True)
class Replacement:
    """An attribute of a class or module; `wrap` makes what replaces it from what it was."""

    owner: object
    name: str
    wrap: Callable[..., object]
    why: str


_INFERENCE = "An export follows no_grad and not inference_mode."
_PACKED = "Packed sequences have sizes that depend on values; here they are masked."
_ROWS: tuple[tuple[object, str, Callable[..., object], str], ...] = (
    (nn.Module, "training", watch_training, "One trace may tell both modes."),
    (nn.Module, "__setattr__", set_attribute, "Errors name the line of an assignment."),
    (torch.inference_mode, "__enter__", enter_inference, _INFERENCE),
    (torch.inference_mode, "__exit__", exit_inference, _INFERENCE),
    (torch.autograd, "_engine_run_backward", run_backward, "A forward may take no gradient."),
    (_SingleLevelFunction, "apply", apply_function, "An export forgets custom backwards."),
    (_BatchNorm, "forward", cumulative_batch_norm, "With momentum=None it reads a value."),
    *((layer, "forward", masked_layer, _PACKED) for layer in (nn.RNN, nn.GRU, nn.LSTM)),
    (rnn, "_packed_sequence_init", packed_sequence_init, _PACKED),
    *((*draw, "A trace would take a random number for a constant.") for draw in PYTHON_DRAWS),
)
REPLACEMENTS = tuple(Replacement(*row) for row in _ROWS)

_LOCK = threading.RLock()


@contextmanager
def tracing() -> Iterator[Trace]:
    """The one context that a module is traced in; whatever happens, all is as before after it.

    A context within another, as when a forward imports a module itself, replaces nothing anew.
    """
    importlib.import_module("torch._dynamo")  # its tables hold attributes of the list above
    define_ops()
    with _LOCK, ExitStack() as settings:
        if not _entered.locked():
            settings.enter_context(_entered)
            settings.enter_context(_process_settings())
            settings.enter_context(_replaced())
        yield Trace()


_entered = threading.Lock()  # held by the outermost context, under the other lock


@contextmanager
def _replaced() -> Iterator[None]:
    with ExitStack() as undo:
        for item in REPLACEMENTS:
            original = getattr_static(item.owner, item.name, None)
            if item.name in vars(item.owner):
                undo.callback(setattr, item.owner, item.name, vars(item.owner)[item.name])
            else:
                undo.callback(delattr, item.owner, item.name)
            setattr(item.owner, item.name, item.wrap(original))
        yield


class _ThisThread:
    """Matches all warnings, and one log message, of the thread that made this object."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()

    def match(self, text: str) -> bool:
        return threading.get_ident() == self.thread

    def filter(self, record: logging.LogRecord) -> bool:
        return not (self.match("") and str(record.msg).startswith("Unable to find user code"))


@contextmanager
def _process_settings() -> Iterator[None]:
    thread = _ThisThread()
    ignored = ("ignore", thread, Warning, None, 0)
    filters = vars(warnings)["filters"]
    logger = logging.getLogger(GuardOnDataDependentSymNode.__module__)
    collects = gc.isenabled()
    gc.disable()
    filters.insert(0, ignored)
    logger.addFilter(thread)  # torch has no advice about a branch on a value, and we have
    try:
        with _use_lazy_graph_module(True):
            yield
    finally:
        logger.removeFilter(thread)
        with suppress(ValueError):  # somebody may have reset all filters
            filters.remove(ignored)
        if collects:
            gc.enable()
