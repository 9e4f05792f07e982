"""What ends or changes gradients without an operation of its own, and so is lost by an export.

While a module is traced, `torch.inference_mode` counts as `torch.no_grad`; `x.data` and
`x.detach_()` leave a `detach` in the program, and `x.register_hook` the hook's rule. What an
exported program cannot hold is refused at the user's line: parameters that the forward freezes or
unfreezes, backward hooks, and gradients that the forward takes itself.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from inspect import getattr_static
from typing import NoReturn

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.overrides import TorchFunctionMode

from purine.errors import GraphError
from purine.importers.torch.batch import own_name
from purine.importers.torch.lines import definition_line, is_called_by_user, refusal, user_line
from purine.importers.torch.rules import Hook, HookHandle, add_hook, hook_name
from purine.importers.torch.tracing import AnyFunction, Args, Named, current

__all__ = [
    "AutogradMode",
    "enter_inference",
    "exit_inference",
    "hooked_parameters",
    "refuse_backward_hooks",
    "run_backward",
]

_DATA, _GRAD_FN = getattr_static(Tensor, "data"), getattr_static(Tensor, "grad_fn")
_REQUIRES_GRAD = getattr_static(Tensor, "requires_grad")


class AutogradMode(TorchFunctionMode):
    """Follows or refuses the functions and attributes of tensors that act on autograd.

    A mode acts in the thread that enters it alone, so no attribute of `Tensor` is replaced.
    """

    def __torch_function__(
        self, func: AnyFunction, types: object, args: Args = (), kwargs: Named | None = None
    ) -> object:
        named, handle = kwargs or {}, _HANDLERS.get(func)
        if handle is None:
            return self.call(func, args, named)
        if func in _HOOKS or is_called_by_user(sys._getframe(1)):
            return handle(self, *args, **named)
        return func(*args, **named)

    def call(self, function: AnyFunction, args: Args, named: Named) -> object:
        """Call a function of torch that has nothing to do with autograd."""
        return function(*args, **named)


def _refused(*parts: str) -> AnyFunction:
    def handle(*_: object) -> NoReturn:
        raise refusal(*parts)

    return handle


def _set_requires_grad(mode: AutogradMode, tensor: Tensor, requires_grad: bool = True) -> Tensor:
    """Refuse to freeze a tensor that has a gradient, and to unfreeze a parameter."""
    before = tensor.requires_grad
    if before != requires_grad and (before or isinstance(tensor, nn.Parameter)):
        what = "the forward changes whether a tensor has a gradient"
        expected = "parameters that are frozen or not when the module is imported"
        remedy = "set requires_grad before the import, or use x.detach() to stop a gradient"
        raise refusal(what, expected, f"requires_grad = {requires_grad}", remedy)
    return tensor.requires_grad_(requires_grad)


def _register_hook(mode: AutogradMode, tensor: Tensor, hook: Hook) -> object:
    if not tensor.requires_grad:  # torch raises
        return _plain_hook(tensor, hook)
    with mode:  # the hook runs now
        add_hook(tensor, hook)
    return HookHandle()


_plain_hook: AnyFunction = Tensor.register_hook


def _register_accumulate_hook(mode: AutogradMode, tensor: Tensor, hook: object) -> NoReturn:
    raise _accumulate_hook("a parameter", hook, user_line())


_HOOKS: Mapping[object, AnyFunction] = {
    Tensor.register_hook: _register_hook,
    Tensor.register_post_accumulate_grad_hook: _register_accumulate_hook,
}
_HANDLERS: Mapping[object, AnyFunction] = {
    **_HOOKS,
    _DATA.__get__: lambda mode, tensor, *_: mode.call(Tensor.detach, (tensor,), {}),
    _DATA.__set__: _refused(
        "the forward assigns the data of a tensor",
        "tensors that are changed by operations on them",
        ".data = ...",
        "use x.copy_(value) under torch.no_grad()",
    ),
    _GRAD_FN.__get__: _refused(
        "the forward reads the autograd node of a tensor",
        "a forward that leaves the nodes of autograd alone",
        ".grad_fn",
        "ask for x.requires_grad; to change a gradient, register a hook on the tensor",
    ),
    _REQUIRES_GRAD.__set__: _set_requires_grad,
    Tensor.detach_: lambda mode, tensor: tensor.copy_(tensor.detach()),
    Tensor.requires_grad_: _set_requires_grad,
}
"""What takes the place of functions that user code calls, and of hooks whoever registers them."""


def enter_inference(original: AnyFunction) -> AnyFunction:
    """`torch.inference_mode.__enter__` that switches gradients off, which an export follows."""

    def enter(self: torch.inference_mode) -> None:
        if current() is None or not is_called_by_user(sys._getframe(1)):
            original(self)
        else:
            vars(self)["grad_before_purine"] = torch.is_grad_enabled()
            torch._C._set_grad_enabled(not self.mode)

    return enter


def exit_inference(original: AnyFunction) -> AnyFunction:
    def leave(self: torch.inference_mode, *raised: object) -> None:
        before = vars(self).pop("grad_before_purine", None)
        if before is None:
            original(self, *raised)
        else:
            torch._C._set_grad_enabled(before)

    return leave


def run_backward(original: AnyFunction) -> AnyFunction:
    """Autograd's engine, which refuses to run for a module that is traced."""

    def run(*given: object, **named: object) -> object:
        if current() is None:
            return original(*given, **named)
        expected = "a forward and a loss whose gradients are taken once, by backward"
        found = "torch.autograd.grad, torch.func.grad or Tensor.backward"
        remedy = "write out this gradient with operations on tensors"
        raise refusal("the forward or the loss takes a gradient itself", expected, found, remedy)

    return run


def refuse_backward_hooks(module: nn.Module) -> None:
    """Refuse a module with hooks that see or change gradients between its parts."""
    _refuse_backward_hooks("all modules have", torch_module, "_global")
    for name, part in module.named_modules():
        _refuse_backward_hooks(f"module {own_name(name) or type(part).__name__} has", part)
    for name, parameter in module.named_parameters():
        for hook in (parameter._post_accumulate_grad_hooks or {}).values():
            raise _accumulate_hook(f"parameter {own_name(name)!r}", hook, definition_line(hook))


def _refuse_backward_hooks(owner: str, holder: object, prefix: str = "") -> None:
    for table in ("_backward_hooks", "_backward_pre_hooks"):
        for hook in getattr(holder, prefix + table).values():
            what = f"{owner} a backward hook, {hook_name(hook)!r}"
            expected = "modules without backward hooks"
            found = "register_full_backward_hook or register_full_backward_pre_hook"
            remedy = "remove the hook; to change a gradient, register a hook on a tensor in "
            remedy += "forward, or use a torch.autograd.Function"
            raise GraphError(what, expected, found, remedy, where=definition_line(hook))


def hooked_parameters(module: nn.Module) -> dict[str, list[Hook]]:
    """The hooks on the gradients of trainable parameters, by the parameters' names."""
    return {
        name: list(parameter._backward_hooks.values())
        for name, parameter in module.named_parameters()
        if parameter.requires_grad and parameter._backward_hooks
    }


def _accumulate_hook(owner: str, hook: object, where: str | None) -> GraphError:
    what = f"{owner} has a hook {hook_name(hook)!r} that runs after the backward"
    expected = "parameters that only a solver changes, by the gradients of the net"
    found = "register_post_accumulate_grad_hook"
    remedy = "remove the hook, and let a solver or a transform of the step do its work"
    return GraphError(what, expected, found, remedy, where=where or definition_line(hook))
