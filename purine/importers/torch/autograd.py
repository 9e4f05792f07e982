"""What ends or changes gradients without an operation of its own, and so is lost by an export.

While a module is traced, `torch.inference_mode` counts as `torch.no_grad`; `x.data` and
`x.detach_()` leave a `detach` in the program, and `x.register_hook` the hook's rule. What an
exported program cannot hold is refused at the user's line: parameters that the forward freezes or
unfreezes, backward hooks, and gradients that the forward takes itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from inspect import getattr_static
from types import FrameType

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.overrides import TorchFunctionMode

from purine.errors import GraphError
from purine.importers.torch.lines import definition_line, is_called_by_user, refusal, user_line
from purine.importers.torch.rules import HookHandle, add_hook
from purine.importers.torch.tracing import AnyFunction, current

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
        self,
        func: AnyFunction,
        types: object,
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        caller, named = sys._getframe(1), dict(kwargs or {})
        if func == _DATA.__get__ and is_called_by_user(caller):
            func = Tensor.detach
        handle = _HANDLERS.get(func)
        return handle(self, caller, *args, **named) if handle else self.call(func, args, named)

    def call(
        self, function: AnyFunction, args: tuple[object, ...], named: dict[str, object]
    ) -> object:
        """Call a function of torch that has nothing to do with autograd."""
        return function(*args, **named)


def _set_data(mode: AutogradMode, caller: FrameType, tensor: Tensor, value: Tensor) -> None:
    if is_called_by_user(caller):
        what = "the forward assigns the data of a tensor"
        expected = "tensors that are changed by operations on them"
        raise refusal(what, expected, ".data = ...", "use x.copy_(value) under torch.no_grad()")
    _DATA.__set__(tensor, value)


def _detach_in_place(mode: AutogradMode, caller: FrameType, tensor: Tensor) -> Tensor:
    if is_called_by_user(caller):
        return tensor.copy_(tensor.detach())
    return tensor.detach_()


def _set_requires_grad(
    mode: AutogradMode, caller: FrameType, tensor: Tensor, requires_grad: bool = True
) -> Tensor:
    """Refuse to freeze a tensor that has a gradient, and to unfreeze a parameter."""
    before = tensor.requires_grad
    changes = before != requires_grad and (before or isinstance(tensor, nn.Parameter))
    if changes and is_called_by_user(caller):
        what = "the forward changes whether a tensor has a gradient"
        expected = "parameters that are frozen or not when the module is imported"
        remedy = "set requires_grad before the import, or use x.detach() to stop a gradient"
        raise refusal(what, expected, f"requires_grad = {requires_grad}", remedy)
    return tensor.requires_grad_(requires_grad)


def _get_grad_fn(mode: AutogradMode, caller: FrameType, tensor: Tensor) -> object:
    if is_called_by_user(caller):
        what = "the forward reads the autograd node of a tensor"
        expected = "a forward that leaves the nodes of autograd alone"
        remedy = "ask for x.requires_grad; to change a gradient, register a hook on the tensor"
        raise refusal(what, expected, ".grad_fn", remedy)
    return tensor.grad_fn


def _register_hook(
    mode: AutogradMode, caller: FrameType, tensor: Tensor, hook: Callable[[Tensor], Tensor | None]
) -> object:
    if not tensor.requires_grad:  # torch raises
        return _plain_hook(tensor, hook)
    with mode:  # the hook runs now
        add_hook(tensor, hook)
    return HookHandle()


_plain_hook: AnyFunction = Tensor.register_hook


def _register_accumulate_hook(
    mode: AutogradMode, caller: FrameType, tensor: Tensor, hook: object
) -> object:
    raise _accumulate_hook("a parameter", hook, user_line())


_HANDLERS: Mapping[object, AnyFunction] = {
    _DATA.__set__: _set_data,
    _GRAD_FN.__get__: _get_grad_fn,
    _REQUIRES_GRAD.__set__: _set_requires_grad,
    Tensor.detach_: _detach_in_place,
    Tensor.register_hook: _register_hook,
    Tensor.register_post_accumulate_grad_hook: _register_accumulate_hook,
    Tensor.requires_grad_: _set_requires_grad,
}


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
        actual = "torch.autograd.grad, torch.func.grad or Tensor.backward"
        remedy = "write out this gradient with operations on tensors"
        what = "the forward or the loss takes a gradient itself"
        raise refusal(what, expected, actual, remedy)

    return run


def refuse_backward_hooks(module: nn.Module) -> None:
    """Refuse a module with hooks that see or change gradients between its parts."""
    hooks: list[tuple[str, object]] = [
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
            where=definition_line(hook),
            expected="modules without backward hooks",
            found="register_full_backward_hook or register_full_backward_pre_hook",
            remedy="remove the hook; to change a gradient, register a hook on a tensor in forward, "
            "or use a torch.autograd.Function",
        )
    for name, parameter in module.named_parameters():
        for hook in (parameter._post_accumulate_grad_hooks or {}).values():
            raise _accumulate_hook(f"parameter {_own(name)!r}", hook, definition_line(hook))


def hooked_parameters(module: nn.Module) -> dict[str, list[Callable[[Tensor], Tensor | None]]]:
    """The hooks on the gradients of trainable parameters, by the parameters' names."""
    return {
        name: list(parameter._backward_hooks.values())
        for name, parameter in module.named_parameters()
        if parameter.requires_grad and parameter._backward_hooks
    }


def _accumulate_hook(owner: str, hook: object, where: str | None) -> GraphError:
    return GraphError(
        f"{owner} has a hook {_name(hook)!r} that runs after the backward",
        where=where or definition_line(hook),
        expected="parameters that only a solver changes, by the gradients of the net",
        found="register_post_accumulate_grad_hook",
        remedy="remove the hook, and let a solver or a transform of the step do its work",
    )


def _own(name: str) -> str:
    """The name that a part of a traced step has in the user's module."""
    return name.removeprefix("module").removeprefix(".")


def _name(hook: object) -> str:
    return str(getattr(hook, "__qualname__", type(hook).__name__))
