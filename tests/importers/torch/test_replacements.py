"""What a trace replaces is replaced for the tracing thread alone, and is put back afterwards."""

from __future__ import annotations

import gc
import logging
import random
import threading
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from purine.errors import GraphError
from purine.importers.torch import from_torch
from purine.importers.torch.replacements import REPLACEMENTS, tracing

EXAMPLE = torch.ones(4, 3), torch.zeros(4, dtype=torch.int64)


class Calling(nn.Module):
    """Calls a function in its forward."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.fc(x))


def attributes() -> list[object]:
    return [vars(item.owner).get(item.name) for item in REPLACEMENTS]


def settings() -> list[object]:
    logger = logging.getLogger("torch.fx.experimental.symbolic_shapes")
    return [gc.isenabled(), list(warnings.filters), list(logger.filters)]


class Doubling(torch.autograd.Function):
    """The identity, with twice its gradient."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, *gradients: Tensor) -> Tensor:
        return 2 * gradients[0]


def use_torch() -> None:
    """Everything that is replaced, as code that is not traced uses it."""
    x = torch.ones(3, requires_grad=True)
    y = Doubling.apply(x)
    y.register_hook(lambda gradient: 3 * gradient)
    torch.autograd.backward((y.data * y).sum())
    assert torch.equal(x.grad, torch.full((3,), 6.0))
    assert y.grad_fn is not None
    x.requires_grad = False
    x.data = torch.zeros(3)
    with torch.inference_mode():
        assert (x + 1).is_inference()
    layer = nn.BatchNorm1d(3, momentum=None)
    layer.note = "assigned"
    assert layer.training
    layer(torch.randn(4, 3))
    assert not layer.eval().training
    packed = nn.utils.rnn.pack_padded_sequence(torch.ones(4, 2, 3), torch.tensor([4, 2]))
    assert isinstance(packed, nn.utils.rnn.PackedSequence)
    outputs, _ = nn.GRU(3, 3)(packed)
    nn.utils.rnn.pad_packed_sequence(outputs)
    assert 0.0 <= random.random() + np.random.rand() + random.uniform(0, 1) < 3.0
    with pytest.warns(UserWarning, match="seen"):
        warnings.warn("seen", UserWarning, stacklevel=1)


def in_another_thread(function: Callable[[], None]) -> list[BaseException]:
    raised: list[BaseException] = []

    def run() -> None:
        try:
            function()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return raised


def test_other_threads_use_the_originals_while_a_module_is_traced() -> None:
    raised: list[BaseException] = []
    replaced: list[object] = []

    def forward(y: Tensor) -> Tensor:
        replaced[:] = attributes()
        raised.extend(in_another_thread(use_torch))
        return y

    before = attributes()
    from_torch(Calling(forward), F.cross_entropy, EXAMPLE)
    assert raised == []
    assert not any(one is two for one, two in zip(before, replaced, strict=True))
    assert attributes() == before


def failing(y: Tensor) -> Tensor:
    raise ValueError("no")


def refused(y: Tensor) -> Tensor:
    return y * random.random()


def interrupted(y: Tensor) -> Tensor:
    raise KeyboardInterrupt


@pytest.mark.parametrize("function", [failing, refused, interrupted])
def test_everything_is_put_back_after_an_exception(function: Callable[[Tensor], Tensor]) -> None:
    before, switches = attributes(), settings()
    with pytest.raises((Exception, KeyboardInterrupt)):
        from_torch(Calling(function), F.cross_entropy, EXAMPLE)
    assert all(one is two for one, two in zip(attributes(), before, strict=True))
    assert settings() == switches
    use_torch()


def test_a_trace_within_a_trace_keeps_the_replacements_of_the_outer_one() -> None:
    before = attributes()
    with tracing():
        outer = attributes()
        with pytest.raises(RuntimeError, match="inner"), tracing():
            raise RuntimeError("inner")
        assert all(one is two for one, two in zip(attributes(), outer, strict=True))
    assert all(one is two for one, two in zip(attributes(), before, strict=True))


def test_no_attribute_of_tensors_is_replaced() -> None:
    assert not any(item.owner in (Tensor, torch._C.TensorBase) for item in REPLACEMENTS)
    assert all(item.why.endswith(".") for item in REPLACEMENTS)


def test_a_scripted_module_has_its_mode_while_another_module_is_traced() -> None:
    scripted = torch.jit.script(nn.Linear(3, 3).eval())
    with tracing():
        assert scripted.training is False
    with pytest.raises(GraphError, match="random number"):
        from_torch(Calling(refused), F.cross_entropy, EXAMPLE)
