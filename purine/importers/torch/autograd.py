"""What ends gradients without an operation of its own, and so is forgotten by an export.

While a module is traced, `torch.inference_mode` counts as `torch.no_grad`, and `x.data` and
`x.detach_()` leave a `detach` in the program. What cannot be followed is refused at the user's
line: parameters that are frozen or thawed by the forward, hooks of backwards, gradients that the
forward takes itself.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from purine.errors import GraphError
from purine.importers.torch.patched import called_by_user, is_tracing, patched, users_line

__all__ = ["following_autograd", "hooked_parameters", "refuse_backward_hooks"]

_enter, _exit = torch.inference_mode.__enter__, torch.inference_mode.__exit__
_detach, _accumulate = Tensor.detach_, Tensor.register_post_accumulate_grad_hook
_run_backward = torch.autograd._engine_run_backward
_data, _requires_grad = torch._C.TensorBase.data, torch._C.TensorBase.requires_grad
_grad_fn = torch._C.TensorBase.grad_fn


@contextmanager
def following_autograd() -> Iterator[None]:
    """Let what ends gradients leave its mark in what is traced."""
    importlib.import_module("torch._dynamo")  # its tables are not to have what is patched here
    with ExitStack() as stack:
        for owner, name, value in (
            (torch.inference_mode, "__enter__", _enter_inference),
            (torch.inference_mode, "__exit__", _exit_inference),
            (Tensor, "data", property(_get_data, _set_data)),
            (Tensor, "detach_", _detach_in_place),
            (Tensor, "requires_grad", property(_get_requires_grad, _set_requires_grad)),
            (Tensor, "requires_grad_", _require_grad),
            (Tensor, "register_post_accumulate_grad_hook", _refuse_accumulate_hook),
            (Tensor, "grad_fn", property(_get_grad_fn)),
            (torch.autograd, "_engine_run_backward", _refuse_gradient),
        ):
            stack.enter_context(patched(owner, name, value))
        yield


def _enter_inference(self: Any) -> None:
    if not called_by_user():
        _enter(self)
        return
    self.purine_before = torch.is_grad_enabled()
    torch._C._set_grad_enabled(not self.mode)


def _exit_inference(self: Any, *raised: Any) -> None:
    before = self.__dict__.pop("purine_before", None)
    if before is None:
        _exit(self, *raised)
    else:
        torch._C._set_grad_enabled(before)


def _get_data(tensor: Tensor) -> Tensor:
    found: Tensor = tensor.detach() if called_by_user() else _data.__get__(tensor)
    return found


def _set_data(tensor: Tensor, value: Tensor) -> None:
    if called_by_user():
        raise GraphError(
            "the forward assigns the data of a tensor",
            where=users_line(),
            expected="tensors that are changed by operations on them",
            found=".data = ...",
            remedy="use x.copy_(value) under torch.no_grad()",
        )
    _data.__set__(tensor, value)


def _detach_in_place(tensor: Tensor) -> Tensor:
    return tensor.copy_(tensor.detach()) if called_by_user() else _detach(tensor)


def _get_requires_grad(tensor: Tensor) -> bool:
    return bool(_requires_grad.__get__(tensor))


def _set_requires_grad(tensor: Tensor, value: bool) -> None:
    if called_by_user():
        _refuse_freezing(tensor, value)
    _requires_grad.__set__(tensor, value)


def _require_grad(tensor: Tensor, requires_grad: bool = True) -> Tensor:
    if called_by_user():
        _refuse_freezing(tensor, requires_grad)
    _requires_grad.__set__(tensor, requires_grad)
    return tensor


def _refuse_freezing(tensor: Tensor, value: bool) -> None:
    """Refuse to freeze what has a gradient, and to thaw a parameter."""
    before = tensor.requires_grad
    if before == value or not (before or isinstance(tensor, nn.Parameter)):
        return
    raise GraphError(
        "the forward changes whether a tensor has a gradient",
        where=users_line(),
        expected="parameters that are frozen or not when the module is imported",
        found=f"requires_grad = {value}",
        remedy="set requires_grad before the import, or use x.detach() where no gradient is wanted",
    )


def _refuse_gradient(*given: Any, **named: Any) -> Any:
    if not is_tracing():
        return _run_backward(*given, **named)
    raise GraphError(
        "the forward or the loss takes a gradient itself",
        where=users_line(),
        expected="a forward and a loss of operations whose gradients are taken once, by backward",
        found="torch.autograd.grad, torch.func.grad or Tensor.backward",
        remedy="write out this gradient with operations on tensors",
    )


def _get_grad_fn(tensor: Tensor) -> Any:
    if called_by_user():
        raise GraphError(
            "the forward reads the autograd node of a tensor",
            where=users_line(),
            expected="a forward that leaves the nodes of autograd alone",
            found=".grad_fn",
            remedy="ask for x.requires_grad; to change a gradient, register a hook on the tensor",
        )
    return _grad_fn.__get__(tensor)


def _refuse_accumulate_hook(tensor: Tensor, hook: Any) -> Any:
    if not is_tracing():
        return _accumulate(tensor, hook)
    raise _accumulate_hook("a parameter", hook, users_line())


def _accumulate_hook(owner: str, hook: Any, where: str | None = None) -> GraphError:
    return GraphError(
        f"{owner} has a hook {_name(hook)!r} that runs behind the backward",
        where=where or _line(hook),
        expected="parameters that only a solver changes, by the gradients of the net",
        found="register_post_accumulate_grad_hook",
        remedy="remove the hook, and let a solver or a transform of the step do its work",
    )


def refuse_backward_hooks(module: nn.Module) -> None:
    """Refuse a module with hooks that see or change gradients between its parts."""
    hooks = [
        *(("all modules have", hook) for hook in torch_module._global_backward_hooks.values()),
        *(("all modules have", hook) for hook in torch_module._global_backward_pre_hooks.values()),
    ]
    for name, part in module.named_modules():
        owner = f"module {_own(name) or type(part).__name__} has"
        for hook in (*part._backward_hooks.values(), *part._backward_pre_hooks.values()):
            hooks.append((owner, hook))
    for owner, hook in hooks:
        raise GraphError(
            f"{owner} a backward hook, {_name(hook)!r}",
            where=_line(hook),
            expected="modules without backward hooks",
            found="register_full_backward_hook or register_full_backward_pre_hook",
            remedy="remove the hook; to change a gradient, register a hook on a tensor in forward, "
            "or use a torch.autograd.Function",
        )
    for name, parameter in module.named_parameters():
        for hook in (parameter._post_accumulate_grad_hooks or {}).values():
            raise _accumulate_hook(f"parameter {_own(name)!r}", hook)


def hooked_parameters(module: nn.Module) -> dict[str, list[Any]]:
    """The hooks of the gradients of trainable parameters, by the parameters' names."""
    return {
        name: list(parameter._backward_hooks.values())
        for name, parameter in module.named_parameters()
        if parameter.requires_grad and parameter._backward_hooks
    }


def _own(name: str) -> str:
    """The name that a part of a traced step has in the user's module."""
    return name.removeprefix("module").removeprefix(".")


def _name(hook: Any) -> str:
    return str(getattr(hook, "__qualname__", type(hook).__name__))


def _line(hook: Any) -> str | None:
    code = getattr(getattr(hook, "__func__", hook), "__code__", None)
    return None if code is None else f"{code.co_filename}:{code.co_firstlineno}"
