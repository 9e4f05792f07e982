"""Where gradients end, and what of autograd is refused."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from purine.errors import GraphError
from purine.importers.torch import from_torch
from tests.importers.differential import BATCH, Base, compared
from tests.importers.torch.test_rules import Between, StraightThrough

EXAMPLE = torch.ones(BATCH, 6), torch.zeros(BATCH, dtype=torch.int64)


def inference(module: Base, x: Tensor) -> Tensor:
    with torch.inference_mode():
        y = x.sin()
    return x * y.clone()


@torch.inference_mode()
def decorated(x: Tensor) -> Tensor:
    return x.sin()


def on_a_stack(module: Base, x: Tensor) -> Tensor:
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode())
        y = x.sin()
    return x * y.clone()


def no_grad(module: Base, x: Tensor) -> Tensor:
    with torch.no_grad():
        y = x.sin()
        with torch.enable_grad():
            z = x.cos()
    return x * y * z


def switched(module: Base, x: Tensor) -> Tensor:
    before = torch.is_grad_enabled()
    torch.set_grad_enabled(False)
    y = x.sin()
    torch.set_grad_enabled(before)
    return x * y


def detached_in_place(module: Base, x: Tensor) -> Tensor:
    y = x.sin()
    z = y.exp()
    y.detach_()
    return x * y * z


ENDS: dict[str, Callable[[Base, Tensor], Tensor]] = {
    "inference_mode": inference,
    "decorated": lambda _, x: x * decorated(x).clone(),
    "on_a_stack": on_a_stack,
    "no_grad": no_grad,
    "set_grad_enabled": switched,
    "detach": lambda _, x: x * x.sin().detach(),
    "detach_": detached_in_place,
    "data": lambda _, x: x + (x.round() - x).data,
    "leaf": lambda _, x: x * x.sin().detach().requires_grad_(True),
}


@pytest.mark.parametrize("name", ENDS)
def test_gradients_end_where_autograd_ends_them(name: str) -> None:
    torch.manual_seed(0)
    compared(Between(ENDS[name]))


def frozen(module: Base, x: Tensor) -> Tensor:
    module.fc2.weight.requires_grad_(False)
    return x


def frozen_by_attribute(module: Base, x: Tensor) -> Tensor:
    module.fc2.weight.requires_grad = False
    return x


def data_assigned(module: Base, x: Tensor) -> Tensor:
    module.fc2.weight.data = 2 * module.fc2.weight.data
    return x


def penalised(module: Base, x: Tensor) -> Tensor:
    leaf = x.detach().requires_grad_(True)
    return x + torch.autograd.grad(module.fc2(leaf).pow(2).sum(), leaf, create_graph=True)[0]


def node_hooked(module: Base, x: Tensor) -> Tensor:
    x.grad_fn.register_hook(lambda inward, outward: None)
    return x


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (frozen, "whether a tensor has a gradient"),
        (frozen_by_attribute, "whether a tensor has a gradient"),
        (data_assigned, "assigns the data of a tensor"),
        (penalised, "takes a gradient itself"),
        (node_hooked, "reads the autograd node"),
    ],
    ids=["requires_grad_", "requires_grad", "data", "autograd.grad", "grad_fn"],
)
def test_what_cannot_be_followed_is_refused_at_its_line(
    function: Callable[[Base, Tensor], Tensor], words: str
) -> None:
    module = Between(function)
    with pytest.raises(GraphError, match=words) as caught:
        from_torch(module, F.cross_entropy, EXAMPLE)
    assert "test_autograd.py:" in str(caught.value.where)
    assert all(value.requires_grad for value in module.parameters())
    leaf = torch.ones(2, requires_grad=True)
    leaf.requires_grad = False
    leaf.data = torch.zeros(2)
    assert torch.equal(leaf, torch.zeros(2))


def backward_hook(module: Base) -> None:
    module.fc1.register_full_backward_hook(lambda part, inward, outward: None)


def backward_pre_hook(module: Base) -> None:
    module.fc1.register_full_backward_pre_hook(lambda part, outward: None)


def accumulated_hook(module: Base) -> None:
    module.fc1.weight.register_post_accumulate_grad_hook(lambda parameter: None)


@pytest.mark.parametrize(
    ("register", "words"),
    [
        (backward_hook, "module fc1 has a backward hook"),
        (backward_pre_hook, "module fc1 has a backward hook"),
        (accumulated_hook, "parameter 'fc1.weight' has a hook"),
    ],
)
def test_hooks_of_backwards_are_refused_by_name(
    register: Callable[[Base], None], words: str
) -> None:
    module = Base()
    register(module)
    with pytest.raises(GraphError, match=words) as caught:
        from_torch(module, F.cross_entropy, EXAMPLE)
    assert "test_autograd.py:" in str(caught.value.where)


def test_a_backward_hook_of_all_modules_is_refused() -> None:
    handle = nn.modules.module.register_module_full_backward_hook(lambda *given: None)
    try:
        with pytest.raises(GraphError, match="all modules have a backward hook"):
            from_torch(Base(), F.cross_entropy, EXAMPLE)
    finally:
        handle.remove()


def trained() -> None:
    """A training step that needs all that is patched while another thread traces."""
    x = torch.ones(3, requires_grad=True)
    y = StraightThrough.apply(2 * x)
    y.register_hook(lambda gradient: 3 * gradient)
    (y.data + y).sum().backward()
    assert torch.equal(x.grad, torch.zeros(3))


def test_threads_that_import_at_once_leave_torch_as_it_was() -> None:
    before = [dict(vars(owner)) for owner in (Tensor, nn.Module, torch.inference_mode)]
    errors: list[Exception] = []

    def imported() -> None:
        try:
            from_torch(Base(), F.cross_entropy, EXAMPLE)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=imported) for _ in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        trained()
    for thread in threads:
        thread.join()
    assert errors == []
    assert before == [dict(vars(owner)) for owner in (Tensor, nn.Module, torch.inference_mode)]
