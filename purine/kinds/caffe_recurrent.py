"""Recurrent layers as Caffe has them: over time first, [T, N, ...], with marks of where to go on.

What a step gets from its input is computed for all steps at once by an op of its own; the kinds
here hold only what depends on the step before. `go_on` [T, N] is 0 where a sequence begins, which
forgets the state of that stream. Results end with the state after the last step, to be carried on.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from purine.registry.facts import Facts, Precision
from purine.registry.kind import kind

__all__ = ["CaffeLstm", "CaffeRnn"]


@kind(facts=Facts(Precision.WIDE))
def CaffeLstm(
    x: Tensor, go_on: Tensor, weight: Tensor, hidden: Tensor, cell: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Long short-term memory over x [T, N, 4 D], the gates' inputs in the order i, f, o, g.

    `weight` is [4 D, D], `hidden` and `cell` are [1, N, D]; the results are the outputs [T, N, D],
    the last hidden state and the last cell.
    """
    keep = _keep(x, go_on)
    size = _size(x, weight, 4, hidden, cell)
    h, c, outputs = hidden[0], cell[0], []
    for step in range(x.shape[0]):
        gates = x[step] + F.linear(keep[step] * h, weight)
        inner, forget, out, new = torch.split(gates, size, 1)
        c = keep[step] * torch.sigmoid(forget) * c + torch.sigmoid(inner) * torch.tanh(new)
        h = torch.sigmoid(out) * torch.tanh(c)
        outputs.append(h)
    return torch.stack(outputs), h.unsqueeze(0).clone(), c.unsqueeze(0).clone()


@kind(facts=Facts(Precision.WIDE))
def CaffeRnn(x: Tensor, go_on: Tensor, weight: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """tanh(x + weight h) of each step of x [T, N, D], where h is the result of the step before.

    `weight` is [D, D], `hidden` is [1, N, D]; the results are all h, and the last one by itself.
    """
    keep = _keep(x, go_on)
    _size(x, weight, 1, hidden)
    h, outputs = hidden[0], []
    for step in range(x.shape[0]):
        h = torch.tanh(x[step] + F.linear(keep[step] * h, weight))
        outputs.append(h)
    return torch.stack(outputs), h.unsqueeze(0).clone()


_STEPS = 4096
"""Each step is several ops, for inference and gradients too: more would seem to hang."""


def _keep(x: Tensor, go_on: Tensor) -> Tensor:
    if x.ndim != 3 or tuple(go_on.shape) != tuple(x.shape[:2]):
        raise ValueError(f"go_on has shape {list(go_on.shape)}: x of {list(x.shape)} is [T, N, ..]")
    if x.shape[0] > _STEPS:
        raise ValueError(f"x has {x.shape[0]} steps in time: at most {_STEPS} can be unrolled")
    return go_on.to(x.dtype).unsqueeze(2)


def _size(x: Tensor, weight: Tensor, gates: int, *states: Tensor) -> int:
    """The size of the hidden state, if everything agrees on it."""
    size = int(x.shape[2]) // gates
    if tuple(weight.shape) != (x.shape[2], size):
        raise ValueError(f"weight has shape {list(weight.shape)}: x has {list(x.shape)}")
    for state in states:
        if tuple(state.shape) != (1, x.shape[1], size):
            raise ValueError(f"a state has shape {list(state.shape)}: [1, {x.shape[1]}, {size}]")
    return size
