"""Custom backwards and hooks of tensors are the gradient rules of imported nets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

import purine as pu
from purine.analysis.infer import with_batch
from purine.data import ArraySource, DataSet
from purine.errors import GraphError
from purine.importers.torch import from_torch
from purine.kinds.custom_gradient import CUSTOM_GRADIENT
from tests.importers.differential import BATCH, Base, compared, features


class StraightThrough(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.round()

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return cotangent * (x.abs() < 1)


class Reversed(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, None]:
        return -ctx.factor * cotangent, None


class Clipped(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Tensor:
        return cotangent.clamp(-1e-3, 1e-3)


class Several(Function):
    """Two results, one of them twice, and a parameter among the inputs."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, number: int) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x, weight)
        return x * weight, x.sign()

    @staticmethod
    def backward(ctx: Any, one: Tensor, two: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        assert ctx.needs_input_grad == (True, True, False)
        return one * weight.abs() + two, (one * x).sum(0), None


class NewStyle(Function):
    """With a context of its own, a result without a gradient and a default argument."""

    @staticmethod
    def forward(x: Tensor, power: int = 2) -> tuple[Tensor, Tensor]:
        y = x**power
        return y, y > 1

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(output[0])

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor, nothing: Any) -> tuple[Tensor, None]:
        return 0.1 * cotangent * ctx.saved_tensors[0], None


class WholeSum(Function):
    """Its backward holds the batch size: in a shape, and as a number."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.shape = x.shape
        return x.sum()

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Tensor:
        wide = cotangent.expand(ctx.shape).reshape(ctx.shape[0], 4, 2)
        return wide.flatten(1) * 2 / ctx.shape[0]


class Broadcast(Function):
    """Gradients of other shapes than the inputs: autograd adds them up."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        return x * y

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor, Tensor]:
        return cotangent, -cotangent


class Ends(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.sin()

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> None:
        return None


class Nested(Function):
    """A function within a function, in both directions."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return StraightThrough.apply(x) + 1

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Tensor:
        return cotangent * StraightThrough.apply(ctx.saved_tensors[0])


class Once(Function):
    """Its backward writes in place, to the cotangent itself."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cotangent: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        masked = cotangent.clone()
        masked[x < 0] = 0
        cotangent.mul_(0.5).add_(masked)
        return cotangent


applied = StraightThrough.apply  # bound before anything is traced

FUNCTIONS: dict[str, Callable[[Base, Tensor], Tensor]] = {
    "straight_through": lambda _, x: applied(3 * x),
    "reversed": lambda _, x: x.sin() + Reversed.apply(x, 0.3),
    "clipped": lambda _, x: Clipped.apply(x),
    "several": lambda m, x: sum(Several.apply(x, m.fc1.bias, 3)),
    "one_of_several": lambda m, x: Several.apply(x, m.fc1.bias, 3)[0],
    "new_style": lambda _, x: NewStyle.apply(x)[0],
    "whole_sum": lambda _, x: x + WholeSum.apply(x),
    "broadcast": lambda m, x: Broadcast.apply(x, m.fc1.bias) + Broadcast.apply(x, x),
    "ends": lambda _, x: x + Ends.apply(x),
    "nested": lambda _, x: Nested.apply(2 * x),
    "once": lambda _, x: Once.apply(x),
    "twice": lambda _, x: applied(3 * applied(2 * x)),
    "checkpoint": lambda _, x: checkpoint(torch.sin, x, use_reentrant=True) + x,
    "no_reentrant": lambda _, x: checkpoint(torch.sin, x, use_reentrant=False),
}


class Between(Base):
    def __init__(self, function: Callable[[Base, Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def between(self, x: Tensor) -> Tensor:
        return self.function(self, x)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_a_custom_backward_is_the_gradient_of_the_net(name: str) -> None:
    torch.manual_seed(0)
    imported = compared(Between(FUNCTIONS[name]))
    assert CUSTOM_GRADIENT not in {op.kind for op in imported.test.ops.values()}


def test_a_rule_follows_the_batch_size() -> None:
    torch.manual_seed(0)
    module = Between(FUNCTIONS["whole_sum"]).double()
    generator = torch.Generator().manual_seed(1)
    imported = from_torch(module, F.cross_entropy, features(generator, BATCH))
    step = pu.backward(with_batch(imported.net, 7))
    source = ArraySource(*features(generator, 7), names=("data", "label"))
    wanted = ["loss", "grad/fc1.weight", "data", "label"]
    with pu.Run(pu.prune(step, wanted), data=DataSet("d", source)) as run:
        run.set_states(imported.values)
        (found,) = run.steps(1)
    loss = F.cross_entropy(module(found.outputs["data"]), found.outputs["label"])
    loss.backward()
    torch.testing.assert_close(found.outputs["loss"], loss.detach())
    torch.testing.assert_close(found.outputs["grad/fc1.weight"], module.fc1.weight.grad)


def hooked(*hooks: Callable[[Tensor], Tensor]) -> Callable[[Base, Tensor], Tensor]:
    def between(module: Base, x: Tensor) -> Tensor:
        y = x.sin()  # reads x before it has a hook
        if x.requires_grad and module.training:
            for hook in hooks:
                x.register_hook(hook)
        return x + y

    return between


def masks(module: Base, x: Tensor) -> Tensor:
    if x.requires_grad and module.training:
        x.register_hook(lambda gradient: gradient * (x > 0))
    return x * x.sigmoid()


HOOKS: dict[str, Callable[[Base, Tensor], Tensor]] = {
    "scaled": hooked(lambda gradient: 0.5 * gradient),
    "in_order": hooked(lambda g: g.clamp(-1e-2, 1e-2), lambda g: 3 * g),
    "reads_its_tensor": masks,
}


@pytest.mark.parametrize("name", HOOKS)
def test_a_hook_of_a_tensor_changes_its_whole_gradient(name: str) -> None:
    torch.manual_seed(0)
    compared(Between(HOOKS[name]))


def test_hooks_of_parameters_change_their_gradients() -> None:
    torch.manual_seed(0)
    module = Base()
    module.fc1.weight.register_hook(lambda gradient: 0.1 * gradient)
    module.fc2.bias.register_hook(lambda gradient: gradient.clamp(-1e-3, 1e-3))
    module.fc2.bias.register_hook(lambda gradient: 2 * gradient)
    compared(module)


def test_forward_hooks_are_part_of_the_net() -> None:
    torch.manual_seed(0)
    module = Base()
    module.fc1.register_forward_hook(lambda part, given, result: 2 * result)
    module.fc2.register_forward_pre_hook(lambda part, given: (given[0] * 3,))
    compared(module)


class Branching(Clipped):
    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Tensor:
        return cotangent / 2 if cotangent.norm() > 1 else cotangent


class Misshapen(Clipped):
    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Tensor:
        return cotangent[:, :3]


class InPlace(Clipped):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)


def looks_on(module: Base, x: Tensor) -> Tensor:
    x.register_hook(lambda gradient: None)
    return x


def takes_back(module: Base, x: Tensor) -> Tensor:
    x.register_hook(lambda gradient: gradient).remove()
    return x


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda _, x: Branching.apply(x), "the backward of function 'Branching' cannot be traced"),
        (lambda _, x: Misshapen.apply(x), "'Misshapen' gives a gradient of another form"),
        (lambda _, x: InPlace.apply(x * 1), "'InPlace' changes its input in place"),
        (looks_on, "returns nothing"),
        (takes_back, "removes a hook"),
    ],
    ids=["branch", "shape", "dirty", "looks", "removed"],
)
def test_rules_that_cannot_be_followed_are_refused_at_their_line(
    function: Callable[[Base, Tensor], Tensor], words: str
) -> None:
    example = torch.ones(BATCH, 6), torch.zeros(BATCH, dtype=torch.int64)
    with pytest.raises(GraphError, match=words) as caught:
        from_torch(Between(function), F.cross_entropy, example)
    assert "test_rules.py:" in str(caught.value.where)
    assert caught.value.remedy
    assert "apply" not in vars(torch.autograd.function._SingleLevelFunction)
    assert Tensor.register_hook.__module__ == "torch._tensor"
