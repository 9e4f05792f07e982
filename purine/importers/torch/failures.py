"""Why a module could not be traced, in terms of the user's code."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from purine.errors import ConfigError, GraphError
from purine.importers.torch.batch import Batch
from purine.importers.torch.lines import code_at, error_line
from purine.importers.torch.tracing import AnyFunction

__all__ = ["refuse_failing", "untraced"]


def untraced(module: nn.Module, error: Exception) -> GraphError:
    """The error that a trace failed."""
    where = error_line(error)
    if isinstance(error, GuardOnDataDependentSymNode):
        return GraphError(
            f"the path of module {type(module).__name__} depends on the values of tensors",
            where=where,
            expected="a forward and a loss that take one path whatever the values are",
            found=code_at(where) or _first_line(error),
            remedy="compute both ways and choose with torch.where(condition, a, b), not with if; "
            "use tensors in place of .item(), .tolist() and int() of them",
        )
    what = f"module {type(module).__name__} cannot be traced"
    expected = "a forward and a loss that torch.export can follow"
    remedy = "write this line with operations on tensors alone, or without what fails there"
    return GraphError(what, where=where, expected=expected, found=_first_line(error), remedy=remedy)


def refuse_failing(module: nn.Module, loss: AnyFunction, batch: Batch) -> None:
    """Refuse a module or a loss that fails on the example even when it is not traced."""
    arguments, keywords, targets = batch.rebuild([value.clone() for value in batch.values])
    with torch.random.fork_rng(devices=[]):
        try:
            outputs = _called(module, *arguments, **keywords)
        except Exception as error:
            raise ConfigError(
                f"module {type(module).__name__} fails on its example",
                where=error_line(error),
                expected=f"a module that takes {_forms([*arguments, *keywords.values()])}",
                found=_first_line(error),
                remedy="mend the module or the example, until module(*inputs) works",
            ) from error
        try:
            _called(loss, outputs, *targets)
        except Exception as error:
            raise ConfigError(
                "the loss function fails on the module's outputs and the targets of the example",
                where=error_line(error),
                expected=f"a function of {_forms([outputs, *targets])}",
                found=_first_line(error),
                remedy=_mend_loss(outputs, targets),
            ) from error


def _mend_loss(outputs: object, targets: Sequence[object]) -> str:
    if not isinstance(outputs, Tensor):
        form = type(outputs).__name__
        return f"let the loss take what it compares out of the {form}: lambda y, *targets: ..."
    if any(isinstance(target, Tensor) and target.is_floating_point() for target in targets):
        return "give labels of classes as int64; or mend the loss, until it works on the example"
    return "mend the loss or the targets, until loss(module(*inputs), *targets) works"


def _called(part: AnyFunction, *arguments: object, **keywords: object) -> object:
    """What a module or function returns; buffers of a module stay as they are."""
    if not isinstance(part, nn.Module):
        return part(*arguments, **keywords)
    buffers = {name: value.clone() for name, value in part.named_buffers()}
    return torch.func.functional_call(part, buffers, arguments, keywords)


def _forms(values: Sequence[object]) -> str:
    return ", ".join(
        f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
        if isinstance(value, Tensor)
        else f"a {type(value).__name__}"
        for value in values
    )


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {text[0]}"
