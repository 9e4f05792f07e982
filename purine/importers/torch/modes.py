"""Training and test mode of a module: setting it, and who asks for it.

Where only torch's own dropout and batch norm layers depend on the mode, one trace tells both: the
test forms of their kinds are known.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.export import ExportedProgram

from purine.importers.torch.lines import TORCH
from purine.importers.torch.tracing import current

__all__ = ["has_plain_modes", "mode", "watch_training"]

_LAYERS = os.path.join(TORCH, "nn", "modules", "")
_EXPORTER = tuple(os.path.join(TORCH, part, "") for part in ("_export", "export", "fx"))


@contextmanager
def mode(module: nn.Module, *, training: bool) -> Iterator[None]:
    """The module in training or test mode; parts that are frozen in training stay so."""
    before = {part: part.training for part in module.modules()}
    if module.training is not training:
        module.train(training)
    try:
        yield
    finally:
        for part, flag in before.items():
            part.training = flag


def watch_training(original: object) -> property:
    """`nn.Module.training` as a property that notes who reads it.

    Modules keep the flag where it was, in their `__dict__`.
    """

    def read(self: nn.Module) -> bool:
        trace = current()
        if trace is not None:
            file = sys._getframe(1).f_code.co_filename
            plain = type(self) is nn.Dropout or isinstance(self, nn.modules.batchnorm._BatchNorm)
            known = file.startswith(_LAYERS) and plain
            if not known and not file.startswith(_EXPORTER):
                trace.reads_mode = True
        if "training" not in self.__dict__:  # a scripted module, whose __getattr__ knows
            raise AttributeError("training")
        return bool(self.__dict__["training"])

    def write(self: nn.Module, value: bool) -> None:
        self.__dict__["training"] = value

    return property(read, write)


def has_plain_modes(module: nn.Module, exported: ExportedProgram) -> bool:
    """Whether what depends on the mode is in known layers, and changing the mode does no more."""
    for part in module.modules():
        if type(part).train is not nn.Module.train or type(part).eval is not nn.Module.eval:
            return False
    for node in exported.graph.nodes:
        if str(node.target).startswith(("aten.native_dropout", "aten._native_batch_norm")):
            stack = list((node.meta.get("nn_module_stack") or {}).values())
            layer = str(stack[-1][1]) if stack else ""
            known = "torch.nn.modules.dropout.Dropout", "torch.nn.modules.batchnorm."
            if not any(name in layer for name in known):
                return False
    return True
